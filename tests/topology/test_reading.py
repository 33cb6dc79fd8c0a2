"""What is read of sysfs and of the driver, and how it is joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.topology.model import Cpu, NvLink
from commwatch.node.topology.nvlink import DriverFacts, driver_facts
from commwatch.node.topology.sysfs import SysfsFacts, natural, parse_cpu, parse_cpu_list, read_sysfs
from commwatch_exporters.catalogue import family_of
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Series, Value
from support.pages import snapshot_of
from support.passes import in_one_pass
from topology.harness import driver, gpu, topology
from topology.trees import Tree, domains, hgx, rtx3090x4, virtual_machine

ADDRESS = "0000:17:00.0"


def test_all_is_read_of_a_machine(tmp_path: Path) -> None:
    """Roles, parents, NUMA nodes, CPUs, names and links of ends and bridges."""
    node = topology(hgx(tmp_path).root)

    assert [one.address for one in node.gpus] == ["0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0"]
    assert [(nic.label, nic.rdma_devices, nic.interfaces) for nic in node.nics] == [
        ("NIC0", ("mlx5_2",), ("ibp1",)),
        ("NIC1", ("mlx5_10",), ("ibp0",)),
    ]
    assert node.nvswitches == ("0000:08:00.0", "0000:09:00.0")
    roles = {name: node.devices[name].role for name in ("0000:14:01.0", "0000:15:00.0", "0000:16:00.0")}
    assert list(roles.values()) == ["root_port", "switch_upstream", "switch_downstream"]
    assert node.devices["0000:16:00.0"].parent == "0000:15:00.0"
    assert node.devices["0000:97:00.0"].numa_node == 1
    assert [(one.number, one.cpus) for one in node.numa_nodes] == [(0, "0-31"), (1, "32-63")]


def test_virtual_functions_belong_to_their_physical_function(tmp_path: Path) -> None:
    """They are no row of the matrix; their names are kept."""
    node = topology(domains(tmp_path).root)

    (nic,) = node.nics
    assert [(one.address, one.interfaces) for one in nic.virtual_functions] == [("10001:20:00.1", ("eth0v0",))]
    assert "10001:20:00.1" not in node.devices


def test_a_virtual_function_alone_stands_for_itself(tmp_path: Path) -> None:
    """In a guest there is no physical function."""
    tree = domains(tmp_path)
    link = tree.root / "bus/pci/devices/10001:20:00.1/physfn"
    link.unlink()
    link.symlink_to("../10001:99:00.0")

    assert len(topology(tmp_path).nics) == 2


def test_a_gpu_that_the_driver_knows_by_a_virtual_function_has_its_path(tmp_path: Path) -> None:
    """It lies where the physical function lies."""
    tree = rtx3090x4(tmp_path)
    tree.virtual_function("0000:23:00.4", "0000:23:00.0")
    (tree.root / "bus/pci/devices/0000:23:00.4/class").write_text("0x030200\n")
    (tree.root / "bus/pci/devices/0000:23:00.4/vendor").write_text("0x10de\n")

    node = topology(tmp_path, driver(gpu(0, "0000:23:00.4")))

    assert node.devices["0000:23:00.4"].parent == node.devices["0000:23:00.0"].parent


def test_without_driver_gpus_are_numbered_in_pci_order(tmp_path: Path) -> None:
    """And with one, what it does not have gets no number."""
    rtx3090x4(tmp_path)
    assert [one.label for one in topology(tmp_path).gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]

    partial = topology(tmp_path, driver(gpu(0, "0000:24:00.0")))
    assert [one.label for one in partial.gpus] == ["GPU0", "(23:00.0)", "(63:00.0)", "(64:00.0)"]


def test_a_tree_that_is_not_there_is_a_problem_and_no_error(tmp_path: Path) -> None:
    """A machine without PCI bus."""
    facts = read_sysfs(tmp_path, tmp_path)

    assert facts.devices == ()
    assert facts.problems == (f"{tmp_path}/bus/pci/devices: No such file or directory",)


def test_unreadable_attributes_are_absent(tmp_path: Path) -> None:
    """A device without NUMA file and with a link that makes no sense is kept, without them."""
    tree = virtual_machine(tmp_path)
    base = tree.root / "bus/pci/devices/0000:00:05.0"
    (base / "numa_node").unlink()
    (base / "max_link_speed").write_bytes(b"\xff\xfe")
    (base / "current_link_width").write_text("63\n")

    device = next(one for one in read_sysfs(tmp_path, tmp_path).devices if one.address == "0000:00:05.0")

    assert (device.numa_node, device.link.generation_max, device.link.lanes) == (None, None, None)


def test_a_virtual_adapter_has_its_interface_one_level_lower(tmp_path: Path) -> None:
    """virtio puts a device of its own between."""
    tree = Tree(tmp_path)
    tree.add("pci0000:00", "0000:00:03.0", kind="ethernet", link=None)
    (tmp_path / "bus/pci/devices/0000:00:03.0/virtio0/net/eth0").mkdir(parents=True)

    assert topology(tmp_path).nics[0].interfaces == ("eth0",)


def test_what_was_read_travels_as_json(tmp_path: Path) -> None:
    """The child's output is read back to the same value."""
    facts = read_sysfs(hgx(tmp_path).root, tmp_path)

    assert msgspec.json.decode(msgspec.json.encode(facts), type=SysfsFacts) == facts


