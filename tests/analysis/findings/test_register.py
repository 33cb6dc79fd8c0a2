"""Findings open when they last, close when they are gone for long enough, and outlive a restart."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from commwatch.findings.codes import CODES
from commwatch.findings.finding import SEVERITIES, Component, Evidence, Match
from commwatch.findings.register import UNSEEN_CLOSES_AFTER, Register, RegisterState
from commwatch.findings.rules.rule_set import STATE_CLOSES_AFTER
from support.findings import Observer
from support.passes import in_one_pass

LINK = Component("nvlink", "0000:17:00.0/3", "GPU0 link 3", frozenset({"0000:17:00.0"}))
DOWN = Match("nvlink_down", LINK, (Evidence("link state", "inactive"),))
OVER_AFTER = 600
"""Seconds without a further event after which one whose part reads healthy is over."""
OPENS, CLOSES = CODES["nvlink_down"].opens_after, CODES["nvlink_down"].closes_after


see, blind = Observer(), Observer(observable=False)


def opened(now: float = 1000.0) -> Register:
    register = Register()
    register.update([DOWN], see, now)
    register.update([DOWN], see, now + OPENS)
    return register


def test_a_match_opens_when_it_lasts() -> None:
    """One bad sample opens nothing; the same one when its time is over does, and tells since when."""
    register = Register()

    assert register.update([DOWN], see, 1000.0) == []
    assert register.update([DOWN], see, 1000.0 + OPENS - 0.1) == []
    assert register.open_incidents() == []
    [(event, finding)] = register.update([DOWN], see, 1000.0 + OPENS)

    assert (event, finding.code, finding.component, finding.first_seen) == ("opened", "nvlink_down", LINK, 1000.0)
    assert register.open_incidents() == [finding]
    assert register.update([DOWN], see, 1100.0) == [], "an open finding opens once"


def test_what_was_told_late_began_before() -> None:
    """Three results in a row are known at the third: the incident began with the first, and opens by that time."""
    register = Register()
    told = replace(DOWN, since=1000.0 - OPENS)

    [(event, finding)] = register.update([told], see, 1000.0)

    assert (event, finding.first_seen, finding.grew_at) == ("opened", 1000.0 - OPENS, 1000.0)
    assert register.update([replace(told, since=2000.0)], see, 1010.0) == []
    assert register.open_incidents()[0].first_seen == 1000.0 - OPENS


def test_a_count_that_grows_says_when_it_did_last() -> None:
    """After an hour of the same number it goes on, since what falls out of the hour comes in again."""
    register = Register()
    for now, number in ((0.0, 3.0), (60.0, 4.0), (120.0, 4.0)):
        register.update(
            [replace(DOWN, code="nvlink_recovering", evidence=(Evidence("recoveries", number),))], see, 1000.0 + now
        )
    assert register.open_incidents()[0].grew_at == 1060.0

    register.update([replace(DOWN, code="nvlink_recovering", evidence=(Evidence("recoveries", 4.0),))], see, 4700.0)
    assert register.open_incidents()[0].grew_at == 4700.0


@pytest.mark.parametrize(("seconds_under_load", "is_open"), [(14.0, True), (15.0, False)])
def test_a_link_that_is_fast_again_is_well_before_the_load_ends(seconds_under_load: float, is_open: bool) -> None:
    """An idle link says nothing: a finding that asked for a minute of load would stay open until the next job."""
    slow = replace(DOWN, code="pcie_generation_low")
    register = Register()
    for now in (0.0, 60.0):
        register.update([slow], see, now)
    for now in (70.0, 70.0 + seconds_under_load):
        register.update([], see, now)
    register.update([], blind, 600.0)

    assert bool(register.open_incidents()) == is_open


DEGREES = [(greater, lesser) for greater, code in CODES.items() for lesser in code.replaces]


@in_one_pass("greater, lesser", DEGREES)
def test_a_greater_degree_of_a_fault_takes_the_place_of_a_lesser_one(greater: str, lesser: str) -> None:
    """At the look at which it opens, at its own part alone; the lesser one is open again once the greater is over."""
    elsewhere = replace(LINK, key="0000:17:00.0/4")
    small, large = replace(DOWN, code=lesser), replace(DOWN, code=greater)
    other = replace(small, component=elsewhere)
    register, opens = Register(), int(max(60.0, CODES[lesser].opens_after))
    for now in range(1000, 1000 + opens + 1, 60):
        register.update([small, other], see, now)
    first = 1010.0 + opens
    begun = first + CODES[greater].opens_after
    for later in range(0, int(begun - first), 60):
        assert register.update([large, other], see, first + later) == []
    changes = [(event, one.key) for event, one in register.update([large, other], see, begun)]
    open_now = [one.key for one in register.open_incidents()]

    assert changes == [("opened", (greater, LINK.identity)), ("closed", (lesser, LINK.identity))]
    assert open_now == [(lesser, elsewhere.identity), (greater, LINK.identity)]
    assert register.update([small, large, other], see, begun + 10.0) == []
    if CODES[lesser].severity != "info":
        assert [one.note for one in register.closed()] == [f"became: {CODES[greater].title}"]
    gone = begun + 20.0
    for later in range(0, int(CODES[greater].closes_after) + opens + 1, 60):
        register.update([small, other], see, gone + later)
    assert sorted(one.key for one in register.open_incidents()) == [
        (lesser, LINK.identity),
        (lesser, elsewhere.identity),
    ]


def test_the_degrees_of_a_fault() -> None:
    """Which codes take the place of which; none takes the place of a graver one, nor of itself by way of others."""
    assert set(DEGREES) == {
        ("nvlink_flapping", "nvlink_flapped"), ("rdma_port_flapping", "rdma_port_flapped"),
        ("ethernet_flapping", "ethernet_flapped"), ("nvlink_recovering", "nvlink_recovered"),
        ("gpu_lost", "gpu_not_answering"), ("gpu_lost", "gpu_not_listed"),
        ("gpu_recovery_needed", "gpu_recovery_other"), ("probe_bandwidth_low", "probe_bandwidth_lost"),
        ("probe_bandwidth_low", "probe_bandwidth_short"), ("probe_bandwidth_lost", "probe_bandwidth_short"),
        ("job_network_bound", "job_half_used"), ("job_pcie_bound", "job_half_used"),
        ("job_nvlink_bound", "job_half_used"), ("job_gpu_bound", "job_half_used"), ("job_gpu_bound", "job_uneven"),
        ("job_stuck_long", "job_stuck"), ("job_stuck_long", "job_stuck_suspected"),
        ("job_stuck", "job_stuck_suspected"),
    }  # fmt: skip
    for greater, lesser in DEGREES:
        assert SEVERITIES.index(CODES[greater].severity) <= SEVERITIES.index(CODES[lesser].severity)
        assert (lesser, greater) not in DEGREES


def test_what_goes_before_it_opened_starts_again() -> None:
    """Two samples with a gap are two beginnings."""
    register = Register()
    register.update([DOWN], see, 1000.0)
    register.update([], see, 1005.0)

    assert register.update([DOWN], see, 1000.0 + OPENS) == []


def test_a_finding_closes_when_it_is_gone_for_long_enough() -> None:
    """What comes back before is the same incident."""
    register = opened()

    assert register.update([], see, 1100.0) == []
    assert register.update([DOWN], see, 1100.0 + CLOSES - 0.1) == []
    assert register.update([], see, 1300.0) == []
    [(event, finding)] = register.update([], see, 1300.0 + CLOSES)

    assert (event, finding.first_seen) == ("closed", 1000.0)
    assert register.open_incidents() == []


def test_what_cannot_be_looked_at_stays_as_it_is() -> None:
    """A driver that does not answer neither opens nor closes."""
    register = opened()

    assert register.update([], blind, 1100.0) == []
    assert register.update([], blind, 9000.0) == []
    assert len(register.open_incidents()) == 1


def test_what_no_one_reads_any_more_closes_in_the_end() -> None:
    """A part that was taken out for good, or a collector that was switched off, leaves no finding forever."""
    register = opened(1000.0)
    week = 1000.0 + OPENS + UNSEEN_CLOSES_AFTER

    assert register.update([], blind, week - 1.0) == []
    assert register.update([], blind, week) == []
    assert [event for event, _ in register.update([], blind, week + CLOSES)] == ["closed"]


def test_two_samples_around_a_blind_hour_are_two_beginnings() -> None:
    """What was not looked at in between did not last."""
    register = Register()
    register.update([DOWN], see, 1000.0)
    register.update([], blind, 1010.0)

    assert register.update([DOWN], see, 4600.0) == []
    [(_, finding)] = register.update([DOWN], see, 4600.0 + OPENS)
    assert finding.first_seen == 4600.0


@in_one_pass(
    "matches, observer, seconds, is_unconfirmed",
    [
        ([DOWN], see, 10.0, True),
        ([], see, 10.0, False),
        ([], blind, STATE_CLOSES_AFTER, True),
        ([], blind, STATE_CLOSES_AFTER + 1.0, False),
        ([], blind, 24 * 3600.0, False),
        ([], blind, -24 * 3600.0, False),
        ([DOWN], see, OPENS, False),
    ],
)
def test_a_match_is_unconfirmed_until_it_opens_or_was_not_seen_for_a_minute(
    matches: list[Match], observer: Observer, seconds: float, is_unconfirmed: bool
) -> None:
    """A part that cannot be looked at any more is not called faulty for longer by the one look that saw it."""
    register = Register()
    register.update([DOWN], see, 100_000.0)

    register.update(matches, observer, 100_000.0 + seconds)

    assert [one.code for one in register.unconfirmed(100_000.0 + seconds)] == ["nvlink_down"] * is_unconfirmed


def test_a_clock_that_was_set_back_holds_nothing_up() -> None:
    """An incident that began in what is now the future begins now."""
    register = Register()
    register.update([DOWN], see, 9000.0)
    register.update([DOWN], see, 1000.0)

    assert [event for event, _ in register.update([DOWN], see, 1000.0 + OPENS)] == ["opened"]
    register.update([], see, 5000.0)
    register.update([], see, 2000.0)
    assert [event for event, _ in register.update([], see, 2000.0 + CLOSES)] == ["closed"]


def test_when_a_finding_was_seen_last() -> None:
    """Freshness is told for each, also while it cannot be looked at."""
    register = opened(1000.0)
    register.update([], blind, 2000.0)

    assert [one.last_seen for one in register.open_incidents()] == [1000.0 + OPENS]


def test_findings_outlive_a_restart() -> None:
    """The state comes back from JSON, with the time of the first match."""
    kept = msgspec.json.encode(opened().state)

    register = Register(msgspec.json.decode(kept, type=RegisterState))

    [finding] = register.open_incidents()
    assert (finding.component, finding.first_seen) == (LINK, 1000.0)
    assert register.update([DOWN], see, 2000.0) == [], "it is not announced twice"


def test_a_code_that_is_no_more_is_dropped() -> None:
    """A newer version may have fewer codes than the one that wrote the state."""
    state = opened().state
    state.incidents[0].match = msgspec.structs.replace(DOWN, code="nvlink_of_old")

    assert Register(state).open_incidents() == []


def test_an_unknown_code_is_an_error_of_the_rule() -> None:
    """A rule can only match what is on the list."""
    with pytest.raises(KeyError):
        Register().update([msgspec.structs.replace(DOWN, code="nonsense")], see, 0.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 200.0)), max_size=40))
def test_events_alternate(looks: list[tuple[bool, float]]) -> None:
    """Whatever is seen when: a finding opens before it closes, and never twice in a row."""
    register, now, events = Register(), 0.0, []
    for there, wait in looks:
        now += wait
        events += [event for event, _ in register.update([DOWN] if there else [], see, now)]

    assert events == ["opened", "closed"] * (len(events) // 2) + ["opened"] * (len(events) % 2)
    assert len(register.open_incidents()) == len(events) % 2


EVENT = Match("sxid_fatal", Component("nvswitch", "0000:0b:00.0"), (Evidence("SXid 12028 in the last hour", 1.0),))


well, ill = Observer(repaired=True), Observer()


def followed(register: Register, begin: float, end: float, observer: Observer = well, event: Match = EVENT) -> None:
    """A look each 10 s, the last one at the end."""
    for now in range(int(begin), int(end) + 1, 10):
        register.update([event], observer, float(now))


def test_an_event_whose_part_reads_healthy_is_over_after_a_while_and_is_remembered() -> None:
    """It is counted for an hour all the same; both times are kept."""
    register = Register()
    followed(register, 1000, 1060, ill)
    followed(register, 1070, 990 + OVER_AFTER)

    assert [one.healthy_since for one in register.open_incidents()] == [1070.0]
    followed(register, 1000 + OVER_AFTER, 1000 + OVER_AFTER)

    assert register.open_incidents() == []
    assert [(one.match, one.since, one.until) for one in register.closed()] == [(EVENT, 1000.0, 1070.0)]
    followed(register, 1010 + OVER_AFTER, 4500)
    assert register.open_incidents() == []
    assert len(register.closed()) == 1


def test_an_event_whose_part_does_not_read_healthy_stays() -> None:
    """Also where it did for a while."""
    register = Register()
    followed(register, 1000, 1500)
    followed(register, 1510, 3000, ill)

    assert [one.healthy_since for one in register.open_incidents()] == [None]


def test_an_event_that_comes_back_is_open_again() -> None:
    """Before it is over its time begins again; afterwards it opens again, also after a restart."""
    register = Register()
    twice = replace(EVENT, evidence=(Evidence("SXid 12028 in the last hour", 2.0),))
    thrice = replace(EVENT, evidence=(Evidence("SXid 12028 in the last hour", 3.0),))
    followed(register, 1000, 1500)
    followed(register, 1510, 1500 + OVER_AFTER, event=twice)
    assert len(register.open_incidents()) == 1
    followed(register, 1510 + OVER_AFTER, 1510 + OVER_AFTER, event=twice)
    assert register.open_incidents() == []

    restarted = Register(msgspec.json.decode(msgspec.json.encode(register.state), type=RegisterState))
    followed(restarted, 2200, 2200, event=twice)
    assert restarted.open_incidents() == []
    [(event, _)] = restarted.update([thrice], well, 2210.0)
    assert event == "opened"
    assert [one.until for one in restarted.closed()] == [1510.0]


def test_an_event_does_not_open_again_when_an_older_one_is_no_longer_counted() -> None:
    """Two events 40 min apart: each opens once, although the hour goes on counting one of them."""
    register, events = Register(), list[tuple[int, str]]()
    for passed in range(0, 7000, 10):
        count = sum(begin <= passed < begin + 3600 for begin in (0, 2400))
        event = replace(EVENT, evidence=(Evidence("SXid 12028 in the last hour", float(count)),))
        changes = register.update([event] if count else [], well, 1000.0 + passed)
        events += [(passed // 60, change) for change, _ in changes]

    assert events == [(0, "opened"), (10, "closed"), (40, "opened"), (50, "closed")]


def test_what_is_no_event_stays_while_it_is_seen() -> None:
    """A link that is down is down."""
    register = opened(1000.0)
    followed(register, 1100, 1100 + 2 * OVER_AFTER, event=DOWN)

    assert [one.code for one in register.open_incidents()] == ["nvlink_down"]


def test_closed_findings_are_kept_for_a_day() -> None:
    """Those of information are not."""
    register = opened(1000.0)
    register.update([], see, 1100.0)
    register.update([], see, 1100.0 + CLOSES)

    assert [one.until for one in register.closed()] == [1100.0]
    register.update([], see, 1100.0 + 86400)
    assert register.closed() == []
