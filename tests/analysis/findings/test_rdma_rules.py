"""RDMA ports: down, gone and slow; errors of the link; counters that are full."""

from __future__ import annotations

import pytest

from commwatch.findings.codes import CODES
from commwatch.findings.finding import Evidence
from support.facts import Numbers, codes_by, codes_of, facts_of, is_judged, seen_by
from support.machines import merged
from support.passes import in_one_pass

PORT = ("mlx5_0", "1")
OTHER = ("mlx5_1", "1")
IDENTITY = "rdma_port/mlx5_0/1"
HOUR = 3600.0
STATE, PHYS = "commwatch_rdma_port_state", "commwatch_rdma_port_phys_state"
EXPECTED, INFO = "commwatch_rdma_port_expected", "commwatch_rdma_port_info"
SPEED, SPEED_EXPECTED = (f"commwatch_rdma_port_speed_{what}bytes_per_second" for what in ("", "expected_"))
FLAPS, DOWNED = "commwatch_rdma_port_flaps_total", "commwatch_rdma_port_link_downed_total"
ANOMALY = "commwatch_counters_anomaly"


def port(
    state: float | None = 4.0, physical: float = 5.0, is_expected: bool = True, layer: str = "InfiniBand"
) -> Numbers:
    """A port as the page has it."""
    found: dict[str, dict[tuple[str, ...], float]] = {
        INFO: {(*PORT, layer, "0x0", "0x0", "28.39", "MT4129", "0000:18:00.0", "ens1np0"): 1.0},
        PHYS: {PORT: physical},
    }
    if state is not None:
        found[STATE] = {PORT: state}
    return {**found, **({EXPECTED: {PORT: 1.0}} if is_expected else {})}


def another(state: float) -> Numbers:
    """A second one, which was never active where it is not."""
    return {INFO: {(*OTHER, "InfiniBand", "", "", "", "MT4129", "0000:19:00.0", ""): 1.0}, STATE: {OTHER: state}}


@in_one_pass(
    "state, physical, words, why",
    [
        (1, 2, ("down", "polling"), "cable"),
        (1, 3, ("down", "disabled"), "switched off"),
        (2, 5, ("initialising", "link up"), "subnet manager"),
        (1, 4, ("down", "training"), ""),
        (0, 9, ("no change", "unknown (9)"), ""),
    ],
)
def test_a_port_that_was_active_and_is_not_is_down(
    state: float, physical: float, words: tuple[str, str], why: str
) -> None:
    """The evidence says how far the link came, and the detail whose turn it is."""
    [match] = seen_by("rdma_port_down", facts_of(port(state, physical)))

    assert codes_of([match]) == [("rdma_port_down", IDENTITY)]
    assert ("sminfo" in match.next_step) == ("subnet manager" in why)  # no step asks for what the state has answered
    assert match.evidence == (Evidence("state", words[0]), Evidence("physical state", words[1]))
    assert why in match.detail
    assert bool(why) == bool(match.detail)


def test_ports_that_are_active_or_without_a_cable_or_not_read_are_not_down() -> None:
    """Nor is one that was not there for long."""
    assert seen_by("rdma_port_down", facts_of(port())) == []
    assert seen_by("rdma_port_down", facts_of(port(1.0, is_expected=False))) == []
    assert seen_by("rdma_port_down", facts_of(port(None))) == []
    assert seen_by("rdma_port_down", facts_of({})) == []


@in_one_pass(
    "ports, named",
    [
        ([port(1.0, 2.0, is_expected=False)], "1 of 1 RDMA ports"),
        ([port(1.0, 3.0, is_expected=False, layer="Ethernet")], "1 of 1 RDMA ports"),
        ([port(1.0, is_expected=False), another(4.0)], "1 of 2 RDMA ports"),
        ([port(1.0, is_expected=False), another(1.0)], "2 of 2 RDMA ports"),
        ([port(4.0, is_expected=False)], ""),
        ([port(1.0)], ""),  # it was active: it is down
        ([port(1.0, is_expected=False), {FLAPS: {PORT: 1.0}}], ""),  # it was active, and a container gave it back
        ([port(2.0, is_expected=False)], ""),  # it waits for a subnet manager
        ([port(None, is_expected=False)], ""),
        ([port(1.0, is_expected=False), {"commwatch_expected": {("rdma_port",): 1.0}}], ""),  # which one is not read
        ([{}], ""),
    ],
)
def test_ports_that_were_never_active_are_one_piece_of_information(ports: list[Numbers], named: str) -> None:
    """They may well have no cable: nobody is paged, and every view says the same of them."""
    found = seen_by("rdma_never_up", facts_of(merged(*ports)))

    assert [one.component.name for one in found] == [named] * bool(named)
    assert CODES["rdma_never_up"].severity == "info"


def test_a_port_stands_on_its_function_and_its_interface() -> None:
    """A fault of either can explain what is wrong with it; a fault of the adapter's other port cannot."""
    [match] = seen_by("rdma_port_down", facts_of(port(1.0)))

    assert match.component.parts == {"mlx5_0/1", "ens1np0", "0000:18:00.0/port/1"}


def reading(info: bool = False, success: float | None = 1.0, present: float | None = 0.0) -> Numbers:
    """A port that should be here, and what is known of the reading of all."""
    found = merged({EXPECTED: {PORT: 1.0}}, port(1.0) if info else {})
    if success is not None:
        found = merged(found, {"commwatch_collector_success": {("rdma",): success}})
    return found if present is None else merged(found, {"commwatch_present": {("rdma_port",): present}})


