"""GPM, the driver's own measurement between two samples: bytes over PCIe, on data centre GPUs from Hopper on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pynvml

from commwatch.sources.nvml import codes
from commwatch.sources.nvml.fields.row import GpmCounter
from commwatch.sources.nvml.gpu import Gpu
from commwatch.sources.nvml.groups import Group, Places
from commwatch_exporters.snapshot import Value

CONFIDENTIAL_COMPUTING: Final = "system_conf_compute_state"
"""Label ``counter`` of ``commwatch_counters_state``."""
_OFF, _ON, _ON_WITH_DEVELOPER_TOOLS = range(3)
_SHORTEST_INTERVAL: Final = 0.12  # seconds; the driver wants more than 0.1 between two samples, by its own clock
_MIB: Final = 2**20
_DIRECTIONS: Final = (
    # metric id of the rate in MiB/s, and of the bytes since boot
    (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_TX),
    (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_RX),
)
_NUMBERS: Final = tuple(number for pair in _DIRECTIONS for number in pair)
_RATES: Final = tuple(rate for rate, _ in _DIRECTIONS)


def confidential_computing_mode() -> tuple[int | None, int]:
    """Mode of this node, or None where the driver does not say; and NVML's return code.

    Confidential computing switches the GPUs' performance counters off.
    """
    try:
        state = pynvml.nvmlSystemGetConfComputeState()
    except pynvml.NVMLError as error:
        return None, error.value
    if not state.ccFeature:
        return _OFF, codes.SUCCESS
    return (_ON_WITH_DEVELOPER_TOOLS if state.devToolsMode else _ON), codes.SUCCESS


def gpm_support(gpu: Gpu) -> bool | None:
    """False if a GPU has no GPM now; None if only its first metrics will show it.

    With MIG enabled the numbers are of instances, which PCIe does not have; with confidential computing on, the
    performance counters are off.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.check``.
    """
    support, code = gpu.ask(pynvml.nvmlGpmQueryDeviceSupport)
    gpu.check(pynvml.nvmlGpmQueryDeviceSupport.__name__, code)
    if code in codes.ABSENT or (support is not None and not support.isSupportedDevice):
        return False
    if gpu.mig_enabled() or confidential_computing_mode()[0] == _ON:
        return False
    return None


class GpmGroup(Group):
    """Rates of PCIe between the last two runs, and bytes: the driver's own count, else the sum of the rates."""

    def __init__(self, gpu: Gpu, rows: Sequence[GpmCounter], places: Places) -> None:
        super().__init__(gpu, (), places)
        self._numbers = tuple(row.number for row in rows)
        self._names = {row.number: row.name for row in rows}
        self.series = tuple((row.metric, gpu.labels) for row in rows)
        self.learned: dict[str, bool | None] = {}
        """By counter name: whether the last metrics had it."""
        self._sampler = Sampler()
        self._bytes = {rate: ByteCount() for rate, _ in _DIRECTIONS}

    def go_on_from(self, earlier: GpmGroup) -> None:
        """Take over what was sampled and summed so far: it outlives a new plan."""
        self._sampler, self._bytes, self.learned = earlier._sampler, earlier._bytes, earlier.learned

    def read(self, gpu: Gpu, monotonic: Callable[[], float]) -> tuple[list[Value], float]:
        """As ``Group.read``; all values are absent in the first run, and where MIG was enabled since.

        Raises:
            GpuGone, SourceUnavailable: as for ``Gpu.note``.
        """
        metrics = self._sampler.metrics_since_last(gpu, monotonic)
        time = monotonic()
        if metrics is None:
            return [None] * len(self.series), time
        seconds, answers = metrics
        for number, name in self._names.items():
            self.learned[name] = codes.exists(answers[number][0])
        values: dict[int, Value] = {}
        for rate, count in _DIRECTIONS:
            gpu.note(f"nvmlGpmMetricsGet metric {rate}", answers[rate][0])
            mib_per_second = _number(answers[rate])
            values[rate] = None if mib_per_second is None else mib_per_second * _MIB
            values[count] = self._bytes[rate].update(values[rate], seconds, answers[count])
        return [values[number] for number in self._numbers], time

    def close(self) -> None:
        """Give the samples back to the library."""
        self._sampler.close()


