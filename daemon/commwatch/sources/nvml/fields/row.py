"""How a counter of NVML is written down: kinds of rows, and on which GPUs a row can exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from commwatch_exporters.snapshot import Value

Collector: TypeAlias = Literal[
    "identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie", "pcie_sampled", "gpm", "fabric", "link_info"
]
"""``link_info`` is read together with ``identity``: its numbers become labels."""
Generations: TypeAlias = Literal["all", "nvlink_1_to_4", "nvlink_5_up"]
Scope: TypeAlias = Literal["device", "link", "all_links", "c2c_link"]
"""``device``: one number for the GPU; ``link``: one for each NVLink; ``all_links``: one number that holds for each;
``c2c_link``: one for each chip-to-chip link."""


@dataclass(frozen=True, slots=True)
class FieldCounter:
    """A number that ``nvmlDeviceGetFieldValues`` gives."""

    name: str
    """NVML's own name without ``NVML_FI_DEV_``, lower case; the label ``counter`` of ``commwatch_counters_state``."""
    field: int
    """Field id. Ids 251 to 273 were renumbered between drivers, and 197 and 198 wrap: these must not be used."""
    metric: str
    collector: Collector
    scope: Scope
    generations: Generations = "all"
    scale: int = 1
    """Factor from NVML's unit to the metric's."""
    decode: Callable[[int], float] | None = None
    """For a number that is packed, or in a smaller unit than the metric; the scale is 1 then."""
    answers_inactive: bool = False
    """Whether an inactive link gives it, so that a refusal there shows that the driver does not know it."""
    labels: tuple[str, ...] = ()
    """Values of the labels that the metric has beside those of its scope."""


@dataclass(frozen=True, slots=True)
class CallCounter:
    """A number that an NVML function of its own gives."""

    name: str
    """NVML's own name without ``nvmlDeviceGet``; the label ``counter`` of ``commwatch_counters_state``."""
    call: Callable[..., Any]  # the binding has no types
    metric: str
    collector: Collector
    scope: Scope
    generations: Generations = "all"
    arguments: tuple[int, ...] = ()
    """Arguments after the handle and, for a link's counter, the link."""
    convert: Callable[[Any], Value] | None = None  # what the binding returns has no type
    answers_inactive: bool = False
    labels: tuple[str, ...] = ()
    """Values of the labels that the metric has beside those of its scope."""


@dataclass(frozen=True, slots=True)
class CallReport:
    """Several numbers of a GPU that one NVML function gives together."""

    name: str
    """As for ``CallCounter``."""
    call: Callable[..., Any]  # the binding has no types
    series: tuple[tuple[str, tuple[str, ...]], ...]
    """Metric of each number, with the values of the labels that it has beside those of the GPU."""
    collector: Collector
    convert: Callable[[Any], Sequence[Value]]  # what the binding returns has no type
    """Gives as many numbers as ``series``."""
    arguments: tuple[int, ...] = ()
    generations: Generations = "all"
    scope: Scope = "device"

    @property
    def metric(self) -> str:
        """The first metric, which represents the report if several rows give the same."""
        return self.series[0][0]

    @property
    def labels(self) -> tuple[str, ...]:
        """Further label values of the first metric."""
        return self.series[0][1]


@dataclass(frozen=True, slots=True)
class GpmCounter:
    """A number that ``nvmlGpmMetricsGet`` gives for the time between two samples."""

    name: str
    """NVML's own name without ``NVML_``, lower case; the label ``counter`` of ``commwatch_counters_state``."""
    number: int
    """Metric id of GPM."""
    metric: str
    collector: Collector = "gpm"
    scope: Scope = "device"
    generations: Generations = "all"
    labels: tuple[str, ...] = ()


Counter: TypeAlias = FieldCounter | CallCounter | CallReport | GpmCounter

_BLACKWELL: Final = 10
_UNKNOWN_ARCHITECTURE: Final = 0xFFFFFFFF


def applies(row: Counter, architecture: int | None) -> bool:
    """Whether a counter can exist on an architecture (NVML's number; None where the driver does not say)."""
    if row.generations == "all":
        return True
    nvlink_5_up = architecture is not None and _BLACKWELL <= architecture < _UNKNOWN_ARCHITECTURE
    return nvlink_5_up == (row.generations == "nvlink_5_up")
