"""The profile branch: reference marks one by one, and what a step of a model takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.marks.profiles import PROFILES, Asked
from commwatch.diagnosis.profile import checks_of
from diagnosis.exposed import branch_of, known_of
from support.machines import NodeNumbers, address, gpus, host_copies, merged, nvlinks, pairs, probe

A100, H100, A10G = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA A10G"


def checks(asked: Asked, *parts: NodeNumbers) -> list[Check]:
    """The marks of a node, as those have them who ask for a profile."""
    return [*checks_of(known_of(merged(*parts)).facts, asked)]


def test_marks_that_nobody_asked_for_are_no_fault() -> None:
    """A mark of hardware is no finding; who asks for a profile needs it."""
    numbers = merged(gpus(8, "NVIDIA H100 80GB HBM3"), nvlinks(8, "4.0"), probe("all_reduce", 1e9, 476e9, ranks=8))
    shown, needed = (
        {check.verdict for check in branch_of(replace(known_of(numbers), asked=asked), "profile")}
        for asked in (Asked(), Asked(PROFILES["7b"]))
    )

    assert "failed" not in shown
    assert "failed" in needed


def found(asked: Asked, *parts: NodeNumbers) -> dict[str, Check]:
    """The checks by how they begin."""
    return {check.what.split(",")[0]: check for check in checks(asked, *parts)}


def one(start: str, *parts: NodeNumbers, asked: Asked = Asked()) -> Check:  # noqa: B008 - it is frozen
    """The check that begins so."""
    return next(check for what, check in found(asked, *parts).items() if what.startswith(start))


@pytest.mark.parametrize(
    ("profile", "rate", "verdict"),
    [("7b", 80.0, "passed"), ("7b", 79.9, "failed"), ("235b", 120.0, "passed"), ("235b", 119.9, "failed")],
)
def test_the_all_reduce_of_a_model(profile: str, rate: float, verdict: str) -> None:
    """On eight H100, which should give far more."""
    node = (gpus(8, H100), nvlinks(8, "4.0"), probe("all_reduce", rate * 1e9, 315e9, ranks=8))
    check = one(f"{profile}: all_reduce", *node)

    assert check.verdict == verdict
    assert check.what == f"{profile}: all_reduce bus bandwidth, 64 MiB, 8 GPUs"
    assert (check.source, bool(check.next_step)) == (check.source, verdict == "failed")


def test_a_result_without_a_rate_fails_the_mark() -> None:
    """Nothing that arrived in time is 0, and not the rate of some byte."""
    check = one("7b: all_reduce", gpus(8, H100), nvlinks(8, "4.0"), probe("all_reduce", 0.0, 315e9, ranks=8))

    assert (check.verdict, check.measured) == ("failed", "0 kB/s")


def test_pcie_has_no_verdict_by_a_mark_that_it_cannot_meet() -> None:
    """12 GB/s is what such a node gives; it is shown all the same."""
    check = one("7b: all_reduce", gpus(4, A10G), probe("all_reduce", 11e9, 12e9, ranks=4))

    assert (check.verdict, check.measured, check.required) == ("published mark", "11 GB/s", "at least 80 GB/s")


def test_the_largest_messages_count() -> None:
    """A mark is about large ones; of equal ones the slowest."""
    small, large, slow = (
        probe("small", 50e9, 315e9, ranks=8, size=2**20),
        probe("large", 300e9, 315e9, ranks=8),
        probe("slow", 290e9, 315e9, ranks=8),
    )

    assert one("7b: all_reduce", gpus(8, H100), small, large, slow).measured == "290 GB/s"


def test_an_all_reduce_over_some_of_the_gpus_says_nothing_of_all() -> None:
    """The others were not looked at."""
    check = one("7b: all_reduce", gpus(8, H100), probe("all_reduce", 300e9, 315e9, ranks=4))

    assert check.verdict == "not measured"
    assert check.detail == "no all_reduce is measured over all 8 GPUs"


@pytest.mark.parametrize(
    ("latency", "verdict"), [(15e-3, "passed"), (15.1e-3, "failed"), (None, "not measured")]
)  # fmt: skip
def test_the_latency_of_a_collective(latency: float | None, verdict: str) -> None:
    """At most 15 ms over all GPUs of the node."""
    numbers = probe("all_reduce", 300e9, 315e9, ranks=8)
    if latency is not None:
        key = ("all_reduce", "nccl")
        numbers = merged(numbers, {"commwatch_probe_last_latency_seconds": {key: latency}})

    assert one("latency of all_reduce", gpus(8, H100), numbers).verdict == verdict


@pytest.mark.parametrize(
    ("model", "version", "rate", "expected", "verdict"),
    [
        (H100, "4.0", 300.0, 476.0, "passed"),
        (H100, "4.0", 299.9, 476.0, "failed"),
        (H100, "4.0", 280.0, 315.0, "published mark"),
        (A100, "3.0", 224.0, 225.0, "published mark"),
        ("NVIDIA B200", "5.0", 100.0, 537.0, "does not apply"),
        (A10G, "", 11.0, 12.0, "does not apply"),
        (H100, "4.0", None, None, "not measured"),
    ],
)
def test_nvlink(model: str, version: str, rate: float | None, expected: float | None, verdict: str) -> None:
    """It is about A100 and H100; A100 cannot meet it, and H100 need not with messages of 64 MiB."""
    links = nvlinks(8, version) if version else {}
    numbers = [None if one is None else one * 1e9 for one in (rate, expected)]
    age = None if rate is None else 60.0
    check = one("all_reduce over NVLink", gpus(8, model), links, probe("all_reduce", *numbers, ranks=8, age=age))

    assert check.verdict == verdict


@pytest.mark.parametrize(
    ("there", "back", "verdict"),
    [(24.0, 24.0, "passed"), (23.4, 23.4, "published mark"), (20.4, 20.4, "published mark"), (20.3, 20.4, "failed")],
)
def test_copies_over_pcie_both_ways(there: float, back: float, verdict: str) -> None:
    """48 GB/s is what NCCL plans with; from 85 % of it on hardware is healthy."""
    copied = host_copies({0: (24e9, 24e9), 1: (there * 1e9, back * 1e9)})
    check = one("PCIe gen 4 x16", gpus(2, A10G), copied)

    assert check.verdict == verdict
    assert check.where == ("GPU1" if verdict != "passed" else check.where)
    assert "each way was measured alone" in check.detail


def test_a_link_that_is_narrowed_now_stays_in_its_class() -> None:
    """The class is what both ends can do, so that the mark does not go away with the fault."""
    narrowed = {"commwatch_pcie_device_link_width_lanes": {(address(0),): 8.0}}
    check = one("PCIe gen 4 x16", gpus(1, A10G), narrowed, host_copies({0: (12e9, 12e9)}))

    assert (check.verdict, check.measured) == ("failed", "24 GB/s")


def test_pcie_of_another_class_does_not_apply() -> None:
    """A slot of x8, or generation 5; where the link is not known nothing is said."""
    node = gpus(1, A10G)
    slot: NodeNumbers = {
        **node,
        "commwatch_pcie_device_link_width_max_lanes": {("0000:00:01.0",): 8, (address(0),): 16},
    }
    unknown = {metric: series for metric, series in node.items() if "link" not in metric}
    copied = host_copies({0: (12e9, 12e9)})

    assert one("PCIe gen 4 x16", slot, copied).verdict == "does not apply"
    assert "gen 4 x8" in one("PCIe gen 4 x16", slot, copied).detail
    assert one("PCIe gen 4 x16", unknown, copied).verdict == "not measured"
    assert one("PCIe gen 4 x16", node).verdict == "not measured"


def under_one_switch(status: float) -> NodeNumbers:
    """Two GPUs below a PCIe switch; ``status``: whether they may read each other's memory, as NVML says it."""
    info: dict[Any, float] = {
        ("0000:01:01.0", "root_port", "pci0000:00", "0", "", ""): 1,
        ("0000:02:00.0", "switch_port", "0000:01:01.0", "0", "", ""): 1,
    }
    devices = ["0000:01:01.0", "0000:02:00.0"]
    for gpu in (0, 1):
        port = f"0000:03:0{gpu}.0"
        info |= {(address(gpu), "gpu", port, "0", "", ""): 1, (port, "switch_port", "0000:02:00.0", "0", "", ""): 1}
        devices += [address(gpu), port]
    reads = {
        (str(one), address(one), str(1 - one), address(1 - one), "read"): status for one in (0, 1)
    }  # fmt: skip
    return {
        "commwatch_gpu_info": gpus(2, A10G)["commwatch_gpu_info"],
        "commwatch_pcie_device_info": info,
        "commwatch_pcie_device_link_generation_max": {(device,): 4 for device in devices},
        "commwatch_pcie_device_link_width_max_lanes": {(device,): 16 for device in devices},
        "commwatch_gpu_p2p_status": reads,
    }


