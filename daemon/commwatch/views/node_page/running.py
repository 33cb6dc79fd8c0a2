"""The daemon's own activity: probes with their trend, and collectors with their age."""

from __future__ import annotations

from collections.abc import Sequence

from commwatch.probes.results.record import LatencyCourse
from commwatch.probes.results.records import ProbeStatus
from commwatch.views.node_page.markup import ABSENT, cell, duration, judged, number, table, text, wrapped
from commwatch.views.node_page.records import CollectorStatus

_SPARK_WIDTH, _SPARK_HEIGHT = 120.0, 26.0
_MARGIN = 4.0
_LATE_INTERVALS = 3
"""A collector is marked if its last success is more than this many intervals ago."""


def probe_table(probes: Sequence[ProbeStatus]) -> str:
    """Last result, course, baseline, and what comes next."""
    headings = ("Probe", "Last result", "Course of latency", "Usual latency, limit", "#Age", "Next")
    rows = [
        [
            f'<td>{text(probe.name)} <span class="dim">{text(probe.backend)}</span></td>',
            f'<td class="text{" bad" if probe.failed else ""}">{text(probe.last_result) or ABSENT}</td>',
            *_latencies(probe.latencies),
            number(duration(probe.age_seconds)),
            f'<td class="text">{_next(probe)}</td>',
        ]
        for probe in probes
    ]
    return table("probes", "Probes", headings, rows, "No probe is configured.", stacks=True)


def _latencies(course: LatencyCourse | None) -> tuple[str, str]:
    if course is None:
        return f"<td>{ABSENT}</td>", wrapped("")
    return f"<td>{sparkline(course)}</td>", wrapped(course.usual_words)


def _next(probe: ProbeStatus) -> str:
    due = probe.next_run_seconds
    when = "" if due is None else f"in {duration(due)}" if due else "now"
    why = f'<span class="dim">skipped: {text(probe.skip_reason)}</span>' if probe.skip_reason else ""
    return " ".join(part for part in (when, why) if part) or ABSENT


def sparkline(course: LatencyCourse) -> str:
    """The last results as a line, with the baseline broken and a square where a result is above the limit."""
    values = course.latest
    low, high = _range(course)
    step = (_SPARK_WIDTH - 2 * _MARGIN) / max(1, len(values) - 1)

    def height(value: float) -> float:
        return _MARGIN + (high - value) / (high - low) * (_SPARK_HEIGHT - 2 * _MARGIN)

    points = [(_MARGIN + place * step, height(value)) for place, value in enumerate(values)]
    line = " ".join([f"{x:.1f},{y:.1f}" for x, y in points])
    spikes = "".join(
        [
            f'<rect class="spike" x="{x - 2.5:.1f}" y="{y - 2.5:.1f}" width="5" height="5"/>'
            for (x, y), value in zip(points, values, strict=True)
            if course.limit is not None and value > course.limit
        ]
    )
    base = ""
    if course.usual is not None:
        base = f'<path class="base" d="M0 {height(course.usual):.1f}H{_SPARK_WIDTH:g}"/>'
    last = f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="2.2"/>' if points else ""
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH:g} {_SPARK_HEIGHT:g}" role="img" '
        f'aria-label="{text(course.words)}">{base}<polyline points="{line}"/>{spikes}{last}</svg>'
    )


def _range(course: LatencyCourse) -> tuple[float, float]:
    """Ends of the scale: all results and the baseline, and at least a third of it, so that noise does not fill the
    scale."""
    known = [*course.latest, *([] if course.usual is None else [course.usual])]
    low, high = min(known, default=0.0), max(known, default=1.0)
    middle = course.usual if course.usual is not None else (low + high) / 2
    least = middle / 3 or 1.0
    if high - low < least:
        spare = (least - (high - low)) / 2
        low, high = low - spare, high + spare
    return low, high


def collector_table(collectors: Sequence[CollectorStatus]) -> str:
    """How each went and how old what it read is."""
    rows = [
        [_name(collector), _success(collector), _age(collector), number(duration(collector.interval_seconds))]
        for collector in collectors
    ]
    headings = ("Collector", "Last run", "#Since success", "#Every")
    return table("collectors", "Collectors", headings, rows, "No collector runs.")


def _name(collector: CollectorStatus) -> str:
    """With the last error below it."""
    error = f' <span class="error">{text(collector.last_error)}</span>' if collector.last_error else ""
    return f"<td>{text(collector.name)}{error}</td>"


def _success(collector: CollectorStatus) -> str:
    if collector.success is None:
        return cell("")
    return judged("good", "ok") if collector.success else judged("bad", "failed")


def _age(collector: CollectorStatus) -> str:
    age = collector.age_seconds
    if age is not None and age > _LATE_INTERVALS * collector.interval_seconds:
        return f'<td class="n warn">{duration(age)} <span aria-hidden="true">!</span></td>'
    return number(duration(age))
