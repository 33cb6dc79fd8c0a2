"""The rule of docs/textfile.md, played by promtool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/textfile.md"
MTIME = 'node_textfile_mtime_seconds{{job="commwatch", instance="{0}", file="/x/commwatch.prom"}}'
SERIES = {
    "fresh": [(MTIME, "0+60x20")],
    "killed": [(MTIME, "0+60x5 300x15")],
    "stopped": [(MTIME, "0+60x5 _x15")],
    "other": [('node_textfile_mtime_seconds{{job="commwatch", instance="{0}", file="/x/else.prom"}}', "0+60x20")],
}
"""A node in each situation: values once a minute, nothing more from minute 5 on."""


@pytest.mark.prometheus
def test_the_rule_of_the_page_fires_where_the_file_is_old_or_missing(tmp_path: Path) -> None:
    """Silent while it is written, and where node_exporter itself is down; one alert for each node."""
    rule = re.search(r"```yaml\n(groups:\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert rule is not None
    (tmp_path / "rule.yml").write_text(rule[1])
    series = [
        {"series": name.format(node), "values": values} for node, found in SERIES.items() for name, values in found
    ]
    series += [{"series": f'up{{job="commwatch", instance="{node}"}}', "values": "1x20"} for node in SERIES]
    series += [{"series": 'up{job="commwatch", instance="down"}', "values": "0x20"}]
    test = {
        "rule_files": ["rule.yml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [_expect("4m", "other"), _expect("15m", "killed", "other", "stopped")],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(test))

    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def _expect(when: str, *nodes: str) -> dict[str, Any]:
    told = 'alertname="CommwatchTextfileStale", alertstate="firing", job="commwatch", severity="warning"'
    samples = [{"labels": f'ALERTS{{{told}, instance="{node}"}}', "value": 1} for node in nodes]
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": when, "exp_samples": samples}
