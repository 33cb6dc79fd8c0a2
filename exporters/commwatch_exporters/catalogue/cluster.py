"""Metrics of runs between nodes: results of `commwatch cluster probe` and `cluster check` for this node."""

from __future__ import annotations

from typing import Final

from commwatch_exporters.catalogue.metric import Metric, counter, gauge, info

_ORIGIN: Final = "last run between nodes"
_RAIL: Final = "rail device"
"""Number of the rail, the same on all nodes, and what it is on this one."""
_SUSPECT: Final = "kind element symptom"

ROWS: tuple[Metric, ...] = (
    gauge("cluster_rail_bandwidth_bytes_per_second", f"{_RAIL} direction backend",
          "Bandwidth of the rail to or from its best partner node; direction: sent, received.",
          _ORIGIN, "bytes_per_second"),
    gauge("cluster_rail_peer_ratio", f"{_RAIL} direction backend",
          "Bandwidth of the rail over the usual one of equal nodes in the run.", _ORIGIN, "ratio"),
    gauge("cluster_rail_latency_seconds", f"{_RAIL} backend",
          "Half a round trip of a small message to the best partner node.", _ORIGIN, "seconds"),
    gauge("cluster_pairs", f"{_RAIL} outcome", "Measurements by outcome: good, slow, failed.", _ORIGIN),
    gauge("cluster_suspect_runs", _SUSPECT, "Runs in a row that blamed this part, leaf or uplink; absent without.",
          "commwatch cluster probe; kind: nic, node, leaf, uplink, pair, network; symptom: bandwidth, latency, failed, "
          "transport"),
    gauge("cluster_suspect_ratio", _SUSPECT,
          "The part's bandwidth, or latency, over the usual one; absent where not measured.", _ORIGIN, "ratio"),
    gauge("cluster_check_failed", "cause",
          "Checks in a row that blamed this node; 0: the last did not.",
          "commwatch cluster check; cause: refused, filtered, no_route, name, wrong_interface, version, mtu, "
          "busy_port, parts"),
    gauge("cluster_unreachable_peers", "port_kind direction",
          "Nodes between which and this one connections failed in the last check; direction: in, out.",
          "commwatch cluster check; port_kind: rendezvous, ephemeral"),
    gauge("cluster_last_check_timestamp_seconds", "", "End of the last check in which this node took part.",
          "wall clock", "seconds"),
    info("profile_info", "scope value",
         "Profile for comparison with equal nodes. scope: driver, cuda, nccl, nccl_settings, commwatch, gpus, "
         "rdma_ports, rdma_firmware; values above 64 characters are digests.",
         "info metrics; NCCL: last probe results"),
    info("cluster_info", "leaf block engine topology_source backend nccl_version settings",
         "Conditions of the last run, this node's leaf, and the block above it.",
         "last run between nodes; settings: digest of the NCCL settings that ranks found here, such as /etc/nccl.conf"),
    counter("cluster_runs_total", "outcome", "Runs with a member on this node; completed: it was measured.",
            "reports over the control socket"),
    counter("cluster_skips_total", "reason", "Runs skipped because the node was not free.", "the node's gate"),
    counter("cluster_refused_reports_total", "reason",
            "Rejected reports; reason: stranger (by cluster.users), malformed, stale, replayed.", "the control socket"),
    gauge("cluster_last_completion_timestamp_seconds", "", "End of the last run that measured this node.",
          "wall clock", "seconds"),
    gauge("cluster_run_duration_seconds", "", "Duration of the run once all members were there.", _ORIGIN, "seconds"),
    gauge("cluster_run_nodes", "", "Nodes measured in the run.", _ORIGIN),
    counter("cluster_gpu_occupied_seconds_total", "", "Time runs held this node's GPUs.",
            "commwatch cluster probe", "seconds"),
)
