"""Network interfaces: links, speeds, damaged packets, pauses and drops."""

from __future__ import annotations

from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Evidence, Match
from support.facts import NOW, Numbers, before, codes_of, facts_of, is_judged, seen_by
from support.findings import incidents
from support.machines import merged
from support.passes import in_one_pass

NAME = ("ens1np0",)
IDENTITY = "interface/ens1np0"
HOUR, WINDOW = 3600.0, 120.0
CARRIER, EXPECTED = "commwatch_ethernet_carrier", "commwatch_ethernet_expected"
SPEED, SPEED_EXPECTED = (f"commwatch_ethernet_speed_{what}bytes_per_second" for what in ("", "expected_"))
CHANGES, DOWNS = "commwatch_ethernet_carrier_changes_total", "commwatch_ethernet_phy_link_down_total"
INFO: Numbers = {"commwatch_ethernet_info": {(*NAME, "0000:18:00.0", "mlx5_core", ""): 1.0}}
LEARNED: Numbers = {EXPECTED: {NAME: 1.0}}


def rose(rule: str, metric: str, rise: float, ago: float, more: Numbers | None = None) -> list[Match]:
    """What is matched where a counter of the interface rose so much so long ago."""
    labels = {"device": "ens1np0", "priority": "3", "kind": "bus_stuck"}
    from_catalogue = tuple(labels[name] for name in CATALOGUE_LABELS.get(metric, ("device",)))
    now: Numbers = {**(more or {}), metric: {from_catalogue: 1e6}}
    return seen_by(rule, facts_of(now, {ago + 5.0: before(now, {metric: {from_catalogue: rise}}), ago: now}))


CATALOGUE_LABELS = {
    "commwatch_ethernet_pfc_receive_pause_seconds_total": ("device", "priority"),
    "commwatch_ethernet_pfc_transmit_pause_seconds_total": ("device", "priority"),
    "commwatch_ethernet_module_events_total": ("device", "kind"),
}


def test_an_interface_that_had_a_link_and_has_none_is_down() -> None:
    """Not one that never had one, that is switched off, or that nobody read."""
    now = merged(INFO, LEARNED, {CARRIER: {NAME: 0.0}})
    [match] = seen_by("ethernet_down", facts_of(now))

    assert codes_of([match]) == [("ethernet_down", IDENTITY)]
    assert match.component.parts == {"ens1np0", "0000:18:00.0/net/ens1np0"}
    assert seen_by("ethernet_down", facts_of({**now, CARRIER: {NAME: 1.0}})) == []
    assert seen_by("ethernet_down", facts_of(merged(INFO, {CARRIER: {NAME: 0.0}}))) == []
    assert seen_by("ethernet_down", facts_of(merged(INFO, LEARNED))) == []


def test_an_interface_that_is_not_on_the_node_is_missing() -> None:
    """Only where all were read."""
    read: Numbers = {"commwatch_collector_success": {("network",): 1.0}, "commwatch_present": {("ethernet_port",): 0.0}}
    gone = seen_by("ethernet_missing", facts_of(merged(LEARNED, read)))

    assert codes_of(gone) == [("ethernet_missing", IDENTITY)]
    assert seen_by("ethernet_missing", facts_of(merged(LEARNED, read, INFO))) == []
    for metric in read:
        unread = facts_of(merged(LEARNED, {name: series for name, series in read.items() if name != metric}))
        assert seen_by("ethernet_missing", unread) == []
        assert not is_judged(gone[0], unread)


def test_an_interface_below_its_own_speed_is_slow() -> None:
    """Without a link it has no speed, and what was said of it stays."""
    now: Numbers = {SPEED: {NAME: 1.25e9}, SPEED_EXPECTED: {NAME: 12.5e9}}
    [match] = seen_by("ethernet_slow", facts_of(now))

    assert codes_of([match]) == [("ethernet_slow", IDENTITY)]
    assert match.evidence == (
        Evidence("speed", 1.25e9, "bytes_per_second", 12.5e9, "the fastest that was stable here"),
    )
    assert seen_by("ethernet_slow", facts_of({**now, SPEED: {NAME: 12.5e9}})) == []
    assert seen_by("ethernet_slow", facts_of({SPEED: {NAME: 1.25e9}})) == []
    assert not is_judged(match, facts_of({SPEED_EXPECTED: now[SPEED_EXPECTED]}))


