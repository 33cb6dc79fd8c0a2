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
from commwatch.dashboards.model import SEVERITY_COLOURS, Panel, Scale, Table
from commwatch.dashboards.words import FIRING
from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.prometheus import PROCESS_COLLECTOR
from support.dashboards import MACROS, all_expressions, all_questions, models, panels_of
from support.facts import shipped
from support.promtool_cases import shipped_groups

ALERTS = {rule["alert"]: rule for group in shipped_groups() for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"] for group in shipped_groups() for rule in group["rules"] if "record" in rule}
TEMPLATES = "".join(path.read_text(encoding="utf-8") for path in (asset("alerts") / "templates").glob("*.yaml"))

BUNDLED = {"timeseries", "stat", "table", "state-timeline", "heatmap"}
"""Panels that come with Grafana."""
UNITS = {"none", "percentunit", "s", "Bps", "bytes", "cps", "sci", "celsius", "watt", "hertz", "dateTimeFromNow"}
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


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_tables_have_distinct_columns(table: Table) -> None:
    """No column is hidden by another of its name; links and the order of lines are about what is shown."""
    names = [*table.labels, *(column.title for column in table.columns)]

    assert len(names) == len(set(names))
    assert table.links.keys() <= set(table.labels)
    assert table.sort_by in {"", *names}


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
    for expression in all_expressions():
        selectors = _SELECTOR.findall(expression)
        # The first variables choose what the later ones are chosen by.
        if expression.startswith("label_values("):
            continue
        assert [name for name, _ in selectors] == metrics_of(expression), expression
        for name, matchers in selectors:
            wanted = ['job=~"$job']
            # What says that the rules are here is a constant of theirs.
            wanted += [] if name == "job:commwatch_rules:info" else ['cluster=~"$cluster']
            wanted += [] if name.partition(":")[0] in {"job", "job_fault", "software"} else ['instance=~"$instance']
            assert all(one in matchers for one in wanted), f"{name}{{{matchers}}}"


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


@pytest.mark.parametrize(("title", "scale", "queries"), [(key, *one) for key, one in LIMITS.items()], ids=LIMITS)
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
    """One click leads to the others with variables and time, another to the runbooks."""
    by_type = {link["type"]: link for link in model["links"]}

    assert by_type["dashboards"]["tags"] == ["commwatch"]
    assert by_type["dashboards"]["includeVars"]
    assert by_type["dashboards"]["keepTime"]
    assert by_type["link"]["url"]


@every_dashboard
def test_alerts_are_marked(model: dict[str, Any]) -> None:
    """Alerts are marked on every dashboard, Xids on those of a node, in the forms of Grafana 10 and later."""
    marks = {one["name"]: one for one in model["annotations"]["list"]}

    assert marks.keys() == ({"Alerts"} if model["uid"] == "commwatch-fleet" else {"Alerts", "Xids"})
    assert all(one["expr"] == one["target"]["expr"] for one in marks.values())


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
