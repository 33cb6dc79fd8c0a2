"""From the use, power and traffic of a simulated job to the finding that it is stuck."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import rehearsed

JOB = "- {fault: job, at: 1m, nvlink_utilization: 0.3}\n"
ONE_RANK = "- {fault: job_phase, phase: hang, at: 13m}\n- {fault: job_phase, phase: data_stall, gpu: 2, at: 13m}\n"


@pytest.mark.parametrize(
    ("phase", "found"),
    [(ONE_RANK, ["job_stuck"]), ("- {fault: job_phase, phase: checkpoint, at: 13m}\n", [])],
)
def test_a_hang_is_found_and_a_checkpoint_is_not(
    phase: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole job on its node, by the daemon's own road."""
    with rehearsed("h100x8", tmp_path, monkeypatch, JOB + phase) as node:
        node.until(13, step=10.0)
        assert node.verdict.findings == []
        node.until(19, step=10.0)
        assert [one.code for one in node.verdict.findings] == found
