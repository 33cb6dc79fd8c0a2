"""What the NVML source reads from GPUs of any kind, and what it does when a driver or a GPU fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import pytest

from commwatch.sources.base import Absence, SourceUnavailable
from commwatch.sources.nvml import NvmlSource
from commwatch.sources.nvml.fields import COUNTERS
from commwatch.sources.nvml.fields.row import CallReport, FieldCounter
from commwatch_exporters.catalogue import CATALOGUE, OPT_IN
from nvml.context import Fabric, Gpm
from nvml.harness import Opened, values_of
from nvml.library import (
    INVALID_ARGUMENT,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UINT,
    ULONGLONG,
    UNKNOWN,
    FakeGpu,
    Library,
    blackwell,
    hopper,
    install,
    packed,
)  # fmt: skip

Driver: TypeAlias = "Callable[..., Opened]"
A, B = ("0", "0000:17:00.0"), ("1", "0000:18:00.0")
COLLECTORS = ("identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie")


# --- what is read ----------------------------------------------------------------------------------------------------
def test_a_hopper_gives_state_and_bytes_of_each_link(driver: Driver) -> None:
    """Fields 138 and 139 are KiB and become bytes."""
    values = driver(hopper(2)).open().read("nvlink")

    assert values == {
        ("nvlink_link_state", *A, "0"): 1, ("nvlink_link_state", *A, "1"): 1,
        ("nvlink_transmit_bytes_total", *A, "0"): 1000 * 1024, ("nvlink_transmit_bytes_total", *A, "1"): 1001 * 1024,
        ("nvlink_receive_bytes_total", *A, "0"): 2000 * 1024, ("nvlink_receive_bytes_total", *A, "1"): 2001 * 1024,
    }  # fmt: skip


def test_a_blackwell_gives_bytes_by_the_fields_of_nvlink_5(driver: Driver) -> None:
    """Fields 202 and 204 are bytes already, and go before 138 and 139 where both answer."""
    values = driver(blackwell(1)).open().read("nvlink")

    assert values == {
        ("nvlink_link_state", *A, "0"): 1, ("nvlink_transmit_bytes_total", *A, "0"): 5000,
        ("nvlink_receive_bytes_total", *A, "0"): 6000,
    }  # fmt: skip


def test_a_blackwell_without_byte_counts_falls_back_to_the_old_fields(driver: Driver) -> None:
    """What the driver does not know is replaced by what it knows."""
    gpu = blackwell(1)
    del gpu.fields[202, 0], gpu.fields[204, 0]

    values = driver(gpu).open().read("nvlink")

    assert values[("nvlink_transmit_bytes_total", *A, "0")] == 1024


def test_all_links_of_a_gpu_are_read_in_one_call(driver: Driver) -> None:
    """One batched call per GPU and pass."""
    opened = driver(hopper(), hopper()).open()
    opened.library.calls.clear()

    opened.collect("nvlink")

    assert opened.library.calls == [("nvmlDeviceGetFieldValues", 0), ("nvmlDeviceGetFieldValues", 1)]


def test_states_come_from_the_function_where_the_driver_has_no_field_for_them(driver: Driver) -> None:
    """Before R520 there is no field 165; an inactive link does not hide that."""
    gpu = hopper(2)
    gpu.link_states = [0, 0]
    del gpu.fields[165, 0], gpu.fields[165, 1]

    values = driver(gpu).open().read("nvlink")

    assert values[("nvlink_link_state", *A, "1")] == 0


def test_errors_before_nvlink_5_come_by_kind(driver: Driver) -> None:
    """Kinds that the GPU does not support have no series."""
    values = driver(hopper(1)).open().read("nvlink_errors")

    assert values == {
        ("nvlink_replay_errors_total", *A, "0"): 0, ("nvlink_recovery_errors_total", *A, "0"): 10,
        ("nvlink_crc_flit_errors_total", *A, "0"): 20,
    }  # fmt: skip


def test_errors_of_nvlink_5_come_by_field_and_ratios_are_decoded(driver: Driver) -> None:
    """Each row of the table gives its metric; the zero sentinel of a ratio is 0."""
    values = driver(blackwell(1)).open().read("nvlink_errors")

    assert {name: value for (name, *_), value in values.items()} == {
        "nvlink_malformed_packets_total": 206, "nvlink_buffer_overrun_errors_total": 207,
        "nvlink_receive_errors_total": 208, "nvlink_receive_remote_errors_total": 209,
        "nvlink_receive_general_errors_total": 210, "nvlink_local_link_integrity_errors_total": 211,
        "nvlink_transmit_discards_total": 212, "nvlink_recoveries_successful_total": 213,
        "nvlink_recoveries_failed_total": 214, "nvlink_recoveries_total": 215, "nvlink_effective_errors_total": 219,
        "nvlink_effective_bit_error_ratio": 3e-14, "nvlink_symbol_errors_total": 221,
        "nvlink_symbol_bit_error_ratio": 0,
    }  # fmt: skip


def test_pcie_link_and_counters(driver: Driver) -> None:
    """Generation and width now and at most, replays and rollovers."""
    values = driver(hopper()).open().read("pcie")

    assert {name: value for (name, *_), value in values.items()} == {
        "pcie_link_generation": 4, "pcie_link_generation_max": 5, "pcie_gpu_link_generation_max": 6,
        "pcie_link_width_lanes": 8, "pcie_link_width_max_lanes": 16, "pcie_replays_total": 7,
        "pcie_replay_rollovers_total": 0,
    }  # fmt: skip


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


def test_identity_of_gpu_links_and_software(driver: Driver) -> None:
    """Serial numbers that the board does not have are empty labels; speeds are bytes per second."""
    values = driver(hopper(2)).open().read("identity")

    assert values[("gpu_info", *A, "GPU-1", "", "NVIDIA Test", "Hopper")] == 1
    assert values[("nvlink_links", *A)] == 2
    assert values[("nvlink_info", *A, "1", "4.0", "switch", "0000:0a:00.0", "")] == 1
    assert values[("nvlink_link_speed_bytes_per_second", *A, "0")] == 26_562_000_000
    assert values["software_info", "580.82.07", "13.580.82.07", "13.0"] == 1


def test_the_common_speed_stands_in_for_the_speed_of_a_link(driver: Driver) -> None:
    """Field 90 gives one speed for all active links; an inactive link has none."""
    gpu = hopper(2)
    del gpu.fields[164, 0], gpu.fields[164, 1]
    gpu.fields[90, 0] = packed(UINT, 25781)
    gpu.link_states[1] = 0

    values = driver(gpu).open().read("identity")

    assert values[("nvlink_link_speed_bytes_per_second", *A, "0")] == 25_781_000_000
    assert values[("nvlink_link_speed_bytes_per_second", *A, "1")] is None


# --- what this driver and GPU support --------------------------------------------------------------------------------
def test_counter_states_say_what_any_gpu_supports(driver: Driver) -> None:
    """Supported where one GPU has it, unsupported where none has, for every counter of the tables."""
    values = driver(FakeGpu(), hopper()).open().read("identity")

    assert values["counter_state", "nvml", "nvlink_throughput_data_tx"] == 0
    assert values["counter_state", "nvml", "nvlink_error_counter_dl_ecc_data"] == 1
    assert values["counter_state", "nvml", "nvlink_count_symbol_ber"] == 1
    assert values["counter_state", "nvml", "curr_pcie_link_width"] == 0


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
    counter = ("counter_state", "nvml", "nvlink_throughput_data_tx")
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

    assert values[("counter_state", "nvml", "nvlink_speed_mbps_common")] == 1


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
    del opened.library.functions[name]
    opened.forget_functions()

    batch = opened.open().collect(collector)

    assert {key[0] for key in values_of(batch)} == whole - lost
    assert batch.absences == []


def test_a_driver_without_field_values_still_gives_link_states(driver: Driver) -> None:
    """The function for the state is older than the fields."""
    opened = driver(hopper(1))
    del opened.library.functions["nvmlDeviceGetFieldValues"]

    assert opened.open().read("nvlink") == {("nvlink_link_state", *A, "0"): 1}


# --- MIG -------------------------------------------------------------------------------------------------------------
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


# --- failing GPUs and drivers ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("code", "reason"), [(LOST, "lost"), (RESET_REQUIRED, "reset_required")])
@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_gpu_that_is_gone_is_never_called_again(driver: Driver, collector: str, code: int, reason: str) -> None:
    """The first such answer ends all calls on the handle; the other GPU is read as before."""
    first, second = hopper(), hopper()
    opened = driver(first, second).open()
    first.code = code
    batch = opened.collect(collector)
    assert [(one.device, one.reason) for one in batch.absences] == [("0000:17:00.0", reason)]
    opened.library.calls.clear()
    first.code = 0

    for again in COLLECTORS:
        batch = opened.collect(again)
        assert [(one.device, one.reason) for one in batch.absences] == [("0000:17:00.0", reason)]
        assert {one.device for one in batch.readings} <= {"0000:18:00.0", ""}

    assert {index for _, index in opened.library.calls} == {1}


def test_a_single_field_that_says_that_the_gpu_is_lost_is_enough(driver: Driver) -> None:
    """The code of an entry counts like that of a call."""
    gpu = hopper()
    opened = driver(gpu).open()
    gpu.fields[139, 2] = LOST

    batch = opened.collect("nvlink")

    detail = "nvmlDeviceGetFieldValues field 139 scope 2: GPU is lost (NVML code 15)"
    assert batch.absences == [Absence("0000:17:00.0", "lost", detail)]
    assert batch.readings == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (4, "no_permission"), (6, "not_found"), (10, "unreadable"), (21, "not_ready"),
        (27, "not_ready"), (28, "not_found"), (UNKNOWN, "unreadable"),
    ],
)  # fmt: skip
def test_a_gpu_whose_calls_fail_is_absent_with_one_reason(driver: Driver, code: int, reason: str) -> None:
    """All its values are absent, and however many calls failed, the reason is given once."""
    gpu, other = hopper(), hopper()
    opened = driver(gpu, other).open()
    gpu.code = code

    for collector in COLLECTORS:
        batch = opened.collect(collector)
        assert [(one.device, one.reason) for one in batch.absences] == [("0000:17:00.0", reason)]
        values = values_of(batch)
        assert {value for key, value in values.items() if key[1:3] == A} <= {None}
        assert any(value is not None for key, value in values.items() if key[1:3] == B)
    gpu.code = 0
    opened.collect("identity")
    assert opened.collect("nvlink").absences == []


def test_a_gpu_without_a_handle_leaves_the_others_alone(driver: Driver) -> None:
    """It has no PCI address yet, so it goes by its index."""
    dead, sound = FakeGpu(handle_code=UNKNOWN), hopper()
    opened = driver(dead, sound).open()

    batch = opened.collect("pcie")

    assert [(one.device, one.reason) for one in batch.absences] == [("index:0", "unreadable")]
    assert [one.device for one in batch.readings] == ["0000:18:00.0"]


def test_a_gpu_without_an_address_is_an_absence(driver: Driver) -> None:
    """Its series would have no identity."""
    gpu = hopper()
    opened = driver(gpu)
    gpu.pci_bus_id = b"\xff\xff"  # no text: an attribute of this kind makes the binding fail

    batch = opened.open().collect("pcie")

    assert batch.absences == [Absence("index:0", "unreadable", "nvmlDeviceGetPciInfo: no PCI address")]
    assert batch.readings == []


def test_a_gpu_that_was_not_ready_is_opened_when_it_is(driver: Driver) -> None:
    """It is tried again with the identity of the GPUs."""
    gpu = FakeGpu(handle_code=27)
    opened = driver(gpu).open()
    assert [one.reason for one in opened.collect("identity").absences] == ["not_ready"]
    gpu.handle_code = 0

    batch = opened.collect("identity")

    assert batch.absences == []
    assert "0000:17:00.0" in {one.device for one in batch.readings}


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues", "nvmlDeviceGetCurrPcieLinkWidth"]
)
def test_a_gpu_that_is_lost_while_it_is_opened_is_an_absence(driver: Driver, name: str) -> None:
    """Its handle was made, then a call said that it is lost: no other follows."""
    opened = driver(FakeGpu(link_states=[1], codes={name: LOST})).open()

    assert [(one.device, one.reason) for one in opened.collect("gpu").absences] == [("0000:17:00.0", "lost")]
    assert opened.library.calls[-1] == (name, 0)
    assert opened.library.calls.count((name, 0)) == 1


@pytest.mark.parametrize(
    ("code", "reason"), [(4, "no_permission"), (9, "no_driver"), (12, "no_driver"), (18, "library_mismatch")]
)
def test_a_driver_that_does_not_start_makes_the_source_unavailable(driver: Driver, code: int, reason: str) -> None:
    """With the bounded reason, and nothing left open."""
    opened = driver(hopper())
    opened.library.init_code = code

    with pytest.raises(SourceUnavailable) as caught:
        opened.open()

    assert caught.value.reason == reason
    assert opened.library.opened == 0


def test_no_library_makes_the_source_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without NVIDIA's driver says so."""

    def cannot_load(name: str) -> None:
        raise OSError(name)

    install(monkeypatch, None)
    monkeypatch.setattr("pynvml.CDLL", cannot_load)

    with pytest.raises(SourceUnavailable, match="no_driver"):
        NvmlSource().open(lambda device: None, frozenset(), None)


