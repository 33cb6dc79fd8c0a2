"""RDMA ports: those that are down, gone or slow."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import ALL_READ, Facts, all_read
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import port_of
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Interface, Inventory, RdmaPort
from commwatch_exporters.state_words import RDMA_ACTIVE, RDMA_LINK_UP, RDMA_PHYSICAL_STATES, RDMA_STATES, word_of

_WAITS_FOR_SUBNET_MANAGER = frozenset({2, 3})
_WHY = {
    2: "it looks for the other end: cable, module, or the port over there",
    3: "it is switched off",
}
"""By physical state."""

_NOT_SET_UP = "the link is up, and no subnet manager has set the port up"
_NOT_SET_UP_FOR = 120.0
"""Seconds, as ``rdma_port_not_set_up_for_seconds``: a subnet manager that starts, or takes over, is done before."""
_STABLE = "the fastest that was stable here, or that its equals have"

_NEVER_UP_FOR = 600.0
"""Seconds: ports that come up after the boot have done so."""
_DOWN_FOR = 60.0
"""Seconds: a switch that is restarted, or a link that trains, is back before."""

_LOOK_FOR_SUBNET_MANAGER = (
    "Run sminfo on a healthy node of the fabric: if no subnet manager answers, tell the network team; if one does, "
    "drain this node and look in its log for this port."
)


def down(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports that were active, or that configuration or equal ports ask for, and that are not active now."""
    for port, _ in facts.each(RdmaPort.expected):
        state, physical = port.state, port.physical_state
        if state is None or state == RDMA_ACTIVE:
            continue
        evidence = [Evidence("state", word_of(RDMA_STATES, state))]
        # Of a RoCE port without a link the kernel says that it is disabled, whoever has done so.
        if physical is not None and port.link_layer != "Ethernet":
            evidence.append(Evidence("physical state", word_of(RDMA_PHYSICAL_STATES, physical)))
        next_step = _LOOK_FOR_SUBNET_MANAGER if is_not_set_up(port) else ""
        yield Match("rdma_port_down", port_of(port), tuple(evidence), why_down(port), next_step=next_step)


def why_down(port: RdmaPort) -> str:
    """What is known of the reason; empty for nothing."""
    if port.link_layer == "Ethernet":
        interface = port.network_interface
        is_off = interface.carrier is None and interface.info == 1
        return f"its interface {interface.name} is switched off" if is_off else ""
    return _NOT_SET_UP if is_not_set_up(port) else _WHY.get(int(port.physical_state or 0), "")


def is_not_set_up(port: RdmaPort) -> bool:
    """Whether the link of an InfiniBand port is up, and no subnet manager has set the port up."""
    is_waiting = port.physical_state == RDMA_LINK_UP and port.state in _WAITS_FOR_SUBNET_MANAGER
    return is_waiting and port.link_layer == "InfiniBand"


