"""The collectors of a screen: those that are late or fail, and what hangs; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.lines import Line, Segment
from commwatch.views.top.frame import Series
from commwatch.views.top.table import section, table
from commwatch.views.top.words import BAD, age

_LATE_INTERVALS = 3.0
_LATE_SECONDS = 10.0
"""Late: older than so many intervals and so many seconds more; the daemon drops values then."""


def collector_lines(series: Series, width: int, now: float) -> Iterator[Line]:
    """How many are in time, and a row for each that is not."""
    success = series.by("collector_success", "collector")
    intervals = series.by("collector_interval_seconds", "collector")
    last = series.by("collector_last_success_timestamp_seconds", "collector")
    rows: list[list[Segment]] = []
    for key, succeeded in success.items():
        done, interval = last.get(key), intervals.get(key, 0.0)
        late = done is None or now - done > _LATE_INTERVALS * interval + _LATE_SECONDS
        if succeeded and not late:
            continue
        state = "late" if succeeded else "fails"
        since = "never" if done is None else f"{age(now - done)} ago"
        rows.append([(key[0], ""), (state, BAD), (since, ""), (f"every {age(interval)}", "")])
    yield from section("Collectors", f"{len(success) - len(rows)} of {len(success)} in time")
    if rows:
        yield from table(("Collector", "State", "All was read", "Runs"), rows, width)
    for (worker,), stuck in series.by("worker_stuck", "worker").items():
        if stuck:
            yield [(f"worker {worker}: {stuck:g} of its processes hang in the driver and are left alone", BAD)]
