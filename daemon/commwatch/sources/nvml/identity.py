"""Identity of GPUs, links and driver: the info series, link counts and speeds, and which counters the driver has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pynvml

from commwatch.readings import DeviceReadings
from commwatch.sources.nvml import codes
from commwatch.sources.nvml.fields.fabric import fabric_labels
from commwatch.sources.nvml.gpm import CONFIDENTIAL_COMPUTING, confidential_computing_mode
from commwatch.sources.nvml.gpu import Gpu, pci_bus_id
from commwatch.sources.nvml.plan import TRIED, Plan
from commwatch_exporters.snapshot import Series, Value

_ARCHITECTURES: Final = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
_NVLINK_VERSIONS: Final = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_REMOTE_TYPES: Final = {0: "gpu", 1: "ibmnpu", 2: "switch"}

_SPEED: Final = "commwatch_nvlink_link_speed_bytes_per_second"
_SWITCH_LINKS: Final = "commwatch_nvlink_switch_links"
_COUNTER_STATES: Final[tuple[Series, ...]] = tuple(
    ("commwatch_counters_state", ("nvml", name)) for name in (*(row.name for row in TRIED), CONFIDENTIAL_COMPUTING)
)


def read_gpu_identity(
    gpu: Gpu, plan: Plan, states: tuple[int, ...] | None, monotonic: Callable[[], float]
) -> DeviceReadings:
    """Identity of a GPU and of its links.

    Args:
        states: what ``link_states`` gave for it just now.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.note``.
    """
    series: list[Series] = []
    values: list[Value] = []
    name = gpu.call(pynvml.nvmlDeviceGetName)
    uuid, code = gpu.ask(pynvml.nvmlDeviceGetUUID)
    gpu.note(pynvml.nvmlDeviceGetUUID.__name__, code)
    if uuid is not None:
        gpu.uuid = uuid
    elif code in codes.NOT_THERE:
        uuid = gpu.uuid or None
    # Without its UUID it would be taken for another GPU, unless it has none.
    if uuid is not None or (name is not None and code in codes.NOT_THERE):
        serial = gpu.call(pynvml.nvmlDeviceGetSerial)
        architecture = gpu.call(pynvml.nvmlDeviceGetArchitecture)
        named = (uuid or "", serial or "", name or "", _name(_ARCHITECTURES, architecture))
        series.append(("commwatch_gpu_info", (*gpu.labels, *named)))
    series += _link_infos(gpu, plan, states or (), monotonic)
    fabric = _fabric_labels(gpu, plan)
    if fabric is not None:
        series.append(("commwatch_fabric_info", (*gpu.labels, *fabric)))
    values += [1] * len(series)
    if states or (states is not None and not gpu.mig_enabled()):
        series.append(("commwatch_nvlink_links", gpu.labels))
        values.append(len(states))
    group = plan.groups["identity"]
    numbers, _ = group.read(gpu, monotonic)
    for one, number in zip(group.series, numbers, strict=True):
        series.append(one)
        values.append(_believed(gpu, one, number, states or ()))
    return DeviceReadings(gpu.device, monotonic(), tuple(series), values)


def _believed(gpu: Gpu, series: Series, number: Value, states: Sequence[int]) -> Value:
    """A number of the identity, or None if it has no meaning in the links' present state."""
    metric, labels = series
    if metric == _SPEED:
        link = int(labels[2])
        # The driver has a speed for the links that run; 0 is what it says of others.
        return number or None if link < len(states) and states[link] else None
    if metric == _SWITCH_LINKS and number == 0 and gpu.mig_enabled():
        return None  # with MIG enabled links sound as if they led nowhere
    return number


def read_driver_identity(
    supports: Iterable[Mapping[str, bool | None]], monotonic: Callable[[], float]
) -> DeviceReadings:
    """Versions of the driver, and for each counter of the tables whether any GPU supports it."""
    labels = (_text(pynvml.nvmlSystemGetDriverVersion), _text(pynvml.nvmlSystemGetNVMLVersion), _cuda_version())
    verdicts = list(supports)
    states = [state_of([support[row.name] for support in verdicts]) for row in TRIED]
    mode, code = confidential_computing_mode()
    states.append(state_of([codes.exists(code)]))
    series = (("commwatch_software_info", labels), ("commwatch_gpu_confidential_computing_mode", ()), *_COUNTER_STATES)
    return DeviceReadings("", monotonic(), series, [1 if any(labels) else None, mode, *states])


def state_of(verdicts: Sequence[bool | None]) -> Value:
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


def _link_infos(gpu: Gpu, plan: Plan, states: Sequence[int], monotonic: Callable[[], float]) -> list[Series]:
    """The info series of each link with its remote end, for links of which anything is known; for a link that is down
    as last read. A link of which all is known is asked again when its state has changed: that takes three calls."""
    remote_links = _remote_links(gpu, plan, monotonic)
    for link, state in enumerate(states):
        before, known = gpu.link_labels.get(link, (None, ("", "", "", "")))
        if state != before or not all(known):
            labels = (*_link_labels(gpu, link), remote_links.get(str(link), ""))
            gpu.link_labels[link] = state, tuple(new or old for new, old in zip(labels, known, strict=True))
    infos = ((str(link), *gpu.link_labels[link][1]) for link in range(len(states)) if any(gpu.link_labels[link][1]))
    return [("commwatch_nvlink_info", (*gpu.labels, *info)) for info in infos]


def _remote_links(gpu: Gpu, plan: Plan, monotonic: Callable[[], float]) -> dict[str, str]:
    """Number of the link at the far end, by link."""
    group = plan.groups["link_info"]
    numbers, _ = group.read(gpu, monotonic)
    found = zip(group.series, numbers, strict=True)
    return {labels[2]: str(number) for (_, labels), number in found if number is not None}


def _fabric_labels(gpu: Gpu, plan: Plan) -> tuple[str, str] | None:
    info = None if plan.fabric_info is None else gpu.call(plan.fabric_info)
    return None if info is None else fabric_labels(info)


def _name(names: Mapping[int, str], number: int | None) -> str:
    return "" if number is None else names.get(number, str(number))


def _text(function: Callable[[], str]) -> str:
    try:
        return function()
    except (pynvml.NVMLError, UnicodeDecodeError):  # the binding cannot decode every byte
        return ""


def _cuda_version() -> str:
    try:
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
