"""The calls that are timed, over torch: what each one sends, and what must arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from commwatch.probes.rank_plan import ELEMENT_BYTES, RankPlan, Step

_PERIOD = 251
"""Of the numbers in a buffer: a prime, so that elements that moved by a chunk do not fit their place."""

_IN_PLACE = ("all_reduce", "broadcast", "matrix_product", "overlapped")
COPIES = ("host_to_device", "device_to_host")
PRODUCTS = ("matrix_product", "overlapped")
_SIDE = {"cuda": 4096, "cpu": 512}
"""Of the square matrices. On a GPU a product in half precision is what a bucket of 25 MiB of 32-bit gradients takes of
the backward pass of 5,000 tokens: 4 operations for each parameter and token, 2 n³ for the product."""

# Since torch 2.13 under a new name; the old one warns there, and is all that older torch has.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Buffers:
    """Two stretches of zeros that all calls of a rank share; one of them on the host where copies are timed."""

    def __init__(self, plan: RankPlan, device: torch.device) -> None:
        own = [step for step in plan.steps if plan.rank in step.members]
        copies = any(step.operation in COPIES for step in own)
        size = max((step.size_bytes for step in own), default=0)
        sent = max((step.size_bytes for step in own if step.operation not in _IN_PLACE), default=0)
        computes = any(step.operation in PRODUCTS for step in own)
        self.factors = _factors(device) if computes else ()
        """Two matrices and their product."""
        self.received = _written_zeros(size, device=device)
        self.sent = _written_zeros(sent, pin_memory=True) if copies else _written_zeros(sent, device=device)


def _written_zeros(size_bytes: int, **options: Any) -> torch.Tensor:
    # Fresh memory that was never written is one page of zeros, many times: it reads faster than any other.
    return torch.empty(size_bytes // ELEMENT_BYTES, dtype=torch.float32, **options).zero_()


def _factors(device: torch.device) -> tuple[torch.Tensor, ...]:
    side, on_gpu = _SIDE[device.type], device.type == "cuda"
    options: dict[str, Any] = {"device": device, "dtype": torch.float16 if on_gpu else torch.float32}
    # Zeros would be multiplied faster: bits that do not change take no power.
    return tuple(torch.rand(side, side, **options) - 0.5 for _ in range(3))


class Call:
    """One operation at one size, on one rank.

    Timed calls carry zeros, which stay zero however often they are summed; ``exact`` makes one with other numbers.
    """

    def __init__(self, sent: torch.Tensor, received: torch.Tensor, run: Callable[[], None]) -> None:
        """Args:

        sent: what the call reads.
        received: what it writes; the same for a call in place.
        run: makes the call, and returns when the host, or the current stream, may go on to the next one.
        """
        self.sent = sent
        self.received = received
        self.run = run

    def fill(self) -> None:
        """Write what depends on rank and place; each number is whole and below 2²⁴, so 32-bit floats hold it."""
        raise NotImplementedError

    def expected(self) -> torch.Tensor | None:
        """The data that must have arrived; None if the call receives nothing."""
        raise NotImplementedError

    def exact(self) -> bool:
        """Whether all bits that arrived with the timed calls, and with one more call, are right."""
        stayed_zero = not _any_bit(self.sent) and not _any_bit(self.received)
        self.fill()
        self.run()
        if self.received.is_cuda or self.sent.is_cuda:
            torch.cuda.synchronize()
        expected = self.expected()
        exact = expected is None or torch.equal(_bits(self.received), _bits(expected))
        self.sent.zero_()
        self.received.zero_()
        return stayed_zero and exact


class AllReduce(Call):
    """Sum in place: each rank brings the pattern times its number."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        buffer = buffers.received[: step.size_bytes // ELEMENT_BYTES]
        super().__init__(buffer, buffer, lambda: _ignored(dist.all_reduce(buffer, group=group)))
        self._place, self._ranks = step.members.index(rank), len(step.members)

    def fill(self) -> None:
        self.sent.copy_(_pattern(self.sent.numel(), self.sent.device).mul_(self._place + 1))

    def expected(self) -> torch.Tensor:
        return _pattern(self.received.numel(), self.received.device).mul_(_sum_to(self._ranks))


