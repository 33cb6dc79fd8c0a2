"""The functions of the simulated driver library that ask one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from commwatch.simulation.abi import (
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    Argument,
    integer,
    store,
    store_text,
    target,
)
from commwatch.simulation.hardware import Epoch, GpuCondition, Hardware
from commwatch.simulation.presets import NVIDIA, Gpu, GpuModel, NVLinkModel

_HOPPER = 9
_MIG_DISABLED = 0
_COMPUTE_MODE_DEFAULT = 0
_FEATURE_ENABLED = 1
_REMOTE_SWITCH, _REMOTE_UNKNOWN = 2, 0xFF
_NVSWITCH_DEVICE_ID = 0x22A3
_NO_INSTANCE = 0xFFFFFFFF
_ERROR_KINDS = MappingProxyType({0: "nvlink_replay", 1: "nvlink_recovery", 2: "nvlink_crc"})
"""Counter of ``nvmlDeviceGetNvLinkErrorCounter``: kind of fault that moves it."""
_RESERVED_MEMORY_BYTES = 600 * 2**20
_JOB_MEMORY_SHARE = 0.8
_JOB_UTILIZATION_PERCENT = 97
_FIRST_JOB_PROCESS = 4_100_000


@dataclass(frozen=True, slots=True)
class Call:
    """One GPU at the moment of one call."""

    hardware: Hardware
    epoch: Epoch
    place: int
    """Of the GPU in the preset."""
    time: float
    """Seconds since the node started."""
    timestamp: int
    """µs since 1970."""

    @property
    def model(self) -> GpuModel:
        return self.hardware.preset.model

    @property
    def gpu(self) -> Gpu:
        return self.hardware.preset.gpus[self.place]

    @property
    def condition(self) -> GpuCondition:
        return self.epoch.gpus[self.place]


def _long_address(address: str) -> str:
    """``0000:17:00.0`` as NVML spells it: ``00000000:17:00.0``, upper case."""
    return f"0000{address}".upper()


def short_address(bus_id: str) -> str:
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _fill_pci_info(argument: Argument, address: str, device_id: int, subsystem_id: int) -> int:
    info = target(argument)
    domain, bus, rest = address.split(":")
    info.busIdLegacy = address.upper().encode()
    info.busId = _long_address(address).encode()
    info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    info.pciDeviceId = device_id << 16 | NVIDIA
    info.pciSubSystemId = subsystem_id
    return SUCCESS


def _pci_info(call: Call, info: Argument) -> int:
    return _fill_pci_info(info, call.gpu.pci_address, call.model.pci_device_id, call.model.pci_subsystem_id)


def _serial(call: Call, buffer: Argument, size: Argument) -> int:
    if call.gpu.serial is None:
        return NOT_SUPPORTED
    return store_text(call.gpu.serial, buffer, size)


def _link(read: Callable[..., int]) -> Callable[..., int]:
    """A function of one NVLink: refuses what the GPU does not have."""

    def checked(call: Call, link: Argument, *arguments: Argument) -> int:
        nvlink = call.model.nvlink
        if nvlink is None:
            return NOT_SUPPORTED
        number = integer(link)
        if not 0 <= number < nvlink.links:
            return INVALID_ARGUMENT
        return read(call, nvlink, number, *arguments)

    return checked


def _link_state(call: Call, _nvlink: NVLinkModel, link: int, state: Argument) -> int:
    return store(state, int(call.condition.links_active[link]))


def _link_version(_call: Call, nvlink: NVLinkModel, _link: int, version: Argument) -> int:
    return store(version, nvlink.version)


def _link_remote_type(call: Call, nvlink: NVLinkModel, link: int, remote: Argument) -> int:
    reached = nvlink.remote == "switch" and call.condition.links_active[link]
    return store(remote, _REMOTE_SWITCH if reached else _REMOTE_UNKNOWN)


def _link_remote_pci(call: Call, _nvlink: NVLinkModel, link: int, info: Argument) -> int:
    if not call.condition.links_active[link]:
        return INVALID_ARGUMENT
    switches = call.hardware.preset.nvswitches
    return _fill_pci_info(info, switches[link % len(switches)], _NVSWITCH_DEVICE_ID, 0)


def _link_errors(call: Call, _nvlink: NVLinkModel, link: int, counter: Argument, value: Argument) -> int:
    kind = _ERROR_KINDS.get(integer(counter))
    if kind is None:
        return NOT_SUPPORTED
    return store(value, call.hardware.nvlink_errors(kind, call.place, link, call.time))


def _utilization(call: Call, rates: Argument) -> int:
    filled = target(rates)
    filled.gpu = filled.memory = _JOB_UTILIZATION_PERCENT if call.condition.busy else 0
    return SUCCESS


def _job_memory(call: Call) -> int:
    return int(call.model.memory_bytes * _JOB_MEMORY_SHARE) if call.condition.busy else 0


def _memory(call: Call, memory: Argument) -> int:
    """Version 1: what the driver keeps for itself counts as used."""
    filled = target(memory)
    filled.total, filled.used = call.model.memory_bytes, _RESERVED_MEMORY_BYTES + _job_memory(call)
    filled.free = filled.total - filled.used
    return SUCCESS


def _memory_v2(call: Call, memory: Argument) -> int:
    filled = target(memory)
    filled.total, filled.used, filled.reserved = call.model.memory_bytes, _job_memory(call), _RESERVED_MEMORY_BYTES
    filled.free = filled.total - filled.used - filled.reserved
    return SUCCESS


def _processes(call: Call, count: Argument, processes: Argument) -> int:
    room = target(count)
    if not call.condition.busy:
        return store(count, 0)
    if processes is None or room.value < 1:
        room.value = 1
        return INSUFFICIENT_SIZE
    process = target(processes)[0]
    process.pid, process.usedGpuMemory = _FIRST_JOB_PROCESS + call.place, _job_memory(call)
    process.gpuInstanceId = process.computeInstanceId = _NO_INSTANCE
    return store(count, 1)


def _mig_mode(call: Call, current: Argument, pending: Argument) -> int:
    if call.model.architecture != _HOPPER:
        return NOT_SUPPORTED
    store(current, _MIG_DISABLED)
    return store(pending, _MIG_DISABLED)


DEVICE_FUNCTIONS: Mapping[str, Callable[..., int]] = MappingProxyType(
    {
        "nvmlDeviceGetName": lambda call, buffer, size: store_text(call.model.name, buffer, size),
        "nvmlDeviceGetUUID": lambda call, buffer, size: store_text(call.gpu.uuid, buffer, size),
        "nvmlDeviceGetSerial": _serial,
        "nvmlDeviceGetIndex": lambda call, index: store(index, call.epoch.enumerated.index(call.place)),
        "nvmlDeviceGetMinorNumber": lambda call, number: store(number, call.epoch.enumerated.index(call.place)),
        "nvmlDeviceGetArchitecture": lambda call, code: store(code, call.model.architecture),
        "nvmlDeviceGetPciInfo_v3": _pci_info,
        "nvmlDeviceGetNvLinkState": _link(_link_state),
        "nvmlDeviceGetNvLinkVersion": _link(_link_version),
        "nvmlDeviceGetNvLinkRemoteDeviceType": _link(_link_remote_type),
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": _link(_link_remote_pci),
        "nvmlDeviceGetNvLinkErrorCounter": _link(_link_errors),
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda call, value: store(value, call.condition.pcie_generation),
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda call, value: store(value, call.model.pcie_generation),
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda call, value: store(value, call.model.pcie_generation),
        "nvmlDeviceGetCurrPcieLinkWidth": lambda call, value: store(value, call.condition.pcie_width),
        "nvmlDeviceGetMaxPcieLinkWidth": lambda call, value: store(value, call.model.pcie_width),
        "nvmlDeviceGetUtilizationRates": _utilization,
        "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
        "nvmlDeviceGetComputeMode": lambda _call, mode: store(mode, _COMPUTE_MODE_DEFAULT),
        "nvmlDeviceGetPersistenceMode": lambda _call, mode: store(mode, _FEATURE_ENABLED),
        "nvmlDeviceGetMigMode": _mig_mode,
        "nvmlDeviceGetMemoryInfo": _memory,
        "nvmlDeviceGetMemoryInfo_v2": _memory_v2,
    }
)
"""Function by symbol; each takes the call and what follows the handle, and returns a code."""
