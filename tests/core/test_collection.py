"""Collection: what is kept of a run, what goes when a device fails, slow collectors, and the record of each run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from commwatch.node.run import Collected, Collector, Outcome
from commwatch.node.store import Store
from commwatch.readings import Absence, Reason, SourceUnavailable
from commwatch.service import collection as collection_module
from commwatch.service.collection import LONGEST_STRETCH, Collection
from commwatch.service.instruments import Instruments
from commwatch_exporters.snapshot import Block, Value
from support.core import SLOTS, Clock, ScriptedReader, block, collected, collector, in_loop, states

LINKS, ERRORS, NETWORK = "nvml_nvlink", "nvml_nvlink_errors", "network"


@dataclass
class Node:
    """Two collectors of one reader of the driver, and one of another reader."""

    nvml: ScriptedReader = field(default_factory=lambda: ScriptedReader("nvml"))
    host: ScriptedReader = field(default_factory=lambda: ScriptedReader("network"))
    store: Store = field(default_factory=Store)
    instruments: Instruments = field(default_factory=Instruments)
    outcomes: list[Outcome] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Why a source is not needed here."""

    def __post_init__(self) -> None:
        self.collection = Collection(
            [
                collector(LINKS, self.nvml),
                collector(ERRORS, self.nvml, interval=10.0),
                collector(NETWORK, self.host, interval=5.0, needs_release=False),
            ],
            self.store, self.instruments, self.outcomes.append, self.absent.get,
        )  # fmt: skip

    def __getitem__(self, name: str) -> Collector:
        return self.collection.collectors[name]

    def run(self, name: str, *answers: Collected | SourceUnavailable) -> None:
        """Run a collector once for each answer of its reader."""
        reader = self[name].reader
        assert isinstance(reader, ScriptedReader)
        for answer in answers:
            reader.answers.append(answer)
            in_loop(lambda: self.collection.run(self[name]))

    def devices(self, name: str) -> list[str]:
        return sorted(self.store.group(name))

    def metric(self, name: str, *labels: str) -> Value:
        return self.instruments.block(0.0).get(f"commwatch_{name}", *labels)


def both(*absences: Absence, duration: float = 0.01) -> Collected:
    """A run that read both GPUs."""
    return collected({slot: states(slot) for slot in SLOTS}, *absences, duration=duration)


def first(*absences: Absence) -> Collected:
    """A run that read the first GPU only."""
    return collected({SLOTS[0]: states(SLOTS[0])}, *absences)


def filled() -> Node:
    """A node on which every collector has read both devices."""
    node = Node()
    for name in (LINKS, ERRORS, NETWORK):
        node.run(name, both())
    return node


def test_a_device_that_failed_is_dropped_here_only() -> None:
    """Where one group of counters of a GPU fails, what others read of it stays."""
    node = filled()

    node.run(LINKS, first(Absence(SLOTS[1], "unreadable", "NVML: unknown error")))

    assert [node.devices(name) for name in (LINKS, ERRORS, NETWORK)] == [[SLOTS[0]], [*SLOTS], [*SLOTS]]


def test_a_device_that_does_not_answer_is_dropped_in_every_collector_of_its_reader() -> None:
    """A missed deadline says that nothing of the GPU is current; another reader's devices are others."""
    node = filled()

    node.run(LINKS, first(Absence(SLOTS[1], "deadline", "no answer within 2 s")))

    assert [node.devices(name) for name in (LINKS, ERRORS, NETWORK)] == [[SLOTS[0]], [SLOTS[0]], [*SLOTS]]


def test_a_hang_drops_its_device_and_leaves_the_others_that_were_not_reached() -> None:
    """The run that hung gave nothing; only the suspect is known not to be current."""
    node = filled()

    node.run(LINKS, collected({}, Absence(SLOTS[1], "deadline", "no answer within 2 s")))

    assert (node.devices(LINKS), node.devices(ERRORS)) == ([SLOTS[0]], [SLOTS[0]])


def test_a_device_whose_own_process_is_late_keeps_its_values() -> None:
    """A run without its part says nothing of it."""
    node = filled()

    node.run(LINKS, replace(first(), is_part=True))

    assert (node.devices(LINKS), node[LINKS].failing) == ([*SLOTS], frozenset())


