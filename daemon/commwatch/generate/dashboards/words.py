"""What panels of several dashboards share: what they need, names of states, links, and expressions."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.generate.dashboards.panels import LabelNames, Names, Order, Scale

# --- what a panel needs ---

NEEDS_DAEMON = "Needs a commwatch daemon that this Prometheus scrapes."
NEEDS_RULES = "Needs the rules of alerts/rules in this Prometheus."
NEEDS_SCORE = "Needs results of probes: they run while the node is free; docs/score.md."
NEEDS_PROBES = "Needs results of probes: they run while the node is free; docs/probes.md."
NEEDS_PAIRS = "Needs the pair probe, once a day on a free node with two GPUs, and the rules of alerts/rules."
NEEDS_PEERS = "Needs results of at least @peer_nodes_min@ equal nodes and the recording rules of alerts/rules."
NEEDS_NVLINK = "Needs GPUs with NVLink and the collectors nvml_nvlink and nvml_nvlink_errors."
NEEDS_NVLINK_5 = "Needs GPUs with NVLink 5 (Blackwell and later)."
NEEDS_PCIE = "Needs the collectors of PCIe: NVML for GPUs, sysfs for adapters and switches."
NEEDS_RDMA = "Needs RDMA ports (InfiniBand or RoCE) in /sys/class/infiniband."
NEEDS_ETHERNET = "Needs network interfaces with a driver that reports them; docs/counters.md."
# A single number has room for few words.
STAT_DAEMON = "Needs a commwatch daemon."
STAT_RULES = "Needs the rules (alerts/rules)."
STAT_PROBES = "Needs results of probes."
STAT_PAIRS = "Needs the pair probe."
STAT_NVLINK = "Needs GPUs with NVLink."
NOT_SEEN = "None was seen. Needs the collector of the kernel log or the events of the driver."

# --- names of numbers ---

SIMULATED: Names = {0: ("real", "text"), 1: ("SIMULATED", "purple")}
SEEN: Names = {0: ("not answering", "orange"), 1: ("answers", "green")}
GPU_STATE: Names = {
    0: ("ok", "green"), 1: ("not answering", "red"), 2: ("lost", "red"), 3: ("reset required", "red"),
    4: ("missing", "red"),
}  # fmt: skip
LINK_STATE: Names = {0: ("down", "red"), 1: ("active", "green"), 2: ("sleep", "green"), 3: ("no traffic", "red")}
PORT_STATE: Names = {
    0: ("no change", "blue"), 1: ("down", "red"), 2: ("initialising", "orange"), 3: ("armed", "orange"),
    4: ("active", "green"), 5: ("deferred", "blue"),
}  # fmt: skip
RECOVERY: Names = {
    0: ("nothing", "green"), 1: ("GPU reset", "orange"), 2: ("node reboot", "orange"), 3: ("drain P2P", "orange"),
    4: ("drain and reset", "orange"), 5: ("IMEX domain", "orange"), 6: ("bus reset", "orange"),
    7: ("system reboot", "orange"),
}  # fmt: skip
CARRIER: Names = {0: ("no link", "orange"), 1: ("link", "green")}
DEGRADED: Names = {0: ("as expected", "green"), 1: ("degraded", "red")}
ON_OFF: Names = {0: ("no", "text"), 1: ("yes", "orange")}
EXPECTED: Names = {0: ("no", "text"), 1: ("yes", "text")}
BUSY: Names = {0: ("free", "text"), 1: ("busy", "blue")}

SEVERITIES: LabelNames = {"critical": ("critical", "red"), "warning": ("warning", "orange")}
OF_SIMULATED: LabelNames = {"true": ("SIMULATED", "purple")}
"""The label of alerts of simulated nodes."""

SCORE = Scale("blue", (("score_good_ratio", "yellow"), ("score_excellent_ratio", "green")), "CommwatchScoreLow")
"""Below good it is information, as its alert is."""

# --- links; Grafana fills in what is in braces ---

_KEPT = "?${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
# The cluster as it is chosen: a site without clusters has no such field.
_OF_LINE = f"{_KEPT}&var-job=${{__data.fields.job}}&var-instance=${{__data.fields.instance}}"
NODE_LINK = f"/d/commwatch-node{_OF_LINE}"
PAIRS_LINK = f"/d/commwatch-pairs{_OF_LINE}"
LINK_LINK = (
    f"/d/commwatch-link{_KEPT}&${{job:queryparam}}&${{instance:queryparam}}"
    "&var-gpu=${__data.fields.gpu}&var-link=${__data.fields.link}"
)
GPU_LINK = f"/d/commwatch-link{_KEPT}&${{job:queryparam}}&${{instance:queryparam}}&var-gpu=${{__data.fields.gpu}}"
ALERT_TABLE_NAMES: Mapping[str, LabelNames] = {"severity": SEVERITIES, "simulated": OF_SIMULATED}
ALERT_TABLE_ORDER: Mapping[str, Order] = {"severity": "up", "since": "down"}
"""Pages before tickets, the newest first."""
ALERT_TABLE_WIDTHS = {"alertname": 270, "about": 180}
ALERT_TABLE_LINKS = {"alertname": "@runbooks@/${__value.raw}.md", "instance": NODE_LINK}

# --- expressions ---

_ABOUT = (
    "fault", "software", "gpu_model", "collector", "worker", "rule", "service", "check", "component", "counter",
    "reason", "direction", "aspect", "role", "kind", "element", "src", "dst", "backend", "sign", "what", "xid", "sxid",
    "message", "category", "variable", "remark", "digest",
)  # fmt: skip
"""Labels of alerts that have no column of their own."""
FIRING = f"""
    1000 * max by (cluster, job, instance, alertname, severity, simulated, gpu, link, device, port, probe, about) (
      label_join(
        ALERTS_FOR_STATE{{@alerts@, severity=~"critical|warning"}}
        and ignoring (alertstate)
        ALERTS{{@alerts@, alertstate="firing", severity=~"critical|warning"}},
        "about", " ", {", ".join(f'"{label}"' for label in _ABOUT)}
      )
    )
