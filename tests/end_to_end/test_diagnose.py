"""commwatch diagnose: wrong use, and a daemon that does not tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.__main__ import main
from health.reports import answering, said


@pytest.mark.parametrize("options", [
    ("--gpus", "0,1"), ("--ignore-scheduler",), ("--stress", "30s"), ("--stress", ""),
    ("--full-scan", "--stress", "11m"), ("--full-scan", "--gpus", "a"),
    ("--log", "a", "--settings", "b"), ("--log", "a", "--full-scan"), ("--log", "a", "--report", "a.html"),
    ("--settings", "a", "--bundle", "a.tar.gz"), ("--settings", "a", "--profile", "7b", "--step-time", "1s"),
])  # fmt: skip
def test_wrong_use_is_told_before_anything_is_asked(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How to probe without a probe, a load out of bounds, and this node with logs; no daemon need be there."""
    assert main(["diagnose", *options, "--path.state", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "--" in told
    assert "; name " not in told  # no file was looked for


@pytest.mark.parametrize("answer", [b"", b'{"error": "busy"}\n', b'{"findings": 1}\n'])
def test_a_daemon_that_does_not_tell_is_no_fault_of_the_node(
    answer: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown, not degraded: it gives up, refuses or is of another version."""
    with answering(tmp_path / "state", lambda connection: connection.sendall(said(answer) if answer else b"")):
        assert main(["diagnose", "--path.state", str(tmp_path / "state")]) == 3
    assert capsys.readouterr().err.startswith("commwatch: the daemon ")
