"""What is kept of a run, what goes when a device fails, slow collectors, and the record of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.node.run import Collected, Collector
from commwatch.readings import Absence, SourceUnavailable
from commwatch.workers.sources import SOURCES
from commwatch_exporters.snapshot import Block, Value
from support.core import SLOTS, ScriptedReader, block, collected, in_loop, states
from support.fed_daemon import FedDaemon

GPU, LINKS, ERRORS, NETWORK = "nvml_gpu", "nvml_nvlink", "nvml_nvlink_errors", "network"
SAMPLES = "nvml_pcie_sampled"
ALL, ONE, NONE = [*SLOTS], [SLOTS[0]], list[str]()


class Node(FedDaemon):
    """A daemon of which a test runs collectors of the driver, and one of another reader."""

    def __getitem__(self, name: str) -> Collector:
        return self.engine.collection.collectors[name]

    def reader(self, name: str = LINKS) -> ScriptedReader:
        """Of a collector."""
        reader = self.engine.collection.reader_of(self[name])
        assert isinstance(reader, ScriptedReader)
        return reader

    def orders(self, *names: str) -> list[tuple[str, float]]:
        """What was ordered of these collectors: the intervals, 0 for not any more."""
        return [one for name in dict.fromkeys(map(self.reader, names)) for one in name.orders if one[0] in names]

    def run(self, name: str, *answers: Collected | SourceUnavailable) -> list[Any]:
        """Run a collector once for each answer of its reader; returns what is logged of it."""
        return [entry for answer in answers for entry in self.feed(name, self.as_of_now(answer))]

    def give(self, name: str, answer: Collected) -> list[Any]:
        """The worker of a collector gives a run, unasked; returns what is logged of it."""
        with capture_logs() as logged:
            self.reader(name).give(name, self.as_of_now(answer))
        return logged

    def as_of_now(self, answer: Any) -> Any:
        if isinstance(answer, SourceUnavailable):
            return answer
        blocks = {
            device: Block(one.layout, one.values, self.clock.now) for device, one in answer.blocks.items()
        }  # fmt: skip
        return replace(answer, blocks=blocks)

    def devices(self, *names: str) -> list[list[str]]:
        """Of which something is shown, by collector."""
        return [sorted(self.engine.store.group(name)) for name in names]

    def metric(self, name: str, *labels: str) -> Value:
        return self.instruments.block(0.0).get(f"commwatch_{name}", *labels)

    def unread(self) -> list[str]:
        """What is said of sources without a current reading."""
        return [gap.words for gap in self.engine.collection.unread()]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Nothing was read yet."""
    return Node(tmp_path, monkeypatch)


@pytest.fixture
def filled(node: Node) -> Node:
    """Every collector has read both devices."""
    for name in (LINKS, ERRORS, NETWORK, SAMPLES):
        node.run(name, both())
    return node


def both(*absences: Absence, duration: float = 0.01) -> Collected:
    """A run that read both GPUs."""
    return collected({slot: states(slot) for slot in SLOTS}, *absences, duration=duration)


def first(*absences: Absence) -> Collected:
    """A run that read the first GPU only."""
    return collected({SLOTS[0]: states(SLOTS[0])}, *absences)


def gone(reason: Any, device: str = SLOTS[1]) -> Absence:
    return Absence(device, reason, "x")


