"""Finds the node that ``--simulate`` names."""

from __future__ import annotations

from pathlib import Path

from commwatch.config.simulated import names_a_file
from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.presets import PRESETS
from commwatch_rehearsal.simulation.presets.parts import Preset


def find_preset(preset: str) -> Preset:
    """The node that ``--simulate`` names.

    Raises:
        ConfigError: there is no such preset, or the file cannot be used; it names file, line and key.
    """
    if names_a_file(preset):
        # With all that reading a file needs; most processes of a simulated node never do.
        from commwatch_rehearsal.simulation.node_file import read_node

        return read_node(Path(preset))
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError("--simulate", None, "", f"no preset {preset!r}; there are {known}, or a file of your own")
    return PRESETS[preset]
