"""Bytes that the ports and interfaces of the node have moved."""

from __future__ import annotations

from functools import lru_cache

from commwatch_exporters.snapshot import Block, Layout, Value

_ENDS = tuple(f"_{way}_bytes_total" for way in ("transmit", "receive", "read", "read_response", "write"))
"""Of the counters' names: EFA counts what is read and written remotely apart from what is sent."""


@lru_cache(maxsize=1024)
def _places(layout: Layout) -> tuple[int, ...]:
    return tuple(place for place, (metric, _) in enumerate(layout.series) if metric.endswith(_ENDS))


def payload_of(block: Block) -> Value:
    """Bytes that a port, an adapter or an interface has moved, both ways; None where one of its counters was not read,
    or it has none."""
    moved = [block.values[place] for place in _places(block.layout)]
    return sum(one for one in moved if one is not None) if moved and None not in moved else None