class ByteCount:
    """Bytes of one direction, by the one of two ways that the first metrics decided on.

    Changing over later would make the counter jump by all bytes since boot.
    """

    def __init__(self) -> None:
        self._counted_by_driver: bool | None = None
        self._sum = 0.0

    def update(self, rate: Value, seconds: float, answer: tuple[int, float]) -> int | None:
        """The count after another pair of samples.

        Args:
            rate: bytes per second between the samples; None where it was not read.
            answer: return code and value of the driver's own count.
        """
        count = _number(answer)
        if self._counted_by_driver is None and (count is not None or rate is not None):
            self._counted_by_driver = count is not None
        if self._counted_by_driver:
            return None if count is None else int(count)
        if self._counted_by_driver is None or rate is None:
            return None
        self._sum += rate * seconds
        return int(self._sum)


class Sampler:
    """The last two samples of one GPU, and the structure for the metrics between them, allocated once."""

    def __init__(self) -> None:
        self._samples: list[Any] = []  # the binding has no types
        self._taken: float | None = None
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._numbers = _NUMBERS

    def metrics_since_last(
        self, gpu: Gpu, monotonic: Callable[[], float]
    ) -> tuple[float, Mapping[int, tuple[int, float]]] | None:
        """Take a sample: seconds since the one before, and by metric id the return code and the value between them.

        None where there was none before, where too little time has passed, and where a call failed, which is noted.

        Raises:
            GpuGone, SourceUnavailable: as for ``Gpu.note``.
        """
        if self._taken is not None and monotonic() - self._taken <= _SHORTEST_INTERVAL:
            return None
        code = self._allocate() or gpu.ask(self._sample)[1]
        if code != codes.SUCCESS:
            gpu.check("nvmlGpmSampleGet", code)
            if not gpu.mig_enabled():
                gpu.note("nvmlGpmSampleGet", code)
            return None
        taken, before = monotonic(), self._taken
        older, newer = self._samples
        self._samples, self._taken = [newer, older], taken
        if before is None:
            return None
        code = self._compute(older, newer)
        if code in codes.NOT_THERE and self._numbers != _RATES:
            # Whether a library from before the counts refuses only these or all of the request is not documented.
            self._numbers = _RATES
            code = self._compute(older, newer)
        gpu.note("nvmlGpmMetricsGet", code)
        if code != codes.SUCCESS:
            return None
        found = dict.fromkeys(_NUMBERS, (pynvml.NVML_ERROR_NOT_SUPPORTED, math.nan))
        for place, number in enumerate(self._numbers):
            metric = self._request.metrics[place]
            found[number] = (metric.nvmlReturn, metric.value)
        return taken - before, found

    def _allocate(self) -> int:
        try:
            while len(self._samples) < 2:
                self._samples.append(pynvml.nvmlGpmSampleAlloc())
        except pynvml.NVMLError as error:
            return int(error.value)
        return codes.SUCCESS

    def _sample(self, handle: object) -> None:
        """Overwrite the older of the two samples, which comes second."""
        pynvml.nvmlGpmSampleGet(handle, self._samples[1])

    def _compute(self, older: object, newer: object) -> int:
        request = self._request
        request.sample1, request.sample2, request.numMetrics = older, newer, len(self._numbers)
        for place, number in enumerate(self._numbers):
            metric = request.metrics[place]
            # An entry that the driver leaves alone must not give the value of the run before.
            metric.metricId, metric.nvmlReturn, metric.value = number, pynvml.NVML_ERROR_UNKNOWN, math.nan
        try:
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError as error:
            return int(error.value)
        return codes.SUCCESS

    def close(self) -> None:
        """Give the samples back to the library."""
        samples, self._samples, self._taken = self._samples, [], None
        for sample in samples:
            # A driver that was unloaded meanwhile has nothing to take back.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)


def _number(answer: tuple[int, float]) -> float | None:
    """The value of an answer that has one; GPM gives NaN where it could not measure."""
    code, value = answer
    return value if code == codes.SUCCESS and math.isfinite(value) and value >= 0 else None