def test_a_device_whose_own_process_hangs_is_dropped_at_once() -> None:
    """Before the next run of the others, which go on as before."""
    node = filled()

    node.collection.lose(LINKS, Absence(SLOTS[1], "deadline", "no answer within 2 s"))

    assert [node.devices(name) for name in (LINKS, ERRORS, NETWORK)] == [[SLOTS[0]], [SLOTS[0]], [*SLOTS]]
    assert len(node.outcomes) == 3


def test_a_device_that_is_not_there_any_more_goes() -> None:
    """A GPU that the driver no longer lists, or an interface that was removed, leaves no value behind."""
    node = filled()

    node.run(LINKS, first())
    assert (node.devices(LINKS), node.devices(ERRORS)) == ([SLOTS[0]], [*SLOTS])
    node.run(LINKS, collected())
    assert node.devices(LINKS) == []


def test_a_device_goes_also_when_another_one_failed() -> None:
    """An absence that names a device says that the others were looked at."""
    node = filled()

    node.run(NETWORK, first(Absence("eth9", "unreadable", "carrier: Invalid argument")))

    assert node.devices(NETWORK) == [SLOTS[0]]


@pytest.mark.parametrize(("reason", "others"), [("crashed", []), ("deadline", []), ("unreadable", [*SLOTS])])
def test_a_run_that_read_nothing_leaves_nothing(reason: Reason, others: list[str]) -> None:
    """What was read before is not current any more; where the worker is to blame, in all collectors of its reader."""
    node = filled()

    node.run(LINKS, collected({}, Absence("", reason, "the worker process ended")))

    assert node.devices(LINKS) == []
    assert node.devices(ERRORS) == others
    assert node.metric("collector_success", LINKS) == 0


def test_a_hang_on_one_device_leaves_the_others_that_this_run_did_not_come_to() -> None:
    """The suspect is absent at once; the others are current until their time is over or the replacement reads them."""
    node = filled()

    node.run(LINKS, collected({}, Absence(SLOTS[1], "deadline", "no answer in time")))

    assert node.devices(LINKS) == [SLOTS[0]]
    assert node.devices(ERRORS) == [SLOTS[0]]


def test_a_device_with_a_partial_failure_keeps_what_was_read() -> None:
    """A GPU that gave a block and an absence beside it is shown and counted as failing."""
    node = filled()

    node.run(LINKS, both(Absence(SLOTS[1], "unreadable", "field 202")))

    assert node.devices(LINKS) == [*SLOTS]
    assert node.metric("collector_success", LINKS) == 0


def test_a_source_that_cannot_be_read_drops_all_its_groups() -> None:
    """Without a driver nothing of its collectors is current; the analysis hears of it with the reason."""
    node = filled()

    node.run(LINKS, SourceUnavailable("library_mismatch", "driver 570, library 560"))

    assert (node.devices(LINKS), node.devices(ERRORS)) == ([], [])
    assert node.metric("source_available", "nvml") == 0
    assert node.metric("collector_success", LINKS) == 0
    assert node.metric("collector_errors_total", LINKS, "library_mismatch") == 1
    last = node.outcomes[-1]
    assert last.unavailable is not None
    assert [(one.device, one.reason) for one in last.collected.absences] == [("", "library_mismatch")]

    node.run(LINKS, both())
    assert node.metric("source_available", "nvml") == 1
    assert node.metric("collector_success", LINKS) == 1


def test_a_block_lives_for_three_intervals_and_a_deadline() -> None:
    """Counted from the time of the reading; each interval counts as 5 s at least, in which a worker is replaced."""
    node = Node()
    taken = time.monotonic()
    node.run(LINKS, collected({SLOTS[0]: states(SLOTS[0], at=taken)}))
    node.run(ERRORS, collected({SLOTS[0]: states(SLOTS[0], at=taken)}))

    for seconds, here in ((17.0, [SLOTS[0]]), (17.01, [])):
        node.store.expire(taken + seconds)
        assert node.devices(LINKS) == here
    for seconds, here in ((32.0, [SLOTS[0]]), (32.01, [])):
        node.store.expire(taken + seconds)
        assert node.devices(ERRORS) == here


