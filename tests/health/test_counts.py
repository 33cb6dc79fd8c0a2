"""How unknown answers are counted, and how the daemon exposes them."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from commwatch.diagnosis.health.counts import FILE_NAME, count_unknown, read_counts
from commwatch.errors import StateError
from commwatch.service.instruments import Instruments
from support.state_files import SPECIAL_FILES, special_file


def test_answers_are_counted_by_reason(tmp_path: Path) -> None:
    """Over several runs of the command."""
    for because in ("stale", "paused", "stale"):
        count_unknown(tmp_path, because)

    assert read_counts(tmp_path) == {"stale": 2, "paused": 1}


def test_checks_at_the_same_time_are_all_counted(tmp_path: Path) -> None:
    """The prolog of a job and the periodic check may meet."""
    threads = [threading.Thread(target=count_unknown, args=(tmp_path, "stale")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert read_counts(tmp_path) == {"stale": 8}


def test_a_lock_that_is_held_is_not_waited_for(tmp_path: Path) -> None:
    """The answer is due within seconds; it is said that it was not counted."""
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(StateError, match=FILE_NAME):
            count_unknown(tmp_path, "stale")
    finally:
        os.close(held)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"unknown": {"stale": "x"}}', b"\xff", b"[" * 50_000], ids=range(5)
)  # fmt: skip
def test_a_damaged_file_counts_anew(tmp_path: Path, content: bytes) -> None:
    """Nothing is reported, and the next answer is counted."""
    (tmp_path / FILE_NAME).write_bytes(content)

    assert read_counts(tmp_path) == {}
    count_unknown(tmp_path, "stale")
    assert read_counts(tmp_path) == {"stale": 1}


def test_only_sensible_reasons_become_labels(tmp_path: Path) -> None:
    """The file may come from another hand."""
    (tmp_path / FILE_NAME).write_text('{"unknown": {"stale": 1, "a b": 2, "paused": -1}}')

    assert read_counts(tmp_path) == {"stale": 1}


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_root_is_neither_led_astray_nor_held_up(tmp_path: Path, kind: str) -> None:
    """The directory belongs to the daemon's user, and root runs the check: what is no file of ours is replaced."""
    target = tmp_path / "elsewhere"
    target.write_text('{"unknown": {"stale": 7}}')
    file = tmp_path / FILE_NAME
    with special_file(file, kind, target):
        assert read_counts(tmp_path) == {}
        if kind == "folder":
            with pytest.raises(StateError):
                count_unknown(tmp_path, "stale")
        else:
            count_unknown(tmp_path, "stale")
            assert read_counts(tmp_path) == {"stale": 1}

    assert target.read_text() == '{"unknown": {"stale": 7}}'


def test_the_daemon_exposes_the_counts() -> None:
    """One series for each reason."""
    instruments = Instruments()
    instruments.healthchecks = {"stale": 3, "paused": 1}

    block = instruments.block(0.0)
    assert block.get("commwatch_healthcheck_unknown_total", "stale") == 3
    assert block.get("commwatch_healthcheck_unknown_total", "paused") == 1


def test_counts_that_begin_again_are_exposed_as_they_are() -> None:
    """Somebody has removed the file; a counter that falls was reset."""
    instruments = Instruments()
    for total in (3, 5, 1, 2):
        instruments.healthchecks = {"stale": total}
        assert instruments.block(0.0).get("commwatch_healthcheck_unknown_total", "stale") == total
