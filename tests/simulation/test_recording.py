"""A node is recorded beneath the unchanged readers and replayed beneath them; what is no recording is refused."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.errors import ConfigError, UsageError
from commwatch.sources import files
from commwatch_rehearsal.simulation.recording.file import RecordingFile, read_recording
from commwatch_rehearsal.simulation.recording.lines import Head
from commwatch_rehearsal.simulation.recording.names import Names
from commwatch_rehearsal.simulation.recording.node import RecordedNode
from support.command_line import run_command
from support.pages import page_of
from support.recorded import HEAD, packed, recorded, whole
from support.simulated_daemon import SimulatedDaemon, rehearsed

FAULTS = """
- {kind: xid, gpu: 2, at: 1h0m1s, code: 79}
"""


def pages(node: SimulatedDaemon) -> list[list[str]]:
    """The samples at three times, a step apart."""
    found = []
    for _ in range(3):
        node.run()
        found.append(sorted(page_of(node.snapshot()).decode().splitlines()))
        node.time += 12.0
    return found


@pytest.fixture(scope="module", params=["h100x8ndr", "rtx3090x4"])
def twice(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A node's pages while it is recorded, and those of the recording."""
    folder = tmp_path_factory.mktemp("recorded")
    file = folder / "node.cwrec"
    with pytest.MonkeyPatch.context() as patched:
        with rehearsed(request.param, folder / "a", patched, booted_at=1.8e9, time_now=3600.0) as node:
            with recorded(node, file, keep=True):
                lived = pages(node)
        with rehearsed(str(file), folder / "b", patched, booted_at=1.8e9, time_now=3600.0) as node:
            return lived, pages(node)


def test_a_replayed_node_has_the_page_of_the_recorded_one(twice: Any) -> None:
    """Every sample, at each of three times, without a fault of its own."""
    lived, replayed = twice
    for before, after in zip(lived, replayed, strict=True):
        assert len(before) > 500
        assert after == before
