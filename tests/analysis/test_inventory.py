"""The inventory: learned slowly, lowered only by the operator, keyed by UUID."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.inventory import Inventory, Kind
from commwatch.node.inventory_state import InventoryState
from commwatch.node.observation import Observation, SeenGpu, SeenPort, observe_blocks
from commwatch.state.records import decode
from commwatch.units import format_rate
from commwatch_exporters.snapshot import Value
from support.pages import block_of
from support.passes import in_one_pass

SLOTS = ("0000:17:00.0", "0000:3d:00.0", "0000:60:00.0", "0000:70:00.0")
LINKS: Mapping[int, float | None] = {0: 25e9, 1: 25e9}


def gpu(number: int, index: int | None = None, slot: int | None = None) -> SeenGpu:
    """A GPU with two NVLinks and a PCIe link of generation 5 with 16 lanes."""
    return SeenGpu(
        uuid=f"GPU-{number}",
        index=number if index is None else index,
        pci_bus_id=SLOTS[number if slot is None else slot],
        name="H100",
        links_up=LINKS,
        pcie_lanes=16,
        pcie_generation=5,
    )


def node(*gpus: SeenGpu) -> Observation:
    return Observation(gpus=gpus, ports={"eth0": SeenPort(is_up=True, speed=12.5e9)})


FOUR = node(*(gpu(number) for number in range(4)))


def inventory(state: InventoryState | None = None, configured: Mapping[Kind, int] | None = None) -> Inventory:
    return Inventory(state or InventoryState(), configured or {}, learn_after_seconds=600)


def watch(subject: Inventory, seen: Observation, start: float, end: float) -> list[str]:
    """Observe the same every minute from start to end, both included."""
    learned = []
    now = start
    while now <= end:
        learned += subject.observe(seen, now)
        now += 60
    return learned


def learned_four() -> Inventory:
    subject = inventory()
    watch(subject, FOUR, 0, 600)
    return subject


def restarted(subject: Inventory) -> Inventory:
    """The same after the daemon was restarted: only what the state directory holds is left."""
    return inventory(msgspec.json.decode(msgspec.json.encode(subject.state), type=InventoryState))


def rebooted(subject: Inventory) -> Inventory:
    """The same after the node has booted again."""
    subject = restarted(subject)
    subject.begin("the next boot")
    return subject


def links_of(subject: Inventory, slot: str) -> tuple[set[int], float | None] | None:
    """The NVLinks that a GPU should have, and what they carry together each way, bytes per second."""
    found = subject.nvlink_expectation(slot)
    return None if found is None else (set(found.links), found.capacity_bytes_per_second)


ALL_PARTS = {"gpu": 4, "nvlink": 8, "pcie_lane": 64, "rdma_port": None, "ethernet_port": 1}
NO_PARTS: Mapping[str, int | None] = dict.fromkeys(ALL_PARTS)


def test_parts_are_expected_for_good_after_ten_minutes() -> None:
    """Also in the next boot; what was there for less time is forgotten with the boot that has shown it."""
    subject = inventory()

    assert watch(subject, FOUR, 0, 540) == []
    assert rebooted(subject).expected() == NO_PARTS
    assert len(subject.observe(FOUR, 600)) == 4 * 4 + 1
    assert subject.expected() == rebooted(subject).expected() == ALL_PARTS
    assert subject.present() == subject.expected()


def test_a_part_that_one_reading_has_shown_is_expected_from_then_on() -> None:
    """GPUs, links, lanes and RDMA ports, in this boot, also after a restart of the daemon; an interface is not yet."""
    subject = inventory()
    ports = {"mlx5_0:1": SeenPort(is_up=True, speed=50e9), "mlx5_1:1": SeenPort(is_up=False)}
    subject.begin("this boot")
    subject.observe(replace(FOUR, rdma_ports=ports), 0)
    assert subject.expected() == {**ALL_PARTS, "ethernet_port": None, "rdma_port": 1}
    down = {name: SeenPort(is_up=False) for name in ports}
    odd = replace(gpu(0), links_up={0: 25e9}, links_down=frozenset({1}), pcie_lanes=8)
    subject = restarted(subject)
    subject.begin("this boot")
    subject.observe(replace(node(odd, gpu(1), gpu(2)), rdma_ports=down), 10)

    assert subject.expected() == {**ALL_PARTS, "ethernet_port": None, "rdma_port": 1}
    assert (subject.present()["gpu"], subject.present()["rdma_port"]) == (3, 0)
    assert [uuid for uuid, one in subject.state.gpus.items() if one.is_expected] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    block = block_of(subject.readings())
    assert block.get("commwatch_nvlink_link_expected", "0", SLOTS[0], "1") == 1
    assert block.get("commwatch_pcie_link_width_expected_lanes", "0", SLOTS[0]) == 16
    assert block.get("commwatch_rdma_port_expected", "mlx5_0", "1") == 1


def test_what_an_unknown_boot_has_shown_is_not_expected() -> None:
    """Where the identity of a boot cannot be read, a restart may be a reboot."""
    subject = inventory()
    subject.observe(FOUR, 0)
    subject = restarted(subject)
    subject.begin("")

    assert subject.expected() == NO_PARTS


def test_a_gpu_that_was_handed_to_a_virtual_machine_is_not_missed() -> None:
    """One that only this boot has shown; one that was there for ten minutes is, until the change is accepted."""
    three = replace(node(gpu(0), gpu(1), gpu(2)), is_handed_on=True)
    young = inventory()
    young.observe(FOUR, 0)
    young.observe(three, 10)
    assert young.expected() == {"gpu": 3, "nvlink": 6, "pcie_lane": 48, "rdma_port": None, "ethernet_port": None}

    old = learned_four()
    old.observe(three, 660)
    assert old.expected()["gpu"] == 4


def test_a_gpu_whose_uuid_was_not_read_at_first_is_one_gpu() -> None:
    """It is known by its address until its UUID is read, and is not missed under that name."""
    subject = inventory()
    subject.observe(node(replace(gpu(0), uuid=SLOTS[0])), 0)
    subject.observe(node(gpu(0)), 10)

    assert subject.expected()["gpu"] == 1
    assert [uuid for uuid, one in subject.state.gpus.items() if one.is_expected] == ["GPU-0"]


def test_an_inventory_of_the_first_version_is_read_as_it_was_meant() -> None:
    """What was stable then is expected, and nothing counts as seen in this boot; what makes no sense is refused."""
    learned = {"expected": 1.0, "candidate": None, "held_seconds": 0.0}
    lanes = {"expected": None, "candidate": 16.0, "held_seconds": 300.0}
    gpus = {
        "GPU-0": {
            "index": 0, "pci_bus_id": SLOTS[0], "name": "H100", "is_replaced": False, "presence": learned,
            "links": {"0": {**learned, "expected": 25e9}}, "pcie_lanes": lanes, "pcie_generation": learned,
        }
    }  # fmt: skip
    state = decode(json.dumps({"gpus": gpus, "ports": {"eth0": learned}}).encode(), InventoryState)
    state.begin("this boot")

    assert inventory(state).expected() == {
        "gpu": 1, "nvlink": 1, "pcie_lane": None, "rdma_port": None, "ethernet_port": 1
    }  # fmt: skip
    with pytest.raises(ValueError, match="where a number up to 32 is counted"):
        decode(json.dumps({"gpus": {"GPU-0": gpus["GPU-0"] | {"pcie_lanes": learned | {"expected": 640.0}}}}).encode(),
               InventoryState)  # fmt: skip


def test_what_is_seen_once_more_teaches_nothing() -> None:
    """While it is learned too, until it is expected: so nothing need be saved soon."""
    subject = inventory()
    subject.observe(FOUR, 0)
    learned = []
    for minute in range(1, 30):
        subject.observe(replace(FOUR), 60 * minute)
        learned.append(subject.learned)

    assert learned == [1] * 9 + [2] * 20
    subject.observe(node(gpu(0)), 1800)
    assert subject.learned == 2
    assert subject.expected()["gpu"] == 4


def test_a_part_that_comes_late_is_expected_as_late() -> None:
    """Ten minutes after it was seen first, however long nothing else has changed; and not before a break is over."""
    subject = learned_four()
    watch(subject, FOUR, 660, 5000)
    more = replace(FOUR, ports={**(FOUR.ports or {}), "eth1": SeenPort(is_up=True, speed=12.5e9)})

    assert watch(subject, more, 5040, 5040 + 540) == []
    watch(subject, FOUR, 5640, 5640)
    assert watch(subject, more, 5700, 5700 + 540) == []
    assert subject.observe(more, 6300) == ["interface eth1 is expected at 12.5 GB/s"]


def test_what_was_accepted_is_not_learned_from_before() -> None:
    """An observation that taught nothing is looked at again after an acceptance: what is here may be more now."""
    subject = learned_four()
    three = node(*(gpu(number) for number in range(3)))
    watch(subject, three, 660, 1200)
    learned = subject.learned
    subject.accept()

    assert subject.learned > learned
    assert subject.expected()["gpu"] == 3
    assert len(watch(subject, FOUR, 1260, 1260 + 600)) == 4


def test_learning_goes_on_after_a_restart() -> None:
    """The time that a part was there counts on across a restart, and the time between is not counted."""
    subject = inventory()
    watch(subject, FOUR, 0, 300)

    subject = restarted(subject)

    assert watch(subject, FOUR, 9_000_000, 9_000_000 + 240) == []
    assert watch(subject, FOUR, 9_000_000 + 300, 9_000_000 + 300) != []


@in_one_pass("jump", [181.0, 1e6, -1e6])
def test_silence_and_clock_steps_teach_nothing(jump: float) -> None:
    """A long gap between observations, or time that goes back, is no stability."""
    subject = inventory()
    watch(subject, FOUR, 0, 540)

    assert subject.observe(FOUR, 540 + jump) == []
    assert rebooted(subject).expected()["gpu"] is None


def test_a_break_starts_the_learning_anew() -> None:
    """A link that went down in its ten minutes must hold for ten minutes again."""
    subject = inventory()
    down = node(replace(gpu(0), links_up={0: 25e9}, links_down=frozenset({1})))
    watch(subject, node(gpu(0)), 0, 300)
    watch(subject, down, 360, 360)
    watch(subject, node(gpu(0)), 420, 960)

    assert (subject.expected()["nvlink"], rebooted(subject).expected()["nvlink"]) == (2, 1)
    subject.observe(node(gpu(0)), 1020)
    assert rebooted(subject).expected()["nvlink"] == 2


def test_the_largest_value_wins() -> None:
    """A wider PCIe link raises the expectation; a narrower one never lowers it."""
    subject = inventory()
    watch(subject, node(replace(gpu(0), pcie_lanes=8)), 0, 600)
    assert subject.expected()["pcie_lane"] == 8
    watch(subject, node(gpu(0)), 660, 1260)
    watch(subject, node(replace(gpu(0), pcie_lanes=4)), 1320, 9000)

    assert (subject.expected()["pcie_lane"], subject.present()["pcie_lane"]) == (16, 4)


def test_a_width_that_was_read_once_was_there() -> None:
    """A link that falls from 16 lanes to 8 before it was learned has lost lanes; it has not always lacked them."""
    subject = inventory()
    watch(subject, node(gpu(0)), 0, 0)
    watch(subject, node(replace(gpu(0), pcie_lanes=8)), 120, 900)

    assert (subject.expected()["pcie_lane"], subject.present()["pcie_lane"]) == (16, 8)


def test_a_lost_gpu_stays_expected() -> None:
    """A GPU that does not answer has no parts, and its identity stays on the page."""
    subject = learned_four()

    subject.observe(FOUR.without({SLOTS[3]}), 660)

    assert subject.present() == {"gpu": 3, "nvlink": 6, "pcie_lane": 48, "rdma_port": None, "ethernet_port": 1}
    assert subject.expected()["gpu"] == 4
    assert block_of(subject.readings()).get("commwatch_nvlink_link_expected", "3", SLOTS[3], "0") == 1


def test_moved_indexes_change_nothing() -> None:
    """After a restart with one card fewer the others keep what is expected of them, under their new index."""
    subject = restarted(learned_four())
    left = node(gpu(0), gpu(2, index=1), gpu(3, index=2))

    assert watch(subject, left, 0, 1200) == []

    assert (subject.expected()["gpu"], subject.present()["gpu"]) == (4, 3)
    block = block_of(subject.readings())
    expected = [labels for name, labels in block.layout.series if name == "commwatch_nvlink_link_expected"]
    slots = {("0", SLOTS[0]), ("1", SLOTS[1]), ("1", SLOTS[2]), ("2", SLOTS[3])}
    assert {labels[:2] for labels in expected} == slots
    assert links_of(subject, SLOTS[2]) == ({0, 1}, 50e9)


def test_a_swapped_gpu_is_missing_until_accepted() -> None:
    """A new card in the slot of an old one is another GPU; the old one is given up only by the operator."""
    subject = learned_four()
    swapped = node(gpu(0), gpu(1), gpu(2), replace(gpu(3), uuid="GPU-new"))
    watch(subject, swapped, 660, 1260)

    assert (subject.expected()["gpu"], subject.present()["gpu"]) == (5, 4)
    assert [uuid for uuid, one in subject.state.gpus.items() if one.is_replaced] == ["GPU-3"]
    assert block_of(subject.readings()).get("commwatch_nvlink_link_expected", "3", SLOTS[3], "1") == 1
    assert subject.accept() == [f"GPU 3 (H100, GPU-3, {SLOTS[3]}) is no longer expected"]
    assert subject.expected() == subject.present()


def test_a_driver_that_is_away_hides_what_is_present() -> None:
    """What was not read is absent, and what is expected stays, also beside a replaced card after a restart."""
    subject = learned_four()
    subject.observe(node(gpu(0), gpu(1), gpu(2), replace(gpu(3), uuid="GPU-new")), 660)
    subject = restarted(subject)

    subject.observe(Observation(), 0)

    assert set(subject.present().values()) == {None}
    assert subject.expected() == {"gpu": 5, "nvlink": 10, "pcie_lane": 80, "rdma_port": None, "ethernet_port": 1}
    assert block_of(subject.readings()).get("commwatch_present", "gpu") is None


@in_one_pass(
    "change, kind",
    [({"links_up": None}, "nvlink"), ({"links_up": {0: 25e9}}, "nvlink"), ({"pcie_lanes": None}, "pcie_lane")],
)
def test_a_part_that_was_not_read_hides_its_kind(change: dict[str, object], kind: Kind) -> None:
    """The number of a kind is absent while one expected part of a working GPU was not read."""
    subject = learned_four()

    subject.observe(node(*(gpu(number) for number in range(3)), replace(gpu(3), **change)), 660)  # type: ignore[arg-type]  # fields by name

    expected = subject.expected()
    hidden = [name for name, number in subject.present().items() if number is None and expected[name] is not None]
    assert hidden == [kind]


def test_accept_lowers_what_is_less_and_keeps_what_was_not_read() -> None:
    """After accepting, a fault of before is what is expected; parts that were not read are left alone."""
    subject = learned_four()
    faulty = replace(gpu(0), links_up={0: 25e9}, links_down=frozenset({1}), pcie_lanes=8)
    subject.observe(Observation(gpus=(faulty, gpu(1), replace(gpu(2), links_up=None), gpu(3))), 660)

    assert subject.accept() == [
        f"GPU 0 (H100, GPU-0, {SLOTS[0]}): NVLink 1 is no longer expected",
        f"GPU 0 (H100, GPU-0, {SLOTS[0]}): PCIe lanes 8 expected in place of 16",
    ]
    assert subject.expected() == {"gpu": 4, "nvlink": 7, "pcie_lane": 56, "rdma_port": None, "ethernet_port": 1}


def test_what_is_configured_and_was_never_here() -> None:
    """At the first observation; a GPU that something else names, and what it takes with it, are not missing besides."""
    subject = inventory(configured={"gpu": 5, "nvlink": 10, "pcie_lane": 80, "ethernet_port": 1})
    watch(subject, FOUR, 0, 0)

    assert subject.never_seen(0) == {"gpu": 1, "nvlink": 0, "pcie_lane": 0, "ethernet_port": 0}
    assert subject.never_seen(faulty_strangers=1)["gpu"] == 0


def test_what_was_learned_and_is_gone_was_seen() -> None:
    """Its own series name it; of what was not read nothing is said."""
    subject = inventory(configured={"gpu": 4, "nvlink": 8})
    watch(subject, FOUR, 0, 600)
    subject.observe(node(*(gpu(number) for number in range(3))), 660)
    assert subject.never_seen(0) == {"gpu": 0, "nvlink": 0}

    subject.observe(Observation(gpus=None, ports=None), 720)
    assert subject.never_seen(0) == {"gpu": None, "nvlink": None}


@pytest.mark.parametrize(
    ("asked", "never_seen"),
    [
        ({"gpu": 4, "nvlink": 8, "pcie_lane": 64}, {"gpu": 0, "nvlink": 0, "pcie_lane": 0}),
        ({"nvlink": 8}, {"nvlink": 2}),
    ],
)
def test_a_gpu_that_goes_before_its_links_were_read_takes_them_with_it(
    asked: Mapping[Kind, int], never_seen: Mapping[str, int]
) -> None:
    """It is missing by its name; without the number of GPUs nobody knows how many of the links are its."""
    unread = replace(gpu(3), links_up=None, pcie_lanes=None, pcie_generation=None)
    subject = inventory(configured=asked)
    watch(subject, node(gpu(0), gpu(1), gpu(2), unread), 0, 600)
    subject = inventory(restarted(subject).state, asked)

    subject.observe(node(gpu(0), gpu(1), gpu(2)), 700)

    assert subject.never_seen(0) == never_seen


def test_interfaces_are_learned_with_their_speed() -> None:
    """A port that was up is expected at its speed, also when it goes down or away; one never up is not."""
    subject = inventory()
    ports = {"eth0": SeenPort(True, 12.5e9), "eth1": SeenPort(False), "eth2": SeenPort(True)}
    watch(subject, Observation(ports=ports), 0, 600)

    subject.observe(Observation(ports={"eth0": SeenPort(False), "eth1": SeenPort(False)}), 660)

    assert (subject.expected()["ethernet_port"], subject.present()["ethernet_port"]) == (2, 0)
    assert [subject.ethernet_capacity(name) for name in ("eth0", "eth1", "eth2")] == [12.5e9, None, None]
    assert subject.accept() == ["interface eth0 is no longer expected", "interface eth2 is no longer expected"]


def test_an_interface_that_one_reading_has_shown_up_is_expected_while_it_is_here() -> None:
    """In this boot, without its speed, which may settle. One that never was up is not; nor is one that has been moved
    into a container, also when it comes back."""
    subject = inventory()
    subject.begin("this boot")

    def expected(**up: bool) -> list[Value]:
        seen = {name: SeenPort(is_up, 12.5e9 if is_up else None) for name, is_up in up.items()}
        subject.observe(replace(FOUR, ports=seen), 10)
        block = block_of(subject.readings())
        assert block.get("commwatch_ethernet_speed_expected_bytes_per_second", "eth0") is None
        return [block.get("commwatch_ethernet_expected", name) for name in ("eth0", "eth1")]

    assert expected(eth0=True, eth1=False) == [1, None]
    assert expected(eth0=False, eth1=False) == [1, None]
    subject = restarted(subject)
    subject.begin("this boot")
    assert expected(eth0=False, eth1=False) == [1, None]
    assert expected(eth1=False) == [None, None]
    assert expected(eth0=False, eth1=False) == [None, None]
    assert expected(eth0=True, eth1=False) == [1, None]
    subject.begin("another boot")
    assert expected(eth0=False, eth1=False) == [None, None]


def test_capacity_is_known_from_the_first_reading_on() -> None:
    """Of the parts that it has shown, and of an interface that is here."""
    subject = inventory()
    subject.observe(FOUR, 0)

    assert links_of(subject, SLOTS[0]) == ({0, 1}, 50e9)
    assert subject.ethernet_capacity("eth0") == 12.5e9
    block = block_of(subject.readings())
    assert block.get("commwatch_nvlink_capacity_bytes_per_second", "0", SLOTS[0]) == 50e9
    assert block.get("commwatch_pcie_capacity_bytes_per_second", "0", SLOTS[0]) == pytest.approx(63_015_384_615)
    assert block.get("commwatch_pcie_link_width_expected_lanes", "0", SLOTS[0]) == 16
    assert subject.nvlink_expectation("0000:99:00.0") is None


def test_capacity_does_not_shrink_with_the_fault() -> None:
    """A link that goes down, and a GPU that is lost, leave the capacity as it was."""
    subject = learned_four()
    subject.observe(node(replace(gpu(0), links_up={}, links_down=frozenset({0, 1}))), 660)

    for number in range(4):
        assert links_of(subject, SLOTS[number]) == ({0, 1}, 50e9)


def test_a_rate_that_was_never_read_leaves_the_capacity_unknown() -> None:
    """Links without a known rate are expected, and their capacity is absent until the rate was read and held."""
    subject = inventory()
    watch(subject, node(replace(gpu(0), links_up={0: 25e9, 1: None})), 0, 600)
    assert links_of(subject, SLOTS[0]) == ({0, 1}, None)

    watch(subject, node(gpu(0)), 660, 1260)

    assert links_of(subject, SLOTS[0]) == ({0, 1}, 50e9)


def test_a_gpu_without_nvlink_has_none() -> None:
    subject = inventory()
    watch(subject, node(replace(gpu(0), links_up={})), 0, 600)

    assert (subject.expected()["nvlink"], subject.present()["nvlink"]) == (None, 0)
    assert subject.nvlink_expectation(SLOTS[0]) is None


PARTS = st.builds(
    lambda numbers, up, lanes: node(*(replace(gpu(number), links_up=up, pcie_lanes=lanes) for number in numbers)),
    st.sets(st.integers(0, 3)),
    st.none() | st.dictionaries(st.integers(0, 1), st.sampled_from([25e9, 50e9, None])),
    st.sampled_from([None, 8, 16]),
)


@given(st.lists(st.tuples(st.floats(-100, 400), PARTS | st.just(Observation())), max_size=30))
def test_expectations_never_fall_by_themselves(steps: list[tuple[float, Observation]]) -> None:
    """Whatever is seen, what is expected only rises, and the block can always be made."""
    subject, now = inventory(), 0.0
    for step, seen in steps:
        now += step
        before = subject.expected()
        subject.observe(seen, now)

        after = subject.expected()
        assert all((before[kind] or 0) <= (after[kind] or 0) for kind in before)
        assert subject.readings()


def test_blocks_are_gathered_into_an_observation() -> None:
    """Identity, links with their nominal rates, PCIe width and interfaces come from their metrics."""
    slot = ("0", SLOTS[0])
    readings: dict[tuple[str, tuple[str, ...]], Value] = {
        ("commwatch_gpu_info", (*slot, "GPU-0", "serial", "H100", "hopper")): 1,
        ("commwatch_gpu_info", ("1", SLOTS[1], "GPU-1", "serial", "A10", "ampere")): 1,
        ("commwatch_nvlink_links", ("1", SLOTS[1])): 0,
        ("commwatch_nvlink_link_state", (*slot, "0")): 1,
        ("commwatch_nvlink_link_state", (*slot, "1")): 2,
        ("commwatch_nvlink_link_state", (*slot, "2")): 0,
        ("commwatch_nvlink_link_state", (*slot, "3")): None,
        ("commwatch_nvlink_link_speed_bytes_per_second", (*slot, "0")): 26_562_000_000,
        ("commwatch_nvlink_info", (*slot, "0", "4.0", "switch", "0000:a0:00.0", "3")): 1,
        ("commwatch_nvlink_info", (*slot, "1", "4.0", "switch", "", "")): 1,
        ("commwatch_pcie_link_width_lanes", slot): 16,
        ("commwatch_pcie_link_generation_max", slot): 5,
        ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "")): 1,
        ("commwatch_ethernet_carrier", ("eth0",)): 1,
        ("commwatch_ethernet_speed_bytes_per_second", ("eth0",)): 50e9,
        ("commwatch_ethernet_info", ("eth1", "0000:18:00.1", "mlx5_core", "")): 1,
        ("commwatch_ethernet_carrier", ("eth1",)): None,
    }
    block = block_of(readings)

    seen = observe_blocks([block], {"identity", "nvlink", "pcie", "network"})

    assert seen == Observation(
        gpus=(
            SeenGpu(
                "GPU-0",
                0,
                SLOTS[0],
                "H100",
                {0: 25e9, 1: 25e9},
                frozenset({2}),
                16,
                5,
                "serial",
                "hopper",
                link_ends={0: ("switch", "0000:a0:00.0", "3")},
            ),
            SeenGpu("GPU-1", 1, SLOTS[1], "A10", {}, serial="serial", architecture="ampere"),
        ),
        ports={"eth0": SeenPort(True, 50e9), "eth1": SeenPort(False)},
    )
    assert observe_blocks([block], {"nvlink"}) == Observation()
    assert observe_blocks([], {"identity"}) == Observation(gpus=())


def test_adapters_are_counted_by_card_behind_the_root_port_of_a_gpu() -> None:
    """A card with two ports is one; an adapter elsewhere is nobody's; a GPU whose way was not read has no number."""
    parents = {
        "0000:16:01.0": ("root_port", "pci0000:16"),
        "0000:17:00.0": ("switch_port", "0000:16:01.0"),
        "0000:18:00.0": ("switch_port", "0000:17:00.0"),
        "0000:19:00.0": ("gpu", "0000:18:00.0"),
        "0000:18:01.0": ("switch_port", "0000:17:00.0"),
        "0000:1a:00.0": ("nic", "0000:18:01.0"),
        "0000:1a:00.1": ("nic", "0000:18:01.0"),
        "0000:20:01.0": ("root_port", "pci0000:20"),
        "0000:21:00.0": ("nic", "0000:20:01.0"),
        "0000:30:01.0": ("root_port", "pci0000:30"),
        "0000:31:00.0": ("gpu", "0000:30:01.0"),
    }
    readings: dict[tuple[str, tuple[str, ...]], Value] = {
        ("commwatch_pcie_device_info", (address, role, parent, "0", "", "")): 1
        for address, (role, parent) in parents.items()
    }
    for index, address in enumerate(("0000:19:00.0", "0000:31:00.0", "0000:41:00.0")):
        readings["commwatch_gpu_info", (str(index), address, f"GPU-{index}", "", "H100", "hopper")] = 1

    seen = observe_blocks([block_of(readings)], {"identity"})

    assert [one.adapters for one in seen.gpus or ()] == [1, 0, None]


