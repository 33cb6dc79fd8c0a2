"""The fleet: is anything wrong, on which nodes, since when, the worst pairs, the score, and who changed."""

from __future__ import annotations

from commwatch.generate.dashboards.panels import (
    CLUSTER,
    INSTANCES,
    JOB,
    Column,
    Dashboard,
    PanelRow,
    Query,
    Series,
    Stat,
    Table,
    any_is_bad,
    high_is_bad,
    low_is_bad,
)
from commwatch.generate.dashboards.words import (
    AGE,
    ALERT_TABLE_LINKS,
    ALERT_TABLE_NAMES,
    ALERT_TABLE_ORDER,
    FIRING_SINCE,
    NEEDS_DAEMON,
    NEEDS_PAIRS,
    NEEDS_PEERS,
    NEEDS_RULES,
    NEEDS_SCORE,
    NODE_LINK,
    OF_SIMULATED,
    PAIRS_LINK,
    SCORE,
    SEEN,
    SIMULATED,
    STAT_DAEMON,
    STAT_PROBES,
    STAT_RULES,
    UP,
    firing,
    zero_with_rules,
)

_NODE = "cluster, job, instance"
_REAL, _SIMULATED = 'simulated!="true"', 'simulated="true"'
_FAULTY_ANY = 'ALERTS{@node_alerts@, alertstate="firing", severity=~"critical|warning"}'
_FAULTY = 'ALERTS{@node_alerts@, alertstate="firing", severity=~"critical|warning", %s}'


def _counted(severity: str) -> tuple[Query, Query]:
    alerts = f'ALERTS{{@alerts@, alertstate="firing", severity="{severity}", %s}}'
    return (
        Query(zero_with_rules(f"count({alerts % _REAL})"), "real"),
        Query(f"count({alerts % _SIMULATED})", "simulated", due="with a fault"),
    )


_IS_ANYTHING_WRONG = PanelRow("Is anything wrong?", (
    Stat(title="Pages", description="Alerts of severity critical that fire now. Those of simulated nodes page no one.",
         queries=_counted("critical"), scale=any_is_bad("critical"), no_data=STAT_RULES),
    Stat(title="Tickets", description="Alerts of severity warning that fire now. Those of simulated nodes page no one.",
         queries=_counted("warning"), scale=any_is_bad("warning"), no_data=STAT_RULES),
    Stat(title="Nodes with a fault", description="Nodes on which an alert of severity critical or warning fires.",
         queries=(
             Query(zero_with_rules(f"count(group by ({_NODE}) ({_FAULTY % _REAL}))"), "real"),
             Query(f"count(group by ({_NODE}) ({_FAULTY % _SIMULATED}))", "simulated", due="with a fault"),
         ),
         scale=any_is_bad("warning"), no_data=STAT_RULES),
    Stat(title="Not answering",
         description="Nodes whose daemon the last scrape did not reach. Where node_exporter passes on a file of the"
                     " daemon it is node_exporter that answers; a file that is old has an alert of its own.",
         queries=(Query(f"count({UP} == 0) or 0 * count({UP})"),),
         scale=any_is_bad("warning", "CommwatchDaemonDown"), alerts=("CommwatchTextfileStale",), no_data=STAT_RULES),
    Stat(title="Answering nodes",
         description="Nodes whose daemon answers: real ones, simulated ones, and those in maintenance.",
         queries=(
             Query("count(commwatch_simulated{@node@} == 0) or 0 * count(commwatch_simulated{@node@})", "real"),
             Query("sum(commwatch_simulated{@node@})", "simulated"),
             Query(f"sum(max by ({_NODE}) (commwatch_maintenance{{@node@}}))", "in maintenance"),
         ),
         no_data=STAT_DAEMON, width=6),
    Stat(title="Worst score",
         description="Lowest communication score of a node: @score_excellent_ratio:percent@ and up is excellent,"
                     " @score_good_ratio:percent@ and up good.",
         queries=(
             Query("min(commwatch_communication_score_ratio{@node@} unless on (cluster, job, instance)"
                   " commwatch_simulated{@node@} == 1)", "real", due="elsewhere"),
             Query("min(commwatch_communication_score_ratio{@node@} and on (cluster, job, instance)"
                   " commwatch_simulated{@node@} == 1)", "simulated"),
         ),
         unit="percentunit", scale=SCORE, no_data=STAT_PROBES),
    Stat(title="Busy GPUs", description="Share of the GPUs that a job is on. Probes wait until a node is free.",
         queries=(Query("avg(commwatch_gpu_busy{@node@})"),), unit="percentunit", no_data=STAT_DAEMON),
))  # fmt: skip

