"""How a simulated node is named: by a preset, or by a file of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from commwatch.config.settings import Simulation

RECORDING = ".cwrec"
"""How the name of a recording ends (docs/using/recordings.md)."""


def names_a_file(preset: str) -> bool:
    """Whether what ``--simulate`` names is a file, not a preset."""
    return "/" in preset or preset.endswith((".yaml", ".yml", RECORDING))


def is_recording(preset: str) -> bool:
    """Whether what ``--simulate`` names is a recording of a node."""
    return preset.endswith(RECORDING)


def node_name(preset: str) -> str:
    """A name for the node, fit for a directory: the preset's, or the file's without its ending; empty for none."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", Path(preset).stem) if names_a_file(preset) else preset


def absolute(preset: str) -> str:
    """The same node for a process with another working directory."""
    return str(Path(preset).absolute()) if names_a_file(preset) else preset


class SimulationPlan(msgspec.Struct, array_like=True, frozen=True):
    """Which simulated node a process works on; the same for all processes of one daemon."""

    preset: str
    faults_file: str
    started_at: float
    """Wall clock seconds since 1970 at which the node booted."""
    sysfs: str
    """Folder of the generated tree of ``/sys``."""
    procfs: str
    """Folder of the generated tree of ``/proc``; the daemon's own processes are not in it."""
    playback: str = "hold"
    """Of a recording: ``hold``, ``loop`` or ``once``, as the configuration has it."""

    @classmethod
    def of(cls, settings: Simulation, started_at: float, folder: Path) -> SimulationPlan:
        """The plan of a configuration, whose trees are in a folder."""
        faults = str(Path(settings.faults).resolve()) if settings.faults else ""
        trees = str(folder / "sysfs"), str(folder / "procfs")
        return cls(absolute(settings.preset), faults, started_at, *trees, settings.playback)
