"""Floors: what a healthy machine of a type gives at least, published, written by a site or learned from its nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from commwatch.config.settings import Rate, Section
from commwatch.config.yaml_file import decode, read_yaml
from commwatch.units import format_percent

_GB = 10**9


class Machine(NamedTuple):
    """A machine type, and what its provider's health check asks of each machine, in bytes per second."""

    name: str
    gpu: str
    """Start of the GPU's name, without the vendor."""
    gpus: int
    """All of a node; NVLinks join each with all others."""
    all_reduce: float
    """Bus bandwidth over all GPUs."""
    all_reduce_bytes: int
    """Size of the message."""
    copy: float
    """Between a GPU and its host, each direction, over a PCIe link of ``pcie``."""
    pcie: tuple[int, int]
    """Generation and lanes."""
    pair: float | None
    """From one GPU to another one, one way."""
    rdma: float | None
    """``ib_write_bw`` between GPUs of two nodes (GPUDirect), one adapter."""
    adapter: float
    """Line rate of an adapter."""


MACHINES = (
    Machine("Azure ND H100 v5", "H100 80GB HBM3", 8, 460e9, 16 * _GB, 48e9, (5, 16), 335e9, 47.5e9, 50e9),
    Machine("Azure ND H200 v5", "H200", 8, 431e9, 16 * _GB, 48e9, (5, 16), 335e9, 45e9, 50e9),
    Machine("Azure ND GB200 v6", "GB200", 4, 432e9, 16 * _GB, 48e9, (5, 16), 335e9, 45e9, 50e9),
    Machine("Azure ND A100 v4", "A100-SXM4", 8, 228e9, 8 * _GB, 21e9, (4, 16), 235e9, 22.5e9, 25e9),
    Machine("Azure ND V100 v2", "Tesla V100-SXM2", 8, 110e9, 16 * _GB, 10e9, (3, 16), None, None, 12.5e9),
)
"""Azure/azurehpc-health-checks, conf/nd*.conf: check_nccl_allreduce, check_gpu_bw and check_ib_bw_gdr."""
MACHINES_SOURCE = "Azure/azurehpc-health-checks, conf"


class SiteFloor(NamedTuple):
    """A site's requirement for its machines."""

    gpu: str
    """Name of the GPUs, as the driver gives it."""
    gpus: int
    """Of a node."""
    measure: str
    """As ``bandwidths`` names it."""
    at_least: float
    """Bytes per second."""
    origin: str
    """A remark."""


class SiteFloors(NamedTuple):
    file: str
    floors: tuple[SiteFloor, ...]

    def of(self, gpu: str, gpus: int) -> list[SiteFloor]:
        """The floors of a machine with this number of GPUs of this name."""
        return [one for one in self.floors if (one.gpu, one.gpus) == (gpu, gpus)]


class _Entry(Section, frozen=True, kw_only=True):
    gpu: Annotated[str, Meta(min_length=1)]
    gpus: Annotated[int, Meta(ge=1, le=4096)]
    measure: Annotated[str, Meta(min_length=1)]
    at_least: Rate
    origin: str = ""


class _File(Section, frozen=True, kw_only=True):
    floors: tuple[_Entry, ...]


def read_floors(path: Path) -> SiteFloors:
    """The floors of a site's file.

    Raises:
        ConfigError: the file cannot be read, or a value of it cannot be used; it names line, key and what is right.
    """
    document = read_yaml(path)
    seen: dict[tuple[str, int, str], int] = {}
    floors: list[SiteFloor] = []
    for place, one in enumerate(decode(document, _File).floors):
        steps = ("floors", place)
        if not _is_bandwidth(one.measure):
            known = "all_reduce bus bandwidth, 64 MiB, 8 GPUs"
            problem = f"expected a bandwidth as commwatch diagnose --json names it, such as {known!r}"
            raise document.error((*steps, "measure"), f"{problem}; got {one.measure!r}")
        if not one.at_least > 0:
            raise document.error((*steps, "at_least"), "expected more than 0")
        key = (one.gpu, one.gpus, one.measure)
        if key in seen:
            raise document.error((*steps, "measure"), f"is already set in floors[{seen[key]}] for these GPUs")
        seen[key] = place
        floors.append(SiteFloor(one.gpu, one.gpus, one.measure, float(one.at_least), one.origin))
    return SiteFloors(str(path), tuple(floors))


_STARTS = ("copy host to device, ", "copy device to host, ", "slowest pair over ")


def _is_bandwidth(measure: str) -> bool:
    return " bus bandwidth, " in measure or measure.startswith(_STARTS)


def floors_text(floors: Sequence[SiteFloor], heading: Sequence[str]) -> str:
    """A file that ``read_floors`` reads back.

    Args:
        heading: lines of the comment above them.
    """
    lines = [f"# {line}".rstrip() for line in heading]
    lines.append("floors:")
    for one in floors:
        lines += [
            f"  - gpu: {_quoted(one.gpu)}",
            f"    gpus: {one.gpus}",
            f"    measure: {_quoted(one.measure)}",
            f"    at_least: {_rate_text(one.at_least)}",
            f"    origin: {_quoted(one.origin)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    import json  # a JSON string is a YAML string

    return json.dumps(text)


def _rate_text(rate: float) -> str:
    """Rounded down to a ten-thousandth or less of it: a floor is not raised by how it is written."""
    return f"{int(rate / 1e6)}MB/s"


# --- from what good nodes have given ---


class GoodNode(NamedTuple):
    name: str
    """File or address of the measurements."""
    gpu: str
    gpus: int
    bandwidths: Mapping[str, float]
    """By measure, bytes per second."""
    simulated: str | None
    """Name of the simulated node."""


def learned(nodes: Sequence[GoodNode], quantile: float, margin: float) -> list[SiteFloor]:
    """A floor for each measure of each kind of node.

    Args:
        nodes: that are good.
        quantile: of the nodes' values, from 0, the least, to 1.
        margin: share by which a floor stays below it.
    """
    values: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for node in nodes:
        for measure, rate in node.bandwidths.items():
            values[node.gpu, node.gpus, measure].append(rate)
    how = f"{format_percent(quantile)} quantile, less {format_percent(margin)}"
    return [
        SiteFloor(gpu, gpus, measure, _quantile(rates, quantile) * (1 - margin), f"{_nodes(len(rates))}: {how}")
        for (gpu, gpus, measure), rates in sorted(values.items())
    ]


def kinds(nodes: Sequence[GoodNode]) -> list[str]:
    """``12 nodes with 8 x NVIDIA H100 80GB HBM3``, for each kind."""
    counts = Counter((node.gpu, node.gpus) for node in nodes)
    return [f"{_nodes(count)} with {gpus} x {gpu}" for (gpu, gpus), count in sorted(counts.items())]


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _quantile(values: Sequence[float], quantile: float) -> float:
    """Straight between the two values that it lies between."""
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
