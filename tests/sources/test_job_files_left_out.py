"""Job files on a file server that is gone: their configured name is known before they are touched, and left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from commwatch.jobs.flight_recorder.source import FlightRecorderSource
from commwatch.jobs.inspector.source import InspectorSource
from commwatch.jobs.logs.source import NcclLogsSource
from commwatch.readings import Batch
from commwatch.sources.base import Source
from support.logs import LogFolder

CUDA = "node7:41:77 [0] init.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"
SOURCES: tuple[Callable[[Sequence[str]], Source], ...] = (NcclLogsSource, InspectorSource, FlightRecorderSource)


def opened(
    make: Callable[[Sequence[str]], Source], names: Sequence[str], **how: frozenset[str]
) -> tuple[Any, list[str]]:
    """A source over some names, and the names that it reports, without those that follow each other."""
    source, told = make(names), list[str]()
    source.open(told.append, how.get("leave_out", frozenset()), how.get("only"))
    return source, told


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Two folders with a file that each source reads."""
    for name in ("gone", "here"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gpu7-pid41.log").write_text(CUDA)
        (tmp_path / name / "rank_0").write_text(CUDA)
    return [str(tmp_path / "gone"), str(tmp_path / "here")]


def runs(source: Source) -> list[Batch]:
    return [source.collect(source.collectors[0]) for _ in range(3)]


@pytest.mark.parametrize("make", SOURCES)
def test_a_name_is_reported_before_it_is_touched(make: Callable[[Sequence[str]], Source], names: list[str]) -> None:
    source, told = opened(make, names)
    runs(source)

    assert set(told) == set(names)


@pytest.mark.parametrize("make", SOURCES)
def test_a_name_that_is_left_out_stops_no_other(make: Callable[[Sequence[str]], Source], names: list[str]) -> None:
    """Its own process touches it alone, and gives nothing."""
    source, told = opened(make, names, leave_out=frozenset(names[:1]))
    assert all(batch.readings for batch in runs(source))
    assert set(told) == {names[1]}

    source, told = opened(make, names, only=frozenset(names[:1]))
    assert runs(source) == [Batch()] * 3
    assert set(told) == {names[0]}


def test_logs_that_were_left_out_are_read_on_from_where_they_were_read_to(tmp_path: Path) -> None:
    """Old and new ones; nothing counts twice."""
    node = LogFolder(tmp_path)
    (tmp_path / "gone").mkdir()
    node.start("gone", "*.log")
    node.run()
    node.write(CUDA)
    node.write(CUDA, "gone/a.log")
    assert node.count() == {"cuda": 2}
    node.start("gone", "*.log").open(lambda device: None, frozenset({f"{tmp_path}/gone"}), None)
    node.write(CUDA)
    node.write(CUDA, "gone/a.log")
    node.write(CUDA, "gone/b.log")
    assert node.count(600) == {"cuda": 1}
    node.start("gone", "*.log")
    assert node.count(600) == {"cuda": 2}
