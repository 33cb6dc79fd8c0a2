"""Layouts, blocks and snapshots: what they refuse, what they answer, and how numbers are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.node_collector import format_number
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot
from support.pages import lines_of, snapshot_of
from support.passes import in_one_pass

CARRIER, LATENCY = "commwatch_ethernet_carrier", "commwatch_probe_latency_seconds"
ADAPTERS = {"commwatch_ethernet_info", "commwatch_rdma_port_info", "commwatch_probe_slowest_rank_info"}
"""What tells the address of a device that is no GPU."""


@in_one_pass(
    "series",
    [
        (CARRIER, ()),
        (CARRIER, ("eth0", "0")),
        ("commwatch_simulated", ("x",)),
        (f"{LATENCY}_sum", ("ring", "nccl", "0.1")),
        (f"{LATENCY}_bucket", ("ring",)),
        (f"{LATENCY}_bucket", ("ring", "nccl", "0.1", "x")),
    ],
)
def test_labels_must_be_those_of_the_catalogue(series: Series) -> None:
    """A source that forgets a label, or invents one, is found when it is written and not on a page."""
    with pytest.raises(ValueError, match=f"^{series[0]} has labels"):
        Layout([series])


@in_one_pass("name", ["commwatch_nothing", "ethernet_carrier", f"{CARRIER}_sum", f"{LATENCY}_max"])
def test_a_name_must_be_of_the_catalogue(name: str) -> None:
    """Only a histogram has suffixes, and only its three."""
    with pytest.raises(KeyError, match=f"{name} is not in the catalogue"):
        Layout([(name, ("x",))])


def test_a_series_stands_once_in_a_layout() -> None:
    """Twice the same series would make the page unreadable."""
    with pytest.raises(ValueError, match="names one series twice"):
        Layout([(CARRIER, ("eth0",)), (CARRIER, ("eth1",)), (CARRIER, ("eth0",))])


@in_one_pass("values", [[], [1], [1, 2, 3]])
def test_a_block_has_as_many_values_as_series(values: list[int]) -> None:
    """A value that slipped would belong to another series."""
    with pytest.raises(ValueError, match=f"{len(values)} values for 2 series"):
        Block(Layout([(CARRIER, ("eth0",)), (CARRIER, ("eth1",))]), values, 0.0)


def test_families_of_a_histogram_are_one() -> None:
    """Buckets, sum and count belong to the histogram; a counter is its own family."""
    layout = Layout([
        (f"{LATENCY}_bucket", ("ring", "nccl", "+Inf")),
        (CARRIER, ("eth0",)),
        (f"{LATENCY}_count", ("ring", "nccl")),
    ])  # fmt: skip

    assert layout.families == {LATENCY: (0, 2), CARRIER: (1,)}
    assert layout.prefixes[0] == f'\n{LATENCY}_bucket{{probe="ring",backend="nccl",le="+Inf"}} '
    assert family_of(f"{LATENCY}_sum") is CATALOGUE[LATENCY]
    assert family_of("commwatch_clock_steps_total").type == "counter"


def test_a_block_answers_for_its_own_series() -> None:
    """What was not read and what is of another block are both unknown; zero is a value."""
    block = Block(Layout([(CARRIER, ("eth0",)), (CARRIER, ("eth1",)), ("commwatch_simulated", ())]), [0, None, 1], 0.0)

    assert [block.get(CARRIER, device) for device in ("eth0", "eth1", "eth2")] == [0, None, None]
    assert block.get("commwatch_simulated") == 1
    assert lines_of(block, CARRIER) == f'{CARRIER}{{device="eth0"}} 0\n'
    assert lines_of(block, "commwatch_simulated") == "commwatch_simulated 1\n"
    assert lines_of(block, "commwatch_gpu_busy") == ""


def test_a_snapshot_finds_a_value_in_any_of_its_blocks() -> None:
    """The first block that read it answers."""
    snapshot = snapshot_of({(CARRIER, ("eth0",)): None}, {(CARRIER, ("eth0",)): 0, (CARRIER, ("eth1",)): 1})

    assert [snapshot.value(CARRIER, device) for device in ("eth0", "eth1", "eth2")] == [0, 1, None]
    assert list(snapshot.samples(CARRIER)) == [({"device": "eth0"}, 0), ({"device": "eth1"}, 1)]
    assert list(snapshot.samples("commwatch_gpu_busy")) == []
    assert len(snapshot.family_blocks(CARRIER)) == 2


def test_a_value_of_a_histogram_is_asked_for_by_its_series() -> None:
    """With the suffix and the bucket's bound."""
    snapshot = snapshot_of(
        {(f"{LATENCY}_bucket", ("ring", "nccl", "+Inf")): 4, (f"{LATENCY}_sum", ("ring", "nccl")): 0.5}
    )

    assert snapshot.value(f"{LATENCY}_bucket", "ring", "nccl", "+Inf") == 4
    assert snapshot.value(f"{LATENCY}_sum", "ring", "nccl") == 0.5