def test_processors_are_told_apart() -> None:
    """The first processor counts; a text that names none is None."""
    intel = b"processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\nprocessor : 1\nmodel : 1\n"
    assert parse_cpu(intel) == Cpu("intel", 6, 143)
    assert parse_cpu(b"vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 1\n") == Cpu("amd", 25, 1)
    assert parse_cpu(b"processor : 0\nCPU implementer : 0x41\n") == Cpu("arm")
    assert parse_cpu(b"vendor_id : Other\n") == Cpu("other")
    assert parse_cpu(b"") is None


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(data: bytes) -> None:
    """No text of the kernel is an error."""
    parse_cpu(data)
    text = parse_cpu_list(data)
    assert set(text) <= set("0123456789,-")


@given(st.lists(st.text(max_size=6), max_size=5))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    """Numbers in names count as numbers."""
    sorted(names, key=natural)
    assert sorted(("mlx5_10", "mlx5_2", "mlx4_0"), key=natural) == ["mlx4_0", "mlx5_2", "mlx5_10"]


def series(metric: str, **labels: str) -> Series:
    return metric, tuple(labels.get(name, "") for name in family_of(metric).labels)


def read(samples: Sequence[tuple[Series, Value]]) -> DriverFacts:
    """What the driver says, by its readings."""
    return driver_facts(Node(snapshot_of(dict(samples))))


def test_gpus_and_links_come_from_the_readings() -> None:
    """Labels are taken by name; what was not read stays None, other metrics are passed over."""
    place = {"gpu": "3", "pci_bus_id": ADDRESS}
    facts = read(
        [
            (series("commwatch_gpu_info", **place, uuid="GPU-x", name="NVIDIA A", architecture="Ampere"), 1),
            (series("commwatch_nvlink_links", **place), 2),
            (series("commwatch_nvlink_link_state", **place, link="0"), 1),
            (series("commwatch_nvlink_link_state", **place, link="1"), None),
            (
                series(
                    "commwatch_nvlink_info", **place, link="0", version="3.1", remote_type="gpu",
                    remote_pci_bus_id="0000:18:00.0",
                ),
                1,
            ),
            (series("commwatch_nvlink_link_speed_bytes_per_second", **place, link="0"), 14_062e6),
            (series("commwatch_gpu_busy", **place), 1),
            (series("commwatch_gpu_info", gpu="4", pci_bus_id="0000:18:00.0"), None),
        ]
    )  # fmt: skip

    (one,) = facts.gpus
    assert (one.index, one.address, one.name, one.uuid) == (3, ADDRESS, "NVIDIA A", "GPU-x")
    assert one.nvlinks == (NvLink(0, 1, "3.1", "gpu", "0000:18:00.0", 14_062e6), NvLink(1, None))


@in_one_pass("status, refused", [(0, False), (5, True), (6, False), (None, False)])
def test_refused_peers_come_from_the_readings(status: int | None, refused: bool) -> None:
    """A status that is unknown or was not read refuses nothing."""
    pair = {"pci_bus_id": ADDRESS, "peer_pci_bus_id": "0000:18:00.0"}
    facts = read([(series("commwatch_gpu_p2p_status", **pair, capability="nvlink"), status)])

    assert facts.nvlink_refused == (frozenset({frozenset(pair.values())}) if refused else frozenset())
    assert facts.peers_refused == frozenset()


@pytest.mark.parametrize(("count", "expected"), [(None, None), (0, ())])
def test_links_that_were_not_counted_are_not_none(count: int | None, expected: object) -> None:
    """A GPU whose number of links was not read is not one without links."""
    place = {"gpu": "0", "pci_bus_id": ADDRESS}
    samples = [(series("commwatch_gpu_info", **place), 1), (series("commwatch_nvlink_links", **place), count)]

    assert read(samples).gpus[0].nvlinks == expected


def test_links_whose_states_were_not_read_are_not_inactive() -> None:
    """With MIG enabled the driver's states say nothing, and are absent: then nothing is known of the links."""
    place = {"gpu": "0", "pci_bus_id": ADDRESS}
    samples: list[tuple[Series, Value]] = [
        (series("commwatch_gpu_info", **place), 1),
        (series("commwatch_nvlink_links", **place), 2),
        *((series("commwatch_nvlink_link_state", **place, link=link), None) for link in ("0", "1")),
    ]

    assert read(samples).gpus[0].nvlinks is None


def test_a_tree_without_any_device_is_built(tmp_path: Path) -> None:
    """No GPU, no NIC: an empty topology."""
    Tree(tmp_path)

    assert topology(tmp_path).ends == ()
