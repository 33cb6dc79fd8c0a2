"""The PCIe links in the topology branch: lanes against what both ends can use, generations under load."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.findings.rules.rule_set import Quantity
from commwatch.node.topology.model import Gpu, Nic, PciDevice, Topology
from commwatch.node.topology.paths import uplink
from commwatch_exporters.node import model

_BOTH_ENDS = "the lesser maximum of both ends"
_STABLE = "the most that was stable here"
_IDLE = "the link of an idle GPU slows down by itself: it is judged under load alone"
_NOTHING_BELOW = "below it is neither an adapter nor a GPU under load, whose links keep their generation"
_NO_LINK = frozenset({"root_port", "switch_downstream"})
"""They show the link below them, which is that of the device there."""


def lanes(known: Known, node: Topology) -> Iterator[Check]:
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
    return Check(
        branch="topology", what="PCIe lanes", where=name,
        measured="" if now is None else f"x{now:.0f}",
        required="" if most is None else f"x{most:.0f}",
        verdict=verdict, source=source, detail=detail,
    )  # fmt: skip


def speeds(known: Known, node: Topology) -> Iterator[Check]:
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
    return Check(
        branch="topology", what="PCIe generation", where=name,
        measured="" if now is None or slow is None else f"gen {now:.0f}",
        required="" if most is None else f"gen {most:.0f}",
        verdict=verdict, source=_BOTH_ENDS, detail=detail,
    )  # fmt: skip


def _ends(node: Topology) -> Iterator[tuple[PciDevice, str]]:
    """The lower end of each link that is judged, as people call it: GPUs first."""
    parts: tuple[Gpu | Nic, ...] = (*node.gpus, *node.nics)
    for part in parts:
        if part.address in node.devices:
            yield node.devices[part.address], part_name(part)
    named = {part.address for part in parts}
    for address, device in node.devices.items():
        if address not in named and device.role not in _NO_LINK:
            yield device, f"{'NVSwitch' if device.role == 'nvswitch' else 'switch'} {address}"


def part_name(part: Gpu | Nic) -> str:
    """``GPU0``, ``mlx5_0``, ``eth0``: what the operator knows it by."""
    if isinstance(part, Gpu):
        return part.label
    return next(iter((*part.rdma_devices, *part.interfaces)), part.label)
