"""The RDMA ports, network interfaces and rails of a screen; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.findings.rules.counted import columns_of
from commwatch.lines import Line, Segment, folded
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch.views.top.table import ABSENT, BAD, DIM, age, both_ways, count, errors, gigabits, section, sums, table
from commwatch_exporters.node.model import (
    ClusterCheck,
    ClusterRail,
    ClusterRuns,
    ClusterSuspect,
    Interface,
    Node,
    RdmaPort,
)
from commwatch_exporters.state_words import RDMA_ACTIVE, RDMA_STATES, word_of

RDMA_ERRORS = (*columns_of("rdma_errors"), *columns_of("rdma_errors_upstream"))
ETHERNET_ERRORS = (Interface.transmit_errors, Interface.receive_errors)


def rdma_lines(node: Node, first: Node | None, width: int) -> Iterator[Line]:
    """A table of the RDMA ports; nothing where the node has none."""
    ports = node.rdma_ports
    if not ports:
        return
    now, before = (sums(one, RDMA_ERRORS) for one in (node, first))
    yield from section("RDMA ports")
    rows: list[list[Segment]] = [
        [
            (f"{port.device}/{port.number}", ""),
            (port.link_layer or ABSENT, ""),
            _state(port.state, is_expected=bool(port.expected)),
            (gigabits(port.speed_bytes_per_second), ""),
            (_use(port), ""),
            errors(now.get(port), before.get(port)),
            (ABSENT if (flaps := port.flaps) is None else count(flaps), ""),
        ]
        for port in ports
    ]
    yield from table(("Port", "Layer", "State", "Speed", "tx/rx", "Errors", "Flaps"), rows, width)


def interface_lines(node: Node, first: Node | None, width: int) -> Iterator[Line]:
    interfaces = node.interfaces
    if not interfaces:
        return
    now, before = (sums(one, ETHERNET_ERRORS) for one in (node, first))
    yield from section("Interfaces")
    rows: list[list[Segment]] = [
        [
            (interface.name, ""),
            _carrier(interface.carrier, is_expected=bool(interface.expected)),
            (gigabits(interface.speed_bytes_per_second), ""),
            (both_ways(interface.transmit_utilization_ratio, interface.receive_utilization_ratio), ""),
            errors(now.get(interface), before.get(interface)),
        ]
        for interface in interfaces
    ]
    yield from table(("Interface", "Link", "Speed", "tx/rx", "Errors"), rows, width)


def _use(port: RdmaPort) -> str:
    """With a sign where virtual functions add to it."""
    use = both_ways(port.transmit_utilization_ratio, port.receive_utilization_ratio)
    return f"≥{use}" if port.virtual_functions and use != ABSENT else use


def _state(state: float | None, *, is_expected: bool) -> Segment:
    if state is None:
        return ABSENT, ""
    return word_of(RDMA_STATES, state), BAD if is_expected and state != RDMA_ACTIVE else ""


def _carrier(carrier: float | None, *, is_expected: bool) -> Segment:
    if carrier is None:
        return ABSENT, ""
    return ("up", "") if carrier else ("down", BAD if is_expected else "")


def cluster_lines(node: Node, width: int, now: float) -> Iterator[Line]:
    """A row for each rail, and what was named; what the last check blames; nothing where there was neither."""
    yield from _last_run(node, width, now)
    check = node.part(ClusterCheck)
    if causes := [cause for cause, checks in check.failed.items() if checks]:
        yield from section("Last check between nodes", f"{age(now - (check.last_timestamp_seconds or now))} ago")
        yield from folded([("blames this node: ", BAD), (", ".join(causes), "")], width, 2)


def _last_run(node: Node, width: int, now: float) -> Iterator[Line]:
    runs = node.part(ClusterRuns)
    last = runs.last_completion_timestamp_seconds
    if last is None:
        return
    yield from section("Between nodes", f"last run {age(now - last)} ago; usual: among equal nodes of the run")
    rails = node.cluster_rails
    if not rails:
        yield [("too old to say anything", "")]
        return
    yield from table(
        ("Rail", "Sends", "usual", "Receives", "usual", "Latency", "Pairs"), list(map(_rail_row, rails)), width
    )
    for part, in_a_row in node.each(ClusterSuspect.runs):
        place = part.kind if part.kind == part.element else f"{part.kind} {part.element}"
        share = "" if part.ratio is None else f", {format_percent(part.ratio)} of the usual"
        words = f"{part.symptom}{share}, in {in_a_row:g} run{'s' * (in_a_row != 1)} in a row"
        yield from folded([(f"{place}: ", BAD), (words, "")], width, 2)


def _rail_row(rail: ClusterRail) -> list[Segment]:
    latency = rail.latency_seconds
    pairs = ", ".join(f"{count:g} {outcome}" for outcome, count in rail.pairs.items() if count)
    return [
        (rail.device or rail.number, ""),
        *_direction(rail, "sent"),
        *_direction(rail, "received"),
        (ABSENT if latency is None else format_seconds(latency), ""),
        (pairs or ABSENT, ""),
    ]


def _direction(rail: ClusterRail, direction: str) -> tuple[Segment, Segment]:
    rate, share = rail.bandwidth_bytes_per_second.get(direction), rail.peer_ratio.get(direction)
    return (
        (ABSENT if rate is None else format_rate(rate), ""),
        (ABSENT if share is None else format_percent(share), DIM),
    )
