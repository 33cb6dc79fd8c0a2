"""Texts and expressions that several dashboards share: requirements, names of states, links."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from commwatch.findings.codes import CODES
from commwatch.generate.dashboards.panels import Colour, LabelNames, Names, Order, Scale
from commwatch_exporters.state_words import (
    COUNTER_ANOMALIES,
    FABRIC_HEALTH,
    FABRIC_STATES,
    GPU_STATES,
    NVLINK_BANDWIDTH_MODES,
    NVLINK_STATES,
    NVLINK_UP,
    P2P_STATES,
    RDMA_ACTIVE,
    RDMA_STATES,
    RECOVERY_ACTIONS,
)

# --- what a panel needs ---

NEEDS_DAEMON = "Needs a commwatch daemon that this Prometheus scrapes."
NEEDS_RULES = "Needs the rules of alerts/rules in this Prometheus."
NEEDS_SCORE = "Needs results of probes: they run while the node is free; docs/using/score.md."
NEEDS_PROBES = "Needs results of probes: they run while the node is free; docs/using/probes.md."
CHECKS = "runs of commwatch cluster check in the last days; docs/using/cluster.md."
NEEDS_CHECK = f"Needs {CHECKS}"
RUNS_BETWEEN = "runs of commwatch cluster probe that measured this node; docs/using/cluster.md."
NEEDS_CLUSTER = f"Needs {RUNS_BETWEEN}"
NEEDS_PAIRS = "Needs the pair probe: first within an hour, then once a day, on a free node with two GPUs."
NEEDS_PEERS = "Needs results of at least @peer_nodes_min@ equal nodes and the recording rules of alerts/rules."
NEEDS_NVLINK = "Needs GPUs with NVLink and the collectors nvml_nvlink and nvml_nvlink_errors."
NEEDS_NVLINK_5 = "Needs GPUs with NVLink 5 (Blackwell and later)."
NEEDS_PCIE = "Needs the collectors of PCIe: NVML for GPUs, sysfs for adapters and switches."
NEEDS_RDMA = "Needs RDMA ports (InfiniBand or RoCE) in /sys/class/infiniband."
NEEDS_ETHERNET = "Needs network interfaces with a driver that reports them; docs/reference/metrics.md."
# A single number has room for few words.
STAT_DAEMON = "Needs a commwatch daemon."
STAT_RULES = "Needs the rules (alerts/rules)."
STAT_PROBES = "Needs results of probes."
STAT_PAIRS = "Needs the pair probe."
STAT_NVLINK = "Needs GPUs with NVLink."
NOT_SEEN = "None was seen. Also empty without the kernel log and the events of the driver."

# --- names of numbers ---


def named(words: Mapping[int, str], colour: Colour, good: Collection[int] = ()) -> dict[float, tuple[str, Colour]]:
    """The words of a state in one colour; those of good states in green."""
    return {code: (word, "green" if code in good else colour) for code, word in words.items()}


SIMULATED: Names = {0: ("real", "text"), 1: ("SIMULATED", "purple")}
SEEN: Names = {0: ("not answering", "orange"), 1: ("answers", "green")}
GPU_STATE = named(GPU_STATES, "red", good=(0,))
LINK_STATE = named(NVLINK_STATES, "red", good=NVLINK_UP)
PORT_STATE: Names = named(RDMA_STATES, "orange", good=(RDMA_ACTIVE,)) | {
    0: (RDMA_STATES[0], "blue"), 1: (RDMA_STATES[1], "red"), 5: (RDMA_STATES[5], "blue"),
}  # fmt: skip
RECOVERY = named(RECOVERY_ACTIONS, "orange", good=(0,))
BANDWIDTH_MODE = named(NVLINK_BANDWIDTH_MODES, "orange", good=(0,))
HEALTH: Names = named(FABRIC_HEALTH, "orange", good=(1,)) | {2: (FABRIC_HEALTH[2], "red")}
JOINING: Names = named(FABRIC_STATES, "orange", good=(3,)) | {0: (FABRIC_STATES[0], "text")}
REFUSED: Names = named(P2P_STATES, "orange") | {5: (P2P_STATES[5], "text"), 6: (P2P_STATES[6], "text")}
ANOMALY = named(COUNTER_ANOMALIES, "orange")
CARRIER: Names = {0: ("no link", "orange"), 1: ("link", "green")}
DEGRADED: Names = {0: ("as expected", "green"), 1: ("degraded", "red")}
MISSING: Names = {0: ("no", "text"), 1: ("yes", "red")}
EXPECTED: Names = {0: ("no", "text"), 1: ("yes", "text")}
BUSY: Names = {0: ("free", "text"), 1: ("busy", "blue")}

SEVERITIES: LabelNames = {"critical": ("critical", "red"), "warning": ("warning", "orange"), "info": ("info", "blue")}
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
ALERT_TABLE_LINKS = {"alertname": "@runbooks@/${__value.raw}.md", "instance": NODE_LINK}

# --- expressions ---

_ABOUT = (
    "gpu_words", "link_words", "device", "port", "probe", "fault", "software", "gpu_model", "collector", "worker",
    "rule", "service", "check", "component", "counter", "reason", "direction", "aspect", "role", "kind", "element",
    "src", "dst", "backend", "sign", "what", "xid", "sxid", "event", "nvswitch", "message", "category", "variable",
    "remark", "digest", "expected_source", "symptom", "scope", "value", "cause", "source", "resource",
)  # fmt: skip
"""Labels of alerts that have no column of their own."""


def firing(labels: str) -> str:
    """Milliseconds since 1970 at which the sign of each alert that fires was first seen, by some labels and ``about``:
    the part, and what distinguishes two alerts of one part."""
    return f"""
    1000 * max by ({labels}, about) (
      label_join(
        label_replace(label_replace(label_replace(
          ALERTS_FOR_STATE{{@alerts@, severity=~"critical|warning"}}
          and ignoring (alertstate)
          ALERTS{{@alerts@, alertstate="firing", severity=~"critical|warning"}},
          "fault", "", "instance", ".+"),
          "gpu_words", "GPU $1", "gpu", "(.+)"),
          "link_words", "link $1", "link", "(.+)"
        ),
        "about", " ", {", ".join(f'"{label}"' for label in _ABOUT)}
      )
    )
