"""Asks every query of the dashboards of a real Prometheus that has scraped simulated nodes; see docs/dashboards.md.

Example:
    python -m benchmarks.dashboard_queries --report docs/dashboards.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from benchmarks.healthy_day import write_report  # noqa: E402 - the checkout need not be installed

from commwatch.generate.dashboards import DASHBOARDS  # noqa: E402 - as above
from commwatch.generate.dashboards.panels import Column, Dashboard, Heat, PanelRow  # noqa: E402 - as above
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds  # noqa: E402 - as above
from support.dashboard_answers import Answer, Answers  # noqa: E402 - as above
from support.dashboard_nodes import FAULTY, HEALTHY, NVLINK_5, prometheus_with_nodes  # noqa: E402 - as above
from support.dashboards import Question, all_expressions, questions  # noqa: E402 - as above

NODES = (HEALTHY, FAULTY, NVLINK_5)
_HEAD = "| panel | query | data is due | healthy | with faults | NVLink 5 |\n| --- | --- | --- | --- | --- | --- |\n"
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "percentunit": format_percent, "Bps": format_rate, "bytes": format_bytes, "s": format_seconds,
    "celsius": "{:.0f} °C".format, "watt": "{:.0f} W".format, "cps": "{:.3g}/s".format,
    "hertz": lambda value: f"{value / 1e6:.0f} MHz",
}  # fmt: skip


def document(answers: Answers) -> str:
    """A table for each row of each dashboard."""
    return "\n".join(_section(dashboard, answers) for dashboard in DASHBOARDS)


def _section(dashboard: Dashboard, answers: Answers) -> str:
    asked = questions(dashboard)
    tables = [_table(row, asked, answers) for row in dashboard.rows]
    head = f"### {dashboard.title} (`{dashboard.uid}`)\n\n{dashboard.description}\n"
    return "\n".join([head, *tables])


def _table(row: PanelRow, asked: Iterator[Question], answers: Answers) -> str:
    lines = []
    for panel in row.panels:
        for _ in getattr(panel, "columns", ()) or panel.queries:
            question = next(asked)
            cells = (panel.title, _label(question), question.due, *(_cell(question, answers, node) for node in NODES))
            lines.append(f"| {' | '.join(cells)} |\n")
    return f"**{row.title}**\n\n{_HEAD}{''.join(lines)}"


def _label(question: Question) -> str:
    if isinstance(question.asked, Column):
        return question.asked.title or "(labels)"
    return f"`{question.asked.legend}`" if question.asked.legend else ""


def _cell(question: Question, answers: Answers, node: str) -> str:
    found = answers.of(question, node)
    if not found:
        return ""
    if isinstance(question.asked, Column) and not question.asked.title:
        return "1 line" if len(found) == 1 else f"{len(found)} lines"
    low, high = min(one.last for one in found), max(one.last for one in found)
    words = [_value(question, value) for value in ([low] if low == high else [low, high])]
    return f"{len(found)}: {' to '.join(words)}" if len(found) > 1 else _value(question, _only(found).last)


def _only(found: Sequence[Answer]) -> Answer:
    (one,) = found
    return one


def _value(question: Question, value: float) -> str:
    shown = question.asked if isinstance(question.asked, Column) else question.panel
    if value in shown.names:
        return shown.names[value][0]
    if shown.unit == "dateTimeFromNow":
        return "a time"
    if isinstance(shown, Heat):
        return f"{value:.3g}"  # the unit is that of the buckets
    return _FORMATS.get(shown.unit, "{:.3g}".format)(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, and print or write the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables into this page")
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        prometheus_with_nodes(all_expressions(), Path(folder)) as server,
    ):
        text = document(Answers(server))
    if given.report is not None:
        write_report(given.report, text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
