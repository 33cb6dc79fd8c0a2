"""Tables of a screen, and numbers as their cells show them: short, and a dash for what was not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from commwatch.findings.finding import Severity
from commwatch.lines import HEADING, Line, Segment, fitted_widths, row_lines
from commwatch_exporters.node.model import Node
from commwatch_exporters.node.parts import AnyColumn, Part

ABSENT = "-"

BAD = "bold red"
DOUBTFUL = "yellow"
GOOD = "green"
DIM = "dim"

STYLE_OF_SEVERITY: dict[Severity, str] = {"critical": BAD, "warning": DOUBTFUL, "info": ""}

_AGES = ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h"), (float("inf"), 86400.0, "d"))
_COUNTS = ((10_000.0, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (float("inf"), 1e9, "G"))


def age(seconds: float | None) -> str:
    """A time that has passed, in whole units: ``12 s``, ``3 min``."""
    if seconds is None:
        return ABSENT
    passed = max(0.0, seconds)
    size, unit = next((size, unit) for limit, size, unit in _AGES if passed < limit)
    return f"{int(passed / size)} {unit}"


def count(number: float) -> str:
    """A number of events, whole up to 9999; then in thousands (``k``), millions (``M``) or billions (``G``)."""
    size, unit = next((size, unit) for limit, size, unit in _COUNTS if number < limit)
    return f"{number:.0f}" if size == 1.0 else f"{number / size:.3g}{unit}"


def errors(now: float | None, before: float | None) -> Segment:
    """Errors so far, and behind a plus those of them that are new: ``1204 +35``.

    Args:
        now: so far; None where they were not read.
        before: at the first refresh; None if they were not read then, or if this is the first refresh.
    """
    if now is None:
        return ABSENT, ""
    if before is None or now <= before:
        return count(now), ""
    return f"{count(now)} +{count(now - before)}", BAD


def both_ways(transmit: float | None, receive: float | None) -> str:
    """Two ratios in whole percent, sending first: ``23/24``."""
    if transmit is None and receive is None:
        return ABSENT
    return "/".join(ABSENT if one is None else f"{100 * one:.0f}" for one in (transmit, receive))


def of_all(part: float | None, whole: float | None, unit: str, size: float = 1.0) -> str:
    """A number and its limit, whole and in one unit: ``412/700 W``; ``412 W`` where the limit is not known."""
    if part is None:
        return ABSENT
    limit = "" if whole is None else f"/{whole / size:.0f}"
    return f"{part / size:.0f}{limit} {unit}"


def gigabits(bytes_per_second: float | None) -> str:
    """The speed of a port: ``400 Gbit/s``."""
    return ABSENT if bytes_per_second is None else f"{bytes_per_second * 8 / 1e9:g} Gbit/s"


def _itself(part: Part) -> Part:
    return part


def sums(node: Node | None, columns: Iterable[AnyColumn], of: Callable[[Any], Part] = _itself) -> dict[Part, float]:
    """The sum of several counters by part; absent where none of them was read.

    Args:
        node: None: nothing is known.
        of: the part that has them together, such as the GPU of a link.
    """
    total: dict[Part, float] = {}
    if node is not None:
        for column in columns:
            for part, _, number in node.each_keyed(column):
                total[of(part)] = total.get(of(part), 0.0) + number
    return total


def section(title: str, remark: str = "") -> Iterator[Line]:
    """An empty line and a heading."""
    yield []
    yield [(title, HEADING), (f"  {remark}" if remark else "", DIM)]


def table(heads: Sequence[str], rows: Sequence[Sequence[Segment]], width: int) -> Iterator[Line]:
    """A table below its headings, one for each column, for a screen of this width."""
    cells: list[list[Segment]] = [[(head, DIM) for head in heads], *map(list, rows)]
    widths = fitted_widths(cells, width, [width] * len(heads))
    for row in cells:
        yield from row_lines(row, widths)
