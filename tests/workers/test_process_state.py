"""What is read of processes from /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.workers.process_state import held_devices, process_state, uninterruptible

STAT = "4242 (a) (b c) D 1 4242 4242 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 100 1000 200"


@pytest.mark.parametrize(
    ("stat", "state"),
    [(STAT, "D"), (STAT.replace("D", "S"), "S"), ("", None), (None, None)],
    ids=["name with parentheses", "sleeps", "empty", "gone"],
)
def test_the_state_is_behind_the_last_parenthesis(tmp_path: Path, stat: str | None, state: str | None) -> None:
    """A process that is gone has none; a thread in state D makes it unreachable."""
    task = tmp_path / "4242/task/4243"
    task.mkdir(parents=True)
    for folder in (tmp_path / "4242", task):
        if stat is not None:
            (folder / "stat").write_text(stat)

    assert process_state(tmp_path, 4242) == state
    assert uninterruptible(tmp_path, 4242) == (state == "D")


def test_held_devices_are_found_by_their_path(tmp_path: Path) -> None:
    """A process that has a device file open is named with the file; others are not."""
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "3").symlink_to("/dev/nvidia0")
    (folder / "4").symlink_to("/dev/null")
    (folder / "5").symlink_to("/dev/infiniband/uverbs0")

    assert held_devices(tmp_path, [7, 8]) == {7: ["/dev/infiniband/uverbs0", "/dev/nvidia0"]}
