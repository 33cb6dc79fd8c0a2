"""The topology branch: parts, links, near adapters and ways, each at the edge of its mark."""

from __future__ import annotations

from typing import Any

import pytest

from commwatch.diagnosis.check import Check, CheckVerdict
from diagnosis.exposed import branch_of, finding, known_of, verdicts
from support.machines import GPUS, NICS, merged, switched_node, without

LANES, SPEED = "PCIe lanes", "PCIe generation"
NVLINKS, NEAREST = "active NVLinks", "way to the nearest RDMA adapter"
GPU0 = ("0", GPUS[0])


def checks(numbers: dict[str, dict[Any, float]]) -> list[Check]:
    """What the branch makes of a node; every check that failed says what is required."""
    found = branch_of(known_of(numbers), "topology")
    for check in found:
        assert check.verdict != "failed" or (check.measured and check.required and check.next_step)
        assert check.verdict != "not measured" or check.detail
    return found


def changed(*changes: dict[str, dict[Any, float]]) -> list[Check]:
    """The checks of the switched node with other numbers."""
    return checks(merged(switched_node(), *changes))


def of(found: list[Check], what: str, where: str = "") -> Check:
    [check] = [one for one in found if one.what == what and one.where == where]
    return check


def test_a_node_as_it_should_be_passes() -> None:
    """All that needs no load passes; the generation of an idle GPU and ACS are not measured, and say why."""
    found = changed()

    assert {check.what for check in found if check.verdict != "passed"} == {SPEED}
    assert of(found, "GPUs").measured == "2"
    assert of(found, NVLINKS, "GPU0").measured == "2 of 2"
    assert of(found, NEAREST, "GPU1").measured == "PIX"
    assert of(found, "ways between GPUs").measured == "1 NV2"


def test_nothing_read_is_not_measured() -> None:
    """A page without a node on it says nothing of one."""
    found = verdicts(checks({}))

    assert found == {
        "GPUs": "does not apply",
        "ways between GPUs": "does not apply",
        "NUMA nodes of GPUs and adapters": "not measured",
    }


@pytest.mark.parametrize(
    ("present", "expected", "state", "verdict"),
    [
        (2.0, None, 0.0, "passed"),
        (2.0, 2.0, 0.0, "passed"),
        (1.0, None, 0.0, "notice"),  # the other one is on the bus
        (2.0, 3.0, 0.0, "notice"),
        (2.0, 2.0, 2.0, "failed"),
    ],
)
def test_gpus_are_counted(present: float, expected: float | None, state: float, verdict: CheckVerdict) -> None:
    """Against what was stable, or else against the PCI bus; what a rule says of one GPU is a fault."""
    numbers: dict[str, dict[Any, float]] = {
        "commwatch_present": {("gpu",): present},
        "commwatch_gpu_state": {GPU0: state},
    }
    if expected is not None:
        numbers["commwatch_expected"] = {("gpu",): expected}

    check = of(changed(numbers), "GPUs")

    assert check.verdict == verdict
    assert (": lost" in check.detail) == (state == 2.0)


LACKING: list[tuple[str, dict[str, dict[Any, float]], set[str]]] = [
    ("GPU never seen", {"commwatch_expected": {("gpu",): 3.0}, "commwatch_never_seen": {("gpu",): 1.0}}, {"GPUs"}),
    ("lanes never seen", {"commwatch_never_seen": {("pcie_lane",): 16.0}}, {LANES}),
    ("NVLinks never seen", {"commwatch_never_seen": {("nvlink",): 2.0}}, {NVLINKS}),
    ("lanes below product", {"commwatch_gpu_below_product": {(*GPU0, "lanes"): 8.0}}, {LANES}),
    ("NVLinks below product", {"commwatch_gpu_below_product": {(*GPU0, "nvlinks"): 1.0}}, {NVLINKS}),
    ("generation below product", {"commwatch_gpu_below_product": {(*GPU0, "generation"): 1.0}}, {SPEED}),
    ("ports never seen", {"commwatch_never_seen": {("ethernet_port",): 1.0}}, set()),
]
"""What a rule says that the node lacks, and the checks of GPU0 and of all GPUs that fail by it."""


