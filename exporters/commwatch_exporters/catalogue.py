"""Every metric once: name, type, unit, labels, help and origin; documentation, rules and tests are held against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal, TypeAlias

MetricType: TypeAlias = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    """Full name as exposed, with namespace, unit and ``_total`` or ``_info``."""
    type: MetricType
    labels: tuple[str, ...]
    help: str
    """What the number says, one sentence."""
    origin: str
    """Where it is read or how it is computed: NVML field, sysfs file, formula."""
    unit: str = ""
    """Base unit, as it stands in the name; empty where the number has none."""

    @property
    def text(self) -> str:
        """The HELP text of the exposition."""
        return f"{self.help} Origin: {self.origin}."


_rows: list[Metric] = []


def _row(metric_type: MetricType, name: str, labels: str, help_text: str, origin: str, unit: str = "") -> None:
    _rows.append(Metric(f"commwatch_{name}", metric_type, tuple(labels.split()), help_text, origin, unit))


def _counter(name: str, labels: str, help_text: str, origin: str, unit: str = "") -> None:
    _row("counter", name, labels, help_text, origin, unit)


def _gauge(name: str, labels: str, help_text: str, origin: str, unit: str = "") -> None:
    _row("gauge", name, labels, help_text, origin, unit)


def _info(name: str, labels: str, help_text: str, origin: str) -> None:
    _row("info", name, labels, help_text, origin)


_GPU = "gpu pci_bus_id"
_LINK = "gpu pci_bus_id link"
_PROBE = "probe backend"

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

# --- GPU -------------------------------------------------------------------------------------------------------------
_info("gpu_info", f"{_GPU} uuid serial name architecture", "Identity of a GPU; the value is always 1.",
      "NVML nvmlDeviceGetUUID, GetSerial, GetName, GetArchitecture")
_info("software_info", "driver_version nvml_version cuda_driver_version", "Driver software; the value is always 1.",
      "NVML nvmlSystemGetDriverVersion, GetNVMLVersion, GetCudaDriverVersion_v2")
_gauge("gpu_state", _GPU,
       "State of a GPU that is or was here: 0 ok, 1 not answering, 2 lost, 3 reset required, 4 missing.",
       "NVML return codes, missed deadlines, and the inventory kept in the state directory")
_gauge("gpu_busy", _GPU, "1 while a compute process is on the GPU or it did work since the last sample, else 0.",
       "NVML nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetUtilizationRates")
_gauge("gpu_utilization_ratio", _GPU, "Share of the driver's last sample period in which a kernel ran.",
       "NVML nvmlDeviceGetUtilizationRates", "ratio")
_gauge("gpu_compute_processes", _GPU, "Compute processes on the GPU.", "NVML nvmlDeviceGetComputeRunningProcesses")
_gauge("gpu_memory_used_bytes", _GPU, "Memory in use on the GPU, without the driver's own reserve.",
       "NVML nvmlDeviceGetMemoryInfo (version 2)", "bytes")
_gauge("gpu_compute_mode", _GPU, "Compute mode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.",
       "NVML nvmlDeviceGetComputeMode")
_gauge("gpu_mig_mode", _GPU, "1 while the GPU is split by MIG, else 0.", "NVML nvmlDeviceGetMigMode")

# --- NVLink ----------------------------------------------------------------------------------------------------------
_info("nvlink_info", f"{_LINK} version remote_type remote_pci_bus_id",
      "What an NVLink is and what it leads to; the value is always 1.",
      "NVML nvmlDeviceGetNvLinkVersion, GetNvLinkRemoteDeviceType, GetNvLinkRemotePciInfo_v2")
_gauge("nvlink_links", _GPU, "NVLinks that the GPU has, active or not.", "NVML nvmlDeviceGetNvLinkState, links counted")
_gauge("nvlink_link_state", _LINK, "State of the link: 0 inactive, 1 active, 2 sleep, 3 active with traffic disabled.",
       "NVML field 165, or nvmlDeviceGetNvLinkState")
_gauge("nvlink_link_expected", _LINK, "1 for a link that was active for the learning time and so is expected.",
       "inventory kept in the state directory")
_gauge("nvlink_link_speed_bytes_per_second", _LINK, "Line rate of the link, one direction, before FEC and framing.",
       "NVML field 164, or 90", "bytes_per_second")
_gauge("nvlink_capacity_bytes_per_second", _GPU,
       "Nominal capacity of the expected links together, one direction; the denominator of the utilisation.",
       "expected links times nominal rate per link", "bytes_per_second")
_counter("nvlink_transmit_bytes_total", _LINK, "Payload bytes sent over the link since GPU reset.",
         "NVML field 202, or 138 (KiB) times 1024", "bytes")
_counter("nvlink_receive_bytes_total", _LINK, "Payload bytes received over the link since GPU reset.",
         "NVML field 204, or 139 (KiB) times 1024", "bytes")
_counter("nvlink_crc_flit_errors_total", _LINK, "Flits that failed CRC and were sent again (NVLink 1 to 4).",
         "NVML nvmlDeviceGetNvLinkErrorCounter kind 2")
_counter("nvlink_crc_data_errors_total", _LINK, "Data CRC errors (NVLink 1 to 4).",
         "NVML nvmlDeviceGetNvLinkErrorCounter kind 3")
_counter("nvlink_replay_errors_total", _LINK, "Retransmissions on the link (NVLink 1 to 4).",
         "NVML nvmlDeviceGetNvLinkErrorCounter kind 0")
_counter("nvlink_recovery_errors_total", _LINK, "Times the link went through retraining (NVLink 1 to 4).",
         "NVML nvmlDeviceGetNvLinkErrorCounter kind 1")
_counter("nvlink_ecc_data_errors_total", _LINK, "Data ECC errors (NVLink 1 to 4).",
         "NVML nvmlDeviceGetNvLinkErrorCounter kind 4")
_counter("nvlink_malformed_packets_total", _LINK, "Malformed packets received (NVLink 5).", "NVML field 206")
_counter("nvlink_buffer_overrun_errors_total", _LINK, "Received packets dropped for a buffer overrun (NVLink 5).",
         "NVML field 207")
_counter("nvlink_receive_errors_total", _LINK, "Received packets with errors (NVLink 5).", "NVML field 208")
_counter("nvlink_receive_remote_errors_total", _LINK, "Received packets that the far side marked bad (NVLink 5).",
         "NVML field 209")
_counter("nvlink_receive_general_errors_total", _LINK, "Received packets with a header mismatch (NVLink 5).",
         "NVML field 210")
_counter("nvlink_local_link_integrity_errors_total", _LINK, "Times local errors passed their threshold (NVLink 5).",
         "NVML field 211")
_counter("nvlink_transmit_discards_total", _LINK, "Packets discarded before sending (NVLink 5).", "NVML field 212")
_counter("nvlink_recoveries_successful_total", _LINK, "Link recoveries that succeeded (NVLink 5).", "NVML field 213")
_counter("nvlink_recoveries_failed_total", _LINK, "Link recoveries that failed: the link went down (NVLink 5).",
         "NVML field 214")
_counter("nvlink_recoveries_total", _LINK, "All link recoveries (NVLink 5).", "NVML field 215")
_counter("nvlink_effective_errors_total", _LINK, "Errors left after forward error correction (NVLink 5).",
         "NVML field 219")
_counter("nvlink_symbol_errors_total", _LINK, "Symbol errors in received data (NVLink 5).", "NVML field 221")
_gauge("nvlink_effective_bit_error_ratio", _LINK, "Bit error ratio after forward error correction (NVLink 5).",
       "NVML field 220, mantissa and exponent decoded", "ratio")
_gauge("nvlink_symbol_bit_error_ratio", _LINK, "Symbol bit error ratio (NVLink 5).",
       "NVML field 222, mantissa and exponent decoded", "ratio")

# --- PCIe ------------------------------------------------------------------------------------------------------------
_gauge("pcie_link_generation", _GPU, "PCIe generation the GPU's link runs at now; falls when the GPU is idle.",
       "NVML nvmlDeviceGetCurrPcieLinkGeneration")
_gauge("pcie_link_generation_max", _GPU, "Highest PCIe generation of GPU and slot together.",
       "NVML nvmlDeviceGetMaxPcieLinkGeneration")
_gauge("pcie_gpu_link_generation_max", _GPU, "Highest PCIe generation of the GPU alone.",
       "NVML nvmlDeviceGetGpuMaxPcieLinkGeneration")
_gauge("pcie_link_width_lanes", _GPU, "PCIe lanes in use between the GPU and the bridge above it.",
       "NVML nvmlDeviceGetCurrPcieLinkWidth", "lanes")
_gauge("pcie_link_width_max_lanes", _GPU, "Most PCIe lanes that GPU and slot can use.",
       "NVML nvmlDeviceGetMaxPcieLinkWidth", "lanes")
_gauge("pcie_link_width_expected_lanes", _GPU, "PCIe lanes expected for this GPU: the widest that was stable.",
       "inventory kept in the state directory", "lanes")
_gauge("pcie_capacity_bytes_per_second", _GPU,
       "Rate of the expected PCIe link at its highest generation, one direction, before packet headers.",
       "transfers per second times lanes times line encoding", "bytes_per_second")
_counter("pcie_replays_total", _GPU, "PCIe packets that the GPU sent again.", "NVML field 94")
_counter("pcie_replay_rollovers_total", _GPU, "Times the replay number rolled over and the link was retrained.",
         "NVML field 95")
_info("pcie_device_info", "device role parent numa_node vendor_id device_id",
      "A PCIe device on a path of communication: gpu, nic, nvswitch or a bridge above one; the value is always 1.",
      "sysfs /sys/bus/pci/devices/*/{class,vendor,device,numa_node}")
_gauge("pcie_device_link_generation", "device", "PCIe generation the device's link runs at now.",
       "sysfs current_link_speed")
_gauge("pcie_device_link_generation_max", "device", "Highest PCIe generation of the device.", "sysfs max_link_speed")
_gauge("pcie_device_link_width_lanes", "device", "PCIe lanes the device uses now.", "sysfs current_link_width", "lanes")
_gauge("pcie_device_link_width_max_lanes", "device", "Most PCIe lanes of the device.", "sysfs max_link_width", "lanes")

# --- Ethernet --------------------------------------------------------------------------------------------------------
_ETHERNET = "sysfs /sys/class/net/*/statistics"
_info("ethernet_info", "device pci_bus_id driver", "Identity of a network interface; the value is always 1.",
      "sysfs /sys/class/net/*/device")
_counter("ethernet_transmit_bytes_total", "device", "Bytes sent by the host; RDMA traffic is not among them.",
         f"{_ETHERNET}/tx_bytes", "bytes")
_counter("ethernet_receive_bytes_total", "device", "Bytes received by the host; RDMA traffic is not among them.",
         f"{_ETHERNET}/rx_bytes", "bytes")
_counter("ethernet_transmit_errors_total", "device", "Packets that could not be sent.", f"{_ETHERNET}/tx_errors")
_counter("ethernet_receive_errors_total", "device", "Packets received with errors.", f"{_ETHERNET}/rx_errors")
_counter("ethernet_transmit_drops_total", "device", "Packets dropped before sending.", f"{_ETHERNET}/tx_dropped")
_counter("ethernet_receive_drops_total", "device", "Packets received and dropped.", f"{_ETHERNET}/rx_dropped")
_counter("ethernet_carrier_changes_total", "device", "Times the link went up or down.",
         "sysfs /sys/class/net/*/carrier_changes")
_gauge("ethernet_carrier", "device", "1 while the interface has a link, 0 while it has none.",
       "sysfs /sys/class/net/*/carrier")
_gauge("ethernet_speed_bytes_per_second", "device", "Speed of the link, one direction; absent while it is down.",
       "sysfs /sys/class/net/*/speed, Mbit/s times 125000", "bytes_per_second")

# --- Inventory and use -----------------------------------------------------------------------------------------------
_gauge("expected", "kind", "Parts of one kind that this node should have: configured, or the most that was stable.",
       "configuration, or the inventory kept in the state directory")
_gauge("present", "kind", "Parts of one kind that are here and up: gpu, nvlink, pcie_lane, ethernet_port.",
       "commwatch_gpu_info, nvlink_link_state, pcie_link_width_lanes and ethernet_carrier of working parts")
for _family, _labels, _how in (
    ("nvlink", _GPU, "sum of the link byte rates over nvlink_capacity_bytes_per_second"),
    ("ethernet", "device", "byte rate over the expected speed of the interface"),
):
    for _direction in ("transmit", "receive"):
        _gauge(f"{_family}_{_direction}_utilization_ratio", _labels,
               f"Share of the expected {_family} capacity used to {_direction}, over the last sample.", _how, "ratio")
        _gauge(f"{_family}_{_direction}_utilization_peak_ratio", _labels,
               f"Highest sample of the {_family} {_direction} utilisation in the last minute.", _how, "ratio")
_counter("counter_resets_observed_total", "source device", "Times hardware counters were seen to start again.",
         "a counter read lower than before")

# --- Probe -----------------------------------------------------------------------------------------------------------
_row("histogram", "probe_latency_seconds", _PROBE, "Time of one small collective, slowest rank, one value per cycle.",
     "commwatch probe: device clock around K calls, divided by K; with gloo the median by the host's clock", "seconds")
_gauge("probe_last_latency_seconds", _PROBE, "Time of one small collective in the last good cycle, slowest rank.",
       "commwatch probe, last result", "seconds")
_gauge("probe_last_bus_bandwidth_bytes_per_second", _PROBE,
       "Bus bandwidth of the large collective in the last good cycle, slowest rank.",
       "algorithm bandwidth times the nccl-tests factor (all_reduce: 2(n-1)/n)", "bytes_per_second")
_gauge("probe_last_algorithm_bandwidth_bytes_per_second", _PROBE,
       "Algorithm bandwidth of the large collective in the last good cycle, slowest rank.",
       "bytes divided by the time of one call", "bytes_per_second")
_gauge("probe_expected_bandwidth_bytes_per_second", _PROBE,
       "Bus bandwidth that this size, backend, rank count and path class should give.",
       "expected_source in commwatch_probe_info", "bytes_per_second")
_gauge("probe_bandwidth_utilization_ratio", _PROBE, "Bus bandwidth of the last good cycle over the expected one.",
       "probe_last_bus_bandwidth over probe_expected_bandwidth", "ratio")
_gauge("probe_baseline_latency_seconds", _PROBE, "Median latency of the good results kept; absent below 20 of them.",
       "state directory, per probe, backend, size, ranks and NCCL version", "seconds")
_gauge("probe_latency_spike_streak", _PROBE, "Latency spikes in a row, up to the last result.",
       "latency above max(median + 6 MAD, 1.5 median) or above the probe's absolute limit")
_gauge("probe_low_bandwidth_streak", _PROBE, "Results in a row below the utilisation threshold, up to the last one.",
       "probe_bandwidth_utilization_ratio below the threshold")
_counter("probe_latency_spikes_total", _PROBE, "Latency spikes.", "as probe_latency_spike_streak")
_counter("probe_attempts_total", _PROBE, "Cycles that ran to a result or a failure; those that gave way are skips.",
         "commwatch probe")
_counter("probe_failures_total", f"{_PROBE} reason", "Cycles that started and gave no good result.", "commwatch probe")
_counter("probe_skips_total", f"{_PROBE} reason", "Cycles that did not start, or gave way.", "the gate before a probe")
_gauge("probe_last_completion_timestamp_seconds", _PROBE, "When the last cycle with a result ended.",
       "wall clock at the end of the cycle", "seconds")
_counter("probe_gpu_occupied_seconds_total", _PROBE, "GPU seconds during which a probe held a context.",
         "time between start and end of the ranks, times GPUs", "seconds")
_gauge("probe_setup_seconds", _PROBE, "Time from start of the ranks to the end of the first, discarded call.",
       "commwatch probe, last result", "seconds")
_info("probe_info", f"{_PROBE} collective latency_bytes bandwidth_bytes ranks nccl_version expected_source",
      "What a probe measures; the value is always 1.", "configuration and the last result")

# --- Honesty ---------------------------------------------------------------------------------------------------------
_gauge("counter_state", "source counter", "Whether this driver or kernel has the counter: 0 supported, 1 unsupported.",
       "probed once per driver")
_gauge("simulated", "", "1 if the values of this page come from a simulated node, else 0.", "--simulate")
_gauge("maintenance", "reason", "1 while the daemon is paused for maintenance; one series with reason none and 0 else.",
       "commwatch pause, or maintenance.json in the state directory")

# --- Daemon ----------------------------------------------------------------------------------------------------------
_info("build_info", "version python_version", "Version of this daemon; the value is always 1.", "the package")
_info("thresholds_info", "digest", "Digest of the thresholds in force; the value is always 1.", "thresholds.yaml")
_gauge("collector_success", "collector", "1 if the collector's last run read everything it should, else 0.",
       "the daemon's own record")
_gauge("collector_duration_seconds", "collector", "Time of the collector's last run in its worker process.",
       "the daemon's own record", "seconds")
_gauge("collector_interval_seconds", "collector", "Interval at which the collector runs now.",
       "configuration, doubled while runs take more than a tenth of it", "seconds")
_gauge("collector_last_success_timestamp_seconds", "collector", "When the collector last read everything it should.",
       "wall clock", "seconds")
_counter("collector_errors_total", "collector reason", "Readings that failed, by reason.", "the daemon's own record")
_counter("worker_restarts_total", "worker reason", "Worker processes replaced, by reason.", "the daemon's own record")
_gauge("source_available", "source", "1 if the origin of a source is on this node and answers, else 0.",
       "the source's last attempt to connect")
_gauge("worker_stuck", "worker", "Worker processes that missed their deadline and have not come back.",
       "the daemon's own record")
_gauge("config_last_reload_successful", "", "1 if the configuration on disk was taken into force when read last, or 0.",
       "the daemon's own record")
_gauge("config_last_reload_success_timestamp_seconds", "", "When a configuration was last taken into force.",
       "wall clock", "seconds")
_counter("scheduler_missed_runs_total", "job", "Runs that the scheduler dropped because it or the job was late.",
         "APScheduler's missed and max-instances events")
_counter("clock_steps_total", "", "Steps of the wall clock by more than two seconds.",
         "wall clock compared with the monotonic clock")
_counter("process_cpu_seconds_total", "process", "CPU time of one of the daemon's processes.",
         "procfs /proc/PID/stat utime and stime", "seconds")
_gauge("process_resident_memory_bytes", "process", "Resident memory of one of the daemon's processes.",
       "procfs /proc/PID/statm", "bytes")

# fmt: on

CATALOGUE: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _rows})
"""Every metric family by its full name, in the order of the page."""

_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@cache
def family_of(series_name: str) -> Metric:
    """The family that a series belongs to.

    Raises:
        KeyError: the catalogue has no such metric.
    """
    metric = CATALOGUE.get(series_name)
    if metric is not None:
        return metric
    for suffix in _HISTOGRAM_SUFFIXES:
        metric = CATALOGUE.get(series_name.removesuffix(suffix))
        if metric is not None and metric.type == "histogram":
            return metric
    raise KeyError(f"{series_name} is not in the catalogue of metrics")
