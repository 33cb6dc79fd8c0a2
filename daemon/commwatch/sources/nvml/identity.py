"""What GPUs, links and driver are: the info series, link counts and speeds, and which counters the driver has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import pynvml

from commwatch.sources.base import DeviceReadings
from commwatch.sources.nvml.fields import COUNTERS
from commwatch.sources.nvml.gpu import Gpu, pci_bus_id
from commwatch.sources.nvml.plan import Plan
from commwatch_exporters.snapshot import Series, Value

_ARCHITECTURES: Final = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
_NVLINK_VERSIONS: Final = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_REMOTE_TYPES: Final = {0: "gpu", 1: "ibmnpu", 2: "switch"}

_COUNTER_STATES: Final[tuple[Series, ...]] = tuple(("commwatch_counter_state", ("nvml", row.name)) for row in COUNTERS)


def read_gpu_identity(
    gpu: Gpu, plan: Plan, states: tuple[int, ...] | None, monotonic: Callable[[], float]
) -> DeviceReadings:
    """Identity of a GPU and of its links.

    Args:
        gpu: the GPU.
        plan: its plan.
        states: what ``link_states`` gave for it just now.
        monotonic: the clock.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.note``.
    """
    series: list[Series] = []
    values: list[Value] = []
    name, uuid = gpu.call(pynvml.nvmlDeviceGetName), gpu.call(pynvml.nvmlDeviceGetUUID)
    if name is not None or uuid is not None:
        serial = gpu.call(pynvml.nvmlDeviceGetSerial)
        architecture = gpu.call(pynvml.nvmlDeviceGetArchitecture)
        named = (uuid or "", serial or "", name or "", _name(_ARCHITECTURES, architecture))
        series.append(("commwatch_gpu_info", (*gpu.labels, *named)))
        values.append(1)
    if states or (states is not None and not gpu.mig_enabled()):
        series.append(("commwatch_nvlink_links", gpu.labels))
        values.append(len(states))
    for link in range(len(states or ())):
        labels = _link_labels(gpu, link)
        if any(labels):
            series.append(("commwatch_nvlink_info", (*gpu.labels, str(link), *labels)))
            values.append(1)
    group = plan.groups["identity"]
    speeds, _ = group.read(gpu, monotonic)
    for one, speed, state in zip(group.series, speeds, states or (), strict=False):
        series.append(one)
        # The driver has a speed for the links that run; 0 is what it says of others.
        values.append(speed or None if state else None)
    return DeviceReadings(gpu.device, monotonic(), tuple(series), values)


def read_driver_identity(
    supports: Iterable[Mapping[str, bool | None]], monotonic: Callable[[], float]
) -> DeviceReadings:
    """Versions of the driver, and for each counter of the tables whether any GPU supports it."""
    labels = (_text(pynvml.nvmlSystemGetDriverVersion), _text(pynvml.nvmlSystemGetNVMLVersion), _cuda_version())
    verdicts = list(supports)
    states = [_state([support[row.name] for support in verdicts]) for row in COUNTERS]
    series = (("commwatch_software_info", labels), *_COUNTER_STATES)
    return DeviceReadings("", monotonic(), series, [1 if any(labels) else None, *states])


def _state(verdicts: list[bool | None]) -> Value:
    """0 where a GPU supports the counter, 1 where none does, None where that is not known."""
    if True in verdicts:
        return 0
    return None if None in verdicts or not verdicts else 1


def _link_labels(gpu: Gpu, link: int) -> tuple[str, str, str]:
    """Version, kind of the far end and its PCI address; each empty where the driver does not say."""
    version = gpu.call(pynvml.nvmlDeviceGetNvLinkVersion, link)
    remote_type = gpu.call(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, link)
    remote = gpu.call(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, link)
    return (
        _NVLINK_VERSIONS.get(version, "") if version is not None else "",
        _REMOTE_TYPES.get(remote_type, "") if remote_type is not None else "",
        pci_bus_id(remote) if remote is not None else "",
    )


def _name(names: Mapping[int, str], number: int | None) -> str:
    return "" if number is None else names.get(number, str(number))


def _text(function: Callable[[], str]) -> str:
    try:
        return function()
    except pynvml.NVMLError:
        return ""


def _cuda_version() -> str:
    try:
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
