"""The promtool cases of the alerts with the ranges of Prometheus 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.config.assets import asset
from support.promtool_cases import judge_cases


@pytest.mark.prometheus
def test_each_alert_behaves_with_left_open_ranges(tmp_path: Path) -> None:
    """Each fires on its fault with its exact words, stays silent otherwise, and resolves."""
    cases = sorted(asset("alerts/tests").glob("*.yaml"))

    verdicts = judge_cases(cases, tmp_path, left_open_ranges=True)

    assert len(verdicts) == len(cases) > 0
    assert {name: said for name, said in verdicts.items() if said} == {}
