"""Fixtures for tests of the simulated node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pynvml
import pytest

from commwatch_rehearsal.simulation.library import install
from commwatch_rehearsal.simulation.recording.node import RecordedNode
from simulation.harness import Rehearsal


@pytest.fixture
def rehearse(tmp_path: Path) -> Callable[..., Rehearsal]:
    """Makes a node whose clock and faults belong to the test: ``rehearse(preset, faults="", now=100.0)``."""
    return lambda preset, faults="", now=100.0: Rehearsal(tmp_path, preset, faults, now)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory for a tree."""
    path = tmp_path / "tree"
    path.mkdir()
    return path


@pytest.fixture
def replay() -> Iterator[Callable[..., RecordedNode]]:
    """Plays a recording, with the arguments of ``RecordedNode``, until the test ends."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(closing(RecordedNode(*arguments)))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, rehearse: Callable[..., Rehearsal]) -> Callable[..., Rehearsal]:
    """As ``rehearse``, with the node's library opened beneath the binding."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def make(preset: str, faults: str = "", now: float = 100.0) -> Rehearsal:
        rehearsal = rehearse(preset, faults, now)
        install(rehearsal.node)
        pynvml.nvmlInit()
        return rehearsal

    return make