@pytest.mark.parametrize(("rate", "verdict"), [(24.0, "passed"), (20.0, "published mark"), (19.9, "failed")])
def test_two_gpus_under_one_switch_both_ways(rate: float, verdict: str) -> None:
    """At once, each direction; 23.5 GB/s are expected of messages of 16 MiB."""
    rates = pairs({(0, 1): 23e9, (1, 0): 23e9}, 23.5e9, both_ways=rate * 1e9)
    [check] = [
        check for check in checks(Asked(), under_one_switch(0), rates) if "two GPUs under one switch" in check.what
    ]

    assert (check.verdict, check.where) == (verdict, "GPU0-GPU1")


def test_gpus_that_may_not_read_each_other_go_by_the_host() -> None:
    """The mark is not about that path."""
    rates = pairs({(0, 1): 12e9, (1, 0): 12e9}, 12e9, both_ways=11e9)

    for status in (1.0, 5.0):
        shown = checks(Asked(), under_one_switch(status), rates)
        assert not any("under one switch" in check.what for check in shown)


@pytest.mark.parametrize(
    ("layer", "speed", "lanes", "verdict"),
    [
        ("InfiniBand", 25e9, 4, "not measured"),
        ("InfiniBand", 50e9, 4, "does not apply"),
        ("InfiniBand", 25e9, 2, "does not apply"),
        ("Ethernet", 25e9, 4, "does not apply"),
    ],
)
def test_rdma_latency_is_never_measured(layer: str, speed: float, lanes: float, verdict: str) -> None:
    """It is said where there is an HDR port, and does not apply elsewhere."""
    port = ("mlx5_0", "1")
    numbers: NodeNumbers = {
        "commwatch_rdma_port_info": {(*port, layer, "", "", "", "", "", ""): 1},
        "commwatch_rdma_port_speed_bytes_per_second": {port: speed},
        "commwatch_rdma_port_width_lanes": {port: lanes},
    }

    assert one("RDMA latency", gpus(1, A10G), numbers).verdict == verdict


