"""Probe cycles by hand: what ``commwatch probe`` and ``commwatch heatmap --fresh`` run."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from commwatch.config.settings import Config, Probe
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.errors import CommwatchError, UsageError
from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.reach import gpu_paths
from commwatch.probes.by_hand.answer import Answer, Member, answer_of
from commwatch.probes.by_hand.node import NodeByHand
from commwatch.probes.by_hand.pair_matrix import first_sight
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.lock import LOCK_FILE, ProbeLock
from commwatch.probes.gate.decision import decide
from commwatch.probes.node import Prospect
from commwatch.probes.plan import CyclePlan, CycleResult, Measured, Skipped
from commwatch.probes.rank_plan import Phase, Step
from commwatch.probes.results.expected import Expected, expected_of_step
from commwatch.probes.results.records import surroundings
from commwatch.probes.workload import choose_backend, plan_cycle
from commwatch.state.directory import state_path

_SECONDS_BETWEEN_LINES = 2.0
"""Steps are reported no more often than this where each takes a line."""


Shaped: TypeAlias = Callable[[CyclePlan], CyclePlan]
"""Makes the plan of a probe into another one of the same ranks."""


class Follower(Protocol):
    """Who looks at each cycle as it ends, and may ask for it again."""

    def took(self, name: str, probe: Probe, prospect: Prospect, answer: Answer) -> None:
        """Take in what a cycle came to."""

    def again(self) -> Collection[str]:
        """After all cycles: names of the probes to measure once more."""


def run_cycles(
    config: Config,
    probes: Mapping[str, Probe],
    *,
    gpus: Sequence[int] = (),
    ignore_scheduler: bool = False,
    follower: Follower | None = None,
    shaped: Shaped | None = None,
) -> tuple[Answer, ...]:
    """Run one cycle of each probe, one after another; progress goes to standard error.

    Args:
        config: of the node.
        probes: by name.
        gpus: NVML indexes of the GPUs to use in place of those that the probes name; empty: theirs.
        ignore_scheduler: the operator says that the node is theirs.
        follower: called with each cycle; what it asks for again comes after the others.
        shaped: what to make of the plans.

    Raises:
        UsageError: one of ``gpus`` is not here.
        CommwatchError: the driver cannot be read, or SIGINT or SIGTERM came.
    """
    thresholds = load_thresholds(config.thresholds)
    return asyncio.run(_Hand(config, thresholds, ignore_scheduler, follower, shaped).run(probes, gpus))


class _Hand:
    """Runs the cycles, and ends the one under way when the command is to end."""

    def __init__(
        self,
        config: Config,
        thresholds: Thresholds,
        ignore_scheduler: bool,
        follower: Follower | None,
        shaped: Shaped | None,
    ) -> None:
        self._config = config
        self._thresholds = thresholds
        self._ignore_scheduler = ignore_scheduler
        self._follower = follower
        self._shaped = shaped
        self._signal: int | None = None
        self._ending: list[asyncio.Task[bool]] = []
        state = state_path(config)
        self._state = state
        self._launcher = Launcher(
            procfs=Path(config.paths.procfs), python=config.probes.python, lock=ProbeLock(state / LOCK_FILE)
        )

    async def run(self, probes: Mapping[str, Probe], gpus: Sequence[int]) -> tuple[Answer, ...]:
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        if here is None:
            raise RuntimeError("not in a task")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number, here)
        try:
            async with NodeByHand(self._config) as node:
                answers = await self._round(node, probes, gpus, "")
                while self._follower is not None and (names := self._follower.again()):
                    answers += await self._round(node, {name: probes[name] for name in names}, gpus, " again")
                return tuple(answers)
        except asyncio.CancelledError:
            self._check_signal()
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _round(
        self, node: NodeByHand, probes: Mapping[str, Probe], gpus: Sequence[int], word: str
    ) -> list[Answer]:  # fmt: skip
        answers = []
        for place, (name, probe) in enumerate(probes.items(), 1):
            told = f"{name}{word} ({place} of {len(probes)})" if len(probes) > 1 else f"{name}{word}"
            answers.append(await self._probe(node, name, told, probe, gpus))
            self._check_signal()
        return answers

    def _end(self, number: int, here: asyncio.Task[Any]) -> None:
        """Let a cycle give way in order; what comes before or after one is simply called off."""
        self._signal = number
        if self._launcher.running:
            self._ending.append(asyncio.create_task(self._launcher.cancel("stopping", "the command was interrupted")))
        else:
            here.cancel()

    def _check_signal(self) -> None:
        if self._signal is not None:
            raise CommwatchError("interrupted; no rank is left", 128 + self._signal)

    async def _probe(self, node: NodeByHand, name: str, told: str, probe: Probe, gpus: Sequence[int]) -> Answer:
        backend = choose_backend(probe, simulated=node.simulation is not None, driver=node.driver)
        members: tuple[ProbeGpu, ...] = () if backend == "gloo" else _chosen(node.gpus, gpus or probe.gpus, bool(gpus))
        paths = gpu_paths(node.topology(), [one.pci_bus_id for one in members]) if members else None
        plan = plan_cycle(
            name,
            probe,
            self._config.probes,
            backend=backend,
            devices=tuple(one.uuid for one in members),
            simulation=node.simulation,
            shared_links=None if paths is None else paths.shared_links,
        )
        if self._shaped is not None:
            plan = self._shaped(plan)
        result = await self._cycle(node, told, plan, _missing(members, gpus or probe.gpus))
        prospect = Prospect(plan, members, node.topology(), paths)
        answer = self._answer(prospect, probe, result, node.problems)
        if self._follower is not None:
            self._follower.took(name, probe, replace(prospect, gpus=members[: plan.ranks]), answer)
        return answer

    async def _cycle(self, node: NodeByHand, told: str, plan: CyclePlan, missing: Sequence[int]) -> CycleResult:
        if missing and plan.backend != "gloo":
            detail = f"the probe names GPU {', '.join(map(str, missing))}, which the driver does not have"
            return Skipped(finished_at=time.time(), reason="gpu_unknown", detail=detail)
        facts = await node.facts(plan, ignore_scheduler=self._ignore_scheduler)
        if skip := decide(self._config.probes.gate, plan, facts):
            return Skipped(finished_at=time.time(), reason=skip.reason, detail=skip.detail)
        self._make_state_directory()
        with progress_of(told, len(plan.steps)) as progress:
            return await self._launcher.run(plan, node.watch(plan), progress)

    def _make_state_directory(self) -> None:
        """Where the lock lies, and the daemon's state later; a failure is the lock's to tell."""
        try:
            self._state.mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError:
            return

    def _answer(self, prospect: Prospect, probe: Probe, result: CycleResult, notes: Sequence[str]) -> Answer:
        plan = prospect.plan

        def expected_of(step: Step) -> Expected | None:
            return expected_of_step(step, prospect.paths, configured=probe.expected_bandwidth, backend=plan.backend)

        matrix = None
        if isinstance(result, Measured) and plan.measure == "pairs" and not plan.shares_gpus:
            matrix = first_sight(result, plan, surroundings(prospect, probe))
        return answer_of(
            plan,
            result,
            tuple(
                Member(gpu=str(one.index), uuid=one.uuid, pci_bus_id=one.pci_bus_id, name=one.name)
                for one in prospect.gpus
            ),
            expected_of=expected_of,
            low_ratio=self._thresholds.probe_bandwidth_utilization_low_ratio,
            short_ratio=self._thresholds.probe_bandwidth_short_ratio,
            latency_limit=probe.latency_limit,
            pairs=matrix,
            firm_pairs=probe.expected_bandwidth is not None,
            notes=notes,
        )


def _chosen(gpus: Sequence[ProbeGpu], wanted: Sequence[int], by_hand: bool) -> tuple[ProbeGpu, ...]:
    """The GPUs of a probe in the order of their indexes; all where none is named."""
    if by_hand and (missing := _missing(gpus, wanted)):
        here = ", ".join(str(one.index) for one in gpus) or "none"
        raise UsageError(f"--gpus: there is no GPU {missing[0]}; there are: {here}")
    return tuple(one for one in gpus if not wanted or one.index in wanted)


def _missing(gpus: Sequence[ProbeGpu], wanted: Sequence[int]) -> list[int]:
    return sorted(set(wanted) - {one.index for one in gpus})


@contextmanager
def progress_of(name: str, steps: int) -> Iterator[Callable[[Phase, int, float], None]]:
    """Show phases and steps on standard error: one live line on a terminal, a line now and then elsewhere."""

    def words(phase: Phase, step: int) -> str:
        return f"{name}: {phase}, step {step} of {steps}" if step else f"{name}: {phase}"

    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(words("start", 0)) as status:
            yield lambda phase, step, seconds: status.update(f"{words(phase, step)} ({seconds:.1f} s)")
        return
    told = float("-inf")

    def tell(phase: Phase, step: int, seconds: float) -> None:
        nonlocal told
        if not step or seconds - told >= _SECONDS_BETWEEN_LINES:
            told = seconds
            print(f"{words(phase, step)} after {seconds:.1f} s", file=sys.stderr)

    yield tell