def test_a_source_that_fails_is_not_asked_more_often() -> None:
    """What the device or the driver says is not a failure of the worker; nor is a hang of one GPU of several."""
    node = filled()

    node.run(ERRORS, collected({}, Absence(SLOTS[0], "lost", "x")), SourceUnavailable("no_driver", "x"))
    node.run(ERRORS, first(Absence(SLOTS[1], "deadline", "x")), collected())

    assert node.nvml.hastened == []


@pytest.mark.parametrize("reason", ["lost", "deadline", "not_listed"])
def test_a_slow_collector_says_soon_what_went_and_reads_soon_what_came(reason: Reason) -> None:
    """A change is told once, and once more when the slow one has seen it; after that each keeps its interval."""
    node = filled()
    gone = Absence(SLOTS[1], reason, "x")

    node.run(LINKS, first(gone), first(gone))
    assert node.nvml.hastened == [ERRORS]
    node.run(ERRORS, first(gone))
    assert node.nvml.hastened == [ERRORS]
    node.run(LINKS, both(), both())
    assert node.nvml.hastened == [ERRORS] * 2


def test_a_slow_collector_reads_soon_what_a_driver_that_is_back_gives() -> None:
    """Nobody waits ten minutes for the peers after a driver was reloaded."""
    node = filled()

    node.run(LINKS, SourceUnavailable("no_driver", "x"), SourceUnavailable("no_driver", "x"), both(), both())

    assert node.nvml.hastened == [ERRORS] * 2


def test_a_slow_collector_reads_soon_where_a_device_is_not_listed_any_more() -> None:
    """Without any failure too; another source is left alone, and so is one group of counters that fails."""
    node = filled()

    node.run(NETWORK, first())
    node.run(LINKS, both(Absence(SLOTS[1], "unreadable", "x")))
    assert node.nvml.hastened + node.host.hastened == []
    node.run(LINKS, first())
    assert node.nvml.hastened == [ERRORS]


def test_a_slow_collector_reads_soon_where_all_that_is_asked_of_a_device_fails() -> None:
    """Once as it begins and once as it ends: whether nothing else of it is read either is known early."""
    node = filled()
    read = states(SLOTS[1])
    empty = Block(read.layout, [None] * len(read.values), 0.0)
    silent = collected({SLOTS[0]: states(SLOTS[0]), SLOTS[1]: empty}, Absence(SLOTS[1], "unreadable", "x"))

    node.run(LINKS, silent, silent)
    assert node.nvml.hastened == [ERRORS]
    node.run(LINKS, both(), both())
    assert node.nvml.hastened == [ERRORS] * 2


def test_each_run_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Success, duration and errors are of the last run; the last success stays through failures."""
    clock = Clock()
    monkeypatch.setattr(collection_module, "time", clock)
    node = Node()
    lost = Absence(SLOTS[1], "lost", "GPU is lost")
    assert node.metric("collector_success", LINKS) is None

    node.run(LINKS, both(duration=0.02))
    success = clock.time()
    assert node.metric("collector_success", LINKS) == 1
    assert node.metric("collector_duration_seconds", LINKS) == 0.02
    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == success

    clock.now += 1
    node.run(LINKS, first(lost), first(lost, Absence("", "unreadable", "x")))

    assert node.metric("collector_success", LINKS) == 0
    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == success
    assert node.metric("collector_errors_total", LINKS, "lost") == 2
    assert node.metric("collector_errors_total", LINKS, "unreadable") == 1
    assert node.metric("collector_success", ERRORS) is None

    clock.now += 1
    node.run(LINKS, both())
    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == clock.time()
    assert node.metric("collector_errors_total", LINKS, "lost") == 2


def test_a_scrape_during_a_reload_shows_no_run_of_the_configuration_before() -> None:
    """Its collectors are forgotten, and may not be in the new one; nobody would forget them again."""
    node = Node()
    node.run(LINKS, both())
    assert node.metric("collector_success", LINKS) == 1
    node.collection.stop()
    node.instruments.forget_engine()
    assert node.metric("collector_success", LINKS) is None


def test_the_last_success_follows_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that ran a minute ago did so a minute ago by the new clock too; one that never ran tells nothing."""
    clock = Clock()
    monkeypatch.setattr(collection_module, "time", clock)
    node = Node()
    node.run(LINKS, both())

    node.collection.follow_clock(3600.0)

    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == clock.time() + 3600.0
    assert node.metric("collector_last_success_timestamp_seconds", ERRORS) is None


