"""Values that public sources give for what ``make hardware`` measures, and the comparison with what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

_HOPPER: Final = 9
"""NVML_DEVICE_ARCH_HOPPER."""
_OPERATIONAL_EVENTS: Final = 615
"""The first driver branch with GPU operational events."""

Facts = Mapping[str, Any]


class Expected(NamedTuple):
    """One fact and its reference: within two numbers, both included, or one of some values; None: there is none."""

    fact: str
    words: str
    unit: str
    allowed: tuple[float, float] | frozenset[Any] | None
    source: str = ""
    holds_for: Callable[[Facts], bool] = lambda facts: True


class Row(NamedTuple):
    """The comparison of one fact."""

    words: str
    unit: str
    expected: str
    """Empty: there is no reference."""
    found: Any
    """None: not measured."""
    agrees: bool | None
    """None: not measured, or without a reference."""
    source: str


def _hopper(facts: Facts) -> bool:
    return facts.get("architecture") == _HOPPER


def _hopper_sxm(facts: Facts) -> bool:
    """H100 SXM and H200 SXM; boards for PCIe slots (PCIe, NVL) have fewer links."""
    name = str(facts.get("gpu_name"))
    return _hopper(facts) and not any(board in name for board in ("PCIe", "NVL", "GH200"))


def _h100(facts: Facts) -> bool:
    return "H100" in str(facts.get("gpu_name"))


def _branch(facts: Facts) -> int:
    branch = str(facts.get("driver_version", "")).partition(".")[0]
    return int(branch) if branch.isdecimal() else 0


def _pcie(generation: int) -> Callable[[Facts], bool]:
    return lambda facts: facts.get("pcie_generation_maximum") == generation and facts.get("pcie_lanes") == 16


def _one_of(*values: Any) -> frozenset[Any]:
    return frozenset(values)


_HEADER: Final = "nvml.h"
_PLAN: Final = "estimate for planning; no figure is published"
TABLE: Final = (
    Expected("nvlink_version_code", "code of NVLink 4", "", _one_of(6), _HEADER, _hopper),
    Expected("nvlink_links", "NVLinks of an SXM board", "links", _one_of(18), "product page", _hopper_sxm),
    Expected("nvlink_speed_megabytes_per_second", "line rate of a link, field 164", "MB/s", _one_of(26562),
             "outputs of nvidia-smi", _hopper_sxm),
    Expected("codes_of_nvlink_traffic", "codes of fields 138 to 141", "", _one_of("0"), _HEADER, _hopper_sxm),
    Expected("codes_of_nvlink_5_errors", "codes of fields 206 to 222 before Blackwell", "", _one_of("2", "3"),
             f"{_HEADER}: for Blackwell and later", _hopper),
    Expected("types_of_pcie_bytes", "type of fields 197 and 198 (1: 32 bits, 3: 64 bits)", "", _one_of("1", "3"),
             _HEADER),
    Expected("types_of_pcie_errors", "type of fields 173 to 183", "", _one_of("1", "3"), _HEADER),
    Expected("recovery_action", "recovery action of a healthy GPU, field 230", "", _one_of(0), _HEADER,
             lambda facts: _branch(facts) >= 570),
    Expected("gpm", "GPM is there", "", _one_of(True), _HEADER, _hopper),
    Expected("fabric_state", "state of the fabric (0 none, 3 registered)", "", _one_of(0, 3), _HEADER, _hopper),
    Expected("group_nvlink_milliseconds_per_gpu", "NVLink traffic and states of a GPU", "ms", (0, 10), _PLAN),
    Expected("slow_groups_milliseconds_per_gpu", "errors, PCIe, state and GPM of a GPU", "ms", (0, 20), _PLAN),
    Expected("group_p2p_longest_milliseconds", "matrix of peers", "ms", (0, 500), _PLAN),
    Expected("call_of_72_fields_milliseconds", "one call of 72 fields", "ms", (0, 5), _PLAN),
    Expected("utilization_microseconds", "nvmlDeviceGetUtilizationRates", "µs", (0, 25),
             "2.5 on an RTX 4090 laptop"),
    Expected("memory_microseconds", "nvmlDeviceGetMemoryInfo", "µs", (0, 120), "11.6 on an RTX 4090 laptop"),
    Expected("process_list_microseconds", "list of processes", "µs", (0, 9000), "4491 on an RTX 4090 laptop"),
    Expected("wait_v2_milliseconds", "nvmlEventSetWait_v2 with 100 ms", "ms", (0, 120), f"{_HEADER}: may come early"),
    Expected("operational_events_present", "GPU operational events from driver 615 on", "", _one_of(True),
             "header of CUDA for driver 615", lambda facts: _branch(facts) >= _OPERATIONAL_EVENTS),
    Expected("operational_events_present", "no GPU operational events before driver 615", "", _one_of(False),
             "header of CUDA for driver 615", lambda facts: 0 < _branch(facts) < _OPERATIONAL_EVENTS),
    Expected("pcie_receive_call_milliseconds", "nvmlDeviceGetPcieThroughput blocks", "ms", (18, 30),
             f"{_HEADER}: counts for 20 ms"),
    Expected("pcie_receive_unit_bytes", "unit of PCIe throughput, by copies of a known rate", "B",
             (800, 1250), f"{_HEADER}: KB/s"),
    Expected("recording_cpu_share", "CPU of commwatch record", "cores", (0, 0.02), "own bar"),
    Expected("recording_megabytes_per_minute", "recording of at most 8 GPUs", "MB/min", (0, 5), "own bar"),
    Expected("ranks_1_memory_mebibytes", "context and communicator of one rank", "MiB", (300, 1600),
             "484 on an RTX 3090; reports of NCCL's users"),
    *(Expected(f"ranks_{count}_result", f"NCCL with {count} rank{'s' if count > 1 else ''} on one GPU", "",
               _one_of("right"), "source of NCCL: ranks with their own NCCL_HOSTID") for count in (1, 2, 4)),
    *(Expected(f"ranks_{count}_latency_microseconds", f"all_reduce of 8 B, {count} ranks in turns on one GPU", "µs",
               (50, 40_000), "8700 to 17400 with 3 ranks on an RTX 5090") for count in (2, 4)),
    Expected("left_mebibytes", "most memory left after a cycle", "MiB", (0, 1), "own promise"),
    *(Expected(f"copies_{way}_bytes_per_second", f"{way.replace('_', ' ')}, pinned, PCIe 5.0 x16", "B/s", (36e9, 63e9),
               "48 GB/s in NCCL's model; 63 GB/s by the specification", _pcie(5))
      for way in ("host_to_device", "device_to_host")),
    *(Expected(f"copies_{way}_bytes_per_second", f"{way.replace('_', ' ')}, pinned, PCIe 4.0 x16", "B/s",
               (18e9, 31.5e9),
               "24 GB/s in NCCL's model; 31.5 GB/s by the specification", _pcie(4))
      for way in ("host_to_device", "device_to_host")),
    Expected("waiting_use_percent", "use of a GPU whose rank waits for its peer", "%", (95, 100),
             "NCCL's kernels poll"),
    Expected("waiting_power_watts", "power of such a GPU", "W", (80, 315),
             "100 to 150 W reported; jobs.hang_power takes 45 % of the limit",
             _h100),
    Expected("waiting_ends", "the call, once the peer goes on", "", _one_of("right"), "signal(7)"),
    Expected("stopped_state", "state of the stopped rank", "", _one_of("T"), "proc(5)"),
    Expected("step_ratio_median", "median step, beside the daemon over alone", "", (0.98, 1.02), "own bar"),
    Expected("step_ratio_p99", "99th percentile of the step, beside the daemon over alone", "", (0.9, 1.1), "own bar"),
    Expected("pcie_generation_idle", "PCIe generation, idle", "", None),
    Expected("pcie_generation_busy", "PCIe generation, busy", "", None),
    Expected("group_gpm_milliseconds_per_gpu", "GPM of a GPU", "ms", None),
    Expected("open_milliseconds", "opening the driver", "ms", None),
    Expected("torch_import_seconds", "first import of torch", "s", None),
    Expected("power_microseconds", "nvmlDeviceGetPowerUsage", "µs", None),
    Expected("ranks_2_setup_seconds", "set-up of 2 ranks", "s", None),
    Expected("ranks_4_memory_mebibytes", "memory of 4 ranks", "MiB", None),
    *(Expected(f"multi_rank_{count}_result", f"{count} ranks of one host on one GPU", "", None) for count in (2, 4)),
    Expected("power_idle_watts", "power, idle", "W", None),
    Expected("waiting_power_watts", "power, NCCL waits", "W", None),
    Expected("waiting_states", "states of the waiting rank", "", None),
    Expected("waiting_cores", "CPU use of the waiting rank", "cores", None),
    Expected("waiting_switches_per_second", "switches of the waiting rank", "1/s", None),
    Expected("waiting_where", "wait channel of the waiting rank", "", None),
    Expected("step_alone_median_milliseconds", "median step", "ms", None),
    Expected("step_alone_p99_milliseconds", "99th percentile of the step, alone", "ms", None),
    Expected("step_beside_p99_milliseconds", "99th percentile of the step, beside the daemon", "ms", None),
    Expected("tests_failed", "failed tests of tests/hardware", "", frozenset(), "own tests"),
)  # fmt: skip


def compare(facts: Facts) -> Iterator[Row]:
    """The rows that hold for this GPU and driver, each with what was found."""
    known = dict(facts)
    slow = [f"group_{name}_milliseconds_per_gpu" for name in ("nvlink_errors", "pcie", "gpu", "gpm")]
    if all(one in facts for one in slow):
        known["slow_groups_milliseconds_per_gpu"] = sum(facts[one] for one in slow)
    for one in TABLE:
        if one.holds_for(facts):
            found = known.get(one.fact)
            yield Row(one.words, one.unit, _text(one.allowed), found, _agrees(found, one.allowed), one.source)


def _agrees(found: Any, allowed: tuple[float, float] | frozenset[Any] | None) -> bool | None:
    if found is None or allowed is None:
        return None
    if isinstance(allowed, tuple):
        return bool(allowed[0] <= found <= allowed[1])
    if not isinstance(found, dict | list):
        return found in allowed
    # Codes with their number, or a list: all of them must be allowed, and one must be there where any is.
    return set(found) <= allowed if found or not allowed else None


def _text(allowed: tuple[float, float] | frozenset[Any] | None) -> str:
    if allowed is None:
        return ""
    if isinstance(allowed, tuple):
        return f"{allowed[0]:g} to {allowed[1]:g}"
    return " or ".join(sorted(map(str, allowed))) or "none"