def test_the_memory_that_the_driver_gives_is_kept() -> None:
    """Of each GPU, also while it is not read, and each change is worth saving; never what a state file cannot hold."""
    info = ("commwatch_gpu_info", ("0", "0000:19:00.0", "GPU-0", "", "NVIDIA A10", "ampere"))
    size = ("commwatch_gpu_memory_size_bytes", ("0", "0000:19:00.0"))
    inventory = Inventory(InventoryState(), {}, 600.0)

    known = 24 * 10**9
    for read, kept, is_new in (
        (None, None, True), (2**64 - 1, None, False), (known, known, True), (None, known, False),
        (2**64 - 1, known, False),
    ):  # fmt: skip
        before = inventory.learned
        block = block_of({info: 1} if read is None else {info: 1, size: read})
        inventory.observe(observe_blocks([block], {"identity"}), 0.0)
        assert inventory.state.gpus["GPU-0"].memory_bytes == kept
        assert (inventory.learned > before) == is_new


@in_one_pass(
    "switches, names, is_virtual, gpus",
    [
        (4, {"NVIDIA H200"}, True, 8),
        (6, {"NVIDIA A100-SXM4-80GB"}, False, 8),
        (12, {"Tesla V100-SXM3-32GB"}, False, 16),
        (4, {"NVIDIA B200"}, False, 8),
        (0, {"NVIDIA B200"}, False, 8),
        (0, {"NVIDIA B200"}, True, None),
        (0, {"NVIDIA B200"}, None, None),
        (0, {"NVIDIA H200"}, False, None),
        (0, {"NVIDIA B200", "NVIDIA L4"}, False, None),
        (0, set(), False, None),
        (3, {"NVIDIA B200"}, False, None),
    ],
)
def test_a_board_says_how_many_gpus_it_holds(
    switches: int, names: set[str], is_virtual: bool | None, gpus: int | None
) -> None:
    """By its NVSwitches; by the name of its GPUs only where no virtual machine has some of them."""
    readings: dict[tuple[str, tuple[str, ...]], Value] = {
        ("commwatch_pcie_device_info", (f"0000:{number:02x}:00.0", "nvswitch", "", "0", "", "")): 1
        for number in range(switches)
    }
    for index, name in enumerate(sorted(names)):
        readings["commwatch_gpu_info", (str(index), SLOTS[index], f"GPU-{index}", "", name, "hopper")] = 1

    seen = observe_blocks([block_of(readings)], {"identity"}, is_virtual)

    assert seen.gpus_on_boards == gpus


