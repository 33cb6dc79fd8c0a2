"""Probe cycles by hand: what ``commwatch probe`` and ``commwatch heatmap --fresh`` run."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import msgspec

from commwatch.config.settings import Config, Probe
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.errors import CommwatchError, UsageError
from commwatch.node.gpus_now import ProbeGpu
from commwatch.probes.by_hand.answer import Answer, answer_of
from commwatch.probes.by_hand.node import NodeByHand, node_by_hand
from commwatch.probes.by_hand.pair_matrix import first_sight
from commwatch.probes.plan import CyclePlan, Measured
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import Phase

Shaped: TypeAlias = Callable[[CyclePlan], CyclePlan]
"""Makes the plan of a probe into another one of the same ranks."""


class Follower(Protocol):
    """Receives each cycle's result as it ends, and may request the cycle again."""

    def took(self, name: str, probe: Probe, prospect: Prospect, answer: Answer) -> None:
        """Receive the result of a cycle."""

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
        gpus: NVML indexes of the GPUs to use in place of those that the probes name; empty: theirs.
        ignore_scheduler: the operator says that the node is theirs.
        follower: called with each cycle; what it asks for again comes after the others.

    Raises:
        UsageError: one of ``gpus`` is not here.
        CommwatchError: the driver cannot be read, or SIGINT or SIGTERM came.
    """
    hand = _Hand(config, load_thresholds(config.thresholds), gpus, ignore_scheduler, follower, shaped)
    return asyncio.run(hand.run(probes))


@dataclass
class _Hand:
    """Runs the cycles, and ends the one under way when the command is to end."""

    config: Config
    thresholds: Thresholds
    gpus: Sequence[int]
    ignore_scheduler: bool
    follower: Follower | None
    shaped: Shaped | None
    node: NodeByHand | None = None
    """While it is open."""
    ended_by: int | None = None
    """The signal that ends the command."""
    ending: list[asyncio.Task[bool]] = field(default_factory=list)

    async def run(self, probes: Mapping[str, Probe]) -> tuple[Answer, ...]:
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        if here is None:
            raise RuntimeError("not in a task")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number, here)
        try:
            async with node_by_hand(self.config) as self.node:
                answers = await self._round(self.node, probes, "")
                while self.follower is not None and (names := self.follower.again()):
                    answers += await self._round(self.node, {name: probes[name] for name in names}, " again")
                return tuple(answers)
        except asyncio.CancelledError:
            self._check_signal()
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _round(self, node: NodeByHand, probes: Mapping[str, Probe], word: str) -> list[Answer]:
        answers = []
        for place, (name, probe) in enumerate(probes.items(), 1):
            shown = f"{name}{word} ({place} of {len(probes)})" if len(probes) > 1 else f"{name}{word}"
            answers.append(await self._probe(node, name, shown, probe))
            self._check_signal()
        return answers

    def _end(self, number: int, here: asyncio.Task[Any]) -> None:
        """End a cycle in order if its ranks run; before or after that, only cancel its task."""
        self.ended_by = number
        if self.node is not None and (launcher := self.node.probes.launcher).running:
            self.ending.append(asyncio.create_task(launcher.cancel("stopping", "the command was interrupted")))
        else:
            here.cancel()

    def _check_signal(self) -> None:
        if self.ended_by is not None:
            raise CommwatchError("interrupted; no rank is left", 128 + self.ended_by)

    async def _probe(self, node: NodeByHand, name: str, shown: str, probe: Probe) -> Answer:
        if self.gpus:
            probe = msgspec.structs.replace(probe, gpus=tuple(sorted(self.gpus)))
        prospect = node.probes.prospect(name, probe, node.topology)
        if self.gpus and prospect.plan.backend != "gloo":
            _check_gpus(node.gpus, self.gpus)
        if self.shaped is not None:
            prospect = replace(prospect, plan=self.shaped(prospect.plan))
        facts = await node.facts(prospect.plan, probe.gpus, ignore_scheduler=self.ignore_scheduler)
        with progress_of(shown, len(prospect.plan.steps)) as progress:
            result = await node.probes.run(prospect.plan, facts, progress)
        pairs = None
        if isinstance(result, Measured) and prospect.plan.measure == "pairs" and not prospect.plan.shares_gpus:
            pairs = first_sight(result, prospect)
        answer = answer_of(prospect, probe, result, self.thresholds, pairs=pairs, notes=node.problems)
        if self.follower is not None:
            self.follower.took(name, probe, prospect, answer)
        return answer


def _check_gpus(gpus: Sequence[ProbeGpu], wanted: Sequence[int]) -> None:
    here = [one.index for one in gpus]
    if missing := sorted(set(wanted).difference(here)):
        raise UsageError(f"--gpus: there is no GPU {missing[0]}; there are: {', '.join(map(str, here)) or 'none'}")


@contextmanager
def progress_of(name: str, steps: int) -> Iterator[Callable[[Phase, int, float], None]]:
    """Show on standard error how a probe goes: a live line on a terminal, and one line at its end everywhere."""
    last = "not run"

    def note(phase: Phase, step: int, seconds: float) -> None:
        nonlocal last
        last = f"{phase} after {seconds:.1f} s"
        if live is not None:
            live.update(f"{name}: {phase}, step {step} of {steps} ({seconds:.1f} s)" if step else f"{name}: {last}")

    live = None
    with ExitStack() as shown:
        if sys.stderr.isatty():
            from rich.console import Console

            live = shown.enter_context(Console(stderr=True).status(f"{name}: start"))
        yield note
    print(f"{name}: {last}", file=sys.stderr, flush=True)
