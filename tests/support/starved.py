"""What /proc says of a machine that is short of CPU or memory, as a test sets it."""

from __future__ import annotations

from pathlib import Path


class Machine:
    """A procfs tree."""

    def __init__(self, procfs: Path) -> None:
        self.procfs = procfs
        (procfs / "pressure").mkdir(parents=True, exist_ok=True)

    def process(self, pid: int, ran: float = 0.0, waited: float = 0.0, faults: int = 0, state: str = "S") -> None:
        """Seconds on a CPU and waiting for one, pages from disk, and the state letter of a process."""
        folder = self.procfs / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} 7\n")
        (folder / "stat").write_text(f"{pid} (a (strange) name) {state} 1 2 3 4 5 6 70 80 {faults} 90 " + "0 " * 30)

    def pressure(self, some: float = 0.0, full: float = 0.0) -> None:
        """Of memory, in seconds since the boot."""
        lines = (f"{kind} avg10=9.99 avg60=9.99 avg300=9.99 total={round(seconds * 1e6)}\n"
                 for kind, seconds in (("some", some), ("full", full)))  # fmt: skip
        (self.procfs / "pressure" / "memory").write_text("".join(lines))
