"""The codes of what probes find."""

from __future__ import annotations

from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode

_RATE_CLOSES_AFTER = 1800.0
"""Seconds: of few attempts each moves the share by points, so that it passes its mark more than once."""

PROBE_CODES: tuple[FindingCode, ...] = (
    FindingCode(
        name="probe_latency_high",
        title="Small collectives take too long",
        severity="warning",
        role="symptom",
        meaning="Several results in a row were far above what this node usually needs for the same small collective. "
        "Jobs with many small messages are slower here.",
        next_step="Run commwatch probe on the node to see whether it still is so, and look at the causes listed; "
        "without one, look for other load on the CPUs.",
        alert="CommwatchProbeLatencyStreak",
        opens_after=0.0,
    ),
    FindingCode(
        name="probe_bandwidth_low",
        title="Bandwidth is far below what is expected",
        severity="warning",
        role="symptom",
        meaning="Several results in a row stayed below the mark of what is expected: configured, published for this "
        "hardware, learned on the first good day of this node, or else by a model. Training waits for communication on "
        "this node.",
        next_step="Run commwatch probe and commwatch probe --pairs on the free node, and look at the causes listed; "
        "commwatch topology shows links that are narrower than they should be. Where a model is the ground, compare "
        "with a node of the same kind: if all give the same, set expected_bandwidth of the probe to it.",
        alert="CommwatchProbeBandwidthLow",
        opens_after=0.0,
    ),
    FindingCode(
        name="probe_failing",
        title="The probe fails again and again",
        severity="warning",
        role="symptom",
        meaning="No cycle has given a result since the last good one, and several were tried. Jobs on these GPUs are "
        "likely to fail in the same way.",
        next_step="Run commwatch probe on the free node and read which rank, phase and category it names.",
        alert="CommwatchProbeFailing",
        opens_after=0.0,
    ),
    FindingCode(
        name="probe_error_rate_rise",
        title="The probe fails more often than it did",
        severity="warning",
        role="symptom",
        meaning="The share of cycles that fail has risen against the time before. Communication on this node has "
        "become unreliable.",
        next_step="Read the reasons in commwatch_probe_failures_total and the causes listed, then run commwatch probe "
        "on the free node.",
        alert="CommwatchProbeErrorRateRise",
        opens_after=0.0,
        closes_after=_RATE_CLOSES_AFTER,
    ),
    FindingCode(
        name="probe_wrong_result",
        title="Probe found corrupted data",
        severity="critical",
        role="symptom",
        meaning="The check of a probe found elements that differ bit by bit from what they must be. A job on these "
        "GPUs may compute wrong numbers without any error.",
        next_step="Drain the node. Run commwatch probe --pairs to see which GPUs are involved, and the vendor's memory "
        "and link tests on these.",
        alert="CommwatchProbeWrongResult",
        opens_after=0.0,
        closes_after=COUNT_CLOSES_AFTER,
    ),
    FindingCode(
        name="probe_step",
        title="The probe has become slower",
        severity="info",
        role="symptom",
        meaning="The last results together take longer than those just before, under equal conditions. Noise does so "
        "now and then; a change of the node does so to stay.",
        next_step="See what changed on the node at that time: driver, power limit, topology, other load. If it stays, "
        "look at the causes listed.",
        alert="CommwatchProbeStep",
    ),
    FindingCode(
        name="probe_swing",
        title="The results of the probe swing",
        severity="info",
        role="symptom",
        meaning="The last results differ from each other at least twice as much as those just before, under equal "
        "conditions: something disturbs some of them. A median does not show it, and jobs wait for the slow ones.",
        next_step="See what comes and goes on the node since then: other load on the CPUs, clocks that change, a link "
        "that retrains. A step in the results shows as a swing too while it is new.",
        alert="CommwatchProbeSwing",
    ),
    FindingCode(
        name="probe_drift",
        title="The probe becomes slower over days",
        severity="info",
        role="symptom",
        meaning="The latest good results take longer than the first ones of this node, under equal conditions.",
        next_step="Compare the dashboards of today with those of the first days: errors and retraining of links, "
        "temperatures, clocks.",
        alert="CommwatchProbeDrift",
    ),
    FindingCode(
        name="probe_imbalance",
        title="The ranks of a probe are uneven",
        severity="info",
        role="symptom",
        meaning="One rank takes much longer than the fastest for the same work. In a job all the others wait for it.",
        next_step="See whether it is always the same GPU (commwatch_probe_slowest_rank_info), and compare its PCIe "
        "link, its clocks and the NUMA node it is bound to with those of the others.",
    ),
    FindingCode(
        name="probe_starved",
        title="The probe gets no chance",
        severity="info",
        role="state",
        meaning="For a day there has been no result although several cycles could have run on a free node. What is "
        "shown of the node rests on counters alone.",
        next_step="Read the reasons listed: docs/probes.md says what each means and what to set.",
        alert="CommwatchProbeStarved",
        closes_after=COUNT_CLOSES_AFTER,
    ),
)
