"""Which alert silences which, by the shipped example: free of circles, and none silences a graver one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from commwatch.config.assets import asset
from commwatch.generate.alert_rules import shipped_alerts
from support.promtool_cases import alerts_of, document, shipped_groups

SHIPPED = shipped_alerts()
GRAVITY = ("info", "warning", "critical")
RULES = alerts_of(shipped_groups())
INHIBITIONS = yaml.safe_load(asset("alerts/alertmanager.example.yml").read_text(encoding="utf-8"))["inhibit_rules"]
OF_A_NODE = [one for one in INHIBITIONS if "instance" in one["equal"]]
"""Of which cause and symptoms are about one node."""


def names(matchers: list[str]) -> list[str]:
    """The alternatives of the alert's name in the matchers of one side."""
    (found,) = [match[1] for one in matchers if (match := re.fullmatch(r'alertname=~?"(.*)"', one))]
    return str(found).split("|")


def alerts(matchers: list[str]) -> list[str]:
    """The shipped alerts that they name."""
    return [one for one in SHIPPED if re.fullmatch("|".join(names(matchers)), one)]


def of_nodes() -> Iterator[tuple[str, str]]:
    """Each cause with each of its symptoms."""
    for one in OF_A_NODE:
        yield from (
            (cause, other) for cause in alerts(one["source_matchers"]) for other in alerts(one["target_matchers"])
        )


def test_each_name_of_the_table_is_an_alert() -> None:
    """A slip of the pen silences nothing."""
    every = {name for one in INHIBITIONS for side in ("source", "target") for name in names(one[f"{side}_matchers"])}

    assert [name for name in every if not any(re.fullmatch(name, one) for one in SHIPPED)] == []
    assert len(OF_A_NODE) > 20


def test_no_alert_silences_what_silences_it() -> None:
    """Neither directly nor by way of others: both would be lost."""
    reached: dict[str, set[str]] = {}
    for cause, symptom in of_nodes():
        reached.setdefault(cause, set()).add(symptom)
    for _ in reached:
        for cause, symptoms in reached.items():
            reached[cause] = symptoms.union(*(reached.get(one, set()) for one in symptoms))

    assert [cause for cause, symptoms in reached.items() if cause in symptoms] == []


def test_no_ticket_silences_a_page() -> None:
    """What wakes somebody is hidden only by what wakes somebody."""

    def gravity(name: str) -> int:
        return GRAVITY.index(RULES[name]["labels"]["severity"])

    assert [pair for pair in of_nodes() if gravity(pair[0]) < gravity(pair[1])] == []


def test_each_cause_or_each_symptom_has_the_labels_that_must_be_equal() -> None:
    """Alertmanager takes two labels that are both missing for equal."""
    labels: dict[str, set[str]] = {}
    for file in asset("alerts/tests").glob("*.yaml"):
        for case in document(file)["tests"]:
            for check in case.get("alert_rule_test", ()):
                for one in check["exp_alerts"] or ():
                    known = labels.setdefault(check["alertname"], set(one["exp_labels"]))
                    known &= set(one["exp_labels"])

    def have(matchers: list[str], label: str) -> bool:
        return all(label in labels[name] for name in alerts(matchers))

    assert [
        (one["source_matchers"], label)
        for one in OF_A_NODE
        for label in one["equal"]
        if label not in {"cluster", "job", "instance"}
        if not have(one["source_matchers"], label) and not have(one["target_matchers"], label)
    ] == []
