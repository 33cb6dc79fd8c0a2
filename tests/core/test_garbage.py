"""The garbage collector is spared, and still finds what it must."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from commwatch.footprint import spare_the_garbage_collector


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.freeze()
    gc.set_threshold(*threshold)


class Ring:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.ring = self


def test_what_was_left_out_is_freed_at_the_next_call() -> None:
    """A configuration that was replaced does not stay forever."""
    ring = Ring()
    gone = weakref.ref(ring)
    spare_the_garbage_collector()
    del ring
    gc.collect()
    assert gone() is not None, "left out of the look"

    spare_the_garbage_collector()

    assert gone() is None


def test_later_garbage_is_found() -> None:
    """What is made afterwards is looked at as ever."""
    spare_the_garbage_collector()
    ring = Ring()
    gone = weakref.ref(ring)
    del ring

    gc.collect()

    assert gone() is None
