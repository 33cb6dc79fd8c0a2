"""The maintenance file: reported once, and what cannot be written is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from commwatch.errors import CommwatchError
from commwatch.state.maintenance import Maintenance, MaintenanceFile
from support.passes import in_one_pass


def test_a_file_that_makes_no_sense_is_reported_once(tmp_path: Path) -> None:
    """The daemon looks each second; the log is told when the file changes, and a good file then counts."""
    file = MaintenanceFile(tmp_path)
    with capture_logs() as events:
        for content in (b"{", b"{}{}"):
            file.path.write_bytes(content)
            assert [file.read(now) for now in (0.0, 1.0, 2.0)] == [None, None, None]
        file.write(Maintenance("swap", until=10.0, since=0.0))
        assert file.read(3.0) == Maintenance("swap", until=10.0, since=0.0)

    assert [event["event"] for event in events] == ["the maintenance file is ignored"] * 2
    assert events[0]["file"] == str(tmp_path / "maintenance.json")


@in_one_pass("reason", ["a", "driver-upgrade", "swap_2", "0", "x" * 32])
def test_a_reason_is_a_word(reason: str) -> None:
    """What may become a label value."""
    assert Maintenance(reason, until=1.0, since=0.0).reason == reason


@in_one_pass("reason", ["", "Two", "two words", "-x", "x" * 33, "ä", 'a"b', "a\n"])
def test_a_reason_that_is_no_word_is_refused(reason: str) -> None:
    """Neither a sentence nor a quote gets into a label."""
    with pytest.raises(ValueError, match="one word of lower-case letters"):
        Maintenance(reason, until=1.0, since=0.0)


def test_removing_says_whether_there_was_a_pause(tmp_path: Path) -> None:
    """`commwatch resume` can tell whether it ended something."""
    file = MaintenanceFile(tmp_path)
    file.write(Maintenance("swap", until=10.0, since=0.0))

    assert file.remove() is True
    assert file.remove() is False


def test_a_file_that_cannot_be_written_or_removed_is_an_error_with_advice(tmp_path: Path) -> None:
    """The message names the file and what to do."""
    (tmp_path / "state").write_text("")  # a file where the directory should be
    file = MaintenanceFile(tmp_path / "state")

    with pytest.raises(CommwatchError, match=r"state/maintenance\.json: Not a directory; name the right one"):
        file.write(Maintenance("swap", until=10.0, since=0.0))
    with pytest.raises(CommwatchError, match=r"state/maintenance\.json: Not a directory; name the right one"):
        file.remove()
    assert file.read(0.0) is None
