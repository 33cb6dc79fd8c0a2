"""One member of a probe: waits for its turns, and runs the ranks of its rails in each; nothing of it outlives it."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from commwatch import __version__
from commwatch.cluster.adapter_latency import adapter_latency, why_not
from commwatch.cluster.channel import Channel
from commwatch.cluster.connections import bound, in_thread
from commwatch.cluster.facts import addresses_of
from commwatch.cluster.member import (
    ADDRESSES_SECONDS,
    MeetingPlace,
    NodeAddresses,
    Progress,
    Run,
    answer_of,
    contact_name,
    joined,
    read_node,
    run_member,
)
from commwatch.cluster.messages import Contact, Prober, RailReport, Ready, Turn, Void, word_of
from commwatch.cluster.node_report import Ended, NodeReport
from commwatch.cluster.probe_store import ProbeResult, Wanted, key_of_turn, serve_probe
from commwatch.cluster.rails import Network, Rail, chosen_backend, gpus_out_of_reach, rails_of, read_network
from commwatch.cluster.run_file import block_of_slurm, leaf_of_slurm
from commwatch.cluster.store import Store
from commwatch.config.settings import Config
from commwatch.probes.by_hand.node import NodeByHand, node_by_hand
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.lock import LOCK_FILE, RunLock
from commwatch.probes.gate.decision import decide
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.watch import Halt
from commwatch.probes.plan import CyclePlan, CycleResult, Deadlines, Failed, Measured, Yielded
from commwatch.probes.rank_plan import Backend, Meeting
from commwatch.probes.workload import plan_between
from commwatch.state.directory import state_path

_LONGEST_WAIT_SECONDS = 1800.0
"""For a turn; schedulers end a run long before."""
_TURN_BYTES = 2**16
_IN_A_JOB = ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")
"""Of a member that a scheduler has placed: its allocation keeps other jobs away, and is no job that it should fear."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line of the member."""

    backend: str = "auto"
    rails: tuple[str, ...] = ()
    ignore_scheduler: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    """Of the run; member 0's counts."""
    diagnosis: str = ""
    """Of this node, for the report of member 0."""


Take: TypeAlias = Callable[[NodeReport], None]
"""Receives the report about the local node."""


async def probe(
    run: Run, asked: Asked, config: Config, progress: Progress, take: Take = lambda report: None
) -> ProbeResult | int:  # fmt: skip
    """Take part in a probe, and host its store as member 0.

    Args:
        take: receives the report about the local node, once the member has joined.

    Returns:
        The exit code; as member 0 all that was found.

    Raises:
        Unreached: the store was not reached.
        BrokenRun: the run cannot begin, or the store was lost.
    """
    begun, place = time.monotonic(), run.place
    lock = RunLock(state_path(config) / LOCK_FILE)
    try:
        async with node_by_hand(config) as node, AsyncExitStack() as held:
            network = await read_node(
                run, progress, "reads interfaces and adapters of this node",
                lambda: read_network(
                    run.sysfs, run.procfs, run.variables, run.interface, config.sources.rdma.exclude
                ),
            )  # fmt: skip
            bench = await Bench.of(run, asked, config, node, network, lock)
            contact = Contact(
                rank=place.rank, name=contact_name(run), token=secrets.token_hex(8), addresses=(), ports=(), low=0,
                high=0,
            )  # fmt: skip
            held.callback(bench.end)
            masters = await in_thread(lambda: addresses_of(place.host), ADDRESSES_SECONDS) or ()
            store = Store(run.key, place.size, "probe", run.deadlines)
            found = await run_member(
                run, NodeAddresses(contact.name, {one.address for one in network.interfaces}, masters), store,
                partial(serve_probe, names=place.names, wanted=asked.wanted),
                partial(_take_part, contact=contact, bench=bench, progress=progress, take=take),
            )  # fmt: skip
            if isinstance(found, int):
                return found
            seconds = round(time.monotonic() - begun, 3)
            return msgspec.structs.replace(found, strangers=store.strangers, seconds=seconds)
    finally:
        lock.give_up()


async def _take_part(meeting: MeetingPlace, contact: Contact, bench: Bench, progress: Progress, take: Take) -> int:
    async with joined(meeting, contact, progress, bench.prober) as (channel, _):
        begun = time.monotonic()
        report = NodeReport(run=secrets.token_hex(16), finished_at=0.0, outcome="broken", backend=bench.prober.backend)
        try:
            async with progress.step(lambda: bench.words):
                ended = await _turns(channel, bench, meeting.run.key)
            report = ended.report
            return ended.exit_code
        finally:
            seconds = round(time.monotonic() - begun, 3)
            take(msgspec.structs.replace(
                report, finished_at=time.time(), engine=meeting.run.place.engine, seconds=seconds,
                block=_of_topology(block_of_slurm, meeting.run.variables), nccl_version=bench.nccl_version,
                settings=bench.settings,
            ))  # fmt: skip
            bench.end()


