"""The pattern branch over sizes and over time: small messages against large ones, and each against before; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.results import probes_of
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import Probe

FULL_SCAN = "commwatch diagnose --full-scan measures it."
"""The only advice where nothing was measured."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
"""The measures that have a small message beside a large one."""

_SIZES = "small messages against large ones"
_OVER_TIME = "time of the same message over time"
_WHICH = {
    (True, False): "a problem of latency: large messages are well",
    (False, True): "a problem of bandwidth: small messages are well",
    (True, True): "small and large messages are slow",
}
"""By what a rule sees: of the small messages, and of the large ones."""


def _over_usual(probe: Probe) -> float | None:
    """The last latency over the usual one; None where one of them is absent."""
    seconds, usual = probe.last_latency_seconds, probe.baseline_latency_seconds
    return seconds / usual if seconds is not None and usual else None


def sizes(known: Known) -> Iterator[Check]:
    """Whether small messages, large ones or both are slow; probes that are well are one line."""
    probes = [one for one in probes_of(known.facts) if one.collective in COLLECTIVES]
    measured = [one for one in probes if one.last_latency_seconds is not None]
    by_side: dict[tuple[bool, bool], list[Probe]] = {}
    for one in measured:
        by_side.setdefault(_sides(known, one), []).append(one)
    well = by_side.pop((False, False), [])
    for sides, alike in by_side.items():
        yield _slow(known, _WHICH[sides], alike)
    if well:
        yield judged(
            _well(well, known.thresholds), known.matched, "message_sizes", [f"probe/{one.name}" for one in well]
        )
    if unmeasured := [one.name for one in probes if one not in measured]:
        yield Check(
            branch="pattern",
            what=_SIZES,
            where=", ".join(unmeasured),
            verdict="not measured",
            detail=f"No result is current; {FULL_SCAN}",
            next_step=FULL_SCAN,
        )


def _sides(known: Known, probe: Probe) -> tuple[bool, bool]:
    """Whether a rule sees that its small messages are slow, and its large ones."""
    own = [one for one in known.matched if one.record.component.identity == f"probe/{probe.name}"]
    return any(one.is_about("small_messages") for one in own), any(one.is_about("large_messages") for one in own)


def _slow(known: Known, which: str, alike: Sequence[Probe]) -> Check:
    """Probes that show the same, with the numbers of the slowest of them."""
    worst = max(alike, key=_badness)
    name = f"{worst.name}: " if len(alike) > 1 else ""
    check = Check(
        branch="pattern",
        what=_SIZES,
        where=", ".join(one.name for one in alike),
        measured=f"{name}{_small_words(worst)}; {_large_words(worst)}",
        required="neither slower than usual or expected",
        verdict="notice",
        detail=f"{which[0].upper()}{which[1:]}",
    )
    return judged(check, known.matched, "message_sizes", [f"probe/{one.name}" for one in alike])


def _small_words(one: Probe) -> str:
    words = f"{format_bytes(float(one.latency_bytes))} {format_seconds(one.last_latency_seconds or 0.0)}"
    ratio = _over_usual(one)
    return words if ratio is None else f"{words} ({ratio:.2f} times the usual)"


def _large_words(one: Probe) -> str:
    rate, share = one.last_bus_bandwidth_bytes_per_second, one.bandwidth_utilization_ratio
    words = f"{format_bytes(float(one.bandwidth_bytes))} {'-' if rate is None else format_rate(rate)}"
    if share is None:
        return words
    return (
        f"{words} ({format_percent(share)} of what is {'modelled' if one.expected_source == 'model' else 'expected'})"
    )


def _badness(one: Probe) -> float:
    """How many times as long it takes as it should, by the worse side, as far as that is known."""
    share = one.bandwidth_utilization_ratio
    return max(_over_usual(one) or 0.0, 1 / share if share else 0.0)


def _well(well: Sequence[Probe], thresholds: Thresholds) -> Check:
    # What is known of every one of them, else nothing is said: a baseline takes twenty results.
    ratios = [_over_usual(one) for one in well]
    shares = [one.bandwidth_utilization_ratio for one in well]
    parts = []
    if known_ratios := [ratio for ratio in ratios if ratio is not None]:
        parts.append(f"latency at most {max(known_ratios):.2f} times the usual")
    if known_shares := [share for share in shares if share is not None]:
        parts.append(f"bandwidth at least {format_percent(min(known_shares))} of what is expected")
    missing = [one.name for one, ratio in zip(well, ratios, strict=True) if ratio is None]
    most, least = thresholds.probe_latency_spike_median_factor, thresholds.probe_bandwidth_utilization_low_ratio
    # One result beyond a mark is worth knowing, and no fault: a rule takes several in a row.
    is_beyond = max(known_ratios, default=0.0) >= most or min(known_shares, default=1.0) < least
    return Check(
        branch="pattern",
        what=_SIZES,
        where=", ".join(one.name for one in well),
        measured="; ".join(parts),
        required=f"below {most:g} times; at least {format_percent(least)}",
        # Without either mark nothing was held against anything.
        verdict="not measured" if not parts else "notice" if is_beyond else "passed",
        source="probe_latency_spike_median_factor, probe_bandwidth_utilization_low_ratio",
        detail=f"No usual latency is known yet of {', '.join(missing)}: too few good results." if missing else "",
    )


def courses(known: Known) -> Iterator[Check]:
    """Whether probes take longer than before; those that do not are one line."""
    # Of pairs the daemon keeps matrices, and the suspects say what became slower.
    probes = [one for one in probes_of(known.facts) if one.collective != "pairs"]
    limits = known.thresholds.probe_step_min_factor, known.thresholds.probe_drift_max_factor
    steady = []
    for one in probes:
        check = Check(
            branch="pattern",
            what=_OVER_TIME,
            where=one.name,
            required=f"below {limits[0]:g} and {limits[1]:g} times",
            verdict="not measured",
        )
        found = judged(check, known.matched, "course", (f"probe/{one.name}",))
        if found is not check:
            yield found
        elif _steps(one) or _drifts(one):
            steady.append(one)
    if steady:
        before = max((ratio for one in steady for ratio in _steps(one)), default=None)
        first = max((ratio for one in steady for ratio in _drifts(one)), default=None)
        words = [f"{before:.2f} times the results before"] if before else []
        words += [f"{first:.2f} times the first results"] if first else []
        check = Check(
            branch="pattern",
            what=_OVER_TIME,
            where=", ".join(one.name for one in steady),
            measured=f"at most {' and '.join(words)}",
            required=f"below {limits[0]:g} and {limits[1]:g} times",
            verdict="passed",
            source="probe_step_min_factor, probe_drift_max_factor",
        )
        yield judged(check, known.matched, "course", [f"probe/{one.name}" for one in steady])
    elif probes and not any(_steps(one) or _drifts(one) for one in probes):
        yield Check(
            branch="pattern",
            what=_OVER_TIME,
            verdict="not measured",
            detail=f"{known.thresholds.probe_baseline_results_min} good results make the first comparison",
        )


def _steps(one: Probe) -> list[float]:
    """Times of the last few results over those just before, of small and of large messages."""
    return [ratio for ratio in (one.latency_step_ratio, one.bandwidth_step_ratio) if ratio]


def _drifts(one: Probe) -> list[float]:
    """Times of the latest good results over the first ones."""
    return [ratio for ratio in (one.latency_drift_ratio, one.bandwidth_drift_ratio) if ratio]