@pytest.mark.parametrize(
    ("name", "answer", "left"),
    [
        pytest.param(LINKS, first(gone("unreadable")), (ONE, ALL, ALL), id="one group of counters of a GPU fails"),
        pytest.param(LINKS, first(gone("deadline")), (ONE, ONE, ALL), id="a GPU does not answer"),
        pytest.param(LINKS, first(gone("lost")), (ONE, ONE, ALL), id="a GPU is lost"),
        pytest.param(LINKS, collected({}, gone("deadline")), (ONE, ONE, ALL), id="a GPU hangs before the others"),
        pytest.param(LINKS, replace(first(), is_part=True), (ALL, ALL, ALL), id="its own process is late"),
        pytest.param(LINKS, first(), (ONE, ALL, ALL), id="not listed any more"),
        pytest.param(LINKS, collected(), (NONE, ALL, ALL), id="nothing is listed"),
        pytest.param(LINKS, both(gone("unreadable")), (ALL, ALL, ALL), id="a value of a GPU fails"),
        pytest.param(LINKS, collected({}, gone("crashed", "")), (NONE, NONE, ALL), id="the worker crashed"),
        pytest.param(LINKS, collected({}, gone("deadline", "")), (NONE, NONE, ALL), id="the worker hangs"),
        pytest.param(LINKS, collected({}, gone("unreadable", "")), (NONE, ALL, ALL), id="nothing can be read"),
        pytest.param(LINKS, SourceUnavailable("library_mismatch", "x"), (NONE, NONE, ALL), id="no driver"),
        pytest.param(SAMPLES, collected({}, gone("deadline", "")), (ALL, ALL, ALL), id="sampling hangs"),
        pytest.param(SAMPLES, SourceUnavailable("no_driver", "x"), (ALL, ALL, ALL), id="sampling finds no driver"),
        pytest.param(NETWORK, first(gone("unreadable", "eth9")), (ALL, ALL, ONE), id="one went, another failed"),
    ],
)
def test_what_is_not_current_is_dropped(filled: Node, name: str, answer: Any, left: Sequence[list[str]]) -> None:
    """Where one group of counters fails, what others read stays; of a device that is lost or silent nothing does; and
    where the worker or the driver is to blame, nothing of their other collectors. Another reader's devices are others.
    """
    filled.run(name, answer)

    assert filled.devices(LINKS, ERRORS, NETWORK) == [*left]
    is_well = isinstance(answer, Collected) and not answer.absences
    assert filled.metric("collector_success", name) == is_well
    assert filled.metric("source_available", filled[name].source) == (not isinstance(answer, SourceUnavailable))


def test_a_device_whose_own_process_hangs_is_dropped_at_once(filled: Node) -> None:
    """Before the next run of the others, which go on as before."""
    filled.engine.lose(LINKS, gone("deadline"))

    assert filled.devices(LINKS, ERRORS, NETWORK) == [ONE, ONE, ALL]


@pytest.mark.parametrize(("name", "seconds"), [(LINKS, 17.0), (ERRORS, 32.0)])
def test_a_block_lives_for_three_intervals_and_a_deadline(node: Node, name: str, seconds: float) -> None:
    """Counted from the time of the reading; each interval counts as 5 s at least, in which a worker is replaced."""
    node.run(name, first())
    for more, here in ((seconds, ONE), (0.01, NONE)):
        node.clock.now += more
        node.engine.expire()
        assert node.devices(name) == [here]


EMPTY = Block(states(SLOTS[1]).layout, [None], 0.0)
SILENT = collected({SLOTS[0]: states(SLOTS[0]), SLOTS[1]: EMPTY}, gone("unreadable"))


@pytest.mark.parametrize(
    ("runs", "hastened"),
    [
        *(([(LINKS, [first(gone(reason))] * 2), (ERRORS, [first(gone(reason))]), (LINKS, [both(), both()])], 2)
          for reason in ("lost", "deadline", "not_listed")),
        ([(LINKS, [SourceUnavailable("no_driver", "x")] * 2), (LINKS, [both(), both()])], 2),
        ([(NETWORK, [first()]), (LINKS, [both(gone("unreadable"))])], 0),
        ([(LINKS, [first()])], 1),
        ([(LINKS, [SILENT, SILENT])], 1),
        ([(LINKS, [SILENT, SILENT, both(), both()])], 2),
        ([(ERRORS, [collected({}, gone("lost")), SourceUnavailable("no_driver", "x"), first(gone("deadline"))])], 0),
    ],
    ids=["lost", "silent", "not listed", "driver back", "another source, or one group of counters", "gone unsaid",
         "all that is asked of a device fails", "and is read again", "the slow one itself"],
)  # fmt: skip
def test_a_slow_collector_says_soon_what_went_and_reads_soon_what_came(
    filled: Node, runs: list[tuple[str, list[Any]]], hastened: int
) -> None:
    """A change is told once, and once more when it ends; after that each keeps its interval, whatever it reads."""
    for name, answers in runs:
        filled.run(name, *answers)

    assert [*filled.reader(LINKS).hastened, *filled.reader(NETWORK).hastened] == [ERRORS] * hastened


def test_each_run_is_on_record(node: Node) -> None:
    """Success, duration and errors are of the last run; the last success stays through failures."""
    assert node.metric("collector_success", LINKS) is None

    node.run(LINKS, both(duration=0.02))
    success = node.clock.time()
    assert node.metric("collector_success", LINKS) == 1
    assert node.metric("collector_duration_seconds", LINKS) == 0.02
    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == success

    node.clock.now += 1
    node.run(LINKS, first(gone("lost")), first(gone("lost"), gone("unreadable", "")))
    node.run(LINKS, SourceUnavailable("library_mismatch", "driver 570, library 560"))

    assert node.metric("collector_success", LINKS) == 0
    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == success
    errors = {reason: node.metric("collector_errors_total", LINKS, reason)
              for reason in ("lost", "unreadable", "library_mismatch")}  # fmt: skip
    assert errors == {"lost": 2, "unreadable": 1, "library_mismatch": 1}
    assert node.metric("collector_success", ERRORS) is None

    node.clock.now += 1
    node.run(LINKS, both())
    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == node.clock.time()
    assert node.metric("collector_errors_total", LINKS, "lost") == 2


