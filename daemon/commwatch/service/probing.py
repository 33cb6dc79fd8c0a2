"""Runs the probes of a configuration: when each is due, asks the gate, starts the ranks, keeps the outcome."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from functools import partial

import msgspec
import structlog

from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import Thresholds
from commwatch.node.starvation import Starvation
from commwatch.node.store import Store
from commwatch.node.topology.model import Topology
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.cycle.launch import StuckRank
from commwatch.probes.gate.budget import expected_gpu_seconds, fits
from commwatch.probes.gate.decision import (
    GPU_SKIPS,
    SCHEDULER_SKIPS,
    GateFacts,
    decide_before_asking,
)
from commwatch.probes.node import ProbeNode, Prospect, ReadNode, Seen
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, Skipped, YieldReason
from commwatch.probes.results.pair_record import PairRecord, surroundings
from commwatch.probes.results.record import ProbeRecord
from commwatch.probes.results.records import Known, ProbeStatus, broken_off, load_record, status_of
from commwatch.probes.schedule import (
    FEWEST_GPUS,
    FIRST_SPREAD_SECONDS,
    SUSPICIOUS_RETRY_SECONDS,
    ProbeSchedule,
    Rotation,
    node_share,
    rounds_of,
)
from commwatch.service.scheduling import Scheduler
from commwatch.state.directory import StateDirectory

log = structlog.get_logger("commwatch.probing")

_NAME_A_PART = ("pairs", "host_copies")
"""Measures that identify a single GPU or link."""
SEARCHES_APART_SECONDS = 3600.0
"""A node on which one collective after the other is slow is searched once, and not for each of them."""
NODE_SKIP_HOLDS_SECONDS = 60.0
"""Busy nodes are not re-checked for another rare probe within this time."""


class Probing:
    """All probes of a node; one cycle at a time."""

    def __init__(
        self,
        settings: Config,
        thresholds: Thresholds,
        state: StateDirectory,
        store: Store,
        scheduler: Scheduler,
        simulation: SimulationPlan | None,
        read: ReadNode,
        starvation: Starvation,
    ) -> None:
        """Nothing is planned or read.

        Args:
            settings: the whole configuration.
            thresholds: in force.
            state: where histories, the hold and the lock are.
            store: takes what is known of the probes, and has what the collectors know.
            scheduler: runs the cycles.
            simulation: the simulated node; None on a real one.
            read: asks the collectors for more than their cadence gives.
            starvation: no probe starts on a starved node, and ranks that were too slow on one have not failed.
        """
        self._limits = settings.probes
        self._thresholds = thresholds
        self._state = state
        self._store = store
        self._scheduler = scheduler
        self._is_simulated = simulation is not None
        self._node = ProbeNode(settings, store, state.path, simulation, read, starvation)
        self._starvation = starvation
        self._records: dict[str, ProbeRecord] = {}
        self._schedules: dict[str, ProbeSchedule] = {}
        self._last_skip: dict[str, Skipped | None] = {}
        self._last_result: dict[str, CycleResult] = {}
        self._node_skip: tuple[float, Skipped] | None = None
        """The last skip that holds for every probe, and its monotonic time."""
        self._known_stuck: tuple[StuckRank, ...] = ()
        """At the last ``refresh``."""
        self._out_of_turn: set[str] = set()
        """Probes whose next cycle was brought forward because of a bad result."""
        self._searched: set[str] = set()
        """Probes whose consecutive bad results have already triggered a search for the faulty part."""
        self._rotation = Rotation()
        self._searched_at = float("-inf")
        """Monotonic time of the last search."""
        self._turn = asyncio.Lock()
        self._due: set[str] = set()
        """Probes whose cycle runs or waits for its turn."""
        self._maintenance = ""
        self._stopped = False

    def schedule(self) -> None:
        """Plan the first cycle of each probe, and show its earlier results."""
        if not self._limits.enabled or self._limits.gate == "off":
            return
        for name, probe in self._limits.definitions.items():
            record = self._record(name, self._prospect(name))
            self._publish(name)
            first = self._schedule(name).first(record.history.last_completion_at, time.time())
            self._scheduler.add(_job(name), partial(self.run, name), probe.interval, delay=first)

    def _schedule(self, name: str) -> ProbeSchedule:
        if name not in self._schedules:
            interval, host = self._limits.definitions[name].interval, socket.gethostname()
            # A simulated node loads nothing that others share: its daily probes follow one another from the start.
            spread = 0.0 if self._is_simulated else FIRST_SPREAD_SECONDS
            share = node_share(host, name)
            self._schedules[name] = ProbeSchedule(interval, self._limits.start_delay, share, first_spread=spread)
        return self._schedules[name]

    async def run(self, name: str) -> None:
        """Run one cycle of a probe, or skip it, and keep the outcome."""
        self._due.add(name)
        try:
            await self._run_in_turn(name)
        finally:
            self._due.discard(name)

    async def _run_in_turn(self, name: str) -> None:
        async with self._turn:
            if self._stopped:
                return
            record = self._record(name, self._prospect(name))
            outcome = await self._outcome(name, record)
            if outcome is None:
                return
            if isinstance(outcome, Skipped):
                self._skipped(name, record, outcome)
            self._publish(name)
            if isinstance(outcome, Measured):
                self._search_if_bad_in_a_row(name, record)
            self._plan_next(name, record, outcome)
            await asyncio.to_thread(self.save)

    async def _outcome(self, name: str, record: ProbeRecord) -> CycleResult | None:
        """The outcome of a probe's turn; None if the daemon stops meanwhile."""
        try:
            plan = self._prospect(name).plan
            if skip := decide_before_asking(self._limits.gate, plan, self._facts(name, record)):
                return skip.as_result(time.time())
            return self._not_free_a_moment_ago(name, plan) or await self._cycle_if_free(name, record)
        except Exception as error:  # one broken cycle must neither pass unseen nor be the last
            log.exception("a probe broke off", probe=name)
            result = broken_off(error, time.time())
            self._last_result[name], self._last_skip[name] = result, None
            record.apply(result, {}, (), time.time())
            return result

    def _prospect(self, name: str, topology: Topology | None = None) -> Prospect:
        return self._node.prospect(name, self._limits.definitions[name], topology)

    async def _joined_prospect(self, name: str) -> Prospect:
        """With what lies between its GPUs."""
        plain = self._prospect(name)
        return self._prospect(name, await self._node.read_topology()) if plain.gpus else plain

    def _facts(
        self, name: str, record: ProbeRecord, seen: Seen | None = None, *, within_budget: bool = True
    ) -> GateFacts:  # fmt: skip
        return self._node.facts(
            self._limits.definitions[name].gpus,
            seen,
            maintenance=self._maintenance,
            starved=self._starvation.words,
            other_backend=record.other_backend,
            within_budget=within_budget,
        )

    def _not_free_a_moment_ago(self, name: str, plan: CyclePlan) -> Skipped | None:
        if self._node_skip is None or not self._schedule(name).is_rare:
            return None
        asked_at, skip = self._node_skip
        if plan.backend == "gloo" and skip.reason in GPU_SKIPS:
            return None
        return skip if time.monotonic() - asked_at < NODE_SKIP_HOLDS_SECONDS else None

    async def _cycle_if_free(self, name: str, record: ProbeRecord) -> CycleResult | None:
        """Look at the node, and run a cycle where nothing speaks against it; None where the daemon stops meanwhile."""
        seen = await self._node.inspect(self._prospect(name).plan)
        prospect = await self._joined_prospect(name)
        pairs = await self._pairs_beside(name, prospect)
        if pairs is not None:
            steps = self._rotation.due(rounds_of(pairs.plan), time.monotonic(), self._schedule(name).interval)
            plan = msgspec.structs.replace(prospect.plan, steps=prospect.plan.steps + steps)
            prospect = replace(prospect, plan=plan)
        record.adopt_plan(prospect.plan)
        # From here to the start of the ranks nothing is awaited: a pause or a stop is either seen or can cancel.
        if self._stopped:
            return None
        plan = prospect.plan
        search = name in self._out_of_turn and self._within_budget(name, record, plan, search=True)
        facts = self._facts(name, record, seen, within_budget=search or self._within_budget(name, record, plan))
        result = await self._cycle(name, prospect, record, facts, search=search)
        self._node_skip = None
        if isinstance(result, Skipped) and result.reason in SCHEDULER_SKIPS | GPU_SKIPS:
            self._node_skip = (time.monotonic(), result)
        if pairs is not None and isinstance(result, Measured):
            self._compare_pairs_beside(name, pairs, result)
        return result

    async def _pairs_beside(self, name: str, prospect: Prospect) -> Prospect | None:
        """The matrix of which a cycle measures some pairs; None where it measures none.

        Those of a frequent collective do, over the same GPUs, once there is a good matrix to compare with.
        """
        other = next((one for one, record in self._records.items() if isinstance(record, PairRecord)), None)
        if other is None or self._schedule(name).is_rare or self._names_a_part(name) or prospect.plan.on_host:
            return None
        record, devices = self._records[other], prospect.plan.devices
        if not isinstance(record, PairRecord) or not record.history.good or len(devices) < FEWEST_GPUS:
            return None
        pairs = await self._joined_prospect(other)
        if (pairs.plan.backend, pairs.plan.devices, pairs.plan.ranks) != (
            prospect.plan.backend, devices, prospect.plan.ranks
        ):  # fmt: skip
            return None
        record.adopt_plan(pairs.plan)
        return pairs

    def _compare_pairs_beside(self, name: str, pairs: Prospect, result: Measured) -> None:
        """Have all pairs measured at once where those beside a collective are not as the last matrix shows them."""
        self._rotation.measured(sum(1 for one in result.outcomes if one.step.pairs), time.monotonic())
        other = pairs.plan.probe
        record, around = self._records[other], surroundings(pairs, self._limits.definitions[other])
        now = time.monotonic()
        if not isinstance(record, PairRecord) or not record.is_outdated_by(result, around, time.time()):
            return
        if now - self._searched_at >= SEARCHES_APART_SECONDS:
            self._searched_at = now
            self._bring_forward(other, why=name)

    async def _cycle(
        self, name: str, prospect: Prospect, record: ProbeRecord, facts: GateFacts, *, search: bool
    ) -> CycleResult:
        """Run the ranks, if nothing speaks against it, and take in what came of it."""
        plan, started = prospect.plan, time.monotonic()
        try:
            result = await self._node.run(plan, facts)
        except Exception as error:  # as above; the ranks have ended, and count for the budget
            log.exception("a probe's ranks broke off", probe=name)
            result = broken_off(error, time.time(), time.monotonic() - started)
        if isinstance(result, Skipped):
            return result
        self._last_result[name] = result
        self._last_skip[name] = None
        record.take(result, prospect, time.time())
        if search and result.occupied_seconds:
            record.book_as_search()
        if isinstance(result, Measured):
            words = record.words(time.time())
            log.info("probe measured", probe=name, backend=plan.backend, result=words,
                     setup_seconds=round(result.setup_seconds, 3),
                     occupied_seconds=round(result.occupied_seconds, 3))  # fmt: skip
        elif isinstance(result, Failed):
            log.warning("probe failed", probe=name, backend=plan.backend, reason=result.reason, phase=result.phase,
                        rank=result.rank, device=result.device, category=result.nccl.category,
                        detail=result.detail)  # fmt: skip
        else:
            log.info("probe gave way", probe=name, reason=result.reason, detail=result.detail)
        return result

    def _skipped(self, name: str, record: ProbeRecord, skip: Skipped) -> None:
        record.skip(skip.reason)
        known = self._last_skip.get(name)
        if known is None or known.reason != skip.reason:
            log.info("probe skipped", probe=name, reason=skip.reason, detail=skip.detail)
        self._last_skip[name] = skip

    def _plan_next(self, name: str, record: ProbeRecord, outcome: CycleResult) -> None:
        if self._stopped:
            return
        schedule, ran = self._schedule(name), isinstance(outcome, Measured | Failed)
        # A repeat of a slow collective costs time of the search, and shows nothing new after a row of bad results
        # or, of a rare one, while the part is known.
        is_known = name in self._searched or (schedule.is_rare and self._is_explained(record))
        is_slow = isinstance(outcome, Measured) and not self._names_a_part(name)
        suspicious = record.suspicious and not (is_slow and is_known)
        delay = schedule.after(
            ran=ran, suspicious=suspicious, now=time.monotonic(), wall=time.time(), learning=record.is_learning
        )
        if ran:
            self._out_of_turn.discard(name)
        if delay is not None:
            self._scheduler.run_in(_job(name), delay)
            if ran and delay == SUSPICIOUS_RETRY_SECONDS:
                self._out_of_turn.add(name)

    def _search_if_bad_in_a_row(self, name: str, record: ProbeRecord) -> None:
        """Run the probes that name a part at once, when a probe that names none has had several bad results in a row.

        They run once for each such row, and again when it is over while a part is still named, so that a repaired part
        does not stay accused until the next daily run.
        """
        if self._names_a_part(name) or record.is_bad_in_a_row == (name in self._searched):
            return
        now, is_explained = time.monotonic(), self._is_explained(record)
        if record.is_bad_in_a_row:
            self._searched.add(name)
            if is_explained or now - self._searched_at < SEARCHES_APART_SECONDS:
                return
            self._searched_at = now
        else:
            self._searched.discard(name)
            if not is_explained:
                return
        for other, known in self._records.items():
            if self._names_a_part(other) and known.history.backend == record.history.backend:
                self._bring_forward(other, why=name)

    def _names_a_part(self, name: str) -> bool:
        return self._limits.definitions[name].measure in _NAME_A_PART

    def _is_explained(self, record: ProbeRecord) -> bool:
        """Whether the last matrix of pairs over the same backend already explains the slowness."""
        now, backend = time.time(), record.history.backend
        pairs = [one for one in self._records.values() if isinstance(one, PairRecord)]
        return any(one.history.backend == backend and one.explains_slowness(now) for one in pairs)

    def _bring_forward(self, name: str, *, why: str) -> None:
        """Have a probe run as soon as no other does, if the node is free then."""
        log.info("probe brought forward", probe=name, because_of=why)
        self._out_of_turn.add(name)
        self._scheduler.run_in(_job(name), 0.0)

    def _record(self, name: str, prospect: Prospect) -> ProbeRecord:
        record = self._records.get(name)
        if record is None:
            probe = self._limits.definitions[name]
            record = self._records[name] = load_record(self._state, prospect.plan, probe, self._thresholds)
        else:
            record.adopt_plan(prospect.plan)
        return record

    def _within_budget(self, name: str, record: ProbeRecord, plan: CyclePlan, *, search: bool = False) -> bool:
        return fits(
            [cycle for one in self._records.values() for cycle in one.history.occupied],
            expected=expected_gpu_seconds(record.history.occupied, plan.gpus, len(plan.steps)),
            limit=self._limits.occupancy_limit,
            gpus=len(self._node.gpus) if plan.gpus else 0,
            now=time.time(),
            reserved=0.0 if self._schedule(name).is_rare else self._waiting_for_budget(),
            search=search,
        )

    def _waiting_for_budget(self) -> float:
        """GPU seconds of the rare probes that were skipped for the budget: frequent ones leave room for them."""
        waiting = [name for name, skip in self._last_skip.items() if skip is not None and skip.reason == "budget"]
        rare = [(self._records[name], self._prospect(name).plan) for name in waiting
                  if self._schedule(name).is_rare]  # fmt: skip
        return sum(expected_gpu_seconds(one.history.occupied, plan.gpus, len(plan.steps)) for one, plan in rare)

    # --- what others see and ask ---

    def _publish(self, name: str) -> None:
        readings = self._records[name].readings(time.time())
        shown = {(metric, labels): value for metric, labels, value in readings}
        self._store.show("probes", name, shown, time.monotonic())

    def refresh(self) -> None:
        """Show the current state: results age, and ranks come back from the kernel."""
        for name in self._records:
            self._publish(name)
        stuck = self._node.launcher.stuck_ranks
        for rank in set(self._known_stuck).difference(stuck):
            log.info("a stuck rank has ended", pid=rank.pid, device=rank.device)
        self._known_stuck = stuck

    def pause(self, reason: str) -> None:
        """Start no cycle until ``resume``."""
        self._maintenance = reason

    def resume(self) -> None:
        """Cycles may start again."""
        self._maintenance = ""

    async def cancel(self, reason: YieldReason, detail: str) -> bool:
        """Cancel a running cycle within two seconds; False if a rank is stuck."""
        return await self._node.launcher.cancel(reason, detail)

    async def stop(self) -> None:
        """Start no cycle any more, end the one under way, and keep what came of it."""
        self._stopped = True
        await self.cancel("stopping", "the daemon stops")
        async with self._turn:
            return

    def pids(self) -> list[int]:
        """Rank processes that are still there, stuck ones included."""
        return [*self._node.launcher.pids, *self._node.launcher.stuck]

    def take_over(self, earlier: Probing) -> None:
        """Count the stuck rank processes of an earlier configuration among ours."""
        self._node.launcher.take_over(earlier._node.launcher)

    @property
    def stuck_count(self) -> int:
        """Rank processes of earlier cycles that sit in the kernel."""
        return len(self._node.launcher.stuck)

    def save(self) -> None:
        """Write the histories; a failure is logged and tried again at the next time."""
        for name, record in list(self._records.items()):
            try:
                self._state.save(f"probe-{name}", record.history)
            except OSError as error:
                log.error("a probe's history cannot be saved", probe=name, error=str(error))

    def accept(self) -> list[str]:
        """Take what is lost as the level from now on; returns what is given up, in sentences."""
        given_up = [line for record in self._records.values() for line in record.accept()]
        for sentence in given_up:
            log.warning("accepted", what=sentence)
        self.refresh()
        return given_up

    def losses(self) -> list[str]:
        """The open losses of the probes, in sentences."""
        return [line for record in self._records.values() for line in record.loss_sentences()]

    def status(self, now: float) -> list[ProbeStatus]:
        """The probes for the node's page.

        Args:
            now: wall clock seconds since 1970.
        """
        return [self._status(name, record, now) for name, record in self._records.items()]

    def last_pairs(self, now: float) -> PairMatrix | None:
        """The newest matrix of pairs, with its suspects; None before the first, or where it is too old.

        Args:
            now: wall clock seconds since 1970.
        """
        found = [one.current_matrix(now) for one in self._records.values() if isinstance(one, PairRecord)]
        return max((one for one in found if one is not None), key=lambda one: one.taken_at, default=None)

    def pairs_probe(self, now: float) -> ProbeStatus | None:
        """The probe that measures pairs; None where none does.

        Args:
            now: wall clock seconds since 1970.
        """
        found = (self._status(name, one, now) for name, one in self._records.items() if isinstance(one, PairRecord))
        return next(found, None)

    def _status(self, name: str, record: ProbeRecord, now: float) -> ProbeStatus:
        planned = now if name in self._due else self._scheduler.next_run(_job(name))
        known = Known(self._last_result.get(name), self._last_skip.get(name), planned)
        return status_of(name, record, known, now)


def _job(name: str) -> str:
    return f"probe_{name}"
