"""Each dashboard and its panels are well-formed: as Grafana and its linter want them."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from commwatch.findings.codes import CODES
from commwatch.generate.dashboards import DASHBOARDS
from commwatch.generate.dashboards.panels import Dashboard, Matrix, Panel, Stat, Table, heading
from support.dashboards import MACROS, models, panels_of
from support.passes import in_one_pass

BUNDLED = {"timeseries", "stat", "table", "state-timeline", "heatmap"}
"""Panels that come with Grafana."""
UNITS = {
    "none", "percentunit", "s", "Bps", "bytes", "cps", "sci", "celsius", "watt", "hertz", "dateTimeFromNow", "string",
}  # fmt: skip
"""Those used here, by the names of Grafana's list of units."""
TRANSFORMATIONS = {"merge", "organize", "sortBy", "groupingToMatrix", "convertFieldType"}

_USED = re.compile(r"\$\{?([a-z_]\w*)")

every_dashboard = pytest.mark.parametrize("model", models().values(), ids=models())


@every_dashboard
def test_a_dashboard_is_classic_json(model: dict[str, Any]) -> None:
    """Grafana 10 reads it, no one edits it in place, and its uid is the name of its file."""
    assert models()[model["uid"]] is model
    assert 39 <= model["schemaVersion"] <= 41
    assert model["id"] is None
    assert not model["editable"]
    assert model["tags"] == ["commwatch"]
    assert model["title"].startswith("commwatch / ")
    assert model["description"]


@every_dashboard
def test_panels_are_whole(model: dict[str, Any]) -> None:
    """Each panel has a title of its own, a description, a unit, a text for no data, a data source and a query."""
    titles = set()
    for panel in panels_of(model):
        title, defaults = panel["title"], panel["fieldConfig"]["defaults"]
        assert title
        assert title not in titles, f"{title} twice"
        titles.add(title)
        assert panel["type"] in BUNDLED
        assert panel["description"].endswith("."), title
        assert re.search(r"^Needs |\. Also empty w", defaults["noValue"]), title
        assert defaults["noValue"].endswith("."), title
        assert "@" not in panel["description"] + defaults["noValue"], title
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {step["value"] for step in defaults["thresholds"]["steps"][:1]} == {None}
        assert panel["targets"], title
        units = {defaults["unit"], *_override_units(panel)}
        assert units <= UNITS, f"{title}: {units - UNITS}"


def _dues(panel: Panel) -> set[str]:
    columns = panel.columns if isinstance(panel, Table) else ()
    return {one.due for one in panel.queries} | {one.due for one in columns}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[one.uid for one in DASHBOARDS])
def test_a_panel_that_wants_a_fault_says_none_where_there_is_none(dashboard: Dashboard) -> None:
    """Before what it needs: an empty panel is good news there, or a lack of data."""
    for panel in dashboard.panels:
        if _dues(panel) == {"with a fault"}:
            assert re.match(r"No(ne .*| remarks)\. Also empty w", panel.no_data), panel.title


def _override_units(panel: dict[str, Any]) -> set[str]:
    properties = [one for override in panel["fieldConfig"]["overrides"] for one in override["properties"]]
    return {one["value"] for one in properties if one["id"] == "unit"}


@every_dashboard
def test_targets_are_whole(model: dict[str, Any]) -> None:
    """Each query has a letter of its own and the data source; what reads a letter or a column finds it."""
    for panel in panels_of(model):
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters))
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        assert all(target["instant"] != target["range"] for target in panel["targets"])
        for transformation in panel.get("transformations", ()):
            assert transformation["id"] in TRANSFORMATIONS
            renamed = transformation["options"].get("renameByName", {})
            values = {name for name in renamed if name.startswith("Value")}
            assert values <= {"Value", *(f"Value #{letter}" for letter in letters)}


TABLES = [panel for dashboard in DASHBOARDS for panel in dashboard.panels if isinstance(panel, Table)]


@in_one_pass("table", TABLES)
def test_tables_have_distinct_columns(table: Table) -> None:
    """No column is hidden by another of its name; links and the order of lines are about what is shown."""
    names = [*table.labels, *(column.title for column in table.columns)]

    heads = [heading(name) for name in names]
    assert len(heads) == len(set(heads))
    assert not any("_" in head or head[:1].islower() for head in heads), "the name of a label as a head"
    assert {*table.links, *table.label_names, *table.wrapped} <= set(table.labels)
    assert set(table.sort_by) <= set(names)
    assert set(table.first) <= {column.title for column in table.columns}


