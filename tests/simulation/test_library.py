"""The simulated driver library as the real binding sees it."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from simulation.asking import ALL_LINKS, code_of, field
from simulation.harness import Rehearsal

Drive = Callable[..., Rehearsal]


@pytest.mark.parametrize("name", PRESETS)
def test_every_gpu_of_every_preset_tells_who_it_is(driver: Drive, name: str) -> None:
    """Count, name, UUID, serial and PCI address come through the binding; GeForce cards tell no serial."""
    driver(name)
    preset = PRESETS[name]

    assert pynvml.nvmlDeviceGetCount() == len(preset.gpus)
    for index, gpu in enumerate(preset.gpus):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        assert pynvml.nvmlDeviceGetIndex(handle) == index
        assert pynvml.nvmlDeviceGetName(handle) == preset.model.name
        assert pynvml.nvmlDeviceGetUUID(handle) == gpu.uuid
        assert pci.busId == f"0000{gpu.pci_address}".upper()
        assert pci.busIdLegacy == gpu.pci_address.upper()
        assert f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" == gpu.pci_address
        assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == preset.model.memory_bytes
        if gpu.serial is None:
            assert code_of(pynvml.nvmlDeviceGetSerial, handle) == pynvml.NVML_ERROR_NOT_SUPPORTED
        else:
            assert pynvml.nvmlDeviceGetSerial(handle) == gpu.serial


def test_identities_differ() -> None:
    """No two GPUs share a UUID or a serial, but for h100x8ndr, which is h100x8 with other adapters; nor addresses."""
    gpus = [gpu for name, preset in PRESETS.items() for gpu in preset.gpus if name != "h100x8ndr"]
    assert PRESETS["h100x8ndr"].gpus == PRESETS["h100x8"].gpus
    serials = [gpu.serial for gpu in gpus if gpu.serial is not None]

    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    assert len(set(serials)) == len(serials)
    for preset in PRESETS.values():
        assert len({device.address for device in preset.devices}) == len(preset.devices)


def test_nothing_answers_before_init_and_after_shutdown(driver: Drive) -> None:
    """Every call needs an open session, as with a real library."""
    driver("a10x2")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()

    for call, arguments in (
        (pynvml.nvmlDeviceGetCount, ()),
        (pynvml.nvmlDeviceGetHandleByIndex, (0,)),
        (pynvml.nvmlDeviceGetName, (handle,)),
        (pynvml.nvmlSystemGetDriverVersion, ()),
        (pynvml.nvmlShutdown, ()),
    ):
        assert code_of(call, *arguments) == pynvml.NVML_ERROR_UNINITIALIZED


def test_a_function_that_is_not_simulated_is_a_missing_symbol(driver: Drive) -> None:
    """The binding says FunctionNotFound, as over an old driver."""
    driver("h100x8")

    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_an_index_without_a_gpu_is_invalid(driver: Drive) -> None:
    """The first one after the last GPU."""
    driver("h100x8")

    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 8) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_an_error_has_the_driver_s_own_words(driver: Drive) -> None:
    """nvmlErrorString answers through the binding."""
    driver("h100x8")

    assert pynvml.nvmlErrorString(pynvml.NVML_ERROR_GPU_IS_LOST) == "GPU is lost"


def test_hopper_links(driver: Drive) -> None:
    """18 active links of version 4.0 at 26,562 MB/s that lead to switches; the 19th is invalid."""
    driver("h100x8")
    handle = pynvml.nvmlDeviceGetHandleByIndex(2)

    for link in range(18):
        assert pynvml.nvmlDeviceGetNvLinkState(handle, link) == 1
        assert pynvml.nvmlDeviceGetNvLinkVersion(handle, link) == pynvml.NVML_NVLINK_VERSION_4_0
        assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
        assert remote.removeprefix("0000").lower() in PRESETS["h100x8"].nvswitches
        assert field(2, pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, link) == (0, 26562)
        assert field(2, pynvml.NVML_FI_DEV_NVLINK_GET_STATE, link) == (0, 1)
    assert code_of(pynvml.nvmlDeviceGetNvLinkState, handle, 18) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    for identifier in (138, 139, 161, 164, 165):
        assert field(2, identifier, 18)[0] == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert field(2, pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT) == (0, 18)
    assert field(2, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) == (0, 26562)
    assert field(2, 147) == (0, 18)


@pytest.mark.parametrize("identifier", [*range(201, 223), 289, 4000])
def test_fields_of_later_gpus_are_not_supported(driver: Drive, identifier: int) -> None:
    """The call succeeds; the entry says that Hopper has no such field."""
    driver("h100x8")

    assert field(0, identifier)[0] == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_gpu_without_nvlink_says_so(driver: Drive) -> None:
    """NOT_SUPPORTED on link 0, in functions and fields; its PCIe counters answer."""
    driver("a10x2")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    assert code_of(pynvml.nvmlDeviceGetNvLinkState, handle, 0) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, 0, 1) == pynvml.NVML_ERROR_NOT_SUPPORTED
    for identifier in (90, 91, 138, 139, 161, 164, 165):
        assert field(0, identifier)[0] == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert field(0, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER) == (0, 0)


def test_links_without_a_bridge_are_inactive(driver: Drive) -> None:
    """The four links of an RTX 3090 exist; they have no traffic, no speed and no other end."""
    driver("rtx3090x4")
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)

    for link in range(4):
        assert pynvml.nvmlDeviceGetNvLinkState(handle, link) == 0
        assert field(1, 165, link) == (0, 0)
        assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
        for identifier in (138, 139, 164):
            assert field(1, identifier, link)[0] == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert field(1, 138, ALL_LINKS)[0] == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert field(1, 91) == (0, 4)


def test_the_sum_over_all_links_is_the_sum_of_the_links(driver: Drive) -> None:
    """Scope 0xFFFFFFFF adds what the links give; raw bytes are more than payload."""
    driver("h100x8")

    links = sum(field(5, 138, link)[1] for link in range(18))
    assert field(5, 138, ALL_LINKS) == (0, links)
    assert field(5, 140, ALL_LINKS)[1] > links


def test_entries_carry_the_time_and_the_type(driver: Drive) -> None:
    """µs since 1970; a counter is an unsigned long long; field and scope stay as they were asked."""
    rehearsal = driver("h100x8", now=50.0)

    entry = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [(139, 7)])[0]

    assert (entry.fieldId, entry.scopeId) == (139, 7)
    assert entry.timestamp == round((rehearsal.node.started_at + 50.0) * 1e6)
    assert entry.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


def test_an_idle_gpu_drops_its_pcie_generation_and_keeps_its_width(driver: Drive) -> None:
    """Generation 1 of 5 while idle, 5 under a job; 16 lanes always; the job is seen as a process."""
    driver("h100x8", "- {fault: job, gpu: 1, at: 0s}")
    idle, busy = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(1)

    assert [pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle) for handle in (idle, busy)] == [1, 5]
    assert [pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) for handle in (idle, busy)] == [5, 5]
    assert [pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle) for handle in (idle, busy)] == [16, 16]
    assert pynvml.nvmlDeviceGetUtilizationRates(idle).gpu == 0
    assert pynvml.nvmlDeviceGetUtilizationRates(busy).gpu > 90
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(idle) == []
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(busy)
    assert process.pid == 4_100_001
    assert 0 < process.usedGpuMemory < pynvml.nvmlDeviceGetMemoryInfo(busy, pynvml.nvmlMemory_v2).total


def test_memory(driver: Drive) -> None:
    """Version 1 counts the driver's reserve as used, version 2 apart; a job takes most of it."""
    driver("h100x8", "- {fault: job, gpu: 1, at: 0s}")
    idle, busy = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(1)

    first, second = pynvml.nvmlDeviceGetMemoryInfo(idle), pynvml.nvmlDeviceGetMemoryInfo(idle, pynvml.nvmlMemory_v2)
    assert second.used == 0
    assert first.used == second.reserved > 0
    for memory in (first, second):
        assert memory.free + first.used == memory.total
    assert pynvml.nvmlDeviceGetMemoryInfo(busy).used > 0.7 * first.total
