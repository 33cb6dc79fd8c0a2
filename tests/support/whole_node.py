"""A whole simulated node in this process: every source and the analysis, at times that the test sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from commwatch.config.settings import Config, Paths, section_json
from commwatch.config.simulated import SimulationPlan
from commwatch.jobs.settings.plan import SOURCE as SETTINGS
from commwatch.jobs.settings.plan import JobSettings
from commwatch.node.run import Collected, Collector, Outcome
from commwatch.node.store import Store
from commwatch.readings import Batch, SourceUnavailable
from commwatch.service.instruments import Instruments
from commwatch.service.judgement import restore
from commwatch.service.pipeline import Pipeline
from commwatch.simulation.library import install
from commwatch.simulation.node import SimulatedNode
from commwatch.sources.base import Source
from commwatch.sources.gpu_bus import bound_devices, gpus_to_list
from commwatch.sources.nvml.source import NvmlSource
from commwatch.sources.presence import boot_identity
from commwatch.sources.rdma.source import RdmaSource
from commwatch.state.directory import StateDirectory, state_path
from commwatch.workers.child import make_source
from commwatch.workers.sources import SOURCES, CollectorRow, SourceRow
from commwatch.workers.wire import WorkerPlan
from commwatch_exporters.catalogue import OPT_IN
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot
from support.core import ScriptedReader

STARTED_AT = 1_700_000_000.0
"""When the node booted, seconds since 1970."""


KEYS = {row.name: row.key for source in SOURCES.values() for row in source.collectors}
"""What its source calls a collector, by name."""


class NodeClock:
    """Both clocks of a node; stands in for the module ``time``."""

    def __init__(self, node: WholeNode) -> None:
        self._node = node

    def monotonic(self) -> float:
        """Seconds since the node booted."""
        return self._node.time

    def time(self) -> float:
        """Seconds since 1970."""
        return self._node.started_at + self._node.time + self._node.clock_error


class WholeNode:
    """A node whose time stands still until it is told to go on."""

    started_at = STARTED_AT
    """When the node booted, seconds since 1970."""
    time = 3600.0
    """Seconds since the node booted; the monotonic clock of everything here."""
    clock_error = 0.0
    """Seconds by which the wall clock is fast."""

    def __init__(
        self, preset: str, folder: Path, opt_in: Sequence[str] = (), faults: str = "", config: Config | None = None
    ) -> None:
        self.config = config or Config(paths=Paths(state=str(folder)))
        self._sysfs, self._procfs = folder / "sysfs", folder / "procfs"
        self.faults_file = folder / "faults.yaml" if faults else None
        if self.faults_file is not None:
            self.faults_file.write_text(faults, encoding="utf-8")
        self.node = SimulatedNode(preset, self.faults_file, self.started_at, lambda: self.started_at + self.time)
        self.preset = preset
        self.store = Store(OPT_IN - set(opt_in))
        self.state = StateDirectory(folder / "state" if config is None else state_path(config))
        self.instruments = Instruments()
        self._layouts: dict[tuple[Series, ...], Layout] = {}
        self.node.write_sysfs(self._sysfs)
        self.node.write_procfs(self._procfs)
        trees = str(self._sysfs), str(self._procfs)
        self._boot = boot_identity(trees[1])
        self._kept = restore(self.state, self._boot, self.started_at + self.time)
        self.job_settings = JobSettings(self.store, tuple, self._plan_audit, lambda: self.time)
        self._pipeline = Pipeline(
            self.config, self.state, self.store, self.instruments, (), *trees, kept=self._kept,
            job_settings=self.job_settings, clock=NodeClock(self),
        )  # fmt: skip
        install(self.node)
        self._audit_at = float("inf")
        self._sources = {name: self._open(name, tuple(opt_in)) for name in SOURCES}
        self._collectors = [self._collector(row, one) for row in SOURCES.values() for one in row.collectors]

    def _open(self, name: str, opt_in: tuple[str, ...]) -> Source:
        plan = WorkerPlan(
            sources=(name,),
            settings=section_json(self.config.sources),
            sysfs=str(self._sysfs),
            procfs=str(self._procfs),
            leave_out=(),
            only=None,
            simulation=SimulationPlan("", "", self.started_at, str(self._sysfs), str(self._procfs)),
            opt_in=opt_in,
            resume={SETTINGS: self.job_settings.order()} if name == SETTINGS and self.job_settings.is_ready() else {},
        )
        source = make_source(name, plan, self.node)
        if name == "nvml":
            source = NvmlSource(
                monotonic=lambda: self.time,
                opt_in=frozenset(opt_in),
                to_list=lambda: gpus_to_list(self._sysfs, self._procfs, None),
                bound=lambda: bound_devices(self._sysfs),
            )
        elif name == "rdma":  # by the clock of this machine a file would be slow where another process has the CPU
            source = RdmaSource(self._sysfs, opt_in, clock=lambda: self.time)
        try:
            source.open(lambda device: None, frozenset(), None)
        except SourceUnavailable:  # a node without RDMA devices; it is tried again at each run, as a worker does
            source.close()
        return source

    def _collector(self, source: SourceRow, row: CollectorRow) -> Collector:
        interval = getattr(source.section(self.config.sources), row.interval)
        reader = ScriptedReader(source.name)
        is_ready = self.job_settings.is_ready if source.name == SETTINGS else lambda: True
        return Collector(row.name, source.name, reader, interval, needs_release=False, is_ready=is_ready)

    def run(self, *names: str) -> None:
        """Run all collectors once, or those that are named, and the analysis after each."""
        self.node.write_sysfs(self._sysfs)
        self.node.write_procfs(self._procfs)
        for collector in self._collectors:
            if (not names or collector.name in names) and self._is_due(collector):
                self._run(collector)

    def _plan_audit(self, delay: float) -> None:
        self._audit_at = self.time + delay

    def _is_due(self, collector: Collector) -> bool:
        """Whether a collector runs now: all do each time, but an audit of settings where the daemon would have one."""
        if collector.name != SETTINGS:
            return True
        if self.time < self._audit_at:
            return False
        self._audit_at = self.time + collector.interval
        self._sources[SETTINGS] = self._open(SETTINGS, ())
        return True

    def _run(self, collector: Collector) -> None:
        try:
            batch = self._sources[collector.source].collect(KEYS[collector.name])
        except SourceUnavailable:
            return
        if batch.occupants is not None:
            self.store.occupants = batch.occupants
        collected = Collected(
            self._blocks(batch, collector.source), batch.absences, 0.0, batch.events, audit=batch.audit
        )
        for device, block in collected.blocks.items():
            self.store.put(collector.name, device, block, float("inf"))
        self._after(Outcome(collector, collected, None, self.time))

    def _after(self, outcome: Outcome) -> None:
        self._pipeline.on_batch(outcome)

    def _blocks(self, batch: Batch, source: str) -> dict[str, Block]:
        blocks = {}
        bounds = SOURCES[source].reader.bounds
        for readings in (one._replace(time=self.time) for one in batch.readings):
            layout = self._layouts.get(readings.series)
            if layout is None:
                assert bounds.checked(readings.series) is readings.series
                layout = self._layouts[readings.series] = Layout(readings.series)
            blocks[readings.device] = Block(layout, readings.values, self.time)
        return blocks

    @property
    def roots(self) -> tuple[str, str]:
        """Its sysfs and procfs."""
        return str(self._sysfs), str(self._procfs)

    def snapshot(self) -> Snapshot:
        """What would be exposed now, without the daemon's own metrics."""
        return self.store.snapshot()

    def close(self) -> None:
        """Let go of everything."""
        for source in self._sources.values():
            source.close()


@contextmanager
def whole_node(
    preset: str, folder: Path, monkeypatch: pytest.MonkeyPatch, opt_in: Sequence[str] = (), faults: str = ""
) -> Iterator[WholeNode]:
    """A node that has been read twice, a second apart, so that rates are known; its driver library is put back.

    Args:
        preset: name of the simulated node.
        folder: for its files and its state.
        monkeypatch: puts the driver library back.
        opt_in: metrics that are asked for.
        faults: YAML; the first reading is an hour after the boot.
    """
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    node = WholeNode(preset, folder, opt_in, faults)
    try:
        node.run()
        node.time += 1.0
        node.run()
        yield node
    finally:
        node.close()