def test_a_scrape_during_a_reload_shows_no_run_of_the_configuration_before(node: Node) -> None:
    """Its collectors are forgotten, and may not be in the new one; nobody would forget them again."""
    node.run(LINKS, both())
    assert node.metric("collector_success", LINKS) == 1
    node.instruments.begin("", is_simulated=False)
    assert node.metric("collector_success", LINKS) is None


def test_the_last_success_follows_a_clock_that_is_set(node: Node) -> None:
    """A collector that ran a minute ago did so a minute ago by the new clock too; one that never ran tells nothing."""
    node.run(LINKS, both())

    node.engine.collection.follow_clock(3600.0)

    assert node.metric("collector_last_success_timestamp_seconds", LINKS) == node.clock.time() + 3600.0
    assert node.metric("collector_last_success_timestamp_seconds", ERRORS) is None


def test_only_a_change_is_logged(filled: Node) -> None:
    """A fault that lasts is one event of the log, its end another."""
    lost = Absence(SLOTS[1], "lost", "GPU is lost")
    events = filled.run(LINKS, *[first(lost)] * 4, both(), both())

    events = [one for one in events if one["event"].endswith(("be read", "read again"))]
    assert [(event["event"], event["log_level"], event.get("device")) for event in events] == [
        ("something cannot be read", "warning", SLOTS[1]),
        ("everything is read again", "info", None),
    ]
    assert (events[0]["reason"], events[0]["detail"]) == ("lost", "GPU is lost")


@pytest.mark.parametrize(
    ("durations", "stretches"),
    [
        ([0.1] * 3, [1, 1, 1]),
        ([0.1001] * 3, [1, 1, 2]),
        ([0.5, 0.5, 0.05] * 3, [1] * 9),
        ([100.0] * 20, [1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16, *[16] * 8]),
        ([100.0] * 3 + [0.001] * 60, [1, 1, *[2] * 60, 1]),
    ],
    ids=["a tenth", "more than a tenth", "a hiccup now and then", "for long", "quick again"],
)
def test_three_runs_slower_than_a_tenth_of_the_interval_halve_the_rate(
    node: Node, durations: Sequence[float], stretches: Sequence[int]
) -> None:
    """Of the interval that is in force, until sixteen times the configured one; sixty quick ones double it. The worker
    goes by it from then on, and its readings live longer."""
    seen, events = [], []
    for duration in durations:
        events += node.run(LINKS, both(duration=duration))
        seen.append(node.metric("collector_interval_seconds", LINKS))

    assert seen == [*stretches]
    changes = [new for old, new in zip([1, *stretches], stretches, strict=False) if new != old]
    assert node.orders(LINKS)[1:] == [(LINKS, float(stretch)) for stretch in changes]
    assert len([one for one in events if one["event"].startswith("a collector is")]) == len(changes)
    assert node[LINKS].lifetime == 3 * max(5, stretches[-1]) + 2
    assert node[ERRORS].stretch == 1


P2P, PROCESSES = "nvml_p2p", "nvml_processes"


@pytest.mark.parametrize(
    ("name", "reason", "seconds"),
    [
        pytest.param(P2P, "unreadable", [600.0, 25.0, 600.0], id="a rare one"),
        pytest.param(PROCESSES, "lost", [60.0, 25.0, 60.0], id="one that runs each minute"),
        pytest.param(GPU, "unreadable", [10.0], id="one that runs soon anyway"),
        pytest.param(P2P, "deadline", [600.0], id="its process does not answer"),
        pytest.param(P2P, SourceUnavailable("no_driver", "x"), [600.0], id="the driver is gone"),
    ],
)
def test_a_collector_that_could_not_read_something_runs_again_soon(
    node: Node, name: str, reason: Any, seconds: Sequence[float]
) -> None:
    """Until it can; its readings count as current for as long as before. A reader itself tries again what does not
    answer."""
    answer = reason if isinstance(reason, SourceUnavailable) else first(gone(reason))
    lifetime = node[name].lifetime
    node.run(name, both(), answer, answer)
    node.run(name, both(), both())

    assert node.orders(name) == [(name, interval) for interval in seconds]
    assert node[name].lifetime == lifetime
    assert node.metric("collector_interval_seconds", name) == seconds[0]


