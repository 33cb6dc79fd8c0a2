"""What one GPU supports, found out by trying, and the prepared reading of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pynvml

from commwatch.sources.nvml import codes
from commwatch.sources.nvml.fields import COUNTERS, Collector, Counter, FieldCounter, applies
from commwatch.sources.nvml.gpu import Gpu
from commwatch.sources.nvml.groups import Group, TrafficGroup, UseGroup

_GROUPS: Final[Mapping[Collector, type[Group]]] = {
    "identity": Group, "gpu": UseGroup, "nvlink": TrafficGroup, "nvlink_errors": Group, "pcie": Group,
}  # fmt: skip
_MOST_LINKS: Final = 256  # the end of the count for a driver that never refuses a link


@dataclass(frozen=True)
class Plan:
    """What is read from one GPU and how."""

    time: float
    """Monotonic seconds at which the GPU was tried."""
    link_states: tuple[int, ...] | None
    """State of each link at that time; None where the driver could not say how many there are."""
    support: Mapping[str, bool | None]
    """By counter name; None where all links were inactive, or the trial failed otherwise, so that it is not known."""
    groups: Mapping[str, Group]


def link_states(gpu: Gpu) -> tuple[int, ...] | None:
    """State of each link of a GPU, 0 or 1, up to the first link that does not exist; None where that cannot be told.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.note``.
    """
    states: list[int] = []
    for link in range(_MOST_LINKS):
        state, code = gpu.ask(pynvml.nvmlDeviceGetNvLinkState, link)
        if state is None:
            gpu.note(pynvml.nvmlDeviceGetNvLinkState.__name__, code)
            if code not in codes.NOT_THERE or code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return None
            break
        states.append(state)
    return tuple(states)


def make_plan(gpu: Gpu, time: float, states: tuple[int, ...] | None, earlier: Plan | None = None) -> Plan:
    """Try every counter on a GPU once and prepare the reading of those that it has.

    Args:
        gpu: the GPU to try.
        time: monotonic seconds now.
        states: what ``link_states`` gave for it.
        earlier: the plan before; its series are kept where they are the same.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.note``.
    """
    architecture = gpu.call(pynvml.nvmlDeviceGetArchitecture)
    support: dict[str, bool | None] = {
        row.name: _try(gpu, row, states or ()) if applies(row, architecture) else False for row in COUNTERS
    }
    chosen: dict[str, Counter] = {}
    for row in COUNTERS:
        if support[row.name] is not False:
            chosen.setdefault(row.metric, row)
    groups: dict[str, Group] = {}
    for collector, make in _GROUPS.items():
        rows = [row for row in chosen.values() if row.collector == collector]
        groups[collector] = make(gpu, rows, len(states or ()), earlier.groups[collector] if earlier else None)
    return Plan(time, states, support, groups)


def _try(gpu: Gpu, row: Counter, states: Sequence[int]) -> bool | None:
    """Whether a GPU has a counter; None where no active link could be asked."""
    if row.scope != "device" and not states:
        return False
    places = range(len(states)) if row.scope == "link" else (0,)
    if isinstance(row, FieldCounter):
        answers = gpu.try_fields([(row.field, place) for place in places])
    elif row.scope == "device":
        answers = [gpu.ask(row.call, *row.arguments)[1]]
    else:
        answers = [gpu.ask(row.call, link, *row.arguments)[1] for link in places]
    verdicts = []
    for place, code in zip(places, answers, strict=True):
        gpu.check(row.name, code)
        verdicts.append(_verdict(code, _answers(row, states, place)))
    if True in verdicts:
        return True
    return False if False in verdicts else None


def _answers(row: Counter, states: Sequence[int], link: int) -> bool:
    """Whether a refusal counts: an inactive link refuses counters that it has."""
    if row.scope == "device" or row.answers_inactive:
        return True
    return bool(states[link]) if row.scope == "link" else any(states)


def _verdict(code: int, answers: bool) -> bool | None:
    """Whether a return code shows that a counter exists; None where it shows nothing."""
    if code == codes.SUCCESS:
        return True
    if not answers and code in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NO_DATA):
        return None
    return False if code in codes.ABSENT else None
