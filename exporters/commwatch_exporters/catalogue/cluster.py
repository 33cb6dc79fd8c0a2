"""Metrics of runs between nodes: what `commwatch cluster probe` says of this node."""

from __future__ import annotations

from typing import Final

from commwatch_exporters.catalogue.metric import Metric, counter, gauge, info

_ORIGIN: Final = "the last run of commwatch cluster probe that measured this node"
_RAIL: Final = "rail device"
"""Number of the rail, the same on all nodes, and what it is on this one."""
_SUSPECT: Final = "kind element symptom"

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("cluster_rail_bandwidth_bytes_per_second", f"{_RAIL} direction backend",
          "What the rail sent to another node, or received from one; with the best of its partners, since the traffic "
          "of others only slows. direction: sent, received.", _ORIGIN, "bytes_per_second"),
    gauge("cluster_rail_peer_ratio", f"{_RAIL} direction backend",
          "The same over what is usual among equal nodes of the run: 1 is as usual, 0.5 half of it.", _ORIGIN, "ratio"),
    gauge("cluster_rail_latency_seconds", f"{_RAIL} backend",
          "Time of a small message to another node and back, halved; with the best of its partners.", _ORIGIN,
          "seconds"),
    gauge("cluster_pairs", f"{_RAIL} outcome", "Measurements with other nodes by outcome: good, slow, failed.",
          _ORIGIN),
    gauge("cluster_suspect_runs", _SUSPECT,
          "Runs in a row that named this part of the node, or this leaf or uplink above it; absent where none did.",
          "commwatch cluster probe; kind: nic, node, leaf, uplink, pair, network; symptom: bandwidth, latency, failed, "
          "transport"),
    gauge("cluster_suspect_ratio", _SUSPECT,
          "Share of the usual bandwidth that the part has, or of latency how many times the usual one; absent where "
          "nothing could be measured.", _ORIGIN, "ratio"),
    info("profile_info", "scope value",
         "What this node is, for comparison with equal nodes; the value is always 1. scope: driver, cuda, nccl, "
         "nccl_settings, commwatch, gpus, rdma_ports, rdma_firmware; a value of more than 64 characters is a digest.",
         "the node's own info metrics; of NCCL the last results of its probes"),
    info("cluster_info", "leaf engine topology_source backend",
         "How the last run was made, and the leaf of this node in it; the value is always 1.", _ORIGIN),
    counter("cluster_runs_total", "outcome",
            "Runs in which a member took part on this node; completed: the node was measured.",
            "reports of commwatch cluster probe over the control socket"),
    counter("cluster_skips_total", "reason", "Runs out of which the node stayed because it was not free.",
            "the gate of the node, asked by commwatch cluster probe"),
    counter("cluster_refused_reports_total", "reason",
            "Reports that were handed to the daemon and do not count; reason: stranger (by cluster.users), malformed, "
            "stale, replayed.", "the control socket"),
    gauge("cluster_last_completion_timestamp_seconds", "", "When the last run that measured this node ended.",
          "wall clock of the node", "seconds"),
    gauge("cluster_run_duration_seconds", "", "Time from when all had come to the end of the run.", _ORIGIN, "seconds"),
    gauge("cluster_run_nodes", "", "Nodes that were measured in the run.", _ORIGIN),
    counter("cluster_gpu_occupied_seconds_total", "", "Time for which runs held each GPU of this node.",
            "commwatch cluster probe", "seconds"),
)