_WHAT = PanelRow("Alerts and suspects", (
    Table(title="Alerts",
          description="Alerts of severity critical and warning that fire, and since when their sign was there.",
          first=("since",),
          labels=("severity", "alertname", "instance", "about", "simulated", "cluster", "job"),
          columns=(Column("since", firing("cluster, job, instance, alertname, severity, simulated"),
                          unit="dateTimeFromNow", due="with a fault"),),
          links=ALERT_TABLE_LINKS, label_names=ALERT_TABLE_NAMES, sort_by=ALERT_TABLE_ORDER,
          no_data="None fires. Also empty without the rules of alerts/rules in this Prometheus."),
    Series(title="Alerts over time",
           description="Nodes on which an alert of severity critical or warning fired, by alert.",
           queries=(Query(f"count by (alertname) (group by ({_NODE}, alertname) ({_FAULTY_ANY}))", "{{alertname}}",
                          due="with a fault"),),
           stacked=True,
           no_data="None fired. Also empty without the rules of alerts/rules in this Prometheus.", width=12),
    Table(title="One fault on many nodes",
          description="Nodes on which the same alert fires. On @fleet_fault_nodes_ratio:percent@ of the nodes, and"
                      " @fleet_fault_nodes_min@ at least, it is one alert for all.",
          labels=("fault", "cluster", "job", "simulated"),
          columns=(
              Column("nodes", "sum by (cluster, job, simulated, fault) (job_fault:commwatch_nodes:count{@job@})",
                     due="with a fault"),
              Column("of what makes it one alert",
                     "sum by (cluster, job, simulated, fault) (job_fault:commwatch_nodes:count{@job@}"
                     " / on (cluster, job, simulated) group_left () clamp_min("
                     "@fleet_fault_nodes_ratio@ * job:commwatch_nodes:count{@job@}, @fleet_fault_nodes_min@))",
                     unit="percentunit", due="with a fault", scale=any_is_bad("critical", "CommwatchFaultOnManyNodes")),
          ),
          links={"fault": "@runbooks@/${__value.raw}.md"}, sort_by={"nodes": "down"},
          label_names={"simulated": OF_SIMULATED},
          alerts=("CommwatchFaultOnManyNodes", "CommwatchFaultOnMoreNodes", "CommwatchSoftwareFaultOnManyNodes"),
          no_data="None fires on a node. Also empty without the rules of alerts/rules in this Prometheus.", width=12),
    Table(title="Worst pairs",
          description="Slower direction of two GPUs over what the way between them should give.",
          labels=("instance", "element", "cluster", "job"),
          columns=(Column("share of expected",
                          f"bottomk(10, min by ({_NODE}, element) (commwatch_pair_bandwidth_ratio{{@node@}}))",
                          unit="percentunit",
                          scale=low_is_bad("probe_bandwidth_utilization_low_ratio", "warning", "CommwatchPairSlow")),),
          links={"instance": PAIRS_LINK}, no_data=NEEDS_PAIRS, alerts=("CommwatchPairSlow",),
          sort_by={"share of expected": "up"}, width=12),
    Table(title="Suspects", description="Parts that explain why pairs are slow, and how sure that is.",
          labels=("instance", "kind", "element", "cluster", "job"),
          columns=(Column("certainty", f"max by ({_NODE}, kind, element) (commwatch_suspect_ratio{{@node@}})",
                          unit="percentunit", due="with a fault",
                          scale=high_is_bad("suspect_confidence_min", "warning", "CommwatchPartSuspect")),),
          links={"instance": PAIRS_LINK}, sort_by={"certainty": "down"},
          alerts=("CommwatchPartSuspect",),
          no_data="None is suspected. Also empty without three pair matrices in a row that show the same part as slow.",
          width=12),
))  # fmt: skip