@pytest.mark.parametrize(("code", "reason"), [(9, "no_driver"), (18, "library_mismatch")])
@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_driver_that_goes_away_makes_the_source_unavailable(
    driver: Driver, collector: str, code: int, reason: str
) -> None:
    """No GPU can be read then, so there is no point in asking the next one; the report ends all the same."""
    opened = driver(hopper(), hopper()).open()
    opened.library.gpus[0].code = code

    with pytest.raises(SourceUnavailable) as caught:
        opened.collect(collector)

    assert caught.value.reason == reason
    assert opened.reports[-1] == ""


def test_a_driver_that_goes_away_while_opening_leaves_nothing_open(driver: Driver) -> None:
    """The library was started, so it is ended."""
    opened = driver(FakeGpu(handle_code=9))

    with pytest.raises(SourceUnavailable, match="no_driver"):
        opened.open()

    assert opened.library.opened == 0
    assert opened.reports == ["index:0", ""]


# --- which devices are touched ---------------------------------------------------------------------------------------
def test_each_gpu_is_reported_before_it_is_touched(driver: Driver) -> None:
    """By index until its address is known; the empty report ends each run."""
    opened = driver(hopper(), hopper()).open()
    assert opened.reports == ["index:0", "index:1", ""]
    for collector in COLLECTORS:
        opened.reports.clear()
        opened.collect(collector)
        # A call that is for the driver as a whole is blamed on no GPU.
        driver_wide = [""] if collector == "identity" else []
        assert opened.reports == ["0000:17:00.0", "0000:18:00.0", *driver_wide, ""]


