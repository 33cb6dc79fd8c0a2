"""What the running product imports of the packages that it asks for, process by process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commwatch.config.settings import DEFAULT_PROBES
from support.daemon import ROOT, Daemon, environment, running
from support.waiting import PATIENCE_SECONDS

OF_THE_DAEMON = {"apscheduler", "prometheus_client", "structlog", "yaml"}
OF_A_READER = {"pynvml"}
OF_OTHERS = {"apscheduler", "prometheus_client", "torch"}
"""Neither readers nor commands import these: memory and start-up."""

SHOW = """
import contextlib, os, signal, sys

def show(*_):
    with contextlib.suppress(OSError):
        loaded = sorted(name for name, module in list(sys.modules.items()) if module is not None)
        with open(f"{os.environ['SHOWN']}/{os.getpid()}.new", "w") as file:
            file.write("\\n".join(loaded))
        os.rename(file.name, file.name.removesuffix(".new"))

signal.signal(signal.SIGUSR1, show)
"""
"""Python runs it before the daemon, whose readers inherit it: on a signal a process writes what it has imported."""


def loaded_in(pid: int, daemon: Daemon, folder: Path) -> set[str]:
    """The modules of a process that runs ``SHOW``."""
    os.kill(pid, signal.SIGUSR1)
    file: Path = daemon.until(lambda: (shown := folder / str(pid)).exists() and shown)
    return set(file.read_text().splitlines())


def test_daemon_and_reader_import_what_they_are_for_and_no_more(tmp_path: Path) -> None:
    """Scheduler, log and configuration in the daemon, NVML in its reader, torch and OpenTelemetry in none."""
    (tmp_path / "sitecustomize.py").write_text(SHOW)
    config = tmp_path / "commwatch.yaml"
    config.write_text("log: {level: info}\n")
    paths = os.pathsep.join(map(str, (tmp_path, ROOT / "daemon", ROOT / "exporters")))
    arguments = ("--config.file", str(config), "--simulate", "a10x2")
    with running(tmp_path, *arguments, PYTHONPATH=paths, SHOWN=str(tmp_path)) as daemon:
        own = loaded_in(daemon.process.pid, daemon, tmp_path)
        names = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in daemon.children()}
        reader = loaded_in(names["commwatch-nvml"], daemon, tmp_path)

    assert OF_THE_DAEMON - own == set()
    assert {"torch", "pynvml", "opentelemetry"} & own == set()
    assert OF_A_READER - reader == set()
    assert OF_OTHERS & reader == set()


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_is_in_the_ranks_of_a_probe_alone(tmp_path: Path) -> None:
    """As the memory maps of the processes show it during a cycle over gloo."""
    config = tmp_path / "commwatch.yaml"
    probes = {"start_delay": "1s", "definitions": {**dict.fromkeys(DEFAULT_PROBES), "gloo": {"backend": "gloo"}}}
    config.write_text(json.dumps({"probes": probes}))

    def has_torch(pid: int) -> bool:
        try:
            return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
        except OSError:  # it has ended
            return False

    with running(tmp_path, "--config.file", str(config)) as daemon:
        rank = daemon.until(lambda: next((pid for pid in started_by(daemon.process.pid) if has_torch(pid)), None))
        name = Path(f"/proc/{rank}/cmdline").read_bytes().decode().replace("\0", " ")
        others = [daemon.process.pid, *(pid for pid in daemon.children() if is_reader(pid))]
        assert [pid for pid in others if has_torch(pid)] == []
    assert "rank" in name


def started_by(pid: int) -> list[int]:
    """Processes that any thread of another one has started and that are still there."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def is_reader(pid: int) -> bool:
    """Whether a process is one that reads."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("commwatch-")
    except OSError:  # it has ended
        return False


def test_workers_and_commands_import_no_scheduler_and_no_torch() -> None:
    """All modules of commands, and what a worker that is started later imports."""
    names = [f"commwatch.commands.{one.stem}" for one in (ROOT / "daemon/commwatch/commands").glob("[a-z]*.py")]
    code = (
        "import importlib, json, sys\n"
        f"for name in {['commwatch.__main__', 'commwatch.workers.child', *names]!r}: importlib.import_module(name)\n"
        f"print(json.dumps(sorted({OF_OTHERS!r} & sys.modules.keys())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), text=True, capture_output=True, timeout=PATIENCE_SECONDS
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