@pytest.mark.parametrize(("lacking", "failed"), [row[1:] for row in LACKING], ids=[row[0] for row in LACKING])
def test_what_a_rule_says_the_node_lacks_fails_the_check_of_that_quantity(
    lacking: dict[str, dict[Any, float]], failed: set[str]
) -> None:
    """Of all GPUs, or of those that lack it; a check of another quantity stays as it is."""
    short = merged(width(GPUS[0], 8.0), width(NICS[0], 8.0), link(1, "state", 0))

    found = [one for one in changed(short, lacking) if one.verdict == "failed"]

    assert {one.what for one in found} == failed
    assert {one.where for one in found} <= {"", "GPU0"}
    assert all(one.detail for one in found)


def test_gpus_without_a_driver_are_not_counted() -> None:
    """They are on the bus, and what the driver has is not known."""
    found = checks(without(switched_node(), "commwatch_present", "commwatch_gpu_info", "commwatch_nvlink_links"))

    assert of(found, "GPUs").verdict == "not measured"
    assert of(found, "ways between GPUs").verdict == "not measured"
    assert NVLINKS not in {check.what for check in found}


def test_without_the_driver_no_traffic_is_said_to_go_through_the_cpu() -> None:
    """Two pairs of GPUs under a switch each may have NVLinks between them: nobody was asked, as while paused."""
    tree = {metric: own for metric, own in switched_node().items() if metric.startswith("commwatch_pcie_device")}
    other = {
        metric: {tuple(label.replace("0000:1", "0000:2") for label in labels): number for labels, number in own.items()}
        for metric, own in tree.items()
    }
    ways = of(checks(merged(tree, other)), "ways between GPUs")

    assert (ways.verdict, ways.next_step) == ("not measured", "")
    assert "CPU" not in ways.detail


def link(number: int, metric: str, value: float) -> dict[str, dict[Any, float]]:
    return {f"commwatch_nvlink_link_{metric}": {(*GPU0, str(number)): value}}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([link(0, "expected", 1), link(1, "expected", 1)], "passed"),
        ([link(0, "expected", 1), link(1, "expected", 1), link(1, "state", 2)], "passed"),  # asleep
        ([link(0, "expected", 1), link(1, "expected", 1), link(1, "state", 0)], "failed"),
        ([link(0, "expected", 1), link(1, "state", 0)], "passed"),  # never was active
        ([link(1, "state", 0)], "notice"),
        ([link(0, "state", 0), link(1, "state", 0)], "does not apply"),
        ([{"commwatch_nvlink_links": {GPU0: 0.0}}], "does not apply"),
        ([link(0, "expected", 1), link(5, "expected", 1)], "not measured"),
    ],
)
def test_nvlinks_are_held_against_those_that_were_active(
    changes: list[dict[str, dict[Any, float]]], verdict: CheckVerdict
) -> None:
    """One that is down fails; what was never there does not."""
    assert of(changed(*changes), NVLINKS, "GPU0").verdict == verdict


@pytest.mark.parametrize("told_by", ["both ends", "GPU0", "GPU1"])
@pytest.mark.parametrize(("number", "verdict"), [("1", "failed"), ("0", "notice")])
def test_a_link_that_is_down_fails_at_both_ends(told_by: str, number: str, verdict: CheckVerdict) -> None:
    """The finding names one of them; the driver may say at one alone where the link leads. Another link is not it."""
    node = switched_node()
    node["commwatch_nvlink_info"] = {
        key: value for key, value in node["commwatch_nvlink_info"].items() if told_by in ("both ends", f"GPU{key[0]}")
    }
    node["commwatch_nvlink_link_state"][("1", GPUS[1], "1")] = 0.0
    at_gpu0 = finding("nvlink_down", f"nvlink/{GPUS[0]}/{number}", "critical")

    check = of(branch_of(known_of(node, [at_gpu0]), "topology"), NVLINKS, "GPU1")

    assert check.verdict == verdict
    assert ("title of nvlink_down" in check.detail) == (verdict == "failed")


def test_links_that_the_driver_does_not_tell_are_not_measured() -> None:
    """As with MIG enabled."""
    found = checks(without(switched_node(), "commwatch_nvlink_links"))

    assert of(found, NVLINKS, "GPU0").verdict == "not measured"