@in_one_pass(
    "interface, why",
    [
        ({"commwatch_ethernet_carrier": {("ens1np0",): 0.0}}, ""),
        ({"commwatch_ethernet_carrier": {}}, "its interface ens1np0 is switched off"),
        (None, ""),
    ],
)
def test_a_roce_port_is_switched_off_where_its_interface_is(interface: Numbers | None, why: str) -> None:
    """The kernel calls each without a link disabled, whoever took it away; an interface that is off has no carrier."""
    info: Numbers = {"commwatch_ethernet_info": {("ens1np0", "0000:18:00.0", "mlx5_core", ""): 1.0}}
    beside = {} if interface is None else merged(info, interface)
    [match] = seen_by("rdma_port_down", facts_of(merged(port(1, 3, layer="Ethernet"), beside)))

    assert match.detail == why
    assert match.evidence == (Evidence("state", "down"),)


@pytest.mark.parametrize("state", [2.0, 3.0])
def test_a_port_with_a_link_that_no_subnet_manager_set_up_is_found(state: float) -> None:
    """Learned or not, also where its equals are the same; of one that was active the finding is that it is down."""
    now = facts_of(port(state, is_expected=False))

    [match] = seen_by("rdma_port_not_set_up", now)
    assert codes_of([match]) == [("rdma_port_not_set_up", IDENTITY)]
    assert "no subnet manager" in match.detail
    assert seen_by("rdma_port_not_set_up", facts_of(port(state))) == []
    assert codes_by("rdma_port_down", facts_of(port(state))) == [("rdma_port_down", IDENTITY)]


@in_one_pass(
    "state, physical, layer",
    [(4, 5, "InfiniBand"), (1, 2, "InfiniBand"), (2, 2, "InfiniBand"), (2, 5, "Ethernet"), (None, 5, "InfiniBand")],
)
def test_a_port_that_waits_for_no_subnet_manager_is_not(state: float | None, physical: float, layer: str) -> None:
    """An active one, one without a link, a RoCE port, one of which nothing was read."""
    assert seen_by("rdma_port_not_set_up", facts_of(port(state, physical, is_expected=False, layer=layer))) == []


def test_a_port_that_is_not_on_the_node_is_missing() -> None:
    """Only where all ports were read: one that cannot be read is not gone, and what was gone then stays so."""
    gone = seen_by("rdma_port_missing", facts_of(reading()))

    assert codes_of(gone) == [("rdma_port_missing", IDENTITY)]
    assert seen_by("rdma_port_missing", facts_of(reading(info=True))) == []
    for unread in (reading(success=0.0), reading(success=None), reading(present=None)):
        assert seen_by("rdma_port_missing", facts_of(unread)) == []
        assert not is_judged(gone[0], facts_of(unread))
    assert is_judged(gone[0], facts_of(reading(info=True)))


def test_a_port_below_its_own_speed_is_slow() -> None:
    """Held against the fastest that was stable here; while it is down nothing is said, and what was said stays."""
    fast, half = 50e9, 25e9
    now = merged(
        port(), {SPEED: {PORT: half}, SPEED_EXPECTED: {PORT: fast}, "commwatch_rdma_port_width_lanes": {PORT: 2}}
    )
    [match] = seen_by("rdma_port_slow", facts_of(now))

    assert codes_of([match]) == [("rdma_port_slow", IDENTITY)]
    assert match.evidence[0] == Evidence(
        "speed", half, "bytes_per_second", fast, "the fastest that was stable here, or that its equals have"
    )
    assert match.evidence[1] == Evidence("lanes", 2.0, "lanes")
    assert seen_by("rdma_port_slow", facts_of({**now, SPEED: {PORT: fast}})) == []
    without = facts_of({metric: series for metric, series in now.items() if metric != SPEED})
    assert seen_by("rdma_port_slow", without) == []
    assert not is_judged(match, without)
    assert is_judged(match, facts_of(now))


def test_the_kinds_of_errors_of_a_port_are_one_finding() -> None:
    """Each with what was counted and the limit it passed."""
    symbols, integrity = (
        "commwatch_rdma_port_symbol_errors_total",
        "commwatch_rdma_port_local_link_integrity_errors_total",
    )
    now: Numbers = {symbols: {PORT: 500.0}, integrity: {PORT: 2.0}}
    [match] = seen_by("rdma_errors", facts_of(now, {10.0: {symbols: {PORT: 0.0}, integrity: {PORT: 0.0}}}))

    assert match.evidence == (
        Evidence("symbol errors in the last hour", 500.0, "", 120.0, "rdma_symbol_errors_per_hour"),
        Evidence("times the link passed its own error threshold in the last hour", 2.0),
    )


def test_a_full_error_counter_is_told_and_one_of_congestion_only_noted() -> None:
    """Counters of the wait for credit fill up on healthy ports; blank ones and those of GPUs are not full."""
    overruns = "rdma_port_excessive_buffer_overrun_errors_total"
    now: Numbers = {
        ANOMALY: {
            ("rdma", "mlx5_0/1", overruns): 4.0,
            ("rdma", "mlx5_0/1", "rdma_port_transmit_wait_ticks_total"): 4.0,
            ("rdma", "mlx5_1/1", "rdma_port_transmit_packets_total"): 3.0,
            ("nvml", "0000:17:00.0", overruns): 4.0,
        }
    }
    found = seen_by("rdma_counter_saturated", facts_of(now))

    assert codes_of(found) == [("rdma_counter_saturated", IDENTITY), ("rdma_side_counter_saturated", IDENTITY)]
    assert found[0].evidence == (Evidence(overruns, 15.0),)
    assert seen_by("rdma_counter_saturated", facts_of({})) == []
