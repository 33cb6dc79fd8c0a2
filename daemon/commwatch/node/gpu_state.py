"""The state of each GPU that is or was here, from what was read and what was not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from commwatch.node.inventory_state import GpuRecord
from commwatch.node.observation import Observation
from commwatch.readings import Absence, Reason
from commwatch_exporters.snapshot import Block, Layout, Series, Value

GROUP: Final = "gpu_state"
"""Of the store."""
OK, NOT_ANSWERING, LOST, RESET_REQUIRED, MISSING, NOT_LISTED = range(6)

GpuLabels: TypeAlias = "tuple[str, str]"
"""The labels ``gpu`` and ``pci_bus_id``. ``gpu`` is empty where the NVML index is not known or is another GPU's."""

_STATE_OF_REASON: Mapping[Reason, int] = {
    "lost": LOST,
    "reset_required": RESET_REQUIRED,
    "deadline": NOT_ANSWERING,
    "crashed": NOT_ANSWERING,  # of a named device: one that did not answer has a process of its own
    "not_found": MISSING,
    "not_listed": NOT_LISTED,
}
"""The GPU's state by the reason for its absent readings; other reasons have no meaning for the GPU."""

_MOST_SEVERE_FIRST = (LOST, RESET_REQUIRED, NOT_LISTED, MISSING, NOT_ANSWERING)


def gpu_states(
    known: Mapping[str, GpuRecord],
    seen: Observation,
    absences: Collection[Absence],
    suspects: Iterable[str],
    on_bus: Collection[str] = (),
) -> dict[GpuLabels, int]:
    """The state of each GPU: 0 ok, 1 not answering, 2 lost, 3 reset required, 4 missing, 5 not listed.

    Ok and missing can only be said while the driver lists its GPUs. When it does not (no driver, or its worker is
    being replaced), a GPU without evidence of its own has no state: a driver that is not loaded is a failing
    collector, not eight missing GPUs. Evidence of its own is an absence for that GPU, or a worker stuck on it.

    A GPU of which something fails otherwise, so that its identity was not read, has no state until it is known whether
    all fails (``silent_gpus``): it is not missing.

    A GPU whose slot holds another one since keeps the state missing, with an empty ``gpu``, until the inventory is
    accepted.

    Args:
        known: the GPUs that are or were here, by UUID.
        seen: what ``observe_blocks`` gives; ``gpus`` is None while the driver lists none.
        absences: those of the last run of each collector of the driver.
        suspects: devices on which a worker is stuck, and those that fail every call (``silent_gpus``): PCI addresses,
            or ``index:N`` where no address was known yet.
        on_bus: PCI addresses of all GPUs that the driver should list; empty where that is not known.
    """
    here, away, gone = _places(known, seen)
    failing = failing_gpus(known, seen, absences, on_bus)
    states: dict[GpuLabels, int] = {}
    evidence = _evidence(absences, suspects)
    named = {absence.device for absence in absences} | evidence.keys()
    for device, state in evidence.items():
        labels = _labels_of(device, here, gone, named, on_bus)
        states[labels] = _graver(state, states.get(labels, state))
    for pci_bus_id, index in here.items():
        states.setdefault((index, pci_bus_id), OK)
    if seen.gpus is not None:
        for gpu in away:
            if gpu.is_expected and (gpu.is_replaced or gpu.pci_bus_id not in failing):
                states.setdefault(
                    (gone.get(gpu.pci_bus_id, "") if not gpu.is_replaced else "", gpu.pci_bus_id), MISSING
                )
    return states


def failing_gpus(
    known: Mapping[str, GpuRecord], seen: Observation, absences: Collection[Absence], on_bus: Collection[str] = ()
) -> frozenset[str]:
    """PCI addresses of the GPUs with an absence whose reason does not concern their state."""
    here, _, gone = _places(known, seen)
    named = {absence.device for absence in absences}
    return frozenset(
        _labels_of(absence.device, here, gone, named, on_bus)[1]
        for absence in absences
        if absence.device and absence.reason not in _STATE_OF_REASON
    )


def not_working(states: Mapping[GpuLabels, int]) -> frozenset[str]:
    """PCI addresses of the GPUs whose state is not ok: they do not count as present."""
    return frozenset(pci_bus_id for (gpu, pci_bus_id), state in states.items() if state != OK and gpu)