def lacking_of(subject: Inventory, metric: str) -> dict[tuple[str, ...], Value]:
    """What parts lack by a metric, by its labels; only what is not 0."""
    block = block_of(subject.readings())
    return {
        labels: value
        for (name, labels), value in zip(block.layout.series, block.values, strict=True)
        if name == f"commwatch_{metric}" and value
    }


def uneven(subject: Inventory) -> dict[tuple[str, ...], Value]:
    """What GPUs have less than their equals."""
    return lacking_of(subject, "gpu_below_equals")


def test_a_gpu_with_less_than_its_equals_is_told_at_the_first_look() -> None:
    """One of four: an NVLink, lanes or a generation less; an even node says 0 of each."""
    odd = replace(gpu(3), links_up={0: 25e9}, links_down=frozenset({1}), pcie_lanes=8, pcie_generation=4)
    subject = inventory()
    subject.observe(node(gpu(0), gpu(1), gpu(2), odd), 0)
    where = ("3", SLOTS[3])
    assert uneven(subject) == {(*where, "nvlinks"): 1, (*where, "lanes"): 8, (*where, "generation"): 1}
    assert len(subject.odd()) == 3

    subject.observe(FOUR, 60)
    assert uneven(subject) == {}
    assert subject.odd() == []


@in_one_pass(
    "aspect, numbers, lacks",
    [
        ("lanes", [16, 16, 8], {}),  # too few to say which is odd
        ("lanes", [16, 16, 16, 16], {}),
        ("lanes", [16, 8, 16, 16], {1: 8}),
        ("lanes", [16, 8, 16, 16, 8, 16, 16, 16], {1: 8, 4: 8}),
        ("lanes", [16, 8, 16, 16, 8, 16, 8, 16], {}),  # three of eight: it is made so
        ("lanes", [16, 16, 8, 8], {}),
        ("lanes", [16, 8, 8, 8], {}),  # more than the others is no fault
        ("lanes", [16, 16, 16, None], {}),  # not read
        ("nvlinks", [12, 11, 12, 11], {1: 1, 3: 1}),  # one link joins two of them
        ("nvlinks", [12, 10, 12, 10], {}),
        ("nvlinks", [12, 0, 12, 0], {}),  # two with a bridge, two without
        ("nvlinks", [12, 11, 11, 11], {}),
        ("nvlinks", [18, 17, 18, 18], {1: 1}),
    ],
)
def test_the_odd_ones_are_named_where_the_others_agree(
    aspect: str, numbers: list[int | None], lacks: dict[int, int]
) -> None:
    """One GPU, or a quarter of those of a model, or the two ends of one link."""
    addresses = [f"0000:{number:02x}:00.0" for number in range(len(numbers))]
    gpus = [
        SeenGpu(f"GPU-{place}", place, addresses[place], "H100", pcie_lanes=number if aspect == "lanes" else 16,
                links_up=dict.fromkeys(range(number or 0), 25e9) if aspect == "nvlinks" else LINKS)
        for place, number in enumerate(numbers)
    ]  # fmt: skip
    subject = inventory()
    subject.observe(node(*gpus), 0)

    assert uneven(subject) == {(str(place), addresses[place], aspect): less for place, less in lacks.items()}