def not_set_up(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """InfiniBand ports with a link that wait for a subnet manager, learned or not, also where all ports do."""
    for port, state in facts.each(RdmaPort.state):
        if port.expected != 1 and is_not_set_up(port):  # one that was active is down, which says more
            evidence = (Evidence("state", word_of(RDMA_STATES, state)), Evidence("physical state", "link up"))
            yield Match("rdma_port_not_set_up", port_of(port), evidence, _NOT_SET_UP)


def never_up(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports that no reading of this boot has shown active, all as one. Many nodes have ports without a cable."""
    if (facts.node.part(Inventory, "rdma_port").expected or 0) > sum(1 for _ in facts.each(RdmaPort.expected)):
        return  # which ports should be active is not known
    ports = [port for port, _ in facts.each(RdmaPort.state)]
    dark = [
        port_of(port)
        for port in ports
        if port.state != RDMA_ACTIVE and port.expected != 1 and not port.flaps and not is_not_set_up(port)
    ]  # fmt: skip
    if dark:
        parts = frozenset().union(*(port.parts for port in dark))
        component = Component("node", "rdma_links", f"{len(dark)} of {len(ports)} RDMA ports", parts)
        evidence = Evidence("ports that have not been active", ", ".join(port.name for port in dark))
        yield Match("rdma_never_up", component, (evidence,))


def missing(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports that were active and are not on the node now."""
    if not all_read(facts, "rdma", "rdma_port"):
        return
    for port, _ in facts.each(RdmaPort.expected):
        if all(sign is None for sign in (port.info, port.state)):
            yield Match("rdma_port_missing", port_of(port), (Evidence("port", "not on this node"),))


def slow(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports that run below the speed that was stable here, or that equal ports have."""
    for port, expected in facts.each(RdmaPort.speed_expected_bytes_per_second):
        speed = port.speed_bytes_per_second
        if speed is None or speed >= expected:
            continue
        evidence = [Evidence("speed", speed, "bytes_per_second", expected, _STABLE)]
        if (lanes := port.width_lanes) is not None:
            evidence.append(Evidence("lanes", lanes, "lanes"))
        yield Match("rdma_port_slow", port_of(port), tuple(evidence))


def _speed_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    """Whether the port has a speed: while it is down it has none."""
    device, _, number = component.key.partition("/")
    return facts.node.part(RdmaPort, device, number).speed_bytes_per_second is not None


def _missing_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    return all_read(facts, "rdma", "rdma_port")


RDMA_PORTS = RuleSet(
    name="RDMA ports",
    codes=(
        FindingCode(
            name="rdma_port_down",
            title="RDMA port is down",
            severity="critical",
            role="fault",
            quantities=("rdma_port_state", "rdma_port_count", "subnet_manager"),
            meaning="A port that was active, or whose equals are, is not. Jobs that use it fail, or time out after "
            "about 30 s (NCCL's settings).",
            next_step="Drain the node; check cable, module and switch port. Only if this was done on purpose, run "
            "commwatch inventory accept.",
            alert="CommwatchRdmaPortDown",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="rdma_port_not_set_up",
            title="No subnet manager has set the RDMA port up",
            severity="warning",
            role="fault",
            quantities=("rdma_port_state", "rdma_port_count", "subnet_manager"),
            meaning="The link of an InfiniBand port is up, and the port has been initialising or armed for 2 min. No "
            "job can use it.",
            next_step="Run sminfo on a healthy node of the fabric: if no subnet manager answers, tell the network "
            "team; if one does, look in its log for this port. Not used by jobs: sources.rdma.exclude.",
            alert="CommwatchRdmaPortNotSetUp",
            opens_after=_NOT_SET_UP_FOR,
        ),
        FindingCode(
            name="rdma_never_up",
            title="RDMA ports have never been up",
            severity="info",
            role="state",
            quantities=("rdma_port_state",),
            meaning="Not active since the boot: no cable, not needed, or down before commwatch was there.",
            next_step="Needed: check cables and switch; set inventory.expected.",
            opens_after=_NEVER_UP_FOR,
        ),
        FindingCode(
            name="rdma_port_missing",
            title="RDMA port is gone",
            severity="warning",
            role="fault",
            quantities=("rdma_port_state", "rdma_port_count"),
            meaning="An active port is gone: adapter off the bus, driver unloaded, or moved to a container or virtual"
            " machine. No job on the host can use it.",
            next_step="Drain the node; once it is free, reload the adapter's driver if lspci shows the adapter, else "
            "power cycle the node. Only if this was done on purpose, run commwatch inventory accept.",
            alert="CommwatchRdmaPortMissing",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="rdma_port_slow",
            title="RDMA port runs below its speed",
            severity="warning",
            role="fault",
            quantities=("rdma_speed",),
            meaning="The link runs below its stable rate or lanes, or below equal ports. A job runs at its slowest "
            "port's speed.",
            next_step="Drain the node; once it is free, set the link down and up; if it stays slow, swap cable and "
            "module. Only if this was done on purpose, run commwatch inventory accept.",
            alert="CommwatchRdmaPortSlow",
        ),
    ),
    rules=(
        Rule(
            down,
            ("rdma_port_down",),
            reads=(RdmaPort.expected, RdmaPort.state),
            details=(RdmaPort.physical_state, RdmaPort.info, Interface.info, Interface.carrier),
        ),
        Rule(
            not_set_up,
            ("rdma_port_not_set_up",),
            reads=(RdmaPort.state, RdmaPort.physical_state, RdmaPort.info, RdmaPort.expected),
        ),
        Rule(
            never_up,
            ("rdma_never_up",),
            reads=(
                RdmaPort.state,
                RdmaPort.physical_state,
                RdmaPort.info,
                RdmaPort.expected,
                RdmaPort.flaps,
                Inventory.expected,
            ),
        ),
        Rule(missing, ("rdma_port_missing",), reads=(RdmaPort.expected, RdmaPort.info, RdmaPort.state, *ALL_READ)),
        Rule(
            slow,
            ("rdma_port_slow",),
            reads=(RdmaPort.speed_bytes_per_second, RdmaPort.speed_expected_bytes_per_second),
            details=(RdmaPort.width_lanes, RdmaPort.info),
        ),
    ),
    judged={"rdma_port_slow": _speed_judged, "rdma_port_missing": _missing_judged},
)
