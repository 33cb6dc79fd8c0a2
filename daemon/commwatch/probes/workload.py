"""The workload of a cycle: the backend of a probe, and its steps with their sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commwatch.config import settings
from commwatch.probes.plan import CyclePlan, Deadlines, Measure
from commwatch.probes.rank_plan import (
    ELEMENT_BYTES,
    Backend,
    Collective,
    Meeting,
    Operation,
    Purpose,
    SimulatedNodePlan,
    Step,
)
from commwatch.probes.rounds import Pair, circle_rounds, split_round

MIB = 2**20

_SMALL_BYTES = 8
_BANDWIDTH_BYTES = {"gloo": 4 * MIB, "tcp": 4 * MIB}
_GPU_BANDWIDTH_BYTES: dict[Measure, int] = {"pairs": 16 * MIB, "host_copies": 16 * MIB, "training": 25 * MIB}
"""Of training that of a bucket of torch's DistributedDataParallel (``bucket_cap_mb``)."""
_GPU_BANDWIDTH_BYTES_OTHERWISE = 64 * MIB

_SPREAD: tuple[Operation, ...] = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations whose size counts the bytes of all ranks together, so that each rank has an equal part of it."""

_HOST_TIMED_SECONDS = 2.0
"""A probe without GPU occupies none: its calls may take this much wall time."""

_BETWEEN_HOSTS_TIMED_SECONDS = 1.0
"""So between nodes, where a run has three rounds."""

SharedLinks = Callable[[int, int], frozenset[str]]


def choose_backend(probe: settings.Probe, *, simulated: bool, driver: bool) -> Backend:
    """The backend of a probe on this node.

    Args:
        probe: its configuration; ``auto`` is nccl with an NVIDIA driver and gloo without one.
        simulated: the node does not exist; then every probe is simulated.
    """
    if simulated:
        return "simulated"
    if probe.backend == "auto":
        return "nccl" if driver else "gloo"
    return probe.backend


def plan_cycle(
    name: str,
    probe: settings.Probe,
    limits: settings.Probes,
    *,
    backend: Backend,
    devices: tuple[str, ...],
    simulation: SimulatedNodePlan | None = None,
    shared_links: SharedLinks | None = None,
) -> CyclePlan:
    """The plan of one cycle from the configuration and the GPUs that are here.

    Sizes are rounded up so that each rank has whole elements of 4 bytes. There is no step where there is nothing to
    measure: fewer than two ranks for anything but host copies, or host copies with gloo, which has no GPU.

    Args:
        backend: see ``choose_backend``.
        devices: the chosen GPUs, one for each rank; more ranks than GPUs share them.
        shared_links: links in the PCIe tree or between sockets that the traffic of two ranks crosses beside the links
            of their own; pairs that share one are measured one after another. None: no two pairs share any.
    """
    ranks = probe.ranks or (2 if backend == "gloo" else len(devices))
    if probe.measure == "host_copies" and backend != "gloo":
        ranks = min(ranks, len(devices))  # a second rank on a GPU would measure the same copies
    return CyclePlan(
        probe=name,
        backend=backend,
        measure=probe.measure,
        ranks=ranks,
        devices=() if backend == "gloo" else devices,
        steps=tuple(_steps(probe, backend, ranks, shared_links)),
        timed_seconds=_HOST_TIMED_SECONDS if backend == "gloo" else float(limits.kernel_time),
        deadlines=Deadlines(
            start=float(limits.start_deadline),
            rendezvous=float(limits.rendezvous_deadline),
            setup=float(limits.setup_deadline),
            measure=float(limits.measure_deadline),
        ),
        simulation=simulation,
    )


def plan_between(
    meeting: Meeting,
    *,
    backend: Backend,
    device: str,
    deadlines: Deadlines,
    timed_seconds: float,
    simulation: SimulatedNodePlan | None = None,
) -> CyclePlan:
    """The plan of this node's end of one rail between two nodes: small and large messages, each way by itself.

    Args:
        meeting: with the other end.
        device: the GPU of the rail; empty without.
        deadlines: of both ends.
        timed_seconds: time that the timed calls may take, on GPUs.
    """
    ways: tuple[Pair, ...] = ((0, 1), (1, 0))
    # Of 64 MiB even a rail of 800 Gbit/s needs 0.7 ms, beside which the 30 µs of NCCL's start are few: what arrives is
    # compared with the rate of the line.
    large = _BANDWIDTH_BYTES.get(backend, _GPU_BANDWIDTH_BYTES_OTHERWISE)
    return CyclePlan(
        probe="cluster",
        backend=backend,
        measure="pairs",
        ranks=1,
        devices=(device,) if device else (),
        steps=(
            *(_send_recv("latency", _SMALL_BYTES, (way,)) for way in ways),
            *(_send_recv("bandwidth", large, (way,)) for way in ways),
        ),
        timed_seconds=timed_seconds if device else _BETWEEN_HOSTS_TIMED_SECONDS,
        deadlines=deadlines,
        simulation=simulation,
        meeting=meeting,
    )


def _steps(probe: settings.Probe, backend: Backend, ranks: int, shared_links: SharedLinks | None) -> Iterator[Step]:
    bandwidth_bytes = probe.bandwidth_bytes or _default_bandwidth_bytes(probe.measure, backend)
    if probe.measure == "host_copies":
        return _host_copies(bandwidth_bytes, 0 if backend == "gloo" else ranks)
    if ranks < 2:
        return iter(())
    if probe.measure == "pairs":
        return _pairs(probe.latency_bytes, bandwidth_bytes, ranks, shared_links)
    if probe.measure == "scaling":
        return _scaling(bandwidth_bytes, ranks)
    if probe.measure == "training":
        return _training(bandwidth_bytes, ranks)
    return _collective(probe.measure, probe.latency_bytes, bandwidth_bytes, ranks)


def _default_bandwidth_bytes(measure: Measure, backend: Backend) -> int:
    on_gpus = _GPU_BANDWIDTH_BYTES.get(measure, _GPU_BANDWIDTH_BYTES_OTHERWISE)
    return _BANDWIDTH_BYTES.get(backend, on_gpus)


def _collective(operation: Collective, latency_bytes: int, bandwidth_bytes: int, ranks: int) -> Iterator[Step]:
    members = tuple(range(ranks))
    yield step_of(operation, "latency", latency_bytes, members)
    yield step_of(operation, "bandwidth", bandwidth_bytes, members)


def _pairs(latency_bytes: int, bandwidth_bytes: int, ranks: int, shared_links: SharedLinks | None) -> Iterator[Step]:
    for whole in circle_rounds(ranks):
        for pairs in split_round(whole, shared_links) if shared_links else [whole]:
            back = tuple((second, first) for first, second in pairs)
            yield _send_recv("latency", latency_bytes, pairs)
            yield _send_recv("latency", latency_bytes, back)
            yield _send_recv("bandwidth", bandwidth_bytes, pairs)
            yield _send_recv("bandwidth", bandwidth_bytes, back)
            yield _send_recv("bandwidth", bandwidth_bytes, pairs + back, both_ways=True)


def _host_copies(size_bytes: int, ranks: int) -> Iterator[Step]:
    for rank in range(ranks):
        yield step_of("host_to_device", "bandwidth", size_bytes, (rank,))
        yield step_of("device_to_host", "bandwidth", size_bytes, (rank,))


def _scaling(size_bytes: int, ranks: int) -> Iterator[Step]:
    count = 2
    while count < ranks:
        yield step_of("all_reduce", "bandwidth", size_bytes, tuple(range(count)))
        count *= 2
    yield step_of("all_reduce", "bandwidth", size_bytes, tuple(range(ranks)))


def _training(bucket_bytes: int, ranks: int) -> Iterator[Step]:
    members = tuple(range(ranks))
    yield step_of("all_reduce", "bandwidth", bucket_bytes, members)
    yield step_of("matrix_product", "work", bucket_bytes, members)
    yield step_of("overlapped", "work", bucket_bytes, members)


def step_of(operation: Operation, purpose: Purpose, size_bytes: int, members: tuple[int, ...]) -> Step:
    """A step of whole elements for each rank."""
    whole = ELEMENT_BYTES * (len(members) if operation in _SPREAD else 1)
    return Step(operation=operation, purpose=purpose, size_bytes=_rounded_up(size_bytes, whole), members=members)


def _send_recv(purpose: Purpose, size_bytes: int, pairs: tuple[Pair, ...], *, both_ways: bool = False) -> Step:
    return Step(
        operation="send_recv",
        purpose=purpose,
        size_bytes=_rounded_up(size_bytes, ELEMENT_BYTES),
        members=tuple(sorted({rank for pair in pairs for rank in pair})),
        pairs=pairs,
        both_ways=both_ways,
    )


def _rounded_up(size_bytes: int, whole: int) -> int:
    return max(1, -(-size_bytes // whole)) * whole
