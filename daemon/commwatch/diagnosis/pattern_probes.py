"""The pattern branch over sizes: small messages against large ones, by what is exposed of each probe; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.results import probes_of
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import Probe

FULL_SCAN = "commwatch diagnose --full-scan measures it."
"""The only advice where nothing was measured."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
"""The measures that have a small message beside a large one."""


def _over_usual(probe: Probe) -> float | None:
    """The last latency over the usual one; None where one of them is absent."""
    seconds, usual = probe.last_latency_seconds, probe.baseline_latency_seconds
    return seconds / usual if seconds is not None and usual else None


def sizes(known: Known) -> Iterator[Check]:
    """Whether small messages, large ones or both are slow; probes that are well stand in one line."""
    probes = [one for one in probes_of(known.facts) if one.collective in COLLECTIVES]
    told = [one for one in probes if one.last_latency_seconds is not None]
    judged = [(one, _small(one, known.thresholds), _large(one, known.thresholds)) for one in told]
    for verdicts in dict.fromkeys((small.verdict, large.verdict) for _, small, large in judged):
        if verdicts != ("passed", "passed"):
            alike = [one for one in judged if (one[1].verdict, one[2].verdict) == verdicts]
            yield _by_size(max(alike, key=_badness), [one.name for one, _, _ in alike])
    well = [one for one, small, large in judged if small.verdict == large.verdict == "passed"]
    if well:
        yield _all_well(well, known.thresholds)
    if unmeasured := [one.name for one in probes if one not in told]:
        yield Check(
            branch="pattern",
            what="small messages against large ones",
            where=", ".join(unmeasured),
            verdict="not measured",
            detail=f"No result is current; {FULL_SCAN}",
            next_step=FULL_SCAN,
        )


@dataclass(frozen=True, slots=True)
class _Side:
    """What is said of one size."""

    verdict: CheckVerdict
    words: str
    reasons: tuple[str, ...] = ()


def _small(one: Probe, thresholds: Thresholds) -> _Side:
    ratio = _over_usual(one)
    words = f"{format_bytes(float(one.latency_bytes))} {format_seconds(one.last_latency_seconds or 0.0)}"
    if ratio is not None:
        words += f" ({ratio:.2f} times the usual)"
    streak, step = one.latency_spike_streak or 0, one.latency_step_ratio or 0.0
    reasons = []
    if streak:
        reasons.append(f"{streak:.0f} in a row above the usual latency")
    elif ratio is not None and ratio >= thresholds.probe_latency_spike_median_factor:
        reasons.append("the last result alone is above the usual latency")
    if step >= thresholds.probe_step_min_factor:
        reasons.append(f"small messages take {step:.2f} times as long as in the results before")
    sure = streak >= thresholds.probe_latency_spike_streak or step >= thresholds.probe_step_min_factor
    return _Side("failed" if sure else "notice" if reasons else "passed", words, tuple(reasons))


def _large(one: Probe, thresholds: Thresholds) -> _Side:
    rate, share = one.last_bus_bandwidth_bytes_per_second, one.bandwidth_utilization_ratio
    words = f"{format_bytes(float(one.bandwidth_bytes))} {'-' if rate is None else format_rate(rate)}"
    source = one.expected_source
    if share is not None:
        words += f" ({format_percent(share)} of what is {'expected' if source != 'model' else 'modelled'})"
    streak, step = one.low_bandwidth_streak or 0, one.bandwidth_step_ratio or 0.0
    reasons = []
    if share is not None and share < thresholds.probe_bandwidth_utilization_low_ratio:
        reasons.append(
            f"below {format_percent(thresholds.probe_bandwidth_utilization_low_ratio)} of what "
            + ("a model says" if source == "model" else f"is {source}")
            + (f", {streak:.0f} in a row" if streak > 1 else "")
        )
    if step >= thresholds.probe_step_min_factor:
        reasons.append(f"large messages take {step:.2f} times as long as in the results before")
    sure = streak >= thresholds.probe_low_bandwidth_streak or step >= thresholds.probe_step_min_factor
    return _Side("failed" if sure else "notice" if reasons else "passed", words, tuple(reasons))


def _badness(judged: tuple[Probe, _Side, _Side]) -> float:
    """How many times as long it takes as it should, by the worse side, as far as that is known."""
    one, small, large = judged
    share = one.bandwidth_utilization_ratio
    slower = _over_usual(one) if small.verdict != "passed" else None
    lower = 1 / share if share and large.verdict != "passed" else None
    return max((ratio for ratio in (slower, lower) if ratio is not None), default=0.0)


def _by_size(worst: tuple[Probe, _Side, _Side], names: Sequence[str]) -> Check:
    """Probes that show the same, with the numbers of the worst of them."""
    one, small, large = worst
    if small.verdict == "passed":
        which, step = "a problem of bandwidth: small messages are well", (
            "Look at links and paths: lanes, generation, recoveries, the slow pair."
        )  # fmt: skip
    elif large.verdict == "passed":
        which, step = (
            "a problem of latency: large messages are well",
            (
                "Look at the host: CPU frequency and power saving, other load, NUMA placement, retransmissions; links "
                "that are only narrow slow large messages."
            ),
        )
    else:
        which, step = (
            "small and large messages are slow",
            ("Look at what both cross: one GPU, one link that errs and sends again, or clocks that are held down."),
        )
    verdicts = {small.verdict, large.verdict}
    return Check(
        branch="pattern",
        what="small messages against large ones",
        where=", ".join(names),
        measured=f"{f'{one.name}: ' if len(names) > 1 else ''}{small.words}; {large.words}",
        required="neither slower than usual or expected",
        verdict="failed" if "failed" in verdicts else "notice",
        source="probe_latency_spike_median_factor, probe_bandwidth_utilization_low_ratio, probe_step_min_factor",
        detail=f"{which[0].upper()}{which[1:]}: {'; '.join((*small.reasons, *large.reasons))}.",
        next_step=step,
    )


def _all_well(well: Sequence[Probe], thresholds: Thresholds) -> Check:
    # What is known of every one of them, else nothing is said: a baseline takes twenty results.
    ratios = [_over_usual(one) for one in well]
    shares = [one.bandwidth_utilization_ratio for one in well]
    parts = []
    if known_ratios := [ratio for ratio in ratios if ratio is not None]:
        parts.append(f"latency at most {max(known_ratios):.2f} times the usual")
    if known_shares := [share for share in shares if share is not None]:
        parts.append(f"bandwidth at least {format_percent(min(known_shares))} of what is expected")
    missing = [one.name for one, ratio in zip(well, ratios, strict=True) if ratio is None]
    return Check(
        branch="pattern",
        what="small messages against large ones",
        where=", ".join(one.name for one in well),
        measured="; ".join(parts),
        required=f"below {thresholds.probe_latency_spike_median_factor:g} times; "
        f"at least {format_percent(thresholds.probe_bandwidth_utilization_low_ratio)}",
        # Without either mark nothing was held against anything.
        verdict="passed" if parts else "not measured",
        source="probe_latency_spike_median_factor, probe_bandwidth_utilization_low_ratio",
        detail=f"No usual latency is known yet of {', '.join(missing)}: too few good results." if missing else "",
    )
