"""Dashboards as Grafana's classic JSON, schema 39: read by Grafana 10 and later, without plugins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from commwatch.config.thresholds import Thresholds
from commwatch.generate.alert_rules import Site, format_duration
from commwatch.generate.dashboards.panel_json import (
    ALERT_BEGAN,
    EMPTY_CELLS,
    PAGE_BEGAN,
    TEXT_UNIT,
    WIDTH,
    XID_COUNTED,
    Json,
    cell_link,
    data_source,
    kind_of,
    mappings,
    matrix_cells,
    of_none,
    override,
    page_links,
    places,
    reference,
    runbooks_link,
)
from commwatch.generate.dashboards.panels import (
    NUMBERS,
    WIDTHS,
    Column,
    Dashboard,
    Heat,
    Matrix,
    Panel,
    Query,
    Scale,
    Series,
    Stat,
    Table,
    Variable,
    heading,
)

SCHEMA = 39
"""The last of Grafana 10."""
TAG = "commwatch"

_ALPHABETICAL, _NUMERICAL = 1, 3
"""How Grafana calls the orders of a variable's values."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_MATCHERS = {
    "node": 'cluster=~"$cluster", job=~"$job", instance=~"$instance"',
    "gpu": 'cluster=~"$cluster", job=~"$job", instance=~"$instance", gpu=~"$gpu"',
    "link": 'cluster=~"$cluster", job=~"$job", instance=~"$instance", gpu=~"$gpu", link=~"$link"',
    "job": 'cluster=~"$cluster", job=~"$job"',
    # Of alerts that are about no node, or not even about a cluster, too.
    "alerts": 'alertname=~"Commwatch.+", cluster=~"$cluster|", job=~"$job|", instance=~"$instance|"',
    "node_alerts": 'alertname=~"Commwatch.+", cluster=~"$cluster", job=~"$job", instance=~"$instance"',
}
_MATCHERS_OF_ONE_NODE = {
    name: text.replace('instance=~"$instance"', 'instance="$instance"')
    for name, text in {**_MATCHERS, "alerts": _MATCHERS["node_alerts"]}.items()
}
_PLACEHOLDER = re.compile(r"@([a-z_]+)(?::(duration|percent))?@")
_STRING = re.compile(r'"[^"]*"')
_READ = re.compile(r"(?:\w+:)?(?:commwatch|process)_\w+(?::\w+)?|\bALERTS\b|\bup\b")