@pytest.mark.parametrize(
    ("adapters", "odd"),
    [
        pytest.param([1, 1, 1, 0], ["3"], id="one lacks"),
        pytest.param([2, 2, 1, 2], ["2"], id="one of two lacks"),
        pytest.param([1, 1, 0, 0], [], id="one for two GPUs"),
        pytest.param([1, 1, 1, 2], [], id="one more, for storage"),
        pytest.param([1, 1, 1, None], [], id="not read"),
    ],
)
def test_a_gpu_with_fewer_adapters_behind_its_switch_than_its_equals(
    adapters: list[int | None], odd: list[str]
) -> None:
    """From the first look; an adapter that was learned and goes has a finding of its own."""
    subject = inventory()
    seen = node(*(replace(gpu(number), adapters=count) for number, count in enumerate(adapters)))
    subject.observe(seen, 0)
    assert [labels[0] for labels in uneven(subject)] == odd

    whole = inventory()
    watch(whole, node(*(replace(gpu(number), adapters=2) for number in range(4))), 0, 600)
    whole.observe(seen, 660)
    assert uneven(whole) == {}


def test_a_gpu_of_another_model_has_no_equals() -> None:
    """Links and lanes are those of the model."""
    subject = inventory()
    subject.observe(node(gpu(0), gpu(1), gpu(2), replace(gpu(3), name="A10", links_up={}, pcie_lanes=8)), 0)

    assert uneven(subject) == {}


def test_what_was_learned_and_is_gone_is_not_also_less_than_its_equals() -> None:
    """The link that went down, and the port, have findings that name them."""
    subject = inventory()
    watch(subject, replace(FOUR, rdma_ports=rails(4)), 0, 600)
    odd = replace(gpu(3), links_up={0: 25e9}, links_down=frozenset({1}), pcie_lanes=8)
    subject.observe(replace(node(gpu(0), gpu(1), gpu(2), odd), rdma_ports=rails(4, down=1)), 660)

    assert uneven(subject) == {}


def rails(number: int, down: int = 0, on_card: int = 1) -> dict[str, SeenPort]:
    """RDMA ports of one kind; the last ones are down."""
    kind = f"MT4129 InfiniBand {on_card}"
    return {
        f"mlx5_{index}:1": SeenPort(index < number - down, 50e9, kind, is_sole=on_card == 1)
        for index in range(number)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ports", "names"),
    [
        pytest.param(rails(4, down=1), [("mlx5_3", "1")], id="one of four"),
        pytest.param(rails(3, down=1), [], id="three are too few"),
        pytest.param(rails(8, down=2), [("mlx5_6", "1"), ("mlx5_7", "1")], id="a quarter"),
        pytest.param(rails(8, down=3), [], id="more than a quarter: it is built so"),
        pytest.param(rails(8, down=1, on_card=2), [("mlx5_7", "1")], id="one on a card with two"),
        pytest.param(rails(8, down=2, on_card=2), [], id="two on cards with two: they may have no cable"),
        pytest.param(rails(8, down=1), [("mlx5_7", "1")], id="two for each GPU"),
        pytest.param(rails(6, down=1), [], id="as many as no rails are"),
        pytest.param(rails(4), [], id="all are up"),
        pytest.param({**rails(4), "mlx5_9:1": SeenPort(False, None, "MT4125 Ethernet 2")}, [], id="another kind"),
        pytest.param({**rails(4), "mlx5_9:1": SeenPort(False)}, [], id="switched off, or its kind is not known"),
        pytest.param({**rails(4), "mlx5_9:1": SeenPort(None, None, "MT4129 InfiniBand 1")}, [], id="not read"),
    ],
)
def test_rdma_ports_that_are_down_beside_equals_that_are_up(
    ports: dict[str, SeenPort], names: list[tuple[str, ...]]
) -> None:
    """Of rails, one or more for each GPU, is expected from the first look; adapters for something else may well have no
    cable."""
    subject = inventory()
    subject.observe(replace(node(*(gpu(index) for index in range(4))), rdma_ports=ports), 0)
    block = block_of(subject.readings())

    down = [name.split(":") for name, port in ports.items() if port.is_up is False]
    assert [tuple(one) for one in down if block.get("commwatch_rdma_port_expected", *one) == 1] == names
    subject.observe(replace(node(gpu(0)), rdma_ports=ports), 10)  # the loss of GPUs changes nothing about ports
    block = block_of(subject.readings())
    assert [tuple(one) for one in down if block.get("commwatch_rdma_port_expected", *one) == 1] == names


def test_ports_beside_a_single_gpu_are_no_rails() -> None:
    """Any number of ports is a multiple of one: one of them may have no cable."""
    subject = inventory()
    subject.observe(replace(node(gpu(0)), rdma_ports=rails(4, down=1)), 0)

    down = [labels for labels, _ in block_of(subject.readings()).samples("commwatch_rdma_port_expected")]
    assert ("mlx5_3", "1") not in down
    assert subject.odd() == []


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        pytest.param({"mlx5_3:1": 12.5e9}, 50e9, id="one lane of four"),
        pytest.param({"mlx5_3:1": 25e9, "mlx5_5:1": 25e9}, 25e9, id="two: they may lead to another network"),
        pytest.param({f"mlx5_{number}:1": 12.5e9 for number in range(8)}, 12.5e9, id="all"),
        pytest.param({"mlx5_3:1": 100e9}, 100e9, id="one that is faster"),
    ],
)
def test_a_rail_is_expected_to_be_as_fast_as_its_equals(slow: Mapping[str, float], expected: float) -> None:
    """From the first reading on; what was accepted is expected from then on, also after a restart."""
    ports = {name: replace(port, speed=slow.get(name, 50e9)) for name, port in rails(8).items()}
    seen = replace(FOUR, rdma_ports=ports)
    subject = inventory()
    subject.observe(seen, 0)
    assert subject.rdma_capacity("mlx5_3:1") == speed_expected(subject) == expected

    said = subject.accept()
    assert said == [f"RDMA port {name} is {format_rate(50e9 - speed)} slower than its equals"
                    for name, speed in slow.items() if expected == 50e9]  # fmt: skip
    again = restarted(subject)
    again.observe(seen, 0)
    assert again.rdma_capacity("mlx5_3:1") == speed_expected(again) == slow["mlx5_3:1"]


