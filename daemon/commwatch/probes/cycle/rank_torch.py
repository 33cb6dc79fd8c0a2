"""A rank on torch.distributed: NCCL on GPUs, gloo on the host; only ``rank_*.py`` import torch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from commwatch.probes.cycle.measure import RankError, in_short
from commwatch.probes.cycle.priority import near_cpus
from commwatch.probes.cycle.rank_calls import COPIES, Buffers, Call, make_call
from commwatch.probes.rank_plan import RankPlan, Step

_HOLD_CYCLES = 100_000
_LONGEST_HOLD_CYCLES = 800_000
_LONGEST_TOTAL_HOLD_CYCLES = 20_000_000
"""How long the GPU waits for each call to be queued, at first and at most, and for all calls of a timing: at 2 GHz
50 µs, 400 µs and 10 ms."""


class TorchGroup:
    """The ranks of one cycle, over torch.distributed."""

    def __init__(self, plan: RankPlan) -> None:
        """Choose the device; no GPU is touched yet.

        Raises:
            RankError: this torch has no NCCL.
        """
        if plan.backend == "nccl" and not (torch.version.cuda and dist.is_nccl_available()):
            raise RankError("no_gpu_backend", f"torch {torch.__version__} was built without CUDA and NCCL")
        self._plan = plan
        self._on_gpu = plan.backend == "nccl"
        self._device = torch.device("cuda", plan.device) if self._on_gpu else torch.device("cpu")
        self._copies = any(step.operation in COPIES for step in plan.steps)
        self._store: dist.Store | None = None
        self._groups: dict[tuple[int, ...], Any] = {}
        self._calls: dict[Step, Call] = {}
        self._hold_cycles = _HOLD_CYCLES
        self.torch_version = str(torch.__version__)
        self.nccl_version = _nccl_version() if self._on_gpu else ""

    def rendezvous(self) -> None:
        """Meet the others over a file in the cycle's private folder, or over TCP on another node; copies need none."""
        if self._copies:
            return
        if (meeting := self._plan.meeting) is None:
            self._store = dist.FileStore(self._plan.rendezvous_file, self._plan.ranks)
        else:
            self._store = dist.TCPStore(
                meeting.address,
                meeting.port,
                is_master=meeting.end == 0,
                timeout=self._timeout,
                wait_for_workers=False,
                # Without it the store would listen on all addresses of the node.
                master_listen_fd=meeting.descriptor if meeting.end == 0 else None,
            )
        self._store.set(f"here/{self._plan.rank}", "")
        self._store.wait([f"here/{rank}" for rank in range(self._plan.ranks)], self._timeout)

    def first_call(self) -> None:
        """Make context, groups and buffers, and one small call on each group."""
        if self._on_gpu:
            torch.cuda.set_device(self._device)
        if self._copies:
            _run_near(self._device)
        buffers = Buffers(self._plan, self._device)
        with self._named_errors():
            if self._copies:
                buffers.received.copy_(buffers.sent)
            else:
                self._connect()
            self._finish()
        self._calls = {
            step: make_call(step, self._plan.rank, self._groups.get(step.members), buffers)
            for step in self._plan.steps
            if self._plan.rank in step.members
        }

    def _connect(self) -> None:
        everyone = tuple(range(self._plan.ranks))
        dist.init_process_group(
            self._plan.backend,
            store=self._store,
            rank=self._plan.rank,
            world_size=self._plan.ranks,
            timeout=self._timeout,
        )
        self._first_all_reduce(None)
        for step in self._plan.steps:
            members = step.members
            # Pairs use the communicator of all ranks; a group of its own is for a collective over some.
            if step.pairs or members == everyone or members in self._groups:
                continue
            self._groups[members] = dist.new_group(list(members), timeout=self._timeout, backend=self._plan.backend)
            if self._plan.rank in members:
                # NCCL's groups must not be used at the same time: each is done before the next one is made.
                self._first_all_reduce(self._groups[members])

    def _first_all_reduce(self, group: Any) -> None:
        dist.all_reduce(torch.zeros(1, dtype=torch.float32, device=self._device), group=group)
        self._finish()

    def _finish(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)

    def time_calls(self, step: Step, calls: int) -> float:
        """Seconds of one call: on GPUs the mean between two events of the current stream, with gloo the median.

        A call of send_recv for latency goes there and back: half of its time is given.
        """
        one_way = 0.5 if step.operation == "send_recv" and step.purpose == "latency" else 1.0
        with self._named_errors():
            if self._on_gpu:
                return self._device_seconds(self._calls[step], calls) * one_way
            return _host_seconds(self._calls[step], calls) * one_way

    def _device_seconds(self, call: Call, calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # Python launches more slowly than a short call runs. So the GPU waits until all calls are queued; else the time
        # would be that of the launches.
        torch.cuda._sleep(min(self._hold_cycles * (calls + 1), _LONGEST_TOTAL_HOLD_CYCLES))
        call.run()  # makes the ranks begin together
        # A synchronous call makes the current stream wait for NCCL's own, so events on it bracket the calls.
        start.record()
        for _ in range(calls):
            call.run()
        end.record()
        if start.query():  # it did not wait long enough
            self._hold_cycles = min(self._hold_cycles * 2, _LONGEST_HOLD_CYCLES)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    def slowest(self, step: Step, seconds: float) -> float:
        """The largest of the numbers of a pair, or of the members, by calls of their own."""
        if len(step.members) == 1:
            return seconds
        own = torch.tensor([seconds], dtype=torch.float64, device=self._device)
        with self._named_errors():
            if not step.pairs:
                dist.all_reduce(own, op=dist.ReduceOp.MAX, group=self._groups.get(step.members))
                return float(own.item())
            peer = next(
                two if one == self._plan.rank else one for one, two in step.pairs if self._plan.rank in (one, two)
            )
            other = torch.zeros_like(own)
            swap = [dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, other, peer)]
            for work in dist.batch_isend_irecv(swap):
                work.wait()
            return max(seconds, float(other.item()))

    def exact(self, step: Step) -> bool:
        """Whether all bits that arrived with the timed calls, and with one more call of other numbers, are right."""
        with self._named_errors():
            return self._calls[step].exact()

    def close(self) -> None:
        """Destroy the groups, and with them NCCL's memory on the GPU."""
        self._calls.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def clock(self) -> float:
        """Wall time."""
        return time.perf_counter()

    def abort(self) -> None:
        """Abort the NCCL communicators, so that no kernel of ours is in flight when the process ends."""
        if not self._on_gpu or not dist.is_initialized():
            return
        for group in (dist.group.WORLD, *self._groups.values()):
            # A rank that is no member of a group has a number in its place.
            if isinstance(group, dist.ProcessGroup):
                backend = group._get_backend(self._device)
                if hasattr(backend, "abort"):  # torch 2.6 and later
                    backend.abort()

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._plan.collective_timeout)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Give NCCL's own errors, and what a backend cannot do at all, their name."""
        try:
            yield
        except dist.DistBackendError as error:
            raise RankError("nccl_error" if self._on_gpu else "crashed", in_short(str(error))) from error
        except RuntimeError as error:
            if "does not support" not in str(error):
                raise
            raise RankError("no_gpu_backend", f"torch {self.torch_version}: {in_short(str(error))}") from error


def _host_seconds(call: Call, calls: int) -> float:
    # A gloo call blocks, so the host's clock sees it whole; the median leaves out what the host's scheduler did.
    call.run()
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call.run()
        times.append(time.perf_counter() - started)
    return median(times)


def _run_near(device: torch.device) -> None:
    """Keep this thread, and so the memory that it pins, on the GPU's side of the machine, where that is known."""
    properties = torch.cuda.get_device_properties(device)
    domain, bus, number = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if domain is None or bus is None or number is None:  # older torch does not say
        return
    near = near_cpus(f"{domain:04x}:{bus:02x}:{number:02x}.0", Path("/sys")) & os.sched_getaffinity(0)
    if near:
        os.sched_setaffinity(0, near)


def _nccl_version() -> str:
    """Version of the loaded library if this torch can report it, else of the one it was built with."""
    loaded = getattr(dist.ProcessGroupNCCL, "get_runtime_nccl_version", None)
    return ".".join(str(part) for part in (loaded or torch.cuda.nccl.version)())
