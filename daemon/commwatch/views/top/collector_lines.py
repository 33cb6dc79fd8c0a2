"""The collectors of a screen: those that are late or fail, and what hangs; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.lines import Line, Segment
from commwatch.views.top.table import section, table
from commwatch.views.top.words import BAD, age
from commwatch_exporters.node.model import Collector, Node, Worker

_LATE_INTERVALS = 3.0
_LATE_SECONDS = 10.0
"""Late: older than so many intervals and so many seconds more; the daemon drops values then."""


def collector_lines(node: Node, width: int, now: float) -> Iterator[Line]:
    """How many are in time, and a row for each that is not."""
    collectors = list(node.each(Collector.success))
    rows: list[list[Segment]] = []
    for collector, succeeded in collectors:
        done, interval = collector.last_success_timestamp_seconds, collector.interval_seconds or 0.0
        late = done is None or now - done > _LATE_INTERVALS * interval + _LATE_SECONDS
        if succeeded and not late:
            continue
        state = "late" if succeeded else "fails"
        since = "never" if done is None else f"{age(now - done)} ago"
        rows.append([(collector.name, ""), (state, BAD), (since, ""), (f"every {age(interval)}", "")])
    yield from section("Collectors", f"{len(collectors) - len(rows)} of {len(collectors)} in time")
    if rows:
        yield from table(("Collector", "State", "All was read", "Runs"), rows, width)
    for worker, stuck in node.each(Worker.stuck):
        if stuck:
            yield [(f"worker {worker.name}: {stuck:g} of its processes hang in the driver and are left alone", BAD)]