def speed_expected(subject: Inventory) -> float | None:
    return block_of(subject.readings()).get("commwatch_rdma_port_speed_expected_bytes_per_second", "mlx5_3", "1")


@pytest.mark.parametrize(
    ("bonds", "carriers", "expected"),
    [
        pytest.param(("bond0", "bond0"), (1, 0), ["eth0", "eth1"], id="another member of the bond has a link"),
        pytest.param(("bond0", "bond0"), (0, 0), [], id="none has"),
        pytest.param(("bond0", "bond1"), (1, 0), ["eth0"], id="of another bond"),
        pytest.param(("", ""), (1, 0), ["eth0"], id="of no bond"),
        pytest.param(("br0", "br0"), (1, 0), ["eth0"], id="of a bridge"),
        pytest.param(("bond0", "bond0"), (1, None), ["eth0"], id="switched off"),
    ],
)
def test_members_of_a_bond_are_expected_to_have_a_link(
    bonds: tuple[str, ...], carriers: tuple[Value, ...], expected: list[str]
) -> None:
    """From the first reading on, until they are accepted without one; they are not counted before they are stable."""
    blocks = [
        block_of({("commwatch_ethernet_info", (f"eth{number}", "", "mlx5_core", bond)): 1,
                  ("commwatch_ethernet_bonded", (f"eth{number}",)): 1 if bond.startswith("bond") else None,
                  ("commwatch_ethernet_carrier", (f"eth{number}",)): carrier})
        for number, (bond, carrier) in enumerate(zip(bonds, carriers, strict=True))
    ]  # fmt: skip
    seen = observe_blocks(blocks, {"network"})
    subject = inventory()
    subject.observe(seen, 0)
    assert interfaces_expected(subject) == expected
    assert subject.expected()["ethernet_port"] is None

    given_up = ["interface eth1 has no link, and another member of its bond has one"] if "eth1" in expected else []
    assert subject.accept() == given_up
    again = restarted(subject)
    again.observe(seen, 0)
    assert interfaces_expected(again) == [name for name in expected if name == "eth0"]


def interfaces_expected(subject: Inventory) -> list[str]:
    return [device for (device,), _ in block_of(subject.readings()).samples("commwatch_ethernet_expected")]


def test_what_was_accepted_is_no_odd_one() -> None:
    """The acceptance says what was odd, and is part of the state; less than that is what was lost since."""
    odd = replace(gpu(3), links_up={}, links_down=frozenset({0, 1}), pcie_lanes=8)
    seen = replace(node(gpu(0), gpu(1), gpu(2), odd), rdma_ports=rails(4, down=1))
    subject = inventory()
    subject.observe(seen, 0)
    said = subject.accept()
    assert [text for text in said if "less than its equals" in text or "its equals are up" in text] == said
    assert len(said) == 3

    again = restarted(subject)
    again.observe(seen, 0)
    assert uneven(again) == {}
    again.observe(node(gpu(0), gpu(1), gpu(2), replace(odd, pcie_lanes=7)), 60)
    assert uneven(again) == {}
    assert again.state.gpus["GPU-3"].pcie_lanes.expected == 8


BOARD = replace(
    node(*(
        replace(
            gpu(0), uuid=f"GPU-{number}", index=number, pci_bus_id=f"0000:{number:02x}:00.0",
            name="NVIDIA H100 80GB HBM3", links_up=dict.fromkeys(range(18), 25e9),
        )
        for number in range(8)
    )),
    gpus_on_boards=8,
)  # fmt: skip


def test_a_known_board_is_expected_whole_from_the_first_look() -> None:
    """A link that is down, and lanes that equal GPUs have, are expected of the GPU that lacks them, and not counted
    besides as never seen or less than equals."""
    assert BOARD.gpus is not None
    subject = inventory()
    first, *others = BOARD.gpus
    lacking = replace(first, links_up=dict.fromkeys(range(17), 25e9), links_down=frozenset({17}), pcie_lanes=8)
    subject.observe(replace(BOARD, gpus=(lacking, *others)), 0)

    assert {kind: subject.expected()[kind] for kind in subject.origins()} == {
        "gpu": 8, "nvlink": 144, "pcie_lane": 128
    }  # fmt: skip
    assert subject.never_seen(0) == {"gpu": 0, "nvlink": 0}
    assert subject.origins() == {"gpu": "board", "nvlink": "board", "pcie_lane": "learned"}
    block, slot = block_of(subject.readings()), ("0", "0000:00:00.0")
    assert block.get("commwatch_nvlink_link_expected", *slot, "17") == 1
    assert block.get("commwatch_pcie_link_width_expected_lanes", *slot) == 16
    assert (uneven(subject), lacking_of(subject, "gpu_below_product")) == ({}, {})


def of_board(**changes: object) -> Observation:
    """A whole board whose GPUs are all changed alike."""
    return replace(BOARD, gpus=tuple(replace(one, **changes) for one in BOARD.gpus or ()))  # type: ignore[arg-type]  # fields by name


@in_one_pass("dark, never_seen", [(1, 0), (4, 0), (7, 0), (8, 144)])
def test_a_gpu_of_which_no_link_came_up_is_asked_for_them_where_its_equals_have_theirs(
    dark: int, never_seen: int
) -> None:
    """Without one of which all links are up the fabric may not have been set up since the boot: each GPU is named."""
    subject, gpus = inventory(), BOARD.gpus or ()
    none_up = [replace(one, links_up={}, links_down=frozenset(range(18))) for one in gpus[:dark]]
    subject.observe(replace(BOARD, gpus=(*none_up, *gpus[dark:])), 0)

    assert subject.never_seen(0)["nvlink"] == never_seen
    assert len(lacking_of(subject, "gpu_never_seen")) == never_seen // 18
    asked = block_of(subject.readings()).get("commwatch_nvlink_link_expected", "0", "0000:00:00.0", "17")
    assert asked == (None if never_seen else 1)
    assert uneven(subject) == {}


def joined(dark: int, kind: str = "gpu", *, is_virtual: bool = False) -> Observation:
    """Four GPUs, each two joined by four links; of the last ones none came up."""
    shown = 4 * (3 - dark)
    up = [dict.fromkeys(range(shown if place < 4 - dark else 0), 25e9) for place in range(4)]
    gpus = [
        replace(one, name="NVIDIA A100-SXM4-80GB", links_up=links, links_down=frozenset(range(12)) - links.keys(),
                link_ends=dict.fromkeys(links, (kind, "0000:a0:00.0", "")))
        for one, links in zip(BOARD.gpus or (), up, strict=False)
    ]  # fmt: skip
    return Observation(gpus=tuple(gpus), is_virtual=is_virtual)


@pytest.mark.parametrize(
    ("seen", "asked"),
    [
        pytest.param(joined(1), 48, id="one"),
        pytest.param(joined(2), 48, id="two, of which the product says it"),
        pytest.param(joined(1, "switch"), 8 * 4, id="switches, to which each GPU has links of its own"),
        pytest.param(joined(2, is_virtual=True), 2 * 4, id="half of a virtual machine may be meant so"),
    ],
)
def test_a_gpu_without_a_link_takes_those_of_the_gpus_along_that_it_is_joined_to(seen: Observation, asked: int) -> None:
    """All are asked for, and none is less than the product besides; an operator may accept it."""
    subject = inventory()
    subject.observe(seen, 0)

    assert subject.due("nvlink") == asked
    assert not (asked == 48 and lacking_of(subject, "gpu_below_product"))
    subject.accept()
    assert subject.due("nvlink") == sum(len(one.links_up or ()) for one in seen.gpus or ())


def test_a_gpu_that_was_split_takes_no_link_of_the_gpus_along_that_it_is_joined_to() -> None:
    """In MIG mode it has none, so that those that led to it are down on purpose."""
    seen, subject = joined(1), inventory()
    *others, last = seen.gpus or ()
    split = replace(last, links_up=None, links_down=frozenset(), is_split=True)
    subject.observe(replace(seen, gpus=(*others, split)), 0)

    assert subject.due("nvlink") == sum(len(one.links_up or ()) for one in others)


@in_one_pass("dark, expected", [(1, 1), (2, None), (4, None)])
def test_equals_ask_for_the_links_of_a_gpu_of_which_none_came_up(dark: int, expected: int | None) -> None:
    """Half a board in a virtual machine, without NVSwitches: where the others have theirs, the fabric is set up."""
    subject, gpus = inventory(), (BOARD.gpus or ())[:4]
    none_up = [replace(one, links_up={}, links_down=frozenset(range(18))) for one in gpus[:dark]]
    subject.observe(replace(BOARD, gpus=(*none_up, *gpus[dark:]), gpus_on_boards=None, is_virtual=True), 0)

    assert block_of(subject.readings()).get("commwatch_nvlink_link_expected", "0", "0000:00:00.0", "17") == expected


