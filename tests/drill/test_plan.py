"""Which drills go side by side, and in which order."""

from __future__ import annotations

from commwatch.config.settings import Duration
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.pace import FAST, SHIPPED
from commwatch_rehearsal.drill.plan import Running, may_start, ordered


def drill(name: str, *alerts: str, also: tuple[str, ...] = (), nodes: int = 1) -> Drill:
    return Drill(name=name, family="", preset="h100x8", alerts=alerts, also=also, nodes=nodes)


def running(*drills: Drill, starting: bool = False) -> list[Running]:
    return [Running(one, starting) for one in drills]


def test_no_more_than_two_nodes_have_the_same_alert_at_a_time() -> None:
    """Expected or a sign of the same fault: a third node makes it a fault of the fleet."""
    down, lost, other = drill("a", "Down", also=("Xid",)), drill("b", "Lost", also=("Xid",)), drill("c", "Other")
    assert may_start(drill("d", "Xid"), running(down), {}, 8)
    assert not may_start(drill("d", "Xid"), running(down, lost), {}, 8)
    assert may_start(drill("d", "Xid"), running(down, other), {}, 8)


def test_an_alert_that_goes_on_after_its_drill_counts() -> None:
    """On nodes that are gone; it is counted by the rule for the fleet as well."""
    assert may_start(drill("d", "Xid"), [], {"Xid": 1}, 8)
    assert not may_start(drill("d", "Xid"), running(drill("a", "Xid")), {"Xid": 1}, 8)


def test_no_more_nodes_than_asked_for_and_four_that_start() -> None:
    """A silent drill counts as a node too."""
    silent = [drill(f"s{number}") for number in range(4)]
    assert not may_start(drill("d", "A"), running(*silent), {}, 4)
    assert may_start(drill("d", "A"), running(*silent), {}, 5)
    assert not may_start(drill("d", "A"), running(*silent, starting=True), {}, 16)


def test_a_drill_of_the_fleet_is_not_played_beside_others_of_its_alerts() -> None:
    """Its nodes raise an alert of their own each, three at once; others of that alert would be counted in."""
    fleet, width, other = drill("f", "Many", also=("Width",), nodes=3), drill("a", "Width"), drill("b", "B")
    assert may_start(fleet, running(other), {"B": 1}, 1)
    assert not may_start(fleet, running(width), {}, 8)
    assert not may_start(fleet, [], {"Width": 1}, 8)
    assert not may_start(width, running(fleet), {}, 8)
    assert may_start(other, running(fleet), {}, 8)


def test_drills_of_the_fleet_come_first_and_then_those_that_wait_for_each_other() -> None:
    """Three that share an alert that is held for ten minutes take longest of all."""
    shared = [drill(name, f"Own{name}", also=("Xid",)) for name in "xyz"]
    quick, fleet = drill("quick", "Quick"), drill("fleet", "ManyNodes", nodes=3)
    held = {"Ownx": 600.0, "Owny": 600.0, "Ownz": 600.0}
    for pace in (SHIPPED, FAST):
        names = [one.name for one in ordered([quick, fleet, *shared], held, pace)]
        assert names == ["fleet", "x", "y", "z", "quick"]


def test_an_alert_that_is_not_waited_for_takes_no_time() -> None:
    """One that looks back for an hour ends with its page."""
    long = Drill(name="long", family="", preset="h100x8", alerts=("Long",), lasts=Duration(3600))
    held = drill("held", "Held")
    assert [one.name for one in ordered([long, held], {"Held": 600.0}, SHIPPED)] == ["held", "long"]
