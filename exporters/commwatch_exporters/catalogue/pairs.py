"""Metrics of the pair matrix and of what its slow cells have in common."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, gauge

_PAIR = "src dst backend"
"""Source and destination by NVML index, or by rank where there are no GPUs."""

ROWS: tuple[Metric, ...] = (
    gauge("pair_latency_seconds", _PAIR, "Half a round trip of a small message, by the source's clock.",
          "last pair matrix", "seconds"),
    gauge("pair_bandwidth_bytes_per_second", _PAIR, "Bandwidth from one GPU to another, nothing flowing back.",
          "last pair matrix: bytes over time at the receiver", "bytes_per_second"),
    gauge("pair_both_ways_bandwidth_bytes_per_second", _PAIR,
          "Bandwidth from one GPU to another while as much flows back.", "last pair matrix", "bytes_per_second"),
    gauge("pair_expected_bandwidth_bytes_per_second", _PAIR, "Expected bandwidth of the path, one direction.",
          "configuration, or NCCL's planning rates of the links", "bytes_per_second"),
    gauge("pair_bandwidth_ratio", "element",
          "Bandwidth of the pair's slower direction over the expected one; not of gloo.", "last pair matrix", "ratio"),
    gauge("suspect_ratio", "kind element",
          "Confidence that this part slows pairs, 0 to 1; after three matrices in a row.", "slow cells and topology"),
)