@pytest.mark.parametrize(
    ("links", "here", "expected"), [(18, 3, 1), (18, 2, 1), (12, 3, None)], ids=["three", "two", "a small partition"]
)
def test_a_gpu_that_is_gone_does_not_hide_the_link_that_another_lacks(
    links: int, here: int, expected: int | None
) -> None:
    """Too few equals are left to find the odd one; that one has all links of its product says what the others lack."""
    gpus = [replace(one, links_up=dict.fromkeys(range(links), 25e9)) for one in (BOARD.gpus or ())[:here]]
    gpus[0] = replace(
        gpus[0], links_up=dict.fromkeys(range(1, links), 25e9), links_down=frozenset({0, *range(links, 18)})
    )
    subject = inventory()
    subject.observe(replace(BOARD, gpus=tuple(gpus), gpus_on_boards=None, is_virtual=True), 0)

    assert block_of(subject.readings()).get("commwatch_nvlink_link_expected", "0", "0000:00:00.0", "0") == expected
    subject.accept()
    assert block_of(subject.readings()).get("commwatch_nvlink_link_expected", "0", "0000:00:00.0", "0") is None


def test_the_link_that_a_gpu_lacks_is_expected_while_another_gpu_goes() -> None:
    """The others lose their links to that one, too: they were up in this boot."""
    gpus = (BOARD.gpus or ())[:4]
    lacking = [replace(one, links_up=dict.fromkeys(range(1, 18), 25e9), links_down=frozenset({0})) for one in gpus[:2]]
    before = replace(BOARD, gpus=(*lacking, *gpus[2:]), gpus_on_boards=None, is_virtual=True)
    subject = inventory()
    subject.observe(before, 0)
    dark = [
        replace(gpu, links_up={link: 25e9 for link in gpu.links_up or {} if link > 5},
                links_down=frozenset(range(6)))
        for gpu in (*lacking, gpus[2])
    ]  # fmt: skip
    subject.observe(replace(before, gpus=tuple(dark)), 10)

    assert block_of(subject.readings()).get("commwatch_nvlink_link_expected", "0", "0000:00:00.0", "0") == 1


@in_one_pass("mode, down", [(0, [0]), (None, [0]), (1, []), (2, [])])
def test_a_gpu_that_waits_for_a_partition_has_no_links(mode: int | None, down: list[int]) -> None:
    """Where virtual machines share the NVSwitches its links are off until one is activated; one that joined has all."""
    readings: dict[tuple[str, tuple[str, ...]], Value] = {}
    for gpu, state in (("0", 2), ("1", 3)):
        labels = (gpu, SLOTS[int(gpu)])
        readings["commwatch_gpu_info", (*labels, f"GPU-{gpu}", "", "NVIDIA H200", "hopper")] = 1
        readings["commwatch_fabric_state", labels] = state
        readings["commwatch_nvlink_link_state", (*labels, "0")] = 0
    if mode is not None:
        readings["commwatch_service_fabric_mode", ("nvidia-fabricmanager",)] = mode

    waiting, joined_gpu = observe_blocks([block_of(readings)], {"identity", "nvlink"}).gpus or ()
    assert ([*waiting.links_down], waiting.is_split) == (down, not down)
    assert ([*joined_gpu.links_down], joined_gpu.is_split) == ([0], False)


def test_gpus_in_mig_mode_have_no_links() -> None:
    """The driver shows them as down, and nothing is missing; nor is it where the mode is set later."""
    split = of_board(links_up=None, links_down=frozenset(), is_split=True)
    subject = inventory()
    subject.observe(split, 0)
    assert not any(subject.never_seen(0).values())
    subject.observe(BOARD, 10)
    subject.observe(split, 20)

    assert not any(subject.never_seen(0).values())
    assert block_of(subject.readings()).get("commwatch_nvlink_link_expected", "0", "0000:00:00.0", "3") is None


@pytest.mark.parametrize(
    ("seen", "lacks"),
    [
        pytest.param(of_board(pcie_lanes=8, pcie_lanes_max=16), {"lanes": 8}, id="narrow"),
        pytest.param(of_board(pcie_lanes=8), {"lanes": 8}, id="narrow, and nothing is known of the slot"),
        pytest.param(of_board(pcie_lanes=8, pcie_lanes_max=8), {}, id="the slot gives no more"),
        pytest.param(of_board(pcie_lanes=4, pcie_lanes_max=8), {"lanes": 4}, id="less than the slot gives"),
        pytest.param(of_board(pcie_lanes=16, pcie_lanes_max=16, pcie_own_generation=5), {}, id="whole"),
        pytest.param(of_board(pcie_generation=4, pcie_own_generation=5), {}, id="a slot of a lower generation"),
        pytest.param(of_board(pcie_own_generation=4), {"generation": 1}, id="the GPU itself"),
        pytest.param(
            replace(of_board(pcie_lanes=8, pcie_lanes_max=16), gpus_on_boards=None, is_virtual=True),
            {"lanes": 8},
            id="a virtual machine",
        ),
        pytest.param(
            replace(of_board(links_up=dict.fromkeys(range(16), 25e9)), gpus_on_boards=None, is_virtual=True),
            {"nvlinks": 2},
            id="a whole board in a virtual machine",
        ),
        pytest.param(
            replace(of_board(links_up={}), gpus_on_boards=None, is_virtual=True), {}, id="no link is on"
        ),
        *(
            pytest.param(
                replace(of_board(links_up={}, links_down=frozenset(range(18))), gpus_on_boards=None,
                        is_virtual=virtual, is_handed_on=handed_on),
                lacks, id=f"no link is up, {whose}",
            )
            for virtual, handed_on, lacks, whose in (
                (False, False, {"nvlinks": 18}, "of a machine of its own"), (True, False, {}, "the host's matter"),
                (None, False, {}, "whose matter is not known"),
                (False, True, {}, "others were given to virtual machines"),
            )
        ),
        pytest.param(of_board(name="NVIDIA H100 PCIe", pcie_lanes=8, pcie_lanes_max=16), {}, id="cards"),
    ],
)  # fmt: skip
def test_what_all_gpus_have_less_than_their_product(seen: Observation, lacks: dict[str, int]) -> None:
    """A thing that no equal shows; what was accepted is none any more."""
    subject = inventory()
    subject.observe(seen, 0)
    found = lacking_of(subject, "gpu_below_product")
    assert {labels[2]: value for labels, value in found.items()} == lacks
    assert len(found) == 8 * len(lacks)

    said = [text for text in subject.accept() if "less than its product" in text]
    assert (len(said), lacking_of(subject, "gpu_below_product")) == (len(found), {})


@pytest.mark.parametrize(
    ("up", "number", "lacks"),
    [
        pytest.param(0, 4, 18, id="no link is up"),
        pytest.param(16, 4, 2, id="an NVLink switch of the rack is off"),
        pytest.param(18, 4, 0, id="whole"),
        pytest.param(0, 2, 0, id="half a tray may be a virtual machine's"),
    ],
)
def test_a_tray_of_a_rack_has_all_nvlinks(up: int, number: int, lacks: int) -> None:
    """Its processor does not show whether this is a virtual machine; what PCIe shows of its GPUs is not judged."""
    links = {"links_up": dict.fromkeys(range(up), 50e9), "links_down": frozenset(range(up, 18))}
    gpus = of_board(name="NVIDIA GB200", pcie_lanes=1, pcie_lanes_max=16, pcie_own_generation=4, **links).gpus or ()
    subject = inventory()
    subject.observe(replace(BOARD, gpus=gpus[:number], gpus_on_boards=None, is_virtual=None), 0)

    found = lacking_of(subject, "gpu_below_product")
    assert {(labels[2], less) for labels, less in found.items()} == ({("nvlinks", lacks)} if lacks else set())
    assert len(found) == (number if lacks else 0)


def test_a_part_of_a_board_in_a_virtual_machine_has_the_links_of_its_partition() -> None:
    """Fewer than eight GPUs there may have fewer links each."""
    few = of_board(links_up=dict.fromkeys(range(12), 25e9))
    subject = inventory()
    subject.observe(replace(few, gpus=(few.gpus or ())[:4], gpus_on_boards=None, is_virtual=True), 0)

    assert lacking_of(subject, "gpu_below_product") == {}


DARK = of_board(links_up={}, links_down=frozenset(range(18)))
SOME_UP = of_board(links_up=dict.fromkeys(range(16), 25e9), links_down=frozenset({16, 17}))


@pytest.mark.parametrize(
    ("seen", "number", "on_boards", "lacks"),
    [
        pytest.param(DARK, 1, None, 0, id="one on a carrier"),
        pytest.param(DARK, 2, None, 18, id="two have each other"),
        pytest.param(DARK, 1, 8, 0, id="NVSwitches are on the bus: the board asks for all links"),
        pytest.param(SOME_UP, 1, None, 2, id="some links are up, so that there is something at their ends"),
        pytest.param(of_board(links_up=None), 1, None, 0, id="not read"),
    ],
)
def test_a_single_gpu_need_not_have_any_nvlink(
    seen: Observation, number: int, on_boards: int | None, lacks: int
) -> None:
    """A node with one SXM GPU may have a carrier without NVLink; what one reading has shown is another matter."""
    gpus = (seen.gpus or ())[:number]
    subject = inventory()
    subject.observe(replace(seen, gpus=gpus, gpus_on_boards=on_boards, is_virtual=False), 0)

    found = lacking_of(subject, "gpu_below_product")
    assert [value for labels, value in found.items() if labels[2] == "nvlinks"] == [lacks] * number * bool(lacks)


