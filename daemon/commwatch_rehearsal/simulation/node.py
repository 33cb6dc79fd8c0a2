"""The simulated node: its parts under the faults of now, and its files."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets import find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.tree.procfs import procfs_tree
from commwatch_rehearsal.simulation.tree.sysfs import PARTS
from commwatch_rehearsal.simulation.tree.writer import TreeWriter

_LOOK_AT_FILE_SECONDS = 0.25
_HANG_POLL_SECONDS = 0.05


class SimulatedNode:
    """A node that does not exist.

    Two objects made with the same arguments, in whatever process, agree at every time.

    Args:
        preset: a name of ``PRESETS``, or a file of one's own.
        faults_file: file of faults, read again when it changes; None for a healthy node.
        started_at: when the node started, seconds since 1970.
        clock: the time now, seconds since 1970.

    Raises:
        ConfigError: there is no such preset, or its file or that of faults cannot be used.
    """

    def __init__(
        self, preset: str, faults_file: Path | None, started_at: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.preset: Preset = find_preset(preset)
        self.started_at = started_at
        self._clock = clock
        self._parent = os.getppid()
        self._faults_file = faults_file
        self._next_look = clock() + _LOOK_AT_FILE_SECONDS
        self._version = _version(faults_file) if faults_file is not None else None
        self._hardware = Hardware(self.preset, self._read_faults())
        self.identity = f"{self.preset.name} {started_at}"
        """Of its boots, before their times."""
        self._sysfs: dict[Path, Mapping[str, TreeWriter]] = {}
        """By root and part."""
        self._procfs: dict[Path, TreeWriter] = {}

    def now(self) -> tuple[Hardware, float]:
        """The node's parts under the faults of now, and the time, seconds since the node started."""
        now = self._clock()
        if self._faults_file is not None and now >= self._next_look:
            self._next_look = now + _LOOK_AT_FILE_SECONDS
            self._look_at_file(self._faults_file)
        return self._hardware, max(0.0, now - self.started_at)

    def write_sysfs(self, root: Path, parts: Collection[str] = tuple(PARTS)) -> None:
        """Bring parts of the tree of ``--path.sysfs`` up to date.

        Args:
            root: an empty directory, or one that a node of this preset wrote.
            parts: those of ``PARTS`` that are about to be read; another process may keep the others up to date. Of
                these only what is not there is made, when this object first writes beneath the root.
        """
        hardware, now = self.now()
        if root not in self._sysfs:
            healthy = Hardware(self.preset, ())
            self._sysfs[root] = {name: TreeWriter(root, make(healthy, now)) for name, make in PARTS.items()}
            for name in PARTS.keys() - set(parts):
                self._sysfs[root][name].write_missing(PARTS[name](hardware, now))
        for name in parts:
            if name in PARTS:
                self._sysfs[root][name].write(PARTS[name](hardware, now))

    def write_procfs(self, root: Path, only_missing: bool = False) -> None:
        """Bring the tree of ``--path.procfs`` up to date: an empty directory, or one that this wrote.

        Args:
            only_missing: another process keeps it up to date; only what is not there yet is made.
        """
        hardware, now = self.now()
        tree = procfs_tree(hardware, now, self.identity)
        if only_missing:
            TreeWriter(root).write_missing(tree)
            return
        if root not in self._procfs:
            # Processes of an earlier run are gone.
            self._procfs[root] = TreeWriter(root, (folder.name for folder in root.glob("[0-9]*")))
        self._procfs[root].write(tree)

    def reach(self, place: int) -> tuple[Hardware, float]:
        """As ``now``, for a call that touches a GPU.

        While its driver hangs, only SIGKILL ends the caller, or the end of the process that started it.
        """
        hardware, now = self.now()
        if hardware.epoch(now).gpus[place].hung:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            # A rehearsal leaves nothing behind: unlike a real one, this hang ends with the daemon.
            while hardware.epoch(now).gpus[place].hung and os.getppid() == self._parent:
                time.sleep(_HANG_POLL_SECONDS)
                hardware, now = self.now()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return hardware, now

    def _look_at_file(self, file: Path) -> None:
        try:
            version = _version(file)
            if version == self._version:
                return
            self._version = version
            self._hardware = Hardware(self.preset, self._read_faults())
        except ConfigError as error:
            # An editor may have written half of it; the next version is read again.
            import logging  # in this process for nothing else

            log = logging.getLogger("commwatch.simulation")
            log.warning("the file of faults is not used; the faults before it hold on: %s", error)

    def _read_faults(self) -> tuple[Fault, ...]:
        if self._faults_file is None:
            return ()
        try:
            written_at = self._faults_file.stat().st_mtime
            text = self._faults_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(str(self._faults_file), None, "", f"cannot be read: {why}") from None
        from commwatch_rehearsal.simulation.faults.parse import parse_faults

        return parse_faults(text, str(self._faults_file), self.preset, self.started_at, written_at)


def _version(file: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does; None while there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
