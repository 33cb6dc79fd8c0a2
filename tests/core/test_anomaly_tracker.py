"""The counters of a collector are looked at each ten seconds, whatever else of it fails."""

from __future__ import annotations

from commwatch.node.anomaly_tracker import LOOK_SECONDS, Anomalies
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Layout, Value
from support.core import SLOTS, block, collected, collector

COLLECTOR = collector("nvml_nvlink")
LAYOUTS = {
    slot: Layout((f"commwatch_nvlink_{way}_bytes_total", (str(gpu), slot, "0")) for way in ("transmit", "receive"))
    for gpu, slot in enumerate(SLOTS[:2])
}


class Node:
    """Two GPUs with a link each, read at times that a test says."""

    def __init__(self) -> None:
        self.store = Store()
        self._anomalies = Anomalies(self.store)

    def read(self, time: float, *sent: Value, absences: tuple[Absence, ...] = ()) -> int:
        """How many counters cannot be trusted after a run that read what each GPU sent."""
        blocks = {
            slot: block(dict(zip(layout.series, (one, 5), strict=True)), time)
            for (slot, layout), one in zip(LAYOUTS.items(), sent, strict=True)
        }
        for slot, one in blocks.items():
            one.layout = LAYOUTS[slot]
        self._anomalies.after(Outcome(COLLECTOR, collected(blocks, *absences), None, time))
        return len(list(self.store.snapshot().samples("commwatch_counters_anomaly")))


def test_a_blank_counter_is_found_at_the_next_look() -> None:
    """Not at a run between two looks; a run that comes a little early is one; what has a number again is no blank."""
    node = Node()

    assert [node.read(100.0, 1, 1), node.read(101.0, None, 1)] == [0, 0]
    assert node.read(100.0 + LOOK_SECONDS - 0.1, None, 1) == 1
    assert node.read(100.0 + 2 * LOOK_SECONDS, 2, 1) == 0


def test_a_gpu_that_fails_is_not_looked_at_and_hastens_nothing() -> None:
    """A number that it lacks is no blank, and the other GPU is looked at no more often for it."""
    node = Node()
    failing = (Absence(SLOTS[0], "unreadable", "x"),)

    assert node.read(100.0, None, 1, absences=failing) == 0
    assert node.read(101.0, None, None, absences=failing) == 0
    assert node.read(100.0 + LOOK_SECONDS, None, None, absences=failing) == 1
