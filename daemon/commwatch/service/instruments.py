"""The daemon's own metrics: instruments of prometheus_client in one registry, named and described by the catalogue."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector, disable_created_metrics
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector as Registered

from commwatch import __version__
from commwatch.node.starvation import Starvation
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout

if TYPE_CHECKING:
    from commwatch.service.collection import Collection

_Instrument = TypeVar("_Instrument", Counter, Gauge, Info)
_OF_COLLECTORS = (
    "collector_success", "collector_duration_seconds", "collector_interval_seconds",
    "collector_last_success_timestamp_seconds", "source_available", "source_unread",
)  # fmt: skip


class Instruments(Registered):
    """Counters and gauges about the daemon; what has labels has no series at first, anything else is 0."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client gives it no types
        self.registry = CollectorRegistry(auto_describe=True)
        """Refuses a series that it has already."""
        self._layout = Layout(())
        self._read_well: dict[str, bool] = {}
        """Whether each configuration could be read the last time."""
        self._cpu_seconds: dict[int, float] = {}
        """Of each process that is there, as last measured, by its id."""
        self.healthchecks: Mapping[str, int] = {}
        """How often healthcheck said unknown, by reason; whoever runs it keeps the totals."""
        self.collection: Collection | None = None
        """Of the configuration in force; None between two of them."""
        self.registry.register(self)
        self.collector_errors = self._made(Counter, "collector_errors_total")
        self.worker_restarts = self._made(Counter, "worker_restarts_total")
        self.worker_stuck = self._made(Gauge, "worker_stuck")
        self.config_reload_successful = self._made(Gauge, "config_last_reload_successful")
        self.config_reload_time = self._made(Gauge, "config_last_reload_success_timestamp_seconds")
        self.scheduler_missed = self._made(Counter, "scheduler_missed_runs_total")
        self.clock_steps = self._made(Counter, "clock_steps_total")
        self.starved = self._made(Gauge, "starved")
        self.daemon_late = self._made(Gauge, "daemon_late_seconds")
        self.stall = self._made(Gauge, "stall_ratio")
        self.finding_rule_errors = self._made(Counter, "finding_rule_errors_total")
        self.process_cpu = self._made(Counter, "process_cpu_seconds_total")
        self.process_memory = self._made(Gauge, "process_resident_memory_bytes")
        self.maintenance = self._made(Gauge, "maintenance")
        self.simulated = self._made(Gauge, "simulated")
        self.thresholds_info = self._made(Info, "thresholds_info")
        self._made(Info, "build_info").labels(__version__, platform.python_version())
        self.maintenance.labels("none").set(0)

    def collect(self) -> Iterable[Family]:
        """The gauges of the collectors and their sources, as they are now, and what others count."""
        row = CATALOGUE["commwatch_healthcheck_unknown_total"]
        unknown = CounterMetricFamily(row.name, row.text, labels=row.labels)
        for reason, total in self.healthchecks.items():
            unknown.add_metric([reason], total)
        rows = [CATALOGUE[f"commwatch_{name}"] for name in _OF_COLLECTORS]
        families = [GaugeMetricFamily(row.name, row.text, labels=row.labels) for row in rows]
        success, duration, interval, last_success, available, unread = families
        if self.collection is None:
            return [unknown, *families]
        for name, one in self.collection.collectors.items():
            interval.add_metric([name], one.current_interval)
            if one.attempted:
                success.add_metric([name], not one.failing)
                duration.add_metric([name], one.duration)
            if one.last_success is not None:
                last_success.add_metric([name], round(one.last_success, 3))
        for source, flag in self.collection.available.items():
            available.add_metric([source], flag)
        for source, flag in self.collection.exposed_as_unread().items():
            unread.add_metric([source], flag)
        return [unknown, *families]

    def _made(self, kind: type[_Instrument], name: str) -> _Instrument:
        row = CATALOGUE[f"commwatch_{name}"]
        return kind(row.name.removesuffix("_info"), row.text, row.labels, unit=row.unit, registry=self.registry)

    def show_reload(self, what: str, succeeded: bool) -> None:
        """Show whether the configuration in force is that of the files, after they were read."""
        self._read_well[what] = succeeded
        self.config_reload_successful.set(1 if all(self._read_well.values()) else 0)
        if succeeded:
            self.config_reload_time.set(round(time.time(), 3))

    def run_missed(self, job: str) -> None:
        """A job of the scheduler was not run in time."""
        self.scheduler_missed.labels(job).inc()

    def begin(self, thresholds: str, *, is_simulated: bool) -> None:
        """An engine begins on a configuration and thresholds of this digest; what was shown of others is forgotten."""
        self.collection = None
        for gauge in (self.worker_stuck, self.process_memory, self.thresholds_info):
            gauge.clear()
        self.thresholds_info.labels(thresholds)
        self.simulated.set(1 if is_simulated else 0)
        self.show_reload("configuration", True)

    def show_maintenance(self, reason: str | None) -> None:
        """Say which maintenance is in force, if any."""
        self.maintenance.clear()
        self.maintenance.labels(reason or "none").set(0 if reason is None else 1)

    def show_starvation(self, starvation: Starvation) -> None:
        """Say whether the node is starved, and what was measured for it."""
        self.starved.set(int(starvation.is_starved))
        self.daemon_late.set(round(starvation.late_seconds, 3))
        for resource, ratio in starvation.shares._asdict().items():
            if ratio is None:
                self.stall.remove(resource)
            else:
                self.stall.labels(resource).set(round(ratio, 4))

    def measure_processes(self, procfs: Path, processes: Sequence[tuple[str, list[int]]]) -> None:
        """Take CPU time and memory of the daemon's processes, summed by name.

        The last measured CPU time of a process that has ended stays in the sum: otherwise the sum would fall, and a
        fall of a counter is read as a restart, after which the whole sum counts as new.
        """
        before, self._cpu_seconds = self._cpu_seconds, {}
        used = _uses_of(procfs, [pid for _, pids in processes for pid in pids])
        for name, pids in processes:
            uses = {pid: used[pid] for pid in pids if pid in used}
            for pid, use in uses.items():
                seconds = use["process_cpu_seconds_total"]
                self.process_cpu.labels(name).inc(max(0.0, seconds - before.get(pid, 0.0)))
                self._cpu_seconds[pid] = seconds
            if uses:
                self.process_memory.labels(name).set(sum(use["process_resident_memory_bytes"] for use in uses.values()))
            else:
                self.process_memory.remove(name)

    def block(self, now: float) -> Block:
        """All current values as a block, for the rules and for who reads the snapshot itself."""
        samples = [one for family in self.registry.collect() for one in family.samples]
        series = tuple([(one.name, tuple(one.labels.values())) for one in samples])
        values = [int(one.value) if float(one.value).is_integer() else one.value for one in samples]
        if series != self._layout.series:
            self._layout = Layout(series)
        return Block(self._layout, values, now)


def _uses_of(procfs: Path, pids: Iterable[int]) -> Mapping[int, Mapping[str, float]]:
    """The library's ``process_*`` of each process that is there.

    They have one collector, as each reads /proc/stat, for which the kernel sums the interrupts of all cores.
    """
    pid = 0
    collector = ProcessCollector(pid=lambda: pid, proc=str(procfs), registry=None)
    found = {}
    for pid in pids:
        if use := {one.name: one.value for family in collector.collect() for one in family.samples}:
            found[pid] = use
    return found
