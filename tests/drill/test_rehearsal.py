"""Drills side by side, on nodes and a stage that are scripted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from commwatch_rehearsal.drill import rehearsal
from commwatch_rehearsal.drill.course import Outcome
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.pace import Pace
from commwatch_rehearsal.drill.programs import DrillError
from commwatch_rehearsal.drill.receiver import Notice
from support.waiting import PATIENCE_SECONDS

QUICK = Pace("fast", 1500, 1500, learn_seconds=0, probe_seconds=0, look_seconds=0.002, paging_factor=1500)
"""A minute in 40 ms."""
LOST = Drill(
    name="gpu_lost", family="GPU", preset="h100x8", faults=({"fault": "gpu_lost"},), alerts=("CommwatchGpuLost",)
)
DOWN = Drill(name="nvlink_down", family="NVLink", preset="h100x8", faults=LOST.faults, alerts=("CommwatchNvlinkDown",))


class ScriptedNode:
    """A node whose alert fires while its fault lasts."""

    everyone: list[ScriptedNode] = []  # noqa: RUF012 - emptied by the fixture
    broken = ""
    """Name of a node whose daemon ends at once."""

    def __init__(self, name: str, drill: Drill, pace: Pace, folder: Path) -> None:
        del pace, folder
        self.name, self.address = name, "127.0.0.1:1"
        self.alerts = drill.alerts
        self.faulty = self.ended = False
        self.everyone.append(self)

    def is_ready(self) -> bool:
        if self.name == self.broken:
            raise DrillError("the daemon ended")
        return True

    def begin(self, at: float) -> None:
        del at
        self.faulty = True

    def finish(self, since: float, at: float) -> None:
        del since, at
        self.faulty = False

    def findings(self) -> list[str]:
        return []

    def ask_to_end(self) -> None:
        self.faulty = False

    def has_ended(self) -> bool:
        return True

    def end(self) -> None:
        self.ended = True

    def remove(self) -> None:
        assert self.ended


class ScriptedStage:
    """Prometheus and Alertmanager that tell what fires on the nodes, and ``others`` all the time."""

    pace = QUICK
    receiver = "drill"
    folder = Path("/nonexistent")

    def __init__(self, *others: Mapping[str, str], mute: bool = False, is_given: bool = False) -> None:
        self.alerts: dict[str, float] = {}
        self.is_given = is_given
        self._others = others
        self._mute = mute
        self._told: dict[tuple[str, str], bool] = {}
        self.looks = 0
        self.silent: range = range(0)
        """The looks at which there is no answer."""

    def begin(self, addresses: Mapping[str, str]) -> None:
        assert next(iter(addresses)) == rehearsal.HEALTHY.name

    def set_targets(self, addresses: Mapping[str, str]) -> None:
        self._targets = addresses

    def scraped(self) -> set[str]:
        self.looks += 1
        if self.looks in self.silent:
            raise DrillError("Prometheus does not answer")
        return set(self._targets)

    def firing(self) -> list[Mapping[str, str]]:
        if self._mute:
            return list(self._others)
        nodes = [node for node in ScriptedNode.everyone if node.faulty]
        return [*self._others, *(_alert(name, node.name) for node in nodes for name in node.alerts)]

    def notices(self, now: float) -> list[Notice]:
        firing = {(one["alertname"], one.get("instance", "")) for one in self.firing()}
        before = {alert for alert, is_firing in self._told.items() if is_firing}
        self._told |= dict.fromkeys(firing, True) | dict.fromkeys(before - firing, False)
        begun = [Notice("drill", now, False, _alert(*one), now) for one in firing - before]
        return begun + [Notice("drill", now, True, _alert(*one), now) for one in before - firing]


def _alert(name: str, instance: str) -> dict[str, str]:
    """The labels of an alert; what the nodes of drills raise is simulated."""
    simulated = {"simulated": "true"} if instance.startswith("drill-") else {}
    return {"alertname": name, "instance": instance, **simulated}


@pytest.fixture(autouse=True)
def _scripted_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "Node", ScriptedNode)
    monkeypatch.setattr(ScriptedNode, "everyone", [])


def play(
    stage: ScriptedStage, *drills: Drill, seconds: float = PATIENCE_SECONDS
) -> tuple[dict[str, Outcome], set[str]]:
    """What came of drills, and the alerts of none."""
    run = rehearsal.Rehearsal(drills, stage, nodes=4, seconds=seconds, say=lambda _: None)  # type: ignore[arg-type]
    outcomes = run.run()
    assert [outcome.name for outcome in outcomes] == [drill.name for drill in drills]
    assert all(node.ended for node in ScriptedNode.everyone)
    return {outcome.name: outcome for outcome in outcomes}, run.strays


def test_each_drill_takes_the_alerts_of_its_own_node() -> None:
    """Two side by side pass, and both nodes and the healthy one end."""
    outcomes, strays = play(ScriptedStage(), LOST, DOWN)
    assert all(outcome.passed for outcome in outcomes.values()), outcomes
    assert outcomes["gpu_lost"].received == ("CommwatchGpuLost",)
    assert strays == set()
    assert len(ScriptedNode.everyone) == 3


def test_alerts_of_the_healthy_node_and_of_no_node_are_strays() -> None:
    """What always fires is none, nor is what is still told of a node that is gone."""
    others = (
        {"alertname": "CommwatchDataStale", "instance": rehearsal.HEALTHY.name},
        {"alertname": "CommwatchDaemonAbsent"},
        {"alertname": "CommwatchWatchdog"},
        {"alertname": "CommwatchXidFabric", "instance": "drill-gone"},
    )
    outcomes, strays = play(ScriptedStage(*others), LOST)
    assert strays == {"CommwatchDataStale (drill-healthy)", "CommwatchDaemonAbsent"}
    assert outcomes["gpu_lost"].passed


def test_an_alert_that_outlasts_its_drill_keeps_others_waiting() -> None:
    """From the moment at which the drill is over, so that never more than two nodes have the alert."""

    class Lingering(ScriptedStage):
        """A sign that goes on after the drills that do not wait for it."""

        most = 0
        until: dict[str, float]

        def firing(self) -> list[Mapping[str, str]]:
            for node in ScriptedNode.everyone:
                if node.faulty:
                    self.until[node.name] = time.monotonic() + 0.5
            lingering = [name for name, until in self.until.items() if time.monotonic() < until]
            self.most = max(self.most, len(lingering))
            return [*super().firing(), *(_alert("Xid", name) for name in lingering)]

    stage = Lingering()
    stage.until = {}
    drills = [
        msgspec.structs.replace(LOST, name=name, also=("Xid",)) for name in ("first", "second", "third", "fourth")
    ]
    outcomes, _ = play(stage, *drills)
    assert all(outcome.passed for outcome in outcomes.values()), outcomes
    assert stage.most == 2


def test_alerts_of_real_nodes_count_for_nothing() -> None:
    """In a given Prometheus: neither as strays, nor as nodes beside which a drill must wait."""
    real = [{"alertname": "CommwatchGpuLost", "instance": f"node{number}"} for number in range(3)]
    stage = ScriptedStage({"alertname": "CommwatchFaultOnManyNodes"}, *real, is_given=True)
    outcomes, strays = play(stage, LOST)
    assert outcomes["gpu_lost"].passed, outcomes
    assert strays == set()


def test_a_fault_on_many_nodes_belongs_to_the_drill_of_the_fleet() -> None:
    """By the alert that it counts; one that counts another alert belongs to none."""
    fleet = Drill(
        name="many", family="Fleet", preset="a10x2", faults=LOST.faults, alerts=("Many",), also=("Width",), nodes=3
    )  # fmt: skip
    _, strays = play(ScriptedStage({"alertname": "Many", "fault": "Width"}), fleet, seconds=0.3)
    assert strays == set()
    _, strays = play(ScriptedStage({"alertname": "Many", "fault": "Down"}), fleet, seconds=0.3)
    assert strays == {"Many (Down)"}


def test_a_node_that_ends_fails_its_drill_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason."""
    monkeypatch.setattr(ScriptedNode, "broken", "drill-gpu_lost")
    outcomes, _ = play(ScriptedStage(), LOST, DOWN)
    assert outcomes["gpu_lost"].problems == ("the daemon ended",)
    assert outcomes["nvlink_down"].passed


def test_what_is_not_over_in_time_fails() -> None:
    """What has begun, and what has not: two others of the same alert were before it."""
    drills = [Drill(name=name, family="", preset="h100x8", faults=LOST.faults, alerts=LOST.alerts) for name in "abc"]
    outcomes, _ = play(ScriptedStage(mute=True), *drills, seconds=0.2)
    assert [outcomes[name].problems[0] for name in "abc"] == [
        "not over within the time given", "not over within the time given", "not begun within the time given",
    ]  # fmt: skip


def test_an_answer_that_does_not_come_is_asked_for_again() -> None:
    """A late answer among thousands does not end a run of an hour."""
    stage = ScriptedStage()
    stage.silent = range(5, 8)
    outcomes, _ = play(stage, LOST)
    assert outcomes["gpu_lost"].passed, outcomes
    assert stage.looks > 8


def test_a_server_that_is_gone_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time, with every node ended."""
    monkeypatch.setattr(rehearsal, "_PATIENCE_SECONDS", 0.05)
    stage = ScriptedStage()
    stage.silent = range(5, 10**6)
    with pytest.raises(DrillError, match="does not answer"):
        play(stage, LOST)
    assert all(node.ended for node in ScriptedNode.everyone)
