"""PCIe links behind the collectors: each verdict at its edge, and it stands in the store while it is current."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Config, Duration, Inventory
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Value
from support.core import collected
from support.examples import examples
from support.fed_daemon import FedDaemon, Values

GPU = ("0", "0000:18:00.0")
SLOT, PORT, NIC, NIC_PORT = GPU[1], "0000:17:01.0", "0000:3a:00.0", "0000:39:01.0"
UPSTREAM, DOWN_NIC, DOWN_GPU = "0000:27:00.0", "0000:28:00.0", "0000:28:01.0"
LINKS, USE, GPM, PCI = "nvml_pcie", "nvml_gpu", "nvml_gpm", "pci"
STEP, GAP = 10.0, 30.0
HALF_A_GIGABYTE = 500e6
"""Bytes per second from which PCIe traffic is load."""
Link = tuple[Value, Value, Value, Value]
"""Generation, width, greatest generation and greatest width of a device."""


class Node(FedDaemon):
    """A node with one GPU, read every 10 s, whose parts are learned in 15 s."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patched, Config(inventory=Inventory(learn_after=Duration(15.0))))

    def identify(self) -> None:
        driver: Values = {("commwatch_software_info", ("580", "13", "13.0")): 1}
        gpu: Values = {("commwatch_gpu_info", (*GPU, "GPU-0", "1", "H100", "hopper")): 1}
        self.feed("nvml_identity", {"": driver, SLOT: gpu})

    def link(self, width: Value = 16, generation: Value = 5, most: tuple[Value, Value] = (16, 5)) -> None:
        """NVML's word on the link, and on the lanes and the generation that both ends can do."""
        values: dict[str, Value] = {
            "width_lanes": width,
            "generation": generation,
            "width_max_lanes": most[0],
            "generation_max": most[1],
        }
        self.feed(LINKS, {SLOT: {(f"commwatch_pcie_link_{name}", GPU): value for name, value in values.items()}})

    def use(self, ratio: Value, state: Value = None) -> None:
        values: Values = {
            ("commwatch_gpu_utilization_ratio", GPU): ratio, ("commwatch_gpu_performance_state", GPU): state,
        }  # fmt: skip
        self.feed(USE, {SLOT: values})

    def traffic(self, sent: Value, received: Value = 0.0, total: Value = None) -> None:
        values: Values = {
            ("commwatch_pcie_transmit_rate_bytes_per_second", GPU): sent,
            ("commwatch_pcie_receive_rate_bytes_per_second", GPU): received,
            ("commwatch_pcie_transmit_bytes_total", GPU): total,
            ("commwatch_pcie_receive_bytes_total", GPU): 0,
        }
        self.feed(GPM, {SLOT: values})

    def devices(self, tree: Mapping[str, tuple[str, str]], links: Mapping[str, Link] | None = None) -> None:
        """What sysfs says of devices, by role and parent; links are of 16 lanes of generation 5, or by role."""
        blocks: dict[str, Values] = {}
        for address, (role, parent) in tree.items():
            names = ("generation", "width_lanes", "generation_max", "width_max_lanes")
            link = zip(names, (links or {}).get(role, (5, 16, 5, 16)), strict=True)
            blocks[address] = {
                **{(f"commwatch_pcie_device_link_{name}", (address,)): value for name, value in link},
                ("commwatch_pcie_device_info", (address, role, parent, "0", "0x15b3", "0x1021")): 1,
            }
        self.feed(PCI, blocks)

    def step(
        self, width: Value = 16, generation: Value = 5, loaded: bool | None = True, most: tuple[Value, Value] = (16, 5)
    ) -> None:
        """One cycle: the load of the GPU, unless nothing tells it, and its link a second later."""
        if loaded is not None:
            self.use(1.0 if loaded else 0.0)
        self.clock.now += 1
        self.link(width, generation, most)
        self.clock.now += STEP - 1

    def verdict(self, aspect: str) -> Value:
        return self.value("pcie_link_degraded", *GPU, aspect)

    def seconds(self, aspect: str) -> Value:
        return self.value("pcie_link_degraded_seconds_total", *GPU, aspect)

    def of_devices(self) -> dict[str, tuple[Value, Value]]:
        """The verdicts on width and generation of each link above an adapter or a switch."""
        metric, shown = "commwatch_pcie_device_link_degraded", self.engine.store.get("pcie_device_link_degraded", "")
        series = () if shown is None else shown.layout.series
        return {
            labels[0]: (
                self.value(metric[10:], *labels[:2], "width"),
                self.value(metric[10:], *labels[:2], "generation"),
            )
            for _, labels in series
        }


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("learned", "width", "maximum", "narrow"),
    [
        (16, 16, 16, 0),
        (16, 15, 16, 1),
        (None, 8, 16, 1),  # not learned yet: what both ends can do
        (None, 8, 8, 0),  # a slot wired with 8 lanes
        (8, 8, 16, 0),
        (8, 4, 16, 1),
        (16, 8, 8, 1),  # the maximum itself has fallen
        (8, 16, 16, 0),
        (16, None, 16, None),
        (None, 8, None, None),
    ],
)
def test_width_is_held_against_what_was_learned(
    node: Node, learned: int | None, width: Value, maximum: Value, narrow: Value
) -> None:
    """The expectation goes before the maximum of both ends, and without either nothing is reported; idle or not."""
    for _ in range(4 if learned else 0):
        node.identify()
        node.step(learned, loaded=False)
    node.step(width, loaded=False, most=(maximum, 5))

    assert node.verdict("width") == narrow


