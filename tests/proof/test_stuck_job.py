"""From the use, power and traffic of a simulated job to the finding that it is stuck."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import rehearsed

JOB = "- {fault: job, at: 1m, nvlink_utilization: 0.3}\n"
ONE_RANK = "- {fault: job_phase, phase: hang, at: 13m}\n- {fault: job_phase, phase: data_stall, gpu: 2, at: 13m}\n"
"""It never launched its kernel; the others wait for it."""


@pytest.mark.parametrize(
    ("phase", "early", "late"),
    [
        ("- {fault: job_phase, phase: hang, at: 13m}\n", ["job_stuck_suspected"], ["job_stuck"]),
        (ONE_RANK, ["job_stuck_suspected"], ["job_stuck"]),
        ("- {fault: job_phase, phase: checkpoint, at: 13m}\n", [], []),
        ("- {fault: job_phase, phase: compile, at: 13m}\n", [], []),
        ("- {fault: job_phase, phase: evaluate, at: 13m}\n", [], []),
        ("- {fault: job_phase, phase: data_stall, at: 13m}\n", [], []),
    ],
    ids=["all ranks", "one rank", "checkpoint", "compile", "evaluate", "data stall"],
)
def test_a_hang_is_found_and_what_looks_alike_is_not(
    phase: str, early: list[str], late: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole job, by the daemon's own road: a minute after the last payload, and graver after five."""
    with rehearsed("h100x8", tmp_path, monkeypatch, JOB + phase) as node:
        node.until_with_peaks(13)
        assert node.verdict.findings == []
        node.until_with_peaks(14.2)
        assert [one.code for one in node.verdict.findings] == early
        node.until_with_peaks(18.2)
        assert [one.code for one in node.verdict.findings] == late
