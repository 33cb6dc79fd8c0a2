"""A worker process: opens its sources, answers one request after another, and ends when the daemon does."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from commwatch.config.settings import Sources, decode_quantity
from commwatch.footprint import allow_late_timers, name_process, spare_the_garbage_collector
from commwatch.readings import Batch, DeviceReadings, SourceUnavailable
from commwatch.sources.base import Origin, Source
from commwatch.workers.bounds import LONGEST_DETAIL, MOST_DEVICES
from commwatch.workers.sources import SOURCES, load
from commwatch.workers.wire import (
    Inbox,
    ProgressMark,
    Reply,
    Request,
    WireAbsence,
    WireReadings,
    WorkerPlan,
    frame,
    on_grid,
)
from commwatch_exporters.snapshot import Series

if TYPE_CHECKING:
    from commwatch.simulation.node import SimulatedNode


Node: TypeAlias = "SimulatedNode | None"
"""The simulated node beneath this process; None for the real one."""


def make_source(name: str, plan: WorkerPlan, node: Node, kernel_log: int | None = None) -> Source:
    """Import and make a source of a plan; opens nothing."""
    row = SOURCES[name]
    return row.make(
        Origin(
            Path(plan.sysfs),
            Path(plan.procfs),
            msgspec.json.decode(plan.settings, type=Sources, dec_hook=decode_quantity),
            frozenset(plan.opt_in),
            plan.resume.get(name, b""),
            None if node is None or not row.stand_in else partial(load(row.stand_in), node),
            is_simulated=node is not None,
            kernel_log=kernel_log,
        )
    )


MOST_SILENT_DEVICES = 64
"""So many devices of one collector are remembered that give nothing now. Interfaces come and go by the thousand."""


class _Answerer:
    """Runs requests against the sources of a plan, and keeps which are open."""

    def __init__(self, plan: WorkerPlan, mark: ProgressMark, kernel_log: int | None) -> None:
        self._mark = mark
        self._leave_out = frozenset(plan.leave_out)
        self._only = None if plan.only is None else frozenset(plan.only)
        node = _simulated_node(plan)
        sources = {name: make_source(name, plan, node, kernel_log) for name in plan.sources}
        self._whose = {collector: item for item in sources.items() for collector in item[1].collectors}
        """By collector: its source and the name of it."""
        self._open: set[Source] = set()
        self._sent: dict[str, dict[str, tuple[Series, ...]]] = {}
        """By collector and device."""
        self._new_aliases: dict[str, str] = {}
        self._told_aliases: dict[Source, dict[str, str]] = {}
        self._refresh = _simulate(plan, node)

    def run(self, collector: str) -> Batch:
        name, source = self._whose[collector]
        self._refresh(name)
        if source not in self._open:
            source.open(self._mark.set, self._leave_out, self._only)
            self._open.add(source)
            self._told_aliases.pop(source, None)
        try:
            batch = source.collect(collector)
        except SourceUnavailable:
            self._open.discard(source)
            source.close()
            raise
        self._tell_aliases(source)
        return batch

    def _tell_aliases(self, source: Source) -> None:
        """Devices come and go while a source is open: what has changed is reported."""
        if source.aliases != self._told_aliases.get(source):
            self._told_aliases[source] = self._new_aliases = dict(source.aliases)

    def answer(self, request: Request) -> Reply:
        started = time.monotonic()
        self._new_aliases = {}
        batch, unavailable = Batch(), None
        try:
            batch = self.run(request.collector)
        except SourceUnavailable as error:
            unavailable = (error.reason, error.detail[:LONGEST_DETAIL])
        finally:
            self._mark.set("")
        sent = self._sent.setdefault(request.collector, {})
        readings = [WireReadings(one.device, one.time, _new_series(sent, one), one.values) for one in batch.readings]
        gone = _forget_gone(sent, readings)
        absences = [
            WireAbsence(one.device, one.reason, one.detail[:LONGEST_DETAIL]) for one in batch.absences[:MOST_DEVICES]
        ]
        duration = time.monotonic() - started
        return Reply(
            request.number, readings, absences, batch.events, unavailable, self._new_aliases, duration, gone,
            batch.occupants, batch.log_errors, batch.resume, batch.audit, "" if request.number else request.collector,
        )  # fmt: skip

    def close(self) -> None:
        for source in self._open:
            source.close()


def _new_series(sent: dict[str, tuple[Series, ...]], readings: DeviceReadings) -> tuple[Series, ...] | None:
    """The series of a device, where they are not those that were sent last."""
    last = sent.get(readings.device)
    # Sources keep the same object while nothing changes, so that this is one comparison.
    if last is readings.series or last == readings.series:
        return None
    sent[readings.device] = readings.series
    return readings.series


def _forget_gone(sent: dict[str, tuple[Series, ...]], readings: list[WireReadings]) -> list[str]:
    """Forget the devices that gave nothing, once they are many; returns which."""
    if len(sent) - len(readings) <= MOST_SILENT_DEVICES:
        return []
    gone = list(sent.keys() - {one.device for one in readings})
    for device in gone:
        del sent[device]
    return gone


def _simulated_node(plan: WorkerPlan) -> Node:
    simulation = plan.simulation
    if simulation is None:
        return None
    from commwatch.simulation.node import SimulatedNode

    faults = Path(simulation.faults_file) if simulation.faults_file else None
    return SimulatedNode(simulation.preset, faults, simulation.started_at)


def _simulate(plan: WorkerPlan, node: Node) -> Callable[[str], None]:
    """Put a simulated node beneath this process; what is returned brings the files of a source up to date."""
    simulation = plan.simulation
    if simulation is None or node is None:
        return lambda _source: None
    if "nvml" in plan.sources:
        from commwatch.simulation.library import install

        install(node)
        return lambda _source: None
    sysfs, procfs = Path(simulation.sysfs), Path(simulation.procfs)

    def write(source: str) -> None:
        node.write_sysfs(sysfs, (source,))
        if SOURCES[source].reads_procfs:
            # One process keeps it up to date: that of the services and the kernel log.
            node.write_procfs(procfs, only_missing="nccl_settings" in plan.sources)

    return write


class StandingOrders:
    """What is run again and again, unasked: on the grid that all processes share, and only as long as all is well."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._every: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def follow(self, request: Request, reply: Reply) -> None:
        """Take what a request orders beside its answer; an order ends at the first reply that is not clean."""
        if request.number:
            self._every[request.collector] = request.every
        every = self._every[request.collector]
        if every and reply.is_clean:
            self._due[request.collector] = on_grid(self._monotonic() + every, every)
        else:
            self._due.pop(request.collector, None)

    def take_due(self) -> list[Request]:
        """What is to be run now."""
        now = self._monotonic()
        return [Request(0, collector) for collector, due in self._due.items() if due <= now]

    def seconds_left(self) -> float | None:
        """Until the next one is due; None where nothing is ordered."""
        return max(0.0, min(self._due.values()) - self._monotonic()) if self._due else None


