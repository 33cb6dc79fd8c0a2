"""The counters of a collector are looked at each ten seconds, whatever else of it fails."""

from __future__ import annotations

from commwatch.node.anomaly import LOOK_SECONDS, Anomalies
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Layout, Series, Value
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
        self._anomalies.on_batch(Outcome(COLLECTOR, collected(blocks, *absences), None, time))
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


GPM = collector("nvml_gpm")


def fed(sent: tuple[int, int], jobs: tuple[int, int] = (7, 7), nvlink: float = 0.0) -> int:
    """Counters that cannot be trusted after two minutes at full use, in which GPUs got so many bytes a second."""
    store = Store()
    store.occupants = {slot: (job,) for slot, job in zip(SLOTS, jobs, strict=False)}
    anomalies = Anomalies(store)
    for step in range(13):
        time = 10.0 * step
        for gpu, slot in enumerate(SLOTS[:2]):
            store.put("nvml_gpu", slot, block({("commwatch_gpu_utilization_ratio", (str(gpu), slot)): 1.0}, time), 1e9)
        use: dict[Series, Value] = {("commwatch_nvlink_transmit_utilization_ratio", ("0", SLOTS[0])): nvlink}
        store.put("nvlink_use", "", block(use, time), 1e9)
        blocks = {}
        for gpu, slot in enumerate(SLOTS[:2]):
            blocks[slot] = block(
                {(f"commwatch_pcie_{way}_bytes_total", (str(gpu), slot)): sent[gpu] * step
                 for way in ("transmit", "receive")}, time
            )  # fmt: skip
            blocks[slot].layout = PCIE[slot]
        anomalies.on_batch(Outcome(GPM, collected(blocks), None, time))
    return len(list(store.snapshot().samples("commwatch_counters_anomaly")))


PCIE = {
    slot: Layout((f"commwatch_pcie_{way}_bytes_total", (str(gpu), slot)) for way in ("transmit", "receive"))
    for gpu, slot in enumerate(SLOTS[:2])
}


def test_counters_that_stand_still_on_all_gpus_of_a_job_may_be_right() -> None:
    """A job that hangs in one call feeds none of them; another job's GPU says nothing of it."""
    assert fed((0, 0)) == 0
    assert fed((0, 1000), jobs=(7, 8)) == 0


def test_counters_that_stand_still_while_the_job_goes_on_are_blank() -> None:
    """It feeds another GPU, or sends over the NVLinks of this one."""
    assert fed((0, 1000)) == 2
    assert fed((0, 0), nvlink=0.2) == 2
    assert fed((1000, 1000)) == 0
