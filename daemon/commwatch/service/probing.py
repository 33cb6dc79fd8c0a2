"""Runs the probes of a configuration: when each is due, asks the gate, starts the ranks, keeps the outcome."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import structlog

from commwatch.config.settings import Config, Probe
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import Thresholds
from commwatch.node.starvation import Starvation
from commwatch.node.store import Store
from commwatch.node.topology.model import Topology
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.gate.budget import expected_gpu_seconds, fits
from commwatch.probes.gate.decision import (
    GPU_SKIPS,
    SCHEDULER_SKIPS,
    GateFacts,
    decide_before_asking,
)
from commwatch.probes.node import ProbeNode, ReadNode, Seen
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, Skipped, YieldReason
from commwatch.probes.prospect import Prospect
from commwatch.probes.results.pair_record import PairRecord
from commwatch.probes.results.record import ProbeRecord
from commwatch.probes.results.records import ProbeStatus, broken_off, load_record, status_of
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


@dataclass(eq=False)
class _Probe:
    """A probe of the configuration, and what came of its turns."""

    name: str
    settings: Probe
    record: ProbeRecord
    schedule: ProbeSchedule
    skip: Skipped | None = None
    """Why the last cycle did not start; None where it did."""
    result: CycleResult | None = None
    """Of the last cycle that ran."""
    is_out_of_turn: bool = False
    """Its next cycle was brought forward because of a bad result."""
    is_searched: bool = False
    """Its consecutive bad results have already triggered a search for the faulty part."""
    is_due: bool = False
    """Its cycle runs or waits for its turn."""

    @property
    def job(self) -> str:
        """Name of the job of the scheduler that runs it."""
        return f"probe_{self.name}"

    @property
    def names_a_part(self) -> bool:
        """Whether its results name a GPU or a link."""
        return self.settings.measure in _NAME_A_PART


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
            state: where histories, the hold and the lock are.
            simulation: None on a real node.
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
        self._probes: dict[str, _Probe] = {}
        """By name."""
        self._node_skip: tuple[float, Skipped] | None = None
        """The last skip that holds for every probe, and its monotonic time."""
        self._known_stuck: Mapping[int, str] = {}
        """At the last ``refresh``."""
        self._rotation = Rotation()
        self._searched_at = float("-inf")
        """Monotonic time of the last search."""
        self._turn = asyncio.Lock()
        self._stopped = False

    def schedule(self) -> None:
        """Plan the first cycle of each probe, and show its earlier results."""
        if not self._limits.enabled or self._limits.gate == "off":
            return
        for name in self._limits.definitions:
            probe = self._probe(name)
            self._publish(probe)
            first = probe.schedule.first(probe.record.history.last_completion_at, time.time())
            self._scheduler.add(probe.job, partial(self.run, name), probe.settings.interval, delay=first)

    def _probe(self, name: str) -> _Probe:
        if name not in self._probes:
            settings = self._limits.definitions[name]
            plan = self._node.prospect(name, settings, None).plan
            record = load_record(self._state, plan, settings, self._thresholds)
            # A simulated node loads nothing that others share: its daily probes follow one another from the start.
            spread = 0.0 if self._is_simulated else FIRST_SPREAD_SECONDS
            share = node_share(socket.gethostname(), name)
            schedule = ProbeSchedule(settings.interval, self._limits.start_delay, share, first_spread=spread)
            self._probes[name] = _Probe(name, settings, record, schedule)
        return self._probes[name]

    @property
    def _pairs(self) -> tuple[_Probe, PairRecord] | None:
        """The probe that measures pairs; a configuration has one at most."""
        return next(((one, one.record) for one in self._probes.values() if isinstance(one.record, PairRecord)), None)

    async def run(self, name: str) -> None:
        """Run one cycle of a probe, or skip it, and keep the outcome."""
        probe = self._probe(name)
        probe.is_due = True
        try:
            await self._run_in_turn(probe)
        finally:
            probe.is_due = False

    async def _run_in_turn(self, probe: _Probe) -> None:
        async with self._turn:
            if self._stopped:
                return
            probe.record.adopt_plan(self._prospect(probe).plan)
            outcome = await self._outcome(probe)
            if outcome is None:
                return
            if isinstance(outcome, Skipped):
                self._skipped(probe, outcome)
            self._publish(probe)
            if isinstance(outcome, Measured):
                self._search_if_bad_in_a_row(probe)
            self._plan_next(probe, outcome)
            await asyncio.to_thread(self.save)

    async def _outcome(self, probe: _Probe) -> CycleResult | None:
        """The outcome of a probe's turn; None if the daemon stops meanwhile."""
        try:
            plan = self._prospect(probe).plan
            if skip := decide_before_asking(plan, self._facts(probe)):
                return skip.as_result(time.time())
            return self._not_free_a_moment_ago(probe, plan) or await self._cycle_if_free(probe)
        except Exception as error:  # one broken cycle must neither pass unseen nor be the last
            log.exception("a probe broke off", probe=probe.name)
            result = broken_off(error, time.time())
            probe.result, probe.skip = result, None
            probe.record.take(result, time.time())
            return result

    def _prospect(self, probe: _Probe, topology: Topology | None = None) -> Prospect:
        return self._node.prospect(probe.name, probe.settings, topology)

    async def _joined_prospect(self, probe: _Probe) -> Prospect:
        """With what lies between its GPUs."""
        plain = self._prospect(probe)
        return self._prospect(probe, await self._node.read_topology()) if plain.gpus else plain

    def _facts(self, probe: _Probe, seen: Seen | None = None, *, within_budget: bool = True) -> GateFacts:
        return replace(
            self._node.facts(probe.settings.gpus, seen),
            maintenance=self._store.maintenance or "",
            starved=self._starvation.words,
            other_backend=probe.record.other_backend,
            within_budget=within_budget,
        )

    def _not_free_a_moment_ago(self, probe: _Probe, plan: CyclePlan) -> Skipped | None:
        if self._node_skip is None or not probe.schedule.is_rare:
            return None
        asked_at, skip = self._node_skip
        if plan.backend == "gloo" and skip.reason in GPU_SKIPS:
            return None
        return skip if time.monotonic() - asked_at < NODE_SKIP_HOLDS_SECONDS else None

    async def _cycle_if_free(self, probe: _Probe) -> CycleResult | None:
        """Look at the node, and run a cycle where nothing speaks against it; None where the daemon stops meanwhile."""
        seen = await self._node.inspect(self._prospect(probe).plan)
        prospect = await self._joined_prospect(probe)
        pairs = await self._pairs_beside(probe, prospect)
        if pairs is not None:
            steps = self._rotation.due(rounds_of(pairs.plan), time.monotonic(), probe.settings.interval)
            plan = msgspec.structs.replace(prospect.plan, steps=prospect.plan.steps + steps)
            prospect = replace(prospect, plan=plan)
        plan = prospect.plan
        probe.record.adopt_plan(plan)
        # From here to the start of the ranks nothing is awaited: a pause or a stop is either seen or can cancel.
        if self._stopped:
            return None
        search = probe.is_out_of_turn and self._within_budget(probe, plan, search=True)
        facts = self._facts(probe, seen, within_budget=search or self._within_budget(probe, plan))
        result = await self._cycle(probe, prospect, facts, search=search)
        self._node_skip = None
        if isinstance(result, Skipped) and result.reason in SCHEDULER_SKIPS | GPU_SKIPS:
            self._node_skip = (time.monotonic(), result)
        if pairs is not None and isinstance(result, Measured):
            self._compare_pairs_beside(probe, pairs, result)
        return result

    async def _pairs_beside(self, probe: _Probe, prospect: Prospect) -> Prospect | None:
        """The matrix of which a cycle measures some pairs; None where it measures none.

        Those of a frequent collective do, over the same GPUs, once there is a good matrix to compare with.
        """
        found, own = self._pairs, prospect.plan
        if found is None or probe.schedule.is_rare or probe.names_a_part or own.on_host:
            return None
        other, record = found
        if not record.history.good or len(own.devices) < FEWEST_GPUS:
            return None
        pairs = await self._joined_prospect(other)
        if (pairs.plan.backend, pairs.plan.devices, pairs.plan.ranks) != (own.backend, own.devices, own.ranks):
            return None
        record.adopt_plan(pairs.plan)
        return pairs

    def _compare_pairs_beside(self, probe: _Probe, pairs: Prospect, result: Measured) -> None:
        """Have all pairs measured at once where those beside a collective are not as the last matrix shows them."""
        now, found = time.monotonic(), self._pairs
        self._rotation.measured(sum(1 for one in result.outcomes if one.step.pairs), now)
        if found is None:
            return
        other, record = found
        if not record.is_outdated_by(result, pairs, time.time()):
            return
        if now - self._searched_at >= SEARCHES_APART_SECONDS:
            self._searched_at = now
            self._bring_forward(other, because_of=probe)

    async def _cycle(self, probe: _Probe, prospect: Prospect, facts: GateFacts, *, search: bool) -> CycleResult:
        """Run the ranks, if nothing speaks against it, and take in what came of it."""
        name, record, backend, started = probe.name, probe.record, prospect.plan.backend, time.monotonic()
        try:
            result = await self._node.run(prospect.plan, facts)
        except Exception as error:  # as above; the ranks have ended, and count for the budget
            log.exception("a probe's ranks broke off", probe=name)
            result = broken_off(error, time.time(), time.monotonic() - started)
        if isinstance(result, Skipped):
            return result
        probe.result, probe.skip = result, None
        record.take(result, time.time(), prospect)
        if search and result.occupied_seconds:
            record.book_as_search()
        if isinstance(result, Measured):
            words = record.words(time.time())
            log.info("probe measured", probe=name, backend=backend, result=words,
                     setup_seconds=round(result.setup_seconds, 3),
                     occupied_seconds=round(result.occupied_seconds, 3))  # fmt: skip
        elif isinstance(result, Failed):
            log.warning("probe failed", probe=name, backend=backend, reason=result.reason, phase=result.phase,
                        rank=result.rank, device=result.device, category=result.nccl.category,
                        detail=result.detail)  # fmt: skip
        else:
            log.info("probe gave way", probe=name, reason=result.reason, detail=result.detail)
        return result

    def _skipped(self, probe: _Probe, skip: Skipped) -> None:
        probe.record.skip(skip.reason)
        if probe.skip is None or probe.skip.reason != skip.reason:
            log.info("probe skipped", probe=probe.name, reason=skip.reason, detail=skip.detail)
        probe.skip = skip

    def _plan_next(self, probe: _Probe, outcome: CycleResult) -> None:
        if self._stopped:
            return
        record, ran = probe.record, isinstance(outcome, Measured | Failed)
        # A repeat of a slow collective costs time of the search, and shows nothing new after a row of bad results
        # or, of a rare one, while the part is known.
        is_known = probe.is_searched or (probe.schedule.is_rare and self._is_explained(record))
        is_slow = isinstance(outcome, Measured) and not probe.names_a_part
        suspicious = record.suspicious and not (is_slow and is_known)
        delay = probe.schedule.after(
            ran=ran, suspicious=suspicious, now=time.monotonic(), wall=time.time(), learning=record.is_learning
        )
        if ran:
            probe.is_out_of_turn = delay == SUSPICIOUS_RETRY_SECONDS
        if delay is not None:
            self._scheduler.run_in(probe.job, delay)

    def _search_if_bad_in_a_row(self, probe: _Probe) -> None:
        """Run the probes that name a part at once, when a probe that names none has had several bad results in a row.

        They run once for each such row, and again when it is over while a part is still named, so that a repaired part
        does not stay accused until the next daily run.
        """
        record = probe.record
        if probe.names_a_part or record.is_bad_in_a_row == probe.is_searched:
            return
        now, is_explained = time.monotonic(), self._is_explained(record)
        probe.is_searched = record.is_bad_in_a_row
        if probe.is_searched:
            if is_explained or now - self._searched_at < SEARCHES_APART_SECONDS:
                return
            self._searched_at = now
        elif not is_explained:
            return
        for other in self._probes.values():
            if other.names_a_part and other.record.history.backend == record.history.backend:
                self._bring_forward(other, because_of=probe)

    def _is_explained(self, record: ProbeRecord) -> bool:
        """Whether the last matrix of pairs over the same backend already explains the slowness."""
        if self._pairs is None:
            return False
        _, pairs = self._pairs
        return pairs.history.backend == record.history.backend and pairs.explains_slowness(time.time())

    def _bring_forward(self, probe: _Probe, *, because_of: _Probe) -> None:
        """Have a probe run as soon as no other does, if the node is free then."""
        log.info("probe brought forward", probe=probe.name, because_of=because_of.name)
        probe.is_out_of_turn = True
        self._scheduler.run_in(probe.job, 0.0)

    def _within_budget(self, probe: _Probe, plan: CyclePlan, *, search: bool = False) -> bool:
        return fits(
            [cycle for one in self._probes.values() for cycle in one.record.history.occupied],
            expected=expected_gpu_seconds(probe.record.history.occupied, plan.gpus, len(plan.steps)),
            limit=self._limits.occupancy_limit,
            gpus=len(self._node.gpus) if plan.gpus else 0,
            now=time.time(),
            reserved=0.0 if probe.schedule.is_rare else self._waiting_for_budget(),
            search=search,
        )

    def _waiting_for_budget(self) -> float:
        """GPU seconds of the rare probes that were skipped for the budget: frequent ones leave room for them."""
        waiting = [
            (one.record.history.occupied, self._prospect(one).plan)
            for one in self._probes.values()
            if one.schedule.is_rare and one.skip is not None and one.skip.reason == "budget"
        ]
        return sum(expected_gpu_seconds(occupied, plan.gpus, len(plan.steps)) for occupied, plan in waiting)

    # --- what others see and ask ---

    def _publish(self, probe: _Probe) -> None:
        readings = probe.record.readings(time.time())
        shown = {(metric, labels): value for metric, labels, value in readings}
        self._store.show("probes", probe.name, shown, time.monotonic())

    def refresh(self) -> None:
        """Show the current state: results age, and ranks come back from the kernel."""
        for probe in self._probes.values():
            self._publish(probe)
        stuck = self._node.launcher.stuck
        for pid in self._known_stuck.keys() - stuck.keys():
            log.info("a stuck rank has ended", pid=pid, device=self._known_stuck[pid])
        self._known_stuck = stuck

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
        """Write the histories that have changed; a failure is logged and tried again at the next time."""
        for probe in [*self._probes.values()]:
            try:
                self._state.save(f"probe-{probe.name}", probe.record.history)
            except OSError as error:
                log.error("a probe's history cannot be saved", probe=probe.name, error=str(error))

    def accept(self) -> list[str]:
        """Take what is lost as the level from now on; returns what is given up, in sentences."""
        given_up = [line for probe in self._probes.values() for line in probe.record.accept()]
        for sentence in given_up:
            log.warning("accepted", what=sentence)
        self.refresh()
        return given_up

    def losses(self) -> list[str]:
        """The open losses of the probes, in sentences."""
        return [line for probe in self._probes.values() for line in probe.record.loss_sentences()]

    def status(self, now: float) -> list[ProbeStatus]:
        """The probes for the node's page, at seconds since 1970."""
        return [self._status(probe, now) for probe in self._probes.values()]

    def last_pairs(self, now: float) -> PairMatrix | None:
        """The last matrix of pairs, with its suspects; None before the first, or where it is too old by now."""
        return None if self._pairs is None else self._pairs[1].current_matrix(now)

    def pairs_probe(self, now: float) -> ProbeStatus | None:
        """The probe that measures pairs; None where none does."""
        return None if self._pairs is None else self._status(self._pairs[0], now)

    def _status(self, probe: _Probe, now: float) -> ProbeStatus:
        planned = now if probe.is_due else self._scheduler.next_run(probe.job)
        return status_of(
            probe.name, probe.record, now, result=probe.result, skip=probe.skip, next_run_at=planned
        )  # fmt: skip
