"""The course of a drill and its verdict, at times that the test sets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commwatch.config.settings import Duration
from commwatch_rehearsal.drill.configuration import RECEIVER
from commwatch_rehearsal.drill.course import Course, Outcome, Phase
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.pace import SHIPPED
from commwatch_rehearsal.drill.receiver import Notice

DOWN = Drill(
    name="nvlink_down",
    family="NVLink",
    preset="h100x8",
    faults=({"fault": "nvlink_down", "gpu": "3", "link": "5"},),
    alerts=("CommwatchNvlinkDown",),
    codes=("nvlink_down",),
    also=("CommwatchXidFabric",),
)
NAME = "CommwatchNvlinkDown"
HELD = 600.0


class Played:
    """A course with a clock."""

    def __init__(self, drill: Drill = DOWN, held: float = HELD) -> None:
        self.now = 1000.0
        self.course = Course(drill, SHIPPED, self.now, held, RECEIVER)
        self.actions: list[tuple[float, str]] = []
        self.firing: set[str] = set()
        self.findings: set[str] = {"nvlink_down"}

    def notice(
        self,
        name: str = NAME,
        *,
        resolved: bool = False,
        after: float = 0.0,
        receiver: str = RECEIVER,
        severity: str = "critical",
    ) -> Notice:
        """A notification that arrives now; the alert fired ``after`` seconds ago."""
        labels = {"alertname": name, "severity": severity}
        return Notice(receiver, self.now, resolved, labels, self.now - after)

    def go(self, seconds: float, *notices: Notice) -> Played:
        """See what there is, then let seconds pass one by one."""
        self.course.see(self.now, self.firing, notices, self.findings)
        for _ in range(int(seconds)):
            if self.course.phase is Phase.DONE:
                break
            self.now += 1
            self.course.see(self.now, self.firing, (), self.findings)
            if action := self.course.step(self.now, ready=True):
                self.actions.append((self.now, action))
        return self

    def until_fault(self) -> Played:
        while self.course.phase is not Phase.FAULTY:
            self.go(1)
        return self

    @property
    def outcome(self) -> Outcome:
        return self.course.outcome()


def played_well() -> Played:
    """A fault that fires after 30 s, is paged 5 s later, and is resolved 11 min after its end."""
    one = Played().until_fault().go(30)
    one.firing = {NAME}
    one.go(5)
    one.go(70, one.notice(after=5))
    one.go(600)
    one.firing = set()
    return one.go(20, one.notice(resolved=True))


def test_a_fault_that_pages_and_resolves_passes_with_its_times() -> None:
    """Firing by Prometheus' clock, page by the receiver's, resolved from the end of the fault."""
    one = played_well()
    assert one.course.phase is Phase.DONE
    (began, begin), (finished, finish) = one.actions
    assert (begin, finish) == ("begin", "finish")
    assert finished - began == pytest.approx(95, abs=2)  # a minute longer than its page
    outcome = one.outcome
    assert outcome.passed, outcome.problems
    assert outcome.seconds_to_firing == pytest.approx(30, abs=1)
    assert outcome.seconds_to_page == pytest.approx(35, abs=1)
    assert outcome.resolved is True
    assert outcome.received == (NAME,)


def test_a_node_is_watched_before_its_fault() -> None:
    """An alert of a healthy node fails the drill, also the one that is expected later."""
    one = Played().go(30)
    one.firing = {NAME}
    one.go(5, one.notice())
    one.go(60)
    one.go(70)
    one.firing = set()
    one.go(20, one.notice(resolved=True)).go(1000)
    assert f"{NAME} before the fault" in one.outcome.problems


def test_another_alert_of_the_node_fails_the_drill() -> None:
    """Whether it is paged or only fires, and whenever: here in the minutes after the fault."""
    one = Played().until_fault()
    one.firing = {NAME}
    one.go(70, one.notice())
    one.firing = {NAME, "CommwatchGpuLost"}
    one.go(30)
    assert one.outcome.unexpected == ("CommwatchGpuLost",)
    assert not one.outcome.passed


def test_a_sign_of_the_same_fault_that_the_catalogue_allows_does_no_harm() -> None:
    """The Xid that comes with a link that is down."""
    one = played_well()
    one.course.see(one.now, {"CommwatchXidFabric"}, (), ())
    assert one.outcome.unexpected == ()


def test_a_page_that_never_comes_ends_the_fault_after_twice_its_time() -> None:
    """Class A: 60 s; the fault does not hold forever."""
    one = Played().until_fault().go(200)
    assert [action for _, action in one.actions] == ["begin", "finish"]
    one.go(1000)
    assert one.course.phase is Phase.DONE
    assert f"no page of {NAME}" in one.outcome.problems
    assert one.outcome.seconds_to_page is None


def test_a_page_after_the_time_of_its_class_is_late() -> None:
    """Class A: more than 60 s from fault to page."""
    one = Played().until_fault().go(70)
    one.firing = {NAME}
    one.go(70, one.notice())
    one.firing = set()
    one.go(20, one.notice(resolved=True))
    assert [problem for problem in one.outcome.problems if problem.startswith("late: ")]


def told_a_minute_after(severity: str) -> Outcome:
    """A sign of the fault is reported 27 s after it, the expected alert with the next interval of the group."""
    one = Played().until_fault().go(27)
    one.go(60, one.notice("CommwatchXidFabric", severity=severity))
    one.firing = {NAME}
    one.go(70, one.notice()).go(600)
    one.firing = set()
    return one.go(20, one.notice(resolved=True)).outcome


def test_the_first_page_of_a_fault_keeps_the_limit() -> None:
    """Another sign of it that pages as well: the node is known to be bad from then on."""
    outcome = told_a_minute_after("critical")
    assert outcome.passed, outcome.problems
    assert (outcome.first_page, outcome.seconds_allowed) == ("CommwatchXidFabric", 60)
    assert outcome.seconds_to_first_page == pytest.approx(27, abs=1)
    assert outcome.seconds_to_page == pytest.approx(87, abs=1)


@pytest.mark.parametrize("severity", ["warning", "info"])
def test_what_would_page_nobody_on_a_real_node_keeps_no_limit(severity: str) -> None:
    """The drill gets tickets and information too; a page is due all the same."""
    outcome = told_a_minute_after(severity)
    assert outcome.first_page == NAME
    assert outcome.problems == ("late: 87 s, more than 60 s",)


def test_an_alert_that_stays_fails_the_drill() -> None:
    """Its holding time and three minutes after the end of the fault."""
    one = Played().until_fault()
    one.firing = {NAME}
    one.go(70, one.notice()).go(2000)
    assert one.course.phase is Phase.DONE
    assert one.outcome.problems == (f"not resolved: {NAME}",)


def test_a_page_that_comes_again_is_not_resolved() -> None:
    """A notice that it is over counts only until the next one that it fires."""
    one = Played().until_fault()
    one.firing = {NAME}
    one.go(70, one.notice())
    one.go(5, one.notice(resolved=True)).go(5, one.notice()).go(2000)
    assert one.outcome.problems == (f"not resolved: {NAME}",)


def test_an_alert_that_looks_back_for_an_hour_is_not_waited_for() -> None:
    """The verdict is that of its page; whether it resolves stays open."""
    drill = Drill(name="a", family="", preset="h100x8", faults=DOWN.faults, alerts=(NAME,), lasts=Duration(3600))
    one = Played(drill, held=0).until_fault()
    one.firing = {NAME}
    one.go(200, one.notice())
    assert one.course.phase is Phase.DONE
    assert one.outcome.resolved is None
    assert one.outcome.passed


def test_a_fault_that_must_page_nobody_holds_for_five_minutes() -> None:
    """And passes if nothing fired."""
    drill = Drill(name="mig", family="GPU", preset="h100x8", faults=({"fault": "mig_enabled", "gpu": "0"},))
    one = Played(drill, held=0)
    one.findings = set()
    one.until_fault().go(290)
    assert [action for _, action in one.actions] == ["begin"]
    one.go(200)
    assert one.course.phase is Phase.DONE
    assert one.outcome.passed


def test_a_finding_that_does_not_open_fails_the_drill_at_shipped_intervals() -> None:
    """Findings and alerts must say the same; the fault is held two minutes longer for it."""
    one = Played()
    one.findings = set()
    one.until_fault()
    one.firing = {NAME}
    one.go(110, one.notice())
    assert [action for _, action in one.actions] == ["begin"]
    one.go(60)
    one.firing = set()
    one.go(20, one.notice(resolved=True))
    assert one.outcome.problems == ("no finding nvlink_down",)


def test_a_finding_without_an_alert_fails_the_drill() -> None:
    """Findings and alerts say the same, also of a fault that must page nobody; information may be told."""
    drill = Drill(name="mig", family="GPU", preset="h100x8", faults=({"fault": "mig_enabled", "gpu": "0"},))
    one = Played(drill, held=0)
    one.findings = {"gpu_lost", "clock_stepped"}
    one.until_fault().go(500)
    assert one.outcome.problems == ("finding gpu_lost without its alert",)


def test_a_fault_of_the_first_day_is_there_from_the_start() -> None:
    """Times count from the start of the node, and what fires before the node is ready is no false alarm."""
    one = Played(Drill(name="a", family="", preset="h100x8", faults=DOWN.faults, alerts=DOWN.alerts, first_day=True))
    one.firing = {NAME}
    one.go(1, one.notice())
    assert (one.course.phase, one.course.began_at) == (Phase.FAULTY, 1000.0)
    one.go(100)
    assert [action for _, action in one.actions] == ["finish"]
    assert f"{NAME} before the fault" not in one.outcome.problems


def test_a_page_at_another_receiver_fails_the_drill() -> None:
    """Simulated alerts go to the drill only."""
    one = Played().until_fault()
    one.firing = {NAME}
    one.go(70, one.notice(receiver="page"))
    assert f"{NAME} went to the receiver page" in one.outcome.problems


def test_a_node_that_does_not_get_ready_fails_its_drill_after_two_minutes() -> None:
    """And says so."""
    course = Course(DOWN, SHIPPED, 1000.0)
    assert course.step(1121.0, ready=False) is None
    assert course.phase is Phase.DONE
    assert "did not know its own parts" in course.outcome().problems[0]
    assert replace(course.outcome(), problems=()).seconds_to_firing is None
