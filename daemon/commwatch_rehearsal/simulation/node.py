"""The simulated node: its driver, its files and its collectives, all functions of the same faults and time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets import find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.tree.procfs import procfs_tree
from commwatch_rehearsal.simulation.tree.sysfs import PARTS
from commwatch_rehearsal.simulation.tree.writer import TreeWriter

if TYPE_CHECKING:
    from commwatch_rehearsal.simulation.probe_answers import ProbeAnswers, RankAct

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
        self.nccl_settings: Mapping[str, str] = {}
        """NCCL settings of the ranks; set before the first call."""
        self._probes: ProbeAnswers | None = None
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

    def operation_seconds(
        self,
        operation: str,
        size_bytes: int,
        members: Sequence[int],
        rank: int,
        call: int,
        *,
        partner: int | None = None,
        sends: bool = False,
        both_ways: bool = False,
        devices: Sequence[str] = (),
    ) -> float:
        """Seconds of one call on one rank.

        A rank on a GPU whose driver hangs does not return before the fault ends.

        Args:
            operation: a collective, ``send_recv``, ``host_to_device`` or ``device_to_host``.
            size_bytes: as nccl-tests counts it: all_gather, reduce_scatter and all_to_all the bytes of all ranks.
            members: ranks that take part; of send_recv and copies it does not matter.
            rank: the one that asks.
            call: its number since the ranks began to work; the clocks of the GPUs rise in the first ones.
            partner: of send_recv: the rank that this one receives from.
            sends: of send_recv: this one sends to its partner instead.
            both_ways: of send_recv: as much goes the other way at the same time.
            devices: UUID of each rank's GPU; empty: rank *r* is on the GPU of NVML index *r*.

        Raises:
            SimulatedProbeFailure: a fault makes it fail, or a GPU that it needs does not answer.
            ValueError: this operation is not simulated, or the rank is not among the members.
        """
        hardware, now = self.now()
        (place,) = self._answers(hardware).gpus_of((rank,), devices, now)
        hardware, now = self.reach(place)
        answers = self._answers(hardware)
        if operation == "send_recv":
            if partner is None:
                raise ValueError("send_recv needs a partner")
            members = (rank, partner) if sends else (partner, rank)
        elif operation in {"host_to_device", "device_to_host"}:
            members = (rank,)
        if rank not in members:
            raise ValueError(f"rank {rank} is not in {tuple(members)}")
        gpus = answers.gpus_of(members, devices, now)
        position = members.index(rank)
        return answers.seconds(now, operation, size_bytes, gpus, call, rank=position, both_ways=both_ways)

    def slowdown_under_load(self, ranks: Sequence[int], devices: Sequence[str], busy_seconds: float) -> float:
        """The factor by which a call takes longer once the ranks have worked for this many seconds; 1 without fault."""
        hardware, now = self.now()
        answers = self._answers(hardware)
        return answers.slowdown_under_load(answers.gpus_of(ranks, devices, now), now, busy_seconds)

    def error_of_cycle(self, ranks: int, devices: Sequence[str] = ()) -> str:
        """Why a cycle over some ranks that is set up now fails; empty: it does not."""
        hardware, now = self.now()
        answers = self._answers(hardware)
        return answers.error_of_cycle(answers.gpus_of(range(ranks), devices, now), now)

    def rank_act(self, phase: str, rank: int) -> RankAct:
        """The effect of a fault on a rank in a phase: ``start``, ``rendezvous``, ``setup`` or ``measure``."""
        hardware, now = self.now()
        return self._answers(hardware).rank_act(phase, rank, now)

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

    def _answers(self, hardware: Hardware) -> ProbeAnswers:
        """Those of the faults of now; made when first asked for, since few processes ever do."""
        if self._probes is None or self._probes.hardware is not hardware:
            from commwatch_rehearsal.simulation.probe_answers import ProbeAnswers

            self._probes = ProbeAnswers(hardware, self.nccl_settings)
        return self._probes

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
            raise ConfigError(str(self._faults_file), None, "", f"cannot be read: {error}") from None
        from commwatch_rehearsal.simulation.faults.parse import parse_faults

        return parse_faults(text, str(self._faults_file), self.preset, self.started_at, written_at)


def _version(file: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does; None while there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