@every_dashboard
def test_cells_show_labels_as_they_are(model: dict[str, Any]) -> None:
    """No unit of a table turns the label ``7`` into 700 %; an empty cell, also of a label, is a dash.

    Grafana reads text as a number wherever a unit other than ``string`` is set, and puts the words for no data into
    each empty cell.
    """
    tables = [panel for panel in panels_of(model) if panel["type"] == "table"]
    for panel in tables:
        by_type = [one for one in panel["fieldConfig"]["overrides"] if one["matcher"]["id"] == "byType"]
        dashes = {one["matcher"]["options"] for one in by_type if {"id": "noValue", "value": "–"} in one["properties"]}
        assert panel["fieldConfig"]["defaults"]["unit"] == "string", panel["title"]
        assert panel["fieldConfig"]["defaults"]["custom"]["cellOptions"] == {"type": "auto"}, panel["title"]
        assert dashes == {"number", "string"}, panel["title"]


def test_columns_of_numbers_have_units() -> None:
    """Each column of numbers that is shown, and each matrix, has a unit of its own in place of that of its labels."""
    pairs = [
        pair for dashboard in DASHBOARDS
        for pair in zip(dashboard.panels, panels_of(models()[dashboard.uid]), strict=True)
    ]  # fmt: skip
    for panel, written in pairs:
        units = {
            override["matcher"]["options"]
            for override in written["fieldConfig"]["overrides"]
            if any(one["id"] == "unit" for one in override["properties"])
        }
        if isinstance(panel, Table):
            assert units == {heading(column.title) for column in panel.columns if column.title}, panel.title
        if isinstance(panel, Matrix):
            assert units == {"number"}, panel.title


def test_a_pair_without_a_number_has_no_colour() -> None:
    """A cell of a matrix that was not measured, the diagonal among them, has not the colour of a bad one."""
    titles = {panel.title for dashboard in DASHBOARDS for panel in dashboard.panels if isinstance(panel, Matrix)}
    matrices = [panel for panel in panels_of(models()["commwatch-pairs"]) if panel["title"] in titles]
    assert len(matrices) == 4
    for panel in matrices:
        properties = [one for override in panel["fieldConfig"]["overrides"] for one in override["properties"]]
        (mapping,) = [one["value"][0] for one in properties if one["id"] == "mappings"]
        assert mapping["options"]["match"] == "null"
        assert mapping["options"]["result"]["color"] == "transparent"


def test_single_numbers_have_room_for_their_words() -> None:
    """What a single number needs is said in the eleven letters that each column of 24 has room for."""
    stats = [panel for dashboard in DASHBOARDS for panel in dashboard.panels if isinstance(panel, Stat)]

    assert [panel.title for panel in stats if len(panel.no_data) > 11 * panel.width] == []


def test_simulated_numbers_have_a_colour_of_their_own() -> None:
    """A drill does not turn a number of the fleet red: what is simulated is purple."""
    for panel in panels_of(models()["commwatch-fleet"]):
        legends = [target["legendFormat"] for target in panel["targets"]]
        if panel["type"] == "stat" and "simulated" in legends:
            (override,) = panel["fieldConfig"]["overrides"]
            assert override["matcher"] == {"id": "byName", "options": "simulated"}
            assert override["properties"][0]["value"] == {"mode": "fixed", "fixedColor": "purple"}


@every_dashboard
def test_ids_are_unique(model: dict[str, Any]) -> None:
    """No two panels or rows of a dashboard share an id."""
    ids = [one["id"] for one in _rows_and_panels(model)]

    assert len(set(ids)) == len(ids)


