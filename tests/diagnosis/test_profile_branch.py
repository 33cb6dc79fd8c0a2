"""The profile branch: reference marks one by one, and what a step of a model takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.marks.profiles import PROFILES, Asked
from commwatch.diagnosis.profile import checks_of
from diagnosis.exposed import branch_of, known_of, shows
from support.machines import NodeNumbers, address, gpus, host_copies, merged, nvlinks, pairs, probe
from support.passes import in_one_pass

A100, H100, A10G = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA A10G"
ANY = Asked()
"""No profile has to be met."""
OF_7B, OF_235B, STEP = "7b: all_reduce", "235b: all_reduce", "7b: share of a step"
NVLINK, PCIE, SWITCH = "all_reduce over NVLink", "PCIe gen 4 x16, GPU", "PCIe gen 4 x16, two GPUs under one switch"
LATENCY, RDMA, SHARE = "latency of all_reduce", "RDMA latency", "share of the expected bandwidth"


def checks(asked: Asked, *parts: NodeNumbers) -> list[Check]:
    """The marks of a node, as those have them who ask for a profile."""
    return [*checks_of(known_of(merged(*parts)).facts, asked)]


def ring(rate: float | None, expected: float | None = 315.0, ranks: int = 8, **changes: Any) -> NodeNumbers:
    """A probe of all_reduce; GB/s."""
    known: dict[str, Any] = {"name": "all_reduce", "age": None if rate is None else 60.0}
    gigabytes = [None if one is None else one * 1e9 for one in (rate, expected)]
    values = known | changes
    return probe(values.pop("name"), *gigabytes, ranks=ranks, **values)


def of_h100(*parts: NodeNumbers) -> tuple[NodeNumbers, ...]:
    return (gpus(8, H100), nvlinks(8, "4.0"), *parts)


def late(seconds: float) -> NodeNumbers:
    return {"commwatch_probe_last_latency_seconds": {("all_reduce", "nccl"): seconds}}


def copied(there: float, back: float) -> NodeNumbers:
    """GB/s of the second GPU; the first one is well."""
    return host_copies({0: (24e9, 24e9), 1: (there * 1e9, back * 1e9)})


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
    return {
        "commwatch_gpu_info": gpus(2, A10G)["commwatch_gpu_info"],
        "commwatch_pcie_device_info": info,
        "commwatch_pcie_device_link_generation_max": {(device,): 4 for device in devices},
        "commwatch_pcie_device_link_width_max_lanes": {(device,): 16 for device in devices},
        "commwatch_gpu_p2p_status": {
            (str(one), address(one), str(1 - one), address(1 - one), "read"): status for one in (0, 1)
        },
    }


def exchanged(rate: float) -> NodeNumbers:
    """23.5 GB/s are expected of messages of 16 MiB, each way at once."""
    return pairs({(0, 1): 23e9, (1, 0): 23e9}, 23.5e9, both_ways=rate * 1e9)


def rdma(layer: str, speed: float, lanes: float) -> NodeNumbers:
    port = ("mlx5_0", "1")
    return {
        "commwatch_rdma_port_info": {(*port, layer, "", "", "", "", "", ""): 1},
        "commwatch_rdma_port_speed_bytes_per_second": {port: speed},
        "commwatch_rdma_port_width_lanes": {port: lanes},
    }


ONE = gpus(1, A10G)
NARROWED = {"commwatch_pcie_device_link_width_lanes": {(address(0),): 8.0}}
SLOT: NodeNumbers = {**ONE, "commwatch_pcie_device_link_width_max_lanes": {("0000:00:01.0",): 8, (address(0),): 16}}
NO_LINK = {metric: series for metric, series in ONE.items() if "link" not in metric}
SLOW_COPIES = host_copies({0: (12e9, 12e9)})
ROOMY = gpus(8, A10G, memory=200e9)
"""Each holds a 7B model that is trained with DDP."""
UNHEARD = (gpus(2, "NVIDIA Unheard"), ring(11, 12, 2))
MUST, MUST_IN_A_SECOND = Asked(PROFILES["7b"], 0.1), Asked(PROFILES["7b"], 1.0)

CASES: list[tuple[str, tuple[NodeNumbers, ...], str, dict[str, str], Asked]] = [
    (OF_7B, of_h100(ring(80)), "passed", {"what": "7b: all_reduce bus bandwidth, 64 MiB, 8 GPUs"}, ANY),
    (OF_7B, of_h100(ring(79.9)), "failed", {}, ANY),
    (OF_235B, of_h100(ring(120)), "passed", {"what": "235b: all_reduce bus bandwidth, 64 MiB, 8 GPUs"}, ANY),
    (OF_235B, of_h100(ring(119.9)), "failed", {}, ANY),
    # Nothing that arrived in time is 0, and not the rate of some byte.
    (OF_7B, of_h100(ring(0)), "failed", {"measured": "0 kB/s"}, ANY),
    # PCIe cannot meet it; it is shown all the same.
    (OF_7B, (gpus(4, A10G), ring(11, 12, 4)), "published mark",
     {"measured": "11 GB/s", "required": "at least 80 GB/s"}, ANY),
    # A mark is about large messages; of equal ones the slowest counts.
    (OF_7B, (gpus(8, H100), ring(50, name="small", size=2**20), ring(300, name="large"), ring(290, name="slow")),
     "passed", {"measured": "290 GB/s"}, ANY),
    (OF_7B, (gpus(8, H100), ring(300, ranks=4)), "not measured",
     {"detail": "no all_reduce is measured over all 8 GPUs"}, ANY),
    (OF_7B, (ONE,), "does not apply", {}, ANY),
    (LATENCY, (gpus(8, H100), ring(300), late(15e-3)), "passed", {}, ANY),
    (LATENCY, (gpus(8, H100), ring(300), late(15.1e-3)), "failed", {}, ANY),
    (LATENCY, (gpus(8, H100), ring(300)), "not measured", {}, ANY),
    # It is about A100 and H100; A100 cannot meet it, and H100 need not with messages of 64 MiB.
    (NVLINK, of_h100(ring(300, 476)), "passed", {}, ANY),
    (NVLINK, of_h100(ring(299.9, 476)), "failed", {}, ANY),
    (NVLINK, of_h100(ring(280)), "published mark", {}, ANY),
    (NVLINK, (gpus(8, A100), nvlinks(8, "3.0"), ring(224, 225)), "published mark", {}, ANY),
    (NVLINK, (gpus(8, "NVIDIA B200"), nvlinks(8, "5.0"), ring(100, 537)), "does not apply", {}, ANY),
    (NVLINK, (gpus(8, A10G), ring(11, 12)), "does not apply", {}, ANY),
    (NVLINK, of_h100(ring(None, None)), "not measured", {}, ANY),
    # 48 GB/s is what NCCL plans with; from 85 % of it on hardware is healthy.
    (PCIE, (gpus(2, A10G), copied(24, 24)), "passed", {"says": "each way was measured alone"}, ANY),
    (PCIE, (gpus(2, A10G), copied(23.4, 23.4)), "published mark", {"where": "GPU1"}, ANY),
    (PCIE, (gpus(2, A10G), copied(20.4, 20.4)), "published mark", {"where": "GPU1"}, ANY),
    (PCIE, (gpus(2, A10G), copied(20.3, 20.4)), "failed", {"where": "GPU1"}, ANY),
    # The class is what both ends can do, so that the mark does not go away with the fault.
    (PCIE, (ONE, NARROWED, SLOW_COPIES), "failed", {"measured": "24 GB/s"}, ANY),
    (PCIE, (SLOT, SLOW_COPIES), "does not apply", {"says": "gen 4 x8"}, ANY),
    (PCIE, (NO_LINK, SLOW_COPIES), "not measured", {}, ANY),
    (PCIE, (ONE,), "not measured", {}, ANY),
    (SWITCH, (under_one_switch(0), exchanged(24)), "passed", {"where": "GPU0-GPU1"}, ANY),
    (SWITCH, (under_one_switch(0), exchanged(20)), "published mark", {"where": "GPU0-GPU1"}, ANY),
    (SWITCH, (under_one_switch(0), exchanged(19.9)), "failed", {"where": "GPU0-GPU1"}, ANY),
    # The check appears where there is an HDR port, and does not apply elsewhere.
    (RDMA, (ONE, rdma("InfiniBand", 25e9, 4)), "not measured", {}, ANY),
    (RDMA, (ONE, rdma("InfiniBand", 50e9, 4)), "does not apply", {}, ANY),
    (RDMA, (ONE, rdma("InfiniBand", 25e9, 2)), "does not apply", {}, ANY),
    (RDMA, (ONE, rdma("Ethernet", 25e9, 4)), "does not apply", {}, ANY),
    # 85 % and more is healthy; a model alone never fails, and does not hide what does.
    (SHARE, (gpus(8, H100), ring(85, 100, source="reference")), "passed", {"where": "all_reduce"}, ANY),
    (SHARE, (gpus(8, H100), ring(84.9, 100, source="reference")), "failed", {"where": "all_reduce"}, ANY),
    (SHARE, (gpus(8, H100), ring(84.9, 100, source="model")), "notice", {"where": "all_reduce"}, ANY),
    (SHARE, (gpus(8, H100), ring(80, 100, source="reference"), ring(50, 100, name="other")), "failed",
     {"where": "all_reduce", "measured": "80 %"}, ANY),
    # Nobody said that the node is for this profile.
    (STEP, (ROOMY, ring(0.82, 12)), "notice", {}, ANY),
    (STEP, (ROOMY, ring(0.82, 12)), "failed",
     {"measured": "100 % of 29.9 s to 30 s", "required": "at most 50 %",
      "says": "a step of 29.9 s to 30 s over 8 GPUs, 100 ms on one alone"}, MUST),
    (STEP, (ROOMY, ring(0.82, 12)), "failed",
     {"says": "7 % of the 12 GB/s expected here: slower than this hardware should be"}, MUST),
    (STEP, (ROOMY, ring(11.5, 12)), "failed", {"says": "unfit by design, not by a fault"}, MUST),
    # With 1 s of computing and 1.5 s of sending the GPUs wait for a third of the step to three fifths.
    (STEP, (ROOMY, ring(24.5 / 1.5, 16)), "notice", {"measured": "33 to 60 % of 1.5 s to 2.5 s"}, MUST_IN_A_SECOND),
    # 25 MiB at once: neither what 1 MiB reaches nor what 1 GiB does.
    (STEP, (ROOMY, ring(1, 12, name="small", size=2**20), ring(24.5, 25), ring(49, 50, name="large", size=2**30)),
     "passed", {"says": "a step of 1 s to 2 s over 8 GPUs"}, MUST_IN_A_SECOND),
    (STEP, UNHEARD, "not measured", {"says": "--step-time says it"}, ANY),
    (STEP, (gpus(2, A10G, memory=200e9),), "not measured", {}, ANY),
    (STEP, (gpus(2, A10G),), "does not apply", {"detail": "these GPUs cannot hold the model for training"}, ANY),
    (STEP, (ONE,), "does not apply", {}, ANY),
]  # fmt: skip
"""How a check begins, what is exposed, and the check's verdict and fields."""


