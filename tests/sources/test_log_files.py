"""Which files the names of logs stand for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commwatch.jobs.logs.files import find_logs, pattern_of, short_host


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("/log/nccl.%h.%p", "/log/nccl.gpu7.[0-9]*"),
        ("/log/100%%.%h", "/log/100%.gpu7"),
        ("/log/%%h.log", "/log/%h.log"),
        ("/log/job-*/out.log", "/log/job-*/out.log"),
    ],
)
def test_names_are_taken_as_nccl_writes_them(name: str, pattern: str) -> None:
    """With shell patterns besides."""
    assert pattern_of(name, "gpu7") == pattern


def test_a_host_is_called_by_its_first_part() -> None:
    """NCCL cuts host names at the first dot."""
    assert short_host("GPU7.example.org") == "gpu7"


def test_files_folders_and_patterns_are_found(tmp_path: Path) -> None:
    """Each file once, by whatever name; no pipe, no hidden file, nothing that rotation has packed."""
    for name in ("a.log", "a.log.1", "a.log.2.gz", ".hidden", "nccl.gpu7.12", "nccl.gpu8.13"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "below").mkdir()
    (tmp_path / "link.log").symlink_to("a.log")
    (tmp_path / "broken.log").symlink_to("nothing")

    def names(name: str) -> set[str]:
        found, failed = find_logs(f"{tmp_path}/{name}", "gpu7")
        assert failed is None
        return {Path(one.path).name for one in found}

    assert names("") == {"a.log", "a.log.1", "nccl.gpu7.12", "nccl.gpu8.13"}
    assert names("*.log") in ({"a.log"}, {"link.log"})
    assert names("nccl.%h.%p") == {"nccl.gpu7.12"}
    assert names("link.log") == {"link.log"}
    assert names("missing.log") == set()
    assert names("pipe") == set()
