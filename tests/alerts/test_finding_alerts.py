"""Findings and alerts agree: each grave finding has an alert of its severity, made from the same numbers and lists."""

from __future__ import annotations

import re

from commwatch.config.assets import asset
from commwatch.findings.codes import CODES
from commwatch.jobs.logs.categories import SIDES
from support.facts import events_told
from support.passes import in_one_pass
from support.promtool_cases import alerts_of, shipped_groups

ALERTS = alerts_of(shipped_groups())

OTHER_SEVERITY: dict[str, str] = {}
"""Finding codes whose alert has another severity, each with the reason."""

OF_NO_FINDING = {
    "CommwatchNvlinkUtilizationLow": "low use is no fault; the finding nvlink_below_siblings compares links",
    "CommwatchPcieUtilizationLow": "low use is no fault",
    "CommwatchNvlinkRecoveriesRising": "the daemon looks back a day, this over three",
    "CommwatchPortAtLimit": "full use is no fault",
    "CommwatchScoreLow": "the score is no finding, it is made of what findings tell",
    "CommwatchDaemonDown": "a daemon that is down tells nothing",
    "CommwatchTextfileStale": "where the file is not written, the daemon tells nothing",
    "CommwatchMaintenanceLong": "maintenance is no fault of the node",
}
"""Alerts of a single node that no finding names, each with the reason."""


@in_one_pass("name", [name for name, code in CODES.items() if code.severity != "info"])
def test_a_grave_finding_has_its_alert(name: str) -> None:
    """Each code of severity critical or warning names an alert of that severity."""
    code = CODES[name]

    assert code.alert in ALERTS
    same = ALERTS[code.alert]["labels"]["severity"] == code.severity
    assert same != (name in OTHER_SEVERITY)


def test_findings_name_alerts_that_exist() -> None:
    """Codes of severity info need no alert; one that they name is of severity info."""
    named = {code.name: code.alert for code in CODES.values() if code.severity == "info" and code.alert}

    assert named
    assert {name: ALERTS[alert]["labels"]["severity"] for name, alert in named.items()} == dict.fromkeys(named, "info")


def test_an_alert_without_a_finding_has_a_reason() -> None:
    """Each alert about a part of a node is named by a finding, or it is known why not."""
    of_a_node = {name for name, rule in ALERTS.items() if "Node {{ $labels.instance }}" in _description(rule)}
    unnamed = {name for name in of_a_node - {code.alert for code in CODES.values()} if not _is_of_the_fleet(name)}

    assert unnamed == set(OF_NO_FINDING)


def _description(rule: dict[str, dict[str, str]]) -> str:
    return rule["annotations"]["description"]


def _is_of_the_fleet(name: str) -> bool:
    text = asset("alerts/rules/fleet.yaml").read_text(encoding="utf-8")
    return f"alert: {name}\n" in text


@in_one_pass(
    "alert, codes",
    [
        ("CommwatchXidFabric", ["xid_fabric", "xid_nonfatal"]),
        ("CommwatchXidNonfatal", ["xid_fabric", "xid_gpu", "xid_nonfatal"]),
        ("CommwatchXidGpu", ["xid_gpu"]),
        ("CommwatchSxidFatal", ["sxid_fatal"]),
        ("CommwatchSxidWarning", ["sxid_fatal", "sxid_warning"]),
    ],
)
def test_alerts_look_for_the_events_that_findings_look_for(alert: str, codes: list[str]) -> None:
    """The numbers in an expression are those of the findings' rules, all of them and no other."""
    assert _labels_of(alert, "s?xid") == {number for code in codes for number in events_told(code)}


def test_the_alert_of_a_job_looks_for_the_categories_that_are_no_fault_of_it() -> None:
    assert _labels_of("CommwatchNcclErrors", "category") == {
        one for one, side in SIDES.items() if side in ("network", "nvlink", "gpu", "host")
    }


def _labels_of(alert: str, label: str) -> set[str]:
    """The values that an expression names of a label."""
    lists = re.findall(rf'\b{label}=~"([^"]+)"', ALERTS[alert]["expr"])
    return {value for text in lists for value in text.split("|")}
