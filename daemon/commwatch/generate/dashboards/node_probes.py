"""The rows of a node about its probes, and about what was measured between nodes."""

from __future__ import annotations

from commwatch.generate.dashboards.panels import Column, Heat, PanelRow, Query, Series, Table, high_is_bad, low_is_bad
from commwatch.generate.dashboards.words import CHECKS, NEEDS_CHECK, NEEDS_CLUSTER, NEEDS_PROBES, RUNS_BETWEEN

_PROBE = "probe, backend"

PROBE_TABLE = Table(
    title="Probes",
    description="The last result of each probe, its expectation, and how often it was bad in a row.",
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
        Column("losses", f"max by ({_PROBE}) (commwatch_probe_losses{{@node@}})", due="elsewhere"),
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
           alerts=("CommwatchProbeBandwidthLow", "CommwatchProbeBandwidthShort", "CommwatchProbeBelowModel"),
           no_data=NEEDS_PROBES),
    Series(title="Bandwidth lost",
           description="Share of this node's own level that is lost, by quantity: until the level is back or"
                       " commwatch inventory accept takes the new one.",
           queries=(Query("max by (probe, quantity) (commwatch_probe_loss_ratio{@node@})", "{{probe}} {{quantity}}",
                          due="elsewhere"),),
           unit="percentunit", scale=high_is_bad("probe_loss_ratio", "warning", ""),
           alerts=("CommwatchProbeBandwidthLost",),
           no_data="None is lost. Also empty without three good results of a probe."),
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
    Series(title="Skips and yields",
           description="Cycles within an hour that did not start or gave way, by reason; docs/using/probes.md has the"
                       " reasons.",
           queries=(
               Query("sum by (reason) (round(increase(commwatch_probe_skips_total{@node@}[1h]))) > 0", "{{reason}}",
                     due="with a fault"),
               Query("sum by (reason) (round(increase(commwatch_probe_yields_total{@node@}[1h]))) > 0",
                     "gave way: {{reason}}", due="elsewhere"),
           ),
           alerts=("CommwatchProbeStarved",),
           no_data="None was skipped or gave way. Also empty without probes that are on."),
    Series(title="GPU time of probes",
           description="Share of the time of all GPUs in which a probe held a context, over 6 h; the budget is 1 %.",
           queries=(Query("sum(increase(commwatch_probe_gpu_occupied_seconds_total{@node@}[6h])) / 21600"
                          " / sum(commwatch_present{@node@, kind=\"gpu\"})", "of all GPUs"),),
           unit="percentunit", no_data=NEEDS_PROBES),
))  # fmt: skip


_RAIL = "rail, device"
_CELL = f"{_RAIL}, direction"

BETWEEN_NODES = PanelRow("Between nodes", (
    Table(title="Suspects between nodes",
          description="Parts of this node, or the leaf and uplink above it, that runs between nodes name, and in how"
                      " many runs in a row; @cluster_suspect_runs@ make a ticket.",
          labels=("kind", "element", "symptom"),
          columns=(
              Column("runs in a row", "max by (kind, element, symptom) (commwatch_cluster_suspect_runs{@node@})",
                     due="elsewhere",
                     scale=high_is_bad("cluster_suspect_runs", "warning", "CommwatchRailSlowBetweenNodes")),
              Column("of usual", "max by (kind, element, symptom) (commwatch_cluster_suspect_ratio{@node@})",
                     unit="percentunit", due="elsewhere"),
          ),
          sort_by={"runs in a row": "down"},
          alerts=("CommwatchNodeSlowBetweenNodes", "CommwatchLeafSlow", "CommwatchLeafFailing",
                  "CommwatchPeersUnreachable"),
          no_data=f"None is named. Also empty without {RUNS_BETWEEN}"),
    Table(title="Last check between nodes",
          description="Causes for which runs of commwatch cluster check blame this node, in how many in a row;"
                      " @cluster_suspect_runs@ of refused, filtered, no_route or mtu make a ticket.",
          labels=("cause",),
          columns=(
              Column("checks in a row", "max by (cause) (commwatch_cluster_check_failed{@node@}) > 0", due="elsewhere",
                     scale=high_is_bad("cluster_suspect_runs", "warning", "CommwatchPeersUnreachable")),
          ),
          sort_by={"checks in a row": "down"},
          no_data=f"None is blamed. Also empty without {CHECKS}"),
    Series(title="Nodes not reached",
           description="Between which and this one connections failed in the last check, by port and direction.",
           queries=(Query("max by (port_kind, direction) (commwatch_cluster_unreachable_peers{@node@})",
                          "{{port_kind}} {{direction}}", due="elsewhere"),),
           no_data=NEEDS_CHECK),
    Series(title="Rails against equal nodes",
           description="Bandwidth of each rail with the best of its partners, over what is usual among equal"
                       " nodes of the run.",
           queries=(Query(f"min by ({_CELL}) (commwatch_cluster_rail_peer_ratio{{@node@}})", "{{device}} {{direction}}",
                          due="elsewhere"),),
           unit="percentunit", no_data=NEEDS_CLUSTER),
    Series(title="Bandwidth to other nodes", description="The same in bytes per second.",
           queries=(Query(f"min by ({_CELL}) (commwatch_cluster_rail_bandwidth_bytes_per_second{{@node@}})",
                          "{{device}} {{direction}}", due="elsewhere"),),
           unit="Bps", no_data=NEEDS_CLUSTER),
    Series(title="Latency to other nodes",
           description="Of a small message there and back, halved, with the best partner of each rail.",
           queries=(Query(f"min by ({_RAIL}) (commwatch_cluster_rail_latency_seconds{{@node@}})", "{{device}}",
                          due="elsewhere"),),
           unit="s", no_data=NEEDS_CLUSTER),
    Series(title="Pairs between nodes", description="Measurements with other nodes in the last run, by outcome.",
           queries=(Query("sum by (outcome) (commwatch_cluster_pairs{@node@})", "{{outcome}}", due="elsewhere"),),
           no_data=NEEDS_CLUSTER),
    Series(title="Runs between nodes",
           description="How runs went for this node within a day, why it stayed out, and reports that did not count.",
           queries=(
               Query("sum by (outcome) (round(increase(commwatch_cluster_runs_total{@node@}[1d]))) > 0", "{{outcome}}",
                     due="elsewhere"),
               Query("sum by (reason) (round(increase(commwatch_cluster_skips_total{@node@}[1d]))) > 0",
                     "not free: {{reason}}", due="elsewhere"),
               Query("sum by (reason) (round(increase(commwatch_cluster_refused_reports_total{@node@}[1d]))) > 0",
                     "refused: {{reason}}", due="elsewhere"),
           ),
           alerts=("CommwatchClusterProbeStale",), no_data=NEEDS_CLUSTER),
), collapsed=True)  # fmt: skip
