"""The dashboards as files, from the panels and the thresholds."""

from __future__ import annotations

import json

from commwatch.config.thresholds import Thresholds
from commwatch.generate.alert_rules import Site
from commwatch.generate.dashboards import DASHBOARDS
from commwatch.generate.dashboards.grafana import Renderer
from commwatch.generate.dashboards.panels import INSTANCE


def files(thresholds: Thresholds, site: Site) -> dict[str, str]:
    """All dashboards by the name of their file."""
    models = {
        one.uid: Renderer(thresholds, site, of_one_node=INSTANCE in one.variables).dashboard(one) for one in DASHBOARDS
    }
    return {f"{uid}.json": json.dumps(model, indent=2, ensure_ascii=False) + "\n" for uid, model in models.items()}