_NODES = PanelRow("Nodes", (
    Table(title="Nodes", description="Each node with what is wrong on it; a click on a name leads to the node.",
          labels=("instance", "cluster", "job"),
          columns=(
              Column("daemon", f"max by ({_NODE}) ({UP})", names=SEEN),
              Column("pages", f'count by ({_NODE}) (ALERTS{{@node_alerts@, alertstate="firing", severity="critical"}})',
                     scale=any_is_bad("critical"), due="with a fault"),
              Column("tickets",
                     f'count by ({_NODE}) (ALERTS{{@node_alerts@, alertstate="firing", severity="warning"}})',
                     scale=any_is_bad("warning"), due="with a fault"),
              Column("since", FIRING_SINCE, unit="dateTimeFromNow", due="with a fault"),
              Column("findings", f"count by ({_NODE}) (commwatch_finding{{@node@}} == 1)", due="with a fault"),
              Column("parts missing",
                     f"sum by ({_NODE}) (clamp_min(commwatch_expected{{@node@}} - commwatch_present{{@node@}}, 0))",
                     scale=any_is_bad("warning")),
              Column("score", f"min by ({_NODE}) (commwatch_communication_score_ratio{{@node@}})",
                     unit="percentunit", scale=SCORE),
              Column("worst pair", f"min by ({_NODE}) (commwatch_pair_bandwidth_ratio{{@node@}})",
                     unit="percentunit",
                     scale=low_is_bad("probe_bandwidth_utilization_low_ratio", "warning", "CommwatchPairSlow")),
              Column("busy GPUs", f"sum by ({_NODE}) (commwatch_gpu_busy{{@node@}})"),
              Column("maintenance", f"max by ({_NODE}) (commwatch_maintenance{{@node@}})",
                     names={0: ("no", "text"), 1: ("maintenance", "blue")}),
              Column("data", f"max by ({_NODE}) (commwatch_simulated{{@node@}})", names=SIMULATED),
          ),
          links={"instance": NODE_LINK}, no_data=NEEDS_DAEMON, height=10,
          sort_by={"pages": "down", "tickets": "down", "findings": "down", "parts missing": "down"}),
    Table(title="Changed nodes",
          description="Differences between the begin and the end of the time shown above, of nodes where anything"
                      " does.",
          labels=("instance", "cluster", "job"),
          columns=(
              Column("score",
                     f"sum by ({_NODE}) (round(delta(commwatch_communication_score_ratio{{@node@}}[$__range]), 0.01)"
                     f" != 0)", unit="percentunit", due="with a fault"),
              Column("parts",
                     f"sum by ({_NODE}) (commwatch_present{{@node@}} - commwatch_present{{@node@}} offset $__range)"
                     f" != 0", due="with a fault"),
              Column("findings",
                     f"(count by ({_NODE}) (commwatch_finding{{@node@}} == 1) unless count by ({_NODE})"
                     f" (commwatch_finding{{@node@}} offset $__range == 1))"
                     f" or (count by ({_NODE}) (commwatch_finding{{@node@}} == 1) - count by ({_NODE})"
                     f" (commwatch_finding{{@node@}} offset $__range == 1)) != 0", due="with a fault"),
              Column("starts of the daemon",
                     f"sum by ({_NODE}) (changes(process_start_time_seconds{{@node@}}[$__range])) > 0"
                     f" and on ({_NODE}) commwatch_build_info{{@node@}}", due="elsewhere"),
              Column("software",
                     f"count by ({_NODE}, driver_version) (commwatch_software_info{{@node@}} unless"
                     f" commwatch_software_info{{@node@}} offset $__range)"
                     f" and on ({_NODE}) commwatch_simulated{{@node@}} offset $__range", due="elsewhere"),
          ),
          links={"instance": NODE_LINK},
           no_data="None changed in this time. Also empty without nodes that were seen at its begin.", width=12),
    Series(title="Lowest scores", description="Communication score of the nodes with the lowest.",
           queries=(Query("bottomk(10, commwatch_communication_score_ratio{@node@})", "{{instance}}"),),
           unit="percentunit", maximum=1, scale=SCORE, no_data=NEEDS_SCORE, width=12),
))  # fmt: skip

_PEERS = PanelRow("Against equal nodes", (
    Series(title="Bus bandwidth against equal nodes",
           description="Bus bandwidth of a probe over the median of nodes with equal GPUs, probe, size, ranks and"
                       " NCCL; the lowest ten.",
           queries=(Query("bottomk(10, instance_probe:commwatch_probe_bus_bandwidth_per_peers:ratio{@node@})",
                          "{{instance}} {{probe}} ({{backend}})", due="from eight equal nodes"),),
           unit="percentunit", no_data=NEEDS_PEERS,
           scale=low_is_bad("peer_bandwidth_low_ratio", "warning", "CommwatchProbeBandwidthBelowPeers"), width=12),
    Series(title="Latency against equal nodes",
           description="Latency of a probe over the median of nodes with equal GPUs, probe, size, ranks and NCCL;"
                       " the highest ten.",
           queries=(Query("topk(10, instance_probe:commwatch_probe_latency_per_peers:ratio{@node@})",
                          "{{instance}} {{probe}} ({{backend}})", due="from eight equal nodes"),),
           unit="percentunit", no_data=NEEDS_PEERS,
           scale=high_is_bad("peer_latency_high_factor", "warning", "CommwatchProbeLatencyAbovePeers"), width=12),
    Table(title="Fewer parts than equal nodes",
          description="Nodes that expect fewer parts than nine tenths of the nodes with equal GPUs.",
          labels=("instance", "kind", "gpu_model"),
          columns=(Column("expected",
                          "min by (instance, kind, gpu_model) (instance_kind:commwatch_expected:below_peers{@node@})",
                          due="elsewhere"),),
          alerts=("CommwatchInventoryBelowPeers",), links={"instance": NODE_LINK},
          no_data="None has. Also empty with fewer than @peer_nodes_min@ nodes with equal GPUs.", width=12),
    Table(title="Software",
          description="Nodes of each version of driver, NCCL (as the probes load it) and commwatch, by GPU model.",
          labels=("software", "version", "gpu_model", "simulated", "cluster", "job"),
          columns=(Column("nodes",
                          "sum by (cluster, job, simulated, gpu_model, software, version)"
                          " (software:commwatch_nodes:count{@job@})"),),
          label_names={"simulated": OF_SIMULATED},
          alerts=("CommwatchSoftwareVersionsDiffer", "CommwatchProfileDiffers", "CommwatchDriverOrNcclDiffers"),
          no_data=NEEDS_RULES, width=12),
))  # fmt: skip

