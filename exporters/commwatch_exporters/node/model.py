"""The node in types: each kind of part with the numbers that it may have.

The name of a number is that of its metric without the part's own. The row of the catalogue has its meaning, its unit,
and its origin; a number is in the base unit that the metric's name ends in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import ClassVar, Final, TypeVar

from commwatch_exporters.node.parts import Column, Identity, Info, Keyed, Label, Number, Part, Parts
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.state_words import NVLINK_UP

_Kind = TypeVar("_Kind", bound=Part)

PCIE_PORTS: Final = frozenset({"root_port", "switch_port"})
"""Roles of the PCIe devices that are the end of a link with others behind it."""


class _AtGpu(Part):
    """A GPU or a part of it; known by the PCI address, whatever the index."""

    BESIDE: ClassVar[tuple[str, ...]] = ("gpu",)
    index = Label("gpu")
    """NVML index of the GPU; empty where it is not known."""
    address = Label("pci_bus_id")
    """Of the GPU; empty where it is not known."""

    @classmethod
    def identity_of(cls, labels: Mapping[str, str]) -> Identity:
        """The address comes first; if it was never known, the index replaces it."""
        found = super().identity_of(labels)
        return found if found[0] else (f"index:{labels.get('gpu', '')}", *found[1:])

    @property
    def gpu(self) -> Gpu:
        return Gpu(self.node, self.labels)


class Gpu(_AtGpu):
    """A GPU, with the PCIe link above it and the place that it has in the fabric."""

    IDENTITY = ("pci_bus_id",)
    info = Info("gpu_info")
    uuid = Label()
    serial = Label()
    name = Label()
    architecture = Label()

    state = Number("gpu_state")
    calls_failing_since = Number("gpu_calls_failing_timestamp_seconds")
    busy = Number("gpu_busy")
    utilization_ratio = Number("gpu_utilization_ratio")
    compute_processes = Number("gpu_compute_processes")
    compute_mode = Number("gpu_compute_mode")
    memory_size_bytes = Number("gpu_memory_size_bytes")
    memory_used_bytes = Number("gpu_memory_used_bytes")
    power_watts = Number("gpu_power_watts")
    power_limit_watts = Number("gpu_power_limit_watts")
    temperature_celsius = Number("gpu_temperature_celsius")
    job_first = Number("gpu_job_first")
    job_recent_use_ratio = Number("gpu_job_recent_use_ratio")
    job_network_recent_use_ratio = Number("gpu_job_network_recent_use_ratio")
    job_nvlink_recent_use_ratio = Number("gpu_job_nvlink_recent_use_ratio")
    job_pcie_recent_use_ratio = Number("gpu_job_pcie_recent_use_ratio")
    job_recent_use_low_ratio = Number("gpu_job_recent_use_low_ratio")
    job_recent_use_high_ratio = Number("gpu_job_recent_use_high_ratio")
    job_nvlink_recent_use_low_ratio = Number("gpu_job_nvlink_recent_use_low_ratio")
    job_pcie_recent_use_low_ratio = Number("gpu_job_pcie_recent_use_low_ratio")
    job_network_recent_use_low_ratio = Number("gpu_job_network_recent_use_low_ratio")
    job_stuck_seconds = Number("job_stuck_seconds")
    job_stuck_first = Number("job_stuck_first")
    job_silent_seconds = Number("job_silent_seconds")
    job_stopped_processes = Number("job_stopped_processes")
    job_odd_rank = Keyed("job_odd_rank")
    job_over_tcp_seconds = Keyed("job_over_tcp_seconds")
    job_over_tcp_bytes_per_second = Keyed("job_over_tcp_bytes_per_second")
    job_use_ratio = Number("gpu_job_use_ratio")
    job_nvlink_use_ratio = Number("gpu_job_nvlink_use_ratio")
    job_pcie_use_ratio = Number("gpu_job_pcie_use_ratio")
    job_network_use_ratio = Number("gpu_job_network_use_ratio")
    mig_mode = Number("gpu_mig_mode")
    recovery_action = Number("gpu_recovery_action")
    clocks_event_reasons = Keyed("gpu_clocks_event_reason")
    performance_limited_seconds = Keyed("gpu_performance_limited_seconds_total")
    xids = Keyed("gpu_xid_events_total")
    xids_nonfatal = Keyed("gpu_xid_nonfatal_events_total")
    xids_fatal = Keyed("gpu_xid_fatal_events_total")
    last_xid_timestamp_seconds = Number("gpu_last_xid_timestamp_seconds")
    kernel_log_messages = Keyed("kernel_log_gpu_messages_total")
    init_failed = Keyed("gpu_init_failed")
    possible_addresses = Keyed("gpu_possible_address")

    nvlink_links = Number("nvlink_links")
    nvlink_bandwidth_mode = Number("nvlink_bandwidth_mode")
    nvlink_capacity_bytes_per_second = Number("nvlink_capacity_bytes_per_second")
    nvlink_switch_links = Number("nvlink_switch_links")
    nvlink_sibling_bytes_per_second = Keyed("nvlink_sibling_bytes_per_second")
    nvlink_slowest_link = Keyed("nvlink_slowest_link")
    nvlink_slowest_link_bytes_per_second = Keyed("nvlink_slowest_link_bytes_per_second")
    nvlink_transmit_utilization_ratio = Number("nvlink_transmit_utilization_ratio")
    nvlink_receive_utilization_ratio = Number("nvlink_receive_utilization_ratio")
    nvlink_transmit_utilization_peak_ratio = Number("nvlink_transmit_utilization_peak_ratio")
    nvlink_receive_utilization_peak_ratio = Number("nvlink_receive_utilization_peak_ratio")

    fabric_state = Number("fabric_state")
    fabric_status = Number("fabric_status")
    fabric_health = Number("fabric_health")
    fabric_incorrect_configuration = Number("fabric_incorrect_configuration")
    fabric_faults = Keyed("fabric_fault")

    pcie_generation = Number("pcie_link_generation")
    pcie_generation_max = Number("pcie_link_generation_max")
    """Of both ends."""
    pcie_gpu_generation_max = Number("pcie_gpu_link_generation_max")
    """Of the GPU alone."""
    pcie_width_lanes = Number("pcie_link_width_lanes")
    pcie_width_max_lanes = Number("pcie_link_width_max_lanes")
    pcie_width_expected_lanes = Number("pcie_link_width_expected_lanes")
    pcie_degraded = Keyed("pcie_link_degraded")
    below_equals = Keyed("gpu_below_equals")
    below_product = Keyed("gpu_below_product")
    never_seen = Keyed("gpu_never_seen")
    pcie_fatal_errors = Number("pcie_fatal_errors_total")
    pcie_nonfatal_errors = Number("pcie_nonfatal_errors_total")
    pcie_replays = Number("pcie_replays_total")
    pcie_replay_rollovers = Number("pcie_replay_rollovers_total")
    pcie_transmit_bytes = Number("pcie_transmit_bytes_total")
    """None where PCIe traffic is not measured, but sampled at most."""
    pcie_transmit_utilization_ratio = Number("pcie_transmit_utilization_ratio")
    pcie_receive_utilization_ratio = Number("pcie_receive_utilization_ratio")
    pcie_transmit_utilization_peak_ratio = Number("pcie_transmit_utilization_peak_ratio")
    pcie_receive_utilization_peak_ratio = Number("pcie_receive_utilization_peak_ratio")

    @property
    def links(self) -> Sequence[NvLink]:
        """Its NVLinks that are here or should be, by number."""
        return self.node.derived(_links_by_gpu).get(self.identity, ())

    @property
    def links_up(self) -> int | None:
        """How many of them are up; None where no state is read."""
        read = [up for link in self.links if (up := link.is_up) is not None]
        return sum(read) if read else None

    @property
    def links_expected(self) -> int:
        """How many of them should be up; 0 where nothing was learned."""
        return sum(link.expected == 1 for link in self.links)


class NvLink(_AtGpu):
    IDENTITY = ("pci_bus_id", "link")
    number = Label("link")
    info = Info("nvlink_info")
    version = Label()
    remote_type = Label()
    remote_address = Label("remote_pci_bus_id")
    remote_number = Label("remote_link")

    state = Number("nvlink_link_state")
    expected = Number("nvlink_link_expected")
    flaps = Number("nvlink_link_flaps_total")
    flaps_recent = Number("nvlink_link_flaps_recent")
    speed_bytes_per_second = Number("nvlink_link_speed_bytes_per_second")
    """In one direction."""
    crc_flit_errors = Number("nvlink_crc_flit_errors_total")
    crc_data_errors = Number("nvlink_crc_data_errors_total")
    replay_errors = Number("nvlink_replay_errors_total")
    recovery_errors = Number("nvlink_recovery_errors_total")
    """NVLink 1 to 4."""
    recoveries = Number("nvlink_recoveries_total")
    """NVLink 5."""
    recoveries_failed = Number("nvlink_recoveries_failed_total")
    effective_errors = Number("nvlink_effective_errors_total")
    effective_bit_error_ratio = Number("nvlink_effective_bit_error_ratio")

    @property
    def is_up(self) -> bool | None:
        """Whether it carries traffic, or sleeps until there is some; None where its state is not read."""
        state = self.state
        return None if state is None else state in NVLINK_UP


def _links_by_gpu(node: Parts) -> Mapping[Identity, Sequence[NvLink]]:
    """By identity of the GPU."""
    links = {link.identity: link for column in (NvLink.state, NvLink.expected) for link, _ in node.each(column)}
    found: dict[Identity, list[NvLink]] = {}
    for link in sorted(links.values(), key=lambda link: (len(link.number), link.number)):
        found.setdefault(link.identity[:1], []).append(link)
    return found


class C2cLink(_AtGpu):
    """One chip-to-chip link between a GPU and its CPU."""

    IDENTITY = ("pci_bus_id", "link")
    number = Label("link")
    up = Number("c2c_link_up")


class PeerAccess(_AtGpu):
    """Access of one GPU to the memory of another, by capability."""

    IDENTITY = ("pci_bus_id", "peer_pci_bus_id", "capability")
    BESIDE = ("gpu", "peer")
    peer_index = Label("peer")
    peer_address = Label("peer_pci_bus_id")
    capability = Label()
    status = Number("gpu_p2p_status")

    @property
    def peer(self) -> Gpu:
        """The other GPU."""
        return Gpu(self.node, {"gpu": self.peer_index, "pci_bus_id": self.peer_address})


class PcieDevice(Part):
    """A device on paths of communication, with the PCIe link above it."""

    IDENTITY = ("device",)
    BESIDE = ("role",)
    address = Label("device")
    info = Info("pcie_device_info")
    role = Label()
    parent = Label()
    """PCI address of the bridge above it, or name of the host bridge."""
    numa_node = Label()

    generation = Number("pcie_device_link_generation")
    generation_max = Number("pcie_device_link_generation_max")
    width_lanes = Number("pcie_device_link_width_lanes")
    width_max_lanes = Number("pcie_device_link_width_max_lanes")
    adapter_unbound = Number("pcie_adapter_unbound")
    degraded = Keyed("pcie_device_link_degraded")
    aer_errors = Keyed("pcie_aer_errors_total")
    aer_root_port_errors = Keyed("pcie_aer_root_port_errors_total")

    @property
    def above(self) -> list[PcieDevice]:
        """The devices above it, the nearest first; what is not read ends the way."""
        found: list[PcieDevice] = []
        here = self
        while (parent := here.parent) and parent not in (one.address for one in found):
            here = self.node.part(PcieDevice, parent)
            found.append(here)
        return found

    @property
    def port(self) -> PcieDevice | None:
        """The port at the upper end of its link; None where there is none, as on the bus of a host bridge.

        Ports take turns on the way down from a root port: root port, upstream port of a switch, downstream port,
        upstream port of the next switch. Between the upstream and the downstream port of one switch there is no link,
        and a downstream port shows the link below it.
        """
        ports = list(takewhile(lambda one: one.role in PCIE_PORTS, self.above))
        return ports[0] if len(ports) % 2 else None


class NvSwitch(Part):
    """An NVSwitch that the host sees."""

    IDENTITY = ("device",)
    address = Label("device")
    sxids = Keyed("nvswitch_sxid_events_total")
    sxids_nonfatal = Keyed("nvswitch_sxid_nonfatal_events_total")
    sxids_fatal = Keyed("nvswitch_sxid_fatal_events_total")


class Adapter(Part):
    """A network adapter, by its PCI function, of which the kernel log has said something."""

    IDENTITY = ("device",)
    address = Label("device")
    events = Keyed("adapter_events_total")


class Service(Part):
    """A service that runs the fabric."""

    IDENTITY = ("service",)
    name = Label("service")
    running = Number("service_running")
    fabric_mode = Number("service_fabric_mode")


class RdmaPort(Part):
    IDENTITY = ("device", "port")
    device = Label()
    number = Label("port")
    info = Info("rdma_port_info")
    link_layer = Label()
    sm_lid = Label()
    firmware = Label()
    hca_type = Label()
    address = Label("pci_bus_id")
    interface = Label("netdev")

    expected = Number("rdma_port_expected")
    state = Number("rdma_port_state")
    physical_state = Number("rdma_port_phys_state")
    speed_bytes_per_second = Number("rdma_port_speed_bytes_per_second")
    speed_expected_bytes_per_second = Number("rdma_port_speed_expected_bytes_per_second")
    width_lanes = Number("rdma_port_width_lanes")
    virtual_functions = Number("rdma_port_virtual_functions")
    transmit_utilization_ratio = Number("rdma_port_transmit_utilization_ratio")
    receive_utilization_ratio = Number("rdma_port_receive_utilization_ratio")
    transmit_utilization_peak_ratio = Number("rdma_port_transmit_utilization_peak_ratio")
    receive_utilization_peak_ratio = Number("rdma_port_receive_utilization_peak_ratio")
    gids = Number("rdma_port_gids")
    gid_indexes = Keyed("rdma_port_gid_index")
    flaps = Number("rdma_port_flaps_total")
    flaps_recent = Number("rdma_port_flaps_recent")
    link_downed = Number("rdma_port_link_downed_total")

    symbol_errors = Number("rdma_port_symbol_errors_total")
    receive_errors = Number("rdma_port_receive_errors_total")
    icrc_errors = Number("rdma_icrc_errors_total")

    port_transmit_packets = Number("rdma_port_transmit_packets_total")
    port_transmit_wait_ticks = Number("rdma_port_transmit_wait_ticks_total")
    port_transmit_discards = Number("rdma_port_transmit_discards_total")
    transmit_packets = Number("rdma_transmit_packets_total")
    retransmitted_packets = Number("rdma_retransmitted_packets_total")
    ack_timeouts = Number("rdma_ack_timeouts_total")
    packet_sequence_errors = Number("rdma_packet_sequence_errors_total")
    cnp_handled = Number("rdma_cnp_handled_total")
    ecn_marked = Number("rdma_ecn_marked_total")

    @property
    def network_interface(self) -> Interface:
        """That of a RoCE port; of a port without one, an interface of which nothing is read."""
        return self.node.part(Interface, self.interface)


class Interface(Part):
    IDENTITY = ("device",)
    name = Label("device")
    info = Info("ethernet_info")
    address = Label("pci_bus_id")
    master = Label()

    expected = Number("ethernet_expected")
    carrier = Number("ethernet_carrier")
    speed_bytes_per_second = Number("ethernet_speed_bytes_per_second")
    speed_expected_bytes_per_second = Number("ethernet_speed_expected_bytes_per_second")
    mtu_bytes = Number("ethernet_mtu_bytes")
    transmit_utilization_ratio = Number("ethernet_transmit_utilization_ratio")
    receive_utilization_ratio = Number("ethernet_receive_utilization_ratio")
    carrier_changes = Number("ethernet_carrier_changes_total")
    carrier_downs = Number("ethernet_carrier_downs_total")
    flaps_recent = Number("ethernet_flaps_recent")
    phy_link_down = Number("ethernet_phy_link_down_total")
    transmit_errors = Number("ethernet_transmit_errors_total")
    module_events = Keyed("ethernet_module_events_total")

    receive_errors = Number("ethernet_receive_errors_total")
    receive_crc_errors = Number("ethernet_receive_crc_errors_total")
    phy_crc_errors = Number("ethernet_phy_crc_errors_total")
    phy_symbol_errors = Number("ethernet_phy_symbol_errors_total")
    phy_pcs_symbol_errors = Number("ethernet_phy_pcs_symbol_errors_total")
    global_transmit_pause_seconds = Number("ethernet_global_transmit_pause_seconds_total")
    global_receive_pause_seconds = Number("ethernet_global_receive_pause_seconds_total")
    pfc_transmit_pause_seconds = Keyed("ethernet_pfc_transmit_pause_seconds_total")
    pfc_receive_pause_seconds = Keyed("ethernet_pfc_receive_pause_seconds_total")


class Probe(Part):
    """A probe with its backend."""

    IDENTITY = ("probe", "backend")
    name = Label("probe")
    backend = Label()
    info = Info("probe_info")
    collective = Label()
    latency_bytes = Label()
    bandwidth_bytes = Label()
    ranks = Label()
    nccl_version = Label()
    torch_version = Label()
    settings = Label()
    expected_source = Label()

    attempts = Number("probe_attempts_total")
    failures = Keyed("probe_failures_total")
    skips = Keyed("probe_skips_total")
    yields = Keyed("probe_yields_total")
    last_completion_timestamp_seconds = Number("probe_last_completion_timestamp_seconds")
    last_latency_seconds = Number("probe_last_latency_seconds")
    hidden_ratio = Number("probe_hidden_ratio")
    baseline_latency_seconds = Number("probe_baseline_latency_seconds")
    latency_spikes = Number("probe_latency_spikes_total")
    latency_spike_streak = Number("probe_latency_spike_streak")
    latency_judged_by = Keyed("probe_latency_judged_info")
    latency_step_ratio = Number("probe_latency_step_ratio")
    latency_swing_ratio = Number("probe_latency_swing_ratio")
    latency_drift_ratio = Number("probe_latency_drift_ratio")
    last_bus_bandwidth_bytes_per_second = Number("probe_last_bus_bandwidth_bytes_per_second")
    expected_bandwidth_bytes_per_second = Number("probe_expected_bandwidth_bytes_per_second")
    bandwidth_utilization_ratio = Number("probe_bandwidth_utilization_ratio")
    low_bandwidth_streak = Number("probe_low_bandwidth_streak")
    short_bandwidth_streak = Number("probe_short_bandwidth_streak")
    losses = Number("probe_losses")
    unmeasured_losses = Number("probe_unmeasured_losses")
    expected_latency_seconds = Keyed("probe_expected_latency_seconds")
    """By source."""
    latency_above_model_streak = Number("probe_latency_above_model_streak")
    bandwidth_step_ratio = Number("probe_bandwidth_step_ratio")
    bandwidth_swing_ratio = Number("probe_bandwidth_swing_ratio")
    bandwidth_drift_ratio = Number("probe_bandwidth_drift_ratio")
    rank_balance_ratio = Number("probe_rank_balance_ratio")


class SlowestRank(Part):
    """The rank of a probe that took longest."""

    IDENTITY = ("probe", "backend")
    info = Info("probe_slowest_rank_info")
    rank = Label()
    address = Label("pci_bus_id")
    """Of its GPU; empty where it has none."""


class ProbeLoss(Part):
    """A quantity of a probe that is below the node's own level; only while it is."""

    IDENTITY = ("probe", "backend", "quantity")
    probe = Label()
    backend = Label()
    quantity = Label()
    ratio = Number("probe_loss_ratio")
    level_bytes_per_second = Number("probe_loss_level_bytes_per_second")
    bandwidth_bytes_per_second = Number("probe_loss_bandwidth_bytes_per_second")
    since_timestamp_seconds = Number("probe_loss_since_timestamp_seconds")


