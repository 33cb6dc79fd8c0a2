"""Plays drills side by side, each on nodes of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from commwatch.config.simulated import node_name
from commwatch_rehearsal.drill.course import START_SECONDS, Course, Outcome, Phase
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.ending import pause
from commwatch_rehearsal.drill.node import INSTANCES, Node
from commwatch_rehearsal.drill.pace import Pace
from commwatch_rehearsal.drill.plan import Running, may_start, ordered
from commwatch_rehearsal.drill.programs import DrillError
from commwatch_rehearsal.drill.receiver import Notice
from commwatch_rehearsal.drill.stage import Stage

ALWAYS = frozenset({"CommwatchWatchdog"})
"""Alerts that always fire."""
HEALTHY = Drill(name=f"{INSTANCES}healthy", family="", preset="a10x2")
"""The neighbour of all drills: nothing may fire on it."""
_PATIENCE_SECONDS = 60.0
"""For which a server may fail to answer before the run is given up: on a busy machine one answer can be late."""


@dataclass
class _Lane:
    """One drill that is being played."""

    course: Course
    nodes: list[Node]
    said: Phase = Phase.STARTING
    notices: list[Notice] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {node.name for node in self.nodes}

    def explains(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert of the fleet is about the alerts of this drill."""
        drill = self.course.drill
        return drill.nodes > 1 and labels["alertname"] in drill.alerts and labels.get("fault", "") in {"", *drill.also}


