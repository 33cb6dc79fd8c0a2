"""Xid events of the simulated library through the real binding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pynvml
import pytest

from simulation.asking import code_of, handle
from simulation.harness import Rehearsal

Drive: TypeAlias = Callable[..., Rehearsal]


def listen(*indices: int) -> Any:  # the binding has no types
    """An event set with the Xids of some GPUs."""
    event_set = pynvml.nvmlEventSetCreate()
    for index in indices:
        pynvml.nvmlDeviceRegisterEvents(handle(index), pynvml.nvmlEventTypeXidCriticalError, event_set)
    return event_set


def heard(event_set: object) -> list[tuple[int, int]]:
    """Index of the GPU and Xid of every event that waits."""
    found = []
    while code_of(next_event, event_set) == pynvml.NVML_SUCCESS:
        data = LAST.pop()
        assert data.eventType == pynvml.nvmlEventTypeXidCriticalError
        assert (data.gpuInstanceId, data.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
        found.append((pynvml.nvmlDeviceGetIndex(data.device), data.eventData))
    return found


LAST: list[Any] = []


def next_event(event_set: object) -> None:
    LAST.append(pynvml.nvmlEventSetWait_v2(event_set, 0))


def test_an_event_is_heard_once_by_who_registered_before_it(driver: Drive) -> None:
    """Not by a set that registered later, nor by one for another GPU."""
    rehearsal = driver("h100x8", "- {fault: xid, gpu: 4, xid: 94, at: 100s}", now=90.0)
    early, other = listen(4), listen(3)
    assert heard(early) == []
    rehearsal.now = 101.0
    late = listen(4)

    assert heard(early) == [(4, 94)]
    assert [heard(one) for one in (early, other, late)] == [[], [], []]
    assert code_of(pynvml.nvmlEventSetWait_v2, early, 0) == pynvml.NVML_ERROR_TIMEOUT


@pytest.mark.parametrize(
    ("preset", "fault", "expected"),
    [
        ("h100x8", "nvlink_down, gpu: 3, link: 5", [(3, 74)]),
        ("b200x8", "nvlink_down, gpu: 3, link: 5", [(3, 149)]),
        ("b200x8", "nvlink_recovery_failed, gpu: 3, link: 5", [(3, 149)]),
        ("a100x4", "nvlink_down, gpu: 0, link: 5", [(0, 74), (2, 74)]),
        ("h100x8", "recovery_needed, gpu: 4", [(4, 154)]),
        ("h100x8", "job", []),
    ],
)
def test_faults_raise_their_xids(driver: Drive, preset: str, fault: str, expected: list[tuple[int, int]]) -> None:
    """At both ends of a link between GPUs, once."""
    rehearsal = driver(preset, f"- {{fault: {fault}, at: 100s, for: 10s}}", now=90.0)
    event_set = listen(*range(len(rehearsal.node.preset.gpus)))
    rehearsal.now = 120.0

    assert heard(event_set) == expected


def test_a_gpu_off_the_bus_is_heard_of(driver: Drive) -> None:
    """Xid 79, although the GPU itself answers no longer."""
    rehearsal = driver("h100x8", "- {fault: gpu_lost, gpu: 6, at: 100s}", now=90.0)
    event_set = listen(6)
    rehearsal.now = 120.0

    assert pynvml.nvmlEventSetWait_v2(event_set, 0).eventData == 79


def test_events_at_a_rate_come_one_by_one(driver: Drive) -> None:
    """The first when the fault begins, none after its end."""
    rehearsal = driver("h100x8", "- {fault: xid, gpu: 0, xid: 63, rate: 1/min, at: 100s, for: 150s}", now=90.0)
    event_set = listen(0)
    counts = []
    for rehearsal.now in (99.0, 100.0, 159.0, 161.0, 230.0, 500.0):
        counts.append(len(heard(event_set)))

    assert counts == [0, 1, 0, 1, 1, 0]


def test_a_fault_that_is_written_now_is_heard_of(driver: Drive) -> None:
    """It begins when its file was written, a little before the file is read."""
    rehearsal = driver("h100x8")
    event_set = listen(0)
    rehearsal.now = 100.9
    assert heard(event_set) == []
    rehearsal.write("- {fault: xid, gpu: 0, xid: 31}")

    assert heard(event_set) == [(0, 31)]
    assert heard(event_set) == []


def test_a_set_ends_with_its_session(driver: Drive) -> None:
    """Freed, or by a driver that is loaded again."""
    rehearsal = driver("h100x8", "- {fault: driver_reload, at: 100s, for: 10s}", now=90.0)
    freed, kept = listen(0), listen(0)
    pynvml.nvmlEventSetFree(freed)
    assert code_of(pynvml.nvmlEventSetWait_v2, freed, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    rehearsal.now = 105.0

    assert code_of(pynvml.nvmlEventSetWait_v2, kept, 0) == pynvml.NVML_ERROR_UNINITIALIZED


def test_supported_types_hold_the_xid(driver: Drive) -> None:
    """Only what is supported may be registered."""
    driver("h100x8")

    assert pynvml.nvmlDeviceGetSupportedEventTypes(handle()) & pynvml.nvmlEventTypeXidCriticalError