_TRAFFIC = PanelRow("Traffic", (
    Series(title="NVLink, sent", description="Payload that all NVLinks of a node sent; the ten highest.",
           queries=(Query("topk(10, instance:commwatch_nvlink_transmit_bytes:rate5m{@node@})", "{{instance}}"),),
           unit="Bps", no_data="Needs GPUs with NVLink and the recording rules of alerts/rules."),
    Series(title="RDMA, sent", description="Bytes that all RDMA ports of a node sent; the ten highest.",
           queries=(Query("topk(10, instance:commwatch_rdma_port_transmit_bytes:rate5m{@node@})", "{{instance}}",
                          due="with RDMA"),),
           unit="Bps", no_data="Needs RDMA ports and the recording rules of alerts/rules."),
    Series(title="Busy GPUs by node", description="GPUs of a node that a job is on.",
           queries=(Query("topk(10, instance:commwatch_gpu_busy:sum{@node@})", "{{instance}}"),), no_data=NEEDS_RULES),
), collapsed=True)  # fmt: skip

_OURSELVES = PanelRow("commwatch itself", (
    Series(title="Nodes not answering over time", description="Nodes whose daemon a scrape did not reach.",
           queries=(Query(f"count by (job) ({UP} == 0) or 0 * count by (job) ({UP})", "{{job}}"),),
           scale=any_is_bad("warning", "CommwatchDaemonDown"), alerts=("CommwatchDaemonAbsent",), no_data=NEEDS_RULES),
    Series(title="Failing collectors", description="Nodes on which a collector did not read everything it should.",
           queries=(Query("count by (collector) (commwatch_collector_success{@node@} == 0)"
                          " or 0 * count by (collector) (commwatch_collector_success{@node@})", "{{collector}}"),),
           scale=any_is_bad("warning", "CommwatchCollectorFailing"), no_data=NEEDS_DAEMON),
    Series(title="Oldest data",
           description="Longest time since a collector last read everything it should, over the age from which it is"
                       " stale.",
           queries=(Query(AGE, "{{collector}}"),), unit="percentunit",
           scale=any_is_bad("warning", "CommwatchDataStale"), no_data=NEEDS_DAEMON),
    Table(title="Thresholds and versions",
          description="Nodes by version of commwatch, and by the digest of the thresholds that they judge by.",
          labels=("version", "python_version", "digest"),
          columns=(Column("nodes",
                          "count by (version, python_version, digest) (commwatch_build_info{@node@}"
                          " * on (cluster, job, instance) group_left (digest) commwatch_thresholds_info{@node@})"),),
          alerts=("CommwatchThresholdsDiffer",), width=12, height=6, no_data=NEEDS_DAEMON),
    Stat(title="Thresholds of the rules",
         description="Digest of the thresholds with which the rules in this Prometheus were rendered.",
         queries=(Query('max by (digest) (job:commwatch_rules:info{job=~"$job"})', "{{digest}}"),),
         no_data=STAT_RULES, alerts=("CommwatchThresholdsDiffer",), width=12, height=6, shows_legend=True),
), collapsed=True)  # fmt: skip

FLEET = Dashboard(
    uid="commwatch-fleet",
    title="commwatch / Fleet",
    description="Whether communication between GPUs is healthy, on which nodes it is not, and since when.",
    variables=(CLUSTER, JOB, INSTANCES),
    rows=(_IS_ANYTHING_WRONG, _WHAT, _NODES, _PEERS, _TRAFFIC, _OURSELVES),
    annotated_node=False,
)
