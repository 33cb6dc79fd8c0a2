"""The Grafana dashboards: what stands on each, and how it becomes JSON. Nothing of it is imported by the daemon."""

from __future__ import annotations

from commwatch.generate.dashboards.fleet import FLEET
from commwatch.generate.dashboards.link import LINK
from commwatch.generate.dashboards.node import NODE
from commwatch.generate.dashboards.pairs import PAIRS

DASHBOARDS = (FLEET, NODE, PAIRS, LINK)