class MatrixProduct(Call):
    """A matrix product that a rank computes by itself; nothing is sent."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        one, other, product = buffers.factors
        nothing = buffers.received[:0]
        super().__init__(nothing, nothing, lambda: _ignored(torch.mm(one, other, out=product)))

    def fill(self) -> None:
        """There is nothing to fill."""

    def expected(self) -> None:
        return None


class Overlapped(AllReduce):
    """A sum that is under way while the rank computes, as that of one bucket under the backward pass of the next."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        super().__init__(step, rank, group, buffers)
        buffer, (one, other, product) = self.received, buffers.factors

        def run() -> None:
            work = dist.all_reduce(buffer, group=group, async_op=True)
            torch.mm(one, other, out=product)
            work.wait()

        self.run = run


class ReduceScatter(Call):
    """Sum of which each rank gets its own part."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        self._place, self._ranks = step.members.index(rank), len(step.members)
        total = step.size_bytes // ELEMENT_BYTES
        sent, received = buffers.sent[:total], buffers.received[: total // self._ranks]
        super().__init__(sent, received, lambda: _ignored(_reduce_scatter(received, sent, group=group)))

    def fill(self) -> None:
        self.sent.copy_(_pattern(self.sent.numel(), self.sent.device).mul_(self._place + 1))

    def expected(self) -> torch.Tensor:
        part = self.received.numel()
        return _pattern(part, self.received.device, start=self._place * part).mul_(_sum_to(self._ranks))


class AllGather(Call):
    """Each rank gets the parts of all."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        self._place, self._ranks = step.members.index(rank), len(step.members)
        total = step.size_bytes // ELEMENT_BYTES
        sent, received = buffers.sent[: total // self._ranks], buffers.received[:total]
        super().__init__(sent, received, lambda: _ignored(_all_gather(received, sent, group=group)))

    def fill(self) -> None:
        self.sent.copy_(_pattern(self.sent.numel(), self.sent.device, mark=self._place))

    def expected(self) -> torch.Tensor:
        part, device = self.sent.numel(), self.received.device
        return torch.cat([_pattern(part, device, mark=place) for place in range(self._ranks)])


class Broadcast(Call):
    """The first rank's buffer for all."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        buffer = buffers.received[: step.size_bytes // ELEMENT_BYTES]
        root = step.members[0]
        super().__init__(buffer, buffer, lambda: _ignored(dist.broadcast(buffer, root, group=group)))
        self._is_root = rank == root

    def fill(self) -> None:
        if self._is_root:
            self.sent.copy_(self.expected())

    def expected(self) -> torch.Tensor:
        return _pattern(self.received.numel(), self.received.device)


class AllToAll(Call):
    """A different part from each rank for each rank."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        self._place, self._ranks = step.members.index(rank), len(step.members)
        total = step.size_bytes // ELEMENT_BYTES
        sent, received = buffers.sent[:total], buffers.received[:total]
        super().__init__(sent, received, lambda: _ignored(dist.all_to_all_single(received, sent, group=group)))

    def fill(self) -> None:
        self.sent.copy_(self._parts([self._place * self._ranks + other for other in range(self._ranks)]))

    def expected(self) -> torch.Tensor:
        return self._parts([other * self._ranks + self._place for other in range(self._ranks)])

    def _parts(self, marks: list[int]) -> torch.Tensor:
        part = self.sent.numel() // self._ranks
        return torch.cat([_pattern(part, self.sent.device, mark=mark) for mark in marks])


class SendRecv(Call):
    """From one rank of a pair to the other, there and back, or both ways at once.

    The operations go in batches, which use the group's own communicator; a lone send or recv would make one for each
    pair with NCCL. That communicator was connected by an earlier call of all ranks, as torch demands for batches of
    some of them.
    """

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        source, destination = next(pair for pair in step.pairs if rank in pair)
        peer = destination if rank == source else source
        count = step.size_bytes // ELEMENT_BYTES
        sent, received = buffers.sent[:count], buffers.received[:count]
        send, receive = dist.P2POp(dist.isend, sent, peer, group), dist.P2POp(dist.irecv, received, peer, group)
        if step.both_ways:
            batches = [[send, receive]]
        elif step.purpose == "latency":
            batches = [[send], [receive]] if rank == source else [[receive], [send]]
        else:
            batches = [[send]] if rank == source else [[receive]]
        start = dist.batch_isend_irecv if sent.is_cuda else _start_each
        super().__init__(sent, received, lambda: _run_batches(start, batches))
        self._receives = any(receive in batch for batch in batches)
        ranks = max(step.members) + 1
        self._mark, self._mark_of_peer = rank * ranks + peer, peer * ranks + rank

    def fill(self) -> None:
        self.sent.copy_(_pattern(self.sent.numel(), self.sent.device, mark=self._mark))

    def expected(self) -> torch.Tensor | None:
        if not self._receives:
            return None
        return _pattern(self.received.numel(), self.received.device, mark=self._mark_of_peer)


class HostCopy(Call):
    """Between pinned memory of the host and a GPU; either side makes the numbers that it must hold by itself."""

    def __init__(self, step: Step, rank: int, group: Any, buffers: Buffers) -> None:
        count = step.size_bytes // ELEMENT_BYTES
        host, device = buffers.sent[:count], buffers.received[:count]
        source, target = (host, device) if step.operation == "host_to_device" else (device, host)
        super().__init__(source, target, lambda: _ignored(target.copy_(source, non_blocking=True)))

    def fill(self) -> None:
        self.sent.copy_(_pattern(self.sent.numel(), self.sent.device))

    def expected(self) -> torch.Tensor:
        return _pattern(self.received.numel(), self.received.device)


_CALLS: dict[str, Callable[[Step, int, Any, Buffers], Call]] = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "broadcast": Broadcast,
    "all_to_all": AllToAll,
    "send_recv": SendRecv,
    "host_to_device": HostCopy,
    "device_to_host": HostCopy,
    "matrix_product": MatrixProduct,
    "overlapped": Overlapped,
}


