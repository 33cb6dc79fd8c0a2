"""What a measured value is worth beside a reference mark."""

from __future__ import annotations

import pytest

from commwatch.diagnosis.marks.mark import Mark, judge_rate
from commwatch.diagnosis.marks.table import ALL_REDUCE_7B, ALL_REDUCE_235B, INFINIBAND_HDR, MARKS, NVLINK, PCIE_GEN4_X16
from support.passes import in_one_pass

A100 = "NVIDIA A100-SXM4-80GB"
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.name)
def test_each_mark_says_what_it_is_about(mark: Mark) -> None:
    """Quantity, direction, size, path class, figure and source."""
    assert all((mark.quantity, mark.direction, mark.size, mark.path, mark.source))
    assert mark.figure > 0


def test_the_figures_are_those_that_users_know() -> None:
    """With their units."""
    assert PCIE_GEN4_X16.required == "at least 48 GB/s"
    assert NVLINK.required == "at least 300 GB/s"
    assert INFINIBAND_HDR.required == "at most 1.2 µs"
    assert ALL_REDUCE_7B.required == "at least 80 GB/s"
    assert ALL_REDUCE_235B.required == "at least 120 GB/s"


@in_one_pass(
    "rate, expected, verdict",
    [
        (80.0, 315.0, "passed"),
        (79.9, 315.0, "failed"),
        (80.0, 12.0, "passed"),
        (11.9, 12.0, "published mark"),
        (1.0, 12.0, "published mark"),
        (79.9, 94.1, "failed"),
        (79.9, 93.9, "published mark"),
        (57.7, 68.0, "failed"),
        (57.9, 68.0, "published mark"),
        (1.0, 67.9, "published mark"),
        (1.0, None, "published mark"),
        (80.0, None, "passed"),
    ],
)
def test_a_mark_fails_only_where_this_hardware_should_meet_it(
    rate: float, expected: float | None, verdict: str
) -> None:
    """Within 15 % of what is expected healthy hardware lies; what should not come within 15 % of the mark has none."""
    judged = judge_rate(ALL_REDUCE_7B, rate * 1e9, None if expected is None else expected * 1e9)

    assert judged.verdict == verdict


def test_hardware_that_is_known_to_stay_below_has_no_verdict() -> None:
    """Whatever a model expects: A100 gives 235 GB/s at most, and its name is matched by whole words."""
    assert judge_rate(NVLINK, 100e9, 400e9, A100).verdict == "published mark"
    assert "230 to 235 GB/s" in judge_rate(NVLINK, 224e9, 225e9, A100).detail
    assert judge_rate(NVLINK, 100e9, 400e9, H100).verdict == "failed"
    assert judge_rate(NVLINK, 100e9, 400e9, "NVIDIA A1000").verdict == "failed"
