"""A rank that copies between host and GPU on a machine without one: CUDA's part of torch is a stand-in; prints JSON.

Streams and events of the stand-in keep a time of their own: a copy takes 1 ms, its launch 150 µs of the host's time,
and the GPU begins with what is launched when it has done all before.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from commwatch.config import settings
from commwatch.probes.cycle.measure import measure
from commwatch.probes.cycle.rank_torch import TorchGroup
from commwatch.probes.rank_plan import Step
from commwatch.probes.workload import plan_cycle

LAUNCH_SECONDS = 150e-6
CYCLES_PER_SECOND = 2e9


class Gpu:
    """One stream, and the host that fills it."""

    host = 0.0
    free_at = 0.0
    copy_seconds = 1e-3
    copies = 0

    def work(self, seconds: float) -> None:
        self.free_at = max(self.free_at, self.host) + seconds

    def hold(self, cycles: int) -> None:
        self.work(cycles / CYCLES_PER_SECOND)

    def launch(self) -> None:
        self.copies += 1
        self.host += LAUNCH_SECONDS
        self.work(self.copy_seconds)


GPU = Gpu()


class Event:
    """When the GPU comes to where it was recorded."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self._at = 0.0

    def record(self) -> None:
        self._at = max(GPU.free_at, GPU.host)

    def query(self) -> bool:
        return GPU.host >= self._at

    def synchronize(self) -> None:
        GPU.host = max(GPU.host, self._at)

    def elapsed_time(self, end: Event) -> float:
        return (end._at - self._at) * 1e3


def stand_in() -> None:
    """Put the stand-in in CUDA's place."""
    torch.version.cuda = "12.8"
    dist.is_nccl_available = lambda: True
    dist.ProcessGroupNCCL = SimpleNamespace(get_runtime_nccl_version=lambda: (2, 27, 5))
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xFE, pci_device_id=0)
    replaced = {
        "set_device": lambda _: None,
        "synchronize": lambda *_: None,
        "get_device_properties": lambda _: properties,
        "Event": Event,
        "_sleep": GPU.hold,
    }
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    empty = torch.empty

    def pageable(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        del pin_memory
        return empty(*args, **options)

    torch.empty = pageable


def with_launches(group: TorchGroup, corrupt: bool) -> None:
    """Let each copy take its time on the GPU; a corrupt one also changes a bit."""
    for call in group._calls.values():
        whole = call.run

        def run(whole: Any = whole, received: torch.Tensor = call.received) -> None:
            GPU.launch()
            whole()
            if corrupt:
                received.view(torch.int32)[7] |= 4

        call.run = run


def made() -> tuple[TorchGroup, Any]:
    probe = settings.Probe(measure="host_copies", bandwidth_bytes=settings.Size(2**16))
    plan = plan_cycle("x", probe, settings.Probes(), backend="nccl", devices=("GPU-a",)).rank_plan(0, "/nowhere")
    group = TorchGroup(plan)
    group._device = torch.device("cpu")
    return group, plan


def main() -> None:
    stand_in()
    group, plan = made()
    connect = group.first_call

    def first_call() -> None:
        connect()
        with_launches(group, corrupt=False)

    group.first_call = first_call  # type: ignore[method-assign]
    group.clock = lambda: GPU.host  # type: ignore[method-assign]
    result = measure(plan, group, lambda _: None, lambda _: None)
    copies = GPU.copies
    # Copies shorter than their launch: only a GPU that waits can time them.
    GPU.copy_seconds = 10e-6
    step: Step = plan.steps[0]
    short = [group.time_calls(step, 10) for _ in range(4)]
    group.close()
    group, plan = made()
    group.rendezvous()
    group.first_call()
    with_launches(group, corrupt=True)
    corrupt = [group.exact(step) for step in plan.steps]
    answer = {
        "timings": result.timings,
        "nccl_version": result.nccl_version,
        "copies": copies,
        "short": short,
        "corrupt": corrupt,
    }
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
