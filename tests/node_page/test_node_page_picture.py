"""The picture of the node's page: what is where, in which state, and which lines are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from commwatch.views.node_page.fabric import Fabric, fabric_of
from commwatch.views.node_page.page import render_node_page
from commwatch.views.node_page.records import Mark
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Series, Snapshot, Value
from support.html_pages import Page
from support.node_pages import DOWN, LINKS, LOST, SLOTS, SWITCHES, hgx, status
from support.pages import snapshot_of
from support.passes import in_one_pass


def picture_of(snapshot: Snapshot, marks: Mapping[str, Mark]) -> Fabric:
    return fabric_of(Node(snapshot), marks)


def board(*, faulty: bool = False, use: float = 0.3) -> Fabric:
    """An HGX board."""
    return picture_of(hgx(faulty=faulty, use=use), status(faulty=faulty).marks)


def drawn(snapshot: Snapshot, marks: Mapping[str, Mark] | None = None) -> Page:
    """The picture of the page without its legend, taken apart."""
    page = render_node_page(Node(snapshot), replace(status(), marks=marks or {}), "/metrics")
    return Page(f"<svg{page.partition('<svg')[2].partition('</svg>')[0]}</svg>")


def mesh(*, down: tuple[int, int] | None = None) -> Snapshot:
    """Three GPUs with root ports of their own, each with two links to every other one."""
    values: dict[Series, Value] = {}
    slots = [f"0000:{one}1:00.0" for one in range(3)]
    for gpu, slot in enumerate(slots):
        others = [one for one in slots if one != slot]
        values["commwatch_gpu_state", (str(gpu), slot)] = 0
        values["commwatch_pcie_device_info", (slot, "gpu", f"0000:{gpu}0:01.0", str(gpu), "", "")] = 1
        values[
            "commwatch_pcie_device_info", (f"0000:{gpu}0:01.0", "root_port", f"pci0000:{gpu}0", str(gpu), "", "")
        ] = 1
        for link in range(4):
            up = (gpu, link) != down
            far = ("gpu", others[link // 2], str(link)) if up else ("", "", "")
            values["commwatch_nvlink_link_state", (str(gpu), slot, str(link))] = int(up)
            values["commwatch_nvlink_info", (str(gpu), slot, str(link), "3.0", *far)] = 1
    return snapshot_of(values)


def test_parts_hang_where_the_pci_tree_has_them() -> None:
    """Two GPUs and two adapters below each PCIe switch, in the order of their addresses, with the NUMA node."""
    fabric = board()

    assert [[gpu.name for gpu in branch.gpus] for branch in fabric.branches] == [
        ["GPU0", "GPU1"], ["GPU2", "GPU3"], ["GPU4", "GPU5"], ["GPU6", "GPU7"]]  # fmt: skip
    assert [len(branch.adapters) for branch in fabric.branches] == [2, 2, 2, 2]
    assert [branch.numa for branch in fabric.branches] == ["0", "0", "1", "1"]
    assert all(branch.switch for branch in fabric.branches)
    assert [one.address for one in fabric.switches] == list(SWITCHES)


def test_states_of_a_board_in_trouble() -> None:
    """A lost GPU, a link that is down, one with errors, a port that is down and a narrow PCIe link, each as such."""
    fabric = board(faulty=True)
    gpus = fabric.gpus

    assert (gpus[LOST].level, gpus[LOST].words) == ("bad", "lost")
    assert {link.level for link in gpus[LOST].links} == {"unknown"}
    assert (gpus[3].links[7].level, gpus[3].links[7].words) == ("bad", "down")
    assert (gpus[0].links[2].level, gpus[0].links[2].words) == ("warn", "An NVLink makes CRC errors")
    assert (gpus[3].links_up, gpus[3].links_wanted) == (17, 18)
    assert [one.name for one in fabric.adapters if one.level == "bad"] == ["mlx5_5"]
    assert [one.name for one in gpus if one.pcie_level == "bad"] == ["GPU1"]
    assert fabric.words == (
        "8 GPUs, 8 adapter ports, 4 NVSwitches. 125 of 144 NVLinks are up, 18 are not read. GPU5: lost. mlx5_5: down. "
        "GPU0 link 2: An NVLink makes CRC errors. GPU3 link 7: down. PCIe of GPU1: below its best."
    )


def test_a_pcie_link_has_the_words_of_its_finding() -> None:
    """A link of full width that sends packets again is not below its best."""
    marks = {f"pcie_link/{SLOTS[6]}": Mark("warning", "PCIe link sends too many packets again")}

    assert fabric_of(Node(hgx()), marks).words.endswith("PCIe of GPU6: PCIe link sends too many packets again.")


def test_every_link_is_one_line() -> None:
    """144 lines, those in trouble with a title and a sign; the lines of a healthy board have neither."""
    healthy, faulty = drawn(hgx()), drawn(hgx(faulty=True), status(faulty=True).marks)
    lines = sum(tag == "path" and (names["d"] or "").startswith("M206 ") for tag, names in healthy.elements)

    assert lines == len(SLOTS) * LINKS
    assert healthy.count("text", "s") == 0
    assert faulty.count("path", "bad") == 1 + 1  # the link that is down, and the PCIe link
    assert faulty.count("path", "warn") == 1
    assert faulty.count("path", "unknown") == LINKS
    assert faulty.count("text", "s") == 3
    assert f"GPU{DOWN[0]} link {DOWN[1]}: down" in faulty.texts


@in_one_pass(
    "shares, kind",
    [
        ((None, None), "nv "), ((0.0, 0.0), "nv u0"), ((0.0, 0.005), "nv u0"), ((0.0, 0.01), "nv u1"),
        ((0.2, None), "nv u1"), ((0.0, 0.25), "nv u2"), ((0.5, 0.0), "nv u3"), ((0.1, 0.75), "nv u4"),
        ((1.0, 0.1), "nv u4"),
    ],
)  # fmt: skip
def test_use_is_drawn_in_steps(shares: tuple[Value, Value], kind: str) -> None:
    """Idle, then in quarters; the busier direction counts, and what was not read has no class."""
    gpu = ("0", "0000:23:00.0")
    values: dict[Series, Value] = {("commwatch_gpu_state", gpu): 0, ("commwatch_nvlink_link_state", (*gpu, "0")): 1}
    for direction, share in zip(("transmit", "receive"), shares, strict=True):
        values[f"commwatch_nvlink_{direction}_utilization_ratio", gpu] = share

    assert [names["class"] for tag, names in drawn(snapshot_of(values)).elements if tag == "g"] == [kind]


def test_gpus_that_are_joined_directly() -> None:
    """Each link is drawn once, from the GPU that comes first; a link that is down ends before it is anywhere."""
    whole, broken = drawn(mesh()), picture_of(mesh(down=(0, 1)), {})

    assert whole.count("path") == 3 * 2 + 3 + 2 + 3  # arcs, PCIe links, ways through the CPU, lines of NUMA nodes
    assert broken.switches == []
    assert [link.level for link in broken.gpus[0].links] == ["good", "off", "good", "good"]


def test_links_that_were_never_up_are_no_trouble() -> None:
    """Without a bridge none is expected; the count leaves them out."""
    slot = "0000:23:00.0"
    values: dict[Series, Value] = {("commwatch_gpu_state", ("0", slot)): 0}
    for link in range(4):
        values["commwatch_nvlink_link_state", ("0", slot, str(link))] = 0
    fabric = picture_of(snapshot_of(values), {})

    assert {link.level for link in fabric.gpus[0].links} == {"off"}
    assert fabric.gpus[0].links_wanted == 0
    assert fabric.words == "1 GPU. No NVLink is in use."


def test_switches_that_the_host_does_not_see_are_one_box() -> None:
    """Links lead to switches without an address; nobody learns how many there are."""
    slot = "0000:03:00.0"
    values: dict[Series, Value] = {("commwatch_gpu_state", ("0", slot)): 0}
    for link in range(4):
        values["commwatch_nvlink_link_state", ("0", slot, str(link))] = 1
        values["commwatch_nvlink_info", ("0", slot, str(link), "5.0", "switch", "", str(link))] = 1
    fabric = picture_of(snapshot_of(values), {})

    assert [one.address for one in fabric.switches] == [""]
    assert fabric.words == "1 GPU. 4 of 4 NVLinks are up."
    assert "fabric" in drawn(snapshot_of(values)).texts


def test_interfaces_stand_for_adapters_without_rdma() -> None:
    """Those on the PCI bus; a port that is down and expected by nobody is drawn as not in use."""
    values: dict[Series, Value] = {
        ("commwatch_ethernet_info", ("ens1", "0000:19:00.0", "mlx5_core", "")): 1,
        ("commwatch_ethernet_info", ("bond0", "", "bonding", "")): 1,
        ("commwatch_ethernet_carrier", ("ens1",)): 0,
    }
    fabric = picture_of(snapshot_of(values), {})

    assert [(one.name, one.level, one.words) for one in fabric.adapters] == [("ens1", "off", "down")]
    marked = picture_of(snapshot_of(values), {"interface/ens1": Mark("warning", "Link is down")})
    assert (marked.adapters[0].level, marked.adapters[0].words) == ("warn", "down")


@in_one_pass("parent", ["0000:17:00.0", "0000:16:00.0", ""])
def test_a_tree_that_is_none_does_not_hang(parent: str) -> None:
    """A device that is its own parent, two that are each other's, and one without any."""
    values: dict[Series, Value] = {
        ("commwatch_gpu_state", ("0", "0000:17:00.0")): 0,
        ("commwatch_pcie_device_info", ("0000:17:00.0", "gpu", parent, "", "", "")): 1,
        ("commwatch_pcie_device_info", ("0000:16:00.0", "switch_port", "0000:17:00.0", "", "", "")): 1,
    }

    assert len(picture_of(snapshot_of(values), {}).gpus) == 1