class HostCopy(Part):
    """Copies between one GPU and the host in one direction, as a probe measures them."""

    IDENTITY = ("probe", "backend", "gpu", "pci_bus_id", "direction")
    probe = Label()
    backend = Label()
    gpu_index = Label("gpu")
    address = Label("pci_bus_id")
    direction = Label()
    bandwidth_bytes_per_second = Number("probe_copy_bandwidth_bytes_per_second")
    expected_bandwidth_bytes_per_second = Number("probe_copy_expected_bandwidth_bytes_per_second")


class Pair(Part):
    """Two GPUs in one direction, as the pair probe measures them."""

    IDENTITY = ("src", "dst", "backend")
    source = Label("src")
    target = Label("dst")
    backend = Label()
    bandwidth_bytes_per_second = Number("pair_bandwidth_bytes_per_second")
    expected_bandwidth_bytes_per_second = Number("pair_expected_bandwidth_bytes_per_second")
    both_ways_bandwidth_bytes_per_second = Number("pair_both_ways_bandwidth_bytes_per_second")


class Suspect(Part):
    """A part that slow pairs have in common."""

    IDENTITY = ("kind", "element")
    kind = Label()
    element = Label()
    ratio = Number("suspect_ratio")


class LogCategory(Part):
    """Counts from the NCCL logs of jobs, by category."""

    IDENTITY = ("category",)
    name = Label("category")
    errors = Number("nccl_log_errors_total")


