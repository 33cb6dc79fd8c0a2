"""What GPUs of each generation answer through the real binding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import pynvml
import pytest

from simulation.asking import code_of, count, field, handle
from simulation.harness import Rehearsal

Drive: TypeAlias = Callable[..., Rehearsal]

SUCCESS, INVALID, REFUSED = (
    pynvml.NVML_SUCCESS,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
)
NVLINK_5_FIELDS = [*range(201, 205), *range(206, 216), *range(219, 223), *range(235, 251), *range(289, 296)]


def ratio(packed: int) -> float:
    """A ratio as NVML packs it: m × 10⁻ᵉ, mantissa in bits 8 to 11, exponent in bits 0 to 7."""
    return float(f"{packed >> 8 & 15}e-{packed & 255}") if packed & 255 < 238 else 0.0


@pytest.mark.parametrize("preset", ["h100x8", "h200x1", "a100x4"])
def test_earlier_generations_have_data_link_counters_and_none_of_nvlink_5(driver: Drive, preset: str) -> None:
    """161 to 163 answer by link, and so does the function of its own; 201 and up do not."""
    driver(preset)

    for identifier in (161, 162, 163):
        assert field(0, identifier, 3) == (SUCCESS, 0)
    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(handle(), 3, 1) == 0
    for identifier in NVLINK_5_FIELDS:
        assert field(0, identifier, 3)[0] == REFUSED


def test_blackwell_has_nvlink_5_counters_and_no_others(driver: Drive) -> None:
    """The reverse, for each link; one that is not there is an invalid argument."""
    driver("b200x8")

    for identifier in NVLINK_5_FIELDS:
        assert field(0, identifier, 17)[0] == SUCCESS
        assert field(0, identifier, 18)[0] == INVALID
    for identifier in (161, 162, 163):
        assert field(0, identifier, 3)[0] == REFUSED
    assert code_of(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle(), 3, 1) == REFUSED
    assert count(0, 164, 3) == 53125
    assert pynvml.nvmlDeviceGetArchitecture(handle()) == pynvml.NVML_DEVICE_ARCH_BLACKWELL


def test_an_older_driver_does_not_know_the_newest_fields(
    driver: Drive, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """289 to 295 came with R595, as did the bytes of GPM; the others stay."""
    file = tmp_path_factory.mktemp("node") / "older.yaml"
    file.write_text('{like: b200x8, driver_version: "580.95.05"}')
    driver(str(file))

    assert {field(0, identifier)[0] for identifier in range(289, 296)} == {REFUSED}
    assert field(0, 221)[0] == SUCCESS


def test_counters_of_nvlink_5_fit_each_other(driver: Drive) -> None:
    """KiB, bytes and packets tell of the same traffic; all recoveries are the good and the failed ones."""
    rehearsal = driver(
        "b200x8",
        "- {fault: nvlink_recovery, gpu: 0, link: 2, rate: 1/s, at: 10s, for: 4.5s}\n"
        "- {fault: nvlink_recovery_failed, gpu: 0, link: 2, at: 20s, for: 5s}",
    )

    sent = count(0, 202, 1)
    assert count(0, 138, 1) == sent // 1024
    assert 64 < sent / count(0, 201, 1) < 512
    assert [count(0, identifier, 2) for identifier in (213, 214, 215)] == [5, 1, 6]
    rehearsal.now = 24.0
    assert field(0, 202, 2)[0] == INVALID
    assert count(0, 165, 2) == 0


def test_healthy_links_of_nvlink_5_have_raw_errors_and_nothing_left(driver: Drive) -> None:
    """Raw ratios are far above the effective ones, which are packed as zero; the histogram falls from bin to bin."""
    driver("b200x8")

    assert 1e-9 < ratio(count(0, 293, 4)) < 1e-7
    assert ratio(count(0, 220, 4)) == ratio(count(0, 222, 4)) == 0.0
    assert count(0, 220, 4) == 15 << 8 | 255
    bins = [count(0, 235 + place, 4) for place in range(16)]
    assert all(low >= high for low, high in itertools.pairwise(bins))
    assert bins[0] > 1000 * bins[1] > 0
    assert not any(bins[4:])
    raw = count(0, 289, 4) + count(0, 290, 4)
    assert raw == pytest.approx(bins[1] + 2 * bins[2], rel=1.0)
    assert (count(0, 219, 4), count(0, 221, 4), count(0, 295, 4)) == (0, 0, 0)


def test_links_between_gpus_lead_there_and_back(driver: Drive) -> None:
    """On the board of four A100 each of 12 links ends at a link that ends at it; four reach each other GPU."""
    rehearsal = driver("a100x4")
    places = {gpu.pci_address: place for place, gpu in enumerate(rehearsal.node.preset.gpus)}

    ends = {}
    for gpu, link in itertools.product(range(4), range(12)):
        assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle(gpu), link) == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
        remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle(gpu), link).busId[4:].lower()
        ends[gpu, link] = places[remote], count(gpu, 146, link)

    assert all(ends[end] == start for start, end in ends.items())
    for gpu in range(4):
        assert sorted(ends[gpu, link][0] for link in range(12)) == sorted(
            4 * [other for other in range(4) if other != gpu]
        )
    assert count(0, 147) == 0


def test_a_link_between_gpus_is_down_at_both_ends(driver: Drive) -> None:
    """And at no other; the same holds where the GPU at the other end is lost."""
    rehearsal = driver("a100x4", "- {fault: nvlink_down, gpu: 0, link: 5, at: 0s, for: 1h}", now=10.0)
    down = {
        (gpu, link)
        for gpu, link in itertools.product(range(4), range(12))
        if pynvml.nvmlDeviceGetNvLinkState(handle(gpu), link) == 0
    }

    assert down == {(0, 5), (2, 1)}
    assert field(2, 138, 1)[0] == INVALID
    rehearsal.write("- {fault: gpu_lost, gpu: 3}")
    states = [pynvml.nvmlDeviceGetNvLinkState(handle(0), link) for link in range(12)]
    assert states == [1] * 8 + [0] * 4


def test_no_two_links_lead_to_the_same_port_of_a_switch(driver: Drive) -> None:
    """8 GPUs with 18 links each."""
    driver("h100x8")

    ports = set()
    for gpu, link in itertools.product(range(8), range(18)):
        switch = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle(gpu), link).busId
        ports.add((switch, count(gpu, 146, link)))
    assert len(ports) == 8 * 18


def test_a_guest_does_not_see_the_switches(driver: Drive) -> None:
    """The links of an H200 are active and lead to switches without an address."""
    driver("h200x1")

    assert pynvml.nvmlDeviceGetNvLinkState(handle(), 17) == 1
    assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle(), 17) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    assert pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle(), 17).busId == ""


def test_links_without_work_save_power(driver: Drive) -> None:
    """From Hopper on: low while idle, high under a job; not told before."""
    driver("h100x8", "- {fault: job, gpu: 1, at: 0s}")
    assert (count(0, 167, 0), count(1, 167, 0)) == (1, 0)

    driver("a100x4")
    assert field(0, 167, 0)[0] == REFUSED


@pytest.mark.parametrize("preset", ["h100x8", "b200x8", "a100x4", "a10x2", "rtx3090x4"])
def test_pcie_counters_stand_at_zero_on_a_healthy_gpu(driver: Drive, preset: str) -> None:
    """Replays, rollovers, recoveries and all error counters answer, with or without NVLink; there is no C2C."""
    driver(preset)

    for identifier in (94, 95, 169, *range(173, 184), 230):
        assert field(0, identifier) == (SUCCESS, 0)
    for identifier in (170, 171, 172, 231, 232, 233, 234):
        assert field(0, identifier)[0] == REFUSED
