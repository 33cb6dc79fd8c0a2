"""The hold on a node: what is asked for, how long it lasts, and what several prologues at once come to."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from commwatch.errors import StateError
from commwatch.probes.gate.hold import Hold, HoldFile

NOW = 1_900_000_000.0


def test_a_hold_ends_by_itself(tmp_path: Path) -> None:
    """It is in force up to its end, not at it."""
    hold = HoldFile(tmp_path).hold(600.0, NOW)

    assert hold == Hold(until=NOW + 600, since=NOW)
    assert hold.left(NOW) == 600
    assert hold.left(NOW + 599.5) == 0.5
    assert hold.left(NOW + 600) == hold.left(NOW + 900) == 0


def test_a_longer_hold_is_not_shortened(tmp_path: Path) -> None:
    """The later request is noted all the same, so that a cycle under way sees it."""
    file = HoldFile(tmp_path)
    file.hold(600.0, NOW)

    assert file.hold(10.0, NOW + 60) == Hold(until=NOW + 600, since=NOW + 60)
    assert file.hold(600.0, NOW + 60) == Hold(until=NOW + 660, since=NOW + 60)


def test_another_process_sees_each_change(tmp_path: Path) -> None:
    """A reader that has seen one hold sees the next, and the end; one of no time is a request only."""
    reader, writer = HoldFile(tmp_path), HoldFile(tmp_path)
    assert (reader.read(), writer.end(NOW)) == (None, False)

    asked = writer.hold(0.0, NOW)
    assert (reader.read(), asked.left(NOW)) == (asked, 0)

    first = writer.hold(5.0, NOW)
    assert reader.read() == first
    second = writer.hold(50.0, NOW)
    assert reader.read() == second
    assert writer.end(NOW + 1) is True
    assert reader.read() is None
    writer.hold(5.0, NOW)
    assert writer.end(NOW + 5) is False, "it has ended by itself"


def test_prologues_at_once_keep_the_longest(tmp_path: Path) -> None:
    """No request is lost between reading and writing, and nothing but the file is left."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seconds: HoldFile(tmp_path).hold(float(seconds), NOW), range(40)))

    hold = HoldFile(tmp_path).read()
    assert hold is not None
    assert hold.until == NOW + 39
    assert os.listdir(tmp_path) == ["hold.json"]


def test_a_file_that_makes_no_sense_holds_nothing_and_is_said_once(tmp_path: Path) -> None:
    """It would keep probes back forever otherwise."""
    (tmp_path / "hold.json").write_text("{")
    file = HoldFile(tmp_path)

    with capture_logs() as logs:
        assert [file.read(), file.read()] == [None, None]

    assert [entry["event"] for entry in logs] == ["the hold file is ignored"]


def test_a_state_directory_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    """Who names another one than the daemon's must not believe that the node is held."""
    with pytest.raises(StateError, match=r"--path\.state") as raised:
        HoldFile(tmp_path / "none").hold(5.0, NOW)

    assert raised.value.exit_code == 2
