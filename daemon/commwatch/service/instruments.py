"""The daemon's own metrics: kept by prometheus_client, handed to the snapshot as one block."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.registry import CollectorRegistry

from commwatch import __version__
from commwatch.workers.process_state import process_use
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout, Series


class Instruments:
    """Counters and gauges about the daemon, named and described by the catalogue."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._layout = Layout(())
        self._cpu_by_process: dict[str, dict[int, float]] = {}
        """CPU seconds of each process that is there, by name and process id."""
        self._cpu_of_ended: dict[str, float] = {}
        self.changed = True
        """Set when something changed that must not wait for the next periodic collection."""
        self.collector_success = self._gauge("collector_success")
        self.collector_duration = self._gauge("collector_duration_seconds")
        self.collector_interval = self._gauge("collector_interval_seconds")
        self.collector_last_success = self._gauge("collector_last_success_timestamp_seconds")
        self.collector_errors = self._counter("collector_errors_total")
        self.worker_restarts = self._counter("worker_restarts_total")
        self.worker_stuck_count = self._gauge("worker_stuck")
        self.config_reload_successful = self._gauge("config_last_reload_successful")
        self.config_reload_time = self._gauge("config_last_reload_success_timestamp_seconds")
        self.scheduler_missed = self._counter("scheduler_missed_runs_total")
        self.clock_steps = self._counter("clock_steps_total")
        self.counter_resets = self._counter("counters_reset_total")
        self.finding_rule_errors = self._counter("finding_rule_errors_total")
        self.healthcheck_unknown = self._gauge("healthcheck_unknown_total")
        self.process_cpu = self._gauge("process_cpu_seconds_total")
        self.process_memory = self._gauge("process_resident_memory_bytes")
        self.source_available = self._gauge("source_available")
        self.maintenance = self._gauge("maintenance")
        self.simulated = self._gauge("simulated")
        self.thresholds_info = self._gauge("thresholds_info")
        self._gauge("build_info").labels(__version__, platform.python_version()).set(1)
        self.maintenance.labels("none").set(0)

    def _gauge(self, name: str) -> Gauge:
        metric = CATALOGUE[f"commwatch_{name}"]
        return Gauge(metric.name, metric.text, metric.labels, registry=self._registry)

    def _counter(self, name: str) -> Counter:
        metric = CATALOGUE[f"commwatch_{name}"]
        return Counter(metric.name, metric.text, metric.labels, registry=self._registry)

    def worker_restarted(self, worker: str, reason: str) -> None:
        """A worker process is replaced."""
        self.worker_restarts.labels(worker, reason).inc()

    def worker_stuck(self, worker: str, count: int) -> None:
        """So many processes of a worker missed their deadline and have not come back."""
        self.worker_stuck_count.labels(worker).set(count)
        self.changed = True

    def forget_engine(self) -> None:
        """Say nothing of collectors, sources and processes: another configuration may not have them."""
        for gauge in (
            self.collector_success, self.collector_duration, self.collector_interval, self.collector_last_success,
            self.source_available, self.worker_stuck_count, self.process_cpu, self.process_memory,
            self.thresholds_info,
        ):  # fmt: skip
            gauge.clear()
        self.changed = True

    def forget_run(self, collector: str, source: str) -> None:
        """Say nothing of the last run of a collector that rests; there may have been none."""
        for gauge in (self.collector_success, self.collector_duration):
            gauge.remove_by_labels({"collector": collector})
        self.source_available.remove_by_labels({"source": source})
        self.changed = True

    def show_maintenance(self, reason: str | None) -> None:
        """Say which maintenance is in force, if any."""
        self.maintenance.clear()
        self.maintenance.labels(reason or "none").set(0 if reason is None else 1)
        self.changed = True

    def show_healthchecks(self, unknown: Mapping[str, int]) -> None:
        """Say how often healthcheck said unknown, by reason; whoever runs it keeps the totals."""
        for reason, total in unknown.items():
            self.healthcheck_unknown.labels(reason).set(total)
        self.changed = True

    def measure_processes(self, procfs: Path, processes: Iterable[tuple[str, list[int]]]) -> None:
        """Take CPU time and memory of the daemon's processes, summed by name.

        What a process that has ended used, as last measured, stays in the sum of CPU time: it would fall otherwise
        while another process goes on, and a fall of that sum looks like the whole of it used at once.
        """
        for name, pids in processes:
            uses = {pid: use for pid in pids if (use := process_use(procfs, pid)) is not None}
            cpu = self._cpu_by_process.setdefault(name, {})
            self._cpu_of_ended[name] = self._cpu_of_ended.get(name, 0.0) + sum(
                cpu.pop(pid) for pid in list(cpu) if pid not in uses
            )
            cpu.update({pid: use.cpu_seconds for pid, use in uses.items()})
            if uses:
                self.process_cpu.labels(name).set(round(self._cpu_of_ended[name] + sum(cpu.values()), 3))
                self.process_memory.labels(name).set(sum(use.resident_bytes for use in uses.values()))
            else:
                self.process_cpu.remove_by_labels({"process": name})
                self.process_memory.remove_by_labels({"process": name})
        self.changed = True

    def block(self, now: float) -> Block:
        """All current values as a block."""
        series: list[Series] = []
        values: list[float] = []
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name not in CATALOGUE:  # the client's own _created series
                    continue
                labels = CATALOGUE[sample.name].labels
                series.append((sample.name, tuple(sample.labels[label] for label in labels)))
                values.append(int(sample.value) if sample.value.is_integer() else sample.value)
        if tuple(series) != self._layout.series:
            self._layout = Layout(series)
        self.changed = False
        return Block(self._layout, values, now)
