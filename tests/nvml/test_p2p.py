"""Which pairs of GPUs can reach each other directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from commwatch.readings import SourceUnavailable
from nvml.harness import Opened
from nvml.library import LOST, NOT_SUPPORTED, UNKNOWN, hopper

Driver: TypeAlias = "Callable[..., Opened]"
A, B, C = (("0", "0000:17:00.0"), ("1", "0000:18:00.0"), ("2", "0000:19:00.0"))
STATUS = "gpu_p2p_status"


def opened_with(driver: Driver, gpus: int = 3) -> Opened:
    return driver(*(hopper() for _ in range(gpus))).open()


def test_each_ordered_pair_has_a_status_for_each_capability(driver: Driver) -> None:
    """Index 2 is NVLink, 0 is read; one way can differ from the other."""
    opened = opened_with(driver)
    opened.library.peers = {(0, 1, 2): 3, (2, 0, 0): 5}

    values = opened.read("p2p")

    assert len(values) == 3 * 2 * 2
    assert {key: value for key, value in values.items() if value} == {
        (STATUS, *A, *B, "nvlink"): 3, (STATUS, *C, *A, "read"): 5,
    }  # fmt: skip


def test_one_gpu_has_no_peers(driver: Driver) -> None:
    """Nothing is asked and nothing told."""
    opened = opened_with(driver, gpus=1)

    assert opened.read("p2p") == {}


def test_a_divided_gpu_is_left_out(driver: Driver) -> None:
    """MIG has no peers; the others have each other."""
    opened = opened_with(driver)
    opened.library.gpus[2].mig = 1

    assert {key[3] for key in opened.read("p2p")} == {"0", "1"}


def test_what_the_driver_does_not_know_is_absent(driver: Driver) -> None:
    """Not supported is no failure; an error is, and neither gives a number."""
    opened = opened_with(driver)
    opened.library.peer_code = NOT_SUPPORTED
    unsupported = opened.collect("p2p")
    opened.library.peer_code = UNKNOWN
    failed = opened.collect("p2p")

    assert unsupported.absences == []
    assert {one.reason for one in failed.absences} == {"unreadable"}
    for batch in (unsupported, failed):
        assert {value for readings in batch.readings for value in readings.values} == {None}


def test_a_gpu_whose_own_calls_fail_is_to_blame_for_its_pairs(driver: Driver) -> None:
    """The others have no status with it, and are read."""
    opened = opened_with(driver)
    opened.library.gpus[1].code = UNKNOWN

    batch = opened.collect("p2p")

    assert [(one.device, one.reason) for one in batch.absences] == [(B[1], "unreadable")]


def test_a_pair_with_a_lost_gpu_blames_nobody(driver: Driver) -> None:
    """Which of the two it is, other collectors tell; the pair is absent."""
    opened = opened_with(driver)
    opened.library.peer_code = LOST

    assert opened.collect("p2p").absences == []
    assert opened.collect("pcie").absences == []


def test_a_lost_gpu_is_left_out(driver: Driver) -> None:
    """Once its own calls say so, no pair of it is asked."""
    opened = opened_with(driver)
    opened.library.gpus[1].code = LOST
    opened.collect("pcie")

    assert {key[3] for key in opened.read("p2p")} == {"0", "2"}


def test_a_driver_that_was_unloaded_is_unavailable(driver: Driver) -> None:
    """As in every collector."""
    opened = opened_with(driver)
    opened.library.peer_code = 9

    with pytest.raises(SourceUnavailable):
        opened.collect("p2p")