class TransportFallback(Part):
    """A way in which jobs leave a faster transport, as their NCCL logs show."""

    IDENTITY = ("kind",)
    kind = Label()
    logs = Number("nccl_log_transport_fallbacks_total")


class NamedDevice(Part):
    """An RDMA device that the NCCL logs of jobs can name."""

    IDENTITY = ("device",)
    name = Label("device")
    errors = Number("nccl_log_device_errors_total")


class SilentRank(Part):
    """A rank of this node, as many as it has GPUs, that can be the one for which the others wait."""

    IDENTITY = ("local_rank",)
    number = Label("local_rank")
    incidents = Number("nccl_log_silent_rank_incidents_total")


class NcclSetting(Part):
    """A remark on an NCCL setting of running jobs."""

    IDENTITY = ("variable", "remark", "severity")
    variable = Label()
    remark = Label()
    severity = Label()
    processes = Number("nccl_setting_processes")


class Inventory(Part):
    """Parts of one kind: those that are here, and those that should be."""

    IDENTITY = ("kind",)
    kind = Label()
    present = Number("present")
    expected = Number("expected")
    never_seen = Number("never_seen")


class ExpectedParts(Part):
    """Where the expectation of a kind comes from."""

    IDENTITY = ("kind", "source")
    kind = Label()
    source = Label()
    info = Number("inventory_info")