@pytest.mark.parametrize(
    ("leave_out", "only", "touched"),
    [
        ({"index:0", "0000:17:00.0"}, None, {1}),
        ({"index:0"}, None, {1}),
        (set(), {"index:1", "0000:18:00.0"}, {1}),
        ({"index:1"}, {"index:1"}, set()),
        (set(), set(), set()),
    ],
)
def test_a_gpu_that_is_left_out_is_not_touched(
    driver: Driver, leave_out: set[str], only: set[str] | None, touched: set[int]
) -> None:
    """Not even its handle is made."""
    opened = driver(hopper(), hopper())
    opened.open(frozenset(leave_out), None if only is None else frozenset(only))
    for collector in COLLECTORS:
        assert opened.collect(collector).absences == []

    assert {index for _, index in opened.library.calls} == touched


def test_a_gpu_left_out_by_its_address_alone_is_asked_for_nothing_but_that(driver: Driver) -> None:
    """Its address can only be read from its handle."""
    opened = driver(hopper(), hopper()).open(frozenset({"0000:17:00.0"}))
    for collector in COLLECTORS:
        opened.collect(collector)

    first = [name for name, index in opened.library.calls if index == 0]
    assert first == ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3"]


@pytest.mark.parametrize("collector", COLLECTORS)
def test_series_are_the_same_object_while_nothing_changed(driver: Driver, collector: str) -> None:
    """So that they travel once; a new trial after an hour that finds the same changes nothing."""
    opened = driver(hopper(), blackwell()).open()
    first = opened.collect(collector)
    opened.now += 3600
    opened.collect("identity")

    second = opened.collect(collector)

    assert len(first.readings) == len(second.readings) > 0
    for one, other in zip(first.readings, second.readings, strict=True):
        assert one.series is other.series


