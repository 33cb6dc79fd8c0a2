"""The JSON of each kind of panel, of its parts, and of the frame around the panels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from commwatch.generate.dashboards.panels import (
    NUMBERS,
    Heat,
    LabelNames,
    Matrix,
    Names,
    Panel,
    Series,
    Stat,
    States,
    Table,
    heading,
)

Json: TypeAlias = dict[str, Any]

WIDTH = 24
"""Columns of a dashboard."""

TEXT_UNIT = "string"
"""Of tables, whose columns of numbers have units of their own.

With any other unit Grafana reads a label such as ``7`` or ``2.20`` as a number and writes ``700 %`` or ``2.2``.
"""

EMPTY_CELLS = tuple(
    {"matcher": {"id": "byType", "options": kind}, "properties": [{"id": "noValue", "value": "–"}]}
    for kind in ("number", "string")
)
"""Else each empty cell of a table, also of a label, would show the requirement of the whole table."""


def of_none(text: str, colour: str) -> Json:
    """Text and colour of no number; else it would have the colour of the lowest one."""
    return {"type": "special", "options": {"match": "null", "result": {"text": text, "color": colour, "index": 0}}}


_NO_PAIR = of_none("–", "transparent")

_FLEET = "commwatch-fleet"
_PAGES = {_FLEET: "Fleet", "commwatch-node": "Node", "commwatch-pairs": "Pairs", "commwatch-link": "Links",
          "commwatch-network": "Network", "commwatch-jobs": "Probes and jobs"}  # fmt: skip
_DATA_SOURCE = {"text": "Prometheus (commwatch)", "value": "commwatch"}
"""That of grafana/provisioning/; where there is none of this uid, Grafana takes another."""
_BEGAN = "group by (%s) (ALERTS{%s} unless ALERTS{%s} offset $__interval)"
"""1 in the step in which an alert began to fire.

While it fires no mark is made: Grafana would shade all that time, and a few alerts together would cover the panels.
"""
_PAGES_FIRING = '@alerts@, alertstate="firing", severity="critical"'
_FIRING = '@node_alerts@, alertstate="firing", severity=~"critical|warning"'
PAGE_BEGAN = _BEGAN % ("cluster, job, alertname, severity, simulated", _PAGES_FIRING, _PAGES_FIRING)
"""Of a fleet: by alert, not by node and part, of which there can be thousands."""
ALERT_BEGAN = _BEGAN % ("instance, alertname, severity, simulated", _FIRING, _FIRING)
"""Of a node: by alert, not by part."""
XID_COUNTED = (
    "clamp_max("
    "(commwatch_gpu_xid_events_total{@node@} > 0)"
    " unless (commwatch_gpu_xid_events_total{@node@} == commwatch_gpu_xid_events_total{@node@} offset $__interval)"
    " and on (cluster, job, instance) (commwatch_simulated{@node@} offset $__interval), 1)"
)
"""1 in the step in which an Xid was counted, also the first of its code, of a node that was seen before.