def test_a_narrow_link_is_degraded_until_it_is_accepted(node: Node) -> None:
    for width, narrow in ((16, 0), (16, 0), (16, 0), (8, 1)):
        node.identify()
        node.step(width)
        assert node.verdict("width") == narrow
    node.identify()
    node.accept()
    node.step(8)

    assert node.verdict("width") == 0


def test_seconds_count_between_degraded_readings(node: Node) -> None:
    """Only time between two readings that both say so counts; the counter is there from the start and keeps its sum."""
    found = []
    for width in (16, 8, 8, 4, 16, 8, 8):
        node.step(width)
        found.append(node.seconds("width"))
    assert found == [0, 0, 10, 20, 20, 20, 30]

    node.clock.now += GAP
    node.step(8)
    assert node.seconds("width") == 30, "readings too far apart leave the time between them out"


@pytest.mark.parametrize(
    ("generation", "maximum", "slow"), [(5, 5, 0), (4, 5, 1), (5, 4, 0), (None, 5, None), (5, None, None)]
)
def test_generation_is_held_against_the_maximum(node: Node, generation: Value, maximum: Value, slow: Value) -> None:
    """Just below the maximum is slow; what was not read is not judged."""
    for _ in range(3):
        node.step(generation=generation, most=(16, maximum))

    assert node.verdict("generation") == slow


@pytest.mark.parametrize(
    ("driver", "port", "narrow", "slow"),
    [
        ((16, 5), (4, 8), 0, 0), ((16, 5), (None, None), 1, 1), ((None, None), (4, 8), 0, 0),
        ((None, None), (None, None), None, None),
    ],
)  # fmt: skip
def test_both_ends_can_do_what_the_lesser_can(
    node: Node, driver: tuple[Value, Value], port: tuple[Value, Value], narrow: Value, slow: Value
) -> None:
    """Where sysfs shows that the slot can do less than the driver says, that is no fault; an end not known is none."""
    node.devices({PORT: ("root_port", "pci0000:17"), SLOT: ("gpu", PORT)}, {"root_port": (5, 16, *port)})
    for _ in range(3):
        node.step(8, 4, most=driver)

    assert (node.verdict("width"), node.verdict("generation")) == (narrow, slow)


@pytest.mark.parametrize(
    ("use", "sent", "received", "slow"),
    [
        (0.5, 0.0, 0.0, 1), (0.49, HALF_A_GIGABYTE - 1, 0.0, None), (0.0, 0.0, HALF_A_GIGABYTE, 1),
        (0.0, HALF_A_GIGABYTE, 0.0, 1), (None, None, None, None),
    ],
)  # fmt: skip
def test_load_is_work_or_traffic(node: Node, use: Value, sent: Value, received: Value, slow: Value) -> None:
    """Kernels for half of the time, or traffic at the floor in one direction; nothing read is no load."""
    for _ in range(3):
        node.use(use)
        node.traffic(sent, received)
        node.link(generation=4)
        node.clock.now += STEP

    assert node.verdict("generation") == slow


@pytest.mark.parametrize(
    ("states", "slow"),
    [((0, 0, 0), 1), ((1, 1, 1), None), ((2, 2, 2), None), ((8, 8, 8), None), ((0, 0, 2), None), ((None,) * 3, 1)],
)
def test_load_counts_in_the_highest_performance_state(node: Node, states: tuple[Value, ...], slow: Value) -> None:
    """In a lower one, or about to leave it, a link may be slow by design; where it is not told, the load decides."""
    for state in states:
        node.use(1.0, state)
        node.traffic(20e9)
        node.link(generation=4)
        node.clock.now += STEP

    assert node.verdict("generation") == slow


