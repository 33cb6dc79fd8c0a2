"""A worker process: opens its sources, answers one request after another, and ends when the daemon does."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from commwatch import config
from commwatch.sources.base import Batch, DeviceReadings, Source, SourceUnavailable
from commwatch.workers.wire import (
    ProgressMark,
    Reply,
    Request,
    WireAbsence,
    WireReadings,
    WorkerPlan,
    frame,
    receive_message,
)
from commwatch_exporters.snapshot import Series


def _nvml(plan: WorkerPlan) -> Source:
    from commwatch.sources.nvml import NvmlSource

    return NvmlSource()


def _network(plan: WorkerPlan) -> Source:
    from commwatch.sources.network import NetworkSource

    settings = msgspec.json.decode(plan.settings["network"], type=config.NetworkSource, dec_hook=config.decode_quantity)
    return NetworkSource(Path(plan.sysfs), settings)


def _pci(plan: WorkerPlan) -> Source:
    from commwatch.sources.pci import PciSource

    return PciSource(Path(plan.sysfs))


SOURCES: dict[str, Callable[[WorkerPlan], Source]] = {"nvml": _nvml, "network": _network, "pci": _pci}
"""How each source is made; a source is imported only in the worker that serves it."""


class _Answerer:
    """Runs requests against the sources of a plan, and keeps which are open."""

    def __init__(self, plan: WorkerPlan, mark: ProgressMark) -> None:
        self._mark = mark
        self._leave_out = frozenset(plan.leave_out)
        self._only = None if plan.only is None else frozenset(plan.only)
        self._sources = [SOURCES[name](plan) for name in plan.sources]
        self._open: set[Source] = set()
        self._sent: dict[tuple[str, str], tuple[Series, ...]] = {}
        self._new_aliases: dict[str, str] = {}
        self._refresh = _simulate(plan)

    def run(self, collector: str) -> Batch:
        source = next(source for source in self._sources if collector in source.collectors)
        self._refresh()
        if source not in self._open:
            source.open(self._mark.set, self._leave_out, self._only)
            self._open.add(source)
            self._new_aliases = dict(source.aliases)
        try:
            return source.collect(collector)
        except SourceUnavailable:
            self._open.discard(source)
            source.close()
            raise

    def answer(self, request: Request) -> Reply:
        started = time.monotonic()
        self._new_aliases = {}
        batch, unavailable = Batch(), None
        try:
            batch = self.run(request.collector)
        except SourceUnavailable as error:
            unavailable = (error.reason, error.detail)
        finally:
            self._mark.set("")
        readings = [
            WireReadings(one.device, one.time, self._new_series(request.collector, one), list(one.values))
            for one in batch.readings
        ]
        absences = [WireAbsence(one.device, one.reason, one.detail) for one in batch.absences]
        duration = time.monotonic() - started
        return Reply(request.number, readings, absences, batch.events, unavailable, self._new_aliases, duration)

    def _new_series(self, collector: str, readings: DeviceReadings) -> tuple[Series, ...] | None:
        """The series, where they are not those that were sent last."""
        key = (collector, readings.device)
        sent = self._sent.get(key)
        # Sources keep the same object while nothing changes, so that this is one comparison.
        if sent is readings.series or sent == readings.series:
            return None
        self._sent[key] = readings.series
        return readings.series

    def close(self) -> None:
        for source in self._open:
            source.close()


def _simulate(plan: WorkerPlan) -> Callable[[], None]:
    """Put a simulated node beneath this process; what is returned brings its files up to date before each read."""
    simulation = plan.simulation
    if simulation is None:
        return lambda: None
    from commwatch.simulation.node import SimulatedNode

    faults = Path(simulation.faults_file) if simulation.faults_file else None
    node = SimulatedNode(simulation.preset, faults, simulation.started_at)
    if "nvml" in plan.sources:
        node.install_driver()
        return lambda: None
    root = Path(simulation.sysfs)
    return lambda: node.write_sysfs(root)


def main() -> None:
    """Serve until told to stop or until the daemon is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    mark = ProgressMark(int(sys.argv[2]))
    first = receive_message(connection)
    if first is None:
        return
    answerer = _Answerer(msgspec.msgpack.decode(first, type=WorkerPlan), mark)
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(Request)
    while (message := receive_message(connection)) is not None:
        request = decoder.decode(message)
        if not request.collector:
            answerer.close()
            return
        try:
            connection.sendall(frame(encoder.encode(answerer.answer(request))))
        except (BrokenPipeError, ConnectionResetError):
            break
    # The daemon is gone or has given this worker up: leave without another call into a driver.
    os._exit(0)


def _run() -> None:
    """Run, and put a failure into one line, as the daemon's own log does."""
    try:
        main()
    except Exception as error:
        event = {"level": "error", "msg": "a worker failed", "logger": "commwatch.workers.child",
                 "error": f"{type(error).__name__}: {error}", "exception": traceback.format_exc()}  # fmt: skip
        sys.stderr.write(msgspec.json.encode(event).decode() + "\n")
        sys.exit(1)


if __name__ == "__main__":
    _run()
