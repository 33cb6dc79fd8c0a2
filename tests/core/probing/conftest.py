"""Fixtures of the tests of when probes run."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.node import gpus_now
from commwatch.node.topology.sysfs import SysfsFacts
from commwatch.probes import node as probe_node
from commwatch.service import probing
from core.probing.probed import Node, ScriptedLauncher
from support.core import Clock


async def nothing_read(*_: object) -> SysfsFacts:
    """A PCI tree without devices."""
    return SysfsFacts((), (), None, ())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the probes; two looks at the GPUs follow each other at once."""
    moved = Clock()
    monkeypatch.setattr(probing, "time", moved)
    monkeypatch.setattr(probe_node, "time", moved)
    monkeypatch.setattr(gpus_now, "BUSY_SAMPLES_APART_SECONDS", 0.0)
    monkeypatch.setattr(probe_node, "ask_sysfs", nothing_read)
    return moved


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> ScriptedLauncher:
    """The launcher that probes are given here."""
    one = ScriptedLauncher(clock)
    monkeypatch.setattr(probe_node, "Launcher", lambda procfs, python, lock, starvation: one)
    return one


@pytest.fixture
def node(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> Node:
    """A node with one probe, ``ring``, every 15 minutes."""
    return Node(tmp_path, clock, launcher)
