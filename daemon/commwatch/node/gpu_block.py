"""A block of a collector of the driver: of one GPU, with one series of most metrics."""

from __future__ import annotations

from commwatch_exporters.snapshot import Block, Value


def number_of(block: Block, metric: str) -> Value:
    """The number of a metric of which a block has one series, whatever its labels; None where it was not read."""
    places = block.layout.families.get(metric)
    return None if places is None else block.values[places[0]]
