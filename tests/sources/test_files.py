"""Readers of one-line files: any bytes give a value or none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.sources import files
from support.passes import in_one_pass


@given(st.binary(max_size=200))
def test_any_bytes_are_tolerated(data: bytes) -> None:
    """Whatever a file holds, parsing gives a value or nothing, and a word can stand in a label."""
    number = files.parse_integer(data)

    assert number is None or data.strip() == str(number).encode() or int(data) == number
    assert files.parse_word(data).encode() is not None


@given(st.integers(min_value=-(10**20) + 1, max_value=10**20 - 1))
def test_integers_are_read_exactly(number: int) -> None:
    """A decimal number is read without loss, with the kernel's line end."""
    assert files.parse_integer(f"{number}\n".encode()) == number


@in_one_pass("text", [b"", b"\n", b"1_000", b"0x10", b"1.5", b"+1", b"\xff", b"1" * 21, b"12 34", b"- 1"])
def test_other_text_is_no_integer(text: bytes) -> None:
    """What is not a plain decimal integer is not read as one."""
    assert files.parse_integer(text) is None


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "no_permission"),
        (errno.ENODEV, "not_found"),
        (errno.ENOENT, "not_found"),
        (errno.EBUSY, "not_ready"),
        (errno.EIO, "unreadable"),
    ],
)
def test_errors_have_reasons(number: int, reason: str) -> None:
    """Each error of the kernel has one of the bounded reasons."""
    assert files.reason_of(OSError(number, "text")) == reason


def test_reading_takes_the_whole_attribute(tmp_path: Path) -> None:
    """An attribute is read in one go; a file that is not there is an error, or nothing where that is asked for."""
    (tmp_path / "speed").write_bytes(b"100000\n")

    assert files.read(str(tmp_path / "speed")) == b"100000\n"
    assert files.read_if_there(str(tmp_path / "duplex")) is None
    with pytest.raises(FileNotFoundError):
        files.read(str(tmp_path / "duplex"))


def test_file_names_become_labels() -> None:
    """A file name with bytes that are not UTF-8 becomes a text that can be encoded."""
    assert files.label_of("eth\udcff0") == "eth\\xff0"
    assert files.label_of("eth0") == "eth0"


def test_a_chain_leads_from_the_device_to_the_root(tmp_path: Path) -> None:
    """The names on a device's resolved path come nearest first; a loop or a missing device has none."""
    (tmp_path / "pci0000:17" / "0000:17:00.0").mkdir(parents=True)
    (tmp_path / "device").symlink_to("pci0000:17/0000:17:00.0")
    (tmp_path / "loop").symlink_to("loop")

    assert files.device_chain(tmp_path / "device")[:2] == ["0000:17:00.0", "pci0000:17"]
    assert files.device_chain(tmp_path / "loop") == []
    assert files.device_chain(tmp_path / "gone") == []
