"""The dashboards as files: current, complete, well-formed, on metrics that exist, with the thresholds of the alerts."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch.assets import asset
from commwatch.dashboards import DASHBOARDS
from commwatch.dashboards.__main__ import main
from commwatch.dashboards.model import SEVERITY_COLOURS, Matrix, Panel, Scale, Stat, Table
from commwatch.dashboards.words import FIRING
from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.prometheus import PROCESS_COLLECTOR
from support.dashboards import MACROS, all_expressions, all_questions, expressions_by_dashboard, models, panels_of
from support.facts import shipped
from support.passes import in_one_pass
from support.promtool_cases import shipped_groups

ALERTS = {rule["alert"]: rule for group in shipped_groups() for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"] for group in shipped_groups() for rule in group["rules"] if "record" in rule}
TEMPLATES = "".join(path.read_text(encoding="utf-8") for path in (asset("alerts") / "templates").glob("*.yaml"))

BUNDLED = {"timeseries", "stat", "table", "state-timeline", "heatmap"}
"""Panels that come with Grafana."""
UNITS = {
    "none", "percentunit", "s", "Bps", "bytes", "cps", "sci", "celsius", "watt", "hertz", "dateTimeFromNow", "string",
}  # fmt: skip
"""Those used here, by the names of Grafana's list of units."""
TRANSFORMATIONS = {"merge", "organize", "sortBy", "groupingToMatrix"}
NEW_SERIES = {"commwatch_gpu_xid_events_total", "commwatch_nvswitch_sxid_events_total"}
"""Counters of which each label value has a series from its first event on: an increase misses that one."""

_METRIC = re.compile(r"\b(?:(?:\w+:)?(?:commwatch|process)_\w+(?::\w+)?|ALERTS(?:_FOR_STATE)?|up)\b")
_SELECTOR = re.compile(rf"({_METRIC.pattern})\{{([^}}]*)\}}")
_STRING = re.compile(r'"[^"]*"')
_USED = re.compile(r"\$\{?(\w+)")
_ADDRESS = re.compile(r"/d/([\w-]+)")
_PASSED = re.compile(r"var-(\w+)=|\$\{(\w+):queryparam\}")

every_dashboard = pytest.mark.parametrize("model", models().values(), ids=models())


def metrics_of(expression: str) -> list[str]:
    """The metrics that an expression reads, each as often as it does."""
    return _METRIC.findall(re.sub(r"(by|on|ignoring|group_left|without) ?\([^)]*\)", "", _STRING.sub('""', expression)))


# --- current ---


def test_the_dashboards_are_current() -> None:
    """The committed JSON is what the panels and the shipped thresholds give."""
    assert main(["--check"]) == 0


def test_an_outdated_dashboard_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed, a missing and a superfluous file are named; files of others in the folder are left alone."""
    assert main(["--output", str(tmp_path)]) == 0
    (tmp_path / "commwatch-node.json").write_text("{}", encoding="utf-8")
    (tmp_path / "commwatch-pairs.json").unlink()
    (tmp_path / "commwatch-old.json").write_text("{}", encoding="utf-8")
    (tmp_path / "own.json").write_text("{}", encoding="utf-8")

    assert main(["--check", "--output", str(tmp_path)]) == 1

    named = re.findall(r"([\w-]+)\.json is not current", capsys.readouterr().err)
    assert named == ["commwatch-node", "commwatch-old", "commwatch-pairs"]
    assert main(["--output", str(tmp_path)]) == 0
    assert sorted(path.stem for path in tmp_path.iterdir()) == [*sorted(models()), "own"]


def test_a_sites_thresholds_and_runbooks_reach_the_panels(tmp_path: Path) -> None:
    """With a site's file the panels have the limits that its alerts have, and link to its runbooks."""
    (tmp_path / "own.yaml").write_text("nvlink_sibling_low_ratio: {value: 0.42}\n", encoding="utf-8")
    site = tmp_path / "site.yml"
    site.write_text("thresholds: own.yaml\nrunbooks: https://wiki.test/\n", encoding="utf-8")

    code = main(["--site", str(site), "--output", str(tmp_path / "out")])

    text = (tmp_path / "out" / "commwatch-node.json").read_text(encoding="utf-8")
    assert code == 0
    assert '"value": 0.42' in text
    assert "https://wiki.test/CommwatchNvlinkBelowSiblings.md" in text
    assert "runbooks.example" not in text


@pytest.mark.parametrize("arguments", [["--site", "site.yml"], ["--thresholds", "missing.yaml"]])
def test_wrong_options_write_nothing(arguments: list[str]) -> None:
    """A site without a folder of its own, and thresholds that cannot be read, are errors."""
    try:
        code: object = main(arguments)
    except SystemExit as error:
        code = error.code

    assert code == 2
    assert main(["--check"]) == 0