class ClusterRail(Part):
    """A rail of this node in the last run between nodes."""

    IDENTITY = ("rail",)
    BESIDE = ("device", "backend")
    number = Label("rail")
    device = Label()
    bandwidth_bytes_per_second = Keyed("cluster_rail_bandwidth_bytes_per_second")
    peer_ratio = Keyed("cluster_rail_peer_ratio")
    latency_seconds = Number("cluster_rail_latency_seconds")
    pairs = Keyed("cluster_pairs")


class ClusterSuspect(Part):
    """A part of this node, or above it, that runs between nodes name."""

    IDENTITY = ("kind", "element", "symptom")
    kind = Label()
    element = Label()
    symptom = Label()
    runs = Number("cluster_suspect_runs")
    ratio = Number("cluster_suspect_ratio")


class ClusterRuns(Part):
    """The runs between nodes in which this node took part."""

    last_completion_timestamp_seconds = Number("cluster_last_completion_timestamp_seconds")
    nodes = Number("cluster_run_nodes")


class ClusterCheck(Part):
    """The checks between nodes in which this node took part."""

    failed = Keyed("cluster_check_failed")
    last_timestamp_seconds = Number("cluster_last_check_timestamp_seconds")


class ClusterConnections(Part):
    """Connections from or to other nodes, as the last check tried them."""

    IDENTITY = ("port_kind", "direction")
    port_kind = Label()
    direction = Label()
    unreachable_peers = Number("cluster_unreachable_peers")


