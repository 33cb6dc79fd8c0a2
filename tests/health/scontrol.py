"""A stand-in of scontrol that shows one node and writes down what it was asked to change."""

from __future__ import annotations

import socket
from pathlib import Path

NODE = "gpu-7"


def shown(state: str = "IDLE", reason: str = "", name: str = NODE, host: str = "") -> str:
    """What ``scontrol show node`` prints from Slurm 22.05 on, as far as it matters; by default of this host."""
    host = host or socket.gethostname()
    return f"""\
NodeName={name} Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=2.72
   NodeAddr={name} NodeHostName={host} Version=24.05.2
   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   AllocTRES=
{f"   Reason={reason} [root@2026-11-23T12:49:03]" if reason else ""}
"""


class Scontrol:
    """The program in a folder of its own, which is to be put on the PATH."""

    def __init__(self, folder: Path, text: str, *, show: str = "", update: str = "") -> None:
        """
        Args:
            folder: for the program and what it writes.
            text: what it shows.
            show: shell commands run before it shows the node.
            update: shell commands run after an update was written down.
        """
        self.programs = folder / "bin"
        self.programs.mkdir()
        (folder / "node").write_text(text)
        self._updates = folder / "updates"
        program = self.programs / "scontrol"
        program.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = show ]; then\n{show}\n/bin/cat {folder / "node"}\nexit 0\nfi\n'
            f'printf "%s\\n" "$*" >> {self._updates}\n{update}\n'
        )
        program.chmod(0o755)

    @property
    def updates(self) -> list[str]:
        """Arguments of every call that was not ``show``."""
        return self._updates.read_text().splitlines() if self._updates.exists() else []
