"""The pattern branch: which pairs are slow and what they have in common, small messages or large ones, since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.judged import Matched, Matches, Record, judged
from commwatch.diagnosis.known import OWN_FAILURES, Known, why_not
from commwatch.diagnosis.marks.results import probes_of
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.node.topology.ways import Cell
from commwatch.probes.plan import Failed, Measured
from commwatch.probes.results.slow_cells import names_of
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import Probe

if TYPE_CHECKING:
    from commwatch.probes.by_hand.answer import Answer

_MOST_NAMED = 6

_OF_BANDWIDTH = ("probe_bandwidth_utilization_low_ratio", "pair_nearer_low_ratio")
"""Thresholds."""

_PairQuantity = Literal["bandwidth", "latency"]
_FULL_SCAN = "commwatch diagnose --full-scan measures it."
"""The only advice where nothing was measured."""

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
"""The measures that have a small message beside a large one."""

_SIZES = "small messages against large ones"
_OVER_TIME = "time of the same message over time"
_WHICH = {
    (True, False): "a problem of latency: large messages are well",
    (False, True): "a problem of bandwidth: small messages are well",
    (True, True): "small and large messages are slow",
}
"""By what a rule sees: of the small messages, and of the large ones."""
FRESH_PROBE = "fresh probe"
"""Name of a check of a probe of this scan."""
_check = partial(Check, "pattern")


def pattern(known: Known) -> Iterator[Check]:
    """Over pairs, over sizes, over time; after a full scan also what became of its probes."""
    yield from _scanned(known)
    yield from _pairs(known)
    yield from _sizes(known)
    yield from _courses(known)


def _pairs(known: Known) -> Iterator[Check]:
    """The pairs in the last matrix, with the matches of the rules in it, open or not yet."""
    gpus = known.facts.derived(gpus_of)
    if len(gpus) < 2:
        reason = "this node has one GPU" if gpus else "no GPU is known"
        yield _check("pairs of GPUs", "does not apply", detail=reason)
        return
    matrix = known.matrix
    if matrix is None or not all(end.device for end in matrix.endpoints):
        yield _not_measured("bandwidth of pairs")
        return
    seen = [one for one in known.matched if one.is_about("pairs")]
    late = {one.element for one in matrix.suspects if one.quantity == "latency"}
    narrow = known.matched.only(one for one in seen if _is_narrow(one.record, matrix))
    yield _pair_check(matrix, "bandwidth", narrow)
    yield _pair_check(matrix, "latency", known.matched.only(one for one in seen if one.record.component.name in late))


def _is_narrow(one: Record, matrix: PairMatrix) -> bool:
    """Whether the bandwidth shows it; false if only the latency does."""
    quantities = {suspect.quantity for suspect in matrix.suspects if suspect.element == one.component.name}
    on_rate = any(fact.threshold_origin in _OF_BANDWIDTH for fact in one.evidence)
    return on_rate or quantities != {"latency"}


def _not_measured(what: str) -> Check:
    detail = f"No matrix of pairs is current; {_FULL_SCAN}"
    return _check(what, "not measured", detail=detail, next_step=_FULL_SCAN)


def _pair_check(matrix: PairMatrix, quantity: _PairQuantity, seen: Matches) -> Check:
    size = matrix.latency_bytes if quantity == "latency" else matrix.bandwidth_bytes
    what, values = f"{quantity} of pairs, {format_bytes(size)}", _values_of(matrix, quantity)
    if not values:
        return _not_measured(what)
    named = list(dict.fromkeys(_name(one.record) for one in seen))
    if len(named) > _MOST_NAMED:
        named = [*named[:_MOST_NAMED], f"{len(named) - _MOST_NAMED} more"]
    blamed = {one.record.component.name for one in seen}
    words = " ".join(one.words for one in matrix.suspects if one.element in blamed)
    check = _check(
        what,
        "passed",
        ", ".join(named),
        _span(matrix, quantity, values),
        "no slow pair",
        "docs/using/culprit.md",
        words,
    )
    found = judged(check, seen, "pairs")
    return msgspec.structs.replace(found, next_step=f"{found.next_step} {_best_pair(matrix, seen)}".strip())


def _name(record: Record) -> str:
    return record.component.name or record.detail


def _span(matrix: PairMatrix, quantity: _PairQuantity, values: Mapping[Cell, float]) -> str:
    slowest = (max if quantity == "latency" else min)(values, key=values.__getitem__)
    usual, least = (
        format_seconds(value) if quantity == "latency" else format_rate(value)
        for value in (median(values.values()), values[slowest])
    )
    source, target = (names_of(matrix.endpoints)[place] for place in slowest)
    return f"median {usual}, slowest {least} ({source} to {target})"


def _best_pair(matrix: PairMatrix, seen: Iterable[Matched]) -> str:
    """The two GPUs to use until the repair: of measured pairs only, and never a pair that a finding names."""
    values, names = _values_of(matrix, "bandwidth"), names_of(matrix.endpoints)
    named = {one.record.component.name for one in seen}
    slow = {cell for suspect in matrix.suspects if suspect.element in named for cell in suspect.cells}
    both = {
        (first, second): min(rate, values[second, first])
        for (first, second), rate in values.items()
        if first < second and (second, first) in values and slow.isdisjoint({(first, second), (second, first)})
        and f"{names[first]}-{names[second]}" not in named
    }  # fmt: skip
    if not both or not named or any(one.record.code == "pairs_all_slow" for one in seen):
        return ""
    first, second = max(both, key=both.__getitem__)
    return f"Until then the fastest two are {names[first]} and {names[second]}: {format_rate(both[first, second])}."


def _values_of(matrix: PairMatrix, quantity: _PairQuantity) -> dict[Cell, float]:
    """Bytes per second or seconds of each cell that was measured."""
    return {cell: value for cell, value in matrix.values(quantity).items() if value > 0}


# --- over sizes and over time ---


def _over_usual(probe: Probe) -> float | None:
    """The last latency over the usual one; None where one of them is absent."""
    seconds, usual = probe.last_latency_seconds, probe.baseline_latency_seconds
    return seconds / usual if seconds is not None and usual else None


def _sizes(known: Known) -> Iterator[Check]:
    """Whether small messages, large ones or both are slow; probes that are well are one line."""
    probes = [one for one in probes_of(known.facts) if one.collective in _COLLECTIVES]
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
        detail = f"No result is current; {_FULL_SCAN}"
        yield _check(_SIZES, "not measured", ", ".join(unmeasured), detail=detail, next_step=_FULL_SCAN)


def _sides(known: Known, probe: Probe) -> tuple[bool, bool]:
    """Whether a rule sees that its small messages are slow, and its large ones."""
    own = [one for one in known.matched if one.record.component.identity == f"probe/{probe.name}"]
    return any(one.is_about("small_messages") for one in own), any(one.is_about("large_messages") for one in own)


def _slow(known: Known, which: str, alike: Sequence[Probe]) -> Check:
    """Probes that show the same, with the numbers of the slowest of them."""
    worst = max(alike, key=_badness)
    name = f"{worst.name}: " if len(alike) > 1 else ""
    measured = f"{name}{_small_words(worst)}; {_large_words(worst)}"
    check = _check(
        _SIZES, "notice", ", ".join(one.name for one in alike), measured, "neither slower than usual or expected",
        detail=f"{which[0].upper()}{which[1:]}",
    )  # fmt: skip
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
    # Only if every one of them is known: a baseline takes twenty results.
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
    return _check(
        _SIZES,
        # Without either mark nothing was compared.
        "not measured" if not parts else "notice" if is_beyond else "passed",
        ", ".join(one.name for one in well), "; ".join(parts),
        f"below {most:g} times; at least {format_percent(least)}",
        "probe_latency_spike_median_factor, probe_bandwidth_utilization_low_ratio",
        f"No usual latency is known yet of {', '.join(missing)}: too few good results." if missing else "",
    )  # fmt: skip


def _courses(known: Known) -> Iterator[Check]:
    """Whether probes take longer than before; those that do not are one line."""
    # Of pairs the daemon keeps matrices, and the suspects say what became slower.
    probes = [one for one in probes_of(known.facts) if one.collective != "pairs"]
    step, drift = known.thresholds.probe_step_min_factor, known.thresholds.probe_drift_max_factor
    required = f"below {step:g} and {drift:g} times"
    steady = []
    for one in probes:
        check = _check(_OVER_TIME, "not measured", one.name, required=required)
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
        names, measured = ", ".join(one.name for one in steady), f"at most {' and '.join(words)}"
        source = "probe_step_min_factor, probe_drift_max_factor"
        check = _check(_OVER_TIME, "passed", names, measured, required, source)
        yield judged(check, known.matched, "course", [f"probe/{one.name}" for one in steady])
    elif probes and not any(_steps(one) or _drifts(one) for one in probes):
        detail = f"{known.thresholds.probe_baseline_results_min} good results make the first comparison"
        yield _check(_OVER_TIME, "not measured", detail=detail)


def _steps(one: Probe) -> list[float]:
    """Times of the last few results over those just before, of small and of large messages."""
    return [ratio for ratio in (one.latency_step_ratio, one.bandwidth_step_ratio) if ratio]


def _drifts(one: Probe) -> list[float]:
    """Times of the latest good results over the first ones."""
    return [ratio for ratio in (one.latency_drift_ratio, one.bandwidth_drift_ratio) if ratio]


# --- what became of the probes of a full scan ---


def _scanned(known: Known) -> Iterator[Check]:
    """One line for each probe that failed or was bad at times, and one for each reason for which others did not run.

    One more where the daemon did not answer after the scan.
    """
    if known.lost:
        yield _check(
            "daemon after the scan", "notice", "", "no answer", "an answer", "",
            f"{known.lost}: counters, settings, score and findings that are not of this scan are from before it",
            "Read the log of the daemon, start it, and scan again.",
        )  # fmt: skip
    by_probe: dict[str, list[Answer]] = {}
    for answer in known.scanned:
        by_probe.setdefault(answer.probe, []).append(answer)
    unrun: dict[str, list[str]] = {}
    for name, answers in by_probe.items():
        conclusive = [one for one in answers if isinstance(one.result, Measured | Failed)]
        last = conclusive[-1].result if conclusive else None
        if last is None or (isinstance(last, Failed) and last.reason in OWN_FAILURES):
            unrun.setdefault(why_not(answers[-1].result), []).append(name)
        elif isinstance(last, Failed):
            yield _failed(name, conclusive, last)
        elif any(one.is_bad for one in conclusive) and (not conclusive[-1].is_bad or conclusive[-1] is not answers[-1]):
            yield _sometimes(name, answers, conclusive)
    for reason, names in unrun.items():
        here = all(by_probe[name][-1].has_no_place_here for name in names)
        yield _check(FRESH_PROBE, "does not apply" if here else "not measured", ", ".join(names), detail=reason)


def _failed(name: str, answers: Sequence[Answer], last: Failed) -> Check:
    times = sum(isinstance(one.result, Failed) for one in answers)
    often = f"{times} of {len(answers)} times in this scan" if len(answers) > 1 else "tried once"
    return _check(
        FRESH_PROBE, "failed", name, f"failed: {last.reason}", "a result", "", f"{last.detail}; {often}",
        "Read what NCCL said in the log, and look at the GPU and the links of the rank that is named.",
    )  # fmt: skip


def _sometimes(name: str, answers: Sequence[Answer], conclusive: Sequence[Answer]) -> Check:
    """Bad, and then well again or not measured any more: no streak either way."""
    bad = sum(one.is_bad for one in conclusive)
    words = sorted({one.verdict for one in conclusive if one.is_bad})
    detail = "It was well again when it was measured again: no streak, and no finding of this scan"
    if conclusive[-1] is not answers[-1]:
        detail = f"It could not be measured again, and there is no streak. {why_not(answers[-1].result)}"
    return _check(
        FRESH_PROBE, "notice", name, f"{' and '.join(words)} {bad} of {len(conclusive)} times", "well each time", "",
        detail, "Scan again later; what comes and goes is often other load on this node.",
    )  # fmt: skip
