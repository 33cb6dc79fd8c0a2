"""GPUs that are on the PCI bus, bound to the driver, and not in its list."""

from __future__ import annotations

import pytest

from commwatch.sources.nvml.source import NvmlSource
from nvml.harness import Opened
from nvml.library import FakeGpu, hopper

LISTED, OTHER, ABSENT = "0000:17:00.0", "0000:18:00.0", "0000:9a:00.0"


class Node:
    """A source over two GPUs that the driver lists, and the addresses that the bus shows as bound to it."""

    def __init__(self, opened: Opened) -> None:
        self.opened, self.bound = opened, frozenset({LISTED, OTHER, ABSENT})
        opened.source = NvmlSource(lambda: opened.now, to_list=lambda: self.bound, bound=lambda: self.bound)

    def not_listed(self, collector: str = "identity") -> list[str]:
        absences = self.opened.collect(collector).absences
        return [one.device for one in absences if one.reason == "not_listed"]


@pytest.fixture
def gpus() -> tuple[FakeGpu, FakeGpu]:
    first, second = hopper(), hopper()
    first.pci_bus_id, second.pci_bus_id = b"00000000:17:00.0", b"00000000:18:00.0"
    return first, second


@pytest.fixture
def node(driver: object, gpus: tuple[FakeGpu, FakeGpu]) -> Node:
    return Node(driver(*gpus))  # type: ignore[operator]  # the fixture is a function


def test_a_gpu_that_is_bound_and_not_listed_is_named_by_its_address(node: Node) -> None:
    """With the first reading, and until the driver lists it or the bus shows it bound no more."""
    node.opened.open()
    assert node.not_listed() == [ABSENT]

    node.bound -= {ABSENT}
    assert node.not_listed() == []


def test_a_gpu_that_is_bound_later_is_looked_for_by_a_new_session(node: Node, gpus: tuple[FakeGpu, FakeGpu]) -> None:
    """An open session may not learn of it: one that comes back from a virtual machine is no fault."""
    node.bound -= {ABSENT}
    node.opened.open()
    assert node.not_listed() == []

    back = hopper()
    back.pci_bus_id = b"00000000:9a:00.0"
    node.bound |= {ABSENT}
    node.opened.library.gpus[:] = [*gpus, back]

    assert node.not_listed() == []
    assert ABSENT in {one.device for one in node.opened.collect("gpu").readings}


def test_a_change_on_the_bus_is_seen_with_the_next_reading_of_the_gpus(
    node: Node, gpus: tuple[FakeGpu, FakeGpu]
) -> None:
    """Each 10 s, without an identity: it is bound and not listed, unbound, and listed."""
    node.bound -= {ABSENT}
    node.opened.open()
    assert node.not_listed("gpu") == []

    node.bound |= {ABSENT}
    assert [node.not_listed("gpu"), node.not_listed("gpu"), node.not_listed()] == [[ABSENT]] * 3

    node.bound -= {ABSENT}
    assert node.not_listed("gpu") == []

    back = hopper()
    back.pci_bus_id = b"00000000:9a:00.0"
    node.bound |= {ABSENT}
    node.opened.library.gpus[:] = [*gpus, back]
    batch = node.opened.collect("gpu")
    assert [one for one in batch.absences if one.reason == "not_listed"] == []
    assert ABSENT in {one.device for one in batch.readings}


def test_a_gpu_that_cannot_be_opened_is_tried_again_before_the_next_identity(
    node: Node, gpus: tuple[FakeGpu, FakeGpu]
) -> None:
    """For a minute after the driver was opened; one that fails for longer is tried with the identity alone."""
    gpus[1].code = 999
    node.opened.open()
    gpus[1].code = 0
    node.opened.now += 10.0
    assert OTHER in {one.device for one in node.opened.collect("gpu").readings}

    node.opened.source.close()
    gpus[1].code = 999
    node.opened.open()
    gpus[1].code = 0
    node.opened.now += 61.0
    assert OTHER not in {one.device for one in node.opened.collect("gpu").readings}
    assert OTHER in {one.device for one in node.opened.collect("identity").readings}


def test_where_the_list_is_not_whole_nothing_is_said(node: Node, gpus: tuple[FakeGpu, FakeGpu]) -> None:
    """A GPU that could not be opened has no address, a process for one device sees no other, and a driver without any
    GPU is a fault of its own."""
    node.opened.open(only=frozenset({"index:0", LISTED}))
    assert node.not_listed() == []
    node.opened.source.close()

    node.opened.open(leave_out=frozenset({"index:1"}))
    assert node.not_listed() == []
    node.opened.source.close()

    node.opened.open(leave_out=frozenset({"index:1", OTHER}))
    assert node.not_listed() == [ABSENT]
    node.opened.source.close()

    gpus[1].code = 999
    node.opened.open()
    assert node.not_listed() == []
    node.opened.source.close()

    node.opened.library.gpus.clear()
    node.opened.open()
    assert node.not_listed() == []