"""


_RANKS = {3: "critical", 2: "warning", 1: "info"}
SEVERITY_RANKS: Names = {0: ("unknown", "text"), **{rank: SEVERITIES[name] for rank, name in _RANKS.items()}}
"""Severities as numbers that a table is sorted by: 3 is critical, 0 the code of a newer daemon."""
TITLES: LabelNames = {code.name: (code.title, "text") for code in CODES.values()}
FIRST_STEPS: LabelNames = {code.name: (code.next_step, "text") for code in CODES.values()}


def _of_severity(rank: int) -> str:
    codes = "|".join(code.name for code in CODES.values() if code.severity == _RANKS[rank])
    return f'{rank} * max by (code, component) (commwatch_finding{{@node@, code=~"{codes}"}} == 1)'


FINDINGS = f"""
    max by (title, component, next_step) (
      label_replace(
        label_replace(
          {" or ".join(map(_of_severity, _RANKS))} or 0 * max by (code, component) (commwatch_finding{{@node@}} == 1),
          "next_step", "$1", "code", "(.+)"
        ),
        "title", "$1", "code", "(.+)"
      )
    )
"""
"""The rank of each open finding; a title and a first step take the place of two copies of its code."""
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


def new_events(counter: str, matchers: str, labels: str, window: str = "1h") -> str:
    """Events within a window of a counter whose series begin with their first event, which an increase misses.

    That first one counts where the node was seen before the window: what a node brings along is not new.
    """
    series = f"{counter}{{{matchers}}}"
    return (
        f"sum by ({labels}) (round(increase({series}[{window}])) > 0"
        f" or (({series} unless {series} offset {window})"
        f" and on (cluster, job, instance) commwatch_simulated{{@node@}} offset {window}) > 0)"
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
