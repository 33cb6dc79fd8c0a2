"""One call of the simulated driver library about one GPU."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch_rehearsal.simulation.gpu_conditions import GpuCondition
from commwatch_rehearsal.simulation.hardware import Epoch, Hardware
from commwatch_rehearsal.simulation.presets.parts import Gpu, GpuModel


@dataclass(frozen=True, slots=True)
class Call:
    hardware: Hardware
    epoch: Epoch
    place: int
    """Of the GPU in the preset."""
    time: float
    """Seconds since the node started."""
    timestamp: int
    """µs since 1970."""

    @property
    def model(self) -> GpuModel:
        return self.hardware.preset.model

    @property
    def gpu(self) -> Gpu:
        return self.hardware.preset.gpus[self.place]

    @property
    def condition(self) -> GpuCondition:
        return self.epoch.gpus[self.place]
