"""The procfs tree of a simulated node: its boot, its driver, and the processes of its services and jobs."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.job_processes import (
    CGROUP,
    COMMAND,
    NCCL_LIBRARY,
    USER_ID,
    job_environment,
    job_process,
)
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.tree.writer import TreeWriter

_NAME_CHARACTERS = 15
"""The kernel cuts the names of processes."""
_CPU_INFO = "processor\t: 0\nflags\t\t: fpu vme de pse tsc msr"
"""Of a machine that is not virtual."""
_DISK = " 259       0 nvme0n1 0 0 0 0 0 0 0 0 0 0 0"
"""One that nobody uses."""
_ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
_DEFAULT_ROUTE = "00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0"
"""Over the gateway 10.0.0.1."""
_FABRIC_MANAGER = "nv-fabricmanager"
_SERVICES = (
    (2000, "nvidia-persistenced", "--user nvidia-persistenced --persistence-mode --verbose"),
    (3000, _FABRIC_MANAGER, "-c /usr/share/nvidia/nvswitch/fabricmanager.cfg"),
)
"""First process id, name and arguments of each service."""


class ProcfsTree:
    """Keeps the files beneath a directory up to date; writes only what changed.

    Args:
        identity: of this node, so that its boots have unique names.
    """

    def __init__(self, preset: Preset, identity: str) -> None:
        self._preset = preset
        self._identity = identity
        self._writer: TreeWriter | None = None
        self._processes: dict[int, tuple[str, str]] = {}
        self._state: tuple[object, float] | None = None

    def write(self, root: Path, hardware: Hardware, time: float, only_missing: bool = False) -> None:
        """Bring the tree up to date.

        Args:
            root: what ``--path.procfs`` would name; an empty directory, or one that this wrote before.
            time: seconds since the node started.
            only_missing: make what is not there, and leave the rest to the process that keeps it up to date.
        """
        writer = self._writer
        if writer is None or writer.root != root or only_missing:
            writer = self._writer = TreeWriter(root, only_missing)
            self._state = None
            for folder in root.glob("[0-9]*"):  # of an earlier run
                writer.remove(folder.name)
        self.update(writer, hardware, time)

    def update(self, writer: TreeWriter, hardware: Hardware, time: float) -> None:
        """Bring the files of a writer up to date; arguments as of ``write``."""
        epoch, boot = hardware.epoch(time), hardware.last_boot(time)
        if self._state is not None and self._state[0] is epoch and self._state[1] == boot:
            return
        self._state = (epoch, boot)
        writer.put("cpuinfo", _CPU_INFO)
        writer.put("diskstats", _DISK)
        if self._preset.interfaces:
            first = self._preset.interfaces[0]
            writer.put("net/route", f"{_ROUTES}\n{first.bond or first.name}\t{_DEFAULT_ROUTE}")
        writer.put("sys/kernel/random/boot_id", _boot_id(f"{self._identity} {boot}"))
        writer.put(
            "driver/nvidia/version",
            f"NVRM version: {module_version(self._preset.driver_version)}\n"
            "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)",
        )
        processes = self._running(hardware, time)
        jobs = _jobs(hardware, time)
        processes |= dict.fromkeys(jobs, ("python3", COMMAND))
        for process in self._processes.keys() - processes.keys():
            writer.remove(str(process))
        for process, (name, command) in processes.items():
            writer.put(f"{process}/comm", name[:_NAME_CHARACTERS])
            writer.put(f"{process}/cmdline", "".join(f"{word}\0" for word in command.split()), end="")
        for process, environment in jobs.items():
            _put_job(writer, process, environment)
        self._processes = processes

    def _running(self, hardware: Hardware, time: float) -> dict[int, tuple[str, str]]:
        """Name and command line by process id."""
        running = {1: ("systemd", "/sbin/init"), 2: ("kthreadd", "")}
        for first, name, arguments in _SERVICES:
            if name == _FABRIC_MANAGER and not self._preset.nvswitches:
                continue
            stops = [
                fault
                for fault in hardware.faults
                if fault.kind == "service_stopped" and fault.words["service"] == name and fault.start <= time
            ]
            if not any(fault.active(time) for fault in stops):
                # A restarted program is another process.
                running[first + len(stops)] = (name, f"/usr/bin/{name} {arguments}")
        return running


def _jobs(hardware: Hardware, time: float) -> dict[int, Mapping[str, str]]:
    """The environment of each process of the job by its id."""
    return {
        job_process(hardware, place, time): job_environment(hardware, place, time)
        for place, condition in enumerate(hardware.epoch(time).gpus)
        if condition.busy and condition.answer == "ok"
    }


def _put_job(writer: TreeWriter, process: int, environment: Mapping[str, str]) -> None:
    """Write the kernel's files of a process besides its name: environment, user, libraries and its view of other
    files."""
    writer.put(f"{process}/environ", "".join(f"{name}={value}\0" for name, value in environment.items()), end="")
    writer.put(f"{process}/status", f"Name:\tpython3\nUid:\t{USER_ID}\t{USER_ID}\t{USER_ID}\t{USER_ID}")
    # Asleep, started with the node; how long it ran on a CPU is not played.
    writer.put(f"{process}/stat", f"{process} (python3) S" + " 0" * 49)
    writer.put(f"{process}/cgroup", CGROUP)
    writer.put(f"{process}/maps", f"7f0000000000-7f0010000000 r-xp 00000000 08:01 4242 {NCCL_LIBRARY}")
    writer.put(f"{process}/root/etc/passwd", f"user:x:{USER_ID}:{USER_ID}::{environment['HOME']}:/bin/bash")


def module_version(version: str) -> str:
    """How the driver's kernel module names itself."""
    return f"NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@simulated)"


def _boot_id(boot: str) -> str:
    """The same for the same boot; without a library of digests, which would cost each process half a megabyte."""
    words = (zlib.crc32(f"{part} {boot}".encode()) << 32 * part for part in range(4))
    return str(uuid.UUID(int=sum(words), version=4))