def test_only_a_change_is_logged() -> None:
    """A fault that lasts is one event of the log, its end another."""
    node = filled()
    lost = Absence(SLOTS[1], "lost", "GPU is lost")

    with capture_logs() as events:
        node.run(LINKS, first(lost), first(lost), first(lost))
        node.run(LINKS, first(lost))
        node.run(LINKS, both(), both())

    assert [(event["event"], event["log_level"], event.get("device")) for event in events] == [
        ("something cannot be read", "warning", SLOTS[1]),
        ("everything is read again", "info", None),
    ]
    assert (events[0]["reason"], events[0]["detail"]) == ("lost", "GPU is lost")


@pytest.mark.parametrize(("duration", "stretch"), [(0.1, 1), (0.1001, 2)])
def test_three_runs_slower_than_a_tenth_of_the_interval_halve_the_rate(duration: float, stretch: int) -> None:
    """Exactly a tenth is no reason yet, and two slow runs are none."""
    node = Node()
    with capture_logs() as events:
        node.run(LINKS, *[both(duration=duration)] * 2)
        assert (node[LINKS].stretch, node.nvml.orders) == (1, [(LINKS, 1.0)])
        node.run(LINKS, both(duration=duration))

    assert node[LINKS].current_interval == stretch
    assert node.nvml.orders[1:] == [(LINKS, 2.0)] * (stretch - 1)
    assert node.metric("collector_interval_seconds", LINKS) == stretch
    assert len(events) == stretch - 1
    assert node[ERRORS].stretch == 1


def test_a_collector_that_the_scheduler_runs_keeps_its_interval_however_slow_it_is() -> None:
    """No log line announces an interval that would not hold."""
    node = Node()
    node[LINKS].adapts = False
    with capture_logs() as events:
        node.run(LINKS, *[both(duration=0.9)] * 6)

    assert (node[LINKS].stretch, node.nvml.orders, events) == (1, [(LINKS, 1.0)], [])


def test_slow_runs_count_in_a_row_only() -> None:
    """A hiccup now and then changes nothing."""
    node = Node()

    node.run(LINKS, *[both(duration=0.5), both(duration=0.5), both(duration=0.05)] * 4)

    assert node[LINKS].stretch == 1


def test_a_collector_that_stays_slow_is_slowed_down_to_a_bound() -> None:
    """Each step needs three slow runs of the new interval, and the sixteenfold interval is the last."""
    node = Node()
    steps = []
    for _ in range(20):
        node.run(LINKS, both(duration=100.0))
        steps.append(node[LINKS].stretch)

    assert steps[:12] == [1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16]
    assert set(steps[12:]) == {LONGEST_STRETCH}
    assert node[LINKS].lifetime == 3 * 16 + 2


def test_paused_collectors_rest_and_the_others_go_on() -> None:
    """What holds the driver is neither asked nor shown; what was known of its last run is gone, but not the time."""
    node = filled()
    node.nvml.asked.clear()

    node.collection.pause()
    for name in (LINKS, ERRORS, NETWORK):
        node.run(name, first())

    assert node.nvml.asked == []
    assert [node.devices(name) for name in (LINKS, ERRORS, NETWORK)] == [[], [], [SLOTS[0]]]
    assert node.metric("collector_success", LINKS) is None
    assert node.metric("collector_duration_seconds", LINKS) is None
    assert node.metric("collector_last_success_timestamp_seconds", LINKS) is not None
    assert node.metric("collector_success", NETWORK) == 1


def test_a_collector_rests_until_it_is_known_what_it_is_to_read() -> None:
    """It is not asked, nothing of its last run is said, and what it gave goes; with that known it runs again."""
    node = Node()
    node.run(NETWORK, collected({SLOTS[0]: states(SLOTS[0])}))
    node[NETWORK].is_ready = lambda: False
    in_loop(lambda: node.collection.run(node[NETWORK]))

    assert len(node.host.asked) == 1
    assert node.devices(NETWORK) == []
    assert (node.metric("collector_success", NETWORK), node[NETWORK].attempted) == (None, False)
    node[NETWORK].is_ready = lambda: True
    node.run(NETWORK, collected({SLOTS[0]: states(SLOTS[0])}))
    assert node.devices(NETWORK) == [SLOTS[0]]


