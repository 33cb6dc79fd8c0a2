"""The bandwidth branch: each result against what it should be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from commwatch.diagnosis.check import Check
from commwatch.probes.plan import Skipped
from diagnosis.exposed import answer_of, branch_of, known_of
from support.facts import NOW
from support.machines import NodeNumbers, gpus, host_copies, merged, nvlinks, pairs, probe
from support.passes import in_one_pass

H100 = "NVIDIA H100 80GB HBM3"


def test_what_has_no_result_is_not_measured() -> None:
    """Its values are gone from the page: the check says how old the result is, or that there never was one; a quick
    look says how to get it, and a full scan is not sent to another one."""
    node = gpus(8, H100)
    never = known_of(merged(node, probe("all_reduce", None, None, ranks=8, age=None)))
    skipped = answer_of(Skipped(finished_at=NOW, reason="gpu_busy", detail=""), "skipped")
    quick, full = (next(iter(branch_of(replace(never, scanned=scanned), "bandwidth"))) for scanned in ((), (skipped,)))
    old = only(checks(node, probe("all_reduce", None, None, ranks=8, age=7200.0)))

    assert {one.verdict for one in (quick, full, old)} == {"not measured"}
    assert quick.detail == "there is no result yet; commwatch diagnose --full-scan measures it now"
    assert full.detail == "there is no result yet"
    assert "2 h old and no longer counts" in old.detail


def checks(*parts: NodeNumbers) -> list[Check]:
    """What the branch makes of a node; that nothing measures its pairs is left out."""
    return [check for check in all_checks(*parts) if check.detail != "no probe measures it"]


def all_checks(*parts: NodeNumbers) -> list[Check]:
    """What the branch makes of a node."""
    return branch_of(known_of(merged(*parts)), "bandwidth")


def only(found: Iterable[Check]) -> Check:
    """The one check."""
    [check] = found
    return check


@in_one_pass(
    "rate, low_in_a_row, verdict",
    [(85.0, 0, "passed"), (84.9, 0, "notice"), (59.9, 2, "notice"), (59.9, 3, "failed"), (120.0, 0, "passed")],
)
def test_a_collective_is_held_against_what_is_expected(rate: float, low_in_a_row: float, verdict: str) -> None:
    """85 % is what healthy systems give; below 60 % three times in a row is a fault."""
    streak = {"commwatch_probe_low_bandwidth_streak": {("all_reduce", "nccl"): low_in_a_row}}
    numbers = probe("all_reduce", rate * 1e9, 100e9, ranks=8, source="reference")

    check = only(checks(gpus(8, H100), numbers, streak))

    assert check.verdict == verdict
    assert check.what == "all_reduce bus bandwidth, 64 MiB, 8 GPUs"
    assert check.required == "at least 60 GB/s (60 % of 100 GB/s)"
    assert check.measured
    assert bool(check.next_step) == (verdict == "failed")
    assert "probe_bandwidth_utilization_low_ratio" in check.source


def test_pairs_that_nothing_measures_are_said_to_be_missing() -> None:
    """On a node with two GPUs and more."""
    [check] = all_checks(gpus(2, H100))

    assert (check.what, check.verdict, check.detail) == ("GPU to GPU", "not measured", "no probe measures it")
    assert all_checks(gpus(1, H100)) == []


def test_one_gpu_talks_to_nobody() -> None:
    """Neither collectives nor pairs apply; copies do."""
    found = checks(
        gpus(1, H100),
        probe("all_reduce", None, None, ranks=1, age=None, source="none"),
        probe("pairs", None, None, ranks=1, measure="pairs", age=None, source="none"),
        host_copies({0: (24e9, 24e9)}),
    )

    assert [check.verdict for check in found] == ["does not apply", "does not apply", "passed", "passed"]


def test_what_cannot_be_judged_has_no_verdict() -> None:
    """A result of which nothing is expected is only told; gloo tests the host, and says nothing of GPUs."""
    check = only(checks(gpus(8, H100), probe("all_reduce", 100e9, None, ranks=8)))

    assert (check.verdict, check.measured, check.required) == ("notice", "100 GB/s", "")
    assert checks(gpus(2, H100), probe("all_reduce", 1e9, 100e9, ranks=2, backend="gloo")) == []


def test_a_pair_of_which_nothing_is_expected_does_not_hide_a_low_one() -> None:
    """Those that can be judged are."""
    numbers = pairs({(0, 1): 12e9, (1, 0): 5e9}, 12e9)
    del numbers["commwatch_pair_expected_bandwidth_bytes_per_second"]["0", "1", "nccl"]
    low = only(checks(gpus(2, H100), numbers))

    assert (low.verdict, low.where, low.measured) == ("failed", "GPU1 to GPU0", "5 GB/s to 12 GB/s, 2 pairs")


def test_pairs_are_told_by_what_lies_between_them() -> None:
    """The slowest of a class stands for it, and is named where it is low."""
    rates = {(0, 1): 290e9, (1, 0): 170e9}
    low = only(checks(gpus(2, H100), nvlinks(2, "4.0"), pairs(rates, 300e9)))
    fine = only(checks(gpus(2, H100), pairs({(0, 1): 12e9, (1, 0): 11e9}, 12e9)))

    assert low.what == "GPU to GPU over NVLink, one way, 16 MiB"
    assert (low.verdict, low.where, low.measured) == ("failed", "GPU1 to GPU0", "170 GB/s to 290 GB/s, 2 pairs")
    assert "1 of 2 pairs are low, GPU1 to GPU0 at 170 GB/s" in low.detail
    assert fine.what == "GPU to GPU over PCIe across the CPU, one way, 16 MiB"
    assert (fine.verdict, fine.where) == ("passed", "")


@pytest.mark.parametrize(
    ("kind", "element", "low"), [("pcie_link", "0000:12:00.0", "PCIe"), ("link_group", "GPU0", "NVLink")]
)
def test_a_suspect_fails_the_pairs_on_whose_way_it_lies(kind: str, element: str, low: str) -> None:
    """Pairs over NVLink and over PCIe are both below what healthy systems give; the part explains some of them."""
    numbers = pairs({(0, 1): 240e9, (2, 3): 9.6e9}, 300e9)
    numbers["commwatch_pair_expected_bandwidth_bytes_per_second"]["2", "3", "nccl"] = 12e9
    confidence: NodeNumbers = {"commwatch_suspect_ratio": {(kind, element): 0.99}}

    found = checks(gpus(4, H100), nvlinks(2, "4.0"), numbers, confidence)

    assert {check.verdict for check in found if low in check.what} == {"failed"}
    assert {check.verdict for check in found if low not in check.what} == {"notice"}


def test_copies_are_told_by_direction() -> None:
    """The GPU that is furthest below is named; one result is no fault."""
    there, back = checks(gpus(2, H100), host_copies({0: (24e9, 23e9), 1: (24e9, 14e9)}, source="configured"))

    assert (there.verdict, there.measured) == ("passed", "24 GB/s, 2 GPUs")
    assert (back.verdict, back.where) == ("notice", "GPU1")
    assert (there.what, back.what) == ("copy host to device, 64 MiB", "copy device to host, 64 MiB")
