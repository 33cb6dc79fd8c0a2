"""The topology branch: parts, links, near adapters and ways, each at the edge of its mark."""

from __future__ import annotations

from typing import Any

import pytest

from commwatch.diagnosis.check import Check, CheckVerdict
from diagnosis.exposed import branch_of, finding, known_of, shows, verdicts
from support.machines import GPUS, NICS, merged, switched_node, without
from support.passes import in_one_pass

LANES, SPEED = "PCIe lanes", "PCIe generation"
NVLINKS, NEAREST = "active NVLinks", "way to the nearest RDMA adapter"
WAYS, PEERS, NUMA = "ways between GPUs", "peer access between GPUs", "NUMA nodes of GPUs and adapters"
ACS = "traffic within a PCIe switch stays there (ACS, IOMMU)"
GPU0, GPU1 = ("0", GPUS[0]), ("1", GPUS[1])
Numbers = dict[str, dict[Any, float]]


def checks(numbers: Numbers) -> list[Check]:
    """What the branch makes of a node; every check that failed says what is required."""
    found = branch_of(known_of(numbers), "topology")
    for check in found:
        assert check.verdict != "failed" or (check.measured and check.required and check.next_step)
        assert check.verdict != "not measured" or check.detail
    return found


def changed(*changes: Numbers) -> Numbers:
    """The switched node with other numbers."""
    return merged(switched_node(), *changes)


def gpu_count(present: float, expected: float | None = None, state: float = 0.0) -> Numbers:
    numbers: Numbers = {"commwatch_present": {("gpu",): present}, "commwatch_gpu_state": {GPU0: state}}
    return numbers if expected is None else numbers | {"commwatch_expected": {("gpu",): expected}}


def link(number: int, metric: str, value: float) -> Numbers:
    return {f"commwatch_nvlink_link_{metric}": {(*GPU0, str(number)): value}}


NO_LINKS: Numbers = {"commwatch_nvlink_link_state": dict.fromkeys(switched_node()["commwatch_nvlink_link_state"], 0.0)}


CARDS: Numbers = {
    "commwatch_gpu_info": {(*gpu, "", "", "NVIDIA GeForce RTX 3090", "Ampere"): 1.0 for gpu in (GPU0, GPU1)}
}
"""In place of GPUs that are soldered to a board."""


def width(address: str, lanes: float, most: float = 16.0) -> Numbers:
    return {
        "commwatch_pcie_device_link_width_lanes": {(address,): lanes},
        "commwatch_pcie_device_link_width_max_lanes": {(address,): most},
        "commwatch_pcie_device_link_degraded": {(NICS[0], "nic", "width"): float(address == NICS[0] and lanes < most)},
    }


def of_driver(lanes: float, learned: float | None = None) -> Numbers:
    """The link of GPU0 as the driver has it, and as it was stable."""
    stable: Numbers = {} if learned is None else {"commwatch_pcie_link_width_expected_lanes": {GPU0: learned}}
    return stable | {
        "commwatch_pcie_link_width_lanes": {GPU0: lanes}, "commwatch_pcie_link_width_max_lanes": {GPU0: 16.0},
    }  # fmt: skip


def slow(flag: float) -> Numbers:
    """Whether the daemon sees the links of GPU0 and of the first adapter below their generation."""
    return {
        "commwatch_pcie_link_degraded": {(*GPU0, "generation"): flag, (*GPU0, "width"): 0.0},
        "commwatch_pcie_device_link_degraded": {(NICS[0], "nic", "generation"): flag},
    }


def moved(address: str, parent: str, numa: str) -> Numbers:
    """An adapter or a GPU at another place."""
    node = switched_node()
    info = {key: value for key, value in node["commwatch_pcie_device_info"].items() if key[0] != address}
    role = "gpu" if address in GPUS else "nic"
    return {**node, "commwatch_pcie_device_info": {**info, (address, role, parent, numa, "", ""): 1.0}}


def named(name: str, node: Numbers) -> Numbers:
    """A node with GPUs of this name."""
    infos = {(*key[:4], name, *key[5:]): value for key, value in node["commwatch_gpu_info"].items()}
    return {**node, "commwatch_gpu_info": infos}