@pytest.mark.parametrize(
    ("share", "source", "verdict"),
    [(0.85, "reference", "passed"), (0.849, "reference", "failed"), (0.849, "model", "notice")],
)
def test_utilization(share: float, source: str, verdict: str) -> None:
    """85 % and more is healthy; a model alone never fails."""
    node = (gpus(8, H100), probe("all_reduce", share * 315e9, 315e9, ranks=8, source=source))
    check = one("share of the expected bandwidth", *node)

    assert (check.verdict, check.where) == (verdict, "all_reduce")


def test_a_firm_expectation_fails_beside_a_lower_share_of_a_model() -> None:
    """The model's word does not hide it."""
    firm = probe("all_reduce", 80e9, 100e9, ranks=8, source="reference")
    check = one("share of the expected", gpus(8, H100), merged(firm, probe("other", 50e9, 100e9, ranks=8)))

    assert (check.verdict, check.where, check.measured) == ("failed", "all_reduce", "80 %")


ROOMY = gpus(8, A10G, memory=200e9)
"""Each holds a 7B model that is trained with DDP."""
SLOW = (ROOMY, probe("all_reduce", 0.82e9, 12e9, ranks=8))


def test_a_step_that_waits_is_a_fault_only_of_the_profile_that_is_asked_for() -> None:
    """Nobody said that the node is for it."""
    shown = one("7b: share of a step", *SLOW)
    asked = one("7b: share of a step", *SLOW, asked=Asked(PROFILES["7b"], 0.1))

    assert shown.verdict == "notice"
    assert (asked.verdict, asked.measured, asked.required) == ("failed", "100 % of 29.9 s to 30 s", "at most 50 %")
    assert asked.detail.startswith("a step of 29.9 s to 30 s over 8 GPUs, 100 ms on one alone")
    assert "7 % of the 12 GB/s expected here: slower than this hardware should be" in asked.detail


