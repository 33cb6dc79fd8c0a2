"""Fixtures that tests of probes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.cycles import wait_until_gone
from support.quick_ranks import read_sysfs_here


@pytest.fixture(autouse=True)
def no_pause_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The busy test of a simulated driver needs no second between its two looks."""
    monkeypatch.setattr("commwatch.node.gpus_now.BUSY_SAMPLES_APART_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def no_child_for_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PCI tree is read in this process."""
    read_sysfs_here(monkeypatch)


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No process and no private folder is left after any test."""
    yield
    wait_until_gone(tmp_path)
