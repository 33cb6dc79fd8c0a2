"""A simulated node whose probes have run once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from commwatch_exporters.snapshot import Block, Layout, Snapshot
from commwatch_rehearsal.simulation.node import SimulatedNode
from support.simulated_daemon import READ_AT, whole_node


class ProbedNode:
    """One simulated node, and its times under any faults.

    Faults touch the times of the probes alone; what the driver and the kernel show is that of the healthy node.
    """

    def __init__(self, preset: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._preset, self._folder, self._monkeypatch = preset, folder, monkeypatch

    def snapshot(self, faults: str = "") -> Snapshot:
        """What is exposed after one cycle of each default probe.

        Args:
            faults: YAML, in force from the start.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder))  # so that nothing is known of earlier cycles
        file = folder / "of-the-ranks.yaml"
        file.write_text(faults, encoding="utf-8")
        os.utime(file, (READ_AT - 3600, READ_AT - 3600))
        with whole_node(self._preset, folder, self._monkeypatch) as daemon:
            daemon.node = SimulatedNode(self._preset, file, READ_AT - 3600, lambda: READ_AT)
            daemon.probe()
            return Snapshot([*map(_without_expected_latency, daemon.snapshot().blocks)])


def _without_expected_latency(block: Block) -> Block:
    """The times of these nodes are those of bandwidth and balance: no latency is judged."""
    kept = {
        series: value for series, value in zip(block.layout.series, block.values, strict=True)
        if series[0] != "commwatch_probe_expected_latency_seconds"
    }  # fmt: skip
    return block if len(kept) == len(block.values) else Block(Layout(kept), list(kept.values()), block.time)
