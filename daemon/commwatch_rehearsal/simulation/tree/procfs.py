"""The procfs tree of a simulated node: its boot, its driver, and the processes of its services and jobs."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping

from commwatch.node.gpu_models import board_gpus_of
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.job_processes import (
    CGROUP,
    COMMAND,
    NCCL_LIBRARY,
    USER_ID,
    job_environment,
    job_process,
)
from commwatch_rehearsal.simulation.tree.writer import Entry, Tree

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


def procfs_tree(hardware: Hardware, time: float, identity: str) -> Tree:
    """What ``--path.procfs`` shows.

    Args:
        time: seconds since the node started.
        identity: of this node, so that its boots have unique names.
    """
    preset = hardware.preset
    tree: dict[str, Entry] = {
        "cpuinfo": f"{_CPU_INFO}\n",
        "diskstats": f"{_DISK}\n",
        "sys/kernel/random/boot_id": f"{_boot_id(f'{identity} {hardware.last_boot(time)}')}\n",
        "driver/nvidia/version": (
            f"NVRM version: {module_version(preset.driver_version)}\n"
            "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
        ),
    }
    if preset.interfaces:
        first = preset.interfaces[0]
        tree["net/route"] = f"{_ROUTES}\n{first.bond or first.name}\t{_DEFAULT_ROUTE}\n"
    for process, (name, command) in _running(hardware, time).items():
        tree |= _process(process, name, command)
    for place, condition in enumerate(hardware.epoch(time).gpus):
        if condition.busy and condition.answer == "ok":
            process = job_process(hardware, place, time)
            tree |= _process(process, "python3", COMMAND)
            tree |= _job(process, job_environment(hardware, place, time))
    return tree


def _running(hardware: Hardware, time: float) -> dict[int, tuple[str, str]]:
    """Name and command line of the system's programs, by process id."""
    running = {1: ("systemd", "/sbin/init"), 2: ("kthreadd", "")}
    for first, name, arguments in _SERVICES:
        has_switches = hardware.preset.nvswitches or board_gpus_of(hardware.preset.model.name)
        if name == _FABRIC_MANAGER and not has_switches:
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


def _process(process: int, name: str, command: str) -> Tree:
    return {
        f"{process}": None,
        f"{process}/comm": f"{name[:_NAME_CHARACTERS]}\n",
        f"{process}/cmdline": "".join(f"{word}\0" for word in command.split()),
    }


def _job(process: int, environment: Mapping[str, str]) -> Tree:
    """The kernel's files of a process of the job: environment, user, libraries and its view of other files."""
    return {
        f"{process}/environ": "".join(f"{name}={value}\0" for name, value in environment.items()),
        f"{process}/status": f"Name:\tpython3\nUid:\t{USER_ID}\t{USER_ID}\t{USER_ID}\t{USER_ID}\n",
        # Asleep, started with the node; how long it ran on a CPU is not played.
        f"{process}/stat": f"{process} (python3) S{' 0' * 49}\n",
        f"{process}/cgroup": f"{CGROUP}\n",
        f"{process}/maps": f"7f0000000000-7f0010000000 r-xp 00000000 08:01 4242 {NCCL_LIBRARY}\n",
        f"{process}/root/etc/passwd": f"user:x:{USER_ID}:{USER_ID}::{environment['HOME']}:/bin/bash\n",
    }


def module_version(version: str) -> str:
    """How the driver's kernel module names itself."""
    return f"NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@simulated)"


def _boot_id(boot: str) -> str:
    """The same for the same boot; without a library of digests, which would cost each process half a megabyte."""
    words = (zlib.crc32(f"{part} {boot}".encode()) << 32 * part for part in range(4))
    return str(uuid.UUID(int=sum(words), version=4))
