"""Which devices are touched and when, what stays the same between readings, and the end of a source."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from commwatch.generate.counter_tables import sections
from commwatch.sources.nvml.samples import PcieSamples
from commwatch.sources.nvml.source import NvmlSource
from commwatch_exporters.catalogue import OPT_IN
from nvml.harness import Opened, values_of
from nvml.library import (
    LOST,
    NOT_SUPPORTED,
    UINT,
    ULONGLONG,
    Fabric,
    FakeGpu,
    Gpm,
    Library,
    blackwell,
    hopper,
    install,
    packed,
)  # fmt: skip

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
COLLECTORS = ("identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie")


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
def test_series_are_the_same_while_nothing_changed(driver: Driver, collector: str) -> None:
    """So that they travel once; a new trial after an hour that finds the same changes nothing."""
    opened = driver(hopper(), blackwell()).open()
    first = opened.collect(collector)
    opened.now += 3600
    opened.collect("identity")

    second = opened.collect(collector)

    assert len(first.readings) == len(second.readings) > 0
    for one, other in zip(first.readings, second.readings, strict=True):
        assert one.series == other.series


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
        def __getattribute__(self, name: str) -> Any:
            function = super().__getattribute__(name)
            if not name.startswith("nvml"):
                return function
            asked.append(name)
            if name != "nvmlDeviceGetFieldValues":
                return function

            def field_values(handle: Any, count: Any, array: Any) -> Any:
                fields.update(entry.fieldId for entry in array._obj)
                return function(handle, count, array)

            return field_values

    clock = [0.0]
    gpus = [hopper(), blackwell()]
    for gpu in gpus:
        gpu.gpm, gpu.fabric, gpu.fields[170, 0] = Gpm(), Fabric(), packed(UINT, 2)
    install(monkeypatch, Watched(gpus))
    gpus.append(FakeGpu(architecture=7))
    for source in (NvmlSource(lambda: clock[0], OPT_IN), PcieSamples(lambda: clock[0])):
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


def test_no_field_of_the_tables_is_one_that_moved_or_wraps() -> None:
    """Whatever is wanted of which GPU; a metric that the catalogue does not have is an error where it is read."""
    fields = {int(row.source.split()[1]) for row in sections()["NVML"] if row.source.startswith("field ")}

    assert len(fields) > 80
    assert fields <= FIELDS_THAT_CAN_BE_READ
