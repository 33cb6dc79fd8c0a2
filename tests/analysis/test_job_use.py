"""The use of GPU and links is averaged over the last hour of one job; before that, and across gaps, nothing is said."""

from __future__ import annotations

import pytest

from commwatch.node.job_use import Course, JobUse
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, block, collected, collector
from support.passes import in_one_pass

JOB = frozenset({100})
HOUR = 3600.0
STEP = 10.0


def course(
    minutes: float, processes: frozenset[int] = JOB, values: tuple[Value, ...] = (0.4, 0.1, None, 0.0)
) -> Course:
    """A GPU after so many minutes of the same."""
    made = Course()
    extend(made, 0.0, minutes, processes, values)
    return made


def extend(
    known: Course, begin: float, minutes: float, processes: frozenset[int], values: tuple[Value, ...] = (0.4,) * 4
) -> None:
    for step in range(int(60 * minutes / STEP) + 1):
        known.take(begin + step * STEP, processes, values, 120.0)


def test_after_an_hour_there_are_means() -> None:
    """Not a minute before; what was never read has none."""
    assert not course(59.5).is_whole
    assert course(60).is_whole
    assert course(60).means() == [pytest.approx(0.4), pytest.approx(0.1), None, 0.0]


def test_what_links_carried_lately_is_known_after_ten_minutes() -> None:
    """Of whole minutes, and of the last ten alone; a link that was not read has none."""
    assert not course(9.5).is_begun
    known = course(10)
    assert known.is_begun
    assert known.recent() == [pytest.approx(0.4), pytest.approx(0.1), None, 0.0]
    extend(known, 10 * 60 + STEP, 11, JOB, (1.0,) * 4)
    assert known.recent() == [1.0] * 4


def kept_up(*minutes: tuple[float, float]) -> list[tuple[float, float]]:
    """What the use of the GPU reached and did not exceed in 8 of 10 min, where the network was full in 8 of them too.

    At the end of each minute from the tenth on, of minutes with the use of GPU and network.
    """
    made, found = Course(), []
    for minute, (gpu, network) in enumerate([*minutes, (0.0, 0.0)]):
        for step in range(6):
            made.take(60.0 * minute + STEP * step, JOB, (gpu, None, None, network), 120.0)
        if made.is_begun:
            low, _, _, full, high = made.kept_up()
            assert low is not None
            assert high is not None
            assert full is not None
            found.append((low, high) if full >= 0.8 else (1.0, 1.0))
    return found


def is_half_used(bounds: tuple[float, float]) -> bool:
    """As the rule has it."""
    return bounds[0] >= 0.05 and bounds[1] < 0.5


TRAINS, SAVES, STARTS = (0.95, 0.85), (0.0, 1.0), (0.4, 0.9)


@in_one_pass("pause", range(1, 15))
def test_one_pause_in_ten_minutes_is_never_taken_for_gpus_that_wait(pause: int) -> None:
    """A checkpoint, an evaluation elsewhere, data that stall: whole minutes and the two in which it begins and ends,
    while the network of a job that hides its traffic well is as full as it can be."""
    minutes = [*[TRAINS] * 12, STARTS, *[SAVES] * pause, STARTS, *[TRAINS] * 12]

    assert not any(map(is_half_used, kept_up(*minutes)))


def test_gpus_that_wait_all_the_time_are_seen_with_a_minute_or_two_beside_them() -> None:
    """From the tenth minute on, though the job saved and computed once; links that were read in no minute have none."""
    waits = (0.24, 0.84)

    assert is_half_used(kept_up(*[waits] * 10)[0])
    assert is_half_used(kept_up(waits, SAVES, TRAINS, *[waits] * 7)[0])
    assert course(9.5).is_begun is False
    assert course(10).kept_up() == [pytest.approx(0.4), pytest.approx(0.1), None, 0.0, pytest.approx(0.4)]


def test_without_a_process_there_is_no_job() -> None:
    """However long nobody has been there."""
    assert not course(70, frozenset()).is_whole


