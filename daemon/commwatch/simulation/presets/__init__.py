"""The nodes that can be simulated: their GPUs, NVLinks, PCIe tree and network interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from commwatch.simulation.presets.a10 import a10x2
from commwatch.simulation.presets.a100 import a100x4
from commwatch.simulation.presets.b200 import b200x8
from commwatch.simulation.presets.h100 import h100x8, h100x8ndr
from commwatch.simulation.presets.h200 import h200x1
from commwatch.simulation.presets.parts import (
    NVIDIA,
    NVLINK_5,
    EthernetInterface,
    Gpu,
    GpuModel,
    NVLinkModel,
    PciDevice,
    Preset,
    RdmaPort,
)
from commwatch.simulation.presets.rtx3090 import rtx3090x4

__all__ = (
    "NVIDIA",
    "NVLINK_5",
    "PRESETS",
    "EthernetInterface",
    "Gpu",
    "GpuModel",
    "NVLinkModel",
    "PciDevice",
    "Preset",
    "RdmaPort",
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {preset.name: preset for preset in (h100x8(), h100x8ndr(), h200x1(), b200x8(), a100x4(), a10x2(), rtx3090x4())}
)
"""Every preset by its name."""