def test_unfit_by_design_is_told_from_a_fault() -> None:
    """The GPUs reach each other as fast as they can, and the job is too quick for that."""
    node = (ROOMY, probe("all_reduce", 11.5e9, 12e9, ranks=8))
    check = one("7b: share of a step", *node, asked=Asked(PROFILES["7b"], 0.1))

    assert check.verdict == "failed"
    assert check.detail.endswith("unfit by design, not by a fault")


def test_a_range_on_both_sides_of_the_limit_is_a_notice() -> None:
    """With 1 s of computing and 1.5 s of sending the GPUs wait for a third of the step to three fifths."""
    node = (ROOMY, probe("all_reduce", 24.5e9 / 1.5, 16e9, ranks=8))
    check = one("7b: share of a step", *node, asked=Asked(PROFILES["7b"], 1.0))

    assert (check.verdict, check.measured) == ("notice", "33 to 60 % of 1.5 s to 2.5 s")


def test_what_cannot_be_reckoned_is_not_measured() -> None:
    """A GPU of which nothing is known, no result, no other GPU, or GPUs that cannot hold the model."""
    unheard = (gpus(2, "NVIDIA Unheard"), probe("all_reduce", 11e9, 12e9, ranks=2))

    assert "--step-time says it" in one("7b: share of a step", *unheard).detail
    assert one("7b: share of a step", *unheard, asked=Asked(None, 0.5)).measured
    assert one("7b: share of a step", gpus(2, A10G, memory=200e9)).verdict == "not measured"
    small = one("7b: share of a step", gpus(2, A10G))
    assert (small.verdict, small.detail) == ("does not apply", "these GPUs cannot hold the model for training")
    assert one("7b: share of a step", gpus(1, A10G)).verdict == "does not apply"
    assert one("7b: all_reduce", gpus(1, A10G)).verdict == "does not apply"


def test_the_step_takes_the_rate_of_messages_like_its_own() -> None:
    """25 MiB at once: neither what 1 MiB reaches nor what 1 GiB does."""
    node = (
        ROOMY,
        probe("small", 1e9, 12e9, ranks=8, size=2**20),
        probe("all_reduce", 24.5e9, 25e9, ranks=8),
        probe("large", 49e9, 50e9, ranks=8, size=2**30),
    )
    check = one("7b: share of a step", *node, asked=Asked(PROFILES["7b"], 1.0))

    assert check.detail.startswith("a step of 1 s to 2 s over 8 GPUs")


def test_a_profile_that_is_asked_for_is_shown_alone() -> None:
    """Beside the marks about hardware."""
    assert {name.split(":")[0] for name in found(Asked(PROFILES["235b"]), gpus(2, H100)) if "b:" in name} == {"235b"}
    assert {name.split(":")[0] for name in found(Asked(), gpus(2, H100)) if "b:" in name} == {"7b", "235b"}
