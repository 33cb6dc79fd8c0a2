"""Metrics of the evaluation of the other metrics: open findings, the evaluation itself, and the score."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge

ROWS: tuple[Metric, ...] = (
    gauge("finding", "code component", "1 while the finding is open; a fault that explains another is its cause.",
          "docs/reference/findings"),
    gauge("findings_left_out", "", "Open findings not in commwatch_finding, the least severe.",
          "docs/reference/findings"),
    counter("finding_rule_errors_total", "rule", "Failed runs of a rule.", "daemon"),
    gauge("communication_score_ratio", "", "How well the GPUs communicate, 0 to 1; absent without probes.",
          "weighted mean of its components, docs/using/score.md", "ratio"),
    gauge("communication_score_component_ratio", "component",
          "Parts of the score, 0 to 1: bandwidth, latency, balance, stability.", "docs/using/score.md", "ratio"),
)
