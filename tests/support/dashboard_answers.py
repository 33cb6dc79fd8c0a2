"""What a Prometheus answers to the questions of dashboards, and in which colours Grafana would show it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from commwatch.generate.dashboards.panels import Column, Names, Scale
from support.dashboard_nodes import ONE_GPU
from support.dashboards import RANGE_SECONDS, Question, all_questions, filled
from support.facts import shipped
from support.prometheus import Prometheus

_STEP_SECONDS = 15
_LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)$")
_BAD = {"orange", "red"}


@dataclass(frozen=True)
class Answer:
    """One series of an answer."""

    labels: dict[str, str]
    values: Sequence[float]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.values[-1]


class Answers:
    """Asks each question once."""

    def __init__(self, server: Prometheus) -> None:
        self._server = server
        self._now = time.time()
        self._known: dict[tuple[str, bool], list[Answer]] = {}

    def of(self, question: Question, node: str, cluster: str = ".*") -> list[Answer]:
        """What a panel of a node is given: now, or over the time that is shown."""
        # The pages of a GPU's links are about one GPU.
        gpu = ONE_GPU if question.dashboard == "commwatch-link" else ".+"
        return self._ask(_for_node(question.expression, node, cluster, gpu), instant=question.instant)

    def over_time(self, expression: str, node: str) -> list[Answer]:
        """The series of an expression over the time that is shown."""
        return self._ask(_for_node(expression, node), instant=False)

    def now(self, expression: str, node: str) -> list[Answer]:
        """The series of an expression now."""
        return self._ask(_for_node(expression, node), instant=True)

    def _ask(self, expression: str, *, instant: bool) -> list[Answer]:
        key = expression, instant
        if key not in self._known:
            if instant:
                found = self._server.query(expression, at=self._now)
                self._known[key] = [Answer(labels, [value]) for labels, value in found]
            else:
                series = self._server.query_range(expression, self._now - RANGE_SECONDS, self._now, _STEP_SECONDS)
                self._known[key] = [Answer(labels, values) for labels, values in series]
        return self._known[key]


def _for_node(expression: str, node: str, cluster: str = ".*", gpu: str = ".+") -> str:
    chosen = {"cluster": cluster, "job": "commwatch", "instance": node, "gpu": gpu}
    return filled(expression, {**chosen, "link": ".+", "backend": "simulated"})


def variable_values(answers: Answers, definition: str, node: str) -> list[str]:
    """What a variable offers while a node is chosen."""
    match = _LABEL_VALUES.match(definition)
    assert match is not None, definition
    selector, label = match.groups()
    found = answers.now(f"group by ({label}) ({selector})", node)
    return sorted({one.labels[label] for one in found if label in one.labels})


def bad_values(answers: Answers, node: str) -> list[str]:
    """The numbers of a node that have the colour of a warning or a page, each with its panel."""
    found: list[str] = []
    for question in all_questions():
        shown = question.asked if isinstance(question.asked, Column) else question.panel
        found += [
            f"{question.name} = {answer.last:g} {answer.labels}"
            for answer in answers.of(question, node)
            if _colour(answer.last, shown.scale, shown.names) in _BAD
        ]
    return found


def _colour(value: float, scale: Scale | None, names: Names) -> str:
    if value in names:
        return names[value][1]
    if scale is None:
        return "text"
    limits = [(getattr(shipped(), one) if isinstance(one, str) else one, colour) for one, colour in scale.steps]
    return [scale.base, *(colour for limit, colour in limits if value >= limit)][-1]
