"""The metrics that one GPU supports, found out by trying, and the prepared reading of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from commwatch.sources.nvml import codes
from commwatch.sources.nvml.field_values import FieldBatch
from commwatch.sources.nvml.fields import COUNTERS
from commwatch.sources.nvml.fields.nvlink import C2C_LINK_COUNT
from commwatch.sources.nvml.fields.row import (
    CallCounter,
    CallReport,
    Collector,
    Counter,
    FieldCounter,
    GpmCounter,
    applies,
)
from commwatch.sources.nvml.gpm import GpmGroup, gpm_support
from commwatch.sources.nvml.gpu import Gpu
from commwatch.sources.nvml.groups import Group, Places, ProcessGroup, TrafficGroup, UseGroup, places_of
from commwatch_exporters.catalogue import OPT_IN

_GROUPS: Final[Mapping[Collector, Callable[..., Group]]] = {
    "identity": Group, "link_info": Group, "gpu": UseGroup, "processes": ProcessGroup, "nvlink": TrafficGroup,
    "nvlink_errors": Group, "pcie": Group, "gpm": GpmGroup, "fabric": Group,
}  # fmt: skip
TRIED: Final = tuple(row for row in COUNTERS if row.collector in _GROUPS)
"""All but those of ``samples.py``, of which each trial would wait."""
_ALWAYS_READ: Final = frozenset({"commwatch_nvlink_link_speed_bytes_per_second"})
"""Exposed only if requested, but the capacity of the links depends on it."""
_NO_SUCH_LINK: Final = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED})
_MOST_LINKS: Final = 256  # the end of the count for a driver that never refuses a link


@dataclass(frozen=True)
class Plan:
    """The metrics that are read from one GPU, and how."""

    time: float
    """Monotonic seconds at which the GPU was tried."""
    link_states: tuple[int, ...] | None
    """State of each link at that time; None if the driver could not give their number."""
    tried: Mapping[str, bool | None]
    """By counter name, what the trial showed; see ``support``."""
    groups: Mapping[str, Group]
    fabric_info: Callable[[object], Any] | None
    """The call that gives the GPU's place in the fabric; None where it has none."""

    @property
    def support(self) -> Mapping[str, bool | None]:
        """By counter name; None where all links were inactive, it is not opted in, or a trial showed nothing."""
        gpm = self.groups["gpm"]
        return {**self.tried, **gpm.learned} if isinstance(gpm, GpmGroup) else self.tried

    def close(self) -> None:
        """Give back what the driver lent."""
        for group in self.groups.values():
            group.close()


def link_states(gpu: Gpu) -> tuple[int, ...] | None:
    """State of each link of a GPU, 0 or 1, up to the first link that does not exist; None where that cannot be known.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.note``.
    """
    states: list[int] = []
    for link in range(_MOST_LINKS):
        state, code = gpu.ask(pynvml.nvmlDeviceGetNvLinkState, link)
        if state is None:
            gpu.note(pynvml.nvmlDeviceGetNvLinkState.__name__, code)
            if code not in _NO_SUCH_LINK:
                return None
            break
        states.append(state)
    return tuple(states)


def make_plan(
    gpu: Gpu,
    time: float,
    states: tuple[int, ...] | None,
    earlier: Plan | None = None,
    opt_in: frozenset[str] = frozenset(),
) -> Plan:
    """Try every counter on a GPU once and prepare the reading of those that it has and that are wanted.

    Args:
        time: monotonic seconds now.
        states: what ``link_states`` gave for it.
        earlier: the plan before, whose GPM samples are gone on with.
        opt_in: metrics that are read only because the configuration names them.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.note``.
    """
    architecture = gpu.call(pynvml.nvmlDeviceGetArchitecture)
    places = places_of(len(states or ()), _c2c_links(gpu))
    unwanted = OPT_IN - opt_in - _ALWAYS_READ
    gpm = gpm_support(gpu)
    support: dict[str, bool | None] = {}
    chosen: dict[tuple[str, tuple[str, ...]], Counter] = {}
    for row in TRIED:
        if not applies(row, architecture):
            verdict: bool | None = False
        elif isinstance(row, GpmCounter):
            verdict = gpm
        elif row.metric in unwanted and not isinstance(row, FieldCounter):
            verdict = None  # such a call may block, so it is not even tried
        else:
            verdict = _try(gpu, row, states or (), places)
        support[row.name] = verdict
        if verdict is not False and row.metric not in unwanted:
            chosen.setdefault((row.metric, row.labels), row)
    groups: dict[str, Group] = {}
    for collector, make in _GROUPS.items():
        rows = [row for row in chosen.values() if row.collector == collector]
        groups[collector] = make(gpu, rows, places)
    gpm_now, gpm_before = groups["gpm"], earlier.groups["gpm"] if earlier else None
    if isinstance(gpm_now, GpmGroup) and isinstance(gpm_before, GpmGroup):
        gpm_now.go_on_from(gpm_before)
    fabric = next((row for row in chosen.values() if row.collector == "fabric"), None)
    return Plan(time, states, support, groups, fabric.call if isinstance(fabric, CallReport) else None)


def _c2c_links(gpu: Gpu) -> int:
    """Chip-to-chip links to a CPU: only superchips have any."""
    (count,) = gpu.read(FieldBatch([(C2C_LINK_COUNT, 0, 1)]))
    return min(int(count or 0), _MOST_LINKS)


def _try(gpu: Gpu, row: FieldCounter | CallCounter | CallReport, states: Sequence[int], places: Places) -> bool | None:
    """Whether a GPU has a counter; None where no active link could be asked."""
    # Values that hold for all links are read once.
    asked = [place or 0 for place in (places[row.scope][:1] if row.scope == "all_links" else places[row.scope])]
    if not asked:
        return False
    if isinstance(row, FieldCounter):
        answers = gpu.try_fields([(row.field, place) for place in asked])
    elif row.scope == "device":
        answers = [gpu.ask(row.call, *row.arguments)[1]]
    else:
        answers = [gpu.ask(row.call, place, *row.arguments)[1] for place in asked]
    verdicts = []
    for place, code in zip(asked, answers, strict=True):
        gpu.check(row.name, code)
        verdicts.append(_verdict(code, _answers(row, states, place)))
    if True in verdicts:
        return True
    return False if False in verdicts else None


def _answers(row: FieldCounter | CallCounter | CallReport, states: Sequence[int], link: int) -> bool:
    """Whether a refusal counts: an inactive link refuses counters that it has."""
    if row.scope in ("device", "c2c_link") or (not isinstance(row, CallReport) and row.answers_inactive):
        return True
    return bool(states[link]) if row.scope == "link" else any(states)


def _verdict(code: int, answers: bool) -> bool | None:
    """Whether a return code shows that a counter exists; None where it shows nothing."""
    if not answers and code in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NO_DATA):
        return None
    return codes.exists(code)
