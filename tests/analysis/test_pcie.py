"""Degraded PCIe links: each verdict at its edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.pcie import (
    LOAD_BYTES_PER_SECOND,
    LOAD_UTILISATION,
    GpuLinkWatch,
    LinkReading,
    is_loaded,
    is_narrow,
    is_slow,
    of_both_ends,
)
from commwatch.node.pcie_tree import DeviceLinkWatch
from commwatch_exporters.snapshot import Block, Layout, Value
from support.passes import in_one_pass

GPU = ("0", "0000:17:00.0")
STEP = 10.0
GAP = 30.0


def verdict(block: Block, aspect: str) -> Value:
    return block.get("commwatch_pcie_link_degraded", *GPU, aspect)


def seconds(block: Block, aspect: str) -> Value:
    return block.get("commwatch_pcie_link_degraded_seconds_total", *GPU, aspect)


def reading(time: float, width: int | None = 16, generation: int | None = 5, expected: int | None = 16) -> LinkReading:
    """A link of 16 lanes of generation 5, or what is left of it."""
    return LinkReading(time, width, expected, 16, generation, 5)


class Link:
    """A link that is read every 10 s, each time a second after the load of its GPU."""

    def __init__(self) -> None:
        self.watch = GpuLinkWatch(*GPU, GAP)
        self.now = 0.0

    def step(self, width: int | None = 16, generation: int | None = 5, loaded: bool | None = True) -> Block:
        """One cycle; ``loaded`` None: nothing says whether there is load."""
        if loaded is not None:
            self.watch.take_load("nvml_gpu", self.now, loaded)
        self.watch.take_link(reading(self.now + 1, width, generation))
        self.now += STEP
        return self.watch.block(self.now - STEP + 1)


def test_a_narrow_link_is_degraded_idle_or_not() -> None:
    """Width does not depend on the load: it is judged at once, and resolves at once."""
    link = Link()

    assert verdict(link.step(width=8, loaded=False), "width") == 1
    link.step(loaded=False)
    assert verdict(link.watch.block(link.now), "width") == 0


@in_one_pass(
    "width, expected, maximum, narrow",
    [
        (16, 16, 16, False),
        (15, 16, 16, True),
        (8, None, 16, True),  # not learned yet: what both ends can do
        (8, None, 8, False),  # a slot wired with 8 lanes
        (8, 8, 16, False),  # learned or accepted
        (4, 8, 16, True),
        (8, 16, 8, True),  # the maximum itself has fallen
        (16, 8, 16, False),
        (None, 16, 16, None),
        (8, None, None, None),
    ],
)
def test_width_is_held_against_what_was_learned(
    width: int | None, expected: int | None, maximum: int | None, narrow: bool | None
) -> None:
    """The expectation goes before the maximum of both ends, and without either nothing is said."""
    assert is_narrow(width, expected, maximum) is narrow


def test_the_seconds_of_a_verdict_are_those_between_readings() -> None:
    """The first reading that is narrow adds none."""
    link = Link()
    link.step()
    narrow = link.step(width=8)

    assert seconds(narrow, "width") == 0
    assert seconds(link.step(width=8), "width") == STEP


@pytest.mark.parametrize(
    ("generation", "maximum", "slow"), [(5, 5, False), (4, 5, True), (5, 4, False), (None, 5, None), (5, None, None)]
)
def test_generation_is_held_against_the_maximum(generation: int | None, maximum: int | None, slow: bool | None) -> None:
    """Just below the maximum is slow; what was not read is not judged."""
    assert is_slow(generation, maximum) is slow


@pytest.mark.parametrize(
    ("maxima", "least"), [((16, 8), 8), ((16, None), 16), ((None, 8.0), 8), ((None, None), None), ((), None)]
)
def test_both_ends_can_do_what_the_lesser_can(maxima: tuple[float | None, ...], least: int | None) -> None:
    """An end that is not known does not count."""
    assert of_both_ends(*maxima) == least


def test_load_is_work_or_traffic() -> None:
    """Kernels for half of the time, or traffic at the floor in one direction; nothing read is no load."""
    assert is_loaded(LOAD_UTILISATION, None, None)
    assert not is_loaded(LOAD_UTILISATION - 0.01, LOAD_BYTES_PER_SECOND - 1, 0)
    assert is_loaded(0.0, 0, LOAD_BYTES_PER_SECOND)
    assert not is_loaded(None, None, None)


@pytest.mark.parametrize(("state", "loaded"), [(None, True), (0, True), (1, False), (2, False), (8, False)])
def test_load_counts_in_the_highest_performance_state(state: int | None, loaded: bool) -> None:
    """In a lower one the link may be slow by design, whatever the GPU does; where it is not told, the load decides."""
    assert is_loaded(1.0, LOAD_BYTES_PER_SECOND, performance_state=state) is loaded


def test_a_slow_link_is_degraded_under_load() -> None:
    """Below the maximum generation with load before and after is degraded; back at the maximum it resolves."""
    link = Link()
    link.step(generation=3)

    assert verdict(link.step(generation=3), "generation") == 1
    assert verdict(link.step(generation=5), "generation") == 1
    assert verdict(link.step(generation=5), "generation") == 0


def test_an_idle_gpu_has_no_verdict_on_its_generation() -> None:
    """A link that is slow because its GPU is idle is neither degraded nor well."""
    link = Link()

    for _ in range(5):
        assert verdict(link.step(generation=1, loaded=False), "generation") is None
    assert verdict(link.step(generation=1, loaded=None), "generation") is None


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_load_on_one_side_alone_does_not_judge(before: bool, after: bool) -> None:
    """A GPU that has just become idle has a slow link, and one that has just become busy still has."""
    link = Link()
    link.step(generation=1, loaded=before)

    assert verdict(link.step(generation=1, loaded=after), "generation") is None


def test_the_verdict_ends_with_the_load() -> None:
    """Once the GPU is idle nothing is said of its generation any more."""
    link = Link()
    link.step(generation=3)
    assert verdict(link.step(generation=3), "generation") == 1

    assert verdict(link.step(generation=3, loaded=False), "generation") is None


def test_traffic_alone_judges() -> None:
    """Two kinds of evidence are not mixed, and the one that shows load decides."""
    watch = GpuLinkWatch(*GPU, GAP)
    for time in (0.0, 10.0):
        watch.take_load("nvml_gpu", time, loaded=False)
        watch.take_load("nvml_gpm", time + 0.1, loaded=True)
        watch.take_link(reading(time + 1, generation=3))
    assert verdict(watch.block(11.0), "generation") == 1

    mixed = GpuLinkWatch(*GPU, GAP)
    mixed.take_load("nvml_gpu", 0.0, loaded=True)
    mixed.take_link(reading(1.0, generation=3))
    mixed.take_load("nvml_gpm", 2.0, loaded=True)
    assert verdict(mixed.block(2.0), "generation") is None


@pytest.mark.parametrize(("gap", "expected"), [(30.0, 1), (30.1, None)])
def test_load_looks_far_apart_say_nothing_of_the_time_between(gap: float, expected: Value) -> None:
    """Load at two looks with more than the greatest gap between them does not judge what was read in between."""
    watch = GpuLinkWatch(*GPU, GAP)
    watch.take_load("nvml_gpu", 0.0, loaded=True)
    watch.take_link(reading(gap - 1, generation=3))
    watch.take_load("nvml_gpu", gap, loaded=True)

    assert verdict(watch.block(gap), "generation") == expected


def test_what_was_not_read_is_not_judged() -> None:
    """A reading without width or generation ends both verdicts, and is not counted as well or degraded."""
    link = Link()
    for _ in range(3):
        link.step(width=8, generation=3)
    for _ in range(2):
        after = link.step(width=None, generation=None)

    assert (verdict(after, "width"), verdict(after, "generation")) == (None, None)


def test_an_old_verdict_is_none() -> None:
    """When nothing more is read, the verdicts age out."""
    link = Link()
    for _ in range(3):
        link.step(generation=3)
    last = link.now - STEP + 1

    assert verdict(link.watch.block(last + GAP), "width") == 0
    assert verdict(link.watch.block(last + GAP + 0.1), "width") is None
    assert verdict(link.watch.block(last + GAP + 0.1), "generation") is None


def test_seconds_count_between_degraded_readings() -> None:
    """Only time between two readings that both say so counts; the counter is there from the start and keeps its sum."""
    link = Link()
    assert seconds(link.step(width=8), "width") == 0
    link.step(width=8)
    assert seconds(link.step(width=4), "width") == 20
    link.step(width=16)
    assert seconds(link.step(width=8), "width") == 20
    assert seconds(link.step(width=8), "width") == 30


def test_idle_seconds_of_a_slow_link_do_not_count() -> None:
    """Seconds of a slow link count while it is judged: from the second judged reading on, not in idle."""
    link = Link()
    for _ in range(5):
        link.step(generation=1, loaded=False)
    for _ in range(4):
        link.step(generation=3)
    after = link.step(generation=3)
    assert seconds(after, "generation") == 30
    for _ in range(5):
        after = link.step(generation=1, loaded=False)
    assert seconds(after, "generation") == 30


def test_no_seconds_span_a_gap() -> None:
    """Readings too far apart leave the time between them out."""
    link = Link()
    link.step(width=8)
    link.now += GAP
    assert seconds(link.step(width=8), "width") == 0


STEPS = st.lists(
    st.tuples(
        st.floats(0, 50), st.none() | st.integers(1, 16), st.none() | st.integers(1, 6), st.none() | st.booleans()
    )
)


@given(STEPS)
def test_seconds_never_fall_and_never_exceed_the_time(
    steps: list[tuple[float, int | None, int | None, bool | None]],
) -> None:
    """Whatever is read, the counters grow by no more than the time that passes."""
    watch, now, before = GpuLinkWatch(*GPU, GAP), 0.0, (0.0, 0.0)
    for step, width, generation, loaded in steps:
        now += step
        if loaded is not None:
            watch.take_load("nvml_gpu", now, loaded)
        watch.take_link(reading(now, width, generation))
        block = watch.block(now)
        after = (seconds(block, "width") or 0.0, seconds(block, "generation") or 0.0)
        assert all(0 <= one <= other <= now for one, other in zip(before, after, strict=True))
        before = after


PORT, UPSTREAM, DOWN_NIC, DOWN_GPU = "0000:16:01.0", "0000:17:00.0", "0000:18:00.0", "0000:18:01.0"
NIC, CARD = "0000:19:00.0", "0000:1a:00.0"
TREE = {
    PORT: ("root_port", "pci0000:16"),
    UPSTREAM: ("switch_port", PORT),
    DOWN_NIC: ("switch_port", UPSTREAM),
    DOWN_GPU: ("switch_port", UPSTREAM),
    NIC: ("nic", DOWN_NIC),
    CARD: ("gpu", DOWN_GPU),
}


def device(address: str, role: str, parent: str, *link: Value) -> Block:
    """Generation, width, greatest generation, greatest width of a device."""
    names = ("link_generation", "link_width_lanes", "link_generation_max", "link_width_max_lanes")
    layout = Layout((
        *((f"commwatch_pcie_device_{name}", (address,)) for name in names),
        ("commwatch_pcie_device_info", (address, role, parent, "0", "0x15b3", "0x1021")),
    ))  # fmt: skip
    return Block(layout, [*link, 1], 0.0)


def judged(
    loaded: tuple[str, ...] = (), tree: dict[str, tuple[str, str]] = TREE, **links: tuple[Value, ...]
) -> dict[str, tuple[Value, Value]]:
    """Width and generation verdicts by device; links are named by the address without ``0000:``, in words."""
    blocks = {
        address: device(address, role, parent, *links.get(role, (5, 16, 5, 16)))
        for address, (role, parent) in tree.items()
    }
    block = DeviceLinkWatch().update(blocks, loaded, 0.0)
    roles = {labels[0]: labels[1] for _, labels in block.layout.series}
    metric = "commwatch_pcie_device_link_degraded"
    return {
        address: (block.get(metric, address, role, "width"), block.get(metric, address, role, "generation"))
        for address, role in roles.items()
    }


def test_each_link_is_judged_once_at_its_lower_end() -> None:
    """Adapter and switch have a verdict; ports that look down and the GPU, which has metrics of its own, have none."""
    assert judged() == {NIC: (0, 0), UPSTREAM: (0, 0)}


def test_an_adapters_link_is_degraded_below_both_maxima() -> None:
    """Narrower or slower than both ends allow is degraded, also without any load."""
    assert judged(nic=(4, 8, 5, 16))[NIC] == (1, 1)
    assert judged(nic=(4, 8, 4, 8))[NIC] == (0, 0)


def test_a_slot_that_cannot_do_more_is_no_fault() -> None:
    """An adapter of 16 lanes in a port of 8 lanes and a lower generation runs as well as it can."""
    assert judged(nic=(4, 8, 5, 16), switch_port=(4, 8, 4, 8))[NIC] == (0, 0)


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_value_that_was_not_read_is_not_judged(missing: int) -> None:
    """Without a current value or a maximum its aspect has no verdict, and the other one has."""
    values: list[Value] = [4, 8, 5, 16]
    values[missing] = None

    width, generation = judged(nic=tuple(values))[NIC]

    assert (width, generation) == ((1, None) if missing % 2 == 0 else (None, 1))


def test_an_adapter_on_the_host_bridge_has_no_link_to_judge() -> None:
    """In a virtual machine without ports the other end is not known."""
    assert judged(tree={NIC: ("nic", "pci0000:00")}, nic=(4, 8, 5, 16)) == {}


def test_a_switch_of_gpus_alone_is_judged_under_load() -> None:
    """Above GPUs alone the generation is judged while one is loaded; the width always is."""
    tree = {address: place for address, place in TREE.items() if address not in {NIC, DOWN_NIC}}
    slow = (3, 8, 5, 16)

    assert judged(tree=tree, switch_port=slow)[UPSTREAM] == (1, None)
    assert judged((CARD,), tree=tree, switch_port=slow)[UPSTREAM] == (1, 1)
    assert judged(switch_port=slow)[UPSTREAM] == (1, 1)


def test_an_nvswitch_has_no_verdict_on_its_generation() -> None:
    """Whether its link slows down is not established: its width alone is judged."""
    tree = {PORT: TREE[PORT], NIC: ("nvswitch", PORT)}

    assert judged(tree=tree, nvswitch=(3, 2, 4, 4)) == {NIC: (1, None)}
