"""RDMA traffic: what goes on for minutes is told, what a network may do for a moment is not."""

from __future__ import annotations

from commwatch.findings.finding import Evidence
from commwatch.findings.register import Register
from support.facts import NOW, Numbers, before, facts_of, seen_by
from support.findings import Observer

PORT = ("mlx5_0", "1")
IDENTITY = "rdma_port/mlx5_0/1"
WINDOW = 120.0
WAIT, SENT = "commwatch_rdma_port_transmit_wait_ticks_total", "commwatch_rdma_port_transmit_packets_total"


def test_what_goes_on_opens_and_closes() -> None:
    """Timeouts at twice the limit, from the first minute to the tenth, open 5 min later and close 6 min later."""
    name = "commwatch_rdma_ack_timeouts_total"
    register, opened, closed = Register(), None, None
    counts = [min(second, 600) // 60 * 20 for second in range(0, 1800, 60)]
    for at, count in enumerate(counts):
        history: dict[float, Numbers] = {60.0 * (at - i): {name: {PORT: counts[i]}} for i in range(at)}
        now = NOW + 60.0 * at
        matches = seen_by("rdma_retransmitting", facts_of({name: {PORT: count}}, history, now))
        for event, _ in register.update(matches, Observer(), now):
            opened, closed = (at, closed) if event == "opened" else (opened, at)

    assert (opened, closed) == (6, 16)


def test_virtual_functions_are_one_piece_of_information() -> None:
    """At the ports whose adapters have some; none where no adapter has."""
    functions = {PORT: 8.0, ("mlx5_1", "1"): 4.0}
    [match] = seen_by("rdma_functions_unread", facts_of({"commwatch_rdma_port_virtual_functions": functions}))

    assert match.component.name == "virtual functions of 2 RDMA ports"
    assert {"mlx5_0/1", "mlx5_1/1"} <= match.component.parts
    assert [(one.what, one.value) for one in match.evidence] == [
        ("virtual functions of mlx5_0 port 1", 8.0), ("virtual functions of mlx5_1 port 1", 4.0),
    ]  # fmt: skip
    assert seen_by("rdma_functions_unread", facts_of({})) == []


def test_adapters_that_always_lose_some_are_judged_by_the_share() -> None:
    """More than one packet in a hundred; without packets there is no share."""
    again, sent = "commwatch_rdma_retransmitted_packets_total", "commwatch_rdma_transmit_packets_total"
    zero: Numbers = {again: {PORT: 0.0}, sent: {PORT: 0.0}}

    def after(count: float) -> list[Evidence]:
        now: Numbers = {again: {PORT: count}, sent: {PORT: 10_000.0}}
        return [one for match in seen_by("rdma_retransmitting", facts_of(now, {60.0: zero})) for one in match.evidence]

    [evidence] = after(101.0)
    assert (evidence.value, evidence.unit, evidence.threshold) == (0.0101, "ratio", 0.01)
    assert after(100.0) == []
    assert seen_by("rdma_retransmitting", facts_of({again: {PORT: 101.0}}, {60.0: {again: {PORT: 0.0}}})) == []


def test_connections_that_were_given_up_are_told_by_reason() -> None:
    """That of the kernel; none is a fault of this node by itself."""
    name = "commwatch_rdma_retries_exceeded_total"
    now: Numbers = {name: {(*PORT, "transport"): 1.0, (*PORT, "rnr"): 0.0}}
    [match] = seen_by("rdma_connections_lost", facts_of(now, {10.0: before(now, {name: {(*PORT, "transport"): 1.0}})}))

    assert match.evidence == (Evidence("connections given up (transport) in the last hour", 1.0),)


def waits(ticks: float, packets: float, ticks_before: float, packets_before: float) -> list[Evidence]:
    """What is said of a port that waited so long in the last minute, and so long in the 10 min before."""
    history: dict[float, Numbers] = {
        700.0: {WAIT: {PORT: 1e9}, SENT: {PORT: 1e9}},
        300.0: {WAIT: {PORT: 1e9 + ticks_before}, SENT: {PORT: 1e9 + packets_before}},
    }
    now: Numbers = {
        WAIT: {PORT: 1e9 + ticks_before + ticks},
        SENT: {PORT: 1e9 + packets_before + packets},
    }
    return [one for match in seen_by("rdma_congested", facts_of(now, history)) for one in match.evidence]


def test_the_wait_for_credit_is_held_against_the_ports_own() -> None:
    """More than four times as long for each packet as before; how long a tick is nobody knows."""
    [evidence] = waits(ticks=4100.0, packets=1000.0, ticks_before=2000.0, packets_before=2000.0)

    assert (evidence.value, evidence.threshold, evidence.threshold_origin) == (4.1, 4.0, "rdma_wait_rise_factor")
    assert waits(4000.0, 1000.0, 2000.0, 2000.0) == []


def test_more_traffic_than_before_says_nothing_of_the_wait() -> None:
    """A job has begun: a port that carried little before has nothing to be held against."""
    assert waits(1e6, 1000.0, 0.0, 999.0) == []
    assert len(waits(1e6, 1000.0, 0.0, 1000.0)) == 1
    assert waits(1e6, 0.0, 2000.0, 2000.0) == []
