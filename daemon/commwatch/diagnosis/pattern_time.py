"""The pattern branch over time: whether probes take longer than before, at once or slowly, and since when; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.results import probes_of
from commwatch.units import format_seconds, utc
from commwatch_exporters.node.model import Probe

_WORTH_TELLING_SECONDS = 120.0
"""What is open for less is what happens now."""


def courses(known: Known) -> Iterator[Check]:
    """Whether probes take longer than before, and since when; those that do not stand in one line."""
    # Of pairs the daemon keeps matrices, and the suspects say what became slower.
    probes = [one for one in probes_of(known.facts) if one.collective != "pairs"]
    limits = (known.thresholds.probe_step_min_factor, known.thresholds.probe_drift_max_factor)
    slower = {one: check for one in probes if (check := _course(known, one, limits)) is not None}
    yield from slower.values()
    steady = [one for one in probes if one not in slower and (_steps(one) or _drifts(one))]
    if steady:
        before = max((ratio for one in steady for ratio in _steps(one).values()), default=None)
        first = max((ratio for one in steady for ratio in _drifts(one).values()), default=None)
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


def _steps(one: Probe) -> dict[str, float]:
    """Times of the last few results over those just before, by which messages."""
    return _known({"small messages": one.latency_step_ratio, "large messages": one.bandwidth_step_ratio})


def _drifts(one: Probe) -> dict[str, float]:
    """Times of the latest good results over the first ones, by which messages."""
    return _known({"small messages": one.latency_drift_ratio, "large messages": one.bandwidth_drift_ratio})


def _known(ratios: Mapping[str, float | None]) -> dict[str, float]:
    return {which: ratio for which, ratio in ratios.items() if ratio}


def _beyond(ratios: Mapping[str, float], least: float, against: str) -> list[str]:
    return [f"{which} {ratio:.2f} times {against}" for which, ratio in ratios.items() if ratio >= least]


def _required(limits: tuple[float, float]) -> str:
    return f"below {limits[0]:g} and {limits[1]:g} times"


def _course(known: Known, one: Probe, limits: tuple[float, float]) -> Check | None:
    steps = _beyond(_steps(one), limits[0], "the results before")
    drifts = _beyond(_drifts(one), limits[1], "the first results")
    if not steps and not drifts:
        return None
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
