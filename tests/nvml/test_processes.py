"""Which processes are on a GPU: compute processes and clients of MPS, by their ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvml.harness import Opened
from nvml.library import FIRST_PROCESS, LOST, NOT_SUPPORTED, UNKNOWN, FakeGpu

Driver = Callable[..., Opened]

A = ("0", "0000:17:00.0")
COUNT = ("gpu_compute_processes", *A)
COMPUTE, CLIENTS = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"
FIRST, SECOND = FIRST_PROCESS, FIRST_PROCESS + 1


@pytest.mark.parametrize(
    ("processes", "clients", "expected"),
    [
        (0, (), ()),
        (2, (), (FIRST, SECOND)),
        (0, (90, 91), (90, 91)),
        (1, (90,), (FIRST, 90)),
        (2, (SECOND, 90), (FIRST, SECOND, 90)),
        (0, (90, 90), (90,)),  # with MIG, once for each of its instances
        (1, None, (FIRST,)),
    ],
)
def test_processes_of_a_gpu(
    driver: Driver, processes: int, clients: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    """Both lists together, each process once; their number is the metric."""
    opened = driver(FakeGpu(processes=processes, mps_clients=clients)).open()

    batch = opened.collect("processes")

    assert batch.occupants == {A[1]: expected}
    assert opened.read("processes")[COUNT] == len(expected)
    assert batch.absences == []


@pytest.mark.parametrize("function", [COMPUTE, CLIENTS])
def test_a_list_that_fails_leaves_nothing_known(driver: Driver, function: str) -> None:
    """Neither a number nor ids: half of the processes are not all of them. The next reading is a new one."""
    gpu = FakeGpu(processes=1)
    opened = driver(gpu).open()
    gpu.codes[function] = UNKNOWN

    batch = opened.collect("processes")
    assert batch.occupants == {}
    assert [(one.device, one.reason) for one in batch.absences] == [(A[1], "unreadable")]
    assert opened.read("processes")[COUNT] is None

    del gpu.codes[function]
    assert opened.collect("processes").occupants == {A[1]: (FIRST,)}


def test_a_driver_without_the_list_of_clients_is_asked_once(driver: Driver) -> None:
    """An old one lacks the function, and no GPU has such clients then."""
    gpu = FakeGpu(processes=1, codes={CLIENTS: NOT_SUPPORTED})
    opened = driver(gpu).open()

    assert [opened.collect("processes").occupants for _ in range(3)] == [{A[1]: (FIRST,)}] * 3
    assert [name for name, _ in opened.library.calls].count(CLIENTS) == 1


def test_a_gpu_without_a_list_has_no_occupants(driver: Driver) -> None:
    """It is not taken for free."""
    batch = driver(FakeGpu(processes=None)).open().collect("processes")

    assert batch.occupants == {}


def test_a_lost_gpu_takes_only_its_own_processes_with_it(driver: Driver) -> None:
    """The other is read all the same."""
    lost, well = FakeGpu(processes=1), FakeGpu(processes=1)
    opened = driver(lost, well).open()
    lost.code = LOST

    assert opened.collect("processes").occupants == {"0000:18:00.0": (FIRST,)}


def test_other_collectors_do_not_look(driver: Driver) -> None:
    """What they give says nothing of processes, not even that there are none."""
    opened = driver(FakeGpu(processes=1)).open()

    assert [opened.collect(name).occupants for name in ("gpu", "identity", "pcie")] == [None] * 3
