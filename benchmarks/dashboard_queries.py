"""Asks every query of the dashboards of a real Prometheus that scraped simulated nodes; see docs/using/dashboards.md.

Example:
    python -m benchmarks.dashboard_queries --report docs/using/dashboards.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from benchmarks.healthy_day import write_report  # noqa: E402 - the checkout need not be installed

from commwatch.generate.dashboards import DASHBOARDS  # noqa: E402 - as above
from commwatch.generate.dashboards.panels import Dashboard, PanelRow  # noqa: E402 - as above
from support.dashboard_answers import Answers  # noqa: E402 - as above
from support.dashboard_nodes import FAULTY, HEALTHY, NVLINK_5, prometheus_with_nodes  # noqa: E402 - as above
from support.dashboards import Question, all_expressions, questions  # noqa: E402 - as above

NODES = (HEALTHY, FAULTY, NVLINK_5)
_HEAD = "| panel | data is due | healthy | with faults | NVLink 5 |\n| --- | --- | ---: | ---: | ---: |\n"


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
        of_panel = list(islice(asked, len(getattr(panel, "columns", ()) or panel.queries)))
        due = ", ".join(dict.fromkeys(question.due for question in of_panel))
        counts = (sum(len(answers.of(question, node)) for question in of_panel) for node in NODES)
        lines.append(f"| {panel.title} | {due} | {' | '.join(str(count or '') for count in counts)} |\n")
    return f"**{row.title}**\n\n{_HEAD}{''.join(lines)}"


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