class Rehearsal:
    def __init__(
        self, drills: Sequence[Drill], stage: Stage, *, nodes: int, seconds: float, say: Callable[[str], None]
    ) -> None:
        """Plan a run.

        Args:
            drills: what is played; those of the fleet come first.
            nodes: side by side, at most.
            seconds: within which all must be over.
            say: takes a line of progress.
        """
        self._stage = stage
        self._pace: Pace = stage.pace
        self._waiting = ordered(drills, stage.alerts, stage.pace)
        self._order = {drill.name: place for place, drill in enumerate(drills)}
        self._nodes = nodes
        self._until = time.time() + seconds
        self._say = say
        self._lanes: list[_Lane] = []
        self._outcomes: list[Outcome] = []
        self._past: dict[str, set[str]] = {}
        self._ending: list[Node] = []
        self._tidying: list[threading.Thread] = []
        self._healthy: Node | None = None
        self._silent_since: float | None = None
        self.strays: set[str] = set()
        """Alerts of the healthy neighbour, and alerts without a node that no drill of the fleet expects, with what
        they are about."""

    def run(self) -> list[Outcome]:
        """Play them all; blocks until the last is over or the time is. In the order in which they were given.

        Raises:
            DrillError: a server has not answered for a minute.
        """
        try:
            self._start_some()
            self._begin()
            while (self._waiting or self._lanes) and time.time() < self._until:
                self._start_some()
                self._look_if_answered(time.time())
                self._reap()
                pause(self._pace.look_seconds)
            self._give_up()
        except SystemExit:
            self._say("a signal has come: nodes and servers end")
            raise
        finally:
            self._end_all()
        return sorted(self._outcomes, key=lambda outcome: self._order[outcome.name])

    def _begin(self) -> None:
        """Start a healthy neighbour, on which nothing may fire, and have it scraped as the first."""
        self._healthy = Node(HEALTHY.name, HEALTHY, self._pace, self._stage.folder / HEALTHY.name)
        until = time.time() + START_SECONDS
        while not self._healthy.is_ready():
            if time.time() > until:
                raise DrillError(f"a healthy simulated node was not ready after {START_SECONDS:g} s")
            pause(self._pace.look_seconds)
        self._stage.begin(self._addresses())

    def _addresses(self) -> dict[str, str]:
        nodes = [node for lane in self._lanes for node in lane.nodes]
        everyone = nodes if self._healthy is None else [self._healthy, *nodes]
        return {node.name: node.address for node in everyone if node.address}

    def _give_up(self) -> None:
        """Nothing is left to do, or the time is over."""
        for lane in self._lanes:
            lane.course.abort("not over within the time given")
            self._outcomes.append(lane.course.outcome())
        for drill in self._waiting:
            course = Course(drill, self._pace, 0.0)
            course.abort("not begun within the time given")
            self._outcomes.append(course.outcome())
        self._waiting.clear()

    def _start_some(self) -> None:
        for drill in list(self._waiting):
            running = [Running(lane.course.drill, lane.course.phase is Phase.STARTING) for lane in self._lanes]
            past = {name: len(instances) for name, instances in self._past.items()}
            if may_start(drill, running, past, self._nodes):
                self._waiting.remove(drill)
                self._start(drill)

    def _start(self, drill: Drill) -> None:
        held = max((self._stage.alerts.get(name, 0.0) for name in drill.alerts), default=0.0)
        lane = _Lane(Course(drill, self._pace, time.time(), held, self._stage.receiver), [])
        self._lanes.append(lane)
        for place in range(drill.nodes):
            name = f"{INSTANCES}{drill.name}" + (f"-{place + 1}" if drill.nodes > 1 else "")
            lane.nodes.append(Node(name, drill, self._pace, self._stage.folder / name))

    def _look_if_answered(self, now: float) -> None:
        try:
            self._look(now)
        except DrillError as error:
            if self._silent_since is None:
                self._silent_since = now
                self._say(f"{error}; asking on for {_PATIENCE_SECONDS:g} s")
            if now - self._silent_since >= _PATIENCE_SECONDS:
                raise
        else:
            self._silent_since = None

    def _look(self, now: float) -> None:
        self._stage.set_targets(self._addresses())
        # All that may fail is asked before anything is taken in, so that nothing is lost where an answer does not come.
        scraped, alerts = self._stage.scraped(), self._stage.firing()
        firing = self._sorted([labels for labels in alerts if self._is_ours(labels)])
        for notice in self._stage.notices(now):
            if self._is_ours(notice.labels):
                self._deliver(notice)
        for lane in list(self._lanes):
            self._advance(lane, now, firing.get(id(lane), set()), scraped)

    def _is_ours(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert counts: in a given Prometheus those of real nodes do not."""
        is_simulated = labels.get("simulated") == "true" or not self._stage.is_given
        return is_simulated and labels["alertname"] not in ALWAYS

    def _lane_of(self, labels: Mapping[str, str]) -> _Lane | None:
        """Whose alert it is: the drill that has the node, or for one without a node the drill of the fleet."""
        instance = labels.get("instance", "")
        for lane in self._lanes:
            if instance in lane.names or (not instance and lane.explains(labels)):
                return lane
        return None

    def _sorted(self, alerts: Sequence[Mapping[str, str]]) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        self._past = {}
        for labels in alerts:
            lane = self._lane_of(labels)
            if lane is not None:
                found.setdefault(id(lane), set()).add(labels["alertname"])
            elif not self._stray(labels):
                self._past.setdefault(labels["alertname"], set()).add(labels.get("instance", ""))
        return found

    def _deliver(self, notice: Notice) -> None:
        lane = self._lane_of(notice.labels)
        if lane is not None:
            lane.notices.append(notice)
        else:
            self._stray(notice.labels)

    def _stray(self, labels: Mapping[str, str]) -> bool:
        """Whether it is an alert of no drill."""
        instance = labels.get("instance", "")
        if instance not in {"", HEALTHY.name}:
            return False
        about = instance or labels.get("fault", "")
        stray = f"{labels['alertname']} ({about})" if about else labels["alertname"]
        if stray not in self.strays:
            self._say(f"alert of no drill: {stray}")
            self.strays.add(stray)
        return True

    def _advance(self, lane: _Lane, now: float, firing: set[str], scraped: set[str]) -> None:
        course = lane.course
        try:
            is_ready = course.phase is Phase.STARTING and all(node.is_ready() for node in lane.nodes)
            asks = course.phase is Phase.FAULTY
            findings = [code for node in lane.nodes for code in node.findings()] if asks else []
            course.see(now, firing, lane.notices, findings)
            lane.notices = []
            action = course.step(now, ready=is_ready and lane.names <= scraped)
            for node in lane.nodes:
                if action == "begin":
                    node.begin(course.began_at)
                elif action == "finish":
                    node.finish(course.began_at, course.finished_at)
                elif course.phase is Phase.ENDING and course.drill.stopped:
                    node.is_ready()  # started again, it has another address
        except DrillError as error:
            course.abort(str(error))
        self._tell(lane)
        if course.phase is Phase.DONE:
            self._leave(lane, firing)

    def _tell(self, lane: _Lane) -> None:
        course = lane.course
        if course.phase is lane.said:
            return
        lane.said = course.phase
        drill = course.drill
        words = {
            Phase.SETTLING: f"healthy: {node_name(drill.preset)}",
            Phase.FAULTY: f"fault:   {'; '.join(drill.fault_texts)}",
            Phase.ENDING: f"paged:   {', '.join(sorted(course.paged)) or 'nobody'}; the fault ends",
        }
        if course.phase in words:
            self._say(f"{drill.name}: {words[course.phase]}")

    def _leave(self, lane: _Lane, firing: set[str]) -> None:
        """Take a drill off the stage: its nodes end, and what still fires of it counts for no drill."""
        for name in firing:  # from now on, not from the next poll: another drill may start before that
            self._past.setdefault(name, set()).update(lane.names)
        outcome = lane.course.outcome()
        self._outcomes.append(outcome)
        verdict = "passed" if outcome.passed else f"FAILED: {'; '.join(outcome.problems)}"
        self._say(f"{lane.course.drill.name}: {verdict} ({len(self._outcomes)} of {len(self._order)})")
        self._lanes.remove(lane)
        self._ending += lane.nodes
        for node in lane.nodes:
            node.ask_to_end()

    def _reap(self) -> None:
        for node in [node for node in self._ending if node.has_ended()]:
            node.end()
            self._ending.remove(node)
            tidying = threading.Thread(target=node.remove)
            tidying.start()
            self._tidying.append(tidying)

    def _end_all(self) -> None:
        nodes = [*self._ending, *(node for lane in self._lanes for node in lane.nodes)]
        nodes += [self._healthy] if self._healthy is not None else []
        for node in nodes:
            node.ask_to_end()
        for node in nodes:
            node.end()
        for tidying in self._tidying:
            tidying.join()
