"""Events that the driver reports, and how the set that they come from is kept alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from commwatch.readings import Absence, HardwareEvent, SourceUnavailable
from nvml.harness import Opened
from nvml.library import (
    GPU_UNAVAILABLE,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RECOVERY_ACTION,
    UNKNOWN,
    XID,
    Library,
    hopper,
)  # fmt: skip

Driver: TypeAlias = "Callable[..., Opened]"
A, B = "0000:17:00.0", "0000:18:00.0"


@pytest.fixture
def opened(driver: Driver) -> Opened:
    return driver(hopper(), hopper())


@pytest.fixture
def library(opened: Opened) -> Library:
    return opened.library


def told(opened: Opened) -> list[tuple[str, str, str]]:
    return [(event.kind, event.device, event.code) for event in opened.collect("events").events]


def test_xids_are_told_with_their_gpu(opened: Opened, library: Library) -> None:
    """All that wait are taken in one run, each once."""
    opened.open()
    assert told(opened) == []

    library.waiting.extend([(1, XID, 79), (0, XID, 13), (0, XID, 13)])

    assert told(opened) == [("xid", B, "79"), ("xid", A, "13"), ("xid", A, "13")]
    assert told(opened) == []


def test_an_event_has_the_time_at_which_it_was_taken_and_its_instance(opened: Opened, library: Library) -> None:
    """The driver gives no time; the instances of a divided GPU are named as in the kernel log."""
    library.instance = (2, 1)
    opened.open()
    opened.collect("events")
    library.waiting.append((0, XID, 43))

    (event,) = opened.collect("events").events

    assert event == HardwareEvent("xid", A, "43", "nvml", event.time, "GPU-I:02 GPU-CI:01")
    assert event.time > 1.7e9


def test_only_what_a_gpu_supports_is_registered(opened: Opened, library: Library) -> None:
    """Never the events that nobody asked for; once for each GPU."""
    library.supported = XID | 0x1 | 0x2
    opened.open()
    opened.collect("events")
    opened.collect("events")

    assert library.registered == [(0, XID), (1, XID)]


def test_events_without_a_number_have_a_name(opened: Opened, library: Library) -> None:
    """Availability and recovery; a type that is not known is left out."""
    opened.open()
    opened.collect("events")
    library.waiting.extend([(0, GPU_UNAVAILABLE, 0), (1, RECOVERY_ACTION, 1), (0, 0x10, 0)])

    assert told(opened) == [("message", A, "gpu_unavailable"), ("message", B, "recovery_action")]


def test_a_library_without_events_has_none(opened: Opened) -> None:
    """An old driver lacks the functions: no event and no failure."""
    opened.library.replace("nvmlEventSetCreate", None)
    opened.open()
    batch = opened.collect("events")

    assert (batch.events, batch.absences) == ([], [])


def test_a_gpu_without_events_is_no_failure(opened: Opened, library: Library) -> None:
    """It supports none; a refusal of another kind is reported at each run, and tried again."""
    library.register_codes = {0: NOT_SUPPORTED, 1: NO_PERMISSION}
    opened.open()
    for _ in range(2):
        assert opened.collect("events").absences == [
            Absence(B, "no_permission", "nvmlDeviceRegisterEvents: Insufficient Permissions (NVML code 4)")
        ]

    library.register_codes = {}
    assert opened.collect("events").absences == []
    assert (1, XID | GPU_UNAVAILABLE | RECOVERY_ACTION) in library.registered


def test_a_lost_gpu_is_found_by_registering_again(opened: Opened, library: Library) -> None:
    """The driver does not say which one it is; the other goes on to be heard."""
    opened.open()
    opened.collect("events")
    library.gpus[0].code = LOST
    library.waiting.extend([LOST, (1, XID, 74)])

    batch = opened.collect("events")

    assert [(one.device, one.reason) for one in batch.absences] == [(A, "lost")]
    assert [(event.device, event.code) for event in batch.events] == [(B, "74")]
    assert [index for index, _ in library.registered] == [1]
    library.calls.clear()
    assert [one.reason for one in opened.collect("events").absences] == ["lost"]
    assert not [call for call in library.calls if call[1] == 0]


def test_the_last_word_of_a_lost_gpu_is_heard(opened: Opened, library: Library) -> None:
    """Another collector may find it lost first: what its set holds is taken before the set is given back."""
    opened.open()
    opened.collect("events")
    library.waiting.extend([(0, XID, 79), LOST])
    library.gpus[0].code = LOST
    opened.collect("gpu")

    assert told(opened) == [("xid", A, "79")]
    assert (library.sets, library.made) == (1, 2)


def test_events_before_the_failure_are_kept(opened: Opened, library: Library) -> None:
    """What was taken stays taken."""
    opened.open()
    opened.collect("events")
    library.waiting.extend([(0, XID, 31), UNKNOWN, (0, XID, 32)])

    assert told(opened) == [("xid", A, "31"), ("xid", A, "32")]
    assert (library.sets, library.made) == (1, 2)


def test_a_set_that_fails_again_is_an_absence(opened: Opened, library: Library) -> None:
    """One new set in a run; the next run tries again."""
    opened.open()
    library.waiting.extend([UNKNOWN, UNKNOWN])

    assert [(one.device, one.reason) for one in opened.collect("events").absences] == [("", "unreadable")]
    assert library.sets == 0
    assert opened.collect("events").absences == []


def test_a_failing_counter_does_not_end_the_listening(opened: Opened, library: Library) -> None:
    """The set outlives runs of other collectors that fail."""
    opened.open()
    opened.collect("events")
    library.gpus[0].codes = {"nvmlDeviceGetFieldValues": UNKNOWN}
    opened.collect("nvlink")
    library.waiting.append((0, XID, 79))

    assert told(opened) == [("xid", A, "79")]
    assert library.made == 1


def test_the_set_goes_with_the_driver_and_comes_back(opened: Opened, library: Library) -> None:
    """Freed when the driver is let go, made again when it is opened again."""
    opened.open()
    opened.collect("events")
    opened.source.close()
    assert library.sets == 0

    opened.open()
    opened.collect("events")

    assert library.sets == 1
    assert [index for index, _ in library.registered] == [0, 1]


def test_a_driver_that_was_unloaded_is_unavailable(opened: Opened, library: Library) -> None:
    """It is opened again; until then nothing is read."""
    opened.open()
    opened.collect("events")
    library.waiting.append(1)

    with pytest.raises(SourceUnavailable, match="Uninitialized") as raised:
        opened.collect("events")

    assert raised.value.reason == "no_driver"


def test_a_hostile_number_of_events_does_not_hold_the_reader(opened: Opened, library: Library) -> None:
    """A run takes a bounded number; the rest waits for the next."""
    opened.open()
    library.waiting.extend([(0, XID, 13)] * 300)

    assert [len(told(opened)), len(told(opened))] == [256, 44]
