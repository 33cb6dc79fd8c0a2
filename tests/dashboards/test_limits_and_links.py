"""Limits of the panels are those of the alerts; links lead to runbooks and dashboards that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

from commwatch.config.assets import asset
from commwatch.generate.alert_rules import templates
from commwatch.generate.dashboards import DASHBOARDS
from commwatch.generate.dashboards.panels import SEVERITY_COLOURS, Panel, Scale, Table
from support.dashboards import all_questions, models, panels_of
from support.facts import shipped
from support.passes import in_one_pass
from support.promtool_cases import alerts_of, shipped_groups

ALERTS = alerts_of(shipped_groups())
TEMPLATES = "".join(templates().values())


_ADDRESS = re.compile(r"/d/([\w-]+)")
_PASSED = re.compile(r"var-(\w+)=|\$\{(\w+):queryparam\}")

every_dashboard = pytest.mark.parametrize("model", models().values(), ids=models())


def _scales() -> list[tuple[str, Scale, str]]:
    """Title, scale and queries of what has one."""
    panels = [panel for dashboard in DASHBOARDS for panel in dashboard.panels]
    own = [
        (panel.title, panel.scale, " ".join(query.expression for query in panel.queries))
        for panel in panels if panel.scale
    ]  # fmt: skip
    columns = [
        (f"{panel.title} / {column.title}", column.scale, column.expression)
        for panel in panels if isinstance(panel, Table) for column in panel.columns if column.scale
    ]  # fmt: skip
    return own + columns


LIMITS = {f"{title}, {scale.alert}": (scale, text) for title, scale, text in _scales() if scale.alert}


@in_one_pass("title, scale, queries", [(key, *one) for key, one in LIMITS.items()])
def test_a_limit_is_that_of_its_alert(title: str, scale: Scale, queries: str) -> None:
    """The alert named at a limit reads the same threshold, and the colour is that of its severity.

    Where a query divides by thresholds so that 1 is the limit, the alert reads these.
    """
    template = re.search(rf"- alert: {scale.alert}\n(.*?)runbook_url", TEMPLATES, re.DOTALL)
    assert template is not None
    colours = {scale.base, *(colour for _, colour in scale.steps)}

    # What is as severe as what it counts is a page at worst.
    severity = ALERTS[scale.alert]["labels"]["severity"]
    assert SEVERITY_COLOURS.get(severity, SEVERITY_COLOURS["critical"]) in colours
    keys = [limit for limit, _ in scale.steps if isinstance(limit, str)]
    # The score has one limit more than its alert.
    assert not keys or any(f"@{key}@" in template[1] for key in keys), f"{title}: {scale.alert} does not read {keys}"
    read = {key for key in re.findall(r"/ @(\w+)@", queries) if hasattr(shipped(), key)}
    assert all(f"@{key}@" in template[1] for key in read), f"{title}: {scale.alert} does not read all of {read}"
    # Grafana colours from a limit on.
    for key in keys:
        asked = set(re.findall(rf"(>=?|<) @{key}@", template[1]))
        counts_events = "round(" in queries and asked == {">"}
        assert scale.whole_above == counts_events, f"{title}: the alert asks for {asked} the limit"


def test_alerts_differ_by_what_is_shown() -> None:
    """Each label that the text of an alert names is in the tables of alerts: no two alerts share a line."""
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(str(rule["annotations"]) for rule in ALERTS.values())))
    (table,) = [one.expression for one in all_questions() if one.name == "commwatch-node: Alerts / since"]
    kept = set(re.findall(r'"(\w+)"', table))

    # The index of a GPU goes with its address; the others have columns of their own, or are those of the page.
    assert named - kept == {"pci_bus_id", "cluster", "job", "simulated", "severity"}


@every_dashboard
def test_runbooks_exist(model: dict[str, Any]) -> None:
    """Each runbook that a panel links to is a page."""
    for panel in panels_of(model):
        for link in panel["links"]:
            assert (asset("alerts") / "runbooks" / link["url"].rpartition("/")[2]).is_file(), link["url"]


def test_every_alert_is_on_a_panel() -> None:
    """Each alert has its sign: each page and each ticket has a panel that links to its runbook."""
    named = {alert for dashboard in DASHBOARDS for panel in dashboard.panels for alert in _alerts_of(panel)}
    wanted = {name for name, rule in ALERTS.items() if rule["labels"]["severity"] != "info"}

    assert not wanted - named, sorted(wanted - named)


def _alerts_of(panel: Panel) -> set[str]:
    columns = panel.columns if isinstance(panel, Table) else ()
    return {*panel.runbooks, *(column.scale.alert for column in columns if column.scale is not None)}


def test_links_lead_somewhere() -> None:
    """What alerts and dashboards link to exists, and offers the variables that are passed on."""
    texts = [rule["annotations"]["dashboard_url"] for rule in ALERTS.values()]
    for model in models().values():
        properties = [one for p in panels_of(model) for o in p["fieldConfig"]["overrides"] for one in o["properties"]]
        texts += [link["url"] for one in properties if one["id"] == "links" for link in one["value"]]

    found = {text for text in texts if "/d/" in text}
    assert len(found) > 4
    for text in found:
        match = _ADDRESS.search(text)
        assert match is not None
        offered = {one["name"] for one in models()[match[1]]["templating"]["list"]}
        passed = {one or other for one, other in _PASSED.findall(text)}
        assert passed <= offered, text


@every_dashboard
def test_dashboards_link_to_each_other(model: dict[str, Any]) -> None:
    """One click leads to each other page with the time and the variables that both have.

    The fleet passes on no node, because All is none of a page of one node, and takes none, because it would then count
    the alerts of that node alone.
    """
    pages = model["links"]
    offered = {one["name"] for one in model["templating"]["list"]}

    assert [_address(link["url"]) for link in pages] == [uid for uid in _in_order() if uid != model["uid"]]
    for link in pages:
        other = models()[_address(link["url"])]
        passed = {one or name for one, name in _PASSED.findall(link["url"])}
        fleet = "commwatch-fleet" in {model["uid"], other["uid"]}
        assert passed == {"datasource", "cluster", "job"} | (set() if fleet else {"instance"})
        assert passed <= offered & {one["name"] for one in other["templating"]["list"]}
        assert link["keepTime"]
        assert not link["includeVars"]


def _in_order() -> list[str]:
    return [dashboard.uid for dashboard in DASHBOARDS]


def _address(url: str) -> str:
    match = _ADDRESS.search(url)
    assert match is not None, url
    return match[1]


@every_dashboard
def test_alerts_are_marked(model: dict[str, Any]) -> None:
    """Pages are marked on the fleet, alerts and Xids on those of a node, in the forms of Grafana 10 and later.

    A mark stands where an alert began, whatever the step: Grafana shades the time in which a query has answers, and
    makes steps longer than a minute when more than a day is shown.
    """
    marks = {one["name"]: one for one in model["annotations"]["list"]}

    assert marks.keys() == ({"Pages"} if model["uid"] == "commwatch-fleet" else {"Alerts", "Xids"})
    for mark in marks.values():
        assert mark["expr"] == mark["target"]["expr"]
        assert set(re.findall(r"offset (\S+?)[)\s]", mark["expr"])) == {"$__interval"}
        assert " unless " in mark["expr"]
    for name in marks.keys() & {"Pages", "Alerts"}:
        kept = re.findall(r"^group by \(([^)]*)\)", marks[name]["expr"])[0].split(", ")
        assert set(re.findall(r"\{\{(\w+)\}\}", marks[name]["titleFormat"] + marks[name]["textFormat"])) <= set(kept)
        assert set(marks[name]["tagKeys"].split(",")) <= set(kept)
        assert not set(kept) & {"gpu", "link", "device", "port"}, "parts by thousands"


def test_simulated_data_is_marked() -> None:
    """Every dashboard says in its first row whether what it shows is simulated."""
    for dashboard in DASHBOARDS:
        first = [query.expression for panel in dashboard.rows[0].panels for query in panel.queries]
        assert any("commwatch_simulated" in one for one in first), dashboard.uid


def test_questions_match_their_panels() -> None:
    """The tests ask what the JSON has: each query of each panel once."""
    asked = len(all_questions())
    assert asked == sum(len(panel["targets"]) for model in models().values() for panel in panels_of(model))


def test_the_page_has_every_row() -> None:
    """docs/using/dashboards.md has a line for each dashboard, with its rows in their order."""
    page = (asset("grafana").parent / "docs" / "using" / "dashboards.md").read_text(encoding="utf-8")
    for dashboard in DASHBOARDS:
        line = page.partition(f"(`{dashboard.uid}`) |")[2].partition("\n")[0]
        assert re.findall(r"\*([^*]+)\*", line) == [row.title for row in dashboard.rows]
