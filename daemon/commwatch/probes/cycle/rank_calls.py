"""The calls that are timed, over torch: what each one sends, and what must arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
_all_gather_of_torch = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_of_torch = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


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


@dataclass
class Call:
    """One operation at one size, on one rank.

    Timed calls carry zeros, which stay zero however often they are summed; ``exact`` makes one with other numbers.
    """

    sent: torch.Tensor
    """What the call reads."""
    received: torch.Tensor
    """What it writes; the same for a call in place."""
    run: Callable[[], object]
    """Makes the call, and returns when the host, or the current stream, may go on to the next one."""
    numbers: Callable[[], torch.Tensor] | None
    """What ``exact`` sends, by rank and place; each is whole and below 2²⁴, so 32-bit floats hold it. None: nothing."""
    expected: Callable[[], torch.Tensor] | None
    """The data that must have arrived then; None if the call receives nothing."""

    def exact(self) -> bool:
        """Whether all bits that arrived with the timed calls, and with one more call, are right."""
        stayed_zero = not _any_bit(self.sent) and not _any_bit(self.received)
        if self.numbers is not None:
            self.sent.copy_(self.numbers())
        self.run()
        if self.received.is_cuda or self.sent.is_cuda:
            torch.cuda.synchronize()
        exact = self.expected is None or torch.equal(_bits(self.received), _bits(self.expected()))
        self.sent.zero_()
        self.received.zero_()
        return stayed_zero and exact


def _all_reduce(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """Sum in place: each rank brings the pattern times its number."""
    buffer = buffers.received[: step.size_bytes // ELEMENT_BYTES]
    place, ranks = step.members.index(rank), len(step.members)
    return Call(
        buffer,
        buffer,
        lambda: dist.all_reduce(buffer, group=group),
        numbers=lambda: _pattern(buffer).mul_(place + 1),
        expected=lambda: _pattern(buffer).mul_(_sum_to(ranks)),
    )


def _matrix_product(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """A matrix product that a rank computes by itself; nothing is sent."""
    one, other, product = buffers.factors
    nothing = buffers.received[:0]
    return Call(nothing, nothing, lambda: torch.mm(one, other, out=product), numbers=None, expected=None)


def _overlapped(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """A sum that is under way while the rank computes, as that of one bucket under the backward pass of the next."""
    call, (one, other, product) = _all_reduce(step, rank, group, buffers), buffers.factors

    def run() -> None:
        work = dist.all_reduce(call.received, group=group, async_op=True)
        torch.mm(one, other, out=product)
        work.wait()

    call.run = run
    return call


def _reduce_scatter(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """Sum of which each rank gets its own part."""
    place, ranks, total = step.members.index(rank), len(step.members), step.size_bytes // ELEMENT_BYTES
    sent, received = buffers.sent[:total], buffers.received[: total // ranks]
    return Call(
        sent,
        received,
        lambda: _reduce_scatter_of_torch(received, sent, group=group),
        numbers=lambda: _pattern(sent).mul_(place + 1),
        expected=lambda: _pattern(received, start=place * received.numel()).mul_(_sum_to(ranks)),
    )


def _all_gather(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """Each rank gets the parts of all."""
    place, ranks, total = step.members.index(rank), len(step.members), step.size_bytes // ELEMENT_BYTES
    sent, received = buffers.sent[: total // ranks], buffers.received[:total]
    return Call(
        sent,
        received,
        lambda: _all_gather_of_torch(received, sent, group=group),
        numbers=lambda: _pattern(sent, mark=place),
        expected=lambda: _patterns(sent, range(ranks)),
    )


def _broadcast(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """The first rank's buffer for all."""
    buffer, root = buffers.received[: step.size_bytes // ELEMENT_BYTES], step.members[0]
    return Call(
        buffer,
        buffer,
        lambda: dist.broadcast(buffer, root, group=group),
        numbers=(lambda: _pattern(buffer)) if rank == root else None,
        expected=lambda: _pattern(buffer),
    )


def _all_to_all(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """A different part from each rank for each rank."""
    place, ranks, total = step.members.index(rank), len(step.members), step.size_bytes // ELEMENT_BYTES
    sent, received = buffers.sent[:total], buffers.received[:total]
    part = sent[: total // ranks]
    return Call(
        sent,
        received,
        lambda: dist.all_to_all_single(received, sent, group=group),
        numbers=lambda: _patterns(part, [place * ranks + other for other in range(ranks)]),
        expected=lambda: _patterns(part, [other * ranks + place for other in range(ranks)]),
    )


def _send_recv(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """From one rank of a pair to the other, there and back, or both ways at once.

    The operations go in batches, which use the group's own communicator; a lone send or recv would make one for each
    pair with NCCL. That communicator was connected by an earlier call of all ranks, as torch demands for batches of
    some of them.
    """
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
    receives = any(receive in batch for batch in batches)
    start = dist.batch_isend_irecv if sent.is_cuda else _start_each
    ranks = max(step.members) + 1
    return Call(
        sent,
        received,
        lambda: _run_batches(start, batches),
        numbers=lambda: _pattern(sent, mark=rank * ranks + peer),
        expected=(lambda: _pattern(received, mark=peer * ranks + rank)) if receives else None,
    )


def _host_copy(step: Step, rank: int, group: Any, buffers: Buffers) -> Call:
    """Between pinned memory of the host and a GPU; either side makes the numbers that it must hold by itself."""
    count = step.size_bytes // ELEMENT_BYTES
    host, device = buffers.sent[:count], buffers.received[:count]
    source, target = (host, device) if step.operation == "host_to_device" else (device, host)
    return Call(
        source,
        target,
        lambda: target.copy_(source, non_blocking=True),
        numbers=lambda: _pattern(source),
        expected=lambda: _pattern(target),
    )


_CALLS: dict[str, Callable[[Step, int, Any, Buffers], Call]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
    "host_to_device": _host_copy,
    "device_to_host": _host_copy,
    "matrix_product": _matrix_product,
    "overlapped": _overlapped,
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


def _pattern(like: torch.Tensor, *, start: int = 0, mark: int = 0) -> torch.Tensor:
    """1 to 251, again and again, from a place on, for each element of a tensor; a mark shifts them out of the range of
    any other mark."""
    places = torch.arange(start, start + like.numel(), dtype=torch.int32, device=like.device)
    return (places.remainder_(_PERIOD).add_(1 + mark * _PERIOD)).to(torch.float32)


def _patterns(part: torch.Tensor, marks: Iterable[int]) -> torch.Tensor:
    """The patterns of several parts, one after the other."""
    return torch.cat([_pattern(part, mark=mark) for mark in marks])


def _sum_to(number: int) -> int:
    return number * (number + 1) // 2


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


def _any_bit(tensor: torch.Tensor) -> bool:
    return bool(_bits(tensor).any())