def test_a_link_more_is_seen_with_the_identity(driver: Driver) -> None:
    """The number of links is counted again, and what is read of them follows."""
    gpu = hopper(1)
    opened = driver(gpu).open()
    more = hopper(2)
    gpu.fields, gpu.link_states = more.fields, more.link_states

    assert opened.read("identity")[("nvlink_links", *A)] == 2
    assert opened.read("nvlink")[("nvlink_link_state", *A, "1")] == 1


def test_readings_carry_the_monotonic_time_at_which_they_were_taken(driver: Driver) -> None:
    """The clock that was handed in gives it."""
    opened = driver(hopper()).open()
    opened.now = 4711.5

    for collector in COLLECTORS:
        assert {one.time for one in opened.collect(collector).readings} == {4711.5}


FIELDS_THAT_CAN_BE_READ = ({*range(1, 251)} - {197, 198}) | {*range(289, 296)}
"""Ids that never moved, without the PCIe byte counts, which may wrap every 68 ms."""

FORBIDDEN = {
    "nvmlDeviceResetNvLinkErrorCounters", "nvmlDeviceClearFieldValues", "nvmlDeviceFreezeNvLinkUtilizationCounter",
    "nvmlDeviceResetNvLinkUtilizationCounter", "nvmlDeviceSetNvLinkUtilizationControl", "nvmlGpmSetStreamingEnabled",
    "nvmlDeviceClearEccErrorCounts",
}  # fmt: skip
"""What other tools on the node would see."""


