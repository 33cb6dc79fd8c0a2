"""The topology branch: whether the parts are there, as wide as they can be, and near those that they talk to; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.findings.facts import Facts
from commwatch.findings.rules.rule_set import Quantity
from commwatch.findings.slow_pairs import measured_on
from commwatch.node.gpu_models import gpu_model, product_of
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.findings import TopologyFinding, findings
from commwatch.node.topology.measured import Measured
from commwatch.node.topology.model import Gpu, Nic, NumaNode, PciDevice, PcieLink, Topology
from commwatch.node.topology.nvlink import DriverFacts, driver_facts
from commwatch.node.topology.paths import NEAR, THROUGH_CPU, Path, all_paths, nearest_nics, numa_of, rank, uplink
from commwatch.node.topology.sysfs import PciFacts, SysfsFacts, natural
from commwatch_exporters.node import model
from commwatch_exporters.node.model import Interface, RdmaPort
from commwatch_exporters.state_words import GPU_STATES, word_of

_P2P_UNKNOWN = 6
_STABLE = "the most that was stable here"
_BOTH_ENDS = "the lesser maximum of both ends"
_IDLE = "the link of an idle GPU slows down by itself: it is judged under load alone"
_NOTHING_BELOW = "below it is neither an adapter nor a GPU under load, whose links keep their generation"
_NO_LINK = frozenset({"root_port", "switch_downstream"})
"""They show the link below them, which is that of the device there."""
_GPUDIRECT = (
    "PIX or PXB",
    "NCCL: GPUDirect RDMA where no host bridge lies between, unless NCCL_NET_GDR_LEVEL says more",
)
_BY_C2C = (
    "PIX, PXB, or at the GPU's own processor",
    "NCCL: GPUDirect RDMA over C2C from 2.27 on, unless NCCL_NET_GDR_C2C is 0",
)
_ACS = (
    "the kernel shows ACS to root alone: sudo lspci -vvv | grep ACSCtl; SrcValid+ on a bridge sends traffic within a "
    "switch through the CPU"
)
_QUANTITIES: Mapping[str, Quantity] = {
    "link_below_siblings": "pcie_slot",
    "nvlink_uneven": "nvlinks",
    "nvlink_fabric_down": "nvlinks",
    "nvlink_refused": "nvlink_peers",
    "gpu_without_index": "gpus",
}
"""By code of what is uneven: what is uneven, where rules judge that."""
_TITLES = {
    "link_below_siblings": "PCIe slot against those of the other GPUs",
    "nvlink_uneven": "NVLinks of all pairs alike",
    "nvlink_fabric_down": "NVLinks to NVSwitches",
    "nvlink_no_bridge": "NVLink bridges",
    "nvlink_refused": "peer access over NVLink",
    "gpu_without_index": "GPUs on the bus known to the driver",
    "gpu_without_path": "PCIe paths of all GPUs",
    "link_emulated": "PCIe links as the hardware has them",
    "tree_flat": "PCIe tree of the hardware",
}
"""The checked properties, by code of the findings that have no other row and need no measured value."""

_check = partial(Check, "topology")

_Role = Literal["gpu", "nic", "nvswitch", "bridge"]
_ENDS: Mapping[str, _Role] = {"gpu": "gpu", "nic": "nic", "nvswitch": "nvswitch"}


def topology_checks(known: Known) -> Iterator[Check]:
    """All checks of the branch, from what the daemon exposes; nothing is read here."""
    facts = known.facts
    topology = facts.derived(topology_of)
    # Whether a group is worth choosing depends on what its pairs carry; the pattern branch says what that is.
    measured = None if known.matrix is None else measured_on(topology, known.matrix, facts.now, known.thresholds)
    found = findings(topology, measured if isinstance(measured, Measured) else None)
    yield judged(_gpus(facts, topology), known.matched, "gpus")
    if topology.driver_read:
        for gpu in (gpu for gpu in topology.gpus if gpu.index is not None):
            check = _nvlinks(facts, topology, gpu)
            quantity: Quantity = "nvlinks" if check.verdict == "notice" else "nvlink_fabric"
            yield judged(check, known.matched, quantity, {gpu.address, *_far_ends(facts, gpu)})
    yield from _lanes_of_all(known, topology)
    yield from _speeds_of_all(known, topology)
    yield from _nics(topology)
    yield from _ways(facts, topology, found, is_measured=measured is not None)
    yield _numa(topology, found)
    yield from _uneven(known, topology, found)


def _gpus(facts: Facts, node: Topology) -> Check:
    inventory = facts.node.part(model.Inventory, "gpu")
    present, expected = inventory.present, inventory.expected
    on_bus = sum(device.role == "gpu" for device in node.devices.values())
    if not on_bus and not present and not expected:
        return _check("GPUs", "does not apply", detail="there is no GPU on the PCI bus")
    if present is None:
        return _check("GPUs", "not measured", detail="the driver was not read")
    least, source = (on_bus, "GPUs on the PCI bus") if expected is None else (int(expected), _STABLE)
    wrong = [
        f"GPU{gpu.index} ({gpu.address}): {word_of(GPU_STATES, state)}"
        for gpu, state in facts.each(model.Gpu.state)
        if state
    ]
    verdict: CheckVerdict = "notice" if present < least or wrong else "passed"
    next_step = (
        "Read the kernel log for Xids and lost GPUs, and see which slot is silent." if verdict == "notice" else ""
    )
    return _check("GPUs", verdict, "", f"{present:.0f}", f"at least {least}", source, "; ".join(wrong), next_step)


def _nvlinks(facts: Facts, node: Topology, gpu: Gpu) -> Check:
    what = "active NVLinks"
    if gpu.nvlinks is None:
        detail = "the driver gave no state of them; with MIG enabled it gives none"
        return _check(what, "not measured", gpu.label, detail=detail)
    if not gpu.nvlinks:
        return _check(what, "does not apply", gpu.label, detail="this GPU has no NVLink")
    expected = {
        int(link.number)
        for link, flag in facts.each(model.NvLink.expected)
        if flag == 1 and link.address == gpu.address
    }
    states = {link.number: link for link in gpu.nvlinks}
    active = sorted(link.number for link in gpu.nvlinks if link.active)
    measured = f"{len(active)} of {len(gpu.nvlinks)}"
    unread = sorted(number for number in expected if number not in states or states[number].state is None)
    if unread:
        return _check(what, "not measured", gpu.label, measured, detail=f"no state was read of link {_listed(unread)}")
    if expected:
        down = sorted(expected - set(active))
        return _check(
            what, "notice" if down else "passed", gpu.label, measured, f"{len(expected)}",
            "the links that were active for the learning time",
            detail=f"inactive: link {_listed(down)}" if down else "",
        )  # fmt: skip
    if not active and not node.nvswitches and (product_of(gpu.name) is None or len(node.gpus) == 1):
        detail = "none is active: no bridge is fitted, or the GPU is alone in a virtual machine"
        return _check(what, "does not apply", gpu.label, measured, detail=detail)
    verdict: CheckVerdict = "passed" if len(active) == len(gpu.nvlinks) else "notice"
    return _check(
        what, verdict, gpu.label, measured, f"{len(gpu.nvlinks)}", "the links that the GPU has",
        detail="" if verdict == "passed" else "the expected number is not learned yet",
        next_step="" if active else "Look at Fabric Manager and the kernel log.",
    )  # fmt: skip


def _far_ends(facts: Facts, gpu: Gpu) -> Iterator[str]:
    """Identities of what is at the other end of its links that are inactive: the fault of a link is found at one end.

    The driver may report the target of either end.
    """
    inactive = {(gpu.address, str(link.number)) for link in gpu.nvlinks or () if not link.active}
    for link, _ in facts.each(model.NvLink.info):
        ends = (link.address, link.number), (link.remote_address, link.remote_number)
        for end, (address, number) in (ends, ends[::-1]):
            if link.remote_type == "gpu" and end in inactive:
                yield from (f"nvlink/{address}/{number}", f"gpu/{address}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# --- PCIe links ---


def _lanes_of_all(known: Known, node: Topology) -> Iterator[Check]:
    """Lanes of each link against the most of both ends, and against what was stable here."""
    for device, name in _ends(node):
        link = uplink(node, device)
        if link is None:
            continue
        gpu = known.facts.node.part(model.Gpu, device.address)
        now = _known(link.lanes, gpu.pcie_width_lanes)
        both = _known(link.lanes_max, gpu.pcie_width_max_lanes)
        before = gpu.pcie_width_expected_lanes
        most = max((one for one in (both, before) if one is not None), default=None)
        is_learned = before is not None and before == most and before != both
        check = _lanes(name, now, most, _STABLE if is_learned else _BOTH_ENDS)
        if check.verdict == "notice":
            quantity: Quantity = "pcie_lanes" if device.role == "gpu" else "device_lanes"
            check = judged(check, known.matched, quantity, _parts(device))
        yield check


def _parts(device: PciDevice) -> tuple[str, ...]:
    """A link with its device; a GPU as well where a finding is of several."""
    own = (f"pcie_link/{device.address}", f"gpu/{device.address}")
    return (*own, device.address) if device.role == "gpu" else own


def _known(first: float | None, second: float | None) -> float | None:
    return second if first is None else first


def _lanes(name: str, now: float | None, most: float | None, source: str) -> Check:
    verdict: CheckVerdict = "not measured" if now is None or most is None else "notice" if now < most else "passed"
    detail = ""
    if verdict == "not measured":
        detail = "the kernel does not know the lanes of both ends, as in a virtual machine"
    measured, required = ("" if one is None else f"x{one:.0f}" for one in (now, most))
    return _check("PCIe lanes", verdict, name, measured, required, source, detail)


def _speeds_of_all(known: Known, node: Topology) -> Iterator[Check]:
    """Generation of each link that is used, against that of both ends."""
    for device, name in _ends(node):
        link = uplink(node, device)
        if link is None or device.role == "nvswitch":  # whether the links of NVSwitches slow down is not established
            continue
        parts = known.facts.node
        gpu = parts.part(model.Gpu, device.address)
        degraded = gpu.pcie_degraded if device.role == "gpu" else parts.part(model.PcieDevice, device.address).degraded
        check = _speed(
            name, device, degraded.get("generation"),
            _known(gpu.pcie_generation, link.generation),
            _known(gpu.pcie_generation_max, link.generation_max),
        )  # fmt: skip
        yield judged(check, known.matched, "pcie_generation", _parts(device))


def _speed(name: str, device: PciDevice, slow: float | None, now: float | None, most: float | None) -> Check:
    verdict: CheckVerdict = "not measured" if slow is None else "notice" if slow else "passed"
    detail = ""
    if slow is None:
        detail = _IDLE if device.role == "gpu" else _NOTHING_BELOW
        if most is None or device.role == "nic":
            detail = "the generations of both ends are not known"
    measured = "" if now is None or slow is None else f"gen {now:.0f}"
    return _check(
        "PCIe generation", verdict, name, measured, "" if most is None else f"gen {most:.0f}", _BOTH_ENDS, detail
    )


def _ends(node: Topology) -> Iterator[tuple[PciDevice, str]]:
    """The lower end of each link that is judged, as people call it: GPUs first."""
    parts: tuple[Gpu | Nic, ...] = (*node.gpus, *node.nics)
    for part in parts:
        if part.address in node.devices:
            yield node.devices[part.address], _part_name(part)
    named = {part.address for part in parts}
    for address, device in node.devices.items():
        if address not in named and device.role not in _NO_LINK:
            yield device, f"{'NVSwitch' if device.role == 'nvswitch' else 'switch'} {address}"


def _part_name(part: Gpu | Nic) -> str:
    """``GPU0``, ``mlx5_0``, ``eth0``: what the operator knows it by."""
    if isinstance(part, Gpu):
        return part.label
    return next(iter((*part.rdma_devices, *part.interfaces)), part.label)


# --- ways ---


def _nics(topology: Topology) -> Iterator[Check]:
    what = "way to the nearest RDMA adapter"
    if not any(nic.rdma_devices for nic in topology.nics):
        if topology.gpus:
            yield _check(what, "does not apply", detail="this node has no RDMA adapter")
        return
    for gpu in topology.gpus:
        near, model = nearest_nics(topology, gpu), gpu_model(gpu.name)
        has_c2c = model is not None and bool(model.host)
        required, source = _BY_C2C if has_c2c else _GPUDIRECT
        if near is None or near.kind == "?":
            detail = "the PCIe tree or the NUMA nodes are not known"
            yield _check(what, "not measured", gpu.label, required=required, detail=detail)
            continue
        names = ", ".join(nic.rdma_devices[0] for nic in near.nics)
        is_near = near.kind in NEAR or (has_c2c and near.kind in ("PHB", "NODE"))
        yield _check(
            what, "passed" if is_near else "notice", gpu.label, near.kind, required, source,
            detail=names if is_near else f"the nearest is {names}; traffic to other nodes is copied through the host",
            next_step="" if is_near else "Choose GPUs with an adapter near for jobs on part of the GPUs of several "
            "nodes, or move the adapter to a slot under the same switch.",
        )  # fmt: skip


def _ways(
    facts: Facts, topology: Topology, found: Sequence[TopologyFinding], *, is_measured: bool
) -> Iterator[Check]:  # fmt: skip
    """Which classes the pairs of GPUs have, and whether traffic can take them."""
    ways = all_paths(topology, topology.gpus)
    if not ways:
        yield _check("ways between GPUs", "does not apply", detail="there are not two GPUs")
        return
    # Without the driver it is not known which pairs have NVLink, whatever lies between them on PCIe.
    is_read = topology.driver_read
    grouped = next((one for one in found if one.code == "gpu_groups"), None) if is_read else None
    far = sum(way.kind in THROUGH_CPU for way in ways)
    unknown = any(way.kind == "?" for way in ways) or not is_read
    detail = f"the traffic of {far} of {len(ways)} pairs goes through the CPU" if far else ""
    verdict: CheckVerdict = "notice" if grouped or far else "passed"
    if unknown and not grouped:
        verdict, detail = "not measured", "the classes are those of PCIe alone, or not known"
    yield _check(
        "ways between GPUs", verdict, measured=_classes(ways), required="none through the CPU",
        source="the PCIe tree and the active NVLinks",
        detail=grouped.text if grouped else detail,
        next_step=_choice(grouped, ways, is_measured=is_measured) if grouped else "",
    )  # fmt: skip
    yield _peers(facts, ways, found)
    if any(way.kind in ("PIX", "PXB") for way in ways):
        yield _check("traffic within a PCIe switch stays there (ACS, IOMMU)", "not measured", detail=_ACS)


def _choice(grouped: TopologyFinding, ways: Sequence[Path], *, is_measured: bool) -> str:
    """Which GPUs to take together: GPUs under one PCIe switch have been the slower ones, so they are measured first."""
    if is_measured or not any(way.kind in ("PIX", "PXB") for way in ways):
        return grouped.meaning
    return "Which GPUs are the fastest together is not measured: commwatch diagnose --full-scan measures it."


def _classes(ways: Sequence[Path]) -> str:
    counts = Counter((rank(way.kind), way.label) for way in ways)
    return ", ".join(f"{count} {label}" for (_, label), count in sorted(counts.items()))


def _peers(facts: Facts, ways: Sequence[Path], found: Sequence[TopologyFinding]) -> Check:
    what = "peer access between GPUs"
    refused = next((one for one in found if one.code == "peers_refused"), None)
    if refused is None:
        answers = [
            status
            for access, status in facts.each(model.PeerAccess.status)
            if access.capability == "read" and status != _P2P_UNKNOWN
        ]
        if len(answers) < len(ways):
            return _check(what, "not measured", detail="the driver gave no answer for all pairs")
        return _check(what, "passed", measured="allowed", required="allowed", source="the driver")
    return _check(
        what, "notice", measured=f"refused for {len(refused.components)} of {len(ways)} pairs",
        required="allowed", source="the driver", detail=refused.text, next_step=refused.meaning,
    )  # fmt: skip


def _numa(topology: Topology, found: Sequence[TopologyFinding]) -> Check:
    what = "NUMA nodes of GPUs and adapters"
    if not topology.devices:
        return _check(what, "not measured", detail="the PCIe tree was not read")
    if not topology.gpus:
        return _check(what, "does not apply", detail="there is no GPU")
    ends = topology.ends
    silent = [_both_names(end) for end in ends if numa_of(topology, end.address) is None]
    measured = f"known of {len(ends) - len(silent)} of {len(ends)}"
    unknown = next((one for one in found if one.code == "numa_unknown"), None)
    if unknown is not None:
        return _check(what, "notice", ", ".join(silent), measured, detail=unknown.text, next_step=unknown.meaning)
    detail = "the class of no way depends on the others" if silent else ""
    return _check(what, "passed", measured=measured, detail=detail)


def _both_names(part: Gpu | Nic) -> str:
    """``GPU0``; of an adapter its name here and that in the texts of the topology: ``mlx5_0 (NIC0)``."""
    name = _part_name(part)
    return name if name == part.label else f"{name} ({part.label})"


def _uneven(known: Known, topology: Topology, found: Sequence[TopologyFinding]) -> Iterator[Check]:
    """Uneven or unknown properties that have no row of their own."""
    addresses = {gpu.label: gpu.address for gpu in topology.gpus}
    for one in found:
        if title := _TITLES.get(one.code):
            check = _check(
                title, "notice", ", ".join(one.components), source="the topology", detail=one.text,
                next_step=one.meaning,
            )  # fmt: skip
            labels = {label for name in one.components for label in name.split("-")}
            quantity, parts = _QUANTITIES.get(one.code), [addresses.get(label, label) for label in labels]
            yield check if quantity is None else judged(check, known.matched, quantity, parts)


def topology_of(facts: Facts) -> Topology:
    """GPUs, NICs and what lies between them; for ``Facts.derived``.

    Virtual functions, near processors and the processor itself are not among the metrics: they stay unknown.
    """
    driver = driver_facts(facts.node)
    if not driver.gpus:
        driver = DriverFacts(note="no GPU of the driver is among the metrics")
    devices = tuple(_devices(facts))
    nodes = sorted({one.numa_node for one in devices if one.numa_node is not None})
    return build_topology(SysfsFacts(devices, tuple(NumaNode(one, "") for one in nodes), None, ()), driver)


def _devices(facts: Facts) -> Iterator[PciFacts]:
    adapters = _by_address((port.address, port.device) for port, _ in facts.each(RdmaPort.info))
    interfaces = _by_address((one.address, one.name) for one, _ in facts.each(Interface.info))
    for device in sorted(facts.node.pcie_devices, key=lambda device: device.address):
        link = (device.generation, device.width_lanes, device.generation_max, device.width_max_lanes)
        yield PciFacts(
            address=device.address,
            role=_ENDS.get(device.role, "bridge"),
            ancestors=tuple(bridge.address for bridge in device.above),
            numa_node=int(device.numa_node) if device.numa_node.isdecimal() else None,
            cpus="",
            link=PcieLink(*(None if number is None else int(number) for number in link)),
            physical_function="",
            rdma_devices=adapters.get(device.address, ()),
            interfaces=interfaces.get(device.address, ()),
        )


def _by_address(named: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """The names of RDMA devices or interfaces at each PCI address."""
    found: dict[str, set[str]] = {}
    for address, name in named:
        if address:
            found.setdefault(address, set()).add(name)
    return {address: tuple(sorted(names, key=natural)) for address, names in found.items()}
