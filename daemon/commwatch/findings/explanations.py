"""The table of what explains what: for each fault the symptoms that it can cause, how strongly, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Way: TypeAlias = Literal["", "nvlink", "pcie", "peers"]
"""Which traffic of its part a fault harms: that over NVLink, that over PCIe, that among GPUs; empty: all of it."""


class Explanation(NamedTuple):
    """How a fault causes a symptom."""

    weight: float
    """How strongly, above 0, at most 1. They rank causes, and say which may be called one (``causes.py``); they are
    judgements, not measurements."""
    reason: str
    """Why, as a sentence of its own."""
    over: Way = ""


Explanations: TypeAlias = Mapping[tuple[str, str], Explanation]
"""By code of the symptom and code of the fault."""

Kind: TypeAlias = Literal["slow", "late", "failing", "wrong", "logged", "link", "between"]

SYMPTOMS: Mapping[Kind, tuple[str, ...]] = {
    "slow": ("probe_bandwidth_low", "probe_bandwidth_lost", "probe_bandwidth_short", "probe_step", "probe_swing",
             "probe_drift", "probe_imbalance", "pair_slow", "pairs_all_slow", "pair_nearer_slower", "part_suspect"),
    "late": ("probe_latency_high",),
    "failing": ("probe_failing", "probe_error_rate_rise"),
    "wrong": ("probe_wrong_result",),
    "logged": ("nccl_errors", "nccl_timeouts", "job_stuck_suspected", "job_stuck", "job_stuck_long"),
    "link": ("nvlink_below_siblings",),
    "between": ("cluster_nic_slow", "cluster_node_slow", "cluster_peers_unreachable"),
}  # fmt: skip
"""Symptoms that a fault causes in the same way. Probes do not leave the node, jobs do."""


class _Fault(NamedTuple):
    code: str
    over: Way
    weights: Mapping[Kind, float]
    reason: str


_FAULTS: tuple[_Fault, ...] = (
    # the driver and GPUs
    *(_Fault(code, "", {"failing": 0.95, "logged": 0.95}, "Without the driver no GPU call can start.")
      for code in ("driver_mismatch", "driver_not_loaded", "driver_without_gpus", "driver_failing",
                   "driver_calls_failing", "driver_silent")),
    _Fault("gpu_lost", "", {"failing": 0.95, "logged": 0.95},
           "A lost GPU ends every call that it takes part in."),
    _Fault("gpu_not_answering", "", {"slow": 0.5, "late": 0.6, "failing": 0.9, "logged": 0.9},
           "A GPU that does not answer its driver holds up or ends every call that it takes part in."),
    _Fault("gpu_reset_required", "", {"failing": 0.9, "logged": 0.9},
           "No call can start on a GPU that waits for a reset."),
    *(_Fault(code, "", {"failing": 0.6, "logged": 0.5}, "Jobs that need all GPUs cannot start.")
      for code in ("gpu_missing", "gpu_not_listed")),
    _Fault("gpu_recovery_needed", "", {"slow": 0.3, "failing": 0.6, "logged": 0.6},
           "The driver has met an error of this GPU that is not cleared."),
    _Fault("gpu_recovery_other", "", {"slow": 0.3, "failing": 0.4, "logged": 0.4},
           "The driver has met an error of this GPU that is not cleared."),
    _Fault("gpu_slowed_down", "", {"slow": 0.4, "late": 0.4},
           "A GPU with its clocks held down moves and sums data more slowly."),
    _Fault("gpu_below_equals", "", {"slow": 0.7}, "Collectives run at the speed of the GPU with the fewest links."),
    _Fault("gpu_below_product", "", {"slow": 0.6}, "The GPUs move data over fewer lanes or links than they have."),
    _Fault("xid_gpu", "", {"slow": 0.4, "late": 0.4, "failing": 0.75, "wrong": 0.7, "logged": 0.85},
           "The driver reported an error of this GPU."),
    _Fault("xid_fatal", "", {"slow": 0.45, "late": 0.5, "failing": 0.75, "wrong": 0.6, "logged": 0.85, "link": 0.7},
           "The driver called an error of this GPU fatal."),
    _Fault("xid_fabric", "", {"slow": 0.45, "late": 0.5, "failing": 0.75, "wrong": 0.6, "logged": 0.85, "link": 0.7},
           "The driver reported that a path of this GPU failed."),
    _Fault("xid_nonfatal", "nvlink", {"slow": 0.4, "late": 0.5, "failing": 0.4, "logged": 0.4, "link": 0.5},
           "The driver reported an error of this GPU's NVLinks that it did not call fatal."),
    # the NVLink fabric
    _Fault("fabric_unhealthy", "nvlink", {"slow": 0.8, "late": 0.5, "failing": 0.85, "logged": 0.85},
           "A GPU in an unhealthy fabric has less NVLink bandwidth, or none."),
    _Fault("fabric_limited", "nvlink", {"slow": 0.85, "failing": 0.2, "logged": 0.2},
           "Part of the fabric's bandwidth is missing for this GPU."),
    _Fault("fabric_recovering", "nvlink", {"slow": 0.5, "late": 0.6, "failing": 0.5, "logged": 0.5},
           "Traffic of this GPU stalls while the fabric works on it."),
    _Fault("fabric_not_joined", "nvlink", {"slow": 0.9, "failing": 0.9, "logged": 0.9},
           "A GPU that has not joined the fabric does not reach others over NVLink."),
    _Fault("fabric_misconfigured", "nvlink", {"slow": 0.6, "failing": 0.6, "logged": 0.6},
           "The fabric does not serve this GPU as it is set up."),
    _Fault("fabric_manager_down", "nvlink", {"slow": 0.3, "failing": 0.7, "logged": 0.8},
           "Without the fabric manager no GPU can join the fabric, and no fault of a link is dealt with."),
    _Fault("fabric_service_down", "nvlink", {"failing": 0.3, "logged": 0.5},
           "NVLink lacks this service."),
    _Fault("sxid_fatal", "nvlink", {"slow": 0.45, "late": 0.4, "failing": 0.75, "logged": 0.9, "link": 0.7},
           "An NVSwitch has stopped the traffic of a link, or all."),
    _Fault("sxid_warning", "nvlink", {"slow": 0.4, "late": 0.4, "failing": 0.3, "logged": 0.3, "link": 0.4},
           "An NVSwitch reported trouble."),
    # NVLink
    _Fault("nvlink_down", "nvlink", {"slow": 0.9, "late": 0.5, "failing": 0.7, "logged": 0.8},
           "NVLink traffic has fewer links, or takes another path."),
    _Fault("nvlink_p2p_refused", "nvlink", {"slow": 0.85, "late": 0.5, "failing": 0.4, "logged": 0.4},
           "The driver sends such traffic over PCIe or the host although the NVLinks are there."),
    _Fault("nvlink_reduced", "nvlink", {"slow": 0.8}, "The links are set to a lower bandwidth."),
    _Fault("nvlink_never_up", "nvlink", {"slow": 0.5}, "Traffic has only the links that are up."),
    _Fault("nvlink_recovery_failed", "nvlink",
           {"slow": 0.8, "late": 0.6, "failing": 0.75, "wrong": 0.3, "logged": 0.9, "link": 0.9},
           "A link that cannot be trained again takes the traffic on it along."),
    _Fault("nvlink_flapping", "nvlink", {"slow": 0.5, "late": 0.8, "failing": 0.7, "logged": 0.85, "link": 0.8},
           "Each time the link goes down all that wait for it stop, or fail."),
    _Fault("nvlink_flapped", "nvlink", {"late": 0.4, "failing": 0.5, "logged": 0.6},
           "What was on the link when it went down stopped, or failed."),
    _Fault("nvlink_recovering", "nvlink", {"slow": 0.45, "late": 0.8, "failing": 0.5, "logged": 0.5, "link": 0.8},
           "Each retraining stops the link for a moment, and all that wait for it."),
    _Fault("nvlink_replays", "nvlink", {"slow": 0.4, "late": 0.5, "failing": 0.3, "logged": 0.3, "link": 0.7},
           "Damaged packets are sent again."),
    _Fault("nvlink_packet_errors", "nvlink",
           {"slow": 0.4, "late": 0.5, "failing": 0.6, "wrong": 0.7, "logged": 0.6, "link": 0.7},
           "Packets are damaged or lost on this link."),
    _Fault("nvlink_remote_errors", "nvlink",
           {"slow": 0.4, "late": 0.4, "failing": 0.5, "wrong": 0.6, "logged": 0.5, "link": 0.4},
           "Packets come in over this link that were bad before."),
    _Fault("nvlink_bit_errors", "nvlink", {"slow": 0.45, "late": 0.45, "failing": 0.3, "logged": 0.3, "link": 0.7},
           "Damaged packets are sent again."),
    _Fault("c2c_down", "", {"slow": 0.7, "late": 0.3, "failing": 0.4, "logged": 0.4},
           "Traffic between this GPU and its CPU takes another path, or none."),
    # PCIe
    _Fault("pcie_width_dropped", "pcie", {"slow": 0.9, "late": 0.3, "failing": 0.3, "logged": 0.5, "between": 0.8},
           "A link with fewer lanes carries that much less."),
    _Fault("pcie_generation_low", "pcie", {"slow": 0.85, "late": 0.3, "failing": 0.2, "logged": 0.4, "between": 0.75},
           "Each generation less halves what the link carries."),
    _Fault("pcie_device_narrow", "pcie", {"slow": 0.85, "late": 0.3, "failing": 0.2, "logged": 0.45, "between": 0.8},
           "All below this link shares fewer lanes."),
    _Fault("pcie_device_slow", "pcie", {"slow": 0.8, "late": 0.3, "failing": 0.2, "logged": 0.4, "between": 0.75},
           "Each generation less halves what the link carries for all below it."),
    _Fault("pcie_below_maximum", "pcie", {"slow": 0.55}, "The link never had what the GPU can use."),
    _Fault("pcie_fatal", "pcie", {"slow": 0.4, "late": 0.4, "failing": 0.75, "wrong": 0.5, "logged": 0.9},
           "After a fatal error the link, or what is behind it, is gone."),
    _Fault("pcie_nonfatal", "pcie", {"slow": 0.3, "late": 0.4, "failing": 0.7, "wrong": 0.5, "logged": 0.7},
           "A packet was lost for good."),
    _Fault("pcie_retrained", "pcie", {"slow": 0.4, "late": 0.7, "failing": 0.4, "logged": 0.4},
           "Traffic stops while the link is retrained."),
    _Fault("pcie_replays", "pcie", {"slow": 0.4, "late": 0.5, "failing": 0.2, "wrong": 0.2, "logged": 0.3},
           "Packets with errors are sent again."),
    _Fault("pcie_corrected", "pcie", {"slow": 0.3, "late": 0.3, "wrong": 0.1, "logged": 0.2},
           "Errors are corrected, which takes time."),
    # the network, of jobs and of runs between nodes
    _Fault("adapter_failed", "", {"logged": 0.9, "between": 0.9}, "A failed adapter carries nothing."),
    _Fault("adapter_troubled", "", {"logged": 0.5, "between": 0.6}, "The driver reports trouble of this adapter."),
    _Fault("rdma_port_down", "", {"logged": 0.9, "between": 0.9},
           "Traffic of this port stops, or takes another port."),
    _Fault("rdma_port_not_set_up", "", {"logged": 0.7, "between": 0.7}, "No job can use the port."),
    _Fault("rdma_port_flapping", "", {"logged": 0.85, "between": 0.7},
           "Each time the port goes down its connections fail."),
    _Fault("rdma_port_flapped", "", {"logged": 0.6, "between": 0.4},
           "When the port went down its connections failed."),
    _Fault("rdma_errors", "", {"logged": 0.7, "between": 0.7},
           "Packets are lost or damaged on this port, and connections give up."),
    _Fault("rdma_retransmitting", "", {"logged": 0.6, "between": 0.6},
           "Packets sent again arrive late, until the connection fails."),
    _Fault("rdma_congested", "", {"logged": 0.3, "between": 0.5}, "Traffic waits before or behind this port."),
    _Fault("rdma_port_missing", "", {"logged": 0.85, "between": 0.9},
           "Traffic of this port stops, or takes another port."),
    _Fault("rdma_port_slow", "", {"logged": 0.35, "between": 0.85}, "The port runs below its speed."),
    _Fault("rdma_packets_refused", "", {"logged": 0.6, "between": 0.5},
           "Packets that a partition refuses never arrive."),
    _Fault("rdma_dropping", "", {"logged": 0.5, "between": 0.5},
           "Dropped packets are sent again, until the connection fails."),
    _Fault("rdma_connections_lost", "", {"logged": 0.75, "between": 0.5}, "The call ends with its connection."),
    _Fault("ethernet_errors", "", {"logged": 0.4, "between": 0.7}, "Packets are lost or damaged on this interface."),
    _Fault("ethernet_slow", "", {"logged": 0.35, "between": 0.85}, "The interface runs below its speed."),
    _Fault("ethernet_down", "", {"logged": 0.5, "between": 0.9}, "Traffic without another interface stops."),
    _Fault("ethernet_flapping", "", {"logged": 0.4, "between": 0.6}, "Connections stall each time the link is lost."),
    _Fault("ethernet_flapped", "", {"logged": 0.3, "between": 0.3}, "Connections stalled when the link was lost."),
    _Fault("ethernet_pause_storm", "", {"logged": 0.4, "between": 0.5},
           "All who share the switch's buffers wait for this adapter."),
    # settings, of jobs only
    # Below a degraded link, which harms whatever runs there: the setting harms the jobs that have it.
    _Fault("nccl_setting_harmful", "", {"logged": 0.38},
           "The setting takes a path or an adapter away from the job, or makes it give up early."),
    _Fault("nccl_setting_suspicious", "", {"logged": 0.3},
           "The setting slows the job down on most nodes, or makes it give up early."),
)  # fmt: skip
"""How strongly each fault causes each kind of symptom; a missing weight means not at all. Settings of jobs do not reach
the probes.

