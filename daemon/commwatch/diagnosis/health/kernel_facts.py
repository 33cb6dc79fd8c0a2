"""Evaluates the rules once on sysfs and the kernel log, without a daemon that has learned the node's usual state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from commwatch.config.thresholds import load_thresholds
from commwatch.findings.codes import CODES, WATCHED
from commwatch.findings.finding import SEVERITIES, Match, Severity, format_evidence
from commwatch.findings.history import CounterHistory
from commwatch.findings.rule_engine import RuleEngine
from commwatch.findings.rules.kernel import KERNEL
from commwatch.findings.rules.pcie import PCIE_LINKS
from commwatch.findings.rules.pcie_errors import PCIE_ERRORS
from commwatch.findings.rules.rdma import RDMA_PORTS
from commwatch.node.hardware_events import HardwareEvents, HardwareEventsState
from commwatch.node.pcie import DeviceTree
from commwatch.readings import Batch
from commwatch_exporters.node.model import Gpu, Node, PcieDevice, RdmaPort
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

_SURE = (
    "xid_fabric",
    "xid_fatal",
    "sxid_fatal",
    "pcie_fatal",
    "pcie_nonfatal",
    "pcie_device_narrow",
    "pcie_below_maximum",
)
"""Codes that a single evaluation can show. The others are warnings that may pass, states that must last, or rates."""
_LEARNED = ("rdma_port_down",)
"""Codes that depend on a daemon's learned state, and so are information here: there may never have been a cable."""


class KernelFact(msgspec.Struct, frozen=True):
    """Something that the kernel knows of the node."""

    code: str
    """Of the finding that a daemon would make of it, if it knew it to be new."""
    severity: Severity
    """info: without knowing what is usual here, it may be no fault."""
    text: str


class KernelFacts(msgspec.Struct, frozen=True):
    """The facts from the kernel, and the sources that were not read."""

    facts: tuple[KernelFact, ...]
    """Possible faults, most severe first."""
    unread: tuple[str, ...]
    """Sources or rules that could not be read or evaluated, with the reasons."""


def judged(batch: Batch, now: float) -> KernelFacts:
    """The matches of the rules, with all counts since the boot treated as recent: nothing shows which are new.

    Args:
        batch: of ``read_kernel``.
        now: seconds since 1970.
    """
    unread = [absence.detail for absence in batch.absences]
    engine = RuleEngine(
        (KERNEL, PCIE_ERRORS, PCIE_LINKS, RDMA_PORTS), load_thresholds(None),
        CounterHistory(WATCHED, since_boot=True), lambda rule, error: unread.append(f"rule {rule}: {error}"),
    )  # fmt: skip
    facts = [_fact(one) for one in engine.evaluate(_snapshot(batch, now), now) if one.code in _SURE + _LEARNED]
    return KernelFacts(tuple(sorted(facts, key=lambda fact: SEVERITIES.index(fact.severity))), tuple(unread))


def _fact(match: Match) -> KernelFact:
    code = CODES[match.code]
    text = "; ".join((f"{code.title}: {match.component.words}", *map(format_evidence, match.evidence)))
    return KernelFact(code.name, "info" if code.name in _LEARNED else code.severity, text)


def _snapshot(batch: Batch, now: float) -> Snapshot:
    """The readings, with the values that the daemon derives before it evaluates."""
    read = [Block(Layout(one.series), one.values, one.time) for one in batch.readings]
    devices = {
        one.device: block
        for one, block in zip(batch.readings, read, strict=True)
        if PcieDevice.info.metric in block.layout.families
    }
    events = HardwareEvents(HardwareEventsState())
    events.take((replace(event, time=now) for event in batch.events), now, now)
    derived = DeviceTree().degraded(devices, ()) | events.readings(now)
    blocks = (*read, Block(Layout(derived), list(derived.values()), now))
    assumed = dict(_assumed(Node(Snapshot(blocks))))
    return Snapshot((*blocks, Block(Layout(assumed), list(assumed.values()), now)))


def _assumed(node: Node) -> Iterator[tuple[Series, Value]]:
    """Assumed values that the rules read: every port should be active, and a GPU's link is the one in sysfs."""
    for port in node.rdma_ports:
        yield (RdmaPort.expected.metric, port.identity), 1
    for device in node.pcie_devices:
        if device.role == "gpu":
            yield (Gpu.info.metric, ("", device.address, "", "", "", "")), 1
            yield (Gpu.pcie_width_lanes.metric, ("", device.address)), device.width_lanes
