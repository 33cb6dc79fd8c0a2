"""From the use, power and traffic of a simulated job to the finding that it is stuck, or moves its payload over TCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import rehearsed, simulated

JOB = "- {fault: job, at: 1m, nvlink_utilization: 0.3}\n"
ONE_RANK = "- {fault: job_phase, phase: hang, at: 13m}\n- {fault: job_phase, phase: data_stall, gpu: 2, at: 13m}\n"
"""It never launched its kernel; the others wait for it."""


@pytest.mark.parametrize(
    ("preset", "phase", "early", "late"),
    [
        ("h100x8", "- {fault: job_phase, phase: hang, at: 13m}\n", ["job_stuck_suspected"], ["job_stuck"]),
        ("a100x4", "- {fault: job_phase, phase: hang, at: 13m}\n", ["job_stuck_suspected"], ["job_stuck"]),
        ("h100x8", ONE_RANK, ["job_stuck_suspected"], ["job_stuck"]),
        ("h100x8", "- {fault: job_phase, phase: checkpoint, at: 13m}\n", [], []),
        ("h100x8", "- {fault: job_phase, phase: compile, at: 13m}\n", [], []),
        ("h100x8", "- {fault: job_phase, phase: evaluate, at: 13m}\n", [], []),
        ("h100x8", "- {fault: job_phase, phase: data_stall, at: 13m}\n", [], []),
    ],
    ids=["all ranks", "PCIe sampled", "one rank", "checkpoint", "compile", "evaluate", "data stall"],
)
def test_a_hang_is_found_and_what_looks_alike_is_not(
    preset: str, phase: str, early: list[str], late: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole job, by the daemon's own road: a minute after the last payload, and graver after five."""
    with rehearsed(preset, tmp_path, monkeypatch, JOB + phase) as node:
        node.until_with_peaks(13)
        assert node.verdict.findings == []
        node.until_with_peaks(14.2)
        assert [one.code for one in node.verdict.findings] == early
        node.until_with_peaks(18.2)
        assert [one.code for one in node.verdict.findings] == late


def test_a_step_of_the_clock_neither_ends_nor_ages_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an hour, ahead and back."""
    with rehearsed("h100x8", tmp_path, monkeypatch, JOB + "- {fault: job_phase, phase: hang, at: 13m}\n") as node:
        node.until_with_peaks(14)
        for step, minutes in ((3600.0, 16), (-3600.0, 17.8)):
            node.step_clock(step)
            node.until_with_peaks(minutes)
            assert {one.code for one in node.verdict.findings} == {"clock_stepped", "job_stuck_suspected"}
        node.until_with_peaks(18.2)
        assert {one.code for one in node.verdict.findings} == {"clock_stepped", "job_stuck"}


RULES_EVERY = 10
"""Seconds between two evaluations of the rules."""
RDMA_BEFORE = (
    "- {fault: nccl_setting, at: 0s, variable: WORLD_SIZE, value: 16}\n"
    "- {fault: job, at: 2m, until: @begin@s, nvlink_utilization: 0.3, rdma_utilization: 0.4}\n"
)
OVER_TCP = "- {fault: job, at: @begin@s, nvlink_utilization: 0.3, rdma_utilization: 0, ethernet_utilization: 0.5}\n"


@pytest.mark.parametrize(("offset", "after"), [(0.5, 1), (0.5, 9), (5.5, 9)])
@pytest.mark.parametrize(
    ("preset", "faults", "minute", "code", "within"),
    [
        ("h100x8", JOB + "- {fault: job_phase, phase: hang, at: @begin@s}\n", 13, "job_stuck_suspected", 60),
        ("h100x8ndr", RDMA_BEFORE + OVER_TCP, 4, "job_over_tcp", 120),
    ],
    ids=["hang", "payload over TCP"],
)
def test_the_first_finding_is_there_in_time_whenever_the_job_changes(
    preset: str, faults: str, minute: int, code: str, within: float, offset: float, after: int, tmp_path: Path
) -> None:
    """At the shipped intervals, a while after a reading of the GPUs, and with the rules some seconds after each."""
    begin = 60 * minute + offset
    with simulated(preset, tmp_path, faults=faults.replace("@begin@", str(begin))) as node:
        opened: list[float] = []
        while not opened and node.time < begin + 2 * within:
            node.read_to(node.time + (1 if node.time > begin - 90 else 2))  # so that the peaks of NVLinks are known
            if node.time % RULES_EVERY == after:
                node.look()
            opened = [one.seconds - begin for one in node.changes if one.code == code]
    print(f"\n{code}: after {opened} s")
    assert 0 < opened[0] <= within
