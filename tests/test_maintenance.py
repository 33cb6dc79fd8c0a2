"""The maintenance file: pauses, expires, and is ignored when it makes no sense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from commwatch.probes.gate.hold import HoldFile
from commwatch.state.maintenance import Maintenance, MaintenanceFile
from support.state_files import SPECIAL_FILES, special_file


def test_a_pause_lasts_until_its_time(tmp_path: Path) -> None:
    """It is in force just before its end and over at its end."""
    file = MaintenanceFile(tmp_path)
    file.write(Maintenance("upgrade", until=100.0, since=50.0))

    assert file.read(99.9) == Maintenance("upgrade", until=100.0, since=50.0)
    assert file.read(100.0) is None


def test_removing_the_file_ends_the_pause(tmp_path: Path) -> None:
    """Whoever removes the file by hand resumes the daemon."""
    file = MaintenanceFile(tmp_path)
    file.write(Maintenance("upgrade", until=100.0, since=50.0))
    file.path.unlink()

    assert file.read(60.0) is None
    assert file.remove() is False


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"reason": "two words", "until": 1e10, "since": 0}', b"\xff", b'{"reason": "\xff"}']
)
def test_a_file_that_makes_no_sense_pauses_nothing(tmp_path: Path, content: bytes) -> None:
    """A damaged file must not stop the watching forever."""
    (tmp_path / "maintenance.json").write_bytes(content)

    assert MaintenanceFile(tmp_path).read(0.0) is None


def test_the_daemon_can_read_what_root_wrote_whatever_the_umask(tmp_path: Path) -> None:
    """The file belongs to the owner of the state directory, and is readable for the group."""
    before = os.umask(0o077)
    try:
        MaintenanceFile(tmp_path).write(Maintenance("upgrade", until=100.0, since=50.0))
    finally:
        os.umask(before)

    status = (tmp_path / "maintenance.json").stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o640, tmp_path.stat().st_uid)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """A longer pause written over the first one counts."""
    file = MaintenanceFile(tmp_path)
    file.write(Maintenance("a", until=100.0, since=50.0))
    assert file.read(60.0) is not None
    file.write(Maintenance("b", until=1000.0, since=60.0))

    again = file.read(500.0)

    assert again is not None
    assert again.reason == "b"


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_what_is_no_file_pauses_and_holds_nothing(tmp_path: Path, kind: str) -> None:
    """Whoever may write the file may pause the daemon, but not stop it; each is said once, and the next one counts."""
    pause, hold = MaintenanceFile(tmp_path), HoldFile(tmp_path)
    target = tmp_path / "target"
    target.write_text('{"reason": "upgrade", "until": 100, "since": 50}')
    with special_file(pause.path, kind, target), special_file(hold.path, kind, target), capture_logs() as events:
        for _ in range(3):
            assert pause.read(60.0) is None
            assert hold.read() is None
        if kind != "folder":
            pause.write(Maintenance("upgrade", until=100.0, since=50.0))
            hold.hold(30.0, 60.0)
            assert (pause.read(60.0), hold.read()) != (None, None)

    assert [event["event"] for event in events] == ["the maintenance file is ignored", "the hold file is ignored"]
    assert target.read_text() == '{"reason": "upgrade", "until": 100, "since": 50}'
