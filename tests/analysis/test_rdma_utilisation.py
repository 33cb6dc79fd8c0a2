"""Use of an RDMA port over its expected speed."""

from __future__ import annotations

import pytest

from commwatch.node.utilisation import RdmaUse
from commwatch_exporters.snapshot import Block, Layout, Value

PORT = ("mlx5_0", "1")
NAMES = [
    f"commwatch_rdma_port_{way}_utilization_{kind}"
    for way in ("transmit", "receive")
    for kind in ("ratio", "peak_ratio")
]


def counters(family: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(f"commwatch_{family}_{way}_bytes_total", PORT) for way in ("transmit", "receive")]


@pytest.mark.parametrize(
    ("families", "expected"),
    [(["rdma_port"], (0.8, 0.4)), (["rdma"], (0.8, 0.4)), (["rdma_port", "rdma"], (0.8, 0.4)), ([], (None, None))],
    ids=["port counters", "EFA", "both", "neither"],
)
def test_use_is_the_byte_rate_over_the_expected_speed(families: list[str], expected: tuple[Value, Value]) -> None:
    """The counters of the port are taken; an adapter without them has its own; without any nothing is said."""
    layout = Layout([one for family in families for one in counters(family)])
    sent = [200e9, 100e9, 1e9, 1e9][: 2 * len(families)]
    use = RdmaUse(*PORT, max_gap_seconds=15)
    use.update(Block(layout, [0] * len(sent), 0.0), 50e9)

    after = use.update(Block(layout, sent, 5.0), 50e9)

    assert [after.get(name, *PORT) for name in NAMES] == [one for one in expected for _ in range(2)]


def test_without_an_expected_speed_nothing_is_said() -> None:
    """A port of unknown speed has no ratio."""
    layout = Layout(counters("rdma_port"))
    use = RdmaUse(*PORT, max_gap_seconds=15)
    use.update(Block(layout, [0, 0], 0.0), None)

    assert list(use.update(Block(layout, [1, 1], 5.0), None).values) == [None] * 4
