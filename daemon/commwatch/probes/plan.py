"""What a cycle and each of its ranks are told, and what they answer: the records between daemon and rank processes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from commwatch import config

Backend: TypeAlias = Literal["nccl", "gloo", "simulated"]
Collective: TypeAlias = Literal["all_reduce"]
Phase: TypeAlias = Literal["start", "rendezvous", "setup", "measure", "done"]

PHASES: tuple[Phase, ...] = ("start", "rendezvous", "setup", "measure", "done")
"""In the order in which a rank goes through them; ``setup`` ends with the first, discarded call."""

FailureReason: TypeAlias = Literal[
    "start",  # a rank process did not start, or did not get as far as the rendezvous
    "rendezvous_timeout",
    "setup_timeout",
    "measure_timeout",
    "crashed",  # a rank ended by itself or by a signal, or raised an error that is not NCCL's
    "wrong_result",  # the sum was not exact
    "stuck",  # a rank sits in the kernel and was left alone
    "nccl_error",
]
"""Why a cycle that started gave no good result: the bounded reasons of ``commwatch_probe_failures_total``."""

SkipReason: TypeAlias = Literal[
    "disabled",
    "maintenance",
    "yielded",  # gave way to a job that asked for the node
    "no_torch",
    "no_gpu_backend",  # nccl is wanted, but there is no GPU or torch has no NCCL
    "single_gpu",  # one GPU has nobody to talk to
    "backend_changed",  # the name already belongs to results of another backend
    "previous_stuck",
    "scheduler_busy",
    "scheduler_unknown",
    "foreign_pid_namespace",
    "gpu_unknown",
    "gpu_busy",
    "gpu_memory_used",
    "compute_mode",
    "mig",
    "budget",
]
"""Why a cycle did not start, or gave way: the bounded reasons of ``commwatch_probe_skips_total``."""

MIB = 2**20
_ELEMENT_BYTES = 4
"""Buffers hold 32-bit floats, as those of nccl-tests do."""

_DEFAULT_BANDWIDTH_BYTES: dict[Backend, int] = {"nccl": 64 * MIB, "simulated": 64 * MIB, "gloo": 4 * MIB}
_GLOO_TIMED_SECONDS = 2.0
"""A gloo probe occupies no GPU: its calls may take this much wall time."""


class SimulatedNodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The node that simulated ranks measure."""

    preset: str
    faults_file: str | None
    started_at: float
    """Seconds since 1970 at which the simulated node booted; the same in all processes."""


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank process is told, on its standard input."""

    backend: Backend
    collective: Collective
    rank: int
    ranks: int
    device: int | None
    """CUDA ordinal among the visible devices; None without GPUs."""
    rendezvous_file: str
    latency_bytes: int
    bandwidth_bytes: int
    timed_seconds: float
    """Time that all calls after the first may take together."""
    collective_timeout: float
    """Seconds after which torch gives up by itself; longer than the parent's deadlines, which decide."""
    simulation: SimulatedNodePlan | None = None


class CyclePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle of one probe."""

    probe: str
    backend: Backend
    collective: Collective
    ranks: int
    devices: tuple[str, ...]
    """Entries of CUDA_VISIBLE_DEVICES (GPU UUIDs); rank i uses entry i modulo their number. Empty without GPUs."""
    latency_bytes: int
    bandwidth_bytes: int
    timed_seconds: float
    setup_deadline: float
    measure_deadline: float
    simulation: SimulatedNodePlan | None = None

    @property
    def shares_gpus(self) -> bool:
        """More ranks than GPUs: proves that sums are right, but its times are the GPU's time slices."""
        return self.backend == "nccl" and self.ranks > len(self.devices)

    @property
    def gpus(self) -> int:
        """GPUs that the cycle occupies."""
        return 0 if self.backend == "gloo" else len(self.devices)

    def rank_plan(self, rank: int, rendezvous_file: str) -> RankPlan:
        """The part of one rank."""
        return RankPlan(
            backend=self.backend,
            collective=self.collective,
            rank=rank,
            ranks=self.ranks,
            device=rank % len(self.devices) if self.backend == "nccl" else None,
            rendezvous_file=rendezvous_file,
            latency_bytes=self.latency_bytes,
            bandwidth_bytes=self.bandwidth_bytes,
            timed_seconds=self.timed_seconds,
            collective_timeout=self.setup_deadline + self.measure_deadline,
            simulation=self.simulation,
        )


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured."""

    latency_seconds: tuple[float, ...]
    """Time of one small call; each number is from the calls of one timing."""
    bandwidth_seconds: tuple[float, ...]
    """The same for the large call."""
    first_call_seconds: float
    torch_version: str = ""
    nccl_version: str = ""
    """Version of the NCCL library that is loaded; empty for other backends."""


class PhaseEvent(msgspec.Struct, frozen=True, tag="phase"):
    """A rank entered a phase."""

    phase: Phase


class ResultEvent(msgspec.Struct, frozen=True, tag="result"):
    """A rank has measured, and its sums were exact."""

    result: RankResult


class ErrorEvent(msgspec.Struct, frozen=True, tag="error"):
    """A rank cannot go on."""

    reason: FailureReason | SkipReason
    detail: str


RankEvent: TypeAlias = PhaseEvent | ResultEvent | ErrorEvent
"""One line of a rank's standard output."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """A cycle that gave a result; all times are those of the slowest rank."""

    finished_at: float
    """Seconds since 1970."""
    occupied_seconds: float
    """Time between start and end of the ranks."""
    setup_seconds: float
    """Time from the start of the ranks to the end of the first call on the last of them."""
    latency_seconds: float
    """Time of one small call: median over the timings of each rank, then the largest of the ranks."""
    bandwidth_seconds: float
    """The same for the large call."""
    ranks: tuple[RankResult, ...]
    torch_version: str = ""
    nccl_version: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A cycle that started and gave no good result."""

    finished_at: float
    occupied_seconds: float
    reason: FailureReason
    detail: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True, tag="skipped"):
    """A cycle that did not start, or gave way."""

    finished_at: float
    occupied_seconds: float = 0.0
    reason: SkipReason
    detail: str


CycleResult: TypeAlias = Measured | Failed | Skipped


def choose_backend(probe: config.Probe, *, simulated: bool, driver: bool) -> Backend:
    """The backend of a probe on this node.

    Args:
        probe: its configuration; ``auto`` is nccl with an NVIDIA driver and gloo without one.
        simulated: the node does not exist; then every probe is simulated.
        driver: an NVIDIA driver is here.
    """
    if simulated:
        return "simulated"
    if probe.backend == "auto":
        return "nccl" if driver else "gloo"
    return probe.backend


def plan_cycle(
    name: str,
    probe: config.Probe,
    limits: config.Probes,
    *,
    backend: Backend,
    devices: tuple[str, ...],
    simulation: SimulatedNodePlan | None = None,
) -> CyclePlan:
    """The plan of one cycle from the configuration and the GPUs that are here.

    Sizes are rounded up to whole elements of 4 bytes.
    """
    return CyclePlan(
        probe=name,
        backend=backend,
        collective=probe.collective,
        ranks=probe.ranks or (2 if backend == "gloo" else len(devices)),
        devices=() if backend == "gloo" else devices,
        latency_bytes=_whole_elements(probe.latency_bytes),
        bandwidth_bytes=_whole_elements(probe.bandwidth_bytes or _DEFAULT_BANDWIDTH_BYTES[backend]),
        timed_seconds=_GLOO_TIMED_SECONDS if backend == "gloo" else float(limits.kernel_time),
        setup_deadline=float(limits.setup_deadline),
        measure_deadline=float(limits.measure_deadline),
        simulation=simulation,
    )


def _whole_elements(size: int) -> int:
    return max(1, -(-size // _ELEMENT_BYTES)) * _ELEMENT_BYTES
