"""Files that a diagnosis is written into: refused early in one line, written whole, nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commwatch.diagnosis.output_file import BadOutput, check_output, new_file

HTML = (".html",)


def refused(file: Path) -> str:
    with pytest.raises(BadOutput) as error:
        check_output("--report", file, HTML)
    return str(error.value)


def test_what_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    """A wrong ending, no folder, a file as folder, a folder or a pipe as file; each names what to do in one line."""
    (tmp_path / "plain").write_text("x")
    (tmp_path / "folder.html").mkdir()
    os.mkfifo(tmp_path / "pipe.html")

    assert "ends in .html" in refused(tmp_path / "x.txt")
    assert "there is no folder" in refused(tmp_path / "none/x.html")
    assert "there is no folder" in refused(tmp_path / "plain/x.html")
    assert "is a folder" in refused(tmp_path / "folder.html")
    assert "no regular file" in refused(tmp_path / "pipe.html")
    assert "cannot be written" in refused(Path("/proc/x.html"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder.html", "pipe.html", "plain"]


def test_a_good_name_leaves_nothing_behind(tmp_path: Path) -> None:
    """New, or of a file that is there, which stays as it is."""
    (tmp_path / "old.html").write_text("before")
    check_output("--report", tmp_path / "new.html", HTML)
    check_output("--report", tmp_path / "old.html", HTML)

    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("old.html", "before")]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """With the permissions that were asked for."""
    file = tmp_path / "x.html"
    file.write_text("before")
    with new_file("--report", file, 0o600) as stream:
        stream.write(b"now")
        assert file.read_text() == "before"

    assert file.read_text() == "now"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    """An interrupt, or a disk that is full."""
    file = tmp_path / "x.html"
    file.write_text("before")
    with pytest.raises(KeyboardInterrupt), new_file("--report", file, 0o600):
        raise KeyboardInterrupt
    with pytest.raises(BadOutput, match=r"--report .*x\.html: No space"), new_file("--report", file, 0o600):
        raise OSError(28, "No space left on device")

    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("x.html", "before")]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """Someone else may have laid it."""
    (tmp_path / "other").write_text("theirs")
    (tmp_path / "x.html").symlink_to(tmp_path / "other")
    with new_file("--report", tmp_path / "x.html", 0o600) as stream:
        stream.write(b"ours")

    assert (tmp_path / "other").read_text() == "theirs"
    assert (tmp_path / "x.html").read_text() == "ours"