def test_nothing_that_changes_hardware_is_called_and_no_renumbered_field_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every function that is looked for only asks, and every field id is one that never moved, whatever is wanted."""
    asked: list[str] = []
    fields: set[int] = set()

    class Watched(Library):
        def __getattr__(self, name: str) -> Callable[..., int]:
            asked.append(name)
            function = super().__getattr__(name)
            if name != "nvmlDeviceGetFieldValues":
                return function

            def field_values(handle: object, count: object, array: object) -> int:
                fields.update(entry.fieldId for entry in array._obj)  # type: ignore[attr-defined]  # ctypes' byref
                return function(handle, count, array)

            return field_values

    clock = [0.0]
    gpus = [hopper(), blackwell()]
    for gpu in gpus:
        gpu.gpm, gpu.fabric, gpu.fields[170, 0] = Gpm(), Fabric(), packed(UINT, 2)
    install(monkeypatch, Watched(gpus))
    source = NvmlSource(lambda: clock[0], OPT_IN)
    source.open(lambda device: None, frozenset(), None)
    for clock[0] in (0.0, 1.0, 3601.0):
        for collector in source.collectors:
            source.collect(collector)
    source.close()

    assert fields >= {138, 146, 170, 171, 208, 235, 250, 289, 295}
    assert fields <= FIELDS_THAT_CAN_BE_READ
    assert {"nvmlGpmMetricsGet", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetGpuFabricInfoV"} <= set(asked)
    assert not FORBIDDEN & set(asked)
    changing = re.compile("Reset|Clear|Freeze|Control|Enabled|(?<!Event)Set(?!Wait)")
    assert [name for name in asked if changing.search(name)] == []


def test_a_closed_source_can_be_opened_again_and_knows_nothing_of_before(driver: Driver) -> None:
    """Each opening starts afresh: a GPU that was lost before the reset is read again."""
    gpu = hopper(1)
    opened = driver(gpu).open()
    gpu.code = LOST
    opened.collect("gpu")
    opened.source.close()
    assert opened.library.opened == 0
    gpu.code = 0

    batch = opened.open().collect("nvlink")

    assert batch.absences == []
    assert values_of(batch)[("nvlink_link_state", *A, "0")] == 1


def test_a_driver_that_was_reloaded_does_not_keep_the_source_from_closing(driver: Driver) -> None:
    """The library is not initialised any more, so nothing is open."""
    opened = driver(hopper()).open()
    opened.library.shutdown_code = 1

    opened.source.close()

    assert opened.collect("nvlink").readings == []


def test_a_counter_that_the_driver_marks_as_not_available_is_absent(driver: Driver) -> None:
    """NVML's -1 stands for no value, in fields and in functions alike."""
    gpu = hopper(1)
    gpu.fields[138, 0] = packed(ULONGLONG, 2**64 - 1)
    gpu.error_kinds[0, 0] = 2**64 - 1
    gpu.fields[95, 0] = NOT_SUPPORTED
    gpu.pcie_width = 2**32 - 1
    opened = driver(gpu).open()

    assert opened.read("nvlink")[("nvlink_transmit_bytes_total", *A, "0")] is None
    assert opened.read("nvlink_errors")[("nvlink_replay_errors_total", *A, "0")] is None
    pcie = opened.read("pcie")
    assert pcie[("pcie_link_width_lanes", *A)] is None
    assert ("pcie_replay_rollovers_total", *A) not in pcie


