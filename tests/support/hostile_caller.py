"""Someone who means ill, and has root call a command from a folder of his own, which is also home and all else."""

from __future__ import annotations

import ctypes
import os
import pickle
import runpy
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
NOBODY = 65534
_MODULES = (
    # Ours, and what our processes import of the standard library and of others.
    "commwatch", "commwatch_exporters", "commwatch_rehearsal",
    "sitecustomize", "usercustomize", "argparse", "ast", "asyncio", "bcrypt",
    "bisect", "collections", "commands", "contextlib", "copy", "ctypes", "dataclasses", "datetime", "decimal",
    "email", "encodings", "enum", "fcntl", "functools", "glob", "google", "grpc", "h11", "hashlib", "heapq", "http",
    "importlib", "inspect", "ipaddress", "json", "linecache", "locale", "logging", "math", "msgspec", "numpy",
    "operator", "os", "pathlib", "pkgutil", "pwd", "pynvml", "random", "re", "readline", "rich", "runpy", "select",
    "selectors", "shutil", "signal", "site", "socket", "ssl", "statistics", "string", "struct", "structlog",
    "subprocess", "tarfile", "tempfile", "textwrap", "threading", "token", "tokenize", "torch", "traceback",
    "typing", "typing_extensions", "urllib", "uuid", "warnings", "weakref", "yaml", "zipfile", "zipimport", "zlib",
)  # fmt: skip
_PROGRAMS = (
    "cat", "gcc", "getent", "ib_write_lat", "ibstat", "ip", "ldconfig", "ldd", "lspci", "modinfo", "nvcc", "nvidia-smi",
    "objdump", "prometheus", "prometheus-alertmanager", "alertmanager", "python", "python3", "scontrol", "sh", "sinfo",
    "systemctl", "uname",
)  # fmt: skip
_FILES = (
    ".commwatch.yaml", ".config/commwatch/commwatch.yaml", ".nccl.conf", ".netrc", ".pythonrc", ".pythonstartup.py",
    "alerts/thresholds.yaml", "commwatch.yaml", "etc/nccl.conf", "faults.yaml", "nccl.conf", "pyvenv.cfg",
    "python._pth", "setup.cfg", "thresholds.yaml",
)  # fmt: skip
_OPEN, _CREATE = 0x20, 0x100
_EVENT = struct.Struct("iIII")


class HostileCaller:
    """A folder of another user that is all that the environment names; says what was opened, made or run in it."""

    def __init__(self, folder: Path) -> None:
        """Make it.

        Args:
            folder: is made; every user can write to it.
        """
        self.folder = folder
        self.marker = folder.with_name(f"{folder.name}-ran")
        """What code of the folder writes to, if any of it runs."""
        self._own_packages = folder / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        for packages in (folder, self._own_packages):
            packages.mkdir(parents=True, exist_ok=True)
            for name in _MODULES:
                self._put(packages / f"{name}.py", self._code(name))
                self._put(packages / name / "__init__.py", self._code(name))
        self._put(self._own_packages / "any.pth", f"import sys; exec({self._code('any.pth')!r})\n")
        self._put(folder / "startup.py", self._code("PYTHONSTARTUP"))
        for name in _PROGRAMS:
            self._put(folder / "bin" / name, f"#!/bin/sh\necho {name} >> {self.marker}\n")
            (folder / "bin" / name).chmod(0o755)
        for name in _FILES:
            self._put(folder / name, "mine: true\n")
        (folder / "tmp").mkdir()
        (folder / "state/commwatch").mkdir(parents=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if path.is_dir():
                path.chmod(0o777)
        self._folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]

    def _code(self, name: str) -> str:
        return f"with open({str(self.marker)!r}, 'a') as ran:\n    print({name!r}, file=ran)\nraise SystemExit(77)\n"

    @staticmethod
    def _put(file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def environment(self, *, python: bool) -> dict[str, str]:
        """An environment of which all names a place in the folder.

        Args:
            python: with what an isolated interpreter alone leaves aside. sudo takes it away.
        """
        here = str(self.folder)
        of_python = {
            "PYTHONPATH": here, "PYTHONSTARTUP": f"{here}/startup.py", "PYTHONUSERBASE": f"{here}/.local",
            "PYTHONHOME": here, "PYTHONINSPECT": "1", "PYTHONBREAKPOINT": "commwatch.run",
        }  # fmt: skip
        return {
            "PATH": f"{here}/bin:.:{os.defpath}", "HOME": here, "PWD": here,
            **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), f"{here}/tmp"),
            **{f"XDG_{kind}_HOME": f"{here}/state" for kind in ("CACHE", "CONFIG", "DATA", "STATE")},
            "XDG_RUNTIME_DIR": f"{here}/tmp", "XDG_CONFIG_DIRS": here, "XDG_DATA_DIRS": here,
            **(of_python if python else {}),
        }  # fmt: skip

    def start(self, command: Sequence[str], *, python: bool, **more: str) -> subprocess.Popen[str]:
        """Call a command from the folder.

        Args:
            command: its command line.
            python: see ``environment``.
            more: further variables.
        """
        return subprocess.Popen(
            command, cwd=self.folder, env={**self.environment(python=python), **more}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, command: Sequence[str], *, python: bool) -> subprocess.CompletedProcess[str]:
        """Call a command from the folder, and wait for its end; arguments as above."""
        with self.start(command, python=python) as process:
            printed = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, *printed)

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """A list of what was opened or made in the folder meanwhile, and of what of it ran; filled at the end."""
        seen: list[str] = []
        libc = ctypes.CDLL(None, use_errno=True)
        inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert inotify >= 0, os.strerror(ctypes.get_errno())
        watches = {libc.inotify_add_watch(inotify, os.fsencode(path), _OPEN | _CREATE): path for path in self._folders}
        assert -1 not in watches, os.strerror(ctypes.get_errno())
        try:
            yield seen
            seen += [f"opened {place}" for place in self._opened(inotify, watches)]
            if self.marker.exists():
                seen += [f"ran {line}" for line in self.marker.read_text(encoding="utf-8").splitlines()]
                self.marker.unlink()
        finally:
            os.close(inotify)

    @staticmethod
    def _opened(inotify: int, watches: Mapping[int, Path]) -> Iterator[Path]:
        while True:
            try:
                data = os.read(inotify, 2**16)
            except BlockingIOError:
                return
            while data:
                watch, _, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                data = data[_EVENT.size + length :]
                yield watches[watch] / os.fsdecode(name)


