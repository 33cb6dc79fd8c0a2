"""Processes: what the kernel shows of a real one, and a table of them made by hand."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path


class ProcessTable:
    """What ``--path.procfs`` would name; it shows the processes of the node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._put("2/comm", "kthreadd\n")

    def add(self, pid: int, environment: Mapping[str, str] | None = None, *, rank: int | None = None) -> None:
        """A process of user 0 without a home; with a rank it belongs to a job."""
        job = {} if rank is None else {"RANK": str(rank), "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
        given = {"NCCL_DEBUG": "WARN", **job, **(environment or {})}
        self._put(f"{pid}/environ", "".join(f"{name}={value}\0" for name, value in given.items()))
        (self.root / f"{pid}/root").mkdir(exist_ok=True)

    def _put(self, path: str, content: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)


def blocks_sigterm(pid: int) -> bool:
    """Whether a process holds SIGTERM off, as one does that is inside a call of a simulated driver that hangs."""
    status = Path(f"/proc/{pid}/status").read_text()
    (blocked,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
    return bool(int(blocked, 16) & 1 << (signal.SIGTERM - 1))