def test_a_slow_link_is_degraded_between_loads(node: Node) -> None:
    """With load before and after; back at the maximum it resolves, and once the GPU is idle nothing is reported."""
    found = []
    for generation, loaded in ((3, True), (3, True), (5, True), (5, True), (3, True), (3, True), (3, False)):
        node.step(generation=generation, loaded=loaded)
        found.append(node.verdict("generation"))

    assert found == [None, 1, 1, 0, 0, 1, None]


@pytest.mark.parametrize(
    "loads",
    [(False,) * 5, (False, False, None), (True, False), (False, True)],
    ids=["idle", "unread", "ends", "begins"],
)
def test_a_gpu_without_load_before_and_after_has_no_verdict_on_its_generation(
    node: Node, loads: tuple[bool | None, ...]
) -> None:
    """One that has just become idle has a slow link, and one that has just become busy still has."""
    for loaded in loads:
        node.step(generation=1, loaded=loaded)
        assert node.verdict("generation") is None


def test_traffic_alone_judges(node: Node) -> None:
    """The evidence that shows load decides, and two kinds of it are not mixed."""
    for _ in range(2):
        node.use(0.0)
        node.traffic(20e9)
        node.step(generation=3, loaded=None)
    assert node.verdict("generation") == 1

    node.clock.now += 2 * GAP
    node.use(1.0)
    node.link(generation=3)
    node.clock.now += 1
    node.traffic(20e9)
    assert node.verdict("generation") is None


@pytest.mark.parametrize(("gap", "expected"), [(GAP, 1), (GAP + 0.1, None)])
def test_load_looks_far_apart_say_nothing_of_the_time_between(node: Node, gap: float, expected: Value) -> None:
    """Load at two looks with more than the greatest gap between them does not judge what was read in between."""
    node.use(1.0)
    node.clock.now += gap - 1
    node.link(generation=3)
    node.clock.now += 1
    node.use(1.0)

    assert node.verdict("generation") == expected


def test_what_was_not_read_is_not_judged(node: Node) -> None:
    """A reading without width or generation ends both verdicts, and is not counted as well or degraded."""
    for _ in range(3):
        node.step(8, 3)
    for _ in range(2):
        node.step(None, None)

    assert (node.verdict("width"), node.verdict("generation")) == (None, None)


def test_an_old_verdict_is_none(node: Node) -> None:
    """When the link is not read any more, its last judgement ages out."""
    node.step()
    node.clock.now += GAP - STEP + 1
    node.traffic(0.0)
    assert node.verdict("width") == 0
    node.clock.now += 0.1
    node.traffic(0.0)
    assert node.verdict("width") is None


def test_idle_seconds_of_a_slow_link_do_not_count(node: Node) -> None:
    """Seconds of a slow link count while it is judged: from the second judged reading on, not in idle."""
    for generation, loaded, times in ((1, False, 5), (3, True, 5), (1, False, 5)):
        for _ in range(times):
            node.step(generation=generation, loaded=loaded)
        assert node.seconds("generation") == (0 if not loaded and generation == 1 and node.clock.now < 10_060 else 30)


STEPS = st.lists(
    st.tuples(
        st.floats(0, 50), st.none() | st.integers(1, 16), st.none() | st.integers(1, 6), st.none() | st.booleans()
    ),
    max_size=20,
)


@examples(40, one_fixture=True)
@given(STEPS)
def test_seconds_never_fall_and_never_exceed_the_time(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, int | None, int | None, bool | None]]
) -> None:
    """Whatever is read, the counters grow by no more than the time that passes."""
    with pytest.MonkeyPatch.context() as patched:
        node, passed, before = Node(tmp_path_factory.mktemp("node"), patched), 0.0, (0.0, 0.0)
        for step, width, generation, loaded in steps:
            passed += step
            node.clock.now += step
            if loaded is not None:
                node.use(float(loaded))
            node.link(width, generation)
            after = (node.seconds("width") or 0.0, node.seconds("generation") or 0.0)
            assert all(0 <= one <= other <= passed + 1e-6 for one, other in zip(before, after, strict=True))
            before = after


def test_a_gpu_that_is_not_read_has_no_verdict(node: Node) -> None:
    """With the readings the verdict goes, as in maintenance; its seconds go on from where they were."""
    for _ in range(3):
        node.step(8)
    node.feed(LINKS, collected(None, Absence(SLOT, "lost", "nvml: GPU is lost")))
    assert node.verdict("width") is None

    node.clock.now += 100
    node.step(8)
    assert (node.verdict("width"), node.seconds("width")) == (1, 20)
    node.pause()
    assert node.verdict("width") is None


