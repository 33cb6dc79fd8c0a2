"""Gives a rank's process less weight on the CPU than the daemon that started it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RANK_NICENESS = 19
"""The lowest: as many ranks as there are cores may start Python and torch at once, and whoever else is there goes first,
the daemon among them. A core that nobody else wants is the rank's all the same."""


def let_others_go_first(pid: int, procfs: Path = Path("/proc")) -> None:
    """Lower the priority of a process that leads a session of its own; where that is refused, it stays as it is.

    Nice alone weighs processes of one session only: Linux shares the CPU among sessions first (autogroups, sched(7)),
    and a session has a nice value of its own. It counts where no cgroup weighs CPU time, and without privileges the
    kernel sets ten of them a second at most.

    Args:
        pid: the process, which must be of this process's PID namespace.
        procfs: procfs of that namespace, whatever shows the node's processes to the daemon.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, RANK_NICENESS)
    with suppress(OSError):  # a kernel without autogroups, or too many in this second
        Path(procfs, str(pid), "autogroup").write_text(str(RANK_NICENESS))
