"""The source ``nvml_pcie_sampled``: PCIe traffic of the GPUs that do not measure it themselves (GPM), as samples.

``nvmlDeviceGetPcieThroughput`` counts for 20 ms and blocks for as long. It runs in a process of its own, so that no
other reading waits for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from commwatch.readings import Batch, DeviceReadings
from commwatch.sources.base import Origin, Report
from commwatch.sources.nvml import codes
from commwatch.sources.nvml.fields.pcie import SAMPLED
from commwatch.sources.nvml.gpm import gpm_support
from commwatch.sources.nvml.gpu import Gpu
from commwatch.sources.nvml.groups import Group, places_of
from commwatch.sources.nvml.identity import state_of
from commwatch.sources.nvml.plan import Plan
from commwatch.sources.nvml.source import NvmlSource, of_node
from commwatch_exporters.snapshot import Value

_STATES = tuple(("commwatch_counters_state", ("nvml", row.name)) for row in SAMPLED)


class SampleGroup(Group):
    """Bytes per second of one GPU, sent and received, each over its own window of 20 ms."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu, SAMPLED, places_of(0, 0))
        self.learned: list[bool | None] = [None] * len(SAMPLED)
        """By row: whether the last run had it; None where that was not tried."""

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """As ``Group.read``; all values are absent where the GPU has GPM.

        Raises:
            GpuGone, SourceUnavailable: as for ``Gpu.check_handle``.
        """
        gpu.check_handle()
        if gpm_support(gpu) is not False:
            self.learned = [None] * len(SAMPLED)
            return [None] * len(SAMPLED), monotonic()
        values: list[Value] = []
        self.learned = []
        for row in SAMPLED:
            value, code = gpu.ask(row.call, *row.arguments)
            self.learned.append(codes.exists(code))
            if self.learned[-1] is None:
                gpu.note(row.call.__name__, code)
            values.append(None if value is None or row.convert is None else row.convert(value))
        return values, monotonic()


class PcieSamples(NvmlSource):
    """PCIe traffic of the GPUs without GPM. One thread: GPUs one after another."""

    collectors = ("pcie_sampled",)

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """As ``NvmlSource.open``, but no GPU is reported.

        So a call that hangs is blamed on none: the reader of the driver decides whether a GPU answers. And the process
        is not replaced while it hangs, so that one at most does.

        Raises:
            SourceUnavailable: as there.
        """
        super().open(lambda device: None, leave_out, only)

    def _plan(self, gpu: Gpu) -> Plan:
        return Plan(self._monotonic(), None, {}, {"pcie_sampled": SampleGroup(gpu)}, None)

    def collect(self, collector: str) -> Batch:
        """Sample every GPU without GPM, and report whether any has the call.

        Raises:
            SourceUnavailable: the driver was unloaded or replaced since.
        """
        self._follow_driver()
        # In another order each time: else the steps of a job, in time with the samples, could show one GPU always busy
        # and the next one never.
        random.shuffle(self._opened)
        batch = super().collect(collector)
        learned = [
            group.learned for opened in self._opened if isinstance(group := opened.plan.groups[collector], SampleGroup)
        ]
        states = [state_of(of_row) for of_row in zip(*learned, strict=True)] or [None] * len(_STATES)
        batch.readings.append(DeviceReadings("", self._monotonic(), _STATES, states))
        batch.readings.sort(key=lambda one: one.device)
        return batch


def make_source(origin: Origin) -> PcieSamples:
    return of_node(PcieSamples, origin)
