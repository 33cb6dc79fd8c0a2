"""A distribution that is booted: systemd as its first process, in a container with a network of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.waiting import until


class Booted:
    """A running container.

    Args:
        root: its root directory.
        leader: process id of its systemd.
    """

    def __init__(self, root: Path, leader: int) -> None:
        self.root = root
        self._enter = (
            "nsenter", f"--target={leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root",
            "--wd=/",
        )  # fmt: skip

    def run(self, *command: str, check: bool = True) -> str:
        """What a program of root prints in there, its errors last."""
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def page(self, path: str, *, ask: str = "http://127.0.0.1:28029") -> str:
        """What is served there; empty where nobody answers."""
        program = f"import sys, urllib.request; sys.stdout.write(urllib.request.urlopen('{ask}{path}').read().decode())"
        done = subprocess.run([*self._enter, "python3", "-c", program], capture_output=True, text=True)
        return "" if done.returncode else done.stdout

    def shown(self, unit: str, *properties: str) -> list[str]:
        """Properties of a unit, in the order asked."""
        return [self.run("systemctl", "show", "--value", f"--property={name}", unit).strip() for name in properties]

    def journal(self, unit: str) -> str:
        """What a unit has logged since the boot, and systemd of it."""
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")


@contextmanager
def booted(root: Path, options: Sequence[str] = ()) -> Iterator[Booted]:
    """Boot it, and power it off in the end.

    Args:
        root: a root directory with systemd.
        options: of systemd-nspawn.
    """
    log = root.parent / "boot.log"
    with log.open("w", encoding="utf-8") as output:
        container = subprocess.Popen(
            [
                "systemd-nspawn", "--quiet", f"--directory={root}", "--boot", "--register=no", "--keep-unit",
                "--private-network", "--console=pipe", *options,
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            # systemd 258 and later refuse the version 1 of cgroups, which the host may still have.
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )  # fmt: skip
    try:
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
        [leader] = until(lambda: _first_processes(children), describe=log.read_text)
        node = Booted(root, leader)
        up = ("running", "degraded")
        until(
            lambda: node.run("systemctl", "is-system-running", check=False).strip() in up,
            describe=log.read_text, meanwhile=lambda: _still_runs(container, log),
        )  # fmt: skip
        yield node
    finally:
        container.terminate()
        container.wait()


def _first_processes(children: Path) -> list[int]:
    """The container's first process, once it is systemd: before, nspawn sets its namespaces up in it."""
    found = [int(pid) for pid in children.read_text().split()]
    return [pid for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd"]


def _still_runs(container: subprocess.Popen[bytes], log: Path) -> None:
    assert container.poll() is None, log.read_text()