def test_what_was_under_way_when_the_pause_began_is_not_kept() -> None:
    """A run that ends during the pause leaves no value, no record and no analysis."""
    node = Node()

    class PausedMeanwhile(ScriptedReader):
        async def now(self, collector: str) -> Collected:
            node.collection.pause()
            return self.give(collector, both())

    node[LINKS].reader = PausedMeanwhile()
    node[LINKS].reader.keeper = node.collection
    in_loop(lambda: node.collection.run(node[LINKS]))

    assert (node.devices(LINKS), node.outcomes) == ([], [])
    assert node.metric("collector_success", LINKS) is None


def test_a_source_that_is_not_needed_is_not_asked() -> None:
    """A node without GPUs has no failing collector: the source is said to be absent, once."""
    node = Node(absent={"nvml": "no NVIDIA driver is loaded"})

    with capture_logs() as events:
        for _ in range(3):
            in_loop(lambda: node.collection.run(node[LINKS]))

    assert node.nvml.asked == []
    assert node.metric("source_available", "nvml") == 0
    assert node.metric("collector_success", LINKS) is None
    assert [(event["event"], event["source"]) for event in events] == [("source not available", "nvml")]

    del node.absent["nvml"]
    node.run(LINKS, both())
    assert node.metric("source_available", "nvml") == 1


def test_a_source_that_is_not_needed_any_more_leaves_nothing() -> None:
    """The last device of a driver was taken out: no value, no success and no failure of before is shown."""
    node = Node()
    node.run(NETWORK, first(Absence(SLOTS[1], "unreadable", "x")))
    assert node.metric("collector_success", NETWORK) == 0
    node.absent["network"] = "no network interface"

    in_loop(lambda: node.collection.run(node[NETWORK]))

    assert (node.devices(NETWORK), node[NETWORK].failing) == ([], frozenset())
    assert node.metric("collector_success", NETWORK) is None
    assert node.metric("source_available", "network") == 0


def test_processes_on_the_gpus_are_those_of_the_last_look() -> None:
    """A collector that does not look changes nothing; one that does replaces all that was known."""
    node = Node()
    here, there = SLOTS

    node.run(LINKS, Collected({}, [], 0.01, occupants={here: (1, 2), there: ()}))
    node.run(ERRORS, collected())
    assert node.store.occupants == {here: (1, 2), there: ()}

    node.run(LINKS, Collected({}, [], 0.01, occupants={there: (3,)}))
    assert node.store.occupants == {there: (3,)}


def running() -> Node:
    """A node all of whose collectors run."""
    node = Node()
    node.collection.tend()
    return node


def test_what_is_on_the_node_is_ordered_once_and_then_kept_as_it_comes() -> None:
    """Each at its interval; nobody asks."""
    node = running()
    node.collection.tend()
    assert node.nvml.orders == [(LINKS, 1.0), (ERRORS, 10.0)]
    assert node.host.orders == [(NETWORK, 5.0)]

    node.nvml.give(LINKS, first())
    assert node.devices(LINKS) == [SLOTS[0]]
    assert node.nvml.asked == []


def test_a_source_that_comes_is_ordered_and_one_that_goes_is_not_run_any_more() -> None:
    """Within one check: what it gave is gone, and a run that was under way is not kept."""
    node = Node(absent={"network": "no network interface"})
    node.collection.tend()
    assert node.host.orders == []
    assert node.collection.absent_sources == {"network"}

    del node.absent["network"]
    node.collection.tend()
    node.host.give(NETWORK, both())
    assert (node.host.orders, node.devices(NETWORK)) == ([(NETWORK, 5.0)], [*SLOTS])

    node.absent["network"] = "no network interface"
    node.collection.tend()
    node.host.give(NETWORK, both())
    assert (node.host.orders[-1], node.devices(NETWORK)) == ((NETWORK, 0.0), [])


def test_maintenance_ends_what_holds_a_driver_and_its_end_begins_it_again() -> None:
    """A reading by a worker that has not ended yet is not current; the host is still read."""
    node = running()
    node.collection.pause()
    node.nvml.give(LINKS, both())
    node.host.give(NETWORK, both())
    assert (node.devices(LINKS), node.devices(NETWORK)) == ([], [*SLOTS])
    assert node.nvml.orders[2:] == [(LINKS, 0.0), (ERRORS, 0.0)]

    node.collection.resume()
    node.nvml.give(LINKS, both())
    assert node.devices(LINKS) == [*SLOTS]
    assert node.nvml.orders[4:] == [(LINKS, 1.0), (ERRORS, 10.0)]


