"""The fire drill with real servers leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.daemon import environment
from support.drills import left, started
from support.waiting import PATIENCE_SECONDS, until


@pytest.mark.prometheus
def test_a_drill_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    """Servers and nodes end with it, its folder is removed, and its exit code says which signal it was."""
    number = signal.SIGTERM
    with started(tmp_path, "gpu_throttled_idle") as process:
        # 2 servers, 2 nodes; the command lines of all processes are read each time
        until(lambda: len([line for line in left(tmp_path) if "--config.file" in line]) >= 4, every=0.25)
        process.send_signal(number)
        _, progress = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + number
    assert "a signal has come: nodes and servers end" in progress
    assert left(tmp_path) == []


@pytest.mark.prometheus
def test_a_server_that_is_not_installed_ends_the_drill_with_its_name(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Exit code 3, before a node is started."""
    nothing = str(tmp_path_factory.mktemp("no-programs"))
    arguments = [sys.executable, "-m", "commwatch", "drill", "--fast", "gpu_lost"]
    ended = subprocess.run(
        arguments, env={**environment(), "TMPDIR": str(tmp_path), "PATH": nothing}, text=True, capture_output=True
    )
    assert ended.returncode == 3
    assert "prometheus is not installed" in ended.stderr
    assert left(tmp_path) == []
