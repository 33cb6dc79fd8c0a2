"""Jobs that have stopped moving data: whether they are stuck, for how long, and which rank differs from the others."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from commwatch.config.thresholds import Thresholds
from commwatch.jobs.evidence import JobRank, SuspectedJob, has_arrived_alone
from commwatch.jobs.payload import payload_of
from commwatch.jobs.ranks import (
    RANKS_MAX,
    SAMPLES,
    Sampled,
    idle_share,
    odd_rank,
    read_rank,
    read_storage,
    read_uptime,
)
from commwatch.node.gpus_now import PROCESS_COLLECTOR
from commwatch.node.pcie_samples import COLLECTOR as PCIE_SAMPLES
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Series, Value

GROUP: Final = "job_stuck"
_COLLECTOR: Final = "nvml_gpu"
_IDENTITY: Final = "nvml_identity"
_FAMILIES: Final = {"nvml_nvlink": "nvlink", "nvml_gpm": "pcie", PCIE_SAMPLES: "pcie_sampled"}
"""Kind of link by the collector whose readings show its use."""
_NETWORKS: Final = ("rdma", "network")
_RDMA_BYTES: Final = ("commwatch_rdma_port_transmit_bytes_total", "commwatch_rdma_transmit_bytes_total")
"""Of the port and, where a driver has none of those, such as EFA, of the adapter."""
_SILENT: Final = tuple(f"commwatch_job_{name}" for name in ("stuck_seconds", "silent_seconds", "stopped_processes"))
"""Without a series while there is no job."""
_DETAILS: Final = ("commwatch_job_stuck_unread", "commwatch_job_stuck_first", "commwatch_job_odd_rank")
SUSPECTED_SECONDS: Final = 30.0
"""From here on the processes of the job are read; before it none is opened."""
_IDLE_RATIO: Final = 0.05
"""A GPU that computes for less of the time is idle."""
_MINUTES: Final = 60
"""Of the highest power of each: an hour."""
_PAUSE_SECONDS: Final = 60.0
"""Seconds without payload after which the time of moving data starts from zero."""
_MAX_GAP_SECONDS: Final = 120.0
"""Readings further apart say nothing of the time between them."""

_Act: TypeAlias = Literal["", "stuck", "silent"]
"""State of the GPUs of a job that moves no data: stuck: at least one spins, and the others spin or are idle. silent:
all are idle. Empty: at least one computes."""


class _Gpu:
    """Readings of a GPU, independent of the jobs on it."""

    def __init__(self) -> None:
        self.moved_at = float("-inf")
        """Monotonic seconds of the last payload over NVLink or PCIe."""
        self.idle_watts: float | None = None
        """The lowest power that was read while nothing ran."""
        self._highest: deque[tuple[float, float]] = deque(maxlen=_MINUTES)
        """Begin of a minute and the highest power in it."""

    def take(self, now: float, use: float, watts: float) -> None:
        """Take a reading of use (a ratio) and power."""
        if use == 0:
            self.idle_watts = min(watts, self.idle_watts or watts)
        if not self._highest or now - self._highest[-1][0] >= 60:
            self._highest.append((now, watts))
        elif watts > self._highest[-1][1]:
            self._highest[-1] = self._highest[-1][0], watts

    def least_of_work(self, share: float) -> float | None:
        """Power that work takes at least: idle and a share of the range of the last hour; None where not known."""
        if self.idle_watts is None:
            return None
        return self.idle_watts + share * (max(watts for _, watts in self._highest) - self.idle_watts)


class _Job:
    """The processes of one job on this node, and the course of its traffic. Times are monotonic seconds."""

    def __init__(self, pids: frozenset[int]) -> None:
        self.pids = pids
        self.begin()

    def begin(self) -> None:
        """Forget its course: what came before a gap says nothing of what follows."""
        self.run_since = self.exchanged_at = float("-inf")
        """Begin and last moment of the payload of its GPUs without a pause of a minute."""
        self.moved_at = float("-inf")
        """Last moment of that or of other traffic of the node."""
        self.act: _Act = ""
        self.since = 0.0
        """When it began to do that."""
        self.longest = 0.0
        """Seconds of its longest pause that looked stuck and ended by itself."""
        self.samples: deque[Sampled] = deque(maxlen=SAMPLES)
        """Of its processes, while it is suspected."""
        self.storage: tuple[float, int] | None = None
        """When it was read, and the bytes that the disks had moved; likewise."""
        self.read_at = float("-inf")
        """When all signals were read last."""
        self.ranks: tuple[JobRank, ...] = ()
        """Its processes by GPU, while it moves nothing; those that have ended meanwhile are among them."""

    def take(self, act: _Act, earlier: float, moved_at: float) -> None:
        """Take what its GPUs do now, the time of the reading before, and when payload moved last."""
        # A counter may be read before the GPUs and arrive after them: its traffic can be older than their last reading.
        moved, paused = moved_at > self.moved_at, self.paused(earlier)
        if moved or act != self.act:
            if self.act == "stuck" and (moved or not act) and paused >= SUSPECTED_SECONDS and not self.stopped:
                self.longest = max(self.longest, paused)
            self.samples.clear()
            self.storage, self.ranks = None, ()
        if moved:
            self.moved_at = moved_at
        if act != self.act:
            self.act, self.since = act, earlier

    def exchange(self, at: float) -> None:
        """Take the last moment of payload over NVLink or PCIe of its GPUs."""
        if at - self.exchanged_at > _PAUSE_SECONDS:
            self.run_since = at
        self.exchanged_at = at

    def paused(self, now: float) -> float:
        """Seconds for which nothing has moved and nothing computes."""
        return now - max(self.since, self.moved_at) if self.act else 0.0

    def seconds(self, now: float) -> float:
        """The same; 0 below twice the longest pause that it got over by itself before."""
        paused = self.paused(now)
        return paused if paused > 2 * self.longest else 0.0

    @property
    def stopped(self) -> int:
        """How many of its processes someone has stopped, by a signal or a debugger."""
        return sum(one.state in ("T", "t") for one in self.samples[-1][1].values()) if self.samples else 0


class _Reading(NamedTuple):
    """A GPU at a moment; None for what was not read."""

    labels: tuple[str, ...]
    use: Value
    watts: Value
    limit: Value
    is_slowed: bool
    """By the hardware, such as for heat: its power is low while it works."""


class StuckJobs(Tracker):
    """Says of each job that has moved data for ten minutes whether it still does, computes, or is stuck.

    A job is what one launcher started; processes whose launcher is not known count as one job, so that it is called
    stuck only where none of them moves anything.

    Args:
        hang_power: by part of the name of a model the share of its power limit below which it only spins.
    """

    collectors = (*_FAMILIES, _COLLECTOR)

    def __init__(self, store: Store, thresholds: Thresholds, hang_power: Mapping[str, float], procfs: Path) -> None:
        super().__init__(store)
        store.declare(GROUP, [_COLLECTOR, PROCESS_COLLECTOR], silent=_SILENT, holds=_DETAILS)
        self._limits = thresholds
        self._hang_power = hang_power
        self._procfs = procfs
        self._gpus: defaultdict[str, _Gpu] = defaultdict(_Gpu)
        self._jobs: list[_Job] = []
        self._traffic: dict[tuple[str, str], tuple[float, float]] = {}
        """By collector and device: when it was read, and the bytes that it had moved."""
        self._network_at = float("-inf")

    def on_batch(self, outcome: Outcome) -> None:
        """Take the use of links, or judge the jobs with a reading of the GPUs."""
        family = _FAMILIES.get(outcome.collector.name)
        if family is not None:
            # Without a process there is no job whose payload it could be: of most nodes most of the day.
            for device, share in self._shares(family).items() if any(self._store.occupants.values()) else ():
                if share >= self._limits.job_stuck_payload_ratio:
                    self._gpus[device].moved_at = outcome.time
            return
        now = outcome.time
        readings = dict(self._readings(outcome.collected.blocks))
        self._follow_network()
        jobs = self._grouped()
        self._jobs = list(jobs)
        shown: dict[Series, Value] = {}
        for job, devices in jobs.items():
            of_job = {device: readings[device] for device in devices if device in readings}
            if len(of_job) == len(devices):  # a GPU that does not answer has alerts of its own
                shared = any(devices & others for one, others in jobs.items() if one is not job)
                self._judge(job, of_job, shared, now, shown)
        self._store.show(GROUP, "", shown, now, outcome.collector.lifetime)

    def pause(self) -> None:
        """The driver is released: what comes after is another time."""
        self._jobs.clear()
        self._store.drop_group(GROUP)

    def suspected(self, now: float | None = None) -> tuple[SuspectedJob, ...]:
        """The jobs that have moved nothing for half a minute, with their processes, as of the last reading.

        Args:
            now: monotonic seconds up to which the time since the last payload is counted, of jobs that were read within
                the last two minutes; None: that of the reading.
        """
        found = []
        for job in self._jobs:
            is_read = now is None or now - job.read_at <= _MAX_GAP_SECONDS
            if is_read and job.samples and (seconds := job.seconds(job.read_at if now is None else now)):
                started = {pid: one.started for pid, one in job.samples[-1][1].items() if one.state}
                ranks = (replace(one, started=started.get(one.pid)) for one in job.ranks)
                found.append(SuspectedJob(seconds, tuple(sorted(ranks, key=lambda one: (one.gpu, one.pid)))))
        return tuple(found)

    def _readings(self, blocks: Mapping[str, Block]) -> Iterator[tuple[str, _Reading]]:
        for device, block in blocks.items():
            if not block.layout.series:
                continue
            labels = block.layout.series[0][1][:2]
            use, watts, limit = (
                block.get(f"commwatch_gpu_{name}", *labels)
                for name in ("utilization_ratio", "power_watts", "power_limit_watts")
            )
            if use is not None and watts is not None:
                self._gpus[device].take(block.time, use, watts)
            reasons = block.samples("commwatch_gpu_clocks_event_reason")
            is_slowed = any(flag == 1 and values[-1].endswith("_slowdown") for values, flag in reasons)
            yield device, _Reading(labels, use, watts, limit, is_slowed)

    def _shares(self, family: str) -> dict[str, float]:
        """The use of a kind of link, by GPU, the busier direction."""
        shares: dict[str, float] = {}
        for block in self._store.group(f"{family}_use").values():
            for (metric, labels), value in block.items():
                if value is not None and metric.endswith("_utilization_ratio"):
                    shares[labels[1]] = max(value, shares.get(labels[1], 0.0))
        return shares

    def _follow_network(self) -> None:
        """Payload of any port or interface of the node: whose it is cannot be told."""
        for collector in _NETWORKS:
            for device, block in self._store.group(collector).items():
                moved = payload_of(block)
                if moved is None:
                    continue
                time, before = self._traffic.get((collector, device), (block.time, moved))
                if block.time > time and (moved - before) / (block.time - time) >= self._limits.job_stuck_other_bytes:
                    self._network_at = max(self._network_at, block.time)
                self._traffic[collector, device] = block.time, moved

    def _grouped(self) -> dict[_Job, frozenset[str]]:
        """The jobs with their GPUs; one that has a process of an earlier job is that job."""
        pids: dict[int, set[int]] = {}
        devices: dict[int, set[str]] = {}
        for device, occupants in self._store.occupants.items():
            for pid in occupants:
                job = self._store.jobs.get(pid, 0)
                pids.setdefault(job, set()).add(pid)
                devices.setdefault(job, set()).add(device)
        found: dict[_Job, frozenset[str]] = {}
        for number, members in pids.items():
            known = next((one for one in self._jobs if one.pids & members and one not in found), None)
            course = known or _Job(frozenset(members))
            if number == 0 and not members <= course.pids:
                course.begin()  # the launcher is not known: a process that joins may be another job's
            # A process that ends while the job moves no data stays a rank of it, though the driver no longer lists it.
            course.pids = frozenset(members) | (course.pids if course.act else frozenset())
            found[course] = frozenset(devices[number])
        return found

    def _judge(
        self,
        job: _Job,
        gpus: Mapping[str, _Reading],
        shared: bool,
        now: float,
        shown: dict[Series, Value],
    ) -> None:
        unread = {*(["shared"] if shared else []), *self._unread(gpus)}
        if not unread:
            unread = self._follow(job, gpus, now)
        job.ranks = (*self._listed(job, gpus), *self._ended(job, gpus))
        labels = {one.labels for one in gpus.values()} | {(str(one.gpu), one.address) for one in job.ranks}
        first = min(labels, key=lambda one: int(one[0]))
        if unread:
            shown |= {("commwatch_job_stuck_unread", (*first, signal)): 1 for signal in sorted(unread)}
        elif self._is_judged(job) or job.paused(now) < _PAUSE_SECONDS:
            seconds = job.seconds(now)
            if job.stopped or seconds:
                shown |= {("commwatch_job_stuck_first", one): float(first[0]) for one in labels}
            self._show(job, first, seconds, shown)

    def _follow(self, job: _Job, gpus: Mapping[str, _Reading], now: float) -> set[str]:
        """Take the readings, all of which are there; returns the signals of disks and processes that are not."""
        if now - job.read_at > _MAX_GAP_SECONDS:
            job.begin()
        earlier, job.read_at = max(job.read_at, now - _MAX_GAP_SECONDS), now
        job.exchange(max(self._gpus[one].moved_at for one in gpus))
        job.take(self._act(gpus), earlier, max(self._network_at, job.exchanged_at))
        if not job.act or job.paused(now) < SUSPECTED_SECONDS:
            return set()
        unread = self._follow_storage(job, now)
        return unread if unread or not self._is_judged(job) else self._sample(job, now)

    def _listed(self, job: _Job, gpus: Mapping[str, _Reading]) -> Iterator[JobRank]:
        """The processes of a job that moves nothing which the driver lists."""
        for device, one in gpus.items() if job.act else ():
            is_busy = (one.use or 0.0) >= self._limits.job_stuck_busy_ratio
            for pid in self._store.occupants.get(device, ()):
                if pid in job.pids:
                    yield JobRank(int(one.labels[0]), device, pid, is_busy)

    def _ended(self, job: _Job, gpus: Mapping[str, _Reading]) -> Iterator[JobRank]:
        """Those that it listed before, since the job moves nothing."""
        listed = {one.pid for one in self._listed(job, gpus)}
        return (replace(one, is_busy=False) for one in job.ranks if one.pid not in listed)

    def _show(self, job: _Job, first: tuple[str, ...], seconds: float, shown: dict[Series, Value]) -> None:
        """Put what is known of a job whose signals are all read.

        Args:
            first: labels of its lowest GPU.
            seconds: since its last payload; 0 while it works.
            shown: takes the series.
        """
        if job.stopped:
            shown["commwatch_job_stopped_processes", first] = job.stopped
            return
        shown["commwatch_job_stuck_seconds", first] = seconds if job.act == "stuck" and self._is_judged(job) else 0.0
        if job.act == "silent" and seconds and self._sleeps(job):
            shown["commwatch_job_silent_seconds", first] = seconds
        if seconds and (odd := odd_rank(job.samples)) is not None and not has_arrived_alone(odd.pid, job.ranks):
            for rank in job.ranks:
                if rank.pid == odd.pid:
                    labels = str(rank.gpu), rank.address, odd.reason
                    shown["commwatch_job_odd_rank", labels] = 2 if odd.is_full else 1

    def _is_judged(self, job: _Job) -> bool:
        """Whether its GPUs had payload for long enough to be missed: other traffic of the node may be another's."""
        return job.exchanged_at - job.run_since >= self._limits.job_stuck_payload_seconds

    def _unread(self, gpus: Mapping[str, _Reading]) -> Iterator[str]:
        """The signals without which a job is not judged."""
        nvlink, pcie, sampled = map(self._shares, _FAMILIES.values())
        for device, reading in gpus.items():
            if reading.use is None:
                yield "use"
            if reading.watts is None or self._least_of_work(device, reading) is None:
                yield "power"
            if reading.is_slowed:
                yield "clocks"
            identity = self._store.get(_IDENTITY, device)
            links = None if identity is None else identity.get("commwatch_nvlink_links", *reading.labels)
            if links is None or (links and device not in nvlink):
                yield "nvlink"
            # A sample misses most of what moves, which is enough where NVLinks count the payload.
            if device not in pcie and not (links and device in sampled):
                yield "pcie"
        # The block without a device says which counters there are.
        ports = [block for device, block in self._store.group("rdma").items() if device]
        if (not ports and any(map(self._store.holders, _RDMA_BYTES))) or None in map(payload_of, ports):
            yield "rdma"
        if not self._store.group("network"):
            yield "network"  # storage that is reached by it cannot be seen

    def _least_of_work(self, device: str, reading: _Reading) -> float | None:
        """Watts that a GPU draws at least while it computes."""
        identity = self._store.get(_IDENTITY, device)
        infos = () if identity is None else identity.labels("commwatch_gpu_info")
        name = next((labels[4] for labels in infos), "")
        known = [part for part in self._hang_power if part in name]
        if known and reading.limit:
            return reading.limit * self._hang_power[max(known, key=len)]
        gpu = self._gpus.get(device)
        return None if gpu is None else gpu.least_of_work(self._limits.job_stuck_power_range_ratio)

    def _act(self, gpus: Mapping[str, _Reading]) -> _Act:
        """State of the GPUs, all of whose signals are read."""
        spinning = idle = 0
        for device, one in gpus.items():
            least = self._least_of_work(device, one)
            is_low = one.watts is not None and least is not None and one.watts < least
            if one.use is not None and one.use >= self._limits.job_stuck_busy_ratio and is_low:
                spinning += 1
            elif one.use is not None and one.use <= _IDLE_RATIO:
                idle += 1
        if spinning + idle < len(gpus):
            return ""
        return "stuck" if spinning else "silent"

    def _follow_storage(self, job: _Job, now: float) -> set[str]:
        """Read what the disks have moved in a pause; returns the signal where that could not be read."""
        storage = read_storage(self._procfs)
        if storage is None:
            return {"storage"}
        before, job.storage = job.storage, (now, storage)
        if before and storage - before[1] >= (now - before[0]) * self._limits.job_stuck_other_bytes:
            job.take(job.act, job.moved_at, now)  # such as a checkpoint onto a disk, for which all ranks wait
        return set()

    def _sample(self, job: _Job, now: float) -> set[str]:
        """Read the processes of a suspected job; returns the signal where one could not be read."""
        found = {pid: one for pid in sorted(job.pids)[:RANKS_MAX] if (one := read_rank(self._procfs, pid)) is not None}
        if len(found) < min(len(job.pids), RANKS_MAX):
            return {"processes"}
        job.samples.append((now, found))
        return set()

    def _sleeps(self, job: _Job) -> bool:
        """Whether all processes of a job run far less than they did on average."""
        uptime = read_uptime(self._procfs)
        if uptime is None or len(job.samples) < SAMPLES:
            return False
        share = idle_share(job.samples[0], job.samples[-1], uptime)
        return share is not None and share < self._limits.job_silent_cpu_ratio
