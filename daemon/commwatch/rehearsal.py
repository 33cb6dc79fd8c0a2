"""Where simulated nodes and drills are plugged in: their package is named here, and nothing else of ours knows it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

PLUG = "commwatch_rehearsal.simulation.plug"
"""The module that is a ``Rehearsal``."""

COMMANDS = {
    "simulate": "commwatch_rehearsal.simulation.command",
    "record": "commwatch_rehearsal.simulation.recording.command",
    "drill": "commwatch_rehearsal.drill.command",
}
"""Commands that the package brings, each with its module."""


class SimulatedNode(Protocol):
    def write_sysfs(self, root: Path, parts: Collection[str] = ...) -> None:
        """Bring its tree of ``/sys`` up to date; ``parts`` are those that are about to be read, by default all."""

    def write_procfs(self, root: Path, only_missing: bool = ...) -> None:
        """Bring its tree of ``/proc`` up to date; ``only_missing``: another process keeps it up to date."""


class Rehearsal(Protocol):
    def check_preset(self, preset: str) -> float | None:
        """Refuse an argument of ``--simulate`` that names no usable node; seconds that a recording lasts, else None.

        Raises:
            ConfigError: there is none, or its file cannot be used.
        """

    def make_node(self, plan: Any) -> SimulatedNode:
        """The node of a ``SimulationPlan``; writes none of its files.

        Raises:
            ConfigError: the preset or a file cannot be used.
        """

    def install_driver(self, node: SimulatedNode) -> None:
        """Put the driver library of a node beneath this process."""

    def make_group(self, plan: Any) -> Any:
        """The ``Group`` of one rank of a probe, from its ``RankPlan``."""

    def stand_in(self, source: str, node: SimulatedNode) -> Callable[[], Any] | None:
        """Makes what answers a source in place of the kernel; None where its files are enough."""


def rehearsal() -> Rehearsal:
    """The package, imported now: most processes never need it."""
    return cast(Rehearsal, import_module(PLUG))