# --- well-formed ---


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
        assert "eeds " in defaults["noValue"], title
        assert defaults["noValue"].endswith("."), title
        assert "@" not in panel["description"] + defaults["noValue"], title
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {step["value"] for step in defaults["thresholds"]["steps"][:1]} == {None}
        assert panel["targets"], title
        units = {defaults["unit"], *_override_units(panel)}
        assert units <= UNITS, f"{title}: {units - UNITS}"


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
            assert renamed.keys() <= {"Value", *(f"Value #{letter}" for letter in letters)}


TABLES = [panel for dashboard in DASHBOARDS for panel in dashboard.panels if isinstance(panel, Table)]


@in_one_pass("table", TABLES)
def test_tables_have_distinct_columns(table: Table) -> None:
    """No column is hidden by another of its name; links and the order of lines are about what is shown."""
    names = [*table.labels, *(column.title for column in table.columns)]

    assert len(names) == len(set(names))
    assert {*table.links, *table.label_names, *table.widths} <= set(table.labels)
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
            assert units == {column.title for column in panel.columns if column.title}, panel.title
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


def _rows_and_panels(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Each once, also what stands in collapsed rows."""
    return [*(panel for panel in model["panels"] if panel["type"] == "row"), *panels_of(model)]


# --- variables ---


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
            assert one["multi"] == one["includeAll"] == (one["allValue"] in {".+", ".*"})
    assert by_name["cluster"]["allValue"] == ".*", "a site without clusters has series without the label"
    assert by_name["job"]["allValue"] == ".+"
    assert by_name["instance"]["allValue"] == (".+" if model["uid"] == "commwatch-fleet" else None)


# --- queries ---


def test_every_metric_exists() -> None:
    """Queries read the catalogue, what the rules record, alerts, and what Prometheus and every daemon have."""
    of_process = {f"{one.name}{'_total' if one.type == 'counter' else ''}" for one in PROCESS_COLLECTOR.collect()}
    for expression in all_expressions():
        for name in metrics_of(expression):
            if name not in {"up", "ALERTS", "ALERTS_FOR_STATE", *of_process, *RECORDED}:
                family_of(name)  # KeyError: no such metric


def test_every_selector_has_the_variables() -> None:
    """Each selector of each query asks for cluster, job and node as they are chosen."""
    for uid, expression in expressions_by_dashboard():
        selectors = _SELECTOR.findall(expression)
        # The first variables choose what the later ones are chosen by.
        if expression.startswith("label_values("):
            continue
        assert [name for name, _ in selectors] == metrics_of(expression), expression
        for name, matchers in selectors:
            wanted = ['job=~"$job']
            # What says that the rules are here is a constant of theirs.
            wanted += [] if name == "job:commwatch_rules:info" else ['cluster=~"$cluster']
            wanted += [] if name.partition(":")[0] in {"job", "job_fault", "software"} else [_node_matcher(uid)]
            assert all(one in matchers for one in wanted), f"{name}{{{matchers}}}"


def _node_matcher(uid: str) -> str:
    """Of several nodes a regular expression; of one its name as it stands, which may be an IPv6 address."""
    return 'instance=~"$instance' if uid == "commwatch-fleet" else 'instance="$instance"'


def test_targets_of_others_are_left_out() -> None:
    """What every target of a Prometheus has is asked of commwatch's alone: the job is All until one is chosen."""
    of_all = [one for one in all_expressions() if re.search(r"\b(up|process_\w+)\{", one)]

    assert len(of_all) > 3
    for expression in of_all:
        ours = re.findall(r"\band on \(cluster, job(?:, instance)?\) (?:\w+:)?commwatch_[\w:]+\{", expression)
        assert len(ours) == len(re.findall(r"\b(?:up|process_\w+)\{", expression)), expression


def test_counters_are_shown_as_rates() -> None:
    """A counter stands under rate, increase or changes, and rate has Grafana's own window."""
    for expression in all_expressions():
        for name, _ in _SELECTOR.findall(expression):
            is_counter = name in CATALOGUE and CATALOGUE[name].type == "counter"
            if is_counter and name not in NEW_SERIES:
                raw = re.search(rf"(?<!rate\()(?<!increase\()\b{name}\{{", expression)
                assert raw is None, expression
        windows = set(re.findall(r"\brate\([^\[]*\[([^\]]*)\]", expression))
        assert windows <= {"$__rate_interval"}, expression


# --- thresholds, alerts and links ---


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

    assert SEVERITY_COLOURS[ALERTS[scale.alert]["labels"]["severity"]] in colours
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
    kept = {*re.findall(r"max by \(([^)]*)\)", FIRING)[0].split(", "), *re.findall(r'"(\w+)"', FIRING)}

    # The index of a GPU goes with its address.
    assert named - kept == {"pci_bus_id"}


@every_dashboard
def test_runbooks_exist(model: dict[str, Any]) -> None:
    """Each runbook that a panel links to is a page."""
    for panel in panels_of(model):
        for link in panel["links"]:
            assert (asset("alerts") / "runbooks" / link["url"].rpartition("/")[2]).is_file(), link["url"]


def test_every_alert_is_on_a_panel() -> None:
    """Whoever is told of an alert finds its sign: each page and each ticket has a panel that links to its runbook."""
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
    """One click leads to each other page with the time and the variables that both have, another to the runbooks.

    The fleet passes on no node, because All is none of a page of one node, and takes none, because it would then count
    the alerts of that node alone.
    """
    *pages, runbooks = model["links"]
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
    assert runbooks["url"]


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


def test_the_page_has_every_panel() -> None:
    """docs/dashboards.md has a line for each panel of each dashboard, with what was answered."""
    page = (asset("grafana").parent / "docs" / "dashboards.md").read_text(encoding="utf-8")
    for dashboard in DASHBOARDS:
        section = page.partition(f"### {dashboard.title} (")[2].partition("\n### ")[0]
        shown = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
        assert list(dict.fromkeys(one for one in shown if one not in {"panel", "---"})) == [
            panel.title for panel in dashboard.panels
        ]


# --- provisioning ---

GRAFANA = asset("grafana")


def test_provisioning_finds_what_is_mounted() -> None:
    """The provider looks where the dashboards are mounted; the data source has a uid and the scrape interval."""
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/commwatch.yaml").read_text())["providers"][0]
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/commwatch.yaml").read_text())["datasources"][0]
    example = yaml.safe_load((asset("alerts") / "prometheus.example.yml").read_text())

    assert provider["allowUiUpdates"] is False
    assert provider["folder"] == "commwatch"
    assert source["uid"] == "commwatch"
    for model in models().values():
        (chosen,) = [one["current"] for one in model["templating"]["list"] if one["type"] == "datasource"]
        assert chosen == {"text": source["name"], "value": source["uid"]}
    assert source["isDefault"] is False, "two defaults among all provisioned files keep Grafana from starting"
    assert source["jsonData"]["timeInterval"] == example["global"]["scrape_interval"]
    assert provider["options"]["path"] in {target for _, target in _mounts("grafana")}


def test_the_compose_file_mounts_what_exists() -> None:
    """Each mounted path exists beside the compose file and is mounted read-only; no image is left to chance."""
    services = _compose()["services"]

    assert services.keys() == {"prometheus", "alertmanager", "grafana"}
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]
        for source, target in _mounts(name):
            assert (GRAFANA / source).exists(), f"{source} for {target}"


