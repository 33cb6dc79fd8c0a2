"""What stands around the panels of a dashboard: marks on the time axis, the data source, links to the other pages."""

from __future__ import annotations

from commwatch.generate.dashboards.panel_json import Json

_FLEET = "commwatch-fleet"
_PAGES = {_FLEET: "Fleet", "commwatch-node": "Node", "commwatch-pairs": "Pairs", "commwatch-link": "Links"}
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


def data_source() -> Json:
    """The variable that chooses the Prometheus."""
    return {
        "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus",
        "current": _DATA_SOURCE, "refresh": 1, "regex": "", "hide": 0, "includeAll": False, "multi": False,
        "options": [], "skipUrlSync": False,
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
    """The link to the runbooks."""
    return _link("Runbooks", runbooks, icon="doc") | {"targetBlank": True, "tooltip": "One page for each alert"}


def _link(title: str, url: str, icon: str) -> Json:
    return {
        "type": "link", "title": title, "url": url, "icon": icon, "tooltip": "", "tags": [], "asDropdown": False,
        "includeVars": False, "keepTime": False, "targetBlank": False,
    }  # fmt: skip
