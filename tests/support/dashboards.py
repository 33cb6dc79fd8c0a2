"""The committed dashboards, and their questions as Grafana would ask them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from commwatch.config.assets import asset
from commwatch.generate.dashboards import DASHBOARDS
from commwatch.generate.dashboards.panels import Column, Dashboard, Due, Panel, Query, Table

RANGE_SECONDS = 3000
"""Of the time that is shown."""
MACROS = {"__rate_interval": "4m", "__interval": "15s", "__range": f"{RANGE_SECONDS}s"}
_VARIABLE = re.compile(r"\$\{?([a-z_]\w*)\}?")


@dataclass(frozen=True)
class Question:
    """A query of a panel."""

    dashboard: str
    panel: Panel
    asked: Query | Column
    expression: str
    """As it stands in the JSON."""
    instant: bool

    @property
    def due(self) -> Due:
        """When it must have an answer."""
        return self.asked.due

    @property
    def name(self) -> str:
        """For messages."""
        column = f" / {self.asked.title}" if isinstance(self.asked, Column) else ""
        return f"{self.dashboard}: {self.panel.title}{column}"


@cache
def models() -> Mapping[str, Any]:
    """The committed JSON by uid."""
    files = sorted((asset("grafana") / "dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def panels_of(model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, those in collapsed rows too, without the rows."""
    for panel in model["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def questions(dashboard: Dashboard) -> Iterator[Question]:
    """The queries of all panels of a dashboard."""
    for panel, model in zip(dashboard.panels, panels_of(models()[dashboard.uid]), strict=True):
        asked: Sequence[Query | Column] = panel.columns if isinstance(panel, Table) else panel.queries
        for query, target in zip(asked, model["targets"], strict=True):
            yield Question(dashboard.uid, panel, query, target["expr"], target["instant"])


def all_questions() -> list[Question]:
    """The queries of all panels of all dashboards."""
    return [question for dashboard in DASHBOARDS for question in questions(dashboard)]


def expressions_by_dashboard() -> list[tuple[str, str]]:
    """Every query there is: of panels, variables and annotations, each with the uid of its dashboard."""
    found = [(question.dashboard, question.expression) for question in all_questions()]
    for uid, model in models().items():
        found += [(uid, mark["expr"]) for mark in model["annotations"]["list"]]
        found += [(uid, one["definition"]) for one in model["templating"]["list"] if one["type"] == "query"]
    return found


def all_expressions() -> list[str]:
    """The queries without their dashboards."""
    return [expression for _, expression in expressions_by_dashboard()]


def filled(expression: str, chosen: Mapping[str, str]) -> str:
    """An expression with macros and variables in their places.

    Raises:
        KeyError: it has a variable that is none of these.
    """
    values = {**MACROS, **{name: _regular_expression(value) for name, value in chosen.items()}}
    return _VARIABLE.sub(lambda match: values[match[1]], expression)


def _regular_expression(value: str) -> str:
    """What was chosen as Grafana writes it behind ``=~``; all of something stays as it is."""
    return value if value in {".+", ".*"} else re.sub(r"([.+*?()|\[\]{}^$])", r"\\\\\1", value)
