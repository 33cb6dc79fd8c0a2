"""The sysfs tree of a simulated node, in parts: each process keeps those up to date that it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.tree.infiniband import InfinibandPart
from commwatch_rehearsal.simulation.tree.network import NetworkPart
from commwatch_rehearsal.simulation.tree.pci import PciPart
from commwatch_rehearsal.simulation.tree.writer import TreeWriter


class _Part(Protocol):
    def update(self, writer: TreeWriter, hardware: Hardware, time: float) -> None: ...


PARTS: Mapping[str, Callable[[Preset], _Part]] = {"pci": PciPart, "network": NetworkPart, "rdma": InfinibandPart}
"""Each part by the name of the source that reads it."""


class SysfsTree:
    """Keeps a tree beneath a directory up to date; writes only what changed."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._parts: dict[str, _Part] = {}
        self._writer: TreeWriter | None = None

    def write(self, root: Path, hardware: Hardware, time: float, parts: Collection[str] = tuple(PARTS)) -> None:
        """Bring parts of the tree up to date.

        Args:
            root: what ``--path.sysfs`` names; an empty directory, or one that this preset has written before.
            time: seconds since the node started.
            parts: those of ``PARTS`` to write; another process may keep the others up to date. Of these only what is
                not there is made, when this object first writes beneath the root.
        """
        writer = self._writer
        if writer is None or writer.root != root:
            missing = TreeWriter(root, only_missing=True)
            for name, make in PARTS.items():
                if name not in parts:
                    make(self._preset).update(missing, hardware, time)
            self._parts = {name: make(self._preset) for name, make in PARTS.items()}
            writer = self._writer = TreeWriter(root)
        for name in parts:
            if name in self._parts:
                self._parts[name].update(writer, hardware, time)