@every_dashboard
def test_panels_do_not_overlap(model: dict[str, Any]) -> None:
    """Panels stand beside and below each other within 24 columns, also when all rows are open."""
    boxes = [one["gridPos"] for one in _rows_and_panels(model)]

    assert all(box["x"] >= 0 and box["x"] + box["w"] <= 24 and box["h"] > 0 for box in boxes)
    for one, other in combinations(boxes, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, f"{one} and {other}"


@every_dashboard
def test_no_hole_is_left(model: dict[str, Any]) -> None:
    """Panels cover all that is between the headings of rows, as wide as the page."""
    boxes = [one["gridPos"] for one in _rows_and_panels(model)]

    assert sum(box["w"] * box["h"] for box in boxes) == 24 * max(box["y"] + box["h"] for box in boxes)


def _rows_and_panels(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Each once, also what stands in collapsed rows."""
    return [*(panel for panel in model["panels"] if panel["type"] == "row"), *panels_of(model)]


@every_dashboard
def test_variables_are_known_and_used(model: dict[str, Any]) -> None:
    """Every variable that a query reads is offered, and the other way round."""
    offered = {one["name"] for one in model["templating"]["list"]}
    expressions = [target["expr"] for panel in panels_of(model) for target in panel["targets"]]
    expressions += [one["definition"] for one in model["templating"]["list"] if one["type"] == "query"]
    expressions += [mark["expr"] for mark in model["annotations"]["list"]]

    used = {name for expression in expressions for name in _USED.findall(expression)} | {"datasource"}
    assert used - MACROS.keys() == offered


@every_dashboard
def test_variables_are_as_the_linter_wants_them(model: dict[str, Any]) -> None:
    """Data source, job and instance are offered; queries are asked again when the time changes.

    Several jobs and clusters can be chosen, and several nodes of the fleet. The other pages show one node, because the
    GPUs of two would fall together.
    """
    by_name = {one["name"]: one for one in model["templating"]["list"]}

    assert list(by_name)[:4] == ["datasource", "cluster", "job", "instance"]
    assert by_name["datasource"]["query"] == "prometheus"
    assert [by_name[name]["label"] for name in ("datasource", "job", "instance")] == ["Data source", "Job", "Instance"]
    for one in by_name.values():
        if one["type"] == "query":
            assert one["refresh"] == 2
            assert one["datasource"]["uid"] == "${datasource}"
            assert one["definition"].startswith("label_values(")
            assert one["multi"] == one["includeAll"] == (one.get("allValue") in {".+", ".*"})
    assert by_name["cluster"]["allValue"] == ".*", "a site without clusters has series without the label"
    assert by_name["job"]["allValue"] == ".+"
    assert by_name["instance"].get("allValue") == (".+" if model["uid"] == "commwatch-fleet" else None)


@in_one_pass("uid", sorted(models()))
def test_a_dashboard_opens_with_few_panels(uid: str) -> None:
    """A node's with 16: each one that is open asks Prometheus at once. The others have 30 at most.

    A node's has 30 in all.
    """
    opened = [panel for panel in models()[uid]["panels"] if panel["type"] != "row"]

    assert len(opened) <= (16 if uid == "commwatch-node" else 30)
    assert uid != "commwatch-node" or len(list(panels_of(models()[uid]))) <= 30


def test_lines_are_sorted_by_gpu_and_link_as_numbers() -> None:
    """Where a table is sorted by GPU or link these are numbers, so that link 10 is behind link 9.

    Links that are missing or have errors come before all others.
    """
    for model in models().values():
        for panel in panels_of(model):
            order = [one["displayName"] for one in panel["options"].get("sortBy", ())]
            numbers = [
                conversion["targetField"]
                for one in panel.get("transformations", ())
                if one["id"] == "convertFieldType"
                for conversion in one["options"]["conversions"]
            ]
            assert [heading(name) for name in numbers] == [head for head in order if head in {"GPU", "Link"}]
    (links,) = [panel for panel in panels_of(models()["commwatch-node"]) if panel["title"] == "Links"]
    assert [(one["displayName"], one["desc"]) for one in links["options"]["sortBy"]] == [
        ("Missing", True), ("Errors within an hour", True), ("Recoveries within an hour", True),
        ("GPU", False), ("Link", False),
    ]  # fmt: skip


def test_findings_have_severity_title_and_first_step() -> None:
    """Each code is ranked by its severity, once, and has its title and its first step; the most severe come first."""
    (panel,) = [one for one in panels_of(models()["commwatch-node"]) if one["title"] == "Findings"]
    ranked = re.findall(r'(\d) \* max by [^{]*\{[^}]*code=~"([^"]*)"', panel["targets"][0]["expr"])
    words = {"3": "critical", "2": "warning", "1": "info"}
    severity_of = {code: words[rank] for rank, codes in ranked for code in codes.split("|")}
    mapped = {
        override["matcher"]["options"]: one["value"][0]["options"]
        for override in panel["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "mappings"
    }

    assert severity_of == {code.name: code.severity for code in CODES.values()}
    for code in CODES.values():
        assert mapped["title"][code.name]["text"] == code.title
        assert mapped["next_step"][code.name]["text"] == code.next_step
    assert panel["options"]["sortBy"][0] == {"displayName": "Severity", "desc": True}
