"""Utilisation of the PCIe link of a GPU."""

from __future__ import annotations

from commwatch.node.capacity import pcie_rate
from commwatch.node.utilisation import PcieUse
from commwatch_exporters.snapshot import Block, Layout, Value

GPU = ("0", "0000:17:00.0")
LAYOUT = Layout([
    ("commwatch_pcie_transmit_rate_bytes_per_second", GPU),
    ("commwatch_pcie_transmit_bytes_total", GPU),
    ("commwatch_pcie_receive_bytes_total", GPU),
])  # fmt: skip
CAPACITY = 64e9


def ratios(block: Block, kind: str = "ratio") -> tuple[Value, Value]:
    return (
        block.get(f"commwatch_pcie_transmit_utilization_{kind}", *GPU),
        block.get(f"commwatch_pcie_receive_utilization_{kind}", *GPU),
    )


def run(*counts: tuple[Value, Value], step: float = 10.0, capacity: float | None = CAPACITY) -> Block:
    """The use after the last of some readings of transmitted and received bytes."""
    use = PcieUse(*GPU, max_gap_seconds=30)
    blocks = [use.update(Block(LAYOUT, [1, *one], place * step), capacity) for place, one in enumerate(counts)]
    return blocks[-1]


def test_use_is_the_rate_over_the_expected_capacity() -> None:
    """Each direction has its own ratio, and its peak of the last minute."""
    after = run((0, 0), (320e9, 64e9), (320e9, 128e9))

    assert ratios(after) == (0.0, 0.1)
    assert ratios(after, "peak_ratio") == (0.5, 0.1)


def test_one_reading_has_no_use() -> None:
    """Without an earlier reading, or with one too long ago, there is no rate."""
    assert ratios(run((0, 0))) == (None, None)
    assert ratios(run((0, 0), (1, 1), step=31.0)) == (None, None)


def test_a_direction_that_was_not_read_is_absent() -> None:
    """One direction without a number hides that one alone."""
    assert ratios(run((0, 0), (None, 640e9))) == (None, 1.0)


def test_without_a_capacity_there_is_no_use() -> None:
    """A link of which nothing is expected has no ratio."""
    assert ratios(run((0, 0), (640e9, 640e9), capacity=None)) == (None, None)


def test_the_capacity_of_a_full_link() -> None:
    """16 lanes of generation 5 that move 50.4 GB/s, which is what NCCL plans with, are used to four fifths."""
    used = ratios(run((0, 0), (504e9, 0), capacity=pcie_rate(5, 16)))[0]

    assert used is not None
    assert round(used, 3) == 0.8