def _confine(plan: WorkerPlan) -> None:
    from commwatch.workers.seccomp import confine

    # Where the node is simulated, this process writes the part of the tree that it reads.
    if why := confine(may_write=plan.simulation is not None):
        write_log("warning", "no filter of system calls confines the reader of job files", reason=why)


def write_log(level: str, message: str, **fields: str) -> None:
    """Write one line, as the daemon's own log."""
    event = {"level": level, "msg": message, "logger": "commwatch.workers.child", **fields}
    sys.stderr.write(msgspec.json.encode(event).decode() + "\n")


def serve(connection: socket.socket, mark: ProgressMark, kernel_log: int | None = None) -> None:
    """Answer until told to stop or until the daemon is gone."""
    inbox = Inbox(connection)
    come = inbox.take()
    if come is None:
        return
    plan = msgspec.msgpack.decode(come.pop(0), type=WorkerPlan)
    name_process(f"commwatch-{plan.name}")
    allow_late_timers()
    if plan.confined:
        _confine(plan)
    answerer = _Answerer(plan, mark, kernel_log)
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(Request)
    spare_the_garbage_collector()
    waiting: deque[Request] = deque()
    orders = StandingOrders()
    while come is not None:
        waiting.extend(map(decoder.decode, come))
        if any(not request.collector for request in waiting):
            answerer.close()  # what was asked before is not wanted any more
            return
        # An answer goes at once. What was ordered is due together and nobody waits for it: it goes together.
        replies: list[bytes] = []
        for request in [waiting.popleft()] if waiting else orders.take_due():
            if (request.number or replies) and inbox.has_ended:
                # Given up while it hung in the request before: what the kernel log has now is for the next process.
                os._exit(0)
            reply = answerer.answer(request)
            orders.follow(request, reply)
            replies.append(frame(encoder.encode(reply)))
        if replies:
            try:
                connection.sendall(b"".join(replies))
            except (BrokenPipeError, ConnectionResetError):
                break
        come = inbox.take(0.0 if waiting else orders.seconds_left())
    # The daemon is gone or has given this worker up: leave without another call into a driver.
    os._exit(0)


def run(connection: int, mark: int, kernel_log: int | None = None) -> int:
    """Serve over descriptors; returns the exit code. A failure becomes one line, as in the daemon's own log."""
    try:
        serve(socket.socket(fileno=connection), ProgressMark(mark), kernel_log)
    except Exception as error:
        write_log(
            "error", "a worker failed", error=f"{type(error).__name__}: {error}", exception=traceback.format_exc()
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(*map(int, sys.argv[1:])))
