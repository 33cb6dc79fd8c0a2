"""The table of which alert silences which: current in its files, free of circles, and none silences a graver one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from commwatch.config.assets import asset
from commwatch.generate.alert_rules import shipped_alerts
from commwatch.generate.inhibition import INHIBITIONS
from support.promtool_cases import alerts_of, document, shipped_groups

EXAMPLE = asset("alerts/alertmanager.example.yml")
SHIPPED = shipped_alerts()
GRAVITY = ("info", "warning", "critical")
RULES = alerts_of(shipped_groups())


def of_nodes() -> Iterator[tuple[str, str]]:
    """Each cause with each of its symptoms, of those that both are about one node."""
    for one in INHIBITIONS:
        if one.is_of_a_node:
            yield from ((cause, symptom) for cause in alerts(one.causes) for symptom in alerts(one.symptoms))


def alerts(names: str) -> list[str]:
    """The shipped alerts that alternatives name."""
    return [one for one in SHIPPED if re.fullmatch(f"Commwatch({names})", one)]


def test_the_example_has_the_whole_table() -> None:
    """Each row is a rule."""
    assert len(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["inhibit_rules"]) == len(INHIBITIONS)


def test_each_name_of_the_table_is_an_alert() -> None:
    """A slip of the pen silences nothing."""
    names = {name for one in INHIBITIONS for name in f"{one.causes}|{one.symptoms}".split("|")}

    assert [name for name in names if not alerts(name)] == []


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

    def have(names: str, label: str) -> bool:
        return all(label in labels[name] for name in alerts(names))

    assert [
        (one.why, label)
        for one in INHIBITIONS
        if one.is_of_a_node
        for label in one.same
        if not have(one.causes, label) and not have(one.symptoms, label)
    ] == []
