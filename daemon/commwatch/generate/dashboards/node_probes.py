"""The row of a node about its probes."""

from __future__ import annotations

from commwatch.generate.dashboards.panels import Column, Heat, PanelRow, Query, Series, Table, high_is_bad, low_is_bad
from commwatch.generate.dashboards.words import NEEDS_PROBES

_PROBE = "probe, backend"

PROBE_TABLE = Table(
    title="Probes",
    description="The last result of each probe, what it is held against, and how often it was bad in a row.",
    labels=("probe", "backend", "collective", "ranks", "expected_source", "nccl_version"),
    columns=(
        Column("last result", f"1000 * max by ({_PROBE}) (commwatch_probe_last_completion_timestamp_seconds{{@node@}})",
               unit="dateTimeFromNow"),
        Column("latency", f"max by ({_PROBE}) (commwatch_probe_last_latency_seconds{{@node@}})", unit="s"),
        Column("baseline", f"max by ({_PROBE}) (commwatch_probe_baseline_latency_seconds{{@node@}})", unit="s"),
        Column("spikes in a row", f"max by ({_PROBE}) (commwatch_probe_latency_spike_streak{{@node@}})",
               scale=high_is_bad("probe_latency_spike_streak", "warning", "CommwatchProbeLatencyStreak")),
        Column("bus bandwidth",
               f"max by ({_PROBE}) (commwatch_probe_last_bus_bandwidth_bytes_per_second{{@node@}})", unit="Bps"),
        Column("of expected", f"max by ({_PROBE}) (commwatch_probe_bandwidth_utilization_ratio{{@node@}})",
               unit="percentunit", scale=low_is_bad("probe_bandwidth_utilization_low_ratio", "warning", "")),
        Column("low in a row", f"max by ({_PROBE}) (commwatch_probe_low_bandwidth_streak{{@node@}})", due="elsewhere",
               scale=high_is_bad("probe_low_bandwidth_streak", "warning", "CommwatchProbeBandwidthLow")),
        Column("balance", f"min by ({_PROBE}) (commwatch_probe_rank_balance_ratio{{@node@}})", unit="percentunit"),
        Column("",
               f"max by ({_PROBE}, collective, ranks, expected_source, nccl_version) (commwatch_probe_info{{@node@}})"),
    ),
    alerts=("CommwatchProbeStarved",), no_data=NEEDS_PROBES,
)  # fmt: skip

PROBES = PanelRow("Probes", (
    Series(title="Latency against its baseline",
           description="Latency of the last result over the median of the good ones before.",
           queries=(Query(f"max by ({_PROBE}) (commwatch_probe_last_latency_seconds{{@node@}}"
                          " / commwatch_probe_baseline_latency_seconds{@node@})", "{{probe}} ({{backend}})"),),
           unit="percentunit", scale=high_is_bad("probe_latency_spike_median_factor", "warning", ""),
           alerts=("CommwatchProbeLatencyStreak", "CommwatchProbeDrift", "CommwatchProbeStep", "CommwatchProbeSwing"),
           no_data="Needs 20 good results of a probe: five hours of a free node at the default interval."),
    Series(title="Bandwidth against what is expected",
           description="Bus bandwidth of the last result over what this probe should give here.",
           queries=(Query(f"max by ({_PROBE}) (commwatch_probe_bandwidth_utilization_ratio{{@node@}})",
                          "{{probe}} ({{backend}})"),),
           unit="percentunit", scale=low_is_bad("probe_bandwidth_utilization_low_ratio", "warning", ""),
           alerts=("CommwatchProbeBandwidthLow",), no_data=NEEDS_PROBES),
    Series(title="Bad results in a row",
           description="Latency spikes, and results below the expected bandwidth;"
                       " @probe_latency_spike_streak@ make a ticket.",
           queries=(
               Query(f"max by ({_PROBE}) (commwatch_probe_latency_spike_streak{{@node@}})", "{{probe}} latency"),
               Query(f"max by ({_PROBE}) (commwatch_probe_low_bandwidth_streak{{@node@}})", "{{probe}} bandwidth",
                     due="elsewhere"),
           ),
           scale=high_is_bad("probe_latency_spike_streak", "warning", "CommwatchProbeLatencyStreak"),
           no_data=NEEDS_PROBES),
    Heat(title="Latencies", description="How many results of a probe's small collective took how long, within 15 min.",
         queries=(Query("sum by (le) (increase(commwatch_probe_latency_seconds_bucket{@node@}[15m]))", "{{le}}"),),
         unit="s", no_data=NEEDS_PROBES),
    Series(title="Failures and spikes",
           description="Cycles without a good result by reason, and latency spikes, within an hour.",
           queries=(
               Query("sum by (probe, reason) (round(increase(commwatch_probe_failures_total{@node@}[1h]))) > 0",
                     "{{probe}} {{reason}}", due="elsewhere"),
               Query(f"sum by ({_PROBE}) (round(increase(commwatch_probe_latency_spikes_total{{@node@}}[1h])))",
                     "{{probe}} spikes"),
           ),
           scale=high_is_bad("probe_failure_streak", "warning", "CommwatchProbeFailing"),
           alerts=("CommwatchProbeErrorRateRise", "CommwatchProbeWrongResult"), no_data=NEEDS_PROBES),
    Series(title="Skipped and given way",
           description="Cycles within an hour that did not start or gave way, by reason; docs/using/probes.md has the"
                       " reasons.",
           queries=(
               Query("sum by (reason) (round(increase(commwatch_probe_skips_total{@node@}[1h]))) > 0", "{{reason}}",
                     due="with a fault"),
               Query("sum by (reason) (round(increase(commwatch_probe_yields_total{@node@}[1h]))) > 0",
                     "gave way: {{reason}}", due="elsewhere"),
           ),
           alerts=("CommwatchProbeStarved",), no_data="None was skipped or gave way. It needs probes that are on."),
    Series(title="GPUs held by probes",
           description="Share of the time of all GPUs in which a probe held a context, over 6 h; the budget is 1 %.",
           queries=(Query("sum(increase(commwatch_probe_gpu_occupied_seconds_total{@node@}[6h])) / 21600"
                          " / sum(commwatch_present{@node@, kind=\"gpu\"})", "of all GPUs"),),
           unit="percentunit", no_data=NEEDS_PROBES),
), collapsed=True)  # fmt: skip
