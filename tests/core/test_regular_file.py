"""A file that another user may write is opened without following, waiting or reading without end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commwatch.regular_file import open_folder, open_regular, read_regular


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)


def _link(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"{}")
    path.symlink_to(other)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "it is no regular file"),
        (os.mkdir, "it is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "symbolic links"),
        (_link, "symbolic links"),
        (_sparse, "it has more than 100 bytes"),
        (lambda path: None, "No such file"),
    ],
    ids=["pipe", "folder", "link to a device", "link to a file", "a sparse gigabyte", "nothing"],
)
def test_what_is_no_small_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    file = tmp_path / "state.json"
    make(file)
    with pytest.raises(OSError, match=said):
        read_regular(file, 100)


def test_a_device_is_refused() -> None:
    with pytest.raises(OSError, match="no regular file"):
        open_regular("/dev/zero")


def test_a_file_of_just_the_largest_size_is_read(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(b"x" * 100)
    assert read_regular(file, 100) == b"x" * 100


def test_a_refused_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("mode", "follows"), [(0o755, True), (0o1777, False), (0o777, False)])
def test_a_link_to_a_folder_is_followed_where_nobody_else_can_make_one(
    tmp_path: Path, mode: int, follows: bool
) -> None:
    """systemd puts a link in the place of a state directory."""
    above, folder = tmp_path / "above", tmp_path / "folder"
    folder.mkdir()
    above.mkdir()
    above.chmod(mode)
    (above / "link").symlink_to(folder)
    (above / "own").mkdir()
    with pytest.raises(NotADirectoryError) if not follows else contextlib.nullcontext():
        os.close(open_folder(above / "link"))
    os.close(open_folder(above / "own"))
