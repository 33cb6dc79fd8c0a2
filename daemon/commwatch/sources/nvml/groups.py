"""The counters of one collector on one GPU, prepared once and read again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from commwatch.sources.nvml.field_values import FieldBatch
from commwatch.sources.nvml.fields import Counter, FieldCounter
from commwatch.sources.nvml.gpu import Gpu
from commwatch_exporters.snapshot import Series, Value


class Group:
    """The counters of one collector on one GPU, ready to be read."""

    def __init__(self, gpu: Gpu, rows: Sequence[Counter], links: int, earlier: Group | None = None) -> None:
        series: list[Series] = []
        requests: list[tuple[int, int, int]] = []
        self._decoded: list[tuple[int, Callable[[int], float]]] = []
        self._calls: list[tuple[Callable[..., Any], tuple[int, ...], Callable[[Any], Value] | None]] = []
        # Fields come first, as they are read first.
        for row in sorted(rows, key=lambda row: not isinstance(row, FieldCounter)):
            for link in (None,) if row.scope == "device" else range(links):
                labels = gpu.labels if link is None else (*gpu.labels, str(link))
                if isinstance(row, FieldCounter):
                    if row.decode is not None:
                        self._decoded.append((len(series), row.decode))
                    scope = link if link is not None and row.scope == "link" else 0
                    requests.append((row.field, scope, row.scale))
                else:
                    arguments = row.arguments if link is None else (link, *row.arguments)
                    self._calls.append((row.call, arguments, row.convert))
                series.append((row.metric, labels))
        self._batch = FieldBatch(requests) if requests else None
        self.series = _kept(tuple(series), earlier)

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """The values of ``series``, and the monotonic seconds at which they were taken.

        The time is ours, right after the one call that gives the fields. The driver's own timestamps may be 0 and
        belong to the wall clock, so they cannot stand in a series of monotonic times.

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
        return values, time


class TrafficGroup(Group):
    """State and bytes of the links."""

    def __init__(self, gpu: Gpu, rows: Sequence[Counter], links: int, earlier: Group | None = None) -> None:
        super().__init__(gpu, rows, links, earlier)
        places = [place for place, (metric, _) in enumerate(self.series) if metric == "commwatch_nvlink_link_state"]
        self._states = slice(places[0], places[-1] + 1) if places else slice(0)

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """As ``Group.read``; with MIG enabled the driver calls sound links inactive, so there the states are absent."""
        values, time = super().read(gpu, monotonic)
        states = values[self._states]
        if 0 in states and gpu.mig_enabled():
            values[self._states] = [None] * len(states)
        return values, time


_USE = frozenset({"commwatch_gpu_utilization_ratio", "commwatch_gpu_compute_processes"})
"""What says that a GPU is in use."""


class UseGroup(Group):
    """Use, memory and modes of the GPU; from utilisation and compute processes, whether it is busy."""

    def __init__(self, gpu: Gpu, rows: Sequence[Counter], links: int, earlier: Group | None = None) -> None:
        super().__init__(gpu, rows, links)
        self._use = [place for place, (metric, _) in enumerate(self.series) if metric in _USE]
        if self._use:
            self.series = _kept((*self.series, ("commwatch_gpu_busy", gpu.labels)), earlier)

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """As ``Group.read``; busy is absent where neither could be read."""
        values, time = super().read(gpu, monotonic)
        if self._use:
            known = [values[place] for place in self._use if values[place] is not None]
            values.append(int(any(known)) if known else None)
        return values, time


def _kept(series: tuple[Series, ...], earlier: Group | None) -> tuple[Series, ...]:
    """The earlier object where nothing changed, so that the series need not travel again."""
    return earlier.series if earlier is not None and earlier.series == series else series