def test_suspects_of_the_pair_probes_are_marked() -> None:
    """A part that slow pairs have in common is marked where it stands in the picture."""
    switch = "0000:37:02.0"
    marks = {"part/gpu/GPU3": Mark("warning", "A part is suspect"), f"part/pcie_switch/{switch}": Mark("warning", "x"),
             f"nvswitch/{SWITCHES[1]}": Mark("critical", "SXid")}  # fmt: skip
    fabric = picture_of(hgx(), marks)

    assert [one.name for one in fabric.gpus if one.level == "warn"] == ["GPU3"]
    assert [one.switch for one in fabric.branches if one.level == "warn"] == [switch]
    assert [one.level for one in fabric.switches] == ["good", "bad", "good", "good"]


@in_one_pass(
    "marks, level",
    [
        ({"gpu/{}": "info", "part/gpu/GPU0": "warning"}, "warn"),
        ({"gpu/{}": "critical", "part/gpu/GPU0": "info"}, "bad"),
        ({"gpu/0000:24:00.0": "critical"}, "good"),
    ],
)
def test_the_most_severe_mark_counts(marks: dict[str, str], level: str) -> None:
    """A part may be marked as itself and as a suspect."""
    slot = "0000:23:00.0"
    found = {identity.format(slot): Mark(severity, "x") for identity, severity in marks.items()}

    assert picture_of(snapshot_of({("commwatch_gpu_state", ("0", slot)): 0}), found).gpus[0].level == level


