"""The parts of the communication score: bandwidth, latency, stability, balance; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.score.caps import ends_a_job
from commwatch.findings.score.jobs import Job, loads
from commwatch.findings.score.probes import Rates, Reached, at_most_one, of_probes
from commwatch.findings.score.records import PartReadings, Reading, Score
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import LogCategory, NvLink, Probe, RdmaPort, SlowestRank, Suspect
from commwatch_exporters.node.parts import Column, KeyedColumn

_BANDWIDTH_NEEDS = "a current result of a probe of which is known what it should give"

DAY = 86400.0
_RECOVERIES = (NvLink.recovery_errors, NvLink.recoveries)
"""NVLink 1 to 4, and NVLink 5."""
_CYCLES = (Probe.attempts, Probe.failures, Probe.latency_spikes)
WINDOWS: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(
        (one.metric for one in (*_CYCLES, *_RECOVERIES, NvLink.recoveries_failed, RdmaPort.flaps, LogCategory.errors)),
        DAY,
    )
)
"""Counters that this part looks back at, and for how many seconds."""
_STEPS = (
    (Probe.latency_step_ratio, "latency: the last results take {:.3g} times as long as those before"),
    (Probe.bandwidth_step_ratio, "bandwidth: the last results take {:.3g} times as long as those before"),
)
_BALANCE_NEEDS = "a current result of a probe over two or more GPUs, or a job that has been on as many for 10 min"
_SUSPECT_COST = 0.5
"""The cost of a part that is surely slow: half, as the amount is not known."""


def bandwidth(facts: Facts, rates: Rates) -> PartReadings:
    """Each probe counts once: a collective by its last bus bandwidth, copies and pairs by the mean of theirs."""
    readings = [reading for probe, reading in _collectives(facts) if probe not in rates.copies]
    readings += [_mean(f"probe {one.probe}", "copies", one.rates) for one in rates.copies.values()]
    if rates.pairs:
        readings.append(_mean("pairs", "pairs", rates.pairs))
    return PartReadings("bandwidth", tuple(readings), least_counts=False, needs=_BANDWIDTH_NEEDS)


def _collectives(facts: Facts) -> Iterator[tuple[Probe, Reading]]:
    for probe, ratio in of_probes(facts, Probe.bandwidth_utilization_ratio):
        last, expected = probe.last_bus_bandwidth_bytes_per_second, probe.expected_bandwidth_bytes_per_second
        words = f"reaches {format_percent(ratio)} of what is expected"
        if last is not None and expected is not None:
            words += f": {format_rate(last)} of {format_rate(expected)}"
        yield probe, Reading(f"probe {probe.name}", at_most_one(ratio), words)


def _mean(subject: str, what: str, rates: Sequence[Reached]) -> Reading:
    ratio = sum(one.share for one in rates) / len(rates)
    worst = min(rates, key=lambda one: one.share)
    words = (
        f"{len(rates)} {what} reach {format_percent(ratio)} of what is expected on average, "
        f"the worst ({worst.subject}) {format_rate(worst.bytes_per_second)} of {format_rate(worst.expected)}"
    )
    return Reading(subject, ratio, words)


def latency(facts: Facts, thresholds: Thresholds) -> PartReadings:
    """Each probe with a baseline, or else with a published latency, counts once.

    A single spike is the host's scheduler as often as the fabric: before the second in a row it costs no more than a
    latency at the factor from which on it is one.
    """
    readings = []
    for probe, last in of_probes(facts, Probe.last_latency_seconds):
        baseline, drift, streak = probe.baseline_latency_seconds, probe.latency_drift_ratio, probe.latency_spike_streak
        expected = probe.expected_latency_seconds
        if baseline is None:
            baseline = expected.get("reference")
        if baseline is None or last <= 0:
            continue
        # The baseline follows a decline as far as a limit; what it followed counts as slower, not as normal.
        followed = min(max(1.0, 1.0 if drift is None else drift), thresholds.probe_drift_max_factor)
        usual = baseline / followed
        ratio = at_most_one(usual / last)
        if streak is not None and streak <= 1:
            ratio = max(ratio, at_most_one(1.0 / thresholds.probe_latency_spike_median_factor))
        words = f"{format_seconds(last)} for a small call, usually {format_seconds(usual)}"
        if "model" in expected and (probe.latency_above_model_streak or 0) >= thresholds.probe_latency_spike_streak:
            # The usual value here may have been slow from the first day.
            most = thresholds.probe_latency_model_factor * expected["model"]
            ratio = min(ratio, at_most_one(most / last))
            words += f"; a model expects at most {format_seconds(most)}"
        readings.append(Reading(f"probe {probe.name}", ratio, words))
    needs = f"a latency baseline: {thresholds.probe_baseline_results_first} good results of a collective"
    return PartReadings("latency", tuple(readings), least_counts=False, needs=needs)


def stability(facts: Facts, thresholds: Thresholds) -> PartReadings:
    """The least of what probes, jobs and links show over time: how long they go without an error, a time-out or a step.

    A node that is as slow as ever is stable. Links and jobs can only lower it: without any probe there is no stability
    to measure.
    """
    fewest = thresholds.probe_error_rate_attempts_min
    attempts = _rises(facts, Probe.attempts, DAY)
    steps = list(_steps(facts))
    needs = f"{fewest} cycles of probes in the last day, or enough results of one probe to compare over time"
    if attempts.total() < fewest and not steps:
        return PartReadings("stability", (), least_counts=True, needs=needs)
    readings = [
        *_bad_cycles(facts, DAY, fewest),
        # A day of good cycles must not hide that nothing works any more.
        *_bad_cycles(facts, min(DAY, thresholds.probe_error_rate_window_seconds), fewest),
        *steps,
        *_jobs(facts),
        *_links(facts, thresholds),
    ]
    return PartReadings("stability", tuple(readings), least_counts=True, needs=needs)


def stability_of(score: Score) -> PartReadings:
    """That of an earlier score: what is measured once has no past of its own."""
    part = next((one for one in score.parts if one.name == "stability"), None)
    readings, needs = ((), "") if part is None else (part.readings, part.missing)
    return PartReadings("stability", readings, least_counts=True, needs=needs)


def _rises(facts: Facts, column: Column[Probe] | KeyedColumn[Probe], window: float) -> Counter[str]:
    """By how much a counter of the probes rose in the last seconds, by probe."""
    rises: Counter[str] = Counter()
    for probe, _, rise in facts.rises_keyed(column, window):
        if probe.backend != "gloo":
            rises[probe.name] += round(rise)
    return rises


def _bad_cycles(facts: Facts, window: float, fewest: int) -> Iterator[Reading]:
    """The share of good cycles: of each probe, and of all together, for many probes may fail once each.

    Args:
        fewest: least number of cycles for a share: one failure in one cycle is not yet 100 %.
    """
    attempts = _rises(facts, Probe.attempts, window)
    for column, what in ((Probe.failures, "failed"), (Probe.latency_spikes, "were latency spikes")):
        bad = _rises(facts, column, window)
        for subject, count, cycles in (
            *((f"probe {probe}", bad[probe], attempts[probe]) for probe in attempts | bad),
            ("all probes", bad.total(), attempts.total()),
        ):
            words = f"{count} of {cycles} cycles of the last {window / 3600:g} h {what}"
            yield Reading(subject, at_most_one(1.0 - count / max(cycles, fewest)), words)


def _steps(facts: Facts) -> Iterator[Reading]:
    for column, words in _STEPS:
        for probe, ratio in of_probes(facts, column):
            yield Reading(f"probe {probe.name}", at_most_one(1.0 / max(1.0, ratio)), words.format(ratio))


def _jobs(facts: Facts) -> Iterator[Reading]:
    """For how much of a day no job has failed or got stuck, by what the logs say."""
    for category, _ in facts.rises(LogCategory.errors, DAY):
        last = facts.rising_since(LogCategory.errors, category, 1)
        if last is not None and ends_a_job(category.name):
            ago = facts.now - last
            words = f"a job failed or got stuck {format_seconds(ago)} ago; a day without costs nothing"
            yield Reading(f"NCCL logs, {category.name}", at_most_one(ago / DAY), words)


def _links(facts: Facts, thresholds: Thresholds) -> Iterator[Reading]:
    for column in _RECOVERIES:
        for link, rise in facts.rises(column, DAY):
            ratio = at_most_one(1.0 - rise / thresholds.nvlink_recoveries_per_day)
            yield Reading(
                f"GPU{link.index} link {link.number}",
                ratio,
                f"{rise:g} {'recovery' if rise == 1 else 'recoveries'} in the last day",
            )
    for link, rise in facts.rises(NvLink.recoveries_failed, DAY):
        words = f"{rise:g} failed {'recovery' if rise == 1 else 'recoveries'} in the last day"
        yield Reading(f"GPU{link.index} link {link.number}", 0.0, words)
    for port, rise in facts.rises(RdmaPort.flaps, DAY):
        ratio = at_most_one(1.0 - rise / thresholds.score_port_flaps_per_day)
        words = f"down {f'{rise:g} times' if rise != 1 else 'once'} in the last day"
        yield Reading(f"{port.device} port {port.number}", ratio, words)


def balance(facts: Facts, rates: Rates, jobs: Sequence[Job], thresholds: Thresholds) -> PartReadings:
    """How evenly the GPUs are loaded: by their jobs, or, on a free node, by probes; the least of all readings.

    GPUs that are all equally slow are in balance: the bandwidth shows that they are slow.
    """
    even = thresholds.score_even_ratio
    if jobs:
        readings = list(loads(jobs, thresholds))
    else:
        readings = [*_ranks(facts, rates, even), *_rates(rates, even)]
        if readings:  # without any measurement nothing is known of the others
            readings += _suspects(facts)
    return PartReadings("balance", tuple(readings), least_counts=True, needs=_BALANCE_NEEDS)


def _ranks(facts: Facts, rates: Rates, even: float) -> Iterator[Reading]:
    """Time of the fastest rank over the slowest one's; for copies each GPU's own rate is better."""
    for probe, ratio in of_probes(facts, Probe.rank_balance_ratio):
        if probe in rates.copies:
            continue
        slowest = facts.node.part(SlowestRank, *probe.identity)
        words = f"the fastest rank takes {format_percent(ratio)} of the time of the slowest one"
        if slowest.rank:
            words += f", rank {slowest.rank} ({slowest.address})"
        yield Reading(f"probe {probe.name}", at_most_one(ratio / even), words)


def _rates(rates: Rates, even: float) -> Iterator[Reading]:
    for one in rates.copies.values():
        if one.gpus > 1:
            yield _worst(one.rates, "copies", even)
    if len(rates.pairs) > 1:
        yield _worst(rates.pairs, "pairs", even)


def _worst(rates: Sequence[Reached], what: str, even: float) -> Reading:
    """The worst of them beside what is usual of the others; each by what is expected of it."""
    worst, *others = sorted(rates, key=lambda one: one.ratio)
    usual = median(one.ratio for one in others)
    low = sum(one.ratio < even * usual for one in rates)
    words = f"{format_rate(worst.bytes_per_second)} of {format_rate(worst.expected)} expected"
    words += f", the others usually reach {format_percent(usual)} of it"
    if low:
        words += f"; {low} of {len(rates)} {what} below {format_percent(even)} of that"
    return Reading(worst.subject, at_most_one(worst.ratio / usual / even) if usual else 1.0, words)


def _suspects(facts: Facts) -> Iterator[Reading]:
    for part, confidence in facts.each(Suspect.ratio):
        subject = part.element if part.kind == "gpu" else f"{part.kind} {part.element}"
        words = f"what slow pairs have in common, {format_percent(confidence)} sure"
        yield Reading(subject, at_most_one(1.0 - _SUSPECT_COST * confidence), words)
