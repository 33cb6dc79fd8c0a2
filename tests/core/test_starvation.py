"""Whether a missed deadline says something of a device: what the daemon and its processes had of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commwatch.node.starvation import (
    FAULTS_PER_SECOND,
    HOLDS_SECONDS,
    LATE_SECONDS,
    STALL_RATIO,
    WAITED_SHARE,
    Starvation,
)
from support.core import Clock
from support.starved import Machine

PID, DEADLINE = 4711, 10.0
ABOVE, BELOW = 1.001, 0.999


class Node:
    """A machine, and what is known of its starvation."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.machine = Clock(), Machine(folder)
        self.subject = Starvation(folder, self.clock.monotonic)
        self.machine.process(PID)
        self.machine.pressure()

    def missed(self, late: float = 0.0, *, some: float = 0.0, full: float = 0.0, **later: Any) -> bool:
        """Whether a process is excused that had this of the machine in its deadline."""
        since = self.subject.sample(PID)
        self.clock.now += DEADLINE + late
        self.machine.process(PID, **later)
        self.machine.pressure(some * DEADLINE, full * DEADLINE)
        return self.subject.excuses(PID, since, DEADLINE)


@pytest.mark.parametrize(
    ("found", "excused"),
    [
        ({}, False),
        ({"state": "D"}, False),  # a driver that hangs
        ({"ran": DEADLINE, "state": "R"}, False),  # an endless loop
        ({"waited": WAITED_SHARE * DEADLINE * ABOVE}, True),
        ({"waited": WAITED_SHARE * DEADLINE * BELOW}, False),
        # It waits now, and since when is not known.
        ({"ran": (1 - WAITED_SHARE) * DEADLINE * BELOW, "state": "R"}, True),
        ({"ran": (1 - WAITED_SHARE) * DEADLINE * ABOVE, "state": "R"}, False),
        # Its pages come from disk, while tasks wait for memory.
        ({"some": STALL_RATIO * ABOVE, "faults": int(FAULTS_PER_SECOND * DEADLINE), "state": "D"}, True),
        ({"some": STALL_RATIO * ABOVE, "faults": int(FAULTS_PER_SECOND * DEADLINE) - 1, "state": "D"}, False),
        ({"some": STALL_RATIO * BELOW, "faults": 10_000, "state": "D"}, False),
        ({"some": 1.0, "full": STALL_RATIO * ABOVE, "state": "D"}, True),
        ({"some": 0.9, "full": STALL_RATIO * BELOW, "state": "D"}, False),
        # The daemon itself was not run.
        ({"late": LATE_SECONDS * ABOVE}, True),
        ({"late": LATE_SECONDS * BELOW}, False),
    ],
)
def test_a_process_is_excused_where_it_was_starved(tmp_path: Path, found: dict[str, Any], excused: bool) -> None:
    """One that sleeps in a driver waits for no CPU and fetches no page, however busy the node is."""
    node = Node(tmp_path)

    assert node.missed(**found) is excused
    assert node.subject.is_starved is excused
    assert bool(node.subject.words) is excused


def test_only_what_was_short_since_the_deadline_began_excuses(tmp_path: Path) -> None:
    """A process that waited long before, and hangs now, hangs."""
    node = Node(tmp_path)
    node.machine.process(PID, waited=500.0, ran=20.0, faults=9000)

    assert not node.missed(waited=500.0, ran=20.0, faults=9000, some=1.0)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("pressure/memory", None),
        ("pressure/memory", "some avg10=x total=y\n"),
        ("pressure/memory", ""),
        (f"{PID}/schedstat", None),
        (f"{PID}/schedstat", "0\n"),
        (f"{PID}/stat", None),
        (f"{PID}/stat", "nonsense"),
    ],
)
def test_what_cannot_be_read_excuses_nothing(tmp_path: Path, file: str, content: str | None) -> None:
    """Kernels without PSI, processes that have ended: the daemon's own lateness is left."""
    node, path = Node(tmp_path), tmp_path / file
    since = node.subject.sample(PID)
    node.clock.now += DEADLINE
    if file.startswith("pressure"):
        node.machine.process(PID, faults=9999)
    else:
        node.machine.process(PID, waited=9.0, faults=9999)
        node.machine.pressure(some=9.0)
    path.unlink() if content is None else path.write_text(content)

    assert not node.subject.excuses(PID, since, DEADLINE)
    node.clock.now += LATE_SECONDS
    assert node.subject.excuses(PID, since, DEADLINE)


def test_the_daemon_measures_itself_at_each_beat(tmp_path: Path) -> None:
    """Who reads runs, and waits for nothing at that moment: state R of itself says nothing."""
    node = Node(tmp_path)
    node.machine.process(os.getpid(), state="R")
    node.subject.beat(0.0)
    node.clock.now += 5
    node.machine.pressure(0.05)
    node.machine.process(os.getpid(), ran=0.1, waited=5 * WAITED_SHARE * BELOW, state="R")
    node.subject.beat(-0.2)

    assert node.subject.late_seconds == 0.0
    assert node.subject.shares == pytest.approx((WAITED_SHARE * BELOW, 0.01, 0.0))
    assert not node.subject.is_starved
    node.clock.now += 5
    node.machine.process(os.getpid(), ran=0.2, waited=5 * WAITED_SHARE * (BELOW + ABOVE), state="R")
    node.subject.beat(0.0)
    assert node.subject.words == "the node is starved of CPU"


def test_starvation_holds_for_a_while_and_ends(tmp_path: Path) -> None:
    """The average of 10 s is over by then; what was seen since an earlier moment is still known."""
    node = Node(tmp_path)
    began = node.clock.now
    node.clock.now += 1
    node.subject.beat(LATE_SECONDS)
    node.clock.now += HOLDS_SECONDS * BELOW

    assert node.subject.words == "the node is starved: the daemon itself was not run in time"
    node.clock.now += HOLDS_SECONDS * (1 - BELOW)
    assert (node.subject.is_starved, node.subject.words) == (False, "")
    assert node.subject.words_since(began)
    assert not node.subject.words_since(node.clock.now)


def test_while_it_holds_what_was_measured_is_that_of_the_last_sign(tmp_path: Path) -> None:
    """The finding shows why it is open, and not that the last beat was well."""
    node = Node(tmp_path)
    node.subject.beat(0.0)
    node.clock.now += 5
    node.subject.beat(LATE_SECONDS)
    for late in (0.01, 0.02):
        node.clock.now += 5
        node.subject.beat(late)
        assert node.subject.late_seconds == LATE_SECONDS

    node.clock.now += HOLDS_SECONDS
    node.subject.beat(0.03)
    assert node.subject.late_seconds == 0.03