@pytest.mark.parametrize(("duration", "seconds"), [(2.5, [600.0, 25.0]), (2.6, [600.0])])
def test_a_failed_run_that_takes_a_tenth_of_the_time_until_the_next_one_waits_for_its_interval(
    node: Node, duration: float, seconds: Sequence[float]
) -> None:
    node.run(P2P, both(gone("unreadable"), duration=duration))

    assert node.orders(P2P) == [(P2P, interval) for interval in seconds]


def test_a_rare_collector_that_is_paused_after_a_failure_begins_again_at_its_interval(node: Node) -> None:
    node.run(P2P, first(gone("unreadable")))
    node.pause()
    node.resume()

    assert node.orders(P2P) == [(P2P, 600.0), (P2P, 25.0), (P2P, 0.0), (P2P, 600.0)]


def test_a_collector_that_the_scheduler_runs_keeps_its_interval_however_slow_it_is(node: Node) -> None:
    """No log line announces an interval that would not hold."""
    audits = node["nccl_settings"]
    audits.is_ready = lambda: True
    events = node.run("nccl_settings", *[collected(duration=3600.0)] * 6)

    assert (audits.stretch, [one for one in events if one["event"].startswith("a collector")]) == (1, [])


def test_a_collector_rests_until_it_is_known_what_it_is_to_read(node: Node) -> None:
    """It is not asked, nothing of its last run is said, and what it gave goes; with that known it runs again."""
    node.run(NETWORK, first())
    node[NETWORK].is_ready = lambda: False
    in_loop(lambda: node.engine.collection.run(node[NETWORK]))

    assert len(node.reader(NETWORK).asked) == 1
    assert (node.devices(NETWORK), node.metric("collector_success", NETWORK)) == ([NONE], None)
    node[NETWORK].is_ready = lambda: True
    node.run(NETWORK, first())
    assert node.devices(NETWORK) == [ONE]


def test_a_source_that_is_not_needed_is_neither_asked_nor_shown(node: Node) -> None:
    """A node without GPUs has no failing collector: the source is said to be absent, once, and is read once it comes.
    What it gave before is gone."""
    node.run(LINKS, first(gone("unreadable")))
    node.reader().asked.clear()
    node.absent["nvml"] = "no NVIDIA driver is loaded"
    with capture_logs() as events:
        for _ in range(3):
            node.engine.collection.tend()
            in_loop(lambda: node.engine.collection.run(node[LINKS]))
    node.give(LINKS, both())  # its run was under way

    assert (node.reader().asked, node.devices(LINKS)) == ([], [NONE])
    assert "nvml" in node.engine.collection.absent_sources
    assert (node.metric("source_available", "nvml"), node.metric("collector_success", LINKS)) == (0, None)
    said = [event["source"] for event in events if event["event"] == "source not available"]
    assert said == ["nvml"]

    del node.absent["nvml"]
    node.run(LINKS, both())
    assert node.metric("source_available", "nvml") == 1
    assert node.orders(LINKS) == [(LINKS, 1.0), (LINKS, 0.0), (LINKS, 1.0)]


def test_processes_on_the_gpus_are_those_of_the_last_look(node: Node) -> None:
    """A collector that does not look changes nothing; one that does replaces all that was known."""
    here, there = SLOTS

    node.run(LINKS, Collected({}, [], 0.01, occupants={here: (1, 2), there: ()}))
    node.run(ERRORS, collected())
    assert node.engine.store.occupants == {here: (1, 2), there: ()}

    node.run(LINKS, Collected({}, [], 0.01, occupants={there: (3,)}))
    assert node.engine.store.occupants == {there: (3,)}


def test_what_is_on_the_node_is_ordered_once_and_then_kept_as_it_comes(node: Node) -> None:
    """Each at its interval; nobody asks. A defect in what follows a run is logged, and nothing else suffers."""
    for _ in range(2):
        node.engine.collection.tend()
    assert node.orders(LINKS, ERRORS, NETWORK) == [(LINKS, 1.0), (ERRORS, 10.0), (NETWORK, 5.0)]

    node.give(LINKS, first())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node.engine.pipeline, "on_batch", lambda outcome: 1 / 0)
        logged = node.give(ERRORS, both())
    node.give(NETWORK, first())
    assert node.devices(LINKS, ERRORS, NETWORK) == [ONE, ALL, ONE]
    assert [(one["event"], one["collector"]) for one in logged] == [("what was read could not be kept", ERRORS)]
    assert node.reader().asked == []


