"""The machinery of ``make hardware``: a section that hangs or crashes costs no other, and values meet their references.

tests/proof/test_hardware.py plays it whole on stand-ins for the driver.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.hardware.expected import compare
from benchmarks.hardware.place import ROOT
from benchmarks.hardware.ranks import why_no_sharing
from benchmarks.hardware.run import Outcome, Section, run_child, why_not
from benchmarks.hardware.text import summary

from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS

HOPPER = {"gpus": 1, "gpu_name": "NVIDIA H200", "architecture": 9, "driver_version": "580.95.05"}


@pytest.mark.parametrize(
    ("then", "reason", "crashed"),
    [
        ("", "", False),
        ('echo \'{"cannot_run": "no torch"}\'', "no torch", False),
        ("echo bad answer >&2; exit 1", "ended with 1: bad answer", True),
        ("kill -ABRT $$", "ended with -6: ", True),
        ("printf '{\"half'; exec sleep 600", "no end within 1 s; it was ended", True),
    ],
)
def test_a_section_ends_and_what_it_had_found_is_kept(then: str, reason: str, crashed: bool, tmp_path: Path) -> None:
    """Whole lines of its output are facts; a line that was cut off is not."""
    limit = 1.0 if "sleep" in then else PATIENCE_SECONDS
    outcome = run_child("one", ["sh", "-c", f"echo '{{\"links\": 18}}'; {then}"], limit, tmp_path)
    assert (outcome.facts, outcome.reason, outcome.crashed) == ({"links": 18}, reason, crashed)


DRIVER = {"driver": Outcome({"gpus": 1})}
FREE = {"gpus": 1, "compute_processes": 0, "memory_used_mebibytes": 5.0, "mig": False}
CASES: list[tuple[dict[str, Any], dict[str, Outcome], bool, str]] = [
    ({}, {}, True, ""),
    ({}, {"driver": Outcome({}, "no driver")}, False, "no driver"),
    (FREE, DRIVER, True, ""),
    ({**FREE, "compute_processes": 1}, DRIVER, True, "1 processes compute on the GPUs; run it on a free node"),
    ({**FREE, "compute_processes": 1}, DRIVER, False, ""),
    ({**FREE, "memory_used_mebibytes": 2e4}, DRIVER, True, "20000 MiB of a GPU are in use; run it on a free node"),
    ({**FREE, "mig": True}, DRIVER, True, "the GPU is divided (MIG)"),
    ({**FREE, "stuck_ranks": 1}, DRIVER, True, "an earlier section sits in the kernel"),
    (FREE, {**DRIVER, "pcie": Outcome({}, "late", left_alone=True)}, True, "an earlier section sits in the kernel"),
]


@in_one_pass("facts, outcomes, uses_gpu, reason", CASES)
def test_a_section_that_uses_the_gpu_leaves_a_job_alone(
    facts: dict[str, Any], outcomes: dict[str, Outcome], uses_gpu: bool, reason: str
) -> None:
    """And without a driver none runs but the one that looks for it."""
    assert why_not(Section("jitter", "step:jitter", 1.0, uses_gpu=uses_gpu), facts, outcomes) == reason


def test_nccl_is_not_tried_where_torch_cannot_use_the_gpu() -> None:
    outcomes = {**DRIVER, "torch": Outcome({}, "torch 2.13: built without CUDA and NCCL")}
    section = Section("probes", "ranks:probes", 1.0, uses_gpu=True, needs_torch=True)
    assert why_not(section, FREE, outcomes) == "torch 2.13: built without CUDA and NCCL"


@in_one_pass(
    "facts, agrees",
    [
        ({"nvlink_speed_megabytes_per_second": 26562}, True),
        ({"nvlink_speed_megabytes_per_second": 25000}, False),
        ({"codes_of_nvlink_5_errors": {"3": 17}}, True),
        ({"codes_of_nvlink_5_errors": {"3": 16, "0": 1}}, False),
        ({"types_of_pcie_bytes": []}, None),
        ({"pcie_receive_call_milliseconds": 20.4}, True),
        ({"pcie_receive_call_milliseconds": 0.1}, False),
        ({"tests_failed": []}, True),
        ({"tests_failed": ["test_two_ranks"]}, False),
        ({"power_idle_watts": 70.0}, None),
        ({"operational_events_present": True}, False),
        ({"operational_events_present": True, "driver_version": "615.10"}, True),
        ({"architecture": 7, "gpu_name": "NVIDIA A100-SXM4-80GB", "nvlink_version_code": 4}, None),
    ],
)
def test_a_value_agrees_with_its_reference_or_differs(facts: dict[str, Any], agrees: bool | None) -> None:
    """None: it was not measured, has no reference, or its reference is of another GPU."""
    rows = [row for row in compare({**HOPPER, **facts}) if row.agrees is not None]
    assert [row.agrees for row in rows] == ([] if agrees is None else [agrees])


def test_the_text_names_what_ran_what_differs_and_what_is_new() -> None:
    facts = {**HOPPER, "nvlink_links": 18, "nvlink_version_code": 5, "power_idle_watts": 70.0}
    text = summary(facts, {"driver": Outcome(facts, seconds=2.0), "probes": Outcome({}, "no torch")},
                   list(compare(facts)), "")  # fmt: skip
    assert "1 x NVIDIA H200, driver 580.95.05" in text
    assert "probes        0.0 s  no torch" in text
    assert "1 of 2 measured values agree" in text
    assert "  differs: code of NVLink 4: 5; expected 6 (nvml.h)" in text
    assert "  without a reference: power, idle: 70 W" in text
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize(
    ("used", "code", "words"), [(False, 3, "no NVIDIA driver that can be opened"), (True, 2, "is not empty")]
)
def test_without_a_driver_each_section_gives_one_line(used: bool, code: int, words: str, tmp_path: Path) -> None:
    """And a folder that is in use is refused."""
    out = tmp_path / "out"
    if used:
        out.mkdir()
        (out / "earlier").touch()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hardware", "--out", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
    if not used:
        lines = (out / "hardware.txt").read_text().splitlines()
        assert len(lines) == 9
        assert all(words in line for line in lines)


@in_one_pass(
    "version, reason",
    [
        ("2.30.3", ""),
        ("2.31.1", ""),
        ("2.29.7", "NCCL 2.29.7 has no NCCL_MULTI_RANK_GPU_ENABLE, which came with 2.30.3"),
        ("simulated", "the version of NCCL is not known (simulated)"),
        ("", "the version of NCCL is not known (no cycle before has run)"),
    ],
)
def test_ranks_of_one_host_share_a_gpu_only_where_nccl_lets_them(version: str, reason: str) -> None:
    """Else the reason is the result."""
    assert why_no_sharing(version) == reason
