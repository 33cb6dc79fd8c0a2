"""On which CPUs a rank runs, and behind whom: others go first while it starts, and copies run near their GPU."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

RANK_NICENESS = 10
"""Of a rank over that of the process that starts it; in a cgroup or session of their own only the two compete."""
STARTING_SESSION_NICENESS = 10
"""Of the rank's session while Python and torch start: a ninth of the weight of others. 19 would be a 68th, too
little to start by the deadline on a busy core."""
_OWN = Path("/proc")
"""Process ids are those of this namespace, whatever procfs shows the node's processes to the daemon."""
_CAP_SYS_ADMIN = 21
_CPUS = os.sched_getaffinity(0)
"""Those that this process was started with, whatever it has kept for itself since."""


def let_others_go_first(pid: int, procfs: Path = _OWN) -> None:
    """Lower the priority of a process that leads a session of its own, until ``go_on``, and give it all cores.

    Its nice value weighs it against the processes of its cgroup, or where no cgroup weighs CPU time, of its session:
    Linux shares the CPU among sessions first (autogroups, sched(7)), and a session has a nice value of its own. That
    one is set only with the privilege to set it at any time: others may once in 0.1 s, all processes of the node
    together, and a rank that stayed behind would measure something else than the other ranks.

    Args:
        pid: the process. Where it, or what would have to be set, is not there or is refused, nothing happens.
    """
    with suppress(OSError):
        os.sched_setaffinity(pid, _CPUS)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + RANK_NICENESS)
    if _may_set_any_time(procfs):
        _set_session_niceness(pid, STARTING_SESSION_NICENESS, procfs)


def go_on(pid: int, procfs: Path = _OWN) -> None:
    """Undo ``let_others_go_first`` for the session: measured work must not wait for other processes."""
    if _may_set_any_time(procfs):
        _set_session_niceness(pid, 0, procfs)


def _may_set_any_time(procfs: Path) -> bool:
    with suppress(OSError):
        for line in (procfs / "self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def _set_session_niceness(pid: int, niceness: int, procfs: Path) -> None:
    with suppress(OSError):  # a kernel without autogroups
        (procfs / str(pid) / "autogroup").write_text(str(niceness))


_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def near_cpus(pci_address: str, sysfs: Path) -> frozenset[int]:
    """CPUs on the NUMA node of a PCI device; empty where the kernel does not say.

    Args:
        pci_address: ``0000:17:00.0``.
    """
    try:
        text = (sysfs / "bus/pci/devices" / pci_address / "local_cpulist").read_text()
    except OSError:
        return frozenset()
    return parse_cpus(text)


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it: ``0-31,64-95``; empty for any other text."""
    ranges = [_RANGE.fullmatch(part) for part in text.strip().split(",")]
    if not all(ranges):
        return frozenset()
    return frozenset(cpu for one in ranges if one for cpu in range(int(one[1]), int(one[2] or one[1]) + 1))
