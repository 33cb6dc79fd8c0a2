"""GPUs and drivers that fail, hang back or go away: absent with a reason, and never called again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from commwatch.readings import Absence, SourceUnavailable
from commwatch.sources.nvml.source import NvmlSource
from nvml.harness import Opened, values_of
from nvml.library import (
    LOST,
    RESET_REQUIRED,
    UNKNOWN,
    FakeGpu,
    hopper,
    install,
)  # fmt: skip

Driver: TypeAlias = "Callable[..., Opened]"
A, B = ("0", "0000:17:00.0"), ("1", "0000:18:00.0")
COLLECTORS = ("identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie")


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


@pytest.mark.parametrize(("code", "reason"), [(27, "not_ready"), (UNKNOWN, "unreadable"), (4, "no_permission")])
def test_a_gpu_that_could_not_be_opened_is_when_it_can(driver: Driver, code: int, reason: str) -> None:
    """It is tried again with the identity of the GPUs."""
    gpu = FakeGpu(handle_code=code)
    opened = driver(gpu).open()
    assert [one.reason for one in opened.collect("identity").absences] == [reason]
    gpu.handle_code = 0

    batch = opened.collect("identity")

    assert batch.absences == []
    assert "0000:17:00.0" in {one.device for one in batch.readings}


def test_a_gpu_that_is_lost_as_it_is_opened_is_left_alone(driver: Driver) -> None:
    """A handle of a lost GPU stays dead: another process looks for it again."""
    gpu = FakeGpu(handle_code=LOST)
    opened = driver(gpu).open()
    gpu.handle_code = 0

    assert [one.reason for one in opened.collect("identity").absences] == ["lost"]


def test_a_gpu_whose_uuid_fails_is_not_taken_for_another(driver: Driver) -> None:
    """It has no identity then; a driver that knows no UUID gives the rest, and one that knew it has not lost it."""
    gpu = hopper()
    opened = driver(gpu).open()

    def uuids(code: int) -> list[str]:
        gpu.codes["nvmlDeviceGetUUID"] = code
        return [key[3] for key in values_of(opened.collect("identity")) if key[0] == "gpu_info"]

    assert [uuids(code) for code in (UNKNOWN, 3, 0, 3, UNKNOWN)] == [[], [""], ["GPU-1"], ["GPU-1"], []]


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


def test_a_driver_that_goes_away_while_opening_leaves_nothing_open(driver: Driver) -> None:
    """The library was started, so it is ended."""
    opened = driver(FakeGpu(handle_code=9))

    with pytest.raises(SourceUnavailable, match="no_driver"):
        opened.open()

    assert opened.library.opened == 0
    assert opened.reports == ["index:0", ""]