A part with fewer lanes, links or less bandwidth than before slows everything that uses it (0.8 and more); corrected
errors cost moments (below 0.5), and an event ends the jobs of its time, not later ones (below 0.8).
"""

_SLOW = ("probe_bandwidth_low", "probe_bandwidth_lost", "probe_bandwidth_short")
"""A probe over all GPUs is one of these at a time."""
_AMONG_SYMPTOMS: Explanations = {
    **{(symptom, "part_suspect"): Explanation(0.5, "The pair matrix points at a part that this traffic uses.", "peers")
       for symptom in (*_SLOW, "probe_step", "probe_drift", "probe_imbalance")},
    ("nccl_timeouts", "part_suspect"): Explanation(0.5, "The pair matrix points at a part that this traffic uses."),
    **{(symptom, "pair_slow"): Explanation(0.45, "A ring runs at the speed of its weakest pair.", "peers")
       for symptom in (*_SLOW, "probe_step", "probe_drift", "probe_imbalance")},
    **{(symptom, "pair_nearer_slower"): Explanation(0.55, "A ring takes the near paths, which are slow here.", "peers")
       for symptom in _SLOW},
    **{(symptom, "pairs_all_slow"): Explanation(0.35, "All traffic among GPUs uses the slow paths.", "peers")
       for symptom in (*_SLOW, "nccl_timeouts")},
    ("pair_nearer_slower", "part_suspect"): Explanation(0.6, "The pair matrix points at a part that the two share."),
    ("pair_slow", "pair_nearer_slower"): Explanation(
        0.6, "Even the path through the CPU is faster: what the two share under their switch is slow."),
    ("probe_failing", "probe_wrong_result"): Explanation(0.6, "A wrong result is a failure."),
    ("probe_error_rate_rise", "probe_wrong_result"): Explanation(0.6, "A wrong result is a failure."),
    ("probe_error_rate_rise", "probe_failing"): Explanation(0.9, "It fails each time now."),
    ("nccl_timeouts", "nccl_errors"): Explanation(0.45, "The logs name an error that leaves others waiting."),
    ("nccl_job_errors", "nccl_setting_harmful"): Explanation(0.7, "A setting that harms often fails the job as well."),
    ("nccl_job_errors", "nccl_setting_suspicious"): Explanation(0.4, "The setting may fail the job."),
    ("nccl_timeouts", "nccl_job_errors"): Explanation(0.7, "The logs name an error of the job itself."),
    **{("job_network_bound", fault): Explanation(weight, "The network carries less than the job expects of it.")
       for fault, weight in (("rdma_port_down", 0.8), ("rdma_port_missing", 0.8), ("rdma_port_slow", 0.8),
                             ("ethernet_slow", 0.7), ("rdma_errors", 0.5), ("rdma_retransmitting", 0.5))},
    **{("job_network_bound", fault): Explanation(weight, "TCP carries a fraction of what RDMA does.")
       for fault, weight in (("nccl_transport_fallback", 0.9), ("job_over_tcp", 0.7))},
    ("job_over_tcp", "nccl_transport_fallback"): Explanation(0.9, "The log of a job says the same."),
    **{("job_pcie_bound", fault): Explanation(0.8, "A link with fewer lanes, or a slower one, carries less.", "pcie")
       for fault in ("pcie_width_dropped", "pcie_generation_low", "pcie_device_narrow", "pcie_device_slow")},
    **{("job_nvlink_bound", fault): Explanation(0.8, "The links that are left carry the traffic of all.", "nvlink")
       for fault in ("nvlink_down", "nvlink_recovering")},
    ("rdma_retransmitting", "rdma_errors"): Explanation(0.8, "Packets that are lost or damaged are sent again."),
    ("rdma_retransmitting", "rdma_port_flapping"): Explanation(0.6, "Packets in flight are lost with the port."),
    ("rdma_retransmitting", "rdma_congested"): Explanation(0.4, "Packets dropped in congestion are sent again."),
    ("rdma_retransmitting", "rdma_dropping"): Explanation(0.7, "Dropped packets are sent again."),
    ("rdma_retransmitting", "rdma_errors_upstream"): Explanation(0.6, "Packets that were damaged are sent again."),
    **{("rdma_retransmitting", fault): Explanation(0.7, "RoCE packets lost on the interface are sent again.")
       for fault in ("ethernet_errors", "ethernet_dropping")},
    **{("rdma_dropping", fault): Explanation(0.7, "Queued packets are dropped when the port goes down.")
       for fault in ("rdma_port_down", "rdma_port_flapping")},
    ("rdma_dropping", "rdma_congested"): Explanation(0.5, "Packets that wait for too long are dropped."),
    **{("rdma_connections_lost", fault): Explanation(weight, "Replies stop.")
       for fault, weight in (("rdma_port_down", 0.9), ("rdma_port_flapping", 0.85), ("rdma_retransmitting", 0.7),
                             ("rdma_errors", 0.6))},
    **{(symptom, fault): Explanation(0.9, "The port stands on this interface.")
       for symptom, fault in (("rdma_port_down", "ethernet_down"), ("rdma_port_slow", "ethernet_slow"))},
    **{(symptom, "ethernet_module_fault"): Explanation(0.7, "The cable's module reported a fault.")
       for symptom in ("ethernet_down", "ethernet_flapping", "ethernet_slow", "ethernet_errors")},
    ("rdma_congested", "ethernet_paused"): Explanation(0.7, "The network stops the interface of the port."),
    **{(symptom, fault): Explanation(0.6, "The adapter cannot hand on packets as fast as they come.")
       for symptom in ("ethernet_pausing", "ethernet_pause_storm", "ethernet_dropping")
       for fault in ("pcie_device_narrow", "pcie_device_slow")},
    ("gpu_lost", "xid_fabric"): Explanation(0.8, "The driver reported that the GPU or its bus failed."),
    ("gpu_lost", "pcie_fatal"): Explanation(0.7, "After a fatal error the device behind the link is gone."),
    ("gpu_not_answering", "xid_gpu"): Explanation(0.7, "The driver reported an error of this GPU."),
    ("gpu_reset_required", "xid_gpu"): Explanation(0.7, "The driver reported an error of this GPU."),
    ("gpu_reset_required", "xid_fabric"): Explanation(0.6, "The driver reported that a path of this GPU failed."),
    ("gpu_recovery_needed", "xid_gpu"): Explanation(0.7, "The driver reported an error of this GPU."),
    ("gpu_recovery_needed", "xid_fabric"): Explanation(0.6, "The driver reported that a path of this GPU failed."),
    **{(symptom, "xid_fabric"): Explanation(0.7, "The driver reported that a path of this GPU failed.")
       for symptom in ("nvlink_down", "nvlink_flapping")},
    **{(symptom, "sxid_fatal"): Explanation(0.7, "The NVSwitch reported a link at that time.", "nvlink")
       for symptom in ("nvlink_down", "nvlink_flapping", "xid_fabric")},
    ("nvlink_down", "nvlink_flapping"): Explanation(0.6, "The link has gone down again and again.", "nvlink"),
    ("nvlink_down", "nvlink_recovery_failed"): Explanation(0.8, "The link could not be trained again.", "nvlink"),
    ("rdma_port_down", "rdma_port_not_set_up"): Explanation(0.9, "No subnet manager has set it up."),
    **{(symptom, "adapter_failed"): Explanation(0.9, "The adapter of this port has failed.")
       for symptom in ("rdma_port_down", "rdma_port_missing", "rdma_port_flapping", "ethernet_down",
                       "ethernet_flapping")},
    ("ethernet_module_fault", "adapter_troubled"): Explanation(0.7, "The driver reports the module of this adapter."),
    ("fabric_not_joined", "fabric_manager_down"): Explanation(0.9, "Without it no GPU can join."),
}  # fmt: skip
"""Of two symptoms, the one that is closer to the cause."""


def _table(faults: Iterable[_Fault], more: Explanations) -> Explanations:
    found = {
        (symptom, fault.code): Explanation(weight, fault.reason, fault.over)
        for fault in faults
        for kind, weight in fault.weights.items()
        for symptom in SYMPTOMS[kind]
    }
    return {**found, **more}


EXPLANATIONS: Explanations = _table(_FAULTS, _AMONG_SYMPTOMS)
"""The possible explanations on a node. Nothing explains itself, also not by way of others."""