def installed_launcher(folder: Path) -> tuple[str, ...]:
    """The program of the packages, on the interpreter that runs the tests."""
    file = folder / "commwatch"
    launcher: str = runpy.run_path(str(ROOT / "packaging/build.py"))["LAUNCHER"]
    assert launcher.startswith("#!/opt/commwatch/bin/python3")
    file.write_text(launcher.replace("/opt/commwatch/bin/python3", sys.executable, 1), encoding="utf-8")
    file.chmod(0o755)
    return (str(file),)


def console_script() -> tuple[str, ...]:
    """The program that pip installs beside the interpreter."""
    return (str(Path(sys.executable).with_name("commwatch")),)


class Row(NamedTuple):
    """A command, as it is called from the folder."""

    name: str
    """With what tells it from others of the same command."""
    arguments: str
    """``{out}`` is a folder for what it writes."""
    node: str = "a10x2"
    """The node that does not exist; empty: this machine."""

    def __str__(self) -> str:
        return self.name


_JOB = "--parameters 7B --strategy ddp --gpus-per-node 8 --step-time 1s"
COMMANDS = (
    Row("assets", "assets --to {out}/assets", ""),
    Row("check-config", "check-config"),
    Row("check-config --runtime", "check-config --runtime", ""),
    Row("check-config --runtime, simulated", "check-config --runtime"),
    Row("dashboards", "dashboards --output {out}/dashboards", ""),
    Row("diagnose", "diagnose"),
    Row("diagnose --bundle", "diagnose --bundle {out}/bundle.tar.gz", ""),
    Row("diagnose --bundle, simulated", "diagnose --bundle {out}/bundle.tar.gz"),
    Row("diagnose --full-scan", "diagnose --full-scan"),
    Row("diagnose --settings", "diagnose --settings {out}/nccl.conf"),
    Row("estimate", f"estimate {_JOB}"),
    Row("flight-recorder", "flight-recorder convert {out}/dump {out}/dump.json", ""),
    Row("healthcheck", "healthcheck", ""),
    Row("healthcheck, simulated", "healthcheck"),
    Row("healthcheck --require", "healthcheck --require 7b", ""),
    Row("healthcheck --slurm --drain", "healthcheck --slurm --drain", ""),
    Row("heatmap", "heatmap"),
    Row("inventory", "inventory"),
    Row("marks, of no scan", "marks learn --output {out}/marks.yaml {out}/nccl.conf", ""),
    Row("pause", "pause"),
    Row("probe", "probe all_reduce"),
    Row("record", "record --for 1s --output {out}/node.cwrec", ""),
    Row("resume", "resume"),
    Row("rules", "rules --output {out}/rules", ""),
    Row("score", "score"),
    Row("simulate", "simulate --list", ""),
    Row("top", "top --once"),
    Row("topology", "topology", ""),
    Row("topology, simulated", "topology"),
    Row("yield", "yield --wait 1s --hold 1s"),
)  # fmt: skip
"""All that end by themselves within seconds."""
_WITHOUT_SETTINGS = ("assets", "dashboards", "drill", "flight-recorder", "marks", "rules", "simulate")


def tried(
    caller: HostileCaller, program: Sequence[str], row: Row, out: Path, *, python: bool, state: Path | None = None
) -> list[str]:
    """What of the caller's folder ran, was opened or made during a command, which must work.

    Args:
        caller: calls it.
        program: the command line of commwatch.
        row: the command.
        out: a folder for what it writes.
        python: see ``HostileCaller.environment``.
        state: of the daemon that runs; by default none does.
    """
    (out / "nccl.conf").write_text("NCCL_ALGO=Ring\n", encoding="utf-8")
    (out / "dump").write_bytes(pickle.dumps({"version": "2.10", "entries": []}))
    settings = [f"--path.state={state or out / 'state'}", *([f"--simulate={row.node}"] if row.node else [])]
    arguments = row.arguments.format(out=out).split()
    with caller.watched() as seen:
        done = caller.run(
            [*program, *arguments, *(settings if arguments[0] not in _WITHOUT_SETTINGS else [])], python=python
        )
    if not seen:
        assert done.returncode in range(5), done.stderr
        assert "usage:" not in done.stderr, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
    return seen