def test_a_defect_in_the_analysis_of_a_run_is_logged_and_nothing_else_suffers() -> None:
    """The next run is kept as ever."""
    node = running()
    analyse, node.collection._analyse = node.collection._analyse, lambda outcome: 1 / 0  # type: ignore[assignment]
    with capture_logs() as logs:
        node.nvml.give(LINKS, both())
    assert [one["event"] for one in logs] == ["what was read could not be kept"]

    node.collection._analyse = analyse
    node.nvml.give(LINKS, both())
    assert len(node.outcomes) == 1


def test_a_slower_pace_is_ordered() -> None:
    """Its worker goes by it from then on."""
    node = running()
    for _ in range(3):
        node.nvml.give(LINKS, both(duration=0.5))

    assert node.nvml.orders[2:] == [(LINKS, 2.0)]


def of_gpus(*values: Value, absence: str = "") -> Collected:
    """A run over GPUs with these values."""
    blocks = {
        SLOTS[place]: block({("commwatch_gpu_busy", ("0", SLOTS[place])): value}) for place, value in enumerate(values)
    }
    return collected(blocks, *([Absence(SLOTS[0], "unreadable", absence)] if absence else []))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[Collection, Clock, Collector]:
    """A daemon of which only the driver is read, each 10 s."""
    clock = Clock()
    monkeypatch.setattr(collection_module, "time", clock)
    one = collector("nvml_gpu", ScriptedReader("nvml"), interval=10.0)
    return (
        Collection([one], Store(), Instruments(), lambda outcome: None, lambda source: None),
        clock,
        one,
    )


def run(collection: Collection, one: Collector, answer: Collected | SourceUnavailable) -> None:
    assert isinstance(one.reader, ScriptedReader)
    one.reader.answers.append(answer)
    in_loop(lambda: collection.run(one))


def test_a_source_is_unread_after_two_intervals_without_a_reading(
    watched: tuple[Collection, Clock, Collector],
) -> None:
    """25 s of the driver, with the reason; not just before, and a single value is a reading."""
    collection, clock, one = watched
    run(collection, one, of_gpus(1, None, absence="one of them fails"))
    clock.now += 25.0
    run(collection, one, of_gpus(None, None, absence="Unknown Error"))
    assert collection.unread() == ()

    clock.now += 0.1
    assert [(gap.source, gap.lists_parts, gap.why) for gap in collection.unread()] == [("nvml", True, "Unknown Error")]
    assert collection.unread()[0].words == "nvml gave no reading for 25.1 s (Unknown Error)"

    run(collection, one, of_gpus(1, 1))
    assert collection.unread() == ()


def test_what_was_not_read_yet_or_rests_or_starved_is_told_apart(watched: tuple[Collection, Clock, Collector]) -> None:
    """Without a first reading nothing is known; a pause and a starved node have words of their own."""
    collection, clock, one = watched
    assert [gap.words for gap in collection.unread()] == ["nvml has given no reading yet"]
    run(collection, one, of_gpus(1))
    clock.now += 60.0
    run(collection, one, collected({}, Absence("", "starved", "no answer in time")))
    assert collection.unread() == ()

    run(collection, one, collected({}, Absence("", "deadline", "no answer in time")))
    assert [gap.why for gap in collection.unread()] == ["no answer in time"]
    collection.pause()
    assert collection.unread() == ()
    collection.resume()
    assert [gap.seconds for gap in collection.unread()] == [None]


def test_a_source_that_opens_slowly_is_not_exposed_as_unread_at_once(
    monkeypatch: pytest.MonkeyPatch, watched: tuple[Collection, Clock, Collector]
) -> None:
    """A driver may take a minute to open; one that was read before has no such time."""
    collection, clock, one = watched

    def shown() -> Value:
        return collection._instruments.block(0.0).get("commwatch_source_unread", "nvml")

    clock.now += 59.9
    assert shown() == 0
    clock.now += 0.1
    assert shown() == 1

    run(collection, one, of_gpus(1))
    assert shown() == 0