def without_numa() -> Numbers:
    node = switched_node()
    node["commwatch_pcie_device_info"] = {
        (*key[:3], "-1", *key[4:]): value for key, value in node["commwatch_pcie_device_info"].items()
    }
    return node


def two_trees() -> Numbers:
    """Two pairs of GPUs under a switch each, of which the driver says nothing."""
    tree = {metric: own for metric, own in switched_node().items() if metric.startswith("commwatch_pcie_device")}
    other = {
        metric: {tuple(label.replace("0000:1", "0000:2") for label in labels): number for labels, number in own.items()}
        for metric, own in tree.items()
    }
    return merged(tree, other)


def lacking_gpu1() -> Numbers:
    """The driver does not know it."""
    node = switched_node()
    for metric in ("commwatch_gpu_info", "commwatch_nvlink_links"):
        node[metric] = {key: value for key, value in node[metric].items() if key[1] == GPUS[1]}
    return node


SWITCHES: Numbers = {
    "commwatch_pcie_device_info": {("0000:90:00.0", "nvswitch", "pci0000:90", "0", "", ""): 1.0},
    "commwatch_fabric_state": dict.fromkeys([GPU0, GPU1], 1.0),
}
NO_DRIVER = without(switched_node(), "commwatch_present", "commwatch_gpu_info", "commwatch_nvlink_links")
NO_WIDTHS = without(switched_node(), "commwatch_pcie_device_link_width_lanes")
EXPECTED = [link(0, "expected", 1), link(1, "expected", 1)]
APART = moved(GPUS[0], "pci0000:80", "0")