class Collector(Part):
    IDENTITY = ("collector",)
    name = Label("collector")
    success = Number("collector_success")
    last_success_timestamp_seconds = Number("collector_last_success_timestamp_seconds")
    interval_seconds = Number("collector_interval_seconds")
    errors = Keyed("collector_errors_total")


class UnreadDevice(Part):
    """A device as a collector could not read it whole."""

    IDENTITY = ("collector", "device")
    collector = Label()
    device = Label()
    """As its source names it: a PCI address, ``mlx5_0:1``, an interface."""
    failing = Keyed("collector_device_failing")


class Worker(Part):
    IDENTITY = ("worker",)
    name = Label("worker")
    stuck = Number("worker_stuck")
    restarts = Keyed("worker_restarts_total")


class SourceCounter(Part):
    """A counter of a device as its source gives it."""

    IDENTITY = ("source", "device", "counter")
    source = Label()
    device = Label()
    """As the source names it: ``mlx5_0/1`` of an RDMA port."""
    counter = Label()
    anomaly = Number("counters_anomaly")


class Source(Part):
    """An origin of numbers."""

    IDENTITY = ("source",)
    name = Label("source")
    available = Number("source_available")
    unread = Number("source_unread")
    counter_states = Keyed("counters_state")


class FindingRule(Part):
    IDENTITY = ("rule",)
    name = Label("rule")
    errors = Number("finding_rule_errors_total")


