"""Ports whose other ports' worker hangs: what was read of them before still counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commwatch.node.link_flaps import gone
from commwatch.node.run import Collected
from commwatch.readings import Absence, Reason
from commwatch_exporters.snapshot import Block, Layout

PORTS = ("mlx5_0:1", "mlx5_1:1", "mlx5_2:1")
READ = {PORTS[0]: Block(Layout([]), [], 1.0)}


@pytest.mark.parametrize(
    ("reason", "missing"),
    [
        ("deadline", set()),
        ("starved", set()),
        ("crashed", set()),
        ("unreadable", {PORTS[2]}),
        ("not_found", {*PORTS[1:]}),
    ],
)
def test_a_device_is_gone_only_after_a_run_that_was_not_cut_short(reason: Reason, missing: set[str]) -> None:
    """A worker that gave no answer says nothing of the devices that it did not come to."""
    assert gone(Collected(READ, [Absence(PORTS[1], reason, "")], 0.0), PORTS) == missing


def test_no_device_is_gone_while_a_part_of_the_run_is_late() -> None:
    """Its own process has its part still to give."""
    assert gone(replace(Collected(READ, [], 0.0), is_part=True), PORTS) == set()
