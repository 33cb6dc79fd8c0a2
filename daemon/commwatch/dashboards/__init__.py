"""The Grafana dashboards: what stands on each, and how it becomes JSON. Nothing of it is imported by the daemon."""

from __future__ import annotations

from commwatch.dashboards.fleet import FLEET
from commwatch.dashboards.link import LINK
from commwatch.dashboards.node import NODE
from commwatch.dashboards.pairs import PAIRS

DASHBOARDS = (FLEET, NODE, PAIRS, LINK)
