"""The counters of one collector on one GPU, prepared once and read again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pynvml

from commwatch.sources.nvml import codes
from commwatch.sources.nvml.field_values import FieldBatch, batch_of
from commwatch.sources.nvml.fields.row import CallCounter, CallReport, Counter, FieldCounter, Scope
from commwatch.sources.nvml.gpu import Gpu
from commwatch_exporters.snapshot import Series, Value

Places: TypeAlias = Mapping[Scope, Sequence[int | None]]
"""By scope: the links that a GPU has of it; for ``device`` a single None."""


def places_of(links: int, c2c_links: int) -> Places:
    """The places of a GPU with these numbers of NVLinks and chip-to-chip links."""
    return {"device": (None,), "link": range(links), "all_links": range(links), "c2c_link": range(c2c_links)}


class Group:
    """The counters of one collector on one GPU, ready to be read."""

    def __init__(self, gpu: Gpu, rows: Sequence[Counter], places: Places) -> None:
        """Prepare the reading.

        Args:
            rows: its counters, all of one collector.
        """
        series: list[Series] = []
        requests: list[tuple[int, int, int]] = []
        self._decoded: list[tuple[int, Callable[[int], float]]] = []
        self._calls: list[tuple[Callable[..., Any], tuple[int, ...], Callable[[Any], Value] | None]] = []
        self._reports: list[CallReport] = []
        self._batch: FieldBatch | None = None
        for row in rows:
            if not isinstance(row, FieldCounter):
                continue
            for place in places[row.scope]:
                if row.decode is not None:
                    self._decoded.append((len(series), row.decode))
                scope = place if place is not None and row.scope != "all_links" else 0
                requests.append((row.field, scope, row.scale))
                series.append((row.metric, _labels(gpu, place, row)))
        # In the order of reading: fields, calls, reports.
        for call in [row for row in rows if isinstance(row, CallCounter)]:
            for place in places[call.scope]:
                arguments = call.arguments if place is None else (place, *call.arguments)
                self._calls.append((call.call, arguments, call.convert))
                series.append((call.metric, _labels(gpu, place, call)))
        for report in [row for row in rows if isinstance(row, CallReport)]:
            self._reports.append(report)
            series += [(metric, (*gpu.labels, *labels)) for metric, labels in report.series]
        if requests:
            self._batch = batch_of(tuple(requests))
        self.series = tuple(series)

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """The values of ``series``, and the monotonic seconds at which they were taken.

        The time is ours, right after the one call that gives the fields. The driver's own timestamps may be 0 and
        belong to the wall clock, so they cannot be used in a series of monotonic times.

        Raises:
            GpuGone, SourceUnavailable: as for ``Gpu.note``.
        """
        values = gpu.read(self._batch) if self._batch is not None else []
        time = monotonic()
        for position, decode in self._decoded:
            packed = values[position]
            if packed is not None:
                values[position] = decode(int(packed))
        for function, arguments, convert in self._calls:
            value = gpu.call(function, *arguments)
            values.append(value if value is None or convert is None else convert(value))
        for report in self._reports:
            answer = gpu.call(report.call, *report.arguments)
            values += [None] * len(report.series) if answer is None else report.convert(answer)
        return values, time

    def close(self) -> None:
        """Give back what the driver lent; most groups hold nothing."""


class TrafficGroup(Group):
    """State and bytes of the links."""

    def __init__(self, gpu: Gpu, rows: Sequence[Counter], places: Places) -> None:
        super().__init__(gpu, rows, places)
        found = [place for place, (metric, _) in enumerate(self.series) if metric == "commwatch_nvlink_link_state"]
        self._states = slice(found[0], found[-1] + 1) if found else slice(0)

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """As ``Group.read``; with MIG enabled the driver calls sound links inactive, so there the states are absent."""
        values, time = super().read(gpu, monotonic)
        states = values[self._states]
        if 0 in states and gpu.mig_enabled():
            values[self._states] = [None] * len(states)
        return values, time


class UseGroup(Group):
    """The GPU's current use; whether it is busy follows from its utilisation or, if there is none, its compute
    processes."""

    def __init__(self, gpu: Gpu, rows: Sequence[Counter], places: Places) -> None:
        super().__init__(gpu, rows, places)
        used = ("commwatch_gpu_utilization_ratio", gpu.labels)
        self._utilization = self.series.index(used) if used in self.series else None
        self.series = (*self.series, ("commwatch_gpu_busy", gpu.labels))

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """As ``Group.read``; busy is absent where neither could be read."""
        values, time = super().read(gpu, monotonic)
        used = None if self._utilization is None else values[self._utilization]
        values.append(1 if used else self._busy_without_work(gpu, used))
        return values, time

    def _busy_without_work(self, gpu: Gpu, used: Value) -> int | None:
        # The list of processes is slow, so it is left alone where the answer is known without it.
        processes = gpu.call(_COMPUTE_PROCESSES)
        if processes is None:
            return None if used is None else 0
        return int(bool(processes))


_COMPUTE_PROCESSES: Final[Callable[..., Any]] = pynvml.nvmlDeviceGetComputeRunningProcesses_v3


class ProcessGroup(Group):
    """Which processes are on the GPU, and who may use it."""

    def __init__(self, gpu: Gpu, rows: Sequence[Counter], places: Places) -> None:
        super().__init__(gpu, rows, places)
        self.occupants: tuple[int, ...] | None = None
        """Ids of the processes with a compute context, clients of MPS too, at the last reading; None: not read."""
        count = ("commwatch_gpu_compute_processes", gpu.labels)
        self._count = self.series.index(count) if count in self.series else None
        self._has_clients = True
        self._calls = [
            (call, arguments, self._keep if call is _COMPUTE_PROCESSES else convert)
            for call, arguments, convert in self._calls
        ]

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """As ``Group.read``; the number of processes is absent where either list could not be read."""
        self.occupants = None
        values, time = super().read(gpu, monotonic)
        if self.occupants is not None and self._count is not None:
            self.occupants = self._with_clients(gpu, self.occupants)
            values[self._count] = None if self.occupants is None else len(self.occupants)
        return values, time

    def _keep(self, processes: Any) -> int:  # the binding has no types
        # A process on several MIG instances is listed with each of them.
        self.occupants = tuple(dict.fromkeys(int(process.pid) for process in processes))
        return len(self.occupants)

    def _with_clients(self, gpu: Gpu, found: tuple[int, ...]) -> tuple[int, ...] | None:
        """With the processes that compute through the server of MPS, which a list of its own has."""
        if not self._has_clients:
            return found
        clients, code = gpu.ask(pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3)
        if clients is None:
            gpu.note("nvmlDeviceGetMPSComputeRunningProcesses", code)
            self._has_clients = code not in codes.NOT_THERE
            return None if self._has_clients else found
        return tuple(dict.fromkeys((*found, *(int(process.pid) for process in clients))))


def _labels(gpu: Gpu, place: int | None, row: Counter) -> tuple[str, ...]:
    return (*gpu.labels, *row.labels) if place is None else (*gpu.labels, str(place), *row.labels)