def width(address: str, lanes: float, most: float = 16.0) -> dict[str, dict[Any, float]]:
    return {
        "commwatch_pcie_device_link_width_lanes": {(address,): lanes},
        "commwatch_pcie_device_link_width_max_lanes": {(address,): most},
    }


@pytest.mark.parametrize(
    ("place", "lanes", "most", "verdict"),
    [
        (GPUS[0], 16.0, 16.0, "passed"),
        (GPUS[0], 8.0, 16.0, "notice"),  # never had more here
        (GPUS[0], 8.0, 8.0, "passed"),
        (NICS[0], 8.0, 16.0, "failed"),
        (NICS[0], 8.0, 8.0, "passed"),
    ],
)
def test_lanes_are_held_against_both_ends(place: str, lanes: float, most: float, verdict: CheckVerdict) -> None:
    """A card of eight lanes needs no more; the link of an adapter of sixteen that has eight is degraded."""
    degraded = {
        "commwatch_pcie_device_link_degraded": {(NICS[0], "nic", "width"): float(place == NICS[0] and lanes < most)}
    }

    check = of(changed(width(place, lanes, most), degraded), LANES, "GPU0" if place == GPUS[0] else "mlx5_0")

    assert (check.verdict, check.measured, check.required) == (verdict, f"x{lanes:.0f}", f"x{most:.0f}")


def test_lanes_that_were_stable_are_required_where_the_ends_say_less() -> None:
    """A slot that shows eight since a riser came loose had sixteen before."""
    learned = {
        "commwatch_pcie_link_width_expected_lanes": {GPU0: 16.0}, "commwatch_pcie_link_width_lanes": {GPU0: 8.0},
    }  # fmt: skip

    check = of(changed(width(GPUS[0], 8.0, 8.0), learned), LANES, "GPU0")

    assert (check.verdict, check.required, check.source) == ("failed", "x16", "the most that was stable here")


def test_lanes_that_the_kernel_does_not_know_are_not_measured() -> None:
    """Nor are those of which one end's maximum is missing everywhere."""
    node = without(switched_node(), "commwatch_pcie_device_link_width_lanes")
    assert of(checks(node), LANES, "GPU0").verdict == "not measured"
    assert of(checks(node), LANES, "mlx5_0").verdict == "not measured"

    of_driver = {
        "commwatch_pcie_link_width_lanes": {GPU0: 8.0},
        "commwatch_pcie_link_width_max_lanes": {GPU0: 16.0},
    }
    assert of(checks(merged(node, of_driver)), LANES, "GPU0").verdict == "notice"


@pytest.mark.parametrize(("flag", "verdict"), [(0.0, "passed"), (1.0, "failed"), (None, "not measured")])
def test_generations_are_judged_where_the_daemon_does(flag: float | None, verdict: CheckVerdict) -> None:
    """It judges a GPU under load, and an adapter always."""
    numbers: dict[str, dict[Any, float]] = {}
    if flag is not None:
        numbers = {
            "commwatch_pcie_link_degraded": {(*GPU0, "generation"): flag, (*GPU0, "width"): 0.0},
            "commwatch_pcie_device_link_degraded": {(NICS[0], "nic", "generation"): flag},
        }

    found = changed(numbers)

    assert verdicts(found, SPEED)["GPU0"] == verdicts(found, SPEED)["mlx5_0"] == verdict
    assert ("idle" in of(found, SPEED, "GPU0").detail) == (flag is None)


def moved(address: str, parent: str, numa: str) -> dict[str, dict[Any, float]]:
    """Both adapters or GPUs to another place."""
    node = switched_node()
    info = {key: value for key, value in node["commwatch_pcie_device_info"].items() if key[0] != address}
    role = "gpu" if address in GPUS else "nic"
    return {**node, "commwatch_pcie_device_info": {**info, (address, role, parent, numa, "", ""): 1.0}}