CASES: list[tuple[str, Numbers, str, str, dict[str, str]]] = [
    ("GPUs as they should be", changed(), "GPUs", "passed", {"measured": "2"}),
    ("as many as were stable", changed(gpu_count(2, 2)), "GPUs", "passed", {"never": ": lost"}),
    ("one is on the bus alone", changed(gpu_count(1)), "GPUs", "notice", {}),
    ("fewer than were stable", changed(gpu_count(2, 3)), "GPUs", "notice", {}),
    ("one is lost", changed(gpu_count(2, 2, state=2.0)), "GPUs", "failed", {"says": ": lost"}),
    ("they are on the bus, and the driver is not known", NO_DRIVER, "GPUs", "not measured", {}),
    ("its links neither", NO_DRIVER, WAYS, "not measured", {}),
    ("nobody was asked about NVLink, as while paused", two_trees(), WAYS, "not measured",
     {"next_step": "", "never": "CPU"}),
    ("NVLinks as they should be", changed(), f"{NVLINKS}: GPU0", "passed", {"measured": "2 of 2"}),
    ("all that were active are", changed(*EXPECTED), f"{NVLINKS}: GPU0", "passed", {}),
    ("one is asleep", changed(*EXPECTED, link(1, "state", 2)), f"{NVLINKS}: GPU0", "passed", {}),
    ("one that was active is down", changed(*EXPECTED, link(1, "state", 0)), f"{NVLINKS}: GPU0", "failed", {}),
    ("one never was active", changed(EXPECTED[0], link(1, "state", 0)), f"{NVLINKS}: GPU0", "passed", {}),
    ("before anything is learned", changed(link(1, "state", 0)), f"{NVLINKS}: GPU0", "notice", {}),
    ("none is fitted", merged(without(changed(NO_LINKS), "commwatch_gpu_info"), CARDS), f"{NVLINKS}: GPU0",
     "does not apply", {}),
    ("none of a board is active, though no NVSwitch shows", changed(NO_LINKS), f"{NVLINKS}: GPU0", "notice",
     {"measured": "0 of 2"}),
    ("the GPU has none", changed({"commwatch_nvlink_links": {GPU0: 0.0}}), f"{NVLINKS}: GPU0", "does not apply", {}),
    ("one was not read", changed(EXPECTED[0], link(5, "expected", 1)), f"{NVLINKS}: GPU0", "not measured", {}),
    ("with MIG the driver has none", without(switched_node(), "commwatch_nvlink_links"), f"{NVLINKS}: GPU0",
     "not measured", {}),
    ("NVSwitches that no link reaches", changed(SWITCHES, NO_LINKS), f"{NVLINKS}: GPU0", "failed", {}),
    ("and no GPU has joined", changed(SWITCHES, NO_LINKS), "NVLinks to NVSwitches: GPU0, GPU1", "failed", {}),
    *((f"x{lanes} of x{most}", changed(width(place, lanes, most)), f"{LANES}: {name}", verdict,
       {"measured": f"x{lanes}", "required": f"x{most}"})
      for place, name, lanes, most, verdict in (
          (GPUS[0], "GPU0", 16, 16, "passed"),
          (GPUS[0], "GPU0", 8, 16, "notice"),  # it never had more here
          (GPUS[0], "GPU0", 8, 8, "passed"),
          (NICS[0], "mlx5_0", 8, 16, "failed"),
          (NICS[0], "mlx5_0", 8, 8, "passed"),
      )),
    ("a slot that shows eight since a riser came loose", changed(width(GPUS[0], 8, 8), of_driver(8, learned=16)),
     f"{LANES}: GPU0", "failed", {"required": "x16", "source": "the most that was stable here"}),
    ("lanes that the kernel does not know", NO_WIDTHS, f"{LANES}: GPU0", "not measured", {}),
    ("nor those of an adapter", NO_WIDTHS, f"{LANES}: mlx5_0", "not measured", {}),
    ("the driver may", merged(NO_WIDTHS, of_driver(8)), f"{LANES}: GPU0", "notice", {}),
    *((f"generation, degraded: {flag}", changed(slow(flag)), f"{SPEED}: {name}", verdict, {"never": "idle"})
      for name in ("GPU0", "mlx5_0") for flag, verdict in ((0.0, "passed"), (1.0, "failed"))),
    ("an idle GPU is not judged", changed(), f"{SPEED}: GPU0", "not measured", {"says": "idle"}),
    ("nor an adapter whose ends are not known", changed(), f"{SPEED}: mlx5_0", "not measured", {}),
    ("an adapter under the same switch", changed(), f"{NEAREST}: GPU1", "passed", {"measured": "PIX"}),
    *((f"NUMA node {numa}", moved(GPUS[0], "pci0000:80", numa), f"{NEAREST}: GPU0", verdict, {"measured": measured})
      for numa, measured, verdict in (("0", "NODE", "notice"), ("1", "SYS", "notice"), ("-1", "", "not measured"))),
    *((f"GH200, NUMA node {numa}", named("NVIDIA GH200 480GB", moved(GPUS[0], "pci0000:80", numa)),
       f"{NEAREST}: GPU0", verdict, {"measured": measured})
      for numa, measured, verdict in (("0", "NODE", "passed"), ("1", "SYS", "notice"))),
    ("the other one is near", APART, f"{NEAREST}: GPU1", "passed", {}),
    ("without RDMA there is no adapter", without(switched_node(), "commwatch_rdma_port_info"), NEAREST,
     "does not apply", {}),
    ("joined by NVLink", changed(), WAYS, "passed", {"measured": "1 NV2"}),
    ("in different places", merged(APART, NO_LINKS), WAYS, "notice", {"measured": "1 NODE"}),
    ("under one switch", changed(NO_LINKS), WAYS, "passed", {"measured": "1 PIX"}),
    ("there nobody but root sees ACS", changed(NO_LINKS), ACS, "not measured", {}),
    ("some GPUs are sold without", changed({"commwatch_gpu_p2p_status": {(*GPU0, *GPU1, "read"): 3.0}}), PEERS,
     "notice", {}),
    ("no answer is none", changed(
        {"commwatch_gpu_p2p_status": dict.fromkeys(switched_node()["commwatch_gpu_p2p_status"], 6.0)}),
     PEERS, "not measured", {}),
    ("a NUMA node that decides a class", moved(GPUS[0], "pci0000:80", "-1"), f"{NUMA}: GPU0", "notice", {}),
    ("that of an adapter", moved(NICS[0], "pci0000:80", "-1"), f"{NUMA}: mlx5_0 (NIC0)", "notice", {}),
    ("where all lies under one switch none is needed", without_numa(), NUMA, "passed", {}),
    ("a GPU that the driver lacks", lacking_gpu1(), f"GPUs on the bus known to the driver: {GPUS[0]}", "notice", {}),
    ("its way is that of PCIe", lacking_gpu1(), WAYS, "passed", {"measured": "1 PIX"}),
]  # fmt: skip
"""What a case shows, what is exposed, the check with its place, and its verdict and fields."""


