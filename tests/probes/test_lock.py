"""The lock under which a cycle runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commwatch.probes.cycle.lock import ProbeLock, RunLock, held_elsewhere
from support.state_files import SPECIAL_FILES, special_file


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """A lock that someone has cannot be taken, and can be once it is given up."""
    first, second = ProbeLock(tmp_path / "lock"), ProbeLock(tmp_path / "lock")

    assert first.acquire()
    assert not second.acquire()
    assert not first.acquire()
    assert held_elsewhere(tmp_path / "lock")
    first.release()
    assert not held_elsewhere(tmp_path / "lock")
    assert second.acquire()
    second.release()


def test_a_lock_that_nobody_ever_took_is_free(tmp_path: Path) -> None:
    """To look at a lock makes no file."""
    assert not held_elsewhere(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []


def test_the_lock_lives_as_long_as_any_process_that_inherited_it(tmp_path: Path) -> None:
    """What the holder gives up, a child still has; its end, by a signal too, frees the lock."""
    lock = ProbeLock(tmp_path / "lock")
    assert lock.acquire()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock.fileno(),)) as child:
        lock.release()

        assert held_elsewhere(tmp_path / "lock")
        assert not lock.acquire()
        child.kill()
        child.wait()

    assert not held_elsewhere(tmp_path / "lock")


def test_a_lock_that_is_not_held_has_no_descriptor(tmp_path: Path) -> None:
    """A rank cannot be given a lock that was not taken; giving up twice does no harm."""
    lock = ProbeLock(tmp_path / "lock")
    with pytest.raises(ValueError, match="not held"):
        lock.fileno()

    assert lock.acquire()
    os.fstat(lock.fileno())
    lock.release()
    lock.release()

    with pytest.raises(ValueError, match="not held"):
        lock.fileno()


def test_the_lock_of_a_run_is_held_between_its_cycles(tmp_path: Path) -> None:
    """Each cycle takes and releases it; only the end of the run gives it up."""
    lock = RunLock(tmp_path / "lock")

    for _ in range(2):
        assert lock.acquire()
        lock.release()
        assert held_elsewhere(tmp_path / "lock")
    lock.give_up()

    assert not held_elsewhere(tmp_path / "lock")


@pytest.mark.parametrize("kind", [kind for kind in SPECIAL_FILES if kind != "sparse"])
def test_what_is_no_file_is_not_locked(tmp_path: Path, kind: str) -> None:
    """The state directory could be written by another user: nobody waits, and no file elsewhere is made or locked."""
    file, target = tmp_path / "lock", tmp_path / "elsewhere"
    with special_file(file, kind, target):
        with pytest.raises(OSError, match=r"lock"):
            ProbeLock(file).acquire()
        with pytest.raises(OSError, match=r"lock"):
            held_elsewhere(file)
    assert not target.exists()