@in_one_pass("start, parts, verdict, fields, asked", CASES)
def test_a_mark_at_its_edge(
    start: str, parts: tuple[NodeNumbers, ...], verdict: str, fields: dict[str, str], asked: Asked
) -> None:
    """Of hardware as it is published, and of a model's step; what fails says what to do."""
    [check] = [one for one in checks(asked, *parts) if one.what.startswith(start)]

    shows(check, verdict, **fields)
    assert bool(check.next_step) == (verdict == "failed")


def test_a_profile_that_is_asked_for_has_to_be_met_and_is_shown_alone() -> None:
    """A mark of hardware is no finding; who asks for a profile needs it, beside the marks about hardware."""
    known = known_of(merged(*of_h100(ring(1, 476))))
    shown, needed = (
        {check.verdict for check in branch_of(replace(known, asked=asked), "profile")}
        for asked in (ANY, Asked(PROFILES["7b"]))
    )
    profiles = [
        {check.what.split(":")[0] for check in checks(asked, gpus(2, H100)) if "b:" in check.what.split(",")[0]}
        for asked in (ANY, Asked(PROFILES["235b"]))
    ]

    assert ("failed" in shown, "failed" in needed) == (False, True)
    assert profiles == [{"7b", "235b"}, {"235b"}]


def test_gpus_that_may_not_read_each_other_go_by_the_host() -> None:
    """The mark is not about that path."""
    for status in (1.0, 5.0):
        assert not any("under one switch" in one.what for one in checks(ANY, under_one_switch(status), exchanged(11)))


def test_a_step_time_that_is_given_replaces_what_is_not_known_of_a_gpu() -> None:
    """Nothing is published of this one."""
    [check] = [one for one in checks(Asked(None, 0.5), *UNHEARD) if one.what.startswith(STEP)]

    assert check.measured
