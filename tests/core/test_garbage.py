"""The garbage collector is spared, and still finds what it must."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch.footprint import spare_the_garbage_collector
from support.pages import page_of
from support.simulated_daemon import simulated


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


class Ring:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.ring = self


def test_what_is_here_is_left_out() -> None:
    """No later look goes through the modules."""
    ring = Ring()
    gone = weakref.ref(ring)
    spare_the_garbage_collector()
    del ring

    gc.collect()

    assert gone() is not None


def test_later_garbage_is_found() -> None:
    """What is made afterwards is looked at as ever."""
    spare_the_garbage_collector()
    ring = Ring()
    gone = weakref.ref(ring)
    del ring

    gc.collect()

    assert gone() is None


def test_five_minutes_leave_the_collector_nothing(tmp_path: Path) -> None:
    """Readings, rules, probes and scrapes are freed at once; with rings in them the daemon grows by MiB until the
    collector comes, after 20,000 objects."""
    with simulated("h100x8ndr", tmp_path) as daemon:

        def minutes(begin: int, end: int) -> None:
            for minute in range(begin, end):
                daemon.step_to(60.0 * minute)
                page_of(daemon.exposed(), gzip=True)

        minutes(1, 6)
        gc.collect()
        gc.disable()
        try:
            minutes(6, 11)
            left = gc.collect()
        finally:
            gc.enable()
        probes = sum(number for _, number in daemon.exposed().samples("commwatch_probe_attempts_total"))

    assert probes > 1
    assert left < 60, "of the ctypes of pynvml some dozen"