A step is a minute, or more where a long time is shown.
"""


def kind_of(panel: Panel) -> Json:
    """The JSON that depends on a panel's kind: ``type``, ``options``, ``custom`` of its fields, ``transformations``.

    Raises:
        TypeError: there is no such kind.
    """
    match panel:
        case Stat():
            return _stat(panel)
        case Series():
            return _series(panel)
        case States():
            return _states(panel)
        case Heat():
            return _heat(panel)
        case Table():
            return _table(panel)
        case Matrix():
            return _matrix(panel)
    raise TypeError(f"{type(panel).__name__} is no kind of panel that can be written")


def _stat(panel: Stat) -> Json:
    several = len(panel.queries) > 1 or bool(panel.queries[0].legend)
    mode = "name" if panel.shows_legend else "value_and_name" if several else "value"
    return {
        "type": "stat",
        "options": {
            "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": mode,
        },
    }  # fmt: skip


def _series(panel: Series) -> Json:
    stacked = panel.stacked
    # Where all shares are 0, Grafana would draw the axis up to 10000 %.
    softly = {"axisSoftMax": 0.01} if panel.unit == "percentunit" else {}
    return {
        "type": "timeseries",
        "custom": {
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stacked else 0, "showPoints": "auto",
            # A gap is a gap: what was not read is not drawn.
            "spanNulls": False, **softly,
            "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }  # fmt: skip


def _states(panel: States) -> Json:
    return {
        "type": "state-timeline",
        "custom": {"fillOpacity": 70, "lineWidth": 0},
        "options": {
            "mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.9,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }  # fmt: skip


def _heat(panel: Heat) -> Json:
    return {
        "type": "heatmap",
        "options": {
            "calculate": False, "cellGap": 1, "rowsFrame": {"layout": "auto"}, "showValue": "never",
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
            "cellValues": {"unit": "none"}, "filterValues": {"le": 1e-9},
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
                      "scale": "exponential", "reverse": False},
            "legend": {"show": True}, "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "tooltip": {"mode": "single", "show": True, "yHistogram": False},
        },
    }  # fmt: skip


def _table(panel: Table) -> Json:
    values = {f"Value #{reference(place)}": column.title for place, column in enumerate(panel.columns)}
    # Grafana drops the letter where only one query had an answer.
    values["Value"] = panel.columns[0].title
    titles = {name: heading(title) for name, title in values.items() if title}
    hidden = {name: True for name in ("Time", *values) if name not in titles}
    first = [name for title in panel.first for name in titles if titles[name] == heading(title)]
    order = {name: place for place, name in enumerate(dict.fromkeys((*first, *panel.labels, *titles)))}
    # Not in all tables: no number would become 0.
    numbers = [name for name in panel.order if name in NUMBERS and name in panel.labels]
    as_numbers = [{"targetField": name, "destinationType": "number"} for name in numbers]
    return {
        "type": "table",
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False,
                   "minWidth": 70, "wrapHeaderText": True},
        "options": {
            "showHeader": True, "cellHeight": "lg" if panel.wrapped else "sm", "footer": {"show": False},
            "sortBy": [{"displayName": heading(name), "desc": way == "down"} for name, way in panel.order.items()],
        },
        "transformations": [
            {"id": "merge", "options": {}},
            *([{"id": "convertFieldType", "options": {"conversions": as_numbers, "fields": {}}}] if numbers else []),
            {"id": "organize", "options": {
                "renameByName": titles | {name: heading(name) for name in panel.labels},
                "indexByName": order, "excludeByName": hidden,
            }},
        ],
    }  # fmt: skip


def _matrix(panel: Matrix) -> Json:
    return {
        "type": "table",
        "custom": {"align": "center", "cellOptions": {"type": "auto"}, "inspect": False, "minWidth": 50},
        "options": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
        # Columns come in the order of their first line, and no GPU has a cell with itself.
        "transformations": [
            {"id": "sortBy", "options": {"sort": [{"field": "dst", "desc": False}]}},
            {"id": "groupingToMatrix",
             "options": {"rowField": "src", "columnField": "dst", "valueField": "Value", "emptyValue": "null"}},
            {"id": "sortBy", "options": {"sort": [{"field": "src\\dst", "desc": False}]}},
            {"id": "organize", "options": {"renameByName": {"src\\dst": "From \\ to"}}},
        ],
    }  # fmt: skip


def matrix_cells(unit: str) -> Json:
    """Overrides for the numbers of a matrix, which do not apply to the names of its lines."""
    background = {"type": "color-background", "mode": "basic"}
    return {
        "matcher": {"id": "byType", "options": "number"},
        "properties": [
            {"id": "unit", "value": unit},
            {"id": "mappings", "value": [_NO_PAIR]},
            {"id": "custom.cellOptions", "value": background},
        ],
    }


def places(panels: Iterable[Panel], top: int) -> tuple[list[Json], int]:
    """Position of each panel of a row, and the height of the row: from left to right, with a new line when one is
    full. The panels of a line share its width, and are as high as the highest: no hole is left."""
    lines: list[list[Panel]] = [[]]
    for panel in panels:
        if sum(one.width for one in lines[-1]) + panel.width > WIDTH:
            lines.append([])
        lines[-1].append(panel)
    boxes: list[Json] = []
    used = 0
    for line in lines:
        left, asked, height = 0, 0, max(panel.height for panel in line)
        for panel in line:
            asked += panel.width
            right = round(WIDTH * asked / sum(one.width for one in line))
            boxes.append({"x": left, "y": top + used, "w": right - left, "h": height})
            left = right
        used += height
    return boxes, used


def reference(place: int) -> str:
    """The letter of a query."""
    return chr(ord("A") + place)


def mappings(names: Names | LabelNames) -> list[Json]:
    """Words and colours in place of numbers or of values of a label."""
    if not names:
        return []
    options = {
        value if isinstance(value, str) else f"{value:g}": {"text": text, "color": colour, "index": place}
        for place, (value, (text, colour)) in enumerate(names.items())
    }
    return [{"type": "value", "options": options}]


def override(field: str, properties: Sequence[Json]) -> Json:
    return {"matcher": {"id": "byName", "options": field}, "properties": list(properties)}


def cell_link(target: str, runbooks: str) -> Json:
    """Where a click on a cell leads: to a runbook, or to another dashboard."""
    if target.startswith("@runbooks@"):
        return {"title": "Runbook", "url": target.replace("@runbooks@", runbooks), "targetBlank": True}
    return {"title": "Show ${__value.text}", "url": target, "targetBlank": False}


def data_source() -> Json:
    """The variable that chooses the Prometheus."""
    return {
        "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus",
        "current": _DATA_SOURCE, "refresh": 1, "regex": "", "hide": 0, "includeAll": False, "multi": False,
        "options": [], "skipUrlSync": False,
    }  # fmt: skip


def shared(model: Json) -> Json:
    """A dashboard in Grafana's form for sharing: with what it asks for, and with the plugins that it needs."""
    (source, *_) = model["templating"]["list"]
    source["current"] = {"text": "${DS_PROMETHEUS}", "value": "${DS_PROMETHEUS}"}
    prometheus = {"type": "datasource", "name": "Prometheus", "id": "prometheus", "version": "1.0.0"}
    panels = [inner for panel in model["panels"] for inner in (panel, *panel.get("panels", ()))]
    kinds = sorted({panel["type"] for panel in panels} - {"row"})
    return {
        "__inputs": [{
            "name": "DS_PROMETHEUS", "label": "Prometheus", "description": "It scrapes commwatch.",
            "type": "datasource", "pluginId": "prometheus", "pluginName": "Prometheus",
        }],
        "__elements": {},
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
            prometheus,
            *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in kinds),
        ],
        **model,
    }  # fmt: skip


def page_links(uid: str) -> list[Json]:
    """Links to the other pages, with the time and the variables that both have.

    The fleet takes no node with it, else it would show that one alone; and it passes on none, since All is no node.
    """
    return [_page_link(uid, other, title) for other, title in _PAGES.items() if other != uid]


def _page_link(uid: str, other: str, title: str) -> Json:
    kept = ["datasource", "cluster", "job", *(() if _FLEET in {uid, other} else ("instance",))]
    asked = "&".join(f"${{{name}:queryparam}}" for name in kept)
    return _link(title, f"/d/{other}?{asked}", icon="dashboard") | {"keepTime": True}


def runbooks_link(runbooks: str) -> Json:
    return _link("Runbooks", runbooks, icon="doc") | {"targetBlank": True, "tooltip": "One page for each alert"}


def _link(title: str, url: str, icon: str) -> Json:
    return {
        "type": "link", "title": title, "url": url, "icon": icon, "tooltip": "", "tags": [], "asDropdown": False,
        "includeVars": False, "keepTime": False, "targetBlank": False,
    }  # fmt: skip