@given(st.integers(-(2**64), 2**64) | st.floats(allow_nan=False))
def test_a_number_is_read_back_without_loss(number: float) -> None:
    """Counters of 64 bits stay whole, and a float is the same float."""
    text = format_number(number)

    assert (int(text) if isinstance(number, int) else float(text)) == number
    assert isinstance(number, float) or text.lstrip("-").isdigit()


@in_one_pass(
    "number, text",
    [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (True, "1"), (0, "0"), (0.0, "0.0")],
)
def test_special_numbers_are_written_as_prometheus_spells_them(number: float, text: str) -> None:
    """Not as Python does."""
    assert format_number(number) == text


@given(st.lists(st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(), min_size=1, max_size=5))
def test_every_line_has_its_number(values: list[float | None]) -> None:
    """Whatever stands beside it, and whatever its labels hold: those that were not read have no line."""
    names = [f'%d "{place}%' for place in range(len(values))]
    block = Block(Layout([(CARRIER, (name,)) for name in names]), values, 0.0)
    escaped = [name.replace('"', '\\"') for name in names]

    assert lines_of(block, CARRIER) == "".join(
        f'{CARRIER}{{device="{name}"}} {format_number(value)}\n'
        for name, value in zip(escaped, values, strict=True)
        if value is not None
    )


def test_the_rows_of_the_catalogue_are_well_formed() -> None:
    """Names, suffixes, labels, units and texts follow the conventions, each with its origin."""
    for name, metric in CATALOGUE.items():
        assert metric.name == name
        assert name.startswith("commwatch_")
        assert name.endswith("_info") == (metric.type == "info")
        # a gauge whose value the daemon takes from the kernel may carry a counter's name, never the other way
        assert name.endswith("_total") or metric.type != "counter"
        assert len(set(metric.labels)) == len(metric.labels)
        assert not metric.unit or name.removesuffix("_total").endswith(metric.unit)
        assert metric.text == f"{metric.help} Origin: {metric.origin}."
        assert metric.help.endswith(".")
        assert not metric.origin.endswith(".")
        assert ("gpu" in metric.labels) == ("pci_bus_id" in metric.labels) or name in ADAPTERS
        of_a_probe = ("probe" in metric.labels) == ("backend" in metric.labels)
        # A node has one pair matrix and one run between nodes, whichever probe gave it.
        assert of_a_probe or name.startswith(("commwatch_pair_", "commwatch_cluster_"))


def test_a_snapshot_keeps_what_it_was_made_of() -> None:
    """Later blocks do not get into it."""
    blocks = [Block(Layout([(CARRIER, ("eth0",))]), [1], 0.0)]
    snapshot = Snapshot(iter(blocks))
    blocks.clear()

    assert len(snapshot.blocks) == 1
