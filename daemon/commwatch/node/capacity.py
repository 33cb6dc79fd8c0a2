"""Capacity of links, nominal and by NCCL's own figures, in bytes per second and one direction."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_NOMINAL_BY_LINE_RATE: Mapping[float, float] = MappingProxyType(
    {
        14_062e6: 14.0625e9,  # NVLink 3.1: RTX 3090, A40, A5000, A6000
        25_000e6: 25e9,  # NVLink 3.0: A100
        25_781e6: 25e9,  # NVLink 2: V100
        26_562e6: 25e9,  # NVLink 4: H100, H200
        53_125e6: 50e9,  # NVLink 5: B200
    }
)
"""NVIDIA's product figure by the line rate that NVML field 164 gives (before FEC and framing, rounded to MB/s)."""

_NOMINAL_BY_VERSION: Mapping[str, float] = MappingProxyType(
    {"1.0": 20e9, "2.0": 25e9, "2.2": 25e9, "3.0": 25e9, "3.1": 14.0625e9, "4.0": 25e9, "5.0": 50e9}
)
"""NVIDIA's product figure per link by NVLink version."""

_TRANSFERS_PER_SECOND: Mapping[int, float] = MappingProxyType({1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9})
_ENCODING: Mapping[int, float] = MappingProxyType(
    {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
)
"""Share of the bits on a lane that carry packets; generation 6: 242 of the 256 bytes of a FLIT."""


def nominal_nvlink_rate(line_rate: float | None, version: str = "") -> float | None:
    """Nominal rate of one NVLink, bytes per second in one direction: the denominator of its utilisation.

    A line rate that is not in the table is taken as it is; without one the version decides (``4.0`` as in
    ``commwatch_nvlink_info``). None where neither is known.

    Args:
        line_rate: bytes per second, ``commwatch_nvlink_link_speed_bytes_per_second``; None or 0 where not read.
        version: NVLink version, empty where not read.
    """
    if line_rate:
        return _NOMINAL_BY_LINE_RATE.get(line_rate, line_rate)
    return _NOMINAL_BY_VERSION.get(version)


def pcie_transfers_per_second(generation: float) -> float | None:
    """Bits per second on one lane in one direction, line encoding included; None for a generation that is not known."""
    return _TRANSFERS_PER_SECOND.get(int(generation))


def pcie_rate(generation: int, lanes: int) -> float | None:
    """Rate of a PCIe link, bytes per second in one direction: transfers per second × lanes × line encoding ÷ 8.

    Packet headers are not taken off. None for a generation that is not known, and without lanes.
    """
    transfers = pcie_transfers_per_second(generation)
    return None if transfers is None or lanes < 1 else transfers * lanes * _ENCODING[generation] / 8


_PLANNED_NVLINK: Mapping[str, float] = MappingProxyType(
    {"1.0": 18e9, "2.0": 20e9, "2.2": 20e9, "3.0": 20e9, "3.1": 12e9, "4.0": 20.6e9, "5.0": 40.1e9}
)
"""Per link and direction by NVLink version (NCCL src/graph/topo.h, there by compute capability 6.0 to 10.0)."""

_PLANNED_PCIE_LANE: Mapping[int, float] = MappingProxyType(
    {1: 1.5e9 / 8, 2: 3e9 / 8, 3: 6e9 / 8, 4: 12e9 / 8, 5: 24e9 / 8, 6: 48e9 / 8}
)
"""Per lane and direction (NCCL src/graph/topo.cc, kvDictPciGen): 75 to 80 % of ``pcie_rate``."""


HOST_MEMORY_SHARE = 0.5
"""Share of a GPU link's planned rate if every byte is written to the host's memory and read from it again: a
conservative assumption, 12 GB/s over generation 4 x16 where 10 to 20 are likely."""


def planned_nvlink_rate(version: str) -> float | None:
    """The bytes per second that NCCL plans for one NVLink, one direction; None for an unknown version."""
    return _PLANNED_NVLINK.get(version)


def planned_pcie_rate(generation: int, lanes: int) -> float | None:
    """The bytes per second that NCCL plans for a PCIe link, one direction; None for an unknown link."""
    per_lane = _PLANNED_PCIE_LANE.get(generation)
    return None if per_lane is None or lanes < 1 else per_lane * lanes


def planned_socket_rate(vendor: str, family: int | None, model: int | None) -> float | None:
    """The bytes per second that NCCL plans for the link between two NUMA nodes, one direction.

    NCCL 2.30 src/graph/topo.h and topo.cc, by processor; real links differ with their number and load. None where NCCL
    has no figure of its own for the processor.

    Args:
        vendor: intel, amd or arm.
        family: as /proc/cpuinfo numbers it; None where not known.
        model: likewise.
    """
    if vendor == "arm":
        return 6e9
    if family is None or model is None:
        return None
    if vendor == "amd":
        return {0x19: 24e9, 0x1A: 32e9}.get(family, 16e9)  # Zen 3 and 4, Zen 5, and those before
    if vendor != "intel":
        return None
    # Granite Rapids and Sierra Forest are newer than Emerald Rapids but have lower numbers.
    if family != 6:
        return 6e9
    if model >= 0xCF or model in (0xAD, 0xAE, 0xAF):
        return 40e9
    return 22e9 if model >= 0x8F else 10e9 if model >= 0x55 else 6e9
