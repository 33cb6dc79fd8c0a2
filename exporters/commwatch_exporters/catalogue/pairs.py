"""Metrics of the pair matrix and of what its slow cells have in common."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, gauge

_PAIR = "src dst backend"
"""Source and destination by NVML index, or by rank where there are no GPUs."""

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("pair_latency_seconds", _PAIR, "Half of a round trip of a small message, on the clock of the source.",
          "commwatch probe pairs, last result", "seconds"),
    gauge("pair_bandwidth_bytes_per_second", _PAIR, "What one GPU sent to another while nothing flowed back.",
          "commwatch probe pairs, last result: bytes over the time of a call where they arrive", "bytes_per_second"),
    gauge("pair_both_ways_bandwidth_bytes_per_second", _PAIR,
          "What one GPU sent to another while as much flowed back; one direction.",
          "commwatch probe pairs, last result", "bytes_per_second"),
    gauge("pair_expected_bandwidth_bytes_per_second", _PAIR, "What the way between the two should give, one direction.",
          "configuration, or NCCL's planning rates of the links on the way", "bytes_per_second"),
    gauge("suspect_ratio", "kind element",
          "How sure it is that this part makes pairs slow, 0 to 1; only while three pair matrices in a row show it.",
          "slow cells of the pair matrix and the topology"),
)
