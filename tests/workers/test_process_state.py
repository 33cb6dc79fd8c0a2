"""What is read of processes from /proc."""

from __future__ import annotations

import os
from pathlib import Path

from commwatch.workers.process_state import held_devices, parse_stat, process_state, process_use

STAT = "4242 (a) (b c) D 1 4242 4242 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 100 1000 200"


def test_a_name_with_parentheses_does_not_shift_the_fields() -> None:
    """State and CPU time are found behind the last closing parenthesis."""
    parsed = parse_stat(STAT)

    assert parsed is not None
    assert parsed == ("D", 200 / os.sysconf("SC_CLK_TCK"))


def test_nonsense_is_no_state() -> None:
    """A text that is no stat line is not guessed at."""
    assert parse_stat("") is None
    assert parse_stat("1 (x) S 1 2") is None


def test_a_process_that_is_gone_has_no_state_and_no_use(tmp_path: Path) -> None:
    """Absence is None, not zero."""
    assert process_state(tmp_path, 1) is None
    assert process_use(tmp_path, 1) is None


def test_use_of_this_process() -> None:
    """The real /proc gives plausible figures of ourselves."""
    use = process_use(Path("/proc"), os.getpid())

    assert use is not None
    assert use.cpu_seconds > 0
    assert 2**20 < use.resident_bytes < 2**34


def test_held_devices_are_found_by_their_path(tmp_path: Path) -> None:
    """A process that has a device file open is named with the file; others are not."""
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "3").symlink_to("/dev/nvidia0")
    (folder / "4").symlink_to("/dev/null")
    (folder / "5").symlink_to("/dev/infiniband/uverbs0")

    assert held_devices(tmp_path, [7, 8]) == {7: ["/dev/infiniband/uverbs0", "/dev/nvidia0"]}
