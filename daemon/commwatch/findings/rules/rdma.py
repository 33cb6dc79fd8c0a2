"""RDMA ports: those that are down, gone, slow, or that go down again and again."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import port_of
from commwatch.findings.rules.ports import ALL_READ, PORTS, all_read, by_labels, port_at
from commwatch.findings.rules.rule_set import HOUR, Rule, RuleSet
from commwatch_exporters.state_words import RDMA_PHYSICAL_STATES, RDMA_STATES, word_of

_ACTIVE = 4
_WAITS_FOR_SUBNET_MANAGER = frozenset({2, 3})
_LINK_UP = 5
_WHY = {
    2: "it looks for the other end: cable, module, or the port over there",
    3: "it is switched off",
}
"""By physical state."""

_FLAPS = "commwatch_rdma_port_flaps_total"
_DOWNED = "commwatch_rdma_port_link_downed_total"
_EXPECTED = "commwatch_rdma_port_expected"
_STATE = "commwatch_rdma_port_state"
_PHYSICAL_STATE = "commwatch_rdma_port_phys_state"
_LANES = "commwatch_rdma_port_width_lanes"
_SPEED_EXPECTED = "commwatch_rdma_port_speed_expected_bytes_per_second"
_SPEED = "commwatch_rdma_port_speed_bytes_per_second"
_STABLE = "the fastest that was stable here"

_DOWN_FOR = 60.0
"""Seconds: a switch that is restarted, or a link that trains, is back before."""


def down(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that were active for the learning time and are not now."""
    states, physical_states = by_labels(facts, _STATE), by_labels(facts, _PHYSICAL_STATE)
    for labels, _ in facts.series(_EXPECTED):
        port = tuple(labels.values())
        state, physical = states.get(port), physical_states.get(port)
        if state is None or state == _ACTIVE:
            continue
        evidence = [Evidence("state", word_of(RDMA_STATES, state))]
        why = ""
        if physical is not None:
            evidence.append(Evidence("physical state", word_of(RDMA_PHYSICAL_STATES, physical)))
            why = _WHY.get(int(physical), "")
            if physical == _LINK_UP and state in _WAITS_FOR_SUBNET_MANAGER:
                why = "the link is up, and no subnet manager has set the port up"
        yield Sighting("rdma_port_down", port_at(facts, labels), tuple(evidence), why)


def missing(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that were active for the learning time and are not on the node now."""
    if not all_read(facts, "rdma", "rdma_port"):
        return
    here = {(labels["device"], labels["port"]) for metric in (PORTS, _STATE) for labels, _ in facts.series(metric)}
    for labels, _ in facts.series(_EXPECTED):
        if (labels["device"], labels["port"]) not in here:
            yield Sighting("rdma_port_missing", port_of(labels), (Evidence("port", "not on this node"),))


def flapping(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that went down within the last hour and came up again."""
    downs: dict[Component, float] = {}
    states = by_labels(facts, _STATE)
    # The adapter sees drops that are too short for the readings; it may also be the one whose counter is full.
    for metric in (_FLAPS, _DOWNED):
        for labels, count in facts.increases(metric, HOUR):
            # One that went down once and stays so is down, and that is told already.
            if count > 1 or states.get(tuple(labels.values())) == _ACTIVE:
                port = port_at(facts, labels)
                downs[port] = max(count, downs.get(port, 0.0))
    for port, count in downs.items():
        yield Sighting("rdma_port_flapping", port, (Evidence("times it went down in the last hour", count),))


def slow(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that run below the speed that was stable here."""
    speeds = by_labels(facts, _SPEED)
    for labels, expected in facts.series(_SPEED_EXPECTED):
        speed = speeds.get(tuple(labels.values()))
        if speed is None or speed >= expected:
            continue
        evidence = [Evidence("speed", speed, "bytes_per_second", expected, _STABLE)]
        lanes = facts.value(_LANES, **labels)
        if lanes is not None:
            evidence.append(Evidence("lanes", lanes, "lanes"))
        yield Sighting("rdma_port_slow", port_at(facts, labels), tuple(evidence))


def _speed_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    """Whether the port has a speed: while it is down it has none."""
    device, _, port = component.key.partition("/")
    return facts.value(_SPEED, device=device, port=port) is not None


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
            meaning="A port that was active for the learning time is not. Jobs that use it fail or wait until their "
            "connections time out (about 30 s with NCCL's settings); new ones go over other ports with less bandwidth.",
            next_step="Drain the node; look at cable, module and the port of the switch. A link that is up in state "
            "initialising or armed waits for the subnet manager. Switched off on purpose: commwatch inventory accept.",
            alert="CommwatchRdmaPortDown",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="rdma_port_missing",
            title="RDMA port is gone",
            severity="warning",
            role="fault",
            meaning="A port that was active for the learning time is not on the node any more: its adapter fell off "
            "the bus, its driver let it go, or it was handed to a container or a virtual machine.",
            next_step="Look for the adapter with lspci and read the kernel log. Taken away or renamed on purpose: "
            "commwatch inventory accept.",
            alert="CommwatchRdmaPortMissing",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="rdma_port_flapping",
            title="RDMA port went down and came back",
            severity="warning",
            role="fault",
            meaning="The link of the port was lost within the last hour and came up again. Each time connections break "
            "off or wait, and jobs with them.",
            next_step="Note how often. Look for errors on the port; clean or swap cable and module; ask whether the "
            "switch was restarted at the time.",
            alert="CommwatchRdmaPortFlapping",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_port_slow",
            title="RDMA port runs below its speed",
            severity="warning",
            role="fault",
            meaning="The link has come up with a lower rate or fewer lanes than were stable here. A job runs at the "
            "speed of its slowest port.",
            next_step="Bring the link down and up; if it stays slow, swap cable and module, then try another port of "
            "the switch. Changed on purpose: commwatch inventory accept.",
            alert="CommwatchRdmaPortSlow",
        ),
    ),
    rules=(
        Rule(down, ("rdma_port_down",), reads=(_EXPECTED, _STATE), details=(_PHYSICAL_STATE, PORTS)),
        Rule(missing, ("rdma_port_missing",), reads=(_EXPECTED, PORTS, _STATE, *ALL_READ)),
        Rule(flapping, ("rdma_port_flapping",), reads=(_FLAPS, _DOWNED, _STATE), details=(PORTS,)),
        Rule(slow, ("rdma_port_slow",), reads=(_SPEED, _SPEED_EXPECTED), details=(_LANES, PORTS)),
    ),
    windows={_FLAPS: HOUR, _DOWNED: HOUR},
    judged={"rdma_port_slow": _speed_judged, "rdma_port_missing": _missing_judged},
)
