"""What the NVML source reads from GPUs of any kind, and what it does when a driver or a GPU fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from nvml.harness import Opened, values_of
from nvml.library import (
    INVALID_ARGUMENT,
    UINT,
    FakeGpu,
    hopper,
    packed,
)  # fmt: skip

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")


def test_all_fields_of_a_gpu_are_read_in_one_call(driver: Driver) -> None:
    """One batched call per GPU and pass; of NVLink nothing else is asked."""
    opened = driver(hopper(), hopper()).open()
    opened.library.calls.clear()
    opened.collect("nvlink")
    assert opened.library.calls == [("nvmlDeviceGetFieldValues", 0), ("nvmlDeviceGetFieldValues", 1)]

    opened.collect("pcie")
    assert opened.library.calls.count(("nvmlDeviceGetFieldValues", 0)) == 2


def test_states_come_from_the_function_where_the_driver_has_no_field_for_them(driver: Driver) -> None:
    """Before R520 there is no field 165; an inactive link does not hide that."""
    gpu = hopper(2)
    gpu.link_states = [0, 0]
    del gpu.fields[165, 0], gpu.fields[165, 1]

    values = driver(gpu).open().read("nvlink")

    assert values[("nvlink_link_state", *A, "1")] == 0


@pytest.mark.parametrize(
    ("utilization", "processes", "busy"),
    [(0, 0, 0), (1, 0, 1), (0, 2, 1), (None, 0, 0), (None, 1, 1), (5, None, 1), (None, None, None)],
)
def test_a_gpu_is_busy_with_a_process_or_with_work(
    driver: Driver, utilization: int | None, processes: int | None, busy: int | None
) -> None:
    """What was not read is absent, and busy with it only when neither was read."""
    opened = driver(FakeGpu(utilization=utilization, processes=processes)).open()
    values = opened.read("gpu")

    assert values.get(("gpu_busy", *A)) == busy
    assert opened.read("processes").get(("gpu_compute_processes", *A)) == processes
    assert values.get(("gpu_utilization_ratio", *A)) == (None if utilization is None else utilization / 100)


def test_counter_states_say_what_any_gpu_supports(driver: Driver) -> None:
    """Supported where one GPU has it, unsupported where none has, for every counter of the tables."""
    values = driver(FakeGpu(), hopper()).open().read("identity")

    assert values["counters_state", "nvml", "nvlink_throughput_data_tx"] == 0
    assert values["counters_state", "nvml", "nvlink_error_counter_dl_ecc_data"] == 1
    assert values["counters_state", "nvml", "nvlink_count_symbol_ber"] == 1
    assert values["counters_state", "nvml", "curr_pcie_link_width"] == 0


def test_a_gpu_without_nvlink_has_no_link_series(driver: Driver) -> None:
    """The count of its links is 0, which was read; nothing else is asked for each second."""
    opened = driver(FakeGpu()).open()
    opened.library.calls.clear()

    assert opened.read("nvlink") == {}
    assert opened.read("nvlink_errors") == {}
    assert opened.library.calls == []
    assert opened.read("identity")[("nvlink_links", *A)] == 0


def test_an_inactive_link_has_a_state_and_no_bytes(driver: Driver) -> None:
    """The driver refuses its byte counters: they are absent, and that is no failure."""
    gpu = hopper(2)
    gpu.link_states[1] = 0
    gpu.fields |= {(165, 1): packed(UINT, 0), (138, 1): INVALID_ARGUMENT, (139, 1): INVALID_ARGUMENT}
    opened = driver(gpu).open()

    batch = opened.collect("nvlink")

    values = values_of(batch)
    assert values[("nvlink_link_state", *A, "1")] == 0
    assert values[("nvlink_transmit_bytes_total", *A, "1")] is None
    assert values[("nvlink_transmit_bytes_total", *A, "0")] == 1000 * 1024
    assert batch.absences == []


@pytest.mark.parametrize(("code", "links"), [(2, 0), (3, 0), (13, None), (25, None), (26, None), (999, None)])
def test_only_a_refusal_of_the_first_link_says_that_there_is_none(driver: Driver, code: int, links: int | None) -> None:
    """A function that is missing, deprecated, of another version or out of order does not say how many there are."""
    gpu = FakeGpu(link_states=[1, 1], codes={"nvmlDeviceGetNvLinkState": code})

    assert driver(gpu).open().read("identity").get(("nvlink_links", *A)) == links


def test_links_that_were_all_inactive_at_the_start_count_when_they_come_up(driver: Driver) -> None:
    """Support is not known then, so the counters are asked for, and the verdict follows with the first active link."""
    gpu = hopper(1)
    answers = dict(gpu.fields)
    gpu.link_states = [0]
    gpu.fields |= {(165, 0): packed(UINT, 0), (138, 0): INVALID_ARGUMENT, (139, 0): INVALID_ARGUMENT}
    opened = driver(gpu).open()
    counter = ("counters_state", "nvml", "nvlink_throughput_data_tx")
    assert opened.read("identity")[counter] is None
    gpu.link_states = [1]
    gpu.fields |= answers

    assert opened.read("nvlink")[("nvlink_transmit_bytes_total", *A, "0")] == 1000 * 1024
    assert opened.read("identity")[counter] == 0


def test_one_active_link_is_enough_to_say_that_a_counter_is_unsupported(driver: Driver) -> None:
    """The common speed of the links is refused although one of them runs."""
    gpu = hopper(2)
    gpu.link_states[0] = 0

    values = driver(gpu).open().read("identity")

    assert values[("counters_state", "nvml", "nvlink_speed_mbps_common")] == 1


def test_what_is_absent_is_tried_again_after_an_hour_and_not_before(driver: Driver) -> None:
    """A counter that appears later is found, at the price of one trial an hour."""
    gpu = FakeGpu()
    opened = driver(gpu).open()
    gpu.fields[94, 0] = packed(UINT, 3)
    opened.now += 3599
    opened.collect("identity")
    assert ("pcie_replays_total", *A) not in opened.read("pcie")
    opened.now += 1
    opened.collect("identity")

    assert opened.read("pcie")[("pcie_replays_total", *A)] == 3


@pytest.mark.parametrize(
    ("name", "collector", "lost"),
    [
        ("nvmlDeviceGetFieldValues", "nvlink", {"nvlink_transmit_bytes_total", "nvlink_receive_bytes_total"}),
        ("nvmlDeviceGetNvLinkErrorCounter", "nvlink_errors",
         {"nvlink_replay_errors_total", "nvlink_recovery_errors_total", "nvlink_crc_flit_errors_total"}),
        ("nvmlDeviceGetGpuMaxPcieLinkGeneration", "pcie", {"pcie_gpu_link_generation_max"}),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "gpu", {"gpu_compute_processes"}),
        ("nvmlDeviceGetUtilizationRates", "gpu", {"gpu_utilization_ratio"}),
        ("nvmlDeviceGetNvLinkState", "nvlink",
         {"nvlink_link_state", "nvlink_transmit_bytes_total", "nvlink_receive_bytes_total"}),
        ("nvmlDeviceGetNvLinkState", "identity",
         {"nvlink_links", "nvlink_info", "nvlink_link_speed_bytes_per_second"}),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", "identity", set()),
        ("nvmlDeviceGetArchitecture", "identity", set()),
        ("nvmlDeviceGetMigMode", "nvlink", set()),
        ("nvmlSystemGetCudaDriverVersion_v2", "identity", set()),
        ("nvmlSystemGetNVMLVersion", "identity", set()),
    ],
)  # fmt: skip
def test_a_function_that_an_old_driver_lacks_takes_only_its_series_with_it(
    driver: Driver, name: str, collector: str, lost: set[str]
) -> None:
    """A missing symbol is an absent series, no failure."""
    opened = driver(hopper())
    whole = {key[0] for key in opened.open().read(collector)}
    opened.source.close()
    opened.library.replace(name, None)

    batch = opened.open().collect(collector)

    assert {key[0] for key in values_of(batch)} == whole - lost
    assert batch.absences == []


def test_a_driver_without_field_values_still_gives_link_states(driver: Driver) -> None:
    """The function for the state is older than the fields."""
    opened = driver(hopper(1))
    opened.library.replace("nvmlDeviceGetFieldValues", None)

    assert opened.open().read("nvlink") == {("nvlink_link_state", *A, "0"): 1}


@pytest.mark.parametrize(("mig", "state"), [(1, None), (0, 0), (None, 0)])
def test_a_link_that_reads_as_down_with_mig_enabled_has_no_state(
    driver: Driver, mig: int | None, state: int | None
) -> None:
    """MIG can be switched on while the source is open; without MIG the same link is down."""
    gpu = hopper(2)
    opened = driver(gpu).open()
    gpu.mig = mig
    gpu.fields |= {(165, 0): packed(UINT, 0), (165, 1): packed(UINT, 0)}

    values = opened.read("nvlink")

    assert values[("nvlink_link_state", *A, "0")] == state
    assert values[("nvlink_link_state", *A, "1")] == state


def test_a_gpu_in_mig_mode_that_denies_having_links_does_not_have_none(driver: Driver) -> None:
    """The number of links is not known then: 0 would be made up."""
    opened = driver(FakeGpu(mig=1)).open()

    assert ("nvlink_links", *A) not in opened.read("identity")
