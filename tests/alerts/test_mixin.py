"""The jsonnet mixin has the shipped rules and dashboards, all of them, unchanged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import _jsonnet

from commwatch.config.assets import asset
from support.dashboards import models
from support.promtool_cases import shipped_groups

MIXIN = asset("alerts").parent / "mixin.libsonnet"


def test_the_mixin_has_what_is_shipped() -> None:
    """Each group of rules once, in the field for alerts where it has an alert, and each dashboard by its file."""
    rendered = _rendered()
    alerts, recorded = rendered["alerts"]["groups"], rendered["rules"]["groups"]

    assert _by_name([*alerts, *recorded]) == _by_name(shipped_groups())
    assert all(any("alert" in rule for rule in group["rules"]) for group in alerts)
    assert all("record" in rule for group in recorded for rule in group["rules"])
    assert rendered["dashboards"] == {f"{uid}.json": model for uid, model in models().items()}


def _rendered() -> Any:
    """Its hidden fields, as a user of the mixin renders them."""
    text = (
        f"local mixin = import '{MIXIN}';"
        "{alerts: mixin.prometheusAlerts, rules: mixin.prometheusRules, dashboards: mixin.grafanaDashboards}"
    )
    return json.loads(_jsonnet.evaluate_snippet("user.jsonnet", text))


def _by_name(groups: Sequence[Any]) -> dict[str, Any]:
    by_name = {group["name"]: group for group in groups}
    assert len(by_name) == len(groups)
    return by_name
