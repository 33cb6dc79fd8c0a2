"""What the page says of itself: which counters exist, which numbers cannot be trusted, who rests."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("counters_state", "source counter",
          "Whether this driver or kernel has the counter: 0 supported, 1 unsupported.",
          "probed once per driver"),
    gauge("counters_anomaly", "source device counter",
          "A counter that cannot be trusted now: 2 blank, 3 stale, 4 saturated; no series while all is well.",
          "no number although supported; standing still while its twin counts; at the hardware counter's maximum"),
    gauge("simulated", "", "1 if the values of this page come from a simulated node, else 0.", "--simulate"),
    gauge("maintenance", "reason",
          "1 while the daemon is paused for maintenance; one series with reason none and 0 else.",
          "commwatch pause, or maintenance.json in the state directory"),
    counter("counters_reset_total", "source device", "Times hardware counters were seen to start again.",
            "a counter read lower than before"),
)
