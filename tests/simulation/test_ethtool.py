"""The ethtool source over the simulated driver's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commwatch.readings import Batch
from commwatch_exporters.snapshot import Value
from simulation.harness import Rehearsal
from support.sources import source_of, stand_in_of

PORT = "ens1np0"
ROCE = "ens11f0np0"


class Node:
    """A simulated node whose interfaces are read."""

    def __init__(self, rehearsal: Rehearsal, sysfs: Path) -> None:
        self.rehearsal = rehearsal
        self.sysfs = sysfs
        rehearsal.node.write_sysfs(sysfs, ("network",))
        self.source = source_of("ethtool", sysfs, stand_in=lambda: stand_in_of("ethtool", rehearsal.node))

    def collect(self) -> Batch:
        return self.source.collect("ethtool")

    def of_host(self, interface: str, way: str) -> int:
        """Bytes that sysfs shows, ``rx`` or ``tx``."""
        return int((self.sysfs / f"class/net/{interface}/statistics/{way}_bytes").read_text())

    def values(self, device: str = PORT) -> dict[tuple[str, ...], Value]:
        """Numbers by metric, without the prefix, and the labels after the interface."""
        batch = self.collect()
        assert batch.absences == []
        return {
            (name.removeprefix("commwatch_ethernet_"), *labels[1:]): value
            for reading in batch.readings
            if reading.device == device
            for (name, labels), value in zip(reading.series, reading.values, strict=True)
        }


@pytest.fixture
def simulate(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes a node: ``simulate(preset, faults="", now=100.0)``."""
    nodes: list[Node] = []

    def make(preset: str, faults: str = "", now: float = 100.0) -> Node:
        nodes.append(Node(rehearse(preset, faults, now), tmp_path / "sysfs"))
        return nodes[-1]

    yield make
    for node in nodes:
        node.source.close()


def test_a_healthy_port_counts_traffic_and_no_fault(simulate: Callable[..., Node]) -> None:
    """Bytes are those of sysfs, bits to correct are there, and nothing else moves."""
    node = simulate("h100x8")

    values = node.values()

    assert values["phy_receive_bytes_total",] == node.of_host(PORT, "rx")
    assert values["phy_transmit_bytes_total",] == node.of_host(PORT, "tx")
    bits, corrected = values["phy_line_bytes_total",], values["phy_corrected_bit_errors_total",]
    assert bits == 400_000_000_000 * 100 / 8
    assert corrected is not None
    assert 0 < corrected < bits * 1e-6
    idle = {name: value for name, value in values.items() if not name[0].startswith(("phy_", "rdma_"))}
    assert set(idle.values()) == {0}
    assert len(idle) >= 10


def test_rdma_is_part_of_the_port_and_not_of_the_host(simulate: Callable[..., Node]) -> None:
    """On RoCE the port's bytes are the host's and those of RDMA together."""
    node = simulate("h100x8ndr")

    values = node.values(ROCE)

    rdma = values["rdma_receive_bytes_total",]
    assert rdma is not None
    assert rdma > 0
    assert values["phy_receive_bytes_total",] == node.of_host(ROCE, "rx") + rdma


def test_counters_never_fall(simulate: Callable[..., Node]) -> None:
    """Every counter of a node without a fault holds or grows from second to second."""
    node = simulate("h100x8ndr")
    before = node.values(ROCE)
    for _ in range(60):
        node.rehearsal.now += 1
        after = node.values(ROCE)
        assert all((after[name] or 0) >= (value or 0) for name, value in before.items())
        before = after


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        (
            "ethernet_congestion",
            {("pfc_receive_pauses_total", "3"): 101, ("pfc_receive_pause_seconds_total", "3"): 0.00505},
        ),
        ("ethernet_discards", {("phy_discards_total",): 101}),
        (
            "ethernet_symbol_errors",
            {
                ("phy_symbol_errors_total",): 101,
                ("phy_pcs_symbol_errors_total",): 101,
                ("phy_lane_errors_total", "1"): 101,
            },
        ),
    ],
)
def test_a_fault_moves_its_counters_alone(
    simulate: Callable[..., Node], kind: str, moved: dict[tuple[str, ...], Value]
) -> None:
    """At ten a second for ten seconds, the first at once, its counters move by 101 and no other error does."""
    reference = simulate("h100x8", now=110.0)
    healthy, neighbour = reference.values(), reference.values("ens2np0")
    node = simulate("h100x8", f"- {{fault: {kind}, interface: {PORT}, rate: 10/s, at: 100s}}", now=99.0)
    before = node.values()
    node.rehearsal.now = 110.0

    after = node.values()

    assert {name for name in after if after[name] != healthy[name]} == set(moved)
    for name, count in moved.items():
        assert after[name] == pytest.approx((healthy[name] or 0) + (count or 0))
        assert (before[name] or 0) < (after[name] or 0)
    assert node.values("ens2np0") == neighbour


def test_a_port_that_goes_down_counts_it(simulate: Callable[..., Node]) -> None:
    """Each time the link goes, once; bits are counted only while it is up."""
    node = simulate("h100x8", f"- {{fault: ethernet_down, interface: {PORT}, at: 50s, for: 10s}}", now=49.0)
    assert node.values()["phy_link_down_total",] == 0
    node.rehearsal.now = 50.5
    assert node.values()["phy_link_down_total",] == 1
    node.rehearsal.now = 100.0

    values = node.values()

    assert values["phy_link_down_total",] == 1
    assert values["phy_line_bytes_total",] == 400_000_000_000 * 90 / 8


def test_counters_wrap_at_64_bits(simulate: Callable[..., Node]) -> None:
    """A node whose state file says that it started long ago is read like any other."""
    values = simulate("h100x8", now=1e9).values()

    assert values["phy_line_bytes_total",] == int(1e9) * 400_000_000_000 % 2**64 / 8


def test_another_driver_has_no_statistics(simulate: Callable[..., Node]) -> None:
    """The adapter of the RTX preset is no mlx5: nothing is read and nothing fails."""
    batch = simulate("rtx3090x4").collect()

    assert (batch.readings, batch.absences) == ([], [])