def test_a_device_that_needs_a_privilege_is_an_absence_with_that_reason(driver: Driver) -> None:
    """In a container without the device file the handle is refused."""
    opened = driver(FakeGpu(handle_code=NO_PERMISSION)).open()

    assert [(one.device, one.reason) for one in opened.collect("gpu").absences] == [("index:0", "no_permission")]


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        (b"00000000:17:00.0", "0000:17:00.0"), (b"00010000:C1:00.0", "10000:c1:00.0"), (b"", ""), (b"\xff\xfe", ""),
        (b"0000:0A:00.0", "0000:0a:00.0"), (b"nothing", ""), (b"00000000:\x01", ""), (b"00000000:17:00.0\xff", ""),
    ],
)  # fmt: skip
def test_what_an_nvlink_leads_to_is_spelled_as_sysfs_spells_it(driver: Driver, bus_id: bytes, address: str) -> None:
    """Four digits of the domain at least, lower case; behind an NVSwitch it may be empty or no text at all."""
    gpu = hopper(1)
    gpu.remote_pci_bus_id = bus_id
    opened = driver(gpu).open()

    assert ("nvlink_info", *A, "0", "4.0", "switch", address, "") in opened.read("identity")


def test_a_name_that_is_no_text_leaves_the_rest_alone(driver: Driver) -> None:
    """The binding cannot decode it; the GPU is known by its other labels."""
    gpu = hopper(1)
    gpu.name = b"\xff"
    batch = driver(gpu).open().collect("identity")

    assert ("gpu_info", *A, "GPU-1", "", "", "Hopper") in values_of(batch)
    assert [one.reason for one in batch.absences] == ["unreadable"]


def test_every_counter_is_in_the_catalogue_with_the_labels_of_its_scope() -> None:
    """A row here and one there make a counter; names are unique, and no field id is one that moved or wraps."""
    labels = {"device": ("gpu", "pci_bus_id"), "link": ("gpu", "pci_bus_id", "link")}
    labels["all_links"] = labels["c2c_link"] = labels["link"]
    for row in COUNTERS:
        series = row.series if isinstance(row, CallReport) else ((row.metric, row.labels),)
        for metric, further in series:
            known = CATALOGUE[metric].labels
            if row.collector != "link_info":  # its numbers become labels
                assert known[: len(labels[row.scope])] == labels[row.scope]
                assert len(known) == len(labels[row.scope]) + len(further)
        assert not isinstance(row, FieldCounter) or row.field in FIELDS_THAT_CAN_BE_READ
    assert len({row.name for row in COUNTERS}) == len(COUNTERS)
