"""The Grafana dashboards: the content of each, and their files. The daemon imports nothing of it."""

from __future__ import annotations

import json
from typing import Any

from commwatch.config.thresholds import Thresholds
from commwatch.generate.alert_rules import Site
from commwatch.generate.dashboards.fleet import FLEET
from commwatch.generate.dashboards.grafana import Renderer
from commwatch.generate.dashboards.link import LINK
from commwatch.generate.dashboards.node import JOBS, NETWORK, NODE
from commwatch.generate.dashboards.pairs import PAIRS
from commwatch.generate.dashboards.panel_json import Json, shared
from commwatch.generate.dashboards.panels import INSTANCE

DASHBOARDS = (FLEET, NODE, PAIRS, LINK, NETWORK, JOBS)


def files(thresholds: Thresholds, site: Site, *, share: bool = False) -> dict[str, str]:
    """All dashboards by the name of their file.

    Args:
        site: where the runbooks are.
        share: in the form in which Grafana exports dashboards for others: its import asks for the data source.
    """
    models = {
        one.uid: Renderer(thresholds, site, of_one_node=INSTANCE in one.variables).dashboard(one) for one in DASHBOARDS
    }
    made = {uid: shared(model) if share else model for uid, model in models.items()}
    return {f"{uid}.json": _one_panel_a_line(model) for uid, model in made.items()}


def _one_panel_a_line(model: Json) -> str:
    """JSON with a line for each key of the dashboard, each panel, and each panel of a collapsed row."""
    lines = [f"{_json(key)}: {_json(value)}" for key, value in model.items() if key != "panels"]
    panels = ",\n".join(_row(panel) if panel.get("panels") else _json(panel) for panel in model["panels"])
    return ",\n".join(("{" + lines[0], *lines[1:], f'"panels": [\n{panels}\n]}}\n'))


def _row(row: Json) -> str:
    heading = _json({key: value for key, value in row.items() if key != "panels"})
    panels = ",\n".join(map(_json, row["panels"]))
    return f'{heading[:-1]}, "panels": [\n{panels}\n]}}'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
