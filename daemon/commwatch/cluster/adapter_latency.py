"""Latency of a way between two RDMA adapters, by perftest's ib_write_lat where it is installed: no GPU and no NCCL."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Final

from commwatch.children import clean_environment, find_program
from commwatch.workers.one_shot import NoAnswer, ask

PROGRAM: Final = "ib_write_lat"
SECONDS: Final = 8.0
"""For a measurement, with the other end's start."""
_BYTES, _CALLS = 8, 1000
_AGAIN_SECONDS = 0.3


def why_not(adapters: Sequence[str]) -> str:
    """Why it cannot be measured on this node; empty where it can."""
    if not any(adapters):
        return "no rail is an RDMA device"
    return "" if find_program(PROGRAM) else f"{PROGRAM} of perftest is not installed"


async def adapter_latency(adapter: str, address: str, port: int, *, end: int) -> float | None:
    """Seconds of one message of 8 bytes, one way; None where this end has no answer.

    Args:
        address: of end 0, which listens, and so the port.
    """
    command = [PROGRAM, "-d", adapter, "-s", str(_BYTES), "-n", str(_CALLS), "-F", "-p", str(port)]
    command += [address] if end else []
    until = time.monotonic() + SECONDS
    while (left := until - time.monotonic()) > 0:
        try:
            answer = await ask(command, clean_environment(os.environ), left)
        except NoAnswer:
            return None
        if answer.code == 0:
            return typical_latency(answer.output)
        await asyncio.sleep(_AGAIN_SECONDS)  # the other end does not listen yet
    return None


def typical_latency(output: str) -> float | None:
    """The typical time of what ib_write_lat prints, seconds; None without any."""
    column: int | None = None
    for line in output.splitlines():
        words = line.split()
        if "t_typical[usec]" in words:
            column = words.index("t_typical[usec]")
        elif column is not None and len(words) > column and words[0] == str(_BYTES):
            try:
                seconds = float(words[column]) * 1e-6
            except ValueError:
                return None
            return seconds if 0 < seconds < 1 else None
    return None