def test_of_hundreds_of_ports_those_in_trouble_are_shown() -> None:
    """Virtual functions would fill the page; the count says how many are left out."""
    values: dict[Series, Value] = {}
    for number in range(100):
        port = (f"mlx5_{number}", "1")
        address = f"0000:19:{number // 8:02x}.{number % 8}"
        values["commwatch_rdma_port_info", (*port, "InfiniBand", "", "", "", "", address, "")] = 1
        values["commwatch_rdma_port_state", port] = 4
    fabric = picture_of(snapshot_of(values), {"rdma_port/mlx5_99/1": Mark("critical", "RDMA port is down")})

    assert len(fabric.adapters) == 32
    assert fabric.adapters[-1].name == "mlx5_99"
    assert fabric.words.startswith("32 adapter ports. 68 adapter ports more, in the table below. mlx5_99: ")


def test_names_are_cut_where_the_box_ends() -> None:
    """The whole name is in the title of the box."""
    values: dict[Series, Value] = {
        ("commwatch_ethernet_info", ("enp225s0f0np0", "0000:19:00.0", "mlx5_core", "")): 1,
        ("commwatch_ethernet_carrier", ("enp225s0f0np0",)): 1,
    }
    texts = drawn(snapshot_of(values)).texts

    assert "enp225s0f…" in texts
    assert "enp225s0f0np0 (0000:19:00.0): up" in texts