"""
"""Milliseconds since 1970 at which the sign of each alert that fires was first seen; ``about`` tells those of one part
from each other."""
FIRING_SINCE = """
    1000 * min by (cluster, job, instance) (
      ALERTS_FOR_STATE{@node_alerts@, severity=~"critical|warning"}
      and ignoring (alertstate) ALERTS{@node_alerts@, alertstate="firing", severity=~"critical|warning"}
    )
"""
"""Milliseconds since 1970 at which the oldest sign of an alert that fires on a node was first seen."""

UP = "(up{@node@} and on (cluster, job) job:commwatch_nodes:count{@job@})"
"""Whether the daemons answer. Every target of a Prometheus has ``up``; only commwatch's jobs are recorded."""

AGE = """
    max by (collector) (
      (time() - commwatch_collector_last_success_timestamp_seconds{@node@})
      / clamp_min(@data_stale_intervals@ * commwatch_collector_interval_seconds{@node@}, @data_stale_seconds@)
    )
"""
"""How old what a collector read is, over the age from which it counts as stale."""


def zero_with_rules(expression: str) -> str:
    """A sum over alerts; 0 where none fires and rules are evaluated here, nothing where they are not."""
    return f'{expression} or 0 * max(job:commwatch_rules:info{{job=~"$job"}})'


def new_events(counter: str, matchers: str, labels: str) -> str:
    """Events within an hour of a counter whose series begin with their first event, which an increase misses.

    That first one counts where the node was seen an hour before: what a node brings along is not new.
    """
    series = f"{counter}{{{matchers}}}"
    return (
        f"sum by ({labels}) (round(increase({series}[1h])) > 0"
        f" or (({series} unless {series} offset 1h)"
        f" and on (cluster, job, instance) commwatch_simulated{{@node@}} offset 1h) > 0)"
    )


def highest_rate(labels: str, matchers: str, counters: tuple[str, ...]) -> str:
    """The fastest of several counters, per second; those that a node lacks do not matter."""
    parts = (
        f'label_replace(rate({counter}_total{{{matchers}}}[$__rate_interval]), "counter", "{counter}", "", "")'
        for counter in counters
    )
    return f"max by ({labels}) ({' or '.join(parts)})"


def added(window: str, labels: str, counters: tuple[str, ...]) -> str:
    """Events of several counters together within a window, such as ``1h``; those that a node lacks do not matter."""
    parts = (
        f'label_replace(increase({counter}_total{{@gpu@}}[{window}]), "counter", "{counter}", "", "")'
        for counter in counters
    )
    return f"sum by ({labels}) (round({' or '.join(parts)}))"
