"""The pattern branch over time: whether probes take longer than before, at once or slowly, and since when; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.pattern_probes import SLOWER_THAN_BEFORE, SLOWER_THAN_FIRST, Readings, readings_of
from commwatch.units import format_seconds
from commwatch.views.heatmap.matrix_view import utc

_WORTH_TELLING_SECONDS = 120.0
"""What is open for less is what happens now."""
_MEANT = {"latency": "small messages", "bandwidth": "large messages"}


def courses(known: Known) -> Iterator[Check]:
    """Whether probes take longer than before, and since when; those that do not stand in one line."""
    # Of pairs the daemon keeps matrices, and the suspects say what became slower.
    probes = [one for one in readings_of(known.facts) if one.labels["collective"] != "pairs"]
    limits = (known.thresholds.probe_step_min_factor, known.thresholds.probe_drift_max_factor)
    slower = [one for one in probes if _steps(one, limits[0]) or _drifts(one, limits[1])]
    for one in slower:
        yield _course(known, one, limits)
    steady = [one for one in probes if one not in slower and _worst(one, (*SLOWER_THAN_BEFORE, *SLOWER_THAN_FIRST))]
    if steady:
        before, first = (_worst_of(steady, names) for names in (SLOWER_THAN_BEFORE, SLOWER_THAN_FIRST))
        told = [f"{before:.2f} times the results before"] if before else []
        told += [f"{first:.2f} times the first results"] if first else []
        yield Check(
            branch="pattern",
            what="time of the same message over time",
            where=", ".join(one.name for one in steady),
            measured=f"at most {' and '.join(told)}",
            required=_required(limits),
            verdict="passed",
            source="probe_step_min_factor, probe_drift_max_factor",
        )
    elif not slower and probes:
        yield Check(
            branch="pattern",
            what="time of the same message over time",
            verdict="not measured",
            detail=f"{known.thresholds.probe_baseline_results_min} good results make the first comparison",
        )
    yield from _since(known)


def _worst(one: Readings, metrics: Iterable[str]) -> float | None:
    return max((value for name in metrics if (value := one.get(name)) is not None), default=None)


def _worst_of(some: Sequence[Readings], metrics: Sequence[str]) -> float | None:
    return max((value for one in some if (value := _worst(one, metrics)) is not None), default=None)


def _steps(one: Readings, least: float) -> list[str]:
    return [_words(one, name, "the results before") for name in SLOWER_THAN_BEFORE if (one.get(name) or 0) >= least]


def _drifts(one: Readings, least: float) -> list[str]:
    return [_words(one, name, "the first results") for name in SLOWER_THAN_FIRST if (one.get(name) or 0) >= least]


def _words(one: Readings, metric: str, against: str) -> str:
    return f"{_MEANT[metric.partition('_')[0]]} {one.get(metric):.2f} times {against}"


def _required(limits: tuple[float, float]) -> str:
    return f"below {limits[0]:g} and {limits[1]:g} times"


def _course(known: Known, one: Readings, limits: tuple[float, float]) -> Check:
    steps, drifts = _steps(one, limits[0]), _drifts(one, limits[1])
    how = "It came at once" if steps else "It came slowly"
    if steps:
        how += f", within the last {known.thresholds.probe_step_results} results"
    return Check(
        branch="pattern",
        what="time of the same message over time",
        where=one.name,
        measured="; ".join((*steps, *drifts)),
        required=_required(limits),
        verdict="failed",
        source="probe_step_min_factor, probe_drift_max_factor",
        detail=f"{how}.",
        next_step="Compare with what was changed at that time: driver, NCCL, settings, cabling, firmware; "
        "commwatch heatmap --compare shows which pairs changed."
        if steps
        else "Look for recoveries and replays that rise over days, and for clocks that are held down.",
    )


def _since(known: Known) -> Iterator[Check]:
    """The earliest of what is open among probes, pairs and parts, with what has been open as long."""
    open_ones = [one for one in known.findings.findings if one.component.kind in ("probe", "pair", "part")]
    graver = [one for one in open_ones if one.severity != "info"]
    if not graver:
        return
    first = min(graver, key=lambda one: one.since)
    if known.findings.time - first.since < _WORTH_TELLING_SECONDS:
        return
    yield Check(
        branch="pattern",
        what="slow since",
        where=first.component.component.words,
        measured=f"{utc(first.since)}, {format_seconds(max(0.0, known.findings.time - first.since))} ago",
        verdict="notice",
        detail=f"{first.title}: open since then; what changed on this node at that time is the first place to look.",
    )
