"""Results of the drills, as a table, as JSON and as docs/reference/detection.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from commwatch.config.simulated import node_name
from commwatch.units import format_seconds
from commwatch_rehearsal.drill.catalogue import without_alert
from commwatch_rehearsal.drill.course import Outcome
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.pace import Pace

SCHEMA = "commwatch-drill/1"
COLUMNS = ("fault", "alert expected", "alerts received", "firing", "page", "all paged", "resolved", "verdict")
RIGHT = (3, 4, 5, 6)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _short(alerts: Iterable[str]) -> str:
    return ", ".join(name.removeprefix("Commwatch") for name in alerts)


def _page(outcome: Outcome, of: str = "") -> str:
    """The first page, with its alert where that is none of those expected.

    Args:
        of: the time that is allowed, in words.
    """
    name = outcome.first_page
    by = "" if name is None or name in outcome.expected else f" ({_short([name])})"
    seconds = _seconds(outcome.seconds_to_first_page)
    return (f"{seconds.removesuffix(' s')}{of}" if of else seconds) + by


def _resolved(outcome: Outcome) -> str:
    if outcome.resolved is None:
        return "-"
    return _seconds(outcome.seconds_to_resolved) if outcome.resolved else "no"


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The table of the terminal; alerts without the common beginning of their names."""
    return [
        (
            f"{one.name} ({one.preset})",
            _short(one.expected) or "none",
            _short(one.received) or "none",
            _seconds(one.seconds_to_firing),
            _page(one),
            _seconds(one.seconds_to_page),
            _resolved(one),
            "passed" if one.passed else "; ".join(one.problems),
        )
        for one in outcomes
    ]


def document(
    outcomes: Sequence[Outcome], left_out: Mapping[str, str], strays: Iterable[str], pace: Pace, seconds: float
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "intervals": "given" if pace.is_given else pace.name,
        "interval_seconds": None if pace.is_given else pace.interval,
        "seconds": round(seconds, 1),
        "passed": is_passed(outcomes, strays),
        "stray_alerts": sorted(strays),
        "drills": [asdict(one) for one in outcomes],
        "left_out": dict(left_out),
    }


def is_passed(outcomes: Sequence[Outcome], strays: Iterable[str]) -> bool:
    """Whether every drill passed, and nothing fired beside them."""
    return all(one.passed for one in outcomes) and not set(strays)


def summary(outcomes: Sequence[Outcome], strays: Iterable[str], pace: Pace, seconds: float) -> str:
    """One line for the end of the table."""
    passed = sum(one.passed for one in outcomes)
    stray = f"; alerts of no drill: {', '.join(sorted(strays))}" if set(strays) else ""
    return f"{passed} of {len(outcomes)} passed in {format_seconds(seconds)}, {intervals(pace)}{stray}"


def intervals(pace: Pace) -> str:
    """Which intervals were used, in words."""
    if pace.is_given:
        return "the intervals of the given Prometheus"
    if pace.is_shipped:
        return "shipped intervals (scrape and evaluation every 15 s)"
    others = ", the waits of the given Alertmanager as they are" if pace.paging_factor == 1 else ""
    return (
        f"fast intervals (scrape and evaluation every {pace.interval:g} s, windows and waits a {pace.factor:g}th, "
        f"keep_firing_for a {pace.held_factor:g}th{others})"
    )


def catalogue_rows(drills: Iterable[Drill], alerts: Iterable[str]) -> list[tuple[str, ...]]:
    """The table of ``--list``."""
    known = set(alerts)
    return [
        (
            drill.name,
            node_name(drill.preset),
            "; ".join(drill.fault_texts),
            "none" if drill.is_silent else _short(drill.alerts) + _lacks(drill, known),
            "-" if drill.is_silent else drill.detection,
        )
        for drill in drills
    ]


def _lacks(drill: Drill, alerts: set[str]) -> str:
    lacking = without_alert(drill, alerts)
    return f" (no alert yet: {_short(lacking)})" if lacking else ""


_HEAD = """# Detection

Which alerts each fault raises, how soon, and whether anything else paged. `commwatch drill --report FILE` makes these
tables on any machine that has Prometheus and Alertmanager; [the fire drill](../using/drill.md) says how.

"""
_COLUMNS = """
- **drill**: its name, and below it the simulated node; `commwatch drill --list` has its fault.
- **alerts**: those expected, without `Commwatch`; after "also", other signs of the same fault that were paged.
- **paged**: the time from the fault to its first page, of the time that is allowed, which decides. The brackets name
  the alert of this page if it is not one of those expected. "All" is the time to the notification of the last alert
  expected, if that is another one: Alertmanager sends what fires on a node after its first page 1 min later.
- **resolved**: the time from the end of the fault to the notification of that; `-` where the alert covers more time
  than the drill waits."""


def markdown(
    outcomes: Sequence[Outcome], left_out: Mapping[str, str], strays: Iterable[str], pace: Pace, versions: str
) -> str:
    """docs/reference/detection.md."""
    passed = sum(one.passed for one in outcomes)
    lines = [f"{_HEAD}{passed} of {len(outcomes)} drills passed with {intervals(pace)}, {versions}.", _COLUMNS]
    if stray := sorted(strays):
        lines += ["", f"Alerts of no drill: {', '.join(stray)}."]
    if failed := [one for one in outcomes if not one.passed]:
        lines += ["", "## Failed", "", *(f"- `{one.name}`: {'; '.join(one.problems)}" for one in failed)]
    return "\n".join([*lines, *tables(outcomes), *_not_played(left_out)]) + "\n"


def tables(outcomes: Sequence[Outcome]) -> list[str]:
    """The lines of a table of the faults that page, by family, and of one of those that do not page."""
    lines = []
    if paging := [one for one in outcomes if one.seconds_allowed is not None]:
        lines += ["", "## Faults that page", "", "| drill | alerts | paged | resolved |"]
        lines += ["| --- | --- | --- | --- |"]
    for family in dict.fromkeys(one.family for one in paging):
        lines += [f"| **{family}** | | | |", *(_row(one) for one in paging if one.family == family)]
    if silent := [one for one in outcomes if one.seconds_allowed is None]:
        lines += ["", "## Faults that page nobody", "", *(f"- {_drill(one)}" for one in silent)]
    return lines


def _not_played(left_out: Mapping[str, str]) -> list[str]:
    if not left_out:
        return []
    rows = [f"| `{name}` | {why} |" for name, why in left_out.items()]
    return ["", "## Not played", "", "| drill | why |", "| --- | --- |", *rows]


def _row(outcome: Outcome) -> str:
    everything = _seconds(outcome.seconds_to_page)
    later = "" if everything == _seconds(outcome.seconds_to_first_page) else f"; all {everything}"
    also = _short(name for name in outcome.received if name not in outcome.expected)
    cells = (
        _drill(outcome),
        _short(outcome.expected) + (f"; also {also}" if also else ""),
        _page(outcome, of=f" of {outcome.seconds_allowed:g} s") + later,
        _resolved(outcome),
    )
    return "| " + " | ".join(cells) + " |"


def _drill(outcome: Outcome) -> str:
    return f"`{outcome.name}`<br>`{outcome.preset}`"