def test_only_the_last_hour_counts() -> None:
    """A job that works well again is told so within the hour."""
    known = course(90)
    extend(known, 90 * 60 + STEP, 61, JOB, (1.0,) * 4)

    assert known.means() == [1.0] * 4


@in_one_pass(
    "processes, gap, goes_on",
    [
        (JOB | {101}, 120.0, True),
        (frozenset({101}), STEP, False),
        (frozenset(), STEP, False),
        (JOB, 121.0, False),
    ],
)
def test_another_job_or_a_gap_begins_the_hour_again(processes: frozenset[int], gap: float, goes_on: bool) -> None:
    """A helper that joins the job does not."""
    known = course(70)
    known.take(70 * 60 + gap, processes, (0.4,) * 4, 120.0)

    assert known.is_whole == goes_on


def told(occupants: dict[str, tuple[int, ...]], jobs: dict[int, int]) -> list[Value]:
    """The first GPU of the job of each of the two GPUs, after an hour."""
    store = Store()
    store.occupants, store.jobs = occupants, jobs
    use, asked = JobUse(store), collector("nvml_gpu", interval=60.0)
    for minute in range(62):
        now = 60.0 * minute
        blocks = {
            slot: block({("commwatch_gpu_utilization_ratio", (str(index), slot)): 0.5}, now)
            for index, slot in enumerate(SLOTS)
        }
        use.on_batch(Outcome(asked, collected(blocks), time=now))
    return [store.snapshot().value("commwatch_gpu_job_first", str(index), slot) for index, slot in enumerate(SLOTS)]


@in_one_pass(
    "occupants, jobs, first",
    [
        (((7,), (8,)), {7: 7, 8: 7}, [0, 0]),
        (((7,), (8,)), {}, [0, 1]),
        (((7,), (7,)), {}, [0, 0]),
        (((7, 8), (8,)), {}, [0, 1]),
        (((7, 8), (8,)), {7: 7, 8: 7}, [0, 0]),
        (((), (8,)), {}, [None, 1]),
    ],
)
def test_gpus_belong_together_where_a_launcher_or_a_process_says_so(
    occupants: tuple[tuple[int, ...], tuple[int, ...]], jobs: dict[int, int], first: list[Value]
) -> None:
    """What may be two jobs is not taken for one."""
    assert told(dict(zip(SLOTS, occupants, strict=True)), jobs) == first


@pytest.mark.parametrize("group", ["pcie_use", "pcie_sampled_use"])
def test_the_use_of_pcie_is_that_of_samples_where_the_gpu_does_not_measure_it(group: str) -> None:
    """The busier direction, over the last hour."""
    store = Store()
    store.occupants = {SLOTS[0]: (7,)}
    use, asked = JobUse(store), collector("nvml_gpu", interval=60.0)
    labels = ("0", SLOTS[0])
    for now in (60.0 * minute for minute in range(62)):
        ways: dict[Series, Value] = {("commwatch_pcie_transmit_utilization_ratio", labels): 0.1,
                                     ("commwatch_pcie_receive_utilization_ratio", labels): 0.2}  # fmt: skip
        store.put(group, SLOTS[0], block(ways, now), float("inf"))
        reading: dict[Series, Value] = {("commwatch_gpu_utilization_ratio", labels): 0.5}
        use.on_batch(Outcome(asked, collected({SLOTS[0]: block(reading, now)}), time=now))

    assert store.snapshot().value("commwatch_gpu_job_pcie_use_ratio", *labels) == pytest.approx(0.2)


def test_a_gpu_that_is_not_read_any_more_is_not_told() -> None:
    """Nor one whose job has ended."""
    store = Store()
    store.occupants = {SLOTS[0]: (7,)}
    use, asked = JobUse(store), collector("nvml_gpu", interval=60.0)
    reading: dict[Series, Value] = {("commwatch_gpu_utilization_ratio", ("0", SLOTS[0])): 0.5}
    for minute in range(62):
        use.on_batch(Outcome(asked, collected({SLOTS[0]: block(reading, 60.0 * minute)}), time=60.0 * minute))
    assert store.group("job_use")

    use.on_batch(Outcome(asked, collected({}), time=62 * 60.0))

    assert not store.group("job_use")