@in_one_pass("name, numbers, what, verdict, fields", CASES)
def test_a_check_at_the_edge_of_its_mark(
    name: str, numbers: Numbers, what: str, verdict: str, fields: dict[str, str]
) -> None:
    """Of one part, or of the whole node."""
    [check] = [one for one in checks(numbers) if ": ".join(filter(None, (one.what, one.where))) == what]

    shows(check, verdict, **fields)


def test_a_node_as_it_should_be_passes() -> None:
    """All that needs no load passes; ACS is asked only where a switch lies between."""
    assert {check.what for check in checks(changed()) if check.verdict != "passed"} == {SPEED}
    assert ACS not in {check.what for check in checks(merged(APART, NO_LINKS))}
    assert NVLINKS not in {check.what for check in checks(NO_DRIVER)}


def test_nothing_read_is_not_measured() -> None:
    """A page without a node on it says nothing of one."""
    assert verdicts(checks({})) == {"GPUs": "does not apply", WAYS: "does not apply", NUMA: "not measured"}


LACKING: dict[str, tuple[Numbers, set[str]]] = {
    "GPU never seen": ({"commwatch_expected": {("gpu",): 3.0}, "commwatch_never_seen": {("gpu",): 1.0}}, {"GPUs"}),
    "lanes never seen": ({"commwatch_never_seen": {("pcie_lane",): 16.0}}, {LANES}),
    "NVLinks never seen": ({"commwatch_never_seen": {("nvlink",): 2.0}}, {NVLINKS}),
    "lanes below product": ({"commwatch_gpu_below_product": {(*GPU0, "lanes"): 8.0}}, {LANES}),
    "NVLinks below product": ({"commwatch_gpu_below_product": {(*GPU0, "nvlinks"): 1.0}}, {NVLINKS}),
    "generation below product": ({"commwatch_gpu_below_product": {(*GPU0, "generation"): 1.0}}, {SPEED}),
    "ports never seen": ({"commwatch_never_seen": {("ethernet_port",): 1.0}}, set()),
}
"""What a rule says that the node lacks, and the checks of GPU0 and of all GPUs that fail by it."""


@pytest.mark.parametrize(("lacking", "failed"), LACKING.values(), ids=LACKING)
def test_what_a_rule_says_the_node_lacks_fails_the_check_of_that_quantity(lacking: Numbers, failed: set[str]) -> None:
    """Of all GPUs, or of those that lack it; a check of another quantity stays as it is."""
    short = merged(width(GPUS[0], 8.0), width(NICS[0], 8.0), link(1, "state", 0))
    short["commwatch_pcie_device_link_degraded"] = {}

    found = [one for one in checks(changed(short, lacking)) if one.verdict == "failed"]

    assert {one.what for one in found} == failed
    assert {one.where for one in found} <= {"", "GPU0"}
    assert all(one.detail for one in found)


@in_one_pass("told_by", ["both ends", "GPU0", "GPU1"])
@in_one_pass("number, verdict", [("1", "failed"), ("0", "notice")])
def test_a_link_that_is_down_fails_at_both_ends(told_by: str, number: str, verdict: CheckVerdict) -> None:
    """The finding names one of them; the driver may say at one alone where the link leads. Another link is not it."""
    node = switched_node()
    node["commwatch_nvlink_info"] = {
        key: value for key, value in node["commwatch_nvlink_info"].items() if told_by in ("both ends", f"GPU{key[0]}")
    }
    node["commwatch_nvlink_link_state"][(*GPU1, "1")] = 0.0
    at_gpu0 = finding("nvlink_down", f"nvlink/{GPUS[0]}/{number}", "critical")

    checked = branch_of(known_of(node, [at_gpu0]), "topology")
    [check] = [one for one in checked if (one.what, one.where) == (NVLINKS, "GPU1")]

    assert check.verdict == verdict
    assert ("title of nvlink_down" in check.detail) == (verdict == "failed")
