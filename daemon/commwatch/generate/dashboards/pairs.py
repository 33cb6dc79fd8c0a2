"""The pairs of GPUs of one node: matrices of what was measured, what is slow, and what may be the cause."""

from __future__ import annotations

from commwatch.generate.dashboards.panels import (
    CLUSTER,
    INSTANCE,
    JOB,
    Column,
    Dashboard,
    Matrix,
    PanelRow,
    Query,
    Series,
    Stat,
    Table,
    Variable,
    high_is_bad,
    low_is_bad,
)
from commwatch.generate.dashboards.words import NEEDS_PAIRS, SIMULATED, STAT_DAEMON, STAT_PAIRS

_BACKEND = Variable("backend", "Backend", "commwatch_pair_bandwidth_bytes_per_second{@node@}, backend")
_SELECTED = '{@node@, backend=~"$backend"}'
_MEASURED = f"commwatch_pair_bandwidth_bytes_per_second{_SELECTED}"
_EXPECTED = f"commwatch_pair_expected_bandwidth_bytes_per_second{_SELECTED}"
_SHARE = f"{_MEASURED} / {_EXPECTED}"
_SLOW = low_is_bad("probe_bandwidth_utilization_low_ratio", "warning", "CommwatchPairSlow")

_NOW = PanelRow("Now", (
    Stat(title="Data", description="Whether the values on this page come from hardware or from a simulated node.",
         queries=(Query("commwatch_simulated{@node@}"),), names=SIMULATED, no_data=STAT_DAEMON, width=6),
    Stat(title="Slowest pair", description="Lowest share of what the way between two GPUs should give.",
         queries=(Query(f"min({_SHARE})"),), unit="percentunit", scale=_SLOW, no_data=STAT_PAIRS, width=6),
    Stat(title="Highest latency", description="Latency of the pair with the highest.",
         queries=(Query(f"max(commwatch_pair_latency_seconds{_SELECTED})"),), unit="s", no_data=STAT_PAIRS, width=6),
    Stat(title="Measured", description="When the pairs were measured last.",
         queries=(Query('1000 * max(commwatch_probe_last_completion_timestamp_seconds{@node@, probe="pairs"})'),),
         unit="dateTimeFromNow", no_data=STAT_PAIRS, width=6),
    Matrix(title="Share of what is expected",
           description="Bandwidth from the GPU of the line to that of the column, over what the way should give.",
           queries=(Query(f"max by (src, dst) ({_SHARE})"),), unit="percentunit", scale=_SLOW, no_data=NEEDS_PAIRS),
    Matrix(title="Bandwidth",
           description="Bandwidth from the GPU of the line to that of the column while nothing flowed back. Colours run"
                       " from 0 to the highest.",
           queries=(Query(f"max by (src, dst) ({_MEASURED})"),), unit="Bps", no_data=NEEDS_PAIRS),
    Matrix(title="Latency", description="Half of a round trip of a small message, on the clock of the GPU of the line.",
           queries=(Query(f"max by (src, dst) (commwatch_pair_latency_seconds{_SELECTED})"),), unit="s",
           no_data=NEEDS_PAIRS),
    Matrix(title="Bandwidth with traffic both ways",
           description="Bandwidth from the GPU of the line to that of the column while as much flowed back. Colours run"
                       " from 0 to the highest.",
           queries=(Query(f"max by (src, dst) (commwatch_pair_both_ways_bandwidth_bytes_per_second{_SELECTED})"),),
           unit="Bps", no_data=NEEDS_PAIRS),
))  # fmt: skip

_SLOWEST = PanelRow("Slow pairs and suspects", (
    Table(title="Slowest pairs", description="The pairs with the lowest share of what is expected.",
          labels=("src", "dst", "backend"),
          columns=(
              Column("share of expected", f"bottomk(12, max by (src, dst, backend) ({_SHARE}))", unit="percentunit",
                     scale=_SLOW),
          ),
          sort_by={"share of expected": "up"}, no_data=NEEDS_PAIRS, width=12),
    Table(title="Suspects", description="Parts that explain why pairs are slow, and how sure that is.",
          labels=("kind", "element"),
          columns=(Column("certainty", "max by (kind, element) (commwatch_suspect_ratio{@node@})", unit="percentunit",
                          due="with a fault",
                          scale=high_is_bad("suspect_confidence_min", "warning", "CommwatchPartSuspect")),),
          sort_by={"certainty": "down"}, alerts=("CommwatchPartSuspect",), width=12,
          no_data="None is suspected. Also empty without three pair matrices in a row that show the same part "
                  "as slow."),
    Series(title="Slowest pairs over time",
           description="Share of what is expected, of the twelve pairs with the lowest.",
           queries=(Query(f"bottomk(12, max by (src, dst) ({_SHARE}))", "{{src}} to {{dst}}"),), unit="percentunit",
           scale=_SLOW, no_data=NEEDS_PAIRS, width=12),
    Series(title="Latencies over time", description="Latency of the twelve pairs with the highest.",
           queries=(Query(f"topk(12, max by (src, dst) (commwatch_pair_latency_seconds{_SELECTED}))",
                          "{{src}} to {{dst}}"),), unit="s",
           no_data=NEEDS_PAIRS, width=12),
    Series(title="Copies between GPU and host", description="Bandwidth of copies over what they should reach.",
           queries=(Query("min by (gpu, direction) (commwatch_probe_copy_bandwidth_bytes_per_second{@node@}"
                          " / commwatch_probe_copy_expected_bandwidth_bytes_per_second{@node@})",
                          "GPU {{gpu}} {{direction}}"),),
           unit="percentunit", no_data="Needs results of the copy probe, once a day on a free node.", width=12),
    Series(title="More GPUs, more bandwidth", description="Bus bandwidth of an all_reduce over the first 2, 4 … GPUs.",
           queries=(Query("max by (ranks) (commwatch_probe_scaling_bus_bandwidth_bytes_per_second{@node@})",
                          "{{ranks}} GPUs"),),
           unit="Bps", no_data="Needs results of the scaling probe, once a day on a free node.", width=12),
))  # fmt: skip

PAIRS = Dashboard(
    uid="commwatch-pairs",
    title="commwatch / Pairs",
    description="Latency and bandwidth between each two GPUs of a node.",
    variables=(CLUSTER, JOB, INSTANCE, _BACKEND),
    rows=(_NOW, _SLOWEST),
    time_from="now-7d",
)