def test_a_gpu_that_is_left_alone_still_lacks_its_links() -> None:
    """The others were here in this boot or an earlier one."""
    subject = inventory()
    subject.observe(replace(DARK, gpus=(DARK.gpus or ())[:2], gpus_on_boards=None, is_virtual=False), 0)
    subject.observe(replace(DARK, gpus=(DARK.gpus or ())[:1], gpus_on_boards=None, is_virtual=False), 10)

    assert {labels[2] for labels in lacking_of(subject, "gpu_below_product")} == {"nvlinks"}


def test_a_total_of_the_configuration_is_asked_of_each_part() -> None:
    """The link, the lanes and the RDMA port that lack are named where no more parts are here than the total says."""
    subject = inventory(configured={"gpu": 4, "nvlink": 8, "pcie_lane": 64, "rdma_port": 2})
    odd = replace(gpu(3), links_up={0: 25e9}, links_down=frozenset({1}), pcie_lanes=8)
    ports = {"mlx5_0:1": SeenPort(is_up=True, speed=50e9), "mlx5_1:1": SeenPort(is_up=False)}
    subject.observe(replace(node(gpu(0), gpu(1), gpu(2), odd), rdma_ports=ports), 0)

    assert subject.never_seen(0) == {"gpu": 0, "nvlink": 0, "pcie_lane": 0, "rdma_port": 0}
    block = block_of(subject.readings())
    assert block.get("commwatch_nvlink_link_expected", "3", SLOTS[3], "1") == 1
    assert block.get("commwatch_pcie_link_width_expected_lanes", "3", SLOTS[3]) == 16
    assert block.get("commwatch_rdma_port_expected", "mlx5_1", "1") == 1

    more = replace(gpu(0), links_down=frozenset({2}))
    few = inventory(configured={"gpu": 4, "nvlink": 8, "rdma_port": 1})
    few.observe(replace(node(more, gpu(1), gpu(2), gpu(3)), rdma_ports=ports), 0)
    assert block_of(few.readings()).get("commwatch_nvlink_link_expected", "0", SLOTS[0], "2") is None
    assert block_of(few.readings()).get("commwatch_rdma_port_expected", "mlx5_1", "1") is None


def test_what_an_operator_accepts_goes_before_the_board() -> None:
    """A link that is known to be broken is no page any more; the next one that goes is."""
    assert BOARD.gpus is not None
    subject = inventory()
    first, *others = BOARD.gpus
    lacking = replace(first, links_up=dict.fromkeys(range(17), 25e9), links_down=frozenset({17}))
    watch(subject, replace(BOARD, gpus=(lacking, *others)), 0, 60)
    subject.accept()

    assert subject.origins()["nvlink"] == "accepted"
    assert (subject.expected()["nvlink"], subject.never_seen(0)) == (143, {})
    assert (uneven(subject), lacking_of(subject, "gpu_below_product")) == ({}, {})


def test_a_whole_board_lacks_nothing() -> None:
    """On the first day as after it has been learned."""
    subject = inventory()
    for start, end in ((0, 0), (60, 900)):
        watch(subject, BOARD, start, end)
        assert set(subject.never_seen(0).values()) == {0}


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(BOARD, gpus_on_boards=None), id="no switch shows, as in a virtual machine"),
        pytest.param(
            replace(BOARD, gpus=tuple(replace(one, name="NVIDIA X") for one in BOARD.gpus or ())), id="unknown"
        ),
    ],
)
def test_of_what_is_no_known_board_links_are_learned(seen: Observation) -> None:
    """A part of a board in a virtual machine may well be without NVLinks."""
    subject = inventory()
    subject.observe(seen, 0)

    assert subject.origins()["nvlink"] == "learned"
    assert subject.learning_seconds()["nvlink"] == 600
    watch(subject, seen, 60, 300)
    assert subject.learning_seconds()["nvlink"] == 300
    watch(subject, seen, 360, 600)
    assert (subject.origins()["nvlink"], subject.learning_seconds()["nvlink"]) == ("learned", 0)


def test_the_configuration_goes_before_all() -> None:
    """Whatever board and operator say; of each kind alone, also none."""
    subject = inventory(configured={"gpu": 4, "nvlink": 0})
    watch(subject, BOARD, 0, 600)
    subject.accept()

    assert subject.origins()["gpu"] == "configured"
    assert subject.expected() == {"gpu": 4, "nvlink": 0, "pcie_lane": 128, "rdma_port": None, "ethernet_port": 1}


@pytest.mark.parametrize(
    ("asked", "kind", "by_board"),
    [
        ({"nvlink": 144}, "nvlink", True),
        ({"nvlink": 160}, "nvlink", False),
        ({"gpu": 16}, "gpu", False),
        ({"gpu": 16}, "nvlink", True),
        ({}, "gpu", True),
    ],
    ids=["as many as the board has", "more links", "more GPUs", "its own links", "nothing"],
)
def test_what_a_configuration_asks_beyond_the_board_is_not_asked_by_the_board(
    asked: dict[Kind, int], kind: Kind, by_board: bool
) -> None:
    """A wrong configuration of the fleet must not drain its nodes."""
    subject = inventory(configured=asked)
    subject.observe(BOARD, 0)

    assert (block_of(subject.readings()).get("commwatch_inventory_info", kind, "board") == 1) == by_board


UP, DOWN, UNREAD = SeenPort(is_up=True, speed=50e9), SeenPort(is_up=False), SeenPort(is_up=None)
EXPECTED = "commwatch_rdma_port_expected"


def rdma(ports: Mapping[str, SeenPort]) -> Observation:
    return Observation(rdma_ports=ports)


def watch_ports(subject: Inventory, ports: Mapping[str, SeenPort], start: float, end: float) -> list[str]:
    return watch(subject, rdma(ports), start, end)


def learned_two() -> Inventory:
    """Two ports are expected; a third has no cable."""
    subject = inventory()
    watch_ports(subject, {"mlx5_0:1": UP, "mlx5_1:1": UP, "mlx5_2:1": DOWN}, 0, 600)
    return subject


def numbers(subject: Inventory) -> tuple[int | None, int | None]:
    return subject.expected()["rdma_port"], subject.present()["rdma_port"]


def test_ports_are_expected_once_they_were_active() -> None:
    """For good after ten minutes; a port without a cable is no part of the node, and no interface is."""
    subject = inventory()
    ports = {"mlx5_0:1": UP, "mlx5_1:1": DOWN}

    assert watch_ports(subject, ports, 0, 540) == []
    assert numbers(subject) == (1, 1)
    assert watch_ports(subject, ports, 600, 600) == ["RDMA port mlx5_0:1 is expected at 50 GB/s"]
    assert numbers(subject) == (1, 1)
    assert subject.expected()["ethernet_port"] is None
    block = block_of(subject.readings())
    assert (block.get(EXPECTED, "mlx5_0", "1"), block.get(EXPECTED, "mlx5_1", "1")) == (1, None)


def test_what_is_expected_is_told_with_its_speed() -> None:
    """Of ports and interfaces alike: the fastest that was stable; no speed where none was ever read."""
    subject = inventory()
    unknown = SeenPort(is_up=True)
    for now in range(0, 1440, 60):
        port = UP if now <= 660 else SeenPort(is_up=True, speed=25e9)
        subject.observe(Observation(rdma_ports={"mlx5_0:1": port}, ports={"ens1": port, "ens2": unknown}), now)
    block = block_of(subject.readings())

    for family, labels in (("rdma_port", ("mlx5_0", "1")), ("ethernet", ("ens1",))):
        assert block.get(f"commwatch_{family}_expected", *labels) == 1
        assert block.get(f"commwatch_{family}_speed_expected_bytes_per_second", *labels) == 50e9
    assert block.get("commwatch_ethernet_expected", "ens2") == 1
    assert block.get("commwatch_ethernet_speed_expected_bytes_per_second", "ens2") is None
    assert [subject.rdma_capacity(port) for port in ("mlx5_0:1", "mlx5_9:1")] == [50e9, None]


def test_a_port_that_went_down_or_away_stays_expected() -> None:
    """Only the operator lowers an expectation; a restart keeps it."""
    subject = learned_two()
    subject.observe(rdma({"mlx5_0:1": DOWN, "mlx5_2:1": DOWN}), 660)
    subject = restarted(subject)
    subject.observe(rdma({"mlx5_0:1": DOWN, "mlx5_2:1": DOWN}), 720)

    assert numbers(subject) == (2, 0)
    assert block_of(subject.readings()).get(EXPECTED, "mlx5_1", "1") == 1
    assert subject.accept() == [
        "RDMA port mlx5_0:1 is no longer expected",
        "RDMA port mlx5_1:1 is no longer expected",
    ]
    assert numbers(subject) == (None, 0)


@pytest.mark.parametrize("seen", [rdma({"mlx5_0:1": UP, "mlx5_1:1": UNREAD}), Observation()], ids=["one", "none"])
def test_a_port_that_was_not_read_leaves_the_number_open(seen: Observation) -> None:
    """It is neither up nor down; accepting keeps what was learned of it, also where nothing gave any port."""
    subject = learned_two()
    subject.observe(seen, 660)

    assert numbers(subject) == (2, None)
    assert subject.accept() == []
    assert numbers(subject) == (2, None)


