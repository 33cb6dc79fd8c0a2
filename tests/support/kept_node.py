"""A node that keeps what collectors read: batches in, series out, by a clock of the test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from commwatch.config.settings import Config, Duration, Inventory
from commwatch.node.run import Collected, Outcome
from commwatch.node.store import Store
from commwatch.readings import Absence
from commwatch.service.instruments import Instruments
from commwatch.service.pipeline import Pipeline
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from support.core import Clock, collector

BOOT = "0f1e2d3c-0000-4000-8000-000000000000"


class KeptNode:
    """The store of a node and what analyses each run of a collector; nothing of the node is known at first."""

    def __init__(self, folder: Path, interval: float = 1.0) -> None:
        """
        Args:
            folder: for its state and its files.
            interval: of all collectors, seconds.
        """
        self.clock = Clock()
        boot = folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text(f"{BOOT}\n")
        self.store, self.instruments = Store(), Instruments()
        config = Config(inventory=Inventory(learn_after=Duration(600)))
        trees = (str(folder / "sys"), str(folder / "proc"))
        self._pipeline = Pipeline(
            config, StateDirectory(folder / "state"), self.store, self.instruments, (), *trees, clock=self.clock
        )
        self._interval = interval
        self._layouts: dict[tuple[Series, ...], Layout] = {}

    def keep(self, name: str, devices: Mapping[str, Mapping[Series, Value]], *absences: Absence) -> None:
        """Keep what a collector has read now, by device; readings of the same series share a layout, as a worker's."""
        blocks = {device: self._block(values) for device, values in devices.items()}
        for device, block in blocks.items():
            self.store.put(name, device, block, float("inf"))
        collected = Collected(blocks, list(absences), 0.0)
        self._pipeline.on_batch(Outcome(collector(name, interval=self._interval), collected, None, self.clock.now))

    def _block(self, values: Mapping[Series, Value]) -> Block:
        layout = self._layouts.setdefault(tuple(values), Layout(values))
        return Block(layout, list(values.values()), self.clock.now)

    def value(self, metric: str, *labels: str) -> Value:
        """A number of the page, by the metric's name without its prefix."""
        return self.store.snapshot().value(f"commwatch_{metric}", *labels)

    def resets(self, source: str, device: str) -> Value:
        """How often counters of a device were seen to start again."""
        return self.instruments.block(0.0).get("commwatch_counters_reset_total", source, device)
