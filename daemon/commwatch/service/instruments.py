"""The daemon's own metrics, handed to the snapshot as one block."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from commwatch import __version__
from commwatch.node.starvation import Starvation
from commwatch.workers.process_state import process_use
from commwatch_exporters.catalogue import CATALOGUE, Metric
from commwatch_exporters.snapshot import Block, Layout


class Instrument:
    """A metric of the catalogue about the daemon: one that has no labels is 0 at first, another one has no series."""

    def __init__(self, metric: Metric) -> None:
        self.name = metric.name
        self.values: dict[tuple[str, ...], int | float] = {} if metric.labels else {(): 0}
        """By the values of its labels, in the order of the catalogue."""

    def set(self, value: float, *labels: str) -> None:
        """Say the value of now; a whole number is exposed without a decimal point."""
        self.values[labels] = int(value) if float(value).is_integer() else value

    def add(self, amount: float, *labels: str) -> None:
        """Count so much more."""
        self.set(self.values.get(labels, 0) + amount, *labels)

    def remove(self, *labels: str) -> None:
        """Say nothing of one series, if there is one."""
        self.values.pop(labels, None)

    def clear(self) -> None:
        """Say nothing of any series."""
        self.values.clear()


class Instruments:
    """Counters and gauges about the daemon, named and described by the catalogue."""

    def __init__(self) -> None:
        self._all: list[Instrument] = []
        """In the order of the page."""
        self._layout = Layout(())
        self._cpu_by_process: dict[str, dict[int, float]] = {}
        """CPU seconds of each process that is there, by name and process id."""
        self._cpu_of_ended: dict[str, float] = {}
        self.changed = True
        """Set when something changed that must not wait for the next periodic collection."""
        self.collector_success = self._instrument("collector_success")
        self.collector_duration = self._instrument("collector_duration_seconds")
        self.collector_interval = self._instrument("collector_interval_seconds")
        self.collector_last_success = self._instrument("collector_last_success_timestamp_seconds")
        self.collector_errors = self._instrument("collector_errors_total")
        self.worker_restarts = self._instrument("worker_restarts_total")
        self.worker_stuck_count = self._instrument("worker_stuck")
        self.config_reload_successful = self._instrument("config_last_reload_successful")
        self.config_reload_time = self._instrument("config_last_reload_success_timestamp_seconds")
        self.scheduler_missed = self._instrument("scheduler_missed_runs_total")
        self.clock_steps = self._instrument("clock_steps_total")
        self.starved = self._instrument("starved")
        self.daemon_late = self._instrument("daemon_late_seconds")
        self.stall = self._instrument("stall_ratio")
        self.counter_resets = self._instrument("counters_reset_total")
        self.finding_rule_errors = self._instrument("finding_rule_errors_total")
        self.healthcheck_unknown = self._instrument("healthcheck_unknown_total")
        self.process_cpu = self._instrument("process_cpu_seconds_total")
        self.process_memory = self._instrument("process_resident_memory_bytes")
        self.source_available = self._instrument("source_available")
        self.source_unread = self._instrument("source_unread")
        self.maintenance = self._instrument("maintenance")
        self.simulated = self._instrument("simulated")
        self.thresholds_info = self._instrument("thresholds_info")
        self._instrument("build_info").set(1, __version__, platform.python_version())
        self.maintenance.set(0, "none")

    def _instrument(self, name: str) -> Instrument:
        instrument = Instrument(CATALOGUE[f"commwatch_{name}"])
        self._all.append(instrument)
        return instrument

    def worker_restarted(self, worker: str, reason: str) -> None:
        """A worker process is replaced."""
        self.worker_restarts.add(1, worker, reason)

    def worker_stuck(self, worker: str, count: int) -> None:
        """So many processes of a worker missed their deadline and have not come back."""
        self.worker_stuck_count.set(count, worker)
        self.changed = True

    def forget_engine(self) -> None:
        """Say nothing of collectors, sources and processes: another configuration may not have them."""
        for gauge in (
            self.collector_success, self.collector_duration, self.collector_interval, self.collector_last_success,
            self.source_available, self.source_unread, self.worker_stuck_count, self.process_cpu, self.process_memory,
            self.thresholds_info,
        ):  # fmt: skip
            gauge.clear()
        self.changed = True

    def forget_run(self, collector: str, source: str) -> None:
        """Say nothing of the last run of a collector that rests; there may have been none."""
        for gauge in (self.collector_success, self.collector_duration):
            gauge.remove(collector)
        self.source_available.remove(source)
        self.source_unread.remove(source)
        self.changed = True

    def show_maintenance(self, reason: str | None) -> None:
        """Say which maintenance is in force, if any."""
        self.maintenance.clear()
        self.maintenance.set(0 if reason is None else 1, reason or "none")
        self.changed = True

    def show_starvation(self, starvation: Starvation) -> None:
        """Say whether the node is starved, and what was measured for it."""
        self.starved.set(int(starvation.is_starved))
        self.daemon_late.set(round(starvation.late_seconds, 3))
        for resource, ratio in starvation.shares._asdict().items():
            if ratio is None:
                self.stall.remove(resource)
            else:
                self.stall.set(round(ratio, 4), resource)
        self.changed = True

    def show_healthchecks(self, unknown: Mapping[str, int]) -> None:
        """Say how often healthcheck said unknown, by reason; whoever runs it keeps the totals."""
        for reason, total in unknown.items():
            self.healthcheck_unknown.set(total, reason)
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
                self.process_cpu.set(round(self._cpu_of_ended[name] + sum(cpu.values()), 3), name)
                self.process_memory.set(sum(use.resident_bytes for use in uses.values()), name)
            else:
                self.process_cpu.remove(name)
                self.process_memory.remove(name)
        self.changed = True

    def block(self, now: float) -> Block:
        """All current values as a block."""
        series = tuple([(one.name, labels) for one in self._all for labels in one.values])
        if series != self._layout.series:
            self._layout = Layout(series)
        self.changed = False
        return Block(self._layout, [value for one in self._all for value in one.values.values()], now)
