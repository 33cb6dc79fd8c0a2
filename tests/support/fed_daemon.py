"""The daemon's own composition whose readers give what a test says: samples go in, the page comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.node.run import Collected
from commwatch.node.starvation import Starvation
from commwatch.readings import SourceUnavailable
from commwatch.service.engine import Engine
from commwatch.service.instruments import Instruments
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from support.core import Clock, PlannedJobs, ScriptedReader, collected, give_clock, keep_time
from support.facts import shipped

Values = Mapping[Any, Value]
"""By metric and values of its labels."""


class FedDaemon:
    """A daemon on a clock of its own, of which each reading is the test's.

    Args:
        folder: for its state.
        patched: takes clocks and readers.
        config: another than the default.
    """

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch, config: Config | None = None) -> None:
        self.clock = Clock()
        self.state = StateDirectory(folder)
        self._folder, self._config, self._patched = folder, config or Config(), patched
        self._layouts: dict[tuple[Series, ...], Layout] = {}
        self.suspects: frozenset[str] = frozenset()
        """Devices on which a process of a reader hangs."""
        self.hung_reader = "nvml"
        """The reader of these."""
        self.absent: dict[str, str] = {}
        """Sources that are not on this node, and why."""
        self.log: list[Any] = []
        """All that was logged of the runs until now."""
        keep_time(patched, self.clock)
        fed = type("_FedReader", (ScriptedReader,), {"suspects": property(self._suspects_of)})
        patched.setattr("commwatch.service.engine.Reader", lambda one, keeper, **_: fed(one.name, keeper=keeper))
        self.restart()

    def restart(self, boot: str = "boot", config: Config | None = None) -> None:
        """Another daemon begins, on what was saved.

        Args:
            boot: identity of the node's boot; empty where it cannot be read.
            config: that is in force from now on; None: as before.
        """
        self._config = config or self._config
        boot_id = self._folder / "procfs/sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True, exist_ok=True)
        boot_id.write_text(boot)
        self.instruments, self.jobs = Instruments(), PlannedJobs()
        node = SimulationPlan("", "", 0.0, str(self._folder / "sysfs"), str(self._folder / "procfs"))
        self.engine = Engine(
            self._config, shipped(), self.state, node, self.instruments, self.jobs, Starvation(Path("/nonexistent"))
        )
        self._patched.setattr(self.engine.presence, "why_absent", self._why_absent)
        give_clock(self.engine, self.clock)

    def _why_absent(self, source: str) -> str | None:
        return self.absent.get(source)

    def _suspects_of(self, reader: ScriptedReader) -> frozenset[str]:
        return self.suspects if reader.settings.name == self.hung_reader else frozenset()

    def save(self) -> None:
        """Write what must survive a restart, as of the last look of the rules, which is now."""
        self.engine.look()
        asyncio.run(self.engine.save())

    def feed(
        self, collector: str, answer: Mapping[str, Values] | Collected | SourceUnavailable | None = None,
        seconds: float = 0.0,
    ) -> list[Any]:  # fmt: skip
        """One run of a collector; returns what the daemon logs of it.

        Args:
            collector: by its name on the metrics.
            answer: what it reads, by device; None: nothing, and nothing fails.
            seconds: that pass before it.
        """
        self.clock.now += seconds
        one = self.engine.collection.collectors[collector]
        reader = self.engine.collection.reader_of(one)
        assert isinstance(reader, ScriptedReader)
        if answer is None or isinstance(answer, Mapping):
            answer = collected({device: self.block(values) for device, values in (answer or {}).items()})
        reader.answers.append(answer)
        with capture_logs() as logged:
            asyncio.run(self.engine.collection.run(one))
        defects = [entry for entry in logged if entry.get("exc_info")]
        assert not defects, defects
        self.log += logged
        return logged

    def pause(self) -> None:
        """Let go of the driver."""
        with capture_logs():
            asyncio.run(self.engine.pause("upgrade"))

    def resume(self) -> None:
        """Read again."""
        with capture_logs():
            self.engine.resume()

    def observe(self) -> None:
        """Look at the inventory now."""
        self.engine.pipeline.observe(self.clock.now)

    def inventory(self) -> dict[str, Any]:
        """The output of ``commwatch inventory``."""
        return self.engine.inventory()

    def accept(self) -> list[str]:
        """Expect what is here now; returns what is given up.

        Raises:
            CommwatchError: it cannot be accepted, or not be saved.
        """
        given_up: list[str] = asyncio.run(self.engine.accept_inventory())["given_up"]
        return given_up

    def resets(self) -> dict[tuple[str, ...], float]:
        """Counters that began again, by source and device, as they are shown."""
        block = self.engine.store.get("counter_resets", "")
        return {} if block is None else dict(block.samples("commwatch_counters_reset_total"))

    def block(self, values: Values) -> Block:
        """A block taken now; readings of the same series share a layout, as those of a worker do."""
        layout = self._layouts.get(series := tuple(values))
        if layout is None:
            layout = self._layouts[series] = Layout(series)
        return Block(layout, list(values.values()), self.clock.now)

    def value(self, metric: str, *labels: str) -> Value:
        """The value of a series on the page; None where it is absent."""
        return self.engine.store.snapshot().value(f"commwatch_{metric}", *labels)

    def series(self, metric: str) -> dict[tuple[str, ...], Value]:
        """The values of a metric on the page, by their labels."""
        found = self.engine.store.snapshot().samples(f"commwatch_{metric}")
        return {tuple(labels.values()): value for labels, value in found}
