"""Metrics of what commwatch makes of the other metrics: open findings, how it went to look for them, and the score."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("finding", "code component",
          "1 while the finding is open; a fault that explains another finding stands at that one, as its cause.",
          "rules over the metrics of this page, docs/findings"),
    gauge("findings_left_out", "", "Open findings beyond those that commwatch_finding names, the least severe.",
          "rules over the metrics of this page, docs/findings"),
    counter("finding_rule_errors_total", "rule", "Looks of a rule that failed: what it sights is not known.",
            "the daemon's own record"),
    gauge("communication_score_ratio", "",
          "How well the GPUs of this node communicate, 0 to 1; absent where no probe has measured it.",
          "weighted mean of communication_score_component_ratio, docs/score.md", "ratio"),
    gauge("communication_score_component_ratio", "component",
          "The parts of the score, 0 to 1: bandwidth, latency, balance, stability; absent where not measured.",
          "docs/score.md", "ratio"),
)
