"""Files that are read again and again through one descriptor."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from commwatch.sources.kept_file import KeptFile, KeptFiles


def descriptors(folder: Path) -> list[str]:
    """The files below a folder that this process holds open."""
    held = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sorted(
        target for one in held if os.path.lexists(one) and (target := os.readlink(one)).startswith(str(folder))
    )


def test_a_file_is_opened_once(tmp_path: Path) -> None:
    """Later readings see what was written in place, through the same descriptor; closing lets go of it."""
    path = tmp_path / "count"
    path.write_bytes(b"1\n")
    kept = KeptFiles(10)
    file = KeptFile(str(path), kept)

    assert file.read() == b"1\n"
    path.write_bytes(b"22\n")
    assert file.read() == b"22\n"
    assert (len(descriptors(tmp_path)), kept.free) == (1, 9)
    file.close()
    assert (descriptors(tmp_path), kept.free) == ([], 10)
    assert file.read() == b"22\n"
    file.close()


def test_a_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    """A new file of the same name is read, not the one that is gone; without one it is not there."""
    path = tmp_path / "count"
    path.write_bytes(b"1\n")
    file = KeptFile(str(path), KeptFiles(10))
    file.read()

    (tmp_path / "draft").write_bytes(b"2\n")
    (tmp_path / "draft").replace(path)

    assert file.read() == b"2\n"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.read()
    assert descriptors(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ESTALE])
def test_a_device_that_came_back_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The kernel refuses the descriptor of a device that went away; the path leads to the new one."""
    path = tmp_path / "count"
    path.write_bytes(b"1\n")
    file = KeptFile(str(path), KeptFiles(10))
    file.read()
    refusals = [OSError(number, "gone")]
    real = os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        if refusals:
            raise refusals.pop()
        return real(descriptor, length, offset)

    monkeypatch.setattr("commwatch.sources.kept_file.os.pread", pread)

    assert file.read() == b"1\n"
    refusals.append(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        file.read()
    file.close()


def test_only_so_many_stay_open(tmp_path: Path) -> None:
    """Beyond the limit files are read and closed."""
    kept = KeptFiles(1)
    files = [KeptFile(str(tmp_path / name), kept) for name in "ab"]
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())

    assert [file.read() for file in files] == [b"a", b"b"]
    assert descriptors(tmp_path) == [str(tmp_path / "a")]
    files[0].close()
