"""How much a job uses its GPUs and their links, from run to run of the collectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from commwatch.node.gpus_now import PROCESS_COLLECTOR
from commwatch.node.rate import DIRECTIONS
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Layout, Value

GROUP: Final = "job_use"
COLLECTOR: Final = "nvml_gpu"
SLICE_SECONDS: Final = 60.0
SLICES: Final = 60
"""An hour: shorter, a checkpoint or the start of a job looks like idle GPUs."""
RECENT_SLICES: Final = 10
"""Ten minutes, in which the GPUs of one job are compared with each other: a checkpoint is on all of them at once."""
_PAIR: Final = 2
"""Of the five pairs of minutes in ten minutes the highest and the lowest are left out: eight minutes have to agree.
With one pause in ten minutes, however long it is, neither the busy nor the idle pairs can be as few as one, so a
checkpoint is not taken for GPUs that wait. A single minute has six samples, too few where a step takes many seconds."""
_KINDS: Final = ("", "nvlink_", "pcie_", "network_")


class _Slice:
    """Sums over a minute."""

    __slots__ = ("begin", "counts", "sums")

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.sums, self.counts = [0.0] * len(_KINDS), [0] * len(_KINDS)

    def add(self, values: Sequence[Value]) -> None:
        for place, value in enumerate(values):
            if value is not None:
                self.sums[place] += value
                self.counts[place] += 1


class Course:
    """One GPU while the same processes are on it."""

    def __init__(self) -> None:
        self.processes: frozenset[int] = frozenset()
        """Those that have been there all the time."""
        self._slices: deque[_Slice] = deque(maxlen=SLICES + 1)
        """The last one goes on."""
        self._seen_at = float("-inf")

    def take(self, now: float, processes: frozenset[int], values: Sequence[Value], max_gap: float) -> None:
        """Take a reading.

        Args:
            now: monotonic seconds.
            processes: on the GPU; another set altogether is another job, and none is no job.
            values: use of GPU, NVLink, PCIe and network, ratios; None where not read.
            max_gap: seconds; readings further apart say nothing of the time between them.
        """
        stayed = self.processes & processes
        if not stayed or now - self._seen_at > max_gap:
            stayed = processes
            self._slices.clear()
        self.processes, self._seen_at = stayed, now
        if not self._slices or now - self._slices[-1].begin >= SLICE_SECONDS:
            self._slices.append(_Slice(now))
        self._slices[-1].add(values)

    @property
    def is_whole(self) -> bool:
        """Whether a job has been here for an hour."""
        return bool(self.processes) and len(self._slices) > SLICES

    @property
    def is_begun(self) -> bool:
        """Whether a job has been here for ten minutes."""
        return bool(self.processes) and len(self._slices) > RECENT_SLICES

    def means(self) -> list[Value]:
        """Over the last hour; None where a minute lacks the number."""
        return _means(list(self._slices)[:SLICES])

    def recent(self) -> list[Value]:
        """Over the last ten whole minutes; likewise."""
        return _means(list(self._slices)[-RECENT_SLICES - 1 : -1])

    def kept_up(self) -> list[Value]:
        """Use of the GPU and its links that at least eight of the last ten whole minutes reached, then use of the GPU
        that at least eight of them did not exceed; None where a minute lacks the number."""
        last = list(self._slices)[-RECENT_SLICES - 1 : -1]
        pairs = zip(*(_means(last[at : at + _PAIR]) for at in range(0, RECENT_SLICES, _PAIR)), strict=True)
        shares = [None if None in one else sorted(one) for one in pairs]
        lows = [None if one is None else one[1] for one in shares]
        return [*lows, None if shares[0] is None else shares[0][-2]]


def _means(slices: Sequence[_Slice]) -> list[Value]:
    return [
        sum(one.sums[place] for one in slices) / sum(one.counts[place] for one in slices)
        if all(one.counts[place] for one in slices)
        else None
        for place in range(len(_KINDS))
    ]


class JobUse(Tracker):
    """The use of every GPU by its job, put into the store once the job has had it for ten minutes, and for an hour."""

    collectors = (COLLECTOR,)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP, [COLLECTOR, PROCESS_COLLECTOR])
        self._courses: dict[str, Course] = {}
        """By PCI address."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take the use of each GPU, and forget the GPUs that were not read."""
        collector = outcome.collector
        blocks = {device: one for device, one in outcome.collected.blocks.items() if one.layout.series}
        network = max(self._network(), default=None)
        max_gap = max(2 * SLICE_SECONDS, 3 * collector.current_interval)
        for device, block in blocks.items():
            labels = block.layout.series[0][1][:2]
            values = (
                block.get("commwatch_gpu_utilization_ratio", *labels),
                *(self._use(family, device, labels) for family in ("nvlink", "pcie")),
                network,
            )
            course = self._courses.setdefault(device, Course())
            course.take(block.time, frozenset(self._store.occupants.get(device, ())), values, max_gap)
        for device in self._courses.keys() - blocks.keys():
            del self._courses[device]
        self._put({device: block.layout.series[0][1][:2] for device, block in blocks.items()}, outcome)

    def _put(self, labels: Mapping[str, tuple[str, ...]], outcome: Outcome) -> None:
        """Once a minute: the means move no faster."""
        jobs = {device: self._job(one.processes) for device, one in self._courses.items() if one.is_begun}
        self._store.retain(GROUP, jobs.keys())
        for device, job in jobs.items():
            known = self._store.get(GROUP, device)
            if known is not None and outcome.time - known.time < SLICE_SECONDS:
                continue
            first = min(int(labels[one][0]) for one, other in jobs.items() if one == device or other == job != 0)
            course = self._courses[device]
            metrics = ["gpu_job_first", *(f"gpu_job_{kind}recent_use_ratio" for kind in _KINDS)]
            metrics += [*(f"gpu_job_{kind}recent_use_low_ratio" for kind in _KINDS), "gpu_job_recent_use_high_ratio"]
            values = [first, *course.recent(), *course.kept_up()]
            if course.is_whole:
                metrics += [f"gpu_job_{kind}use_ratio" for kind in _KINDS]
                values += course.means()
            block = Block(Layout((f"commwatch_{metric}", labels[device]) for metric in metrics), values, outcome.time)
            self._store.put(GROUP, device, block, 2 * SLICE_SECONDS + outcome.collector.lifetime)

    def _job(self, processes: frozenset[int]) -> int:
        """The identity of a job; 0 if processes of several share the GPU, or may."""
        jobs = {self._store.jobs.get(process, process) for process in processes}
        return jobs.pop() if len(jobs) == 1 else 0

    def _use(self, family: str, device: str, labels: tuple[str, ...]) -> Value:
        blocks = [self._store.get(group, device) for group in (f"{family}_use", f"{family}_sampled_use")]
        metrics = [f"commwatch_{family}_{way}_utilization_ratio" for way in DIRECTIONS]
        known = (one.get(metric, *labels) for one in blocks if one is not None for metric in metrics)
        return max((one for one in known if one is not None), default=None)

    def _network(self) -> Iterator[float]:
        for family in ("rdma_use", "ethernet_use"):
            for block in self._store.group(family).values():
                for (metric, _), value in block.items():
                    if value is not None and metric.endswith("utilization_ratio"):
                        yield value
