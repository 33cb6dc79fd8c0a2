"""The writer of generated trees: files that stay the same files, and two writers of one tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch.simulation.tree.writer import TreeWriter


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    """A descriptor of ``count``, opened while it said 100."""
    TreeWriter(tmp_path).put("count", "100")
    descriptor = os.open(tmp_path / "count", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("content", ["100", "101", "7", "1000", "0"])
def test_an_open_file_shows_what_is_written_later(tmp_path: Path, held: int, content: str) -> None:
    """As an attribute of the kernel does, whether the text grows or shrinks; a writer of a later run does so too."""
    TreeWriter(tmp_path).put("count", content)

    assert os.pread(held, 4096, 0) == f"{content}\n".encode()


def test_a_shrinking_file_never_shows_a_shorter_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the write and the cut, the new line is whole and the rest stands on a line of its own."""
    writer = TreeWriter(tmp_path)
    writer.put("count", "98765")
    seen: list[bytes] = []
    cut = os.ftruncate

    def look(descriptor: int, length: int) -> None:
        seen.append((tmp_path / "count").read_bytes())
        cut(descriptor, length)

    monkeypatch.setattr(os, "ftruncate", look)
    writer.put("count", "12")

    assert seen == [b"12\n65\n"]
    assert (tmp_path / "count").read_bytes() == b"12\n"


def test_what_is_there_is_left_to_the_other_writer(tmp_path: Path) -> None:
    """Only missing files are made, and nothing is removed or obstructed."""
    TreeWriter(tmp_path).put("a/theirs", "new")
    other = TreeWriter(tmp_path, only_missing=True)

    other.put("a/theirs", "old")
    other.put("a/missing", "made")
    other.obstruct("a/theirs")
    other.remove("a")

    assert (tmp_path / "a/theirs").read_text() == "new\n"
    assert (tmp_path / "a/missing").read_text() == "made\n"


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that make the same file: the first one wins, and no draft stays."""
    link = os.link

    def late(draft: str, target: str) -> None:
        Path(target).write_text("first\n")
        link(draft, target)

    monkeypatch.setattr(os, "link", late)
    TreeWriter(tmp_path).put("file", "second")

    assert (tmp_path / "file").read_text() == "first\n"
    assert os.listdir(tmp_path) == ["file"]


def test_an_obstructed_file_cannot_be_read_until_it_is_written_again(tmp_path: Path, held: int) -> None:
    """To read the path fails; who holds the old file reads nothing, and sees that it has no name left."""
    writer = TreeWriter(tmp_path)
    writer.obstruct("count")

    with pytest.raises(IsADirectoryError):
        (tmp_path / "count").read_bytes()
    assert os.pread(held, 4096, 0) == b""
    assert os.fstat(held).st_nlink == 0

    writer.put("count", "5")
    assert (tmp_path / "count").read_text() == "5\n"


def test_a_link_is_made_once_and_a_wrong_one_is_an_error(tmp_path: Path) -> None:
    """A second writer finds the link of the first; a link to elsewhere is not silently kept."""
    TreeWriter(tmp_path).link("class/a", "devices/a")
    TreeWriter(tmp_path).link("class/a", "devices/a")

    assert os.readlink(tmp_path / "class/a") == "../devices/a"
    with pytest.raises(FileExistsError):
        TreeWriter(tmp_path).link("class/a", "devices/b")


def test_what_was_removed_is_written_anew(tmp_path: Path) -> None:
    """Folders and links go, and come back with the next writing."""
    writer = TreeWriter(tmp_path)
    for _ in range(2):
        writer.put("devices/a/file", "1")
        writer.link("class/a", "devices/a")
        assert (tmp_path / "class/a/file").read_text() == "1\n"
        writer.remove("class/a", "devices/a")
        assert not list(tmp_path.glob("*/*"))
