"""What the rules say that they read, held against what they read: on pages of any numbers, and all of it."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import cast

from commwatch.config.thresholds import Thresholds
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch_exporters.catalogue import CATALOGUE
from support.any_page import GPUS, LABELS, NUMBERS, RISES
from support.facts import RULES, Declared, DeclaredThresholds, facts_of, seen_in, shipped

PAGES = 350
"""That many reach each metric and each threshold of each rule."""
FOR_ALL = 100
"""Each rule looks at this many; from then on those of which something declared was not read yet."""

LOOKS = ((30.0, 700.0), (700.0, 2_000.0), (10_000.0, 80_000.0))
"""Two earlier ones, seconds ago."""


@cache
def any_facts(page: int) -> Facts:
    """A page of three GPUs with any numbers, two earlier looks, and some metrics that are not read."""
    dice = Random(page)  # noqa: S311 - the same pages each time
    names = {label: dice.choice(values) for label, values in LABELS.items()}
    absent, looks = dice.choice((0.05, 0.8)), dice.choice(LOOKS)
    pages: dict[float, dict[str, dict[tuple[str, ...], float]]] = {0.0: {}, **{ago: {} for ago in looks}}
    for metric in CATALOGUE.values():
        # By metric, so that one that is added to the catalogue changes nothing of the others.
        dice = Random(f"{page} {metric.name}")  # noqa: S311
        if metric.type == "histogram" or dice.random() < absent:
            continue
        for gpu in GPUS:
            labels, number = tuple({**names, **gpu}.get(label, "1") for label in metric.labels), dice.choice(NUMBERS)
            for series in pages.values():
                series.setdefault(metric.name, {})[labels] = number
                number -= dice.choice(RISES)
    return facts_of(pages.pop(0.0), pages)


def test_rules_read_what_they_declare() -> None:
    """All of it and nothing else: a metric or a threshold more or less in the declaration is a failure."""
    declared = {rule.name: {*rule.metrics_read, *rule.metrics_of_details, *rule.thresholds} for rule in RULES}
    asked = {name: set[str]() for name in declared}
    for page in range(PAGES):
        facts = any_facts(page)
        for rule in RULES:
            if page >= FOR_ALL and asked[rule.name] == declared[rule.name]:
                continue
            own, limits = Declared(facts, rule), DeclaredThresholds(shipped(), rule)
            list(rule.evaluate(own, cast(Thresholds, limits)))
            asked[rule.name] |= own.read | limits.read

    assert asked == declared


def test_no_detail_decides() -> None:
    """Without what only adds numbers, names and parts a rule matches the same codes at the same components."""
    matched = {one.code for page in range(FOR_ALL) for one in seen_in(any_facts(page))}

    assert len(matched) > 0.8 * len(CODES), "the pages show most faults"
