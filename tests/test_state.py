"""The state directory: atomic, locked, and not stopped by a damaged file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from commwatch.errors import StateError
from commwatch.state.directory import StateDirectory
from commwatch.state.records import Count, Timestamp, read_record


class Record(msgspec.Struct):
    """A record of these tests."""

    value: int
    at: Timestamp = 0.0
    events: Count = 0


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """A record comes back after a restart."""
    StateDirectory(tmp_path).save("record", Record(3))

    assert StateDirectory(tmp_path).load("record", Record) == Record(3)
    assert StateDirectory(tmp_path).load("other", Record) is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b'{"value": "three"}', b"\xff\xfe", b"[]", b'{"x": "\xff"}', b'{"x": ' + b"[" * 10**5,
        b'{"value": 18446744073709551617}', b'{"value": -18446744073709551617}', b'{"value": 1' + b"0" * 400 + b"}",
        b'{"value": 1, "at": 1e18}', b'{"value": 1, "at": -1}', b'{"value": 1, "events": -1}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """The daemon goes on without it, and the file is kept for whoever wants to look."""
    (tmp_path / "record.json").write_bytes(content)

    assert StateDirectory(tmp_path).load("record", Record) is None
    assert not (tmp_path / "record.json").exists()
    (aside,) = tmp_path.glob("record.damaged-*")
    assert aside.read_bytes() == content


def test_a_file_larger_than_memory_is_set_aside(tmp_path: Path) -> None:
    """It is not read to its end, by a command neither."""
    with (tmp_path / "record.json").open("wb") as stream:
        stream.write(b'{"value": 1}')
        stream.truncate(2**43)

    with pytest.raises(StateError, match="more than 64 MiB"):
        read_record(tmp_path / "record.json", Record)
    assert StateDirectory(tmp_path).load("record", Record) is None
    assert list(tmp_path.glob("record.damaged-*"))


@pytest.mark.parametrize("value", [2**64, -(2**64), 0])
def test_the_largest_counters_are_believed(tmp_path: Path, value: int) -> None:
    """A counter of 64 bits may have any value."""
    StateDirectory(tmp_path).save("record", Record(value))

    assert StateDirectory(tmp_path).load("record", Record) == Record(value)


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"value": 1, "at": 1e18}'])
def test_what_others_cannot_read_of_it_stays_where_it_is(tmp_path: Path, content: bytes) -> None:
    """A command sets no file of the daemon aside; it says which one cannot be read."""
    file = tmp_path / "record.json"
    assert read_record(file, Record) is None
    file.write_bytes(content)

    with pytest.raises(StateError, match=r"record\.json cannot be read: "):
        read_record(file, Record)
    assert file.read_bytes() == content


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    """Two daemons must not write the same state; the error says what to do."""
    first, second = StateDirectory(tmp_path), StateDirectory(tmp_path)
    first.open()
    try:
        with pytest.raises(StateError, match=r"another commwatch daemon uses it.*--path\.state"):
            second.open()
    finally:
        second.close()
        first.close()


def test_a_path_that_cannot_be_a_directory_is_a_clear_error(tmp_path: Path) -> None:
    """The error names the directory and the flag."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StateError, match=r"file/state: .*--path\.state"):
        StateDirectory(tmp_path / "file" / "state").open()


def test_a_failed_write_leaves_the_old_record(tmp_path: Path) -> None:
    """A record is replaced whole or not at all."""
    state = StateDirectory(tmp_path)
    state.save("record", Record(1))
    (tmp_path / "record.new").mkdir()  # nothing can be written under this name

    with pytest.raises(OSError, match="directory"):
        state.save("record", Record(2))

    assert state.load("record", Record) == Record(1)
    assert os.listdir(tmp_path / "record.new") == []
