"""The short form in which the cases of alerts are written, as promtool gets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.promtool_cases import document

FILE = """\
every: 1m
alert: {severity: warning, class: B}
summary: Link $link is slow.
labels:
  'gpu="3", link="11"': [x]
every_node: {commwatch_simulated: 0x20}
nodes:
  a: {x: 1x20}
  b: {commwatch_simulated: 1x20, 'x{link="7"}': 2x20}
cases:
  fires:
    nodes:
      a: {x: 3x20}
      '': {y: 1, commwatch_simulated: none}
    firing: {5m: [a, a, b], 9m: 2}
    silent: [1m]
    words:
      5m:
        'instance="a", link="11"': Node a is slow.
      6m:
        'instance="a", link="several"': [Links are slow., Node a is slow.]
  silent when alone:
    scraped_every: 15s
    every_node: {x: none}
    nodes:
      b: none
    firing: {5m: 0}
    checks:
      - {eval_time: 5m, expr: count(x), exp_samples: [{labels: '{}', value: 1}]}
"""


def written(tmp_path: Path, text: str) -> Path:
    """A file of the alert X."""
    file = tmp_path / "X.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_case_is_written_out(tmp_path: Path) -> None:
    """Labels, series of every node and series of a case come together; each answer has all that promtool compares."""
    fires, alone = document(written(tmp_path, FILE))["tests"]

    assert (fires["name"], fires["interval"]) == ("X: fires", "1m")
    assert {one["series"]: one["values"] for one in fires["input_series"]} == {
        'commwatch_simulated{job="commwatch", instance="a"}': "0x20",
        'x{job="commwatch", instance="a", gpu="3", link="11"}': "3x20",
        'commwatch_simulated{job="commwatch", instance="b"}': "1x20",
        'x{job="commwatch", instance="b", gpu="3", link="7"}': "2x20",
        'y{job="commwatch"}': "1",
    }
    labels = {"job": "commwatch", "fault": "X", "severity": "warning", "class": "B", "instance": "a", "link": "11"}
    annotations = {
        "summary": "Link 11 is slow.",
        "description": "Node a is slow.",
        "runbook_url": "http://a:28029/runbooks/X.md",
        "dashboard_url": "http://localhost:3000/d/commwatch-node?var-job=commwatch&var-instance=a",
    }
    expected = [{"exp_labels": labels, "exp_annotations": annotations}]
    own = annotations | {"summary": "Links are slow."}
    with_own_summary = [{"exp_labels": labels | {"link": "several"}, "exp_annotations": own}]
    assert fires["alert_rule_test"] == [
        {"eval_time": "1m", "alertname": "X", "exp_alerts": []},
        {"eval_time": "5m", "alertname": "X", "exp_alerts": expected},
        {"eval_time": "6m", "alertname": "X", "exp_alerts": with_own_summary},
    ]
    alerts = '(ALERTS{alertname="X", alertstate="firing"})'
    by_node = [
        {"labels": '{instance="a"}', "value": 2},
        {"labels": '{instance="b", simulated="true"}', "value": 1},
    ]
    assert fires["promql_expr_test"] == [
        {"eval_time": "5m", "expr": f"count by (instance, simulated) {alerts}", "exp_samples": by_node},
        {"eval_time": "9m", "expr": f"count{alerts}", "exp_samples": [{"labels": "{}", "value": 2}]},
    ]
    assert alone == {
        "name": "X: silent when alone",
        "interval": "15s",
        "input_series": [{"series": 'commwatch_simulated{job="commwatch", instance="a"}', "values": "0x20"}],
        "promql_expr_test": [
            {"eval_time": "5m", "expr": f"count{alerts}", "exp_samples": []},
            {"eval_time": "5m", "expr": "count(x)", "exp_samples": [{"labels": "{}", "value": 1}]},
        ],
    }


def test_a_file_without_cases_is_one_case(tmp_path: Path) -> None:
    """It has the name of the alert."""
    (test,) = document(written(tmp_path, "nodes:\n  a: {x: 0x20}\nsilent: [1m]\n"))["tests"]

    assert (test["name"], test["interval"]) == ("X", "15s")
    assert '"values": "0x20"' in json.dumps(test)


@pytest.mark.parametrize("text", ["silnet: [1m]\n", "cases:\n  fires:\n    silnet: [1m]\n"])
def test_a_key_that_does_not_exist_is_refused(tmp_path: Path, text: str) -> None:
    """Else a check with a typing error would never be made."""
    with pytest.raises(ValueError, match=r"X\.yaml: unknown: silnet"):
        document(written(tmp_path, text))
