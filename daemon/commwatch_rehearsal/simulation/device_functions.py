"""The functions of the simulated driver library that ask one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commwatch_rehearsal.simulation.abi import (
    ARGUMENT_VERSION_MISMATCH,
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
from commwatch_rehearsal.simulation.call import Call
from commwatch_rehearsal.simulation.field_answers import LINK_ERRORS, Asked, link_errors
from commwatch_rehearsal.simulation.health_functions import HEALTH_FUNCTIONS
from commwatch_rehearsal.simulation.job_processes import job_process
from commwatch_rehearsal.simulation.presets.parts import NVIDIA, NVLINK_5, NVLinkModel

_COMPUTE_MODE_DEFAULT = 0
_FEATURE_ENABLED = 1
_REMOTE_GPU, _REMOTE_SWITCH, _REMOTE_UNKNOWN = 0, 2, 0xFF
_NVSWITCH_DEVICE_ID = 0x22A3
_NO_INSTANCE = 0xFFFFFFFF
_ERROR_FIELDS = {0: 161, 1: 162, 2: 163}
"""Counter of ``nvmlDeviceGetNvLinkErrorCounter``: the field with the same number."""
_MEMORY_VERSION = 0x02000028
_RESERVED_MEMORY_BYTES = 600 * 2**20
_JOB_MEMORY_SHARE = 0.8


def _fill_pci_info(argument: Argument, address: str, device_id: int, subsystem_id: int) -> int:
    info = target(argument)
    domain, bus, rest = address.split(":")
    info.busIdLegacy = address.upper().encode()
    info.busId = f"0000{address}".upper().encode()
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
    if not call.condition.links_active[link]:
        return store(remote, _REMOTE_UNKNOWN)
    return store(remote, _REMOTE_SWITCH if nvlink.remote == "switch" else _REMOTE_GPU)


def _link_remote_pci(call: Call, _nvlink: NVLinkModel, link: int, info: Argument) -> int:
    if not call.condition.links_active[link]:
        return INVALID_ARGUMENT
    preset = call.hardware.preset
    peer = preset.peer(call.place, link)
    if peer is not None:
        return _fill_pci_info(info, preset.gpus[peer[0]].pci_address, call.model.pci_device_id, 0)
    switches = preset.nvswitches
    if not switches:
        return SUCCESS  # the host does not see them: the address stays empty
    return _fill_pci_info(info, switches[link % len(switches)], _NVSWITCH_DEVICE_ID, 0)


def _link_errors(call: Call, nvlink: NVLinkModel, link: int, counter: Argument, value: Argument) -> int:
    field = _ERROR_FIELDS.get(integer(counter))
    if field is None or nvlink.version >= NVLINK_5:
        return NOT_SUPPORTED
    answer = link_errors(Asked(call.hardware, call.epoch, call.place, link), LINK_ERRORS[field], link)
    return store(value, answer.at(call.time))


def _utilization(call: Call, rates: Argument) -> int:
    filled = target(rates)
    filled.gpu = filled.memory = round(100 * call.condition.utilization)
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
    if filled.version != _MEMORY_VERSION:
        return ARGUMENT_VERSION_MISMATCH
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
    process.pid, process.usedGpuMemory = job_process(call.hardware, call.place, call.time), _job_memory(call)
    process.gpuInstanceId = process.computeInstanceId = _NO_INSTANCE
    return store(count, 1)


def _mig_mode(call: Call, current: Argument, pending: Argument) -> int:
    if not call.model.mig:
        return NOT_SUPPORTED
    store(current, int(call.condition.mig))
    return store(pending, int(call.condition.mig))


DEVICE_FUNCTIONS: Mapping[str, Callable[..., int]] = {
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
    # No simulated node runs a server of MPS.
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": lambda _call, count, _processes: store(count, 0),
    "nvmlDeviceGetComputeMode": lambda _call, mode: store(mode, _COMPUTE_MODE_DEFAULT),
    "nvmlDeviceGetPersistenceMode": lambda _call, mode: store(mode, _FEATURE_ENABLED),
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory_v2,
    **HEALTH_FUNCTIONS,
}
"""Function by symbol; each takes the call and what follows the handle, and returns a code."""