def state_block(
    states: Mapping[GpuLabels, int],
    known: Mapping[str, GpuRecord],
    seen: Observation,
    time: float,
    failing: Collection[str] = (),
    silent: Mapping[str, float] = MappingProxyType({}),
    on_bus: Collection[str] = (),
) -> Block:
    """The states as the metric ``commwatch_gpu_state``, and who the GPUs are that cannot say so themselves now.

    Args:
        states: what ``gpu_states`` gives.
        known: the GPUs that are or were here, by UUID.
        seen: what ``observe_blocks`` gives.
        time: monotonic seconds.
        failing: what ``failing_gpus`` gives.
        silent: devices that fail every call, with the seconds since 1970 of their last reading.
        on_bus: as for ``gpu_states``; those that no other reading names may be a GPU without an address.
    """
    readings: dict[Series, Value] = {("commwatch_gpu_state", labels): state for labels, state in states.items()}
    for (index, pci_bus_id), state in states.items():
        since = silent.get(pci_bus_id, silent.get(f"index:{index}"))
        if state == NOT_ANSWERING and since is not None:
            readings["commwatch_gpu_calls_failing_timestamp_seconds", (index, pci_bus_id)] = since
    placed = {pci_bus_id for _, pci_bus_id in states}
    nameless = [index for index, pci_bus_id in states if not pci_bus_id]
    possible = sorted(set(on_bus) - placed)
    readings.update({("commwatch_gpu_possible_address", (index, "", one)): 1 for index in nameless for one in possible})
    here = {gpu.pci_bus_id for gpu in seen.gpus or ()}
    for uuid, gpu in known.items():
        labels = (str(gpu.index), gpu.pci_bus_id)
        is_away = states.get(labels, OK) != OK or gpu.pci_bus_id in failing
        if is_away and gpu.pci_bus_id not in here and not gpu.is_replaced:
            shown = "" if uuid == gpu.pci_bus_id else uuid
            readings["commwatch_gpu_info", (*labels, shown, gpu.serial, gpu.name, gpu.architecture)] = 1
    return Block(Layout(readings), tuple(readings.values()), time)


def _places(
    known: Mapping[str, GpuRecord], seen: Observation
) -> tuple[dict[str, str], list[GpuRecord], dict[str, str]]:
    """The GPUs that the driver lists, by PCI address with their index; those that it does not; and these by address."""
    here = {gpu.pci_bus_id: str(gpu.index) for gpu in seen.gpus or ()}
    uuids = {gpu.uuid for gpu in seen.gpus or ()}
    away = [gpu for uuid, gpu in known.items() if uuid not in uuids]
    gone = {gpu.pci_bus_id: str(gpu.index) for gpu in away if gpu.pci_bus_id not in here and not gpu.is_replaced}
    return here, away, gone


def _evidence(absences: Iterable[Absence], suspects: Iterable[str]) -> dict[str, int]:
    """The most severe state that something speaks for, by device."""
    found: dict[str, int] = dict.fromkeys(suspects, NOT_ANSWERING)
    for absence in absences:
        state = _STATE_OF_REASON.get(absence.reason)
        if absence.device and state is not None:
            found[absence.device] = _graver(state, found.get(absence.device, state))
    return found


def _graver(one: int, other: int) -> int:
    return min(one, other, key=_MOST_SEVERE_FIRST.index)


def _labels_of(
    device: str,
    here: Mapping[str, str],
    gone: Mapping[str, str],
    named: Collection[str],
    on_bus: Collection[str] = (),
) -> GpuLabels:
    """The labels of a device by its key.

    ``index:N`` is the GPU that the driver lists as N now; else the one not listed that was N last and is on the PCI
    bus, as far as that is known; else the only one on the bus, or of those known, that is not listed and not named by
    its address, if no other device goes by its index alone; else a GPU of which nothing but its index is known.

    Args:
        here: the GPUs that the driver lists: NVML index by PCI address.
        gone: those it does not list, with the index they had last.
        named: keys of all devices that a finding names now.
        on_bus: as for ``gpu_states``.
    """
    if not device.startswith("index:"):
        return here.get(device) or gone.get(device, ""), device
    wanted = device.removeprefix("index:")
    # Indexes move up where a card has gone: what is not on the bus has none.
    placed = [*here.items(), *(one for one in gone.items() if not on_bus or one[0] in on_bus)]
    for pci_bus_id, index in placed:
        if index == wanted:
            return index, pci_bus_id
    indices = {index for _, index in placed}
    nameless = [one for one in named if one.startswith("index:") and one.removeprefix("index:") not in indices]
    left = [address for address in on_bus or gone if address not in here and address not in named]
    if (here or on_bus) and len(left) == 1 and len(nameless) == 1:
        return gone.get(left[0], wanted), left[0]
    return wanted, ""