@in_one_pass("metric", ["receive_crc_errors", "phy_crc_errors", "phy_symbol_errors", "phy_pcs_symbol_errors"])
def test_damaged_packets_have_a_floor_that_grows_with_the_speed(metric: str) -> None:
    """A bit error ratio of 1e-12 makes 360 in an hour at 100 Gbit/s; where no speed is known there is no floor."""
    name = f"commwatch_ethernet_{metric}_total"
    speed: Numbers = {SPEED: {NAME: 12.5e9}}

    assert codes_of(rose("ethernet_errors", name, 361.0, HOUR - 1.0, speed)) == [("ethernet_errors", IDENTITY)]
    assert rose("ethernet_errors", name, 360.0, HOUR - 1.0, speed) == []
    assert rose("ethernet_errors", name, 361.0, HOUR, speed) == []
    assert rose("ethernet_errors", name, 361.0, HOUR - 1.0) == []
    assert len(rose("ethernet_errors", name, 361.0, HOUR - 1.0, {SPEED_EXPECTED: {NAME: 12.5e9}})) == 1


def test_packets_that_are_longer_than_the_mtu_are_not_damaged() -> None:
    """The kernel counts them as errors, and another cable would not help."""
    name = "commwatch_ethernet_receive_errors_total"

    assert rose("ethernet_errors", name, 361.0, HOUR - 1.0, {SPEED: {NAME: 12.5e9}}) == []


def test_faults_of_the_cable_module_are_told_for_an_hour() -> None:
    """One is enough."""
    name = "commwatch_ethernet_module_events_total"

    assert codes_of(rose("ethernet_module_fault", name, 1.0, HOUR - 1.0)) == [("ethernet_module_fault", IDENTITY)]
    assert rose("ethernet_module_fault", name, 1.0, HOUR) == []
    assert rose("ethernet_module_fault", name, 0.0, 10.0) == []


def test_a_module_that_is_pulled_is_no_fault_of_the_module() -> None:
    """The link tells of it."""
    name = "commwatch_ethernet_module_events_total"
    now: Numbers = {name: {(*NAME, "unplugged"): 1.0}}

    assert seen_by("ethernet_module_fault", facts_of(now, {10.0: {name: {(*NAME, "unplugged"): 0.0}}})) == []


@in_one_pass("way", ["pfc", "global"])
@in_one_pass("direction, code", [("receive", "ethernet_paused"), ("transmit", "ethernet_pausing")])
def test_pauses_are_judged_over_two_minutes(way: str, direction: str, code: str) -> None:
    """From a hundredth of the time on."""
    name = f"commwatch_ethernet_{way}_{direction}_pause_seconds_total"

    assert codes_of(rose(code, name, 1.212, WINDOW - 1.0)) == [(code, IDENTITY)]
    assert rose(code, name, 1.188, WINDOW - 1.0) == []
    assert rose(code, name, 1.212, WINDOW) == []
    assert CODES[code].opens_after > WINDOW


@in_one_pass("code", ["ethernet_dropping", "ethernet_over_allowance", "ethernet_paused", "ethernet_pausing"])
def test_traffic_is_only_worth_knowing(code: str) -> None:
    """A network may be full."""
    assert CODES[code].severity == "info"


def test_what_the_kernel_calls_dropped_says_nothing() -> None:
    """It counts packets of protocols that no one here speaks; they come all the time."""
    assert rose("ethernet_dropping", "commwatch_ethernet_receive_drops_total", 1e5, 10.0) == []


def test_the_interface_of_a_port_that_is_down_is_its_cause() -> None:
    """One fault of one cable is one finding, and it is about the port that jobs use."""
    port = ("mlx5_0", "1")
    now = merged(
        INFO,
        LEARNED,
        {
            CARRIER: {NAME: 0.0},
            "commwatch_rdma_port_info": {(*port, "Ethernet", "0x0", "0x0", "", "", "0000:18:00.0", *NAME): 1.0},
            "commwatch_rdma_port_expected": {port: 1.0},
            "commwatch_rdma_port_state": {port: 1.0},
        },
    )
    facts = facts_of(now)
    found = [*seen_by("ethernet_down", facts), *seen_by("rdma_port_down", facts)]
    [finding] = join(incidents(found, NOW))

    assert (finding.code, finding.severity) == ("rdma_port_down", "critical")
    assert [cause.code for cause in finding.causes] == ["ethernet_down"]
