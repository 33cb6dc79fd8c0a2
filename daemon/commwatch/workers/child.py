"""A worker process: runs each collector when it is due, sends what it gave, and ends when the daemon does."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from commwatch.config.settings import Sources, decode_quantity
from commwatch.footprint import allow_late_timers, name_process, spare_the_garbage_collector
from commwatch.readings import Batch, SourceUnavailable
from commwatch.rehearsal import SimulatedNode, rehearsal
from commwatch.sources.base import Origin, Source
from commwatch.workers.sources import SOURCES
from commwatch.workers.wire import (
    LONGEST_DETAIL,
    MOST_DEVICES,
    Cadence,
    Inbox,
    Order,
    ProgressMark,
    WireBatch,
    WireReadings,
    WorkerPlan,
    frame,
)
from commwatch_exporters.snapshot import Series

Node: TypeAlias = SimulatedNode | None
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
            None if node is None else rehearsal().stand_in(name, node),
            is_simulated=node is not None,
            kernel_log=kernel_log,
        )
    )


class _Runner:
    """Runs collectors of the sources of a plan, and keeps which are open."""

    def __init__(self, plan: WorkerPlan, mark: ProgressMark, kernel_log: int | None) -> None:
        self._mark = mark
        self._leave_out = frozenset(plan.leave_out)
        self._only = None if plan.only is None else frozenset(plan.only)
        node = None if plan.simulation is None else rehearsal().make_node(plan.simulation)
        sources = {name: make_source(name, plan, node, kernel_log) for name in plan.sources}
        self._rows = {row.name: (name, sources[name], row.key) for name in sources for row in SOURCES[name].collectors}
        """By collector: the name of its source, the source, and what that calls it."""
        self._open: set[Source] = set()
        self._sent: dict[str, dict[str, tuple[Series, ...]]] = {}
        """By collector and device, in its last batch."""
        self._sent_aliases: dict[Source, dict[str, str]] = {}
        self._refresh = _simulate(plan, node)

    def run(self, collector: str) -> WireBatch:
        """Run a collector once."""
        name, source, key = self._rows[collector]
        started = time.monotonic()
        batch, unavailable = Batch(), None
        try:
            self._refresh(name)
            batch = self._collect(source, key)
        except SourceUnavailable as error:
            unavailable = (error.reason, error.detail[:LONGEST_DETAIL])
        finally:
            self._mark.set("")
        sent, self._sent[collector] = self._sent.get(collector, {}), {one.device: one.series for one in batch.readings}
        readings = [
            WireReadings(one.device, one.time, None if one.series == sent.get(one.device) else one.series, one.values)
            for one in batch.readings
        ]
        absences = [replace(one, detail=one.detail[:LONGEST_DETAIL]) for one in batch.absences[:MOST_DEVICES]]
        return WireBatch(
            collector, readings, absences, batch.events, unavailable, self._new_aliases(source),
            started, time.monotonic() - started, batch.occupants, batch.log_errors, batch.resume, batch.audit,
        )  # fmt: skip

    def _collect(self, source: Source, key: str) -> Batch:
        if source not in self._open:
            source.open(self._mark.set, self._leave_out, self._only)
            self._open.add(source)
            self._sent_aliases.pop(source, None)
        try:
            return source.collect(key)
        except SourceUnavailable:
            self._open.discard(source)
            source.close()
            raise

    def _new_aliases(self, source: Source) -> dict[str, str]:
        """Devices come and go while a source is open: what has changed is reported."""
        if source not in self._open or source.aliases == self._sent_aliases.get(source):
            return {}
        self._sent_aliases[source] = dict(source.aliases)
        return self._sent_aliases[source]

    def close(self) -> None:
        for source in self._open:
            source.close()


def _simulate(plan: WorkerPlan, node: Node) -> Callable[[str], None]:
    """Put a simulated node beneath this process; what is returned brings the files of a source up to date."""
    simulation = plan.simulation
    if simulation is None or node is None:
        return lambda _source: None
    if any(SOURCES[name].reader.holds_driver for name in plan.sources):
        rehearsal().install_driver(node)
        return lambda _source: None
    sysfs, procfs = Path(simulation.sysfs), Path(simulation.procfs)

    def write(source: str) -> None:
        node.write_sysfs(sysfs, (source,))
        if SOURCES[source].reads_procfs:
            # One process keeps it up to date: that of the services and the kernel log.
            node.write_procfs(procfs, only_missing="nccl_settings" in plan.sources)

    return write


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
    """Run the plan and later orders until asked to stop or until the daemon is gone."""
    inbox = Inbox(connection)
    come = inbox.take()
    if come is None:
        return
    plan = msgspec.msgpack.decode(come.pop(0), type=WorkerPlan)
    name_process(f"commwatch-{plan.name}")
    allow_late_timers()
    if plan.confined:
        _confine(plan)
    runner, cadences = _Runner(plan, mark, kernel_log), dict[str, Cadence]()
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(Order)
    spare_the_garbage_collector()
    is_paused = False
    while come is not None:
        for order in map(decoder.decode, come):
            if not order.collector:
                runner.close()
                return
            cadences.setdefault(order.collector, Cadence()).order(order.every, time.monotonic(), at_once=order.now)
        collector = min(cadences, key=lambda name: cadences[name].due, default="")
        left = cadences[collector].due - time.monotonic() if collector else math.inf
        # Looked for before each run: one that was given up while it hung reads nothing more, as what the kernel log has
        # now is for the next process.
        come = inbox.take(math.inf if is_paused else max(0.0, left))
        if come == [] and cadences[collector].due <= time.monotonic():
            batch = runner.run(collector)
            cadences[collector].ran(time.monotonic())
            with suppress(BrokenPipeError, ConnectionResetError):  # found closed before the next run
                connection.sendall(frame(encoder.encode(batch)))
            is_paused = plan.rest_when_unavailable and batch.unavailable is not None
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
