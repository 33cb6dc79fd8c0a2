"""The pair matrix: what every GPU sent to every other one in a cycle, as it is kept, judged, drawn and compared."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from commwatch.state.records import Count, Rate, Ratio, Seconds

FORMAT: Final = "commwatch-pairs/1"

Quantity: TypeAlias = Literal["latency", "bandwidth", "both_ways"]
"""The quantity of the cells in a picture or a comparison."""


class PairEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One end of the pairs: a GPU, or a rank where there are none."""

    label: str
    """NVML index, or rank: ``0``. Value of the labels ``src`` and ``dst``."""
    device: str = ""
    """GPU UUID: who it is over time; empty without a GPU."""
    pci_address: str = ""
    name: str = ""


class PairCell(msgspec.Struct, frozen=True, kw_only=True):
    """One ordered pair; None for what was not measured."""

    source: Count
    """Place in ``PairMatrix.endpoints``."""
    destination: Count
    latency_seconds: Seconds | None = None
    """Half of a round trip of a small message that the source begins."""
    bandwidth: Rate | None = None
    """Bytes per second from source to destination while nothing flows back."""
    both_ways_bandwidth: Rate | None = None
    """The same while as much flows back."""
    expected_bandwidth: Rate | None = None
    """Bytes per second that the way should give; None where nothing can be said."""
    path: str = ""
    """Class of the way: ``NV18``, ``PIX``, ``SYS``; empty where not known."""
    round: Count | None = None
    """In which round of the cycle it was measured, from 0: the first ones run before the clocks are up."""

    def value(self, quantity: Quantity) -> float | None:
        """Seconds for latency, else bytes per second; None where not measured."""
        if quantity == "latency":
            return self.latency_seconds
        return self.bandwidth if quantity == "bandwidth" else self.both_ways_bandwidth


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A part that slow cells have in common."""

    kind: str
    """gpu, link_group, pcie_link, pcie_switch, numa_node, nic, node, pair."""
    element: str
    """Which one: ``GPU3``, ``0000:16:00.0``, ``GPU0-GPU1``."""
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """0 to 1: how much better it explains the slow cells than anything else."""
    slowdown: Ratio
    """Time of its cells over what it should be: 1.43 for 70 % of the bandwidth."""
    quantity: Quantity = "bandwidth"
    """By which it was seen."""
    cells: tuple[tuple[Count, Count], ...]
    """The slow cells that it explains, as source and destination."""
    words: str
    """The same in a sentence for an operator."""


class PairMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle over all pairs; what ``--json`` prints and ``commwatch heatmap`` reads back."""

    format: Literal["commwatch-pairs/1"] = FORMAT
    taken_at: float
    """Seconds since 1970."""
    backend: str
    nccl_version: str = ""
    settings_digest: str = ""
    simulated_node: str = ""
    """Name of the simulated node; empty for a real one."""
    latency_bytes: Count
    bandwidth_bytes: Count
    endpoints: tuple[PairEndpoint, ...]
    cells: tuple[PairCell, ...]
    """By source, then destination; a pair that was not measured may be missing."""
    suspects: tuple[Suspect, ...] = ()
    """Named from this matrix and the two before it; the surest first."""

    def values(self, quantity: Quantity) -> dict[tuple[int, int], float]:
        """By source and destination: seconds for latency, else bytes per second; what was not measured is left out."""
        found = {(cell.source, cell.destination): cell.value(quantity) for cell in self.cells}
        return {pair: value for pair, value in found.items() if value is not None}
