"""Runs the readers as the daemon would, with the recording layers beneath them, and writes what was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from commwatch import __version__
from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.node.topology.sysfs import read_sysfs
from commwatch.readings import SourceUnavailable
from commwatch.sources import kernel_log
from commwatch.sources.base import Origin, Source
from commwatch.sources.ethtool.abi import Statistics, StatisticsCalls
from commwatch.sources.presence import is_virtual
from commwatch.workers.sources import READERS, ReaderRow
from commwatch.workers.wire import Cadence
from commwatch_rehearsal.simulation.recording.file import RecordingFile
from commwatch_rehearsal.simulation.recording.layers import (
    FileLayer,
    RecordingEthtool,
    RecordingLog,
    Tape,
    record_driver,
)
from commwatch_rehearsal.simulation.recording.lines import Head, Hung
from commwatch_rehearsal.simulation.recording.names import Names

if TYPE_CHECKING:
    from commwatch_rehearsal.simulation.plug import Node

_LOOK_SECONDS: Final = 30.0
"""Between two looks at which folders there are."""
_PATIENCE_SECONDS: Final = 10.0
"""That a reader gets at the end to come back from a call."""


@dataclass(frozen=True, slots=True)
class Recorded:
    size: int
    """Bytes."""
    hung: tuple[str, ...]
    """Readers that had not come back."""


class _Reader:
    """The sources of one reader, read in a thread of their own: one that hangs keeps no other from being recorded."""

    def __init__(
        self, row: ReaderRow, sources: dict[str, Source], config: Config, refresh: Callable[[str], None]
    ) -> None:
        self.name = row.name
        self.device = ""
        """That it touches now."""
        self._sources = sources
        self._open: set[str] = set()
        self._refresh = refresh
        self._cadences: dict[tuple[str, str], Cadence] = {}
        for source in row.sources:
            if source.name in sources:
                for collector in source.collectors:
                    every = float(getattr(source.section(config.sources), collector.interval))
                    cadence = self._cadences[source.name, collector.key] = Cadence()
                    cadence.order(every, time.monotonic(), at_once=True)

    def run(self, stop: threading.Event) -> None:
        """Run due collectors until the event is set."""
        while self._cadences and not stop.is_set():
            source, collector = min(self._cadences, key=lambda one: self._cadences[one].due)
            cadence = self._cadences[source, collector]
            if stop.wait(max(0.0, cadence.due - time.monotonic())):
                break
            self.read(source, collector)
            cadence.ran(time.monotonic())
        for name in self._open:
            self._sources[name].close()

    def read(self, name: str, collector: str) -> None:
        """Run a collector once; a source that cannot be read is opened again next time."""
        source = self._sources[name]
        self._refresh(name)
        try:
            if name not in self._open:
                source.open(self._touch, frozenset(), None)
                self._open.add(name)
            source.collect(collector)
        except SourceUnavailable:
            self._open.discard(name)
            source.close()

    def _touch(self, device: str) -> None:
        self.device = device


def record(config: Config, path: Path, seconds: float, *, keep_names: bool, node: Node | None,
           plan: SimulationPlan | None, handed_log: int | None) -> Recorded:  # fmt: skip
    """Record this node, or a simulated one, for some time.

    Args:
        config: where the node shows itself, and how often its sources are read.
        keep_names: replace no names.
        node: the simulated node, whose driver is installed in this process; None: the real one.
        handed_log: descriptor of the kernel log that this process was given.

    Raises:
        UsageError: the file exists or cannot be made.
    """
    file = RecordingFile(path, Head(1, __version__, keep_names))
    try:
        return _record(config, file, seconds, Names(keep_names), node, plan, handed_log)
    except BaseException:
        file.discard()
        raise


def _record(
    config: Config, file: RecordingFile, seconds: float, names: Names,
    node: Node | None, plan: SimulationPlan | None, handed_log: int | None,
) -> Recorded:  # fmt: skip
    roots = plan or config.paths
    tape = Tape(file, names)
    tree = FileLayer(tape, roots.sysfs, roots.procfs)
    remove_driver = record_driver(tape)
    stop = threading.Event()
    try:
        refresh = _refreshing(node, plan)
        refresh("")
        is_virtual(Path(roots.procfs))  # as the daemon asks when it starts
        read_sysfs(Path(roots.sysfs), Path(roots.procfs))  # as `commwatch topology` reads it
        readers = _readers(config, tape, node, plan, handed_log, refresh)
        threads = {
            one.name: threading.Thread(target=one.run, args=(stop,), daemon=True, name=one.name) for one in readers
        }
        for thread in threads.values():
            thread.start()
        end = tape.began + seconds
        pause = min(1.0, seconds / 2)
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, pause))
            # The folders that the first second shows were there from the beginning.
            tree.look(tape.at if pause == _LOOK_SECONDS else 0.0)
            pause = _LOOK_SECONDS
        stop.set()
        until = time.monotonic() + _PATIENCE_SECONDS
        for thread in threads.values():
            thread.join(max(0.0, until - time.monotonic()))
        hung = [one for one in readers if threads[one.name].is_alive()]
        for one in hung:
            file.write(Hung(one.name, one.device))
        for cost in tape.costs():
            file.write(cost)
        return Recorded(file.close(max(seconds, tape.at)), tuple(one.name for one in hung))
    finally:
        stop.set()
        remove_driver()
        tree.remove()


def _refreshing(node: Node | None, plan: SimulationPlan | None) -> Callable[[str], None]:
    """Returns a function that updates the files of a simulated node before a source is read."""
    if node is None or plan is None:
        return lambda _source: None
    sysfs, procfs, lock = Path(plan.sysfs), Path(plan.procfs), threading.Lock()

    def write(source: str) -> None:
        with lock:
            node.write_sysfs(sysfs, (source,)) if source else node.write_sysfs(sysfs)
            node.write_procfs(procfs)

    return write


def _readers(
    config: Config, tape: Tape, node: Node | None, plan: SimulationPlan | None,
    handed_log: int | None, refresh: Callable[[str], None],
) -> list[_Reader]:  # fmt: skip
    """Those of the driver and of the kernel; what jobs write and are started with is not recorded."""
    from commwatch_rehearsal.simulation import plug

    roots = plan or config.paths
    found = []
    for row in READERS:
        sources: dict[str, Source] = {}
        for source in row.sources:
            if source.of_jobs or not source.section(config.sources).enabled:
                continue
            below = None if node is None else plug.stand_in(source.name, node)
            origin = partial(
                Origin, Path(roots.sysfs), Path(roots.procfs), config.sources,
                is_simulated=node is not None, kernel_log=handed_log,
            )  # fmt: skip
            if source.why_absent(origin()) is not None and node is None:
                continue
            stand_in: Callable[[], object] | None = None
            if source.name == "ethtool":
                stand_in = partial(_ethtool, below, tape)
            elif source.name == "kernel_log":
                stand_in = partial(RecordingLog, kernel_log.opener(origin(stand_in=below)), tape)
            sources[source.name] = source.make(origin(stand_in=stand_in))
        if sources:
            found.append(_Reader(row, sources, config, refresh))
    return found


def _ethtool(below: Callable[[], Statistics] | None, tape: Tape) -> RecordingEthtool:
    return RecordingEthtool(StatisticsCalls() if below is None else below(), tape)