async def _turns(channel: Channel, bench: Bench, key: bytes) -> Ended:
    """Measure whenever the store requests it, until its last message."""

    def listening() -> asyncio.Future[Turn | Void | Ended]:
        answer = answer_of(channel, Turn, Void, Ended, seconds=_LONGEST_WAIT_SECONDS, most=_TURN_BYTES)
        return asyncio.ensure_future(cast(Awaitable[Turn | Void | Ended], answer))

    ready, said = Ready(ports=bench.listen()), listening()
    try:
        while True:
            await channel.send(ready)
            while isinstance(answer := await said, Void):  # that turn has ended by itself
                said = listening()
            if isinstance(answer, Ended):
                return answer
            said = listening()
            ready = await bench.measure(answer, key_of_turn(key, answer), said)
    finally:
        said.cancel()
        await asyncio.gather(said, return_exceptions=True)


class Bench:
    """The measuring equipment of a node: a launcher for the rank of each rail, one lock for all."""

    def __init__(
        self, config: Config, node: NodeByHand, backend: Backend, rails: tuple[Rail, ...], lock: RunLock,
        deadlines: Deadlines,
    ) -> None:  # fmt: skip
        """Nothing is started.

        Args:
            node: watched while ranks run.
            lock: held over all turns.
            deadlines: of the ranks of a pair.
        """
        self.prober = Prober(version=__version__, backend=backend)
        self.words = "waits for the others"
        """Its current activity, in words."""
        self.nccl_version = self.settings = ""
        """Of the last ranks that measured: of NCCL, and the digest of its settings."""
        self._node, self._backend, self._rails, self._deadlines = node, backend, rails, deadlines
        self._timed_seconds = float(config.probes.kernel_time)
        self._own_hold: float | None = None
        """Of the prolog of this job, which held the node for it."""
        self._launchers = [
            Launcher(procfs=Path(config.paths.procfs), python=config.probes.python, lock=lock) for _ in rails
        ]
        self._listening: list[socket.socket] = []

    @classmethod
    async def of(
        cls, run: Run, asked: Asked, config: Config, node: NodeByHand, network: Network, lock: RunLock
    ) -> Bench:  # fmt: skip
        """That of this node; where the node is not free, it says why.

        Raises:
            BrokenRun: it has no such backend or rail.
        """
        backend = chosen_backend(
            asked.backend, simulated=node.simulation is not None, gpus=len(node.gpus), python=config.probes.python
        )
        rails = rails_of(network, backend, asked.rails, node.gpus, node.topology)
        bench = cls(config, node, backend, rails, lock, asked.wanted.pair_deadlines[backend])
        models = {one.name for one in node.gpus} if any(one.gpu for one in rails) else set()
        bench.prober = msgspec.structs.replace(
            bench.prober,
            rails=tuple(one.offer for one in rails),
            leaf=_of_topology(leaf_of_slurm, run.variables),
            model=", ".join(sorted(models))[:256],
            no_adapter_latency=why_not([one.adapter for one in rails]),
            busy=(await bench.why_busy(run, asked, config, lock))[:256],
            diagnosis=asked.diagnosis[:256],
        )
        return bench

    async def why_busy(self, run: Run, asked: Asked, config: Config, lock: RunLock) -> str:
        """Why this node may not be probed now, by its own gate and its lock; empty: it may."""
        on_bus = len(self._node.topology.gpus) if self._node.driver else 0
        if why := gpus_out_of_reach(asked.backend, self._backend, seen=len(self._node.gpus), on_bus=on_bus):
            return why
        own_job = any(one in run.variables for one in _IN_A_JOB)
        plan = self._plan(self._rails[0], self._meeting(self._rails[0], None))
        hold = HoldFile(state_path(config)).read() if own_job else None
        facts = await self._node.facts(plan, ignore_scheduler=asked.ignore_scheduler or own_job)
        if hold is not None:
            self._own_hold, facts = hold.since, replace(facts, hold_seconds=0.0)
        if skip := decide(plan, facts):
            return f"{skip.reason}: {skip.detail}"
        try:
            state_path(config).mkdir(parents=True, exist_ok=True, mode=0o750)
            if lock.acquire():
                return ""
        except OSError as error:
            return f"start: the probe lock cannot be taken: {error}"
        return "probe_running: a cycle of another process runs, or a rank of one is still there"

    # --- a turn ---

    def listen(self) -> tuple[int, ...]:
        """Bind a socket for the next turn, on each rail; the ports."""
        for rail in self._rails:
            sock = bound(rail.offer.address, 0)
            self._listening.append(sock)
            with suppress(OSError):  # routing decides then, by the address
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, rail.interface.encode())
        return tuple(one.getsockname()[1] for one in self._listening)

    def end(self) -> None:
        """Close what listens."""
        for sock in self._listening:
            sock.close()
        self._listening.clear()

    async def measure(self, turn: Turn, key: str, said: asyncio.Future[Turn | Void | Ended]) -> Ready:
        """Run the ranks of one turn to their end; what came of it, and where the next one can meet.

        Args:
            said: the store's next message; if it comes first, this turn is no longer needed.
        """
        self.words = f"round {turn.round}: measures with {turn.peer}"
        plans = [
            self._plan(self._rails[rail], self._meeting(self._rails[rail], turn, place, key))
            for place, rail in enumerate(turn.rails)
        ]
        running = asyncio.ensure_future(self._cycles(plans))
        try:
            await asyncio.wait((running, said), return_when=asyncio.FIRST_COMPLETED)
            results = await running if running.done() else []
            for one in results:
                if isinstance(one, Measured):
                    self.nccl_version, self.settings = word_of(one.nccl_version), one.nccl.settings_digest
            latencies = await self._adapter_latencies(turn) if results and turn.adapter_latency else {}
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.end()
            self.words = "waits for its next turn"
        return Ready(
            turn=turn.number,
            rails=tuple(_report(turn.end, result, latencies.get(place)) for place, result in enumerate(results)),
            occupied_seconds=max((getattr(one, "occupied_seconds", 0.0) for one in results), default=0.0)
            if any(plan.devices for plan in plans) else 0.0,
            gave_way=self._why_no_more(results)[:256],
            ports=self.listen(),
        )  # fmt: skip

    def _meeting(self, rail: Rail, turn: Turn | None, place: int = 0, key: str = "") -> Meeting:
        end = 1 if turn is None else turn.end
        return Meeting(
            end=end,
            address="" if turn is None else turn.addresses[place],
            port=0 if turn is None else turn.ports[place],
            descriptor=-1 if turn is None or end else self._listening[turn.rails[place]].fileno(),
            own_address=rail.offer.address,
            interface=rail.interface,
            adapter=rail.adapter,
            key=key,
        )

    def _plan(self, rail: Rail, meeting: Meeting) -> CyclePlan:
        return plan_between(
            meeting, backend=self._backend, device=rail.gpu, deadlines=self._deadlines,
            timed_seconds=self._timed_seconds, simulation=self._node.simulation,
        )  # fmt: skip

    async def _cycles(self, plans: list[CyclePlan]) -> list[CycleResult]:
        """The cycles of all rails at once; a rail that fails ends no other one."""
        watch = self._node.watch(plans[0], self._own_hold)

        async def never(_: frozenset[int]) -> Halt | None:
            # The ranks of the other rails are no strangers.
            return await watch(frozenset(pid for one in self._launchers for pid in one.pids))

        launchers = self._launchers[: len(plans)]
        running = asyncio.gather(*(one.run(plan, never) for one, plan in zip(launchers, plans, strict=True)))
        try:
            return list(await asyncio.shield(running))
        except asyncio.CancelledError:
            await asyncio.gather(*(one.cancel("stopping", "the run has ended") for one in launchers))
            await asyncio.gather(running, return_exceptions=True)
            raise

    async def _adapter_latencies(self, turn: Turn) -> dict[int, float | None]:
        """Of each rail with an adapter, on the ports that its ranks have left."""
        self.end()
        adapters = {place: one for place, rail in enumerate(turn.rails) if (one := self._rails[rail].adapter)}
        found = await asyncio.gather(*(
            adapter_latency(adapter, turn.addresses[place], turn.ports[place], end=turn.end)
            for place, adapter in adapters.items()
        ))  # fmt: skip
        return dict(zip(adapters, found, strict=True))

    def _why_no_more(self, results: list[CycleResult]) -> str:
        for result in results:
            if isinstance(result, Yielded):
                return f"{result.reason}: {result.detail}"
        stuck = [pid for one in self._launchers for pid in one.stuck]
        return f"stuck: process {stuck[0]} sits in the kernel and was left alone" if stuck else ""


def _report(end: int, result: CycleResult, adapter: float | None = None) -> RailReport:
    """The measurements of one end: small messages on the clock of the sender, large ones where they arrive."""
    if not isinstance(result, Measured):
        if isinstance(result, Failed):
            word = result.detail.partition(":")[0]
            return RailReport(failed=word if word in ("refused", "filtered", "no_route") else result.reason)
        return RailReport(failed=result.reason)
    latency = received = None
    for one in result.outcomes:
        source, destination = one.step.pairs[0]
        if one.step.purpose == "latency" and source == end:
            latency = one.slowest_seconds
        elif one.step.purpose == "bandwidth" and destination == end:
            received = one.step.size_bytes / one.slowest_seconds
    over = result.nccl.transports
    transport = max(over, key=lambda name: over[name]) if over else ""
    return RailReport(latency=latency, received=received, transport=transport, adapter_latency=adapter)


def _of_topology(part: Callable[[str, str], str], variables: Mapping[str, str]) -> str:
    address = variables.get("SLURM_TOPOLOGY_ADDR", "")
    return word_of(part(address, variables.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")))