def make_call(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """The call of a step.

    Args:
        step: one in which the rank takes part.
        group: process group of the step's members; None for all ranks.
        buffers: zeros, as large as the step needs.
    """
    return _CALLS[step.operation](step, rank, group, buffers)


def _run_batches(start: Callable[[list[dist.P2POp]], list[Any]], batches: list[list[dist.P2POp]]) -> None:
    for batch in batches:
        for work in start(batch):
            work.wait()


def _start_each(batch: list[dist.P2POp]) -> list[Any]:
    # gloo connects all ranks with each other at once and has no batches; checking them costs a tenth of a small call.
    return [operation.op(operation.tensor, operation.peer, operation.group) for operation in batch]


def _ignored(_: object) -> None:
    """Discard the return value of a synchronous call, which has no information."""


def _pattern(count: int, device: torch.device, *, start: int = 0, mark: int = 0) -> torch.Tensor:
    """1 to 251, again and again, from a place on; a mark shifts them out of the range of any other mark."""
    places = torch.arange(start, start + count, dtype=torch.int32, device=device)
    return (places.remainder_(_PERIOD).add_(1 + mark * _PERIOD)).to(torch.float32)


def _sum_to(number: int) -> int:
    return number * (number + 1) // 2


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


def _any_bit(tensor: torch.Tensor) -> bool:
    return bool(_bits(tensor).any())
