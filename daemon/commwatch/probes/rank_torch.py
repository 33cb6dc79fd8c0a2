"""A rank on torch.distributed: NCCL on GPUs, gloo on the host; the only file that imports torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist

from commwatch.probes.measure import RankError
from commwatch.probes.plan import RankPlan

_ELEMENT_BYTES = 4
_PATTERN_PERIOD = 251
"""A prime, so that elements that were swapped or moved by a chunk do not fit their place."""


class TorchGroup:
    """The ranks of one cycle, over torch.distributed.

    Timed calls sum zeros, which stay zero however often they are summed in place; ``exact`` refills the buffer.
    """

    def __init__(self, plan: RankPlan) -> None:
        """Choose the device.

        Raises:
            RankError: this torch has no NCCL.
        """
        if plan.backend == "nccl" and not (torch.version.cuda and dist.is_nccl_available()):
            raise RankError("no_gpu_backend", f"torch {torch.__version__} was built without CUDA and NCCL")
        self._plan = plan
        self._on_gpu = plan.backend == "nccl"
        self._device = torch.device("cuda", plan.device) if self._on_gpu else torch.device("cpu")
        self._buffers: dict[int, torch.Tensor] = {}
        self.torch_version = str(torch.__version__)
        self.nccl_version = _nccl_version() if self._on_gpu else ""

    def rendezvous(self) -> None:
        """Meet the other ranks over a file in the cycle's private folder."""
        if self._on_gpu:
            torch.cuda.set_device(self._device)
        store = dist.FileStore(self._plan.rendezvous_file, self._plan.ranks)
        dist.init_process_group(
            self._plan.backend,
            store=store,
            rank=self._plan.rank,
            world_size=self._plan.ranks,
            timeout=timedelta(seconds=self._plan.collective_timeout),
        )

    def first_call(self) -> float:
        """Make both buffers and the first small call; seconds of that call, host clock."""
        for size in (self._plan.latency_bytes, self._plan.bandwidth_bytes):
            self._buffers[size] = torch.zeros(size // _ELEMENT_BYTES, dtype=torch.float32, device=self._device)
        with self._named_errors():
            started = time.perf_counter()
            dist.all_reduce(self._buffers[self._plan.latency_bytes])
            if self._on_gpu:
                torch.cuda.synchronize(self._device)
            return time.perf_counter() - started

    def time_calls(self, size_bytes: int, calls: int) -> float:
        """Seconds of one call: with NCCL the mean between two events of the current stream, with gloo the median."""
        with self._named_errors():
            time_them = self._device_seconds if self._on_gpu else self._host_seconds
            return time_them(self._buffers[size_bytes], calls)

    def _device_seconds(self, buffer: torch.Tensor, calls: int) -> float:
        # A synchronous call makes the current stream wait for NCCL's own, so events on it bracket the calls.
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            dist.all_reduce(buffer)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    def _host_seconds(self, buffer: torch.Tensor, calls: int) -> float:
        # A gloo call blocks, so the host's clock sees it whole; the median leaves out what the host's scheduler did.
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            dist.all_reduce(buffer)
            times.append(time.perf_counter() - started)
        return median(times)

    def slowest(self, seconds: float) -> float:
        """The largest of the ranks' numbers, by an all-reduce with MAX."""
        number = torch.tensor([seconds], dtype=torch.float64, device=self._device)
        with self._named_errors():
            dist.all_reduce(number, op=dist.ReduceOp.MAX)
            return float(number.item())

    def exact(self, size_bytes: int) -> bool:
        """Sum (rank + 1) × (1 + place mod 251) over the ranks; at most 2²⁴, so 32-bit floats hold it exactly."""
        buffer = self._buffers[size_bytes]
        zeros_stayed = not bool(buffer.any())
        places = torch.arange(buffer.numel(), dtype=torch.int32, device=self._device)
        pattern = (places % _PATTERN_PERIOD + 1).to(torch.float32)
        torch.mul(pattern, self._plan.rank + 1, out=buffer)
        with self._named_errors():
            dist.all_reduce(buffer)
            sum_of_ranks = self._plan.ranks * (self._plan.ranks + 1) // 2
            exact = bool(torch.equal(buffer, pattern.mul_(sum_of_ranks)))
        buffer.zero_()
        return zeros_stayed and exact

    def close(self) -> None:
        """Destroy the group, and with it NCCL's memory on the GPU."""
        self._buffers.clear()
        dist.destroy_process_group()

    def abort(self) -> None:
        """Abort the NCCL communicator, so that no kernel of ours is in flight when the process ends."""
        if self._on_gpu and dist.is_initialized():
            backend = dist.group.WORLD._get_backend(self._device)
            if hasattr(backend, "abort"):  # torch 2.6 and later
                backend.abort()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Give NCCL's own errors their name."""
        try:
            yield
        except dist.DistBackendError as error:
            raise RankError("nccl_error" if self._on_gpu else "crashed", str(error)) from error


def _nccl_version() -> str:
    """Version of the loaded library where this torch can say it, else of the one it was built with."""
    loaded = getattr(dist.ProcessGroupNCCL, "get_runtime_nccl_version", None)
    return ".".join(str(part) for part in (loaded or torch.cuda.nccl.version)())
