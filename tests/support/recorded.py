"""Recordings for tests: of a simulated node that a test reads, and lines that a test writes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.sources.presence import is_virtual
from commwatch_rehearsal.simulation import plug
from commwatch_rehearsal.simulation.recording.file import RecordingFile
from commwatch_rehearsal.simulation.recording.layers import (
    FileLayer,
    RecordingEthtool,
    RecordingLog,
    Tape,
    record_driver,
)
from commwatch_rehearsal.simulation.recording.lines import Head
from commwatch_rehearsal.simulation.recording.names import Names
from support.pages import page_of
from support.simulated_daemon import SimulatedDaemon, rehearsed

HEAD = {"is": "recording", "format": 1, "commwatch": "0.1.0"}

END = {"is": "end", "seconds": 10.0}
FILE = {"is": "file", "at": 0, "root": "sys", "path": "class/net/eth0/mtu", "content": "1\n"}
STATISTICS = {"is": "ethtool", "at": 0, "interface": "eth0"}


def packed(lines: Iterable[Any]) -> bytes:
    """The content of a recording."""
    return gzip.compress(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), 1)


def whole(*lines: Any, seconds: float = 10.0) -> bytes:
    """A recording with head and end around these lines."""
    return packed([HEAD, *lines, {**END, "seconds": seconds, "lines": len(lines) + 1}])


@contextmanager
def recorded(node: SimulatedDaemon, path: Path, *, keep: bool) -> Iterator[None]:
    """Record everything that the sources of a daemon read meanwhile."""
    file = RecordingFile(path, Head(1, "0.1.0", keep))
    tape = Tape(file, Names(keep), lambda: node.time)
    tree = FileLayer(tape, *node.roots)
    remove_driver = record_driver(tape)
    original = plug.stand_in

    def stand_in(source: str, of: Any) -> Callable[..., Any] | None:
        below = original(source, of)
        if below is None:
            return None
        if source == "ethtool":
            return lambda: RecordingEthtool(below(), tape)
        return lambda **clock: RecordingLog(lambda: below(**clock), tape)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plug, "stand_in", stand_in)
        try:
            is_virtual(Path(node.roots[1]))  # the daemon has asked before
            yield
        finally:
            tree.look(0.0)
            tree.remove()
            remove_driver()
            file.close(max(1.0, tape.at))


def pages(node: SimulatedDaemon) -> list[list[str]]:
    """The samples at three times, but for those of this process."""
    found = []
    for _ in range(3):
        node.run()
        lines = page_of(node.snapshot()).decode().splitlines()
        found.append(sorted(line for line in lines if line.startswith("commwatch_")))
        node.time += 12.0
    return found


def recorded_and_replayed(
    preset: str, faults: str, keep: bool, folder: Path, patched: pytest.MonkeyPatch
) -> tuple[Path, list[list[str]], list[list[str]]]:
    """The recording of a node, its pages meanwhile, and those of the recording."""
    file = folder / "node.cwrec"
    when: dict[str, Any] = {"booted_at": 1.8e9, "time_now": 3600.0}
    with rehearsed(preset, folder, patched, faults, **when) as node, recorded(node, file, keep=keep):
        lived = pages(node)
    with rehearsed(str(file), folder / "again", patched, **when) as node:
        return file, lived, pages(node)