@pytest.mark.parametrize(
    ("numa", "measured", "verdict"), [("0", "NODE", "notice"), ("1", "SYS", "notice"), ("-1", "", "not measured")]
)
def test_a_gpu_far_from_all_adapters_costs_gpudirect(numa: str, measured: str, verdict: CheckVerdict) -> None:
    """Through the CPU NCCL copies through the host; where NUMA nodes are not known, that is not known."""
    found = checks(moved(GPUS[0], "pci0000:80", numa))

    check = of(found, NEAREST, "GPU0")
    assert (check.verdict, check.measured) == (verdict, measured)
    assert of(found, NEAREST, "GPU1").verdict == "passed"


def test_without_rdma_no_adapter_is_near() -> None:
    """GPUDirect RDMA needs one."""
    found = checks(without(switched_node(), "commwatch_rdma_port_info"))

    assert of(found, NEAREST).verdict == "does not apply"


def test_gpus_whose_traffic_passes_the_cpu_are_told_of() -> None:
    """Without NVLink and in different places; a switch between two brings ACS up, which nobody but root sees."""
    no_links = {"commwatch_nvlink_link_state": dict.fromkeys(
        ((*gpu, str(number)) for gpu in (GPU0, ("1", GPUS[1])) for number in range(2)), 0.0
    )}  # fmt: skip

    apart = checks(merged(moved(GPUS[0], "pci0000:80", "0"), no_links))
    near = changed(no_links)

    assert of(apart, "ways between GPUs").verdict == "notice"
    assert of(apart, "ways between GPUs").measured == "1 NODE"
    assert of(near, "ways between GPUs").verdict == "passed"
    acs = "traffic within a PCIe switch stays there (ACS, IOMMU)"
    assert of(near, acs).verdict == "not measured"
    assert acs not in {check.what for check in apart}


def test_peer_access_is_what_the_driver_says() -> None:
    """Refused is worth knowing, as some GPUs are sold without; no answer is none."""
    refused = {"commwatch_gpu_p2p_status": {("0", GPUS[0], "1", GPUS[1], "read"): 3.0}}
    unknown = {"commwatch_gpu_p2p_status": dict.fromkeys(switched_node()["commwatch_gpu_p2p_status"], 6.0)}

    assert of(changed(refused), "peer access between GPUs").verdict == "notice"
    assert of(changed(unknown), "peer access between GPUs").verdict == "not measured"


def test_numa_nodes_that_decide_a_class_are_missed() -> None:
    """Where all lies under one switch none is needed."""
    found = checks(moved(GPUS[0], "pci0000:80", "-1"))
    assert of(found, "NUMA nodes of GPUs and adapters", "GPU0").verdict == "notice"
    found = checks(moved(NICS[0], "pci0000:80", "-1"))
    assert of(found, "NUMA nodes of GPUs and adapters", "mlx5_0 (NIC0)").verdict == "notice"

    node = switched_node()
    node["commwatch_pcie_device_info"] = {
        (*key[:3], "-1", *key[4:]): value for key, value in node["commwatch_pcie_device_info"].items()
    }
    assert of(checks(node), "NUMA nodes of GPUs and adapters").verdict == "passed"


def test_a_gpu_that_the_driver_lacks_is_told_of() -> None:
    """It stands on the bus."""
    node = switched_node()
    for metric in ("commwatch_gpu_info", "commwatch_nvlink_links"):
        node[metric] = {key: value for key, value in node[metric].items() if key[1] == GPUS[1]}

    found = checks(node)

    assert of(found, "GPUs on the bus known to the driver", GPUS[0]).verdict == "notice"
    assert of(found, "ways between GPUs").measured == "1 PIX"


def test_an_nvlink_fabric_that_did_not_come_up_fails() -> None:
    """NVSwitches are on the bus, no link is active, and no GPU has joined."""
    numbers: dict[str, dict[Any, float]] = {
        "commwatch_pcie_device_info": {("0000:90:00.0", "nvswitch", "pci0000:90", "0", "", ""): 1.0},
        "commwatch_nvlink_link_state": dict.fromkeys(switched_node()["commwatch_nvlink_link_state"], 0.0),
        "commwatch_fabric_state": dict.fromkeys([GPU0, ("1", GPUS[1])], 1.0),
    }

    found = changed(numbers)

    assert of(found, NVLINKS, "GPU0").verdict == "failed"
    assert of(found, "NVLinks to NVSwitches", "GPU0, GPU1").verdict == "failed"
