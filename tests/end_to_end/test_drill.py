"""The fire drill with real servers: faults end as pages, pages are resolved, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.daemon import environment

PLAYED = ("pcie_width_without_nvlink", "slow_probe_latency", "ethernet_down", "gpu_throttled_idle")
"""Class A, a streak, a state that must last, and a fault that must page nobody; on nodes that start quickly."""


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A drill in the fast form whose own folder lies in ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-m", "commwatch", "drill", "--fast", *arguments],
        env={**environment(), "TMPDIR": str(folder)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def left(folder: Path) -> list[str]:
    """Files in a folder, and command lines that name it."""
    found = [str(file) for file in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            found.append(line)
    return found


def until(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.prometheus
def test_faults_end_as_pages_and_pages_are_resolved(tmp_path: Path) -> None:
    """Each fault with its alert and no other, a harmless one with none; everything is gone at the end."""
    with started(tmp_path, "--json", *PLAYED) as process:
        output, progress = process.communicate(timeout=240)
    assert process.returncode == 0, progress + output
    run = json.loads(output)
    assert (run["passed"], run["intervals"], run["stray_alerts"], run["left_out"]) == (True, "fast", [], {})
    outcomes = {one["name"]: one for one in run["drills"]}
    assert set(outcomes) == set(PLAYED)
    silent = outcomes.pop("gpu_throttled_idle")
    assert (silent["received"], silent["resolved"]) == ([], None)
    for outcome in outcomes.values():
        assert outcome["resolved"] is True
        assert 0 < outcome["seconds_to_firing"] <= outcome["seconds_to_page"]
    assert left(tmp_path) == []


@pytest.mark.prometheus
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drill_that_is_ended_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Servers and nodes end with it, its folder is removed, and its exit code says which signal it was."""
    with started(tmp_path, "gpu_throttled_idle") as process:
        until(lambda: len([line for line in left(tmp_path) if "--config.file" in line]) >= 4, 60)  # 2 servers, 2 nodes
        process.send_signal(number)
        _, progress = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "a signal has come: nodes and servers end" in progress
    assert left(tmp_path) == []


@pytest.mark.prometheus
def test_a_server_that_is_not_installed_ends_the_drill_with_its_name(tmp_path: Path) -> None:
    """Exit code 3, before a node is started."""
    arguments = [sys.executable, "-m", "commwatch", "drill", "--fast", "gpu_lost"]
    ended = subprocess.run(
        arguments, env={**environment(), "TMPDIR": str(tmp_path), "PATH": os.devnull}, text=True, capture_output=True
    )
    assert ended.returncode == 3
    assert "prometheus is not installed" in ended.stderr
    assert left(tmp_path) == []
