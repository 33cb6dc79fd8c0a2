"""Programs that a drill starts and ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commwatch_rehearsal.drill.programs import DrillError, Program
from support.waiting import PATIENCE_SECONDS, until

_CHILD = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
_PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("child", child.pid, flush=True)
time.sleep(600)
"""


def test_nothing_that_a_program_started_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a child in a session of its own that is deaf to SIGTERM."""
    monkeypatch.setattr("commwatch_rehearsal.drill.programs._STOP_SECONDS", 0.3)
    program = Program([sys.executable, "-c", _PARENT], tmp_path / "log")
    child = int(program.wait_for(r"child (\d+)", PATIENCE_SECONDS))
    assert Path(f"/proc/{child}").exists()
    program.end()
    assert program.has_ended()
    until(lambda: not _runs(child))


def test_a_program_that_ends_too_soon_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    """And the code with which it ended."""
    program = Program([sys.executable, "-c", "raise SystemExit('no such port')"], tmp_path / "log")
    with pytest.raises(DrillError, match=r"ended \(exit code 1\): no such port"):
        program.wait_for("ready (.)", PATIENCE_SECONDS)
    program.end()


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The drill cannot be held: exit code 3."""
    with pytest.raises(DrillError, match="No such file") as caught:
        Program([str(tmp_path / "prometheus")], tmp_path / "log")
    assert caught.value.exit_code == 3


def _runs(pid: int) -> bool:
    """Whether a process is there and no mere remains of one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