def test_maintenance_ends_what_holds_a_driver_and_its_end_begins_it_again(filled: Node) -> None:
    """A reading by a worker that has not ended yet is not current; the host is still read. What was known of the last
    run is gone, but not its time."""
    filled.pause()
    filled.give(LINKS, both())
    filled.give(NETWORK, first())
    assert filled.devices(LINKS, ERRORS, NETWORK) == [NONE, NONE, ONE]
    assert filled.orders(LINKS, ERRORS)[2:] == [(LINKS, 0.0), (ERRORS, 0.0)]
    assert filled.metric("collector_success", LINKS) is None
    assert filled.metric("collector_duration_seconds", LINKS) is None
    assert filled.metric("collector_last_success_timestamp_seconds", LINKS) is not None
    assert filled.metric("collector_success", NETWORK) == 1

    filled.resume()
    filled.give(LINKS, both())
    assert filled.devices(LINKS) == [ALL]
    assert filled.orders(LINKS, ERRORS)[4:] == [(LINKS, 1.0), (ERRORS, 10.0)]


def of_gpus(*values: Value, absence: str = "") -> Collected:
    """A run over GPUs with these values."""
    blocks = {
        SLOTS[place]: block({("commwatch_gpu_busy", ("0", SLOTS[place])): value}) for place, value in enumerate(values)
    }
    return collected(blocks, *([Absence(SLOTS[0], "unreadable", absence)] if absence else []))


@pytest.fixture
def watched(node: Node) -> Node:
    """A node of which only the driver is read, its use each 10 s."""
    node.absent = {name: "not here" for name in SOURCES if name != "nvml"}
    node.engine.collection.tend()
    return node


def test_a_source_is_unread_after_two_intervals_without_a_reading(watched: Node) -> None:
    """25 s of the driver, with the reason; not just before, and a single value is a reading."""
    watched.run(GPU, of_gpus(1, None, absence="one of them fails"))
    watched.clock.now += 25.0
    watched.run(GPU, of_gpus(None, None, absence="Unknown Error"))
    assert watched.unread() == []

    watched.clock.now += 0.1
    assert watched.unread() == ["nvml gave no reading for 25.1 s (Unknown Error)"]

    watched.run(GPU, of_gpus(1, 1))
    assert watched.unread() == []


@pytest.mark.parametrize(
    ("answer", "seconds", "said"),
    [
        (of_gpus(None, None, absence="Unknown Error"), 25.0, []),
        (of_gpus(None, None, absence="Unknown Error"), 25.1,
         ["nvml_nvlink_errors gave no reading for 25.1 s (Unknown Error)"]),
        (of_gpus(1, None, absence="Unknown Error"), 25.1, []),
        (of_gpus(None, None), 25.1, []),
        (collected({}, Absence("", "starved", "no answer in time")), 25.1, []),
    ],
    ids=["two intervals and 5 s", "longer", "a single value is a reading", "nothing to read", "starved"],
)  # fmt: skip
def test_a_collector_that_fails_is_unread_though_its_source_is_read(
    watched: Node, answer: Collected, seconds: float, said: Sequence[str]
) -> None:
    """Its source is not shown as unread."""
    watched.run(ERRORS, of_gpus(1, 1))
    watched.clock.now += seconds
    watched.run(GPU, of_gpus(1, 1))
    watched.run(ERRORS, answer)

    assert watched.unread() == [*said]
    assert watched.metric("source_unread", "nvml") == 0


def test_what_was_not_read_yet_or_rests_or_starved_is_told_apart(watched: Node) -> None:
    """Without a first reading nothing is known; a pause and a starved node have words of their own."""
    assert watched.unread() == ["nvml has given no reading yet"]
    watched.run(GPU, of_gpus(1))
    watched.clock.now += 60.0
    watched.run(GPU, collected({}, Absence("", "starved", "no answer in time")))
    assert watched.unread() == []

    watched.run(GPU, collected({}, Absence("", "deadline", "no answer in time")))
    assert watched.unread() == ["nvml gave no reading for 60 s (no answer in time)"]
    watched.pause()
    assert watched.unread() == []
    watched.resume()
    assert watched.unread() == ["nvml has given no reading yet"]


def test_a_source_that_opens_slowly_is_not_exposed_as_unread_at_once(watched: Node) -> None:
    """A driver may take a minute to open; one that was read before has no such time."""
    watched.clock.now += 59.9
    assert watched.metric("source_unread", "nvml") == 0
    watched.clock.now += 0.1
    assert watched.metric("source_unread", "nvml") == 1

    watched.run(GPU, of_gpus(1))
    assert watched.metric("source_unread", "nvml") == 0
