"""What links can carry: nominal NVLink rates and PCIe rates, in bytes per second and one direction."""

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


def pcie_rate(generation: int, lanes: int) -> float | None:
    """Rate of a PCIe link, bytes per second in one direction: transfers per second × lanes × line encoding ÷ 8.

    Packet headers are not taken off. None for a generation that is not known, and without lanes.
    """
    transfers = _TRANSFERS_PER_SECOND.get(generation)
    return None if transfers is None or lanes < 1 else transfers * lanes * _ENCODING[generation] / 8
