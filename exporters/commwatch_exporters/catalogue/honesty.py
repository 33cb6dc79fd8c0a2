"""Metrics about the metrics: which counters exist, which numbers are unreliable, which collectors are paused."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge

ROWS: tuple[Metric, ...] = (
    gauge("counters_state", "source counter", "Whether driver or kernel has the counter: 0 supported, 1 unsupported.",
          "probed once per driver"),
    gauge("counters_anomaly", "source device counter",
          "Unreliable counter: 2 blank, 3 stale, 4 saturated; otherwise absent.",
          "no number; standing still while its twin counts; at its maximum"),
    gauge("simulated", "", "1 on a simulated node, else 0.", "--simulate"),
    gauge("maintenance", "reason", "1 during maintenance; otherwise 0 with reason none.", "commwatch pause"),
    counter("counters_reset_total", "source device", "Times hardware counters restarted.", "counter lower than before"),
)