class GpuDirectWay(Part):
    """A way by which adapters may reach the memory of GPUs."""

    IDENTITY = ("way",)
    name = Label("way")
    available = Number("gpudirect_rdma_available")


class Driver(Part):
    info = Info("software_info")
    driver_version = Label()
    nvml_version = Label()
    cuda_driver_version = Label()
    unusable = Keyed("driver_unusable")


class Daemon(Part):
    """The daemon, and its values for the node as a whole."""

    info = Info("build_info")
    version = Label()
    python_version = Label()
    config_last_reload_successful = Number("config_last_reload_successful")
    clock_steps = Number("clock_steps_total")
    starved = Number("starved")
    late_seconds = Number("daemon_late_seconds")
    stall_ratios = Keyed("stall_ratio")
    kernel_log_losses = Number("kernel_log_losses_total")
    simulated = Number("simulated")
    nccl_log_files = Number("nccl_log_files")
    nccl_inspector_files = Number("nccl_inspector_files")
    communication_score_ratio = Number("communication_score_ratio")
    communication_score_components = Keyed("communication_score_component_ratio")


class Node(Parts):
    @property
    def gpus(self) -> list[Gpu]:
        """By index."""
        return sorted(self._of(Gpu.info, Gpu.state), key=lambda gpu: (len(gpu.index), gpu.index, gpu.address))

    @property
    def rdma_ports(self) -> list[RdmaPort]:
        """By device and number; those that are gone are not among them."""
        return sorted(self._of(RdmaPort.info, RdmaPort.state), key=lambda port: (len(port.device), port.identity))

    @property
    def interfaces(self) -> list[Interface]:
        """By name; those that are gone are not among them."""
        return sorted(self._of(Interface.info, Interface.carrier), key=lambda one: one.name)

    @property
    def pcie_devices(self) -> list[PcieDevice]:
        """The devices on paths of communication."""
        return list(self._of(PcieDevice.info))

    @property
    def cluster_rails(self) -> list[ClusterRail]:
        """By number; those of the last run between nodes."""
        rails = {rail for rail, _, _ in self.each_keyed(ClusterRail.pairs)}
        return sorted(rails, key=lambda rail: (len(rail.number), rail.number))

    @property
    def driver(self) -> Driver:
        return self.part(Driver)

    @property
    def daemon(self) -> Daemon:
        return self.part(Daemon)

    def _of(self, *columns: Column[_Kind]) -> dict[_Kind, None]:
        """Each part once that has a number in one of these columns."""
        return {part: None for column in columns for part, _ in self.each(column)}


@contextmanager
def node_at(snapshot: Snapshot) -> Iterator[Node]:
    """The node at one moment, for immediate use; its parts have no numbers afterwards.

    A node and its parts know each other. One that is made for a moment and not taken apart stays, with all blocks of
    its snapshot, until the garbage collector comes, which the daemon lets come rarely.
    """
    node = Node(snapshot)
    try:
        yield node
    finally:
        node.show(Snapshot(()))
