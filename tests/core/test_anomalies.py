"""The counters of a collector are looked at each ten seconds, whatever else of it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commwatch.readings import Absence
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, collected
from support.fed_daemon import FedDaemon

LOOK_SECONDS = 10.0
SENT = {
    slot: [(f"commwatch_nvlink_{way}_bytes_total", (str(gpu), slot, "0")) for way in ("transmit", "receive")]
    for gpu, slot in enumerate(SLOTS)
}
"""Series of each GPU."""


class Node(FedDaemon):
    """Two GPUs with a link each, read at times that a test says."""

    def read(self, time: float, *sent: Value, absences: tuple[Absence, ...] = ()) -> int:
        """How many counters cannot be trusted after a run that read what each GPU sent."""
        self.clock.now = time
        blocks = {
            slot: self.block(dict(zip(SENT[slot], (one, 5), strict=True))) for slot, one in zip(SENT, sent, strict=True)
        }
        self.feed("nvml_nvlink", collected(blocks, *absences))
        return len(self.series("counters_anomaly"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_blank_counter_is_found_at_the_next_look(node: Node) -> None:
    """Not at a run between two looks; a run that comes a little early is one; what has a number again is no blank."""
    assert [node.read(100.0, 1, 1), node.read(101.0, None, 1)] == [0, 0]
    assert node.read(100.0 + LOOK_SECONDS - 0.1, None, 1) == 1
    assert node.read(100.0 + 2 * LOOK_SECONDS, 2, 1) == 0


def test_a_gpu_that_fails_is_not_looked_at_and_hastens_nothing(node: Node) -> None:
    """A number that it lacks is no blank, and the other GPU is looked at no more often for it."""
    failing = (Absence(SLOTS[0], "unreadable", "x"),)

    assert node.read(100.0, None, 1, absences=failing) == 0
    assert node.read(101.0, None, None, absences=failing) == 0
    assert node.read(100.0 + LOOK_SECONDS, None, None, absences=failing) == 1


def fed(node: Node, sent: tuple[int, int], jobs: tuple[int, int] = (7, 7), nvlink: float = 0.0) -> int:
    """Counters that cannot be trusted after two minutes at full use, by the bytes per second that each GPU got."""
    for step in range(13):
        time = 10.0 * step
        node.clock.now = 20_000.0 + time
        node.engine.store.occupants = {slot: (job,) for slot, job in zip(SLOTS, jobs, strict=False)}
        node.feed("nvml_gpu", {
            slot: {("commwatch_gpu_utilization_ratio", (str(gpu), slot)): 1.0} for gpu, slot in enumerate(SLOTS)
        })  # fmt: skip
        use: dict[Series, Value] = {("commwatch_nvlink_transmit_utilization_ratio", ("0", SLOTS[0])): nvlink}
        node.engine.store.put("nvlink_use", "", node.block(use), float("inf"))
        node.feed("nvml_gpm", {
            slot: {(f"commwatch_pcie_{way}_bytes_total", (str(gpu), slot)): sent[gpu] * step
                   for way in ("transmit", "receive")}
            for gpu, slot in enumerate(SLOTS)
        })  # fmt: skip
    return len(node.series("counters_anomaly"))


@pytest.mark.parametrize(
    ("sent", "more", "found"),
    [
        ((0, 0), {}, 0),  # a job that hangs in one call feeds none of them
        ((0, 1000), {"jobs": (7, 8)}, 0),  # another job's GPU says nothing of it
        ((0, 1000), {}, 2),  # it feeds another GPU
        ((0, 0), {"nvlink": 0.2}, 2),  # it sends over the NVLinks of this one
        ((1000, 1000), {}, 0),
    ],
)
def test_counters_that_stand_still_while_their_job_goes_on_are_blank(
    node: Node, sent: tuple[int, int], more: dict[str, Any], found: int
) -> None:
    """Where all GPUs of the job stand still they may be right."""
    assert fed(node, sent, **more) == found