def test_a_port_that_nobody_expects_hides_nothing() -> None:
    """One that never could be read leaves the number of the others as it is."""
    subject = learned_two()
    subject.observe(rdma({"mlx5_0:1": UP, "mlx5_1:1": DOWN, "mlx5_2:1": UNREAD}), 660)

    assert numbers(subject) == (2, 1)


def test_a_port_not_read_for_a_while_goes_on_learning() -> None:
    """A run in which it could not be read is no break of the ten minutes, as it says nothing."""
    subject = inventory()
    watch_ports(subject, {"mlx5_0:1": UP}, 0, 300)
    watch_ports(subject, {"mlx5_0:1": UNREAD}, 360, 360)

    assert watch_ports(subject, {"mlx5_0:1": UP}, 420, 660) == ["RDMA port mlx5_0:1 is expected at 50 GB/s"]


def test_blocks_say_which_ports_are_active() -> None:
    """Active alone is up; a port of which only the identity is known was not read."""
    states: dict[str, Value] = {"mlx5_0": 4, "mlx5_1": 2, "mlx5_2": 1, "mlx5_3": None}
    blocks = []
    for device, state in states.items():
        port = (device, "1")
        blocks.append(block_of({
            ("commwatch_rdma_port_state", port): state,
            ("commwatch_rdma_port_speed_bytes_per_second", port): 50e9 if state == 4 else None,
            ("commwatch_rdma_port_info", (*port, "InfiniBand", "0x1", "0x1", "28", "MT4129", "", "")): 1,
        }))  # fmt: skip

    assert observe_blocks(blocks, {"rdma"}).rdma_ports == {
        "mlx5_0:1": UP,
        "mlx5_1:1": DOWN,
        "mlx5_2:1": DOWN,
        "mlx5_3:1": UNREAD,
    }
    assert observe_blocks(blocks, {"network"}).rdma_ports is None


@pytest.mark.parametrize(
    ("layer", "physical", "carrier", "expected"),
    [
        pytest.param("InfiniBand", 2, None, True, id="an InfiniBand port without a cable"),
        pytest.param("InfiniBand", 3, None, False, id="an InfiniBand port that is switched off"),
        pytest.param("Ethernet", 3, 0, True, id="a RoCE port without a cable, which the kernel calls disabled too"),
        pytest.param("Ethernet", 3, None, False, id="a RoCE port whose interface is switched off"),
    ],
)
def test_a_rail_that_never_was_up_is_compared_with_its_equals_unless_it_is_switched_off(
    layer: str, physical: int, carrier: int | None, expected: bool
) -> None:
    """One of four rails, from the first reading on."""
    blocks = []
    for number in range(4):
        is_up, port, netdev = number < 3, (f"mlx5_{number}", "1"), f"eth{number}" if layer == "Ethernet" else ""
        identity = (layer, "", "", "28", "MT4129", f"0000:{number + 1:02x}:00.0", netdev)
        blocks.append(block_of({
            ("commwatch_rdma_port_state", port): 4 if is_up else 1,
            ("commwatch_rdma_port_phys_state", port): 5 if is_up else physical,
            ("commwatch_rdma_port_info", (*port, *identity)): 1,
            ("commwatch_ethernet_carrier", (f"eth{number}",)): 1 if is_up else carrier,
        }))  # fmt: skip
    subject = inventory()
    subject.observe(replace(FOUR, rdma_ports=observe_blocks(blocks, {"rdma"}).rdma_ports), 0)

    named = [labels for labels, _ in block_of(subject.readings()).samples("commwatch_rdma_port_expected")]
    assert (("mlx5_3", "1") in named) == expected


def rails_at(*ports: tuple[str, str]) -> dict[str, SeenPort]:
    """RDMA ports that are up, by name and PCI address."""
    return {f"{name}:1": SeenPort(is_up=True, speed=50e9, address=address) for name, address in ports}


FOUR_RAILS = (("mlx5_0", "0000:18:00.0"), ("mlx5_1", "0000:2a:00.0"), ("mlx5_2", "0000:3b:00.0"),
              ("mlx5_3", "0000:5c:00.0"))  # fmt: skip


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        pytest.param(
            (("mlx5_0", "0000:18:00.0"), ("mlx5_1", "0000:3b:00.0"), ("mlx5_2", "0000:5c:00.0")),
            {"mlx5_0", "mlx5_1", "mlx5_2", "0000:2a:00.0"},
            id="the second is gone, and those behind it have moved up",
        ),
        pytest.param(
            tuple((f"rocep{number}s0", address) for number, (_, address) in enumerate(FOUR_RAILS)),
            {"rocep0s0", "rocep1s0", "rocep2s0", "rocep3s0"},
            id="udev names them otherwise",
        ),
        pytest.param(
            tuple((name, address.replace("0000", "0001")) for name, address in FOUR_RAILS),
            {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"},
            id="the firmware has numbered the buses otherwise",
        ),
        pytest.param(FOUR_RAILS[:3], {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}, id="the last is gone"),
        pytest.param(
            (("mlx5_0", "0000:2a:00.0"), ("mlx5_1", "0000:18:00.0"), *FOUR_RAILS[2:]),
            {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"},
            id="two have come up in another order",
        ),
        pytest.param(
            tuple((name, "") for name, _ in FOUR_RAILS), {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}, id="no addresses"
        ),
    ],
)
def test_rdma_ports_are_known_by_their_slot_after_a_boot(
    later: tuple[tuple[str, str], ...], expected: set[str]
) -> None:
    """The kernel gives the lowest free number to each device that comes, so that names move where one is gone."""
    subject = inventory()
    watch(subject, rdma(rails_at(*FOUR_RAILS)), 0, 600)
    subject = rebooted(subject)
    subject.observe(rdma(rails_at(*later)), 0)

    assert {device for device, _ in labels_of(subject, EXPECTED)} == expected
    again = rebooted(subject)
    again.observe(rdma(rails_at(*FOUR_RAILS)), 0)
    assert {device for device, _ in labels_of(again, EXPECTED)} == {name for name, _ in FOUR_RAILS}


def test_a_port_that_was_gone_before_addresses_were_kept_is_still_missed_after_a_boot() -> None:
    """By the last name, as version 0.2.0 did: its own is another's now."""
    subject = inventory()
    watch(subject, rdma(rails_at(*FOUR_RAILS)), 0, 600)
    subject.state.rdma_addresses.clear()
    subject = restarted(subject)
    subject.observe(rdma(rails_at(FOUR_RAILS[0], *FOUR_RAILS[2:])), 0)
    later = (("mlx5_0", "0000:18:00.0"), ("mlx5_1", "0000:3b:00.0"), ("mlx5_2", "0000:5c:00.0"))
    for _ in range(2):
        subject = rebooted(subject)
        subject.observe(rdma(rails_at(*later)), 0)
        assert {device for device, _ in labels_of(subject, EXPECTED)} == {name for name, _ in FOUR_RAILS}


def test_a_port_that_a_container_has_had_is_known_by_its_slot() -> None:
    """A driver that is loaded again may name its ports otherwise; only one that a container has had is not missed."""
    subject = inventory()
    ports = rails_at(*FOUR_RAILS[:2])
    watch(subject, rdma({name: replace(port, is_lent=name == "mlx5_0:1") for name, port in ports.items()}), 0, 600)
    moved = rails_at(("mlx5_1", "0000:18:00.0"), ("mlx5_0", "0000:2a:00.0"))
    subject.observe(rdma({name: replace(port, is_up=False, is_unused=True) for name, port in moved.items()}), 610)

    assert {device for device, _ in labels_of(subject, EXPECTED)} == {"mlx5_0"}


def test_a_port_that_moves_takes_its_speed_along() -> None:
    """The port of the storage behind one that is gone is not as fast as the rail of which it now has the name."""
    slow = {"mlx5_4:1": SeenPort(is_up=True, speed=25e9, address="0000:9a:00.0")}
    subject = inventory()
    watch(subject, rdma({**rails_at(*FOUR_RAILS), **slow}), 0, 600)
    subject = rebooted(subject)
    subject.observe(rdma({**rails_at(*FOUR_RAILS[:3]), "mlx5_3:1": slow["mlx5_4:1"]}), 0)

    assert subject.rdma_capacity("mlx5_3:1") == 25e9
    assert subject.rdma_capacity("0000:5c:00.0:1") == 50e9


def test_an_accepted_port_that_moves_stays_accepted() -> None:
    """It was a rail without a cable that somebody has accepted."""
    dark = SeenPort(False, None, "MT4129 Ethernet 1", address="0000:5c:00.0")
    up = {name: replace(port, equal_in=dark.equal_in) for name, port in rails_at(*FOUR_RAILS[:3]).items()}
    others = {"mlx5_4:1": replace(up["mlx5_0:1"], equal_in="", address="0000:01:00.0")}
    subject = inventory()
    subject.observe(replace(FOUR, rdma_ports={**up, "mlx5_3:1": dark, **others}), 0)
    subject.accept()
    subject = restarted(subject)
    moved = {f"mlx5_{number}:1": port for number, port in enumerate((others["mlx5_4:1"], *up.values(), dark))}
    subject.observe(replace(FOUR, rdma_ports=moved), 0)

    assert ("mlx5_4", "1") not in labels_of(subject, EXPECTED)


def labels_of(subject: Inventory, metric: str) -> list[tuple[str, ...]]:
    return [labels for labels, _ in block_of(subject.readings()).samples(metric)]