def test_the_compose_file_gives_prometheus_what_its_configuration_names() -> None:
    """Rules and Alertmanager's files stand where the example configurations look for them."""
    prometheus, alertmanager = dict(_targets("prometheus")), dict(_targets("alertmanager"))

    assert prometheus["/etc/prometheus/rules"] == "../alerts/rules"
    assert alertmanager["/etc/alertmanager/alertmanager.tmpl"] == "../alerts/alertmanager.tmpl"
    assert "--rules.alert.for-grace-period=15s" in _compose()["services"]["prometheus"]["command"]


def test_the_compose_file_opens_nothing() -> None:
    """All services are on the host's network and listen on the loopback device; Grafana asks for a password."""
    services = _compose()["services"]
    grafana = services["grafana"]["environment"]

    assert all(service["network_mode"] == "host" and "ports" not in service for service in services.values())
    for name in ("prometheus", "alertmanager"):
        (listens,) = [one for one in services[name]["command"] if one.startswith("--web.listen-address")]
        assert listens.partition("=")[2].startswith("127.0.0.1:")
    assert "--cluster.listen-address=" in services["alertmanager"]["command"]
    assert grafana["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert grafana["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_ADMIN_PASSWORD:?")
    assert not any("ANONYMOUS" in key for key in grafana)


def _compose() -> Any:
    return yaml.safe_load((GRAFANA / "compose.yaml").read_text(encoding="utf-8"))


def _mounts(service: str) -> list[tuple[str, str]]:
    """Path beside the compose file and path in the container, of what is mounted from the checkout."""
    found = []
    for volume in _compose()["services"][service].get("volumes", ()):
        source, target, *mode = volume.split(":")
        if source.startswith("."):
            assert mode == ["ro"], volume
            found.append((source, target))
    return found


def _targets(service: str) -> list[tuple[str, str]]:
    return [(target, source) for source, target in _mounts(service)]