class Renderer:
    """Fills in thresholds and addresses.

    Args:
        of_one_node: a single node is chosen. Grafana inserts such a value unescaped: behind ``=~`` the brackets of an
            IPv6 address would be a regular expression.
    """

    def __init__(self, thresholds: Thresholds, site: Site, *, of_one_node: bool = False) -> None:
        self._numbers: Mapping[str, float] = asdict(thresholds)
        self._site = site
        self._matchers = _MATCHERS_OF_ONE_NODE if of_one_node else _MATCHERS

    def dashboard(self, one: Dashboard) -> Json:
        """The JSON model of a dashboard.

        Raises:
            KeyError: a panel names a threshold or a placeholder that does not exist.
        """
        runbooks = self._site.runbooks
        return {
            "uid": one.uid,
            "title": one.title,
            "description": one.description,
            "tags": [TAG],
            "id": None,
            "version": 1,
            "schemaVersion": SCHEMA,
            "editable": False,
            "graphTooltip": 1,
            "fiscalYearStartMonth": 0,
            "liveNow": False,
            "refresh": "30s",
            "timezone": "",
            "weekStart": "",
            "time": {"from": one.time_from, "to": "now"},
            "timepicker": {},
            "annotations": {"list": self._annotations(one)},
            "templating": {"list": [data_source(), *(self._variable(variable) for variable in one.variables)]},
            # The shipped place holds the pages, and no list of them.
            "links": [*page_links(one.uid), *([runbooks_link(runbooks)] if runbooks != Site().runbooks else [])],
            "panels": self._panels(one),
        }

    # --- text ---

    def expression(self, text: str) -> str:
        """A query, or words, with the placeholders filled; on one line."""

        def fill(match: re.Match[str]) -> str:
            name, form = match[1], match[2]
            if form == "duration":
                return format_duration(self._numbers[name])
            if form == "percent":
                return f"{100 * self._numbers[name]:g} %"
            return self._matchers.get(name) or f"{self._numbers[name]:g}"

        return _PLACEHOLDER.sub(fill, " ".join(text.split()))

    def limit(self, limit: str | float, scale: Scale | None = None) -> float:
        """A limit of a scale as the number from which on its colour holds."""
        number = self._numbers[limit] if isinstance(limit, str) else limit
        return number + 1 if scale is not None and scale.whole_above else number

    # --- around the panels ---

    def _annotations(self, one: Dashboard) -> list[Json]:
        tags = "severity,simulated"
        if not one.annotated_node:
            return [self._annotation("Pages", "red", PAGE_BEGAN, "{{alertname}}", "{{job}} {{cluster}}", tags)]
        words = "GPU {{gpu}} ({{pci_bus_id}})"
        return [
            self._annotation("Alerts", "red", ALERT_BEGAN, "{{alertname}}", "{{instance}}", tags),
            self._annotation("Xids", "purple", XID_COUNTED, "Xid {{xid}}", words, "gpu"),
        ]

    def _annotation(self, name: str, colour: str, text: str, title: str, words: str, tags: str) -> Json:
        expression = self.expression(text)
        return {
            "name": name,
            "datasource": _SOURCE,
            "enable": True,
            "hide": False,
            "iconColor": colour,
            # Grafana 10 reads the first two, later versions the target.
            "expr": expression,
            "step": "60s",
            "target": {"refId": "Anno", "expr": expression, "interval": "60s"},
            "titleFormat": title,
            "textFormat": words,
            "tagKeys": tags,
        }

    def _variable(self, variable: Variable) -> Json:
        query = f"label_values({self.expression(variable.values)})"
        several: Json = {}
        if variable.all_values:
            several = {"allValue": variable.all_values, "current": {"text": ["All"], "value": ["$__all"]}}
        return {
            "type": "query",
            "name": variable.name,
            "label": variable.label,
            "datasource": _SOURCE,
            "definition": query,
            "query": {"query": query, "refId": f"Variable-{variable.name}"},
            "refresh": 2,
            "regex": "",
            "sort": _NUMERICAL if variable.name in {"gpu", "link"} else _ALPHABETICAL,
            "multi": bool(several),
            "includeAll": bool(several),
            **several,
            "options": [],
            "hide": 0,
            "skipUrlSync": False,
        }

    def _panels(self, one: Dashboard) -> list[Json]:
        panels: list[Json] = []
        top, number = 0, 1
        for row in one.rows:
            positions, height = places(row.panels, top + 1)
            inside = [
                {"id": number + count, **self._panel(panel), "gridPos": place}
                for count, (panel, place) in enumerate(zip(row.panels, positions, strict=True), start=1)
            ]
            heading = {
                "id": number, "type": "row", "title": row.title, "collapsed": row.collapsed,
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}, "panels": inside if row.collapsed else [],
            }  # fmt: skip
            panels += [heading, *([] if row.collapsed else inside)]
            number += 1 + len(inside)
            top += 1 + height
        return panels

    # --- panels ---

    def _panel(self, panel: Panel) -> Json:
        made, targets = kind_of(panel), self._targets(panel)
        in_cells = isinstance(panel, Table | Matrix)
        defaults = {
            "unit": TEXT_UNIT if in_cells else panel.unit,
            "noValue": self.expression(panel.no_data),
            "color": {"mode": _colour_mode(panel)},
            "thresholds": self._thresholds(panel.scale),
            "mappings": mappings(panel.names),
            "custom": made.pop("custom", {}),
        }
        if isinstance(panel, Stat):
            defaults["mappings"] += [of_none(defaults["noValue"], "text")]
        limits = {"min": panel.minimum, "max": panel.maximum}
        defaults |= {name: limit for name, limit in limits.items() if limit is not None}
        if isinstance(panel, Series) and panel.scale is not None:
            defaults["custom"]["thresholdsStyle"] = {"mode": "dashed"}
        return {
            "title": panel.title,
            "description": f"{self.expression(panel.description)}\n\nReads {', '.join(_metrics(targets))}.",
            "datasource": _SOURCE,
            "fieldConfig": {"defaults": defaults, "overrides": self._overrides(panel)},
            "targets": targets,
            "links": [self._runbook(alert) for alert in panel.runbooks],
            **made,
        }

    def _targets(self, panel: Panel) -> list[Json]:
        if isinstance(panel, Table):
            queries, form = [Query(column.expression, due=column.due) for column in panel.columns], "table"
        else:
            queries = list(panel.queries)
            form = {Matrix: "table", Heat: "heatmap"}.get(type(panel), "time_series")
        now = isinstance(panel, Table | Matrix | Stat)
        return [
            {
                "refId": reference(place),
                "datasource": _SOURCE,
                "editorMode": "code",
                "expr": self.expression(query.expression),
                "legendFormat": query.legend or "__auto",
                "format": form,
                "instant": now,
                "range": not now,
            }
            for place, query in enumerate(queries)
        ]

    def _overrides(self, panel: Panel) -> list[Json]:
        if isinstance(panel, Matrix):
            return [*EMPTY_CELLS, matrix_cells(panel.unit)]
        if isinstance(panel, Stat):
            of_simulated: Json = {"id": "color", "value": {"mode": "fixed", "fixedColor": "purple"}}
            return [override("simulated", [of_simulated]) for one in panel.queries if one.legend == "simulated"]
        if not isinstance(panel, Table):
            return []
        columns = [self._column(column) for column in panel.columns if column.title]
        return [*EMPTY_CELLS, *columns, *self._labels(panel)]

    def _labels(self, table: Table) -> list[Json]:
        made: list[Json] = []
        for label in table.labels:
            properties: list[Json] = []
            if label in table.links:
                properties.append({"id": "links", "value": [cell_link(table.links[label], self._site.runbooks)]})
            if label in table.label_names:
                properties.append({"id": "mappings", "value": mappings(table.label_names[label])})
            if label in table.wrapped:
                # The first for Grafana 12 and before.
                properties.append({"id": "custom.cellOptions", "value": {"type": "auto", "wrapText": True}})
                properties.append({"id": "custom.wrapText", "value": True})
            elif label in table.label_names:
                properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
            if label in WIDTHS:
                properties.append({"id": "custom.width", "value": WIDTHS[label]})
            if label in table.order and label in NUMBERS:
                properties.append({"id": "custom.align", "value": "left"})
            made += [override(label, properties)] if properties else []
        return made

    def _column(self, column: Column) -> Json:
        properties: list[Json] = [{"id": "unit", "value": column.unit}]
        if column.names:
            properties.append({"id": "mappings", "value": mappings(column.names)})
        if column.scale is not None:
            properties.append({"id": "thresholds", "value": self._thresholds(column.scale)})
        if column.scale is not None or column.names:
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        if column.title in WIDTHS:
            properties.append({"id": "custom.width", "value": WIDTHS[column.title]})
            properties.append({"id": "custom.align", "value": "left"})
        return override(heading(column.title), properties)

    def _thresholds(self, scale: Scale | None) -> Json:
        scale = scale or Scale("text", ())
        steps: list[Json] = [{"color": scale.base, "value": None}]
        steps += [{"color": colour, "value": self.limit(limit, scale)} for limit, colour in scale.steps]
        return {"mode": "absolute", "steps": steps}

    def _runbook(self, alert: str) -> Json:
        return {"title": f"Runbook: {alert}", "url": f"{self._site.runbooks}/{alert}.md", "targetBlank": True}


def _metrics(targets: Sequence[Json]) -> list[str]:
    """The metrics that some queries read, each once; docs/reference/metrics.md has their origin."""
    text = " ".join(_STRING.sub("", target["expr"]) for target in targets)
    return list(dict.fromkeys(_READ.findall(text)))


def _colour_mode(panel: Panel) -> str:
    if isinstance(panel, Series):
        return "palette-classic"
    # A matrix without limits shows by its colours which cells stand out.
    return "continuous-blues" if isinstance(panel, Matrix) and panel.scale is None else "thresholds"