TREE = {
    PORT: ("root_port", "pci0000:16"),
    UPSTREAM: ("switch_port", PORT),
    DOWN_NIC: ("switch_port", UPSTREAM),
    DOWN_GPU: ("switch_port", UPSTREAM),
    NIC: ("nic", DOWN_NIC),
    SLOT: ("gpu", DOWN_GPU),
}
ABOVE_GPUS = {address: place for address, place in TREE.items() if address not in {NIC, DOWN_NIC}}
SLOW: Link = (3, 8, 5, 16)


@pytest.mark.parametrize(
    ("tree", "links", "verdicts"),
    [
        pytest.param(TREE, {}, {NIC: (0, 0), UPSTREAM: (0, 0)}, id="each link once, at its lower end, but for GPUs"),
        pytest.param(TREE, {"nic": (4, 8, 5, 16)}, {NIC: (1, 1), UPSTREAM: (0, 0)}, id="below both maxima"),
        pytest.param(TREE, {"nic": (4, 8, 4, 8)}, {NIC: (0, 0), UPSTREAM: (0, 0)}, id="no more than it can"),
        pytest.param(
            TREE, {"nic": (4, 8, 5, 16), "switch_port": (4, 8, 4, 8)}, {NIC: (0, 0), UPSTREAM: (0, 0)},
            id="a slot that cannot do more",
        ),
        pytest.param(TREE, {"nic": (None, 8, 5, 16)}, {NIC: (1, None), UPSTREAM: (0, 0)}, id="no generation now"),
        pytest.param(TREE, {"nic": (4, None, 5, 16)}, {NIC: (None, 1), UPSTREAM: (0, 0)}, id="no width now"),
        pytest.param(TREE, {"nic": (4, 8, None, 16)}, {NIC: (1, None), UPSTREAM: (0, 0)}, id="no greatest generation"),
        pytest.param(TREE, {"nic": (4, 8, 5, None)}, {NIC: (None, 1), UPSTREAM: (0, 0)}, id="no greatest width"),
        pytest.param({NIC: ("nic", "pci0000:00")}, {"nic": (4, 8, 5, 16)}, {}, id="a host bridge has no other end"),
        pytest.param(TREE, {"switch_port": SLOW}, {NIC: (0, 0), UPSTREAM: (1, 1)}, id="a switch with an adapter"),
        pytest.param(ABOVE_GPUS, {"switch_port": SLOW}, {UPSTREAM: (1, None)}, id="a switch of idle GPUs alone"),
        pytest.param(
            {PORT: TREE[PORT], UPSTREAM: TREE[UPSTREAM], DOWN_NIC: TREE[DOWN_NIC], NIC: ("nvswitch", DOWN_NIC)},
            {"nvswitch": (3, 2, 4, 4), "switch_port": (3, 2, 4, 16)}, {},
            id="to NVSwitches alone, which carries management",
        ),
    ],
)  # fmt: skip
def test_links_above_adapters_and_switches(
    node: Node, tree: Mapping[str, tuple[str, str]], links: Mapping[str, Link], verdicts: Mapping[str, object]
) -> None:
    """Narrower or slower than both ends allow is degraded, also without any load; what was not read is not judged."""
    node.devices(tree, links)

    assert node.of_devices() == verdicts


def test_a_switch_of_gpus_alone_is_judged_under_load(node: Node) -> None:
    for _ in range(2):
        node.step()
    node.devices(ABOVE_GPUS, {"switch_port": SLOW})

    assert node.of_devices() == {UPSTREAM: (1, 1)}


def test_a_degraded_adapter_is_told_once_in_the_log(node: Node) -> None:
    """And once more when it is as it should be; without the tree nothing is reported."""
    tree = {NIC_PORT: ("root_port", "pci0000:39"), NIC: ("nic", NIC_PORT)}
    for width in (8, 8, 16):
        node.devices(tree, {"nic": (5, width, 5, 16)})

    assert [(one["event"], one["device"], one["aspect"]) for one in node.log if "a PCIe link" in one["event"]] == [
        ("a PCIe link is degraded", NIC, "width"),
        ("a PCIe link is as it should be again", NIC, "width"),
    ]
    node.feed(PCI, collected(None, Absence("", "crashed", "the worker ended")))
    assert node.of_devices() == {}


def test_pcie_use_is_of_the_expected_link(node: Node) -> None:
    """The use of a GPU's PCIe link is of 63 GB/s, its expected 16 lanes of generation 5."""
    node.identify()
    node.link()
    node.identify()
    node.traffic(0.0, total=0)
    node.clock.now += STEP
    node.traffic(1.0, total=630_153_846_154)

    assert node.value("pcie_transmit_utilization_ratio", *GPU) == pytest.approx(1.0)
