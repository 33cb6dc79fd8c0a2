"""The codes of what probes find."""

from __future__ import annotations

from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, FindingCode

_RATE_CLOSES_AFTER = 1800.0
"""Seconds: of few attempts each moves the share by points, so that it passes its mark more than once."""

PROBE_CODES: tuple[FindingCode, ...] = (
    FindingCode(
        name="probe_latency_high",
        title="Small collectives take too long",
        severity="warning",
        role="symptom",
        quantities=("small_messages", "message_sizes"),
        meaning="Several results in a row were far above usual. Jobs with small messages run slower.",
        next_step="Check the causes listed. The pairs are measured after the third result, if the node is free: "
        "commwatch heatmap shows whether one GPU or link is late. None is: check CPU load.",
        alert="CommwatchProbeLatencyStreak",
        opens_after=0.0,
    ),
    FindingCode(
        name="probe_bandwidth_low",
        title="Bandwidth is far below what is expected",
        severity="warning",
        role="symptom",
        quantities=("bandwidth", "large_messages", "message_sizes"),
        meaning="Several results in a row were below the expectation: configured, published for this hardware, "
        "learned here, or estimated. Jobs that use these paths run slower.",
        next_step="Check the causes listed. The pairs and host copies are measured after the third result, if the "
        "node is free: commwatch heatmap shows the slow ones. None is: check commwatch topology and compare an equal "
        "node.",
        alert="CommwatchProbeBandwidthLow",
        opens_after=0.0,
        replaces=("probe_bandwidth_lost", "probe_bandwidth_short"),
    ),
    FindingCode(
        name="probe_bandwidth_lost",
        title="Bandwidth is below this node's own level",
        severity="warning",
        role="symptom",
        quantities=("bandwidth", "large_messages", "message_sizes"),
        meaning="Three results in a row were at least 15 % below what this node gave before. It stays open until the "
        "level is back. Jobs that use these paths run slower.",
        next_step="Check the causes listed, the slow pair or GPU of commwatch heatmap, and what changed at that time. "
        "Only if the lower level is on purpose, run commwatch inventory accept.",
        alert="CommwatchProbeBandwidthLost",
        opens_after=0.0,
        replaces=("probe_bandwidth_short",),
    ),
    FindingCode(
        name="probe_bandwidth_short",
        title="Bandwidth is short of what is configured or published",
        severity="warning",
        role="symptom",
        quantities=("bandwidth", "large_messages", "message_sizes"),
        meaning="Several results in a row were between 60 and 85 % of the configured or published value. Jobs that "
        "use these paths may run slower.",
        next_step="Check the causes listed, NVLinks and lanes. Published values with NVLink SHARP need it: check that "
        "NCCL uses NVLS. Usual for this machine: set expected_bandwidth to what its equals give.",
        alert="CommwatchProbeBandwidthShort",
        opens_after=0.0,
    ),
    FindingCode(
        name="probe_below_model",
        title="Probe gives less than estimated",
        severity="info",
        role="state",
        quantities=("bandwidth",),
        meaning="Bandwidth below 85 %, or latency above 2.5 times, of what is estimated from the topology. The "
        "estimate may be wrong for this machine; else jobs run slower.",
        next_step="None now. Compare with an equal node; the same there: set expected_bandwidth or latency_limit.",
        alert="CommwatchProbeBelowModel",
        opens_after=0.0,
    ),
    FindingCode(
        name="probe_failing",
        title="The probe fails again and again",
        severity="warning",
        role="symptom",
        meaning="All attempts since the last good result failed. Jobs may fail too.",
        next_step="Run journalctl -u commwatch --since -6h -g 'probe failed': it names rank, GPU, phase and reason. "
        "If jobs fail too, drain the node; once it is free, run commwatch probe.",
        alert="CommwatchProbeFailing",
        opens_after=0.0,
    ),
    FindingCode(
        name="probe_error_rate_rise",
        title="The probe fails more often than it did",
        severity="warning",
        role="symptom",
        meaning="More cycles fail than before. Jobs may fail too.",
        next_step="Run journalctl -u commwatch --since -2h -g 'probe failed': it names rank, GPU, phase and reason. "
        "If jobs fail too, drain the node; once it is free, run commwatch probe.",
        alert="CommwatchProbeErrorRateRise",
        opens_after=0.0,
        closes_after=_RATE_CLOSES_AFTER,
    ),
    FindingCode(
        name="probe_wrong_result",
        title="Probe found corrupted data",
        severity="critical",
        role="symptom",
        meaning="Data differed bit by bit from what was sent. Jobs may compute wrong numbers without any error.",
        next_step="Warn the owner of the job and drain the node; once it is free, run commwatch probe --pairs, then "
        "the vendor's memory and link tests on the GPUs involved.",
        alert="CommwatchProbeWrongResult",
        opens_after=0.0,
        closes_after=COUNT_CLOSES_AFTER,
    ),
    FindingCode(
        name="probe_step",
        title="The probe has become slower",
        severity="info",
        role="symptom",
        quantities=("course",),
        meaning="The last results take longer than those before, under equal conditions. Jobs may run slower.",
        next_step="Check the causes listed; without one, see what changed on the node then: driver, power limit, other "
        "load.",
        alert="CommwatchProbeStep",
    ),
    FindingCode(
        name="probe_swing",
        title="Probe results swing",
        severity="info",
        role="symptom",
        meaning="The last results spread at least twice as much as those before, under equal conditions. Jobs wait "
        "for the slow ones.",
        next_step="Check the causes listed; without one, see what comes and goes on the node since then: other load, "
        "clocks, links that retrain.",
        alert="CommwatchProbeSwing",
    ),
    FindingCode(
        name="probe_drift",
        title="Probe slows over days",
        severity="info",
        role="symptom",
        quantities=("course",),
        meaning="The latest good results take longer than this node's first, under equal conditions. Jobs may run "
        "slower than in the first days.",
        next_step="Check the causes listed; without one, compare today's dashboard with that of the first days: links "
        "that retrain, temperatures, clocks.",
        alert="CommwatchProbeDrift",
    ),
    FindingCode(
        name="probe_imbalance",
        title="Probe ranks are uneven",
        severity="info",
        role="symptom",
        meaning="One rank takes much longer than the fastest for equal work. In a job all others wait.",
        next_step="Always the same GPU: compare its PCIe link, clocks and NUMA node.",
    ),
    FindingCode(
        name="probe_starved",
        title="Probe gets no chance to run",
        severity="info",
        role="state",
        meaning="For a day there was no result, although several cycles could have run on a free node. Only counters "
        "are known.",
        next_step="Run commwatch probe: it runs beside no job, and says what stands in the way.",
        alert="CommwatchProbeStarved",
        closes_after=COUNT_CLOSES_AFTER,
    ),
)
