"""What a daemon that is killed knew: its findings and events outlive it, and a file alone opens nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config, Inventory, Paths, Simulation
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.history import CounterHistory
from commwatch.findings.register import Register
from commwatch.node.hardware_events import HardwareEvents
from commwatch.node.store import Store
from commwatch.service.judge import Judge
from commwatch.service.judgement import EARLIER, STATE_NAME, Judgement, check, restore
from commwatch.state.directory import StateDirectory
from commwatch_rehearsal.simulation.presets import find_preset
from support.facts import shipped
from support.simulated_daemon import BOOTED_AT, SimulatedDaemon

BOARD = find_preset("h100x8")
GONE = {gpu.pci_address for gpu in BOARD.gpus[3:]}
PRESET = replace(
    BOARD, gpus=BOARD.gpus[:3], devices=tuple(one for one in BOARD.devices if one.address not in GONE)
)  # fmt: skip
"""Three GPUs and the switches: enough for each kind of event and a GPU without one."""
FAULT_AT = 660.0
"""After the ten minutes in which a daemon learns what a node has; seconds since the boot."""
FAULTS = """
- {fault: nvlink_down, gpu: 0, link: 5, at: 11m}
- {fault: xid, gpu: 1, xid: 95, at: 11m}
- {fault: pcie_aer, gpu: 2, severity: fatal, error: DLP, rate: 30/min, at: 11m, for: 3s}
- {fault: nvlink_recovery, gpu: 1, link: 2, rate: 60/min, at: 11m, for: 5s}
"""
"""A state, two kinds of events and two counters; all but the state are over after five seconds."""
LOOKS = (660.2, 662.0, 664.0, 667.0, 676.0)
"""When the node is read and looked at; the daemon is killed after each of them, and before the first."""
END = 720.0
FIRST = 645.0


def history_of(kept: Judgement) -> CounterHistory:
    """As a daemon makes it."""
    return CounterHistory(WATCHED, EVENTS, kept.history)


@contextmanager
def living(folder: Path, seconds: float, faults: str = FAULTS) -> Iterator[SimulatedDaemon]:
    """A daemon that starts so many seconds after the boot, on what an earlier one has saved, and is killed."""
    with pytest.MonkeyPatch.context() as patched:
        config = Config(
            paths=Paths(state=str(folder / "state")), simulation=Simulation(preset=PRESET.name),
            inventory=Inventory(expected={"gpu": 3}),
        )  # fmt: skip
        daemon = SimulatedDaemon(PRESET, folder, patched, faults=faults, time_now=seconds, config=config)
        daemon.start()
        try:
            daemon.look()
            yield daemon
        finally:
            daemon.close()


def told(daemon: SimulatedDaemon) -> tuple[set[tuple[str, str]], dict[Any, Any]]:
    """Findings, and how often each event was counted."""
    events = kept_by(daemon).events
    findings = daemon.verdict.register.open_incidents()
    return {one.key for one in findings}, {table: getattr(events, table) for table in ("xids", "sxids", "messages")}


def kept_by(daemon: SimulatedDaemon) -> Judgement:
    """The state that the daemon saves now."""
    daemon.save()
    return msgspec.json.decode((daemon.state.path / f"{STATE_NAME}.json").read_bytes(), type=Judgement)


def go_on(daemon: SimulatedDaemon, *moments: float) -> None:
    """Evaluate at these times, and save whenever the daemon would."""
    for moment in moments:
        before = daemon.version()
        daemon.step_to(moment)
        if daemon.version() != before:
            daemon.save()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a daemon that has learned the node."""
    folder = tmp_path_factory.mktemp("whole")
    with living(folder, 0.0) as daemon:
        for place in range(1, 6):
            daemon.step_to(FIRST / 5 * place)  # what is looked at more seldom than every three minutes is not learned
        daemon.save()
    return folder


def after(folder: Path, at: float, before: set[tuple[str, str]]) -> tuple[set[tuple[str, str]], dict[Any, Any]]:
    """What a daemon says in the end that was started after another had been killed, which had found these."""
    with living(folder, max(at, FAULT_AT) + 5.0) as daemon:
        for moment in (*(daemon.time + 20.0 * step for step in range(3)), END + 40.0):
            assert before <= told(daemon)[0]
            go_on(daemon, moment)
        return told(daemon)


def test_no_finding_is_lost_and_no_event_counts_twice(whole: Path, tmp_path: Path) -> None:
    """Whenever the daemon is killed: what is found and counted at the end is what it would have found and counted."""
    killed: dict[float, set[tuple[str, str]]] = {}
    """When, and what was found by then; its folder is what a daemon leaves that is killed there."""
    shutil.copytree(whole, tmp_path / "alive", symlinks=True)
    with living(tmp_path / "alive", FIRST) as daemon:
        for moment in (FIRST, *LOOKS):
            go_on(daemon, moment)
            killed[moment] = {one.key for one in daemon.verdict.register.open_incidents()}
            shutil.copytree(tmp_path / "alive", tmp_path / str(moment), symlinks=True)
        go_on(daemon, *(LOOKS[-1] + 10.0 * step for step in range(1, 6)), END + 40.0)
        expected = told(daemon)
    assert {code for code, _ in expected[0]} >= {
        "nvlink_down", "xid_gpu", "xid_fabric", "sxid_fatal", "pcie_fatal", "nvlink_recovering",
    }  # fmt: skip

    for moment, before in killed.items():
        assert (moment, after(tmp_path / str(moment), moment, before)) == (moment, expected)


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedDaemon]:
    """A daemon whose node has had an SXid and an Xid, over an hour ago, and is well."""
    faults = """
- {fault: sxid, nvswitch: 0, sxid: 20034, severity: Fatal, link: 12, at: 2m, for: 1s}
- {fault: xid, gpu: 0, xid: 79, at: 2m, for: 1s}
- {fault: xid, gpu: 1, xid: 94, at: 50m, for: 1s}
"""
    with living(tmp_path_factory.mktemp("aged"), 0.0, faults) as daemon:
        for moment in (60.0, 115.0, 125.0, 140.0, 1200.0, 2990.0, 3005.0, 3020.0, 4300.0, 4400.0, 4700.0):
            daemon.step_to(moment)
        daemon.save()
        yield daemon


def numbers(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to each number of a document."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from numbers(below, (*way, key))


def is_changed(way: tuple[Any, ...]) -> bool:
    """Whether to change a number: of kinds without an event one is enough, and of metrics those of events.

    What a counter of the hardware showed last is known from nowhere else: there the check sum of the file holds.
    """
    if way[:2] == ("history", "still"):
        return False
    if way[:2] in (("events", "xids"), ("events", "sxids")) and way[3] not in CHANGED_KINDS:
        return False
    return way[:2] != ("history", "seen") or "id_events" in way[2]


CHANGED_KINDS = ("79", "94", "20034", "121", "22011")
"""Of Xids and SXids: those that came, and one of each that did not."""


def opened(daemon: SimulatedDaemon, folder: Path, record: Judgement) -> set[tuple[str, str]]:
    """Critical findings of a daemon that starts with a record, on a node where nothing has happened since."""
    state = StateDirectory(folder)
    state.save(STATE_NAME, record)
    kept = restore(state, record.boot, BOOTED_AT + daemon.time)
    store = Store()
    for place, (group, block) in enumerate(daemon.store.blocks()):
        if group not in ("hardware_events", "verdict"):
            store.put(group, str(place), block, float("inf"))
    events = HardwareEvents(kept.events)
    known = daemon.store.get("hardware_events", "")
    assert known is not None
    indexes = {labels[1]: labels[0] for metric, labels in known.layout.series if metric.startswith("commwatch_gpu_xid")}
    events.know(indexes, (), list(record.events.sxids))
    store.show("hardware_events", "", events.readings(0.0), 0.0)
    judge = Judge(
        shipped(), history_of(kept), Register(kept.register), store, daemon.instruments, daemon.engine.collection
    )
    for seconds in (10.0, 30.0):
        judge.evaluate(store.snapshot(), BOOTED_AT + daemon.time + seconds)
    return {one.key for one in judge.findings if one.severity == "critical"}


def test_one_changed_number_opens_nothing_critical(aged: SimulatedDaemon, tmp_path: Path) -> None:
    """Whichever number of what was counted, of when it rose, and of what was found."""
    whole = json.loads(msgspec.json.encode(kept_by(aged)))
    assert opened(aged, tmp_path, kept_by(aged)) == set()
    assert not list(tmp_path.glob("*damaged*"))
    ways = [way for way in numbers(whole) if is_changed(way)]
    assert len(ways) > 50

    found = {}
    for way in ways:
        for change in (lambda number: number + 1, lambda number: 9e9):
            document = json.loads(json.dumps(whole))
            at = document
            for key in way[:-1]:
                at = at[key]
            at[way[-1]] = change(at[way[-1]])
            try:
                record = msgspec.convert(document, Judgement)
            except msgspec.ValidationError:
                continue  # set aside as a file that is out of range
            with capture_logs():
                if critical := opened(aged, tmp_path, record):
                    found[way, at[way[-1]]] = critical
    assert found == {}


def disagreeing() -> Iterator[tuple[str, Any]]:
    def more_than_known(record: Judgement) -> None:
        record.events.xids["0000:17:00.0"]["79"] += 1

    def known_and_not_counted(record: Judgement) -> None:
        record.events.sxids.clear()

    def rose_by_more(record: Judgement) -> None:
        next(one for one in record.history.counters if one.rises).rises[0] = (BOOTED_AT, 7.0)

    def there_twice(record: Judgement) -> None:
        record.history.counters.append(record.history.counters[-1])

    def found_twice(record: Judgement) -> None:
        record.register.incidents.append(record.register.incidents[0])

    def not_counted(record: Judgement) -> None:
        (incident,) = (one for one in record.register.incidents if one.match.code == "xid_gpu")
        (fact,) = incident.match.evidence
        incident.match = msgspec.structs.replace(
            incident.match, evidence=(msgspec.structs.replace(fact, event="xid 48"),)
        )

    for change in (more_than_known, known_and_not_counted, rose_by_more, there_twice, found_twice, not_counted):
        yield change.__name__, change


@pytest.mark.parametrize("change", [change for _, change in disagreeing()], ids=[name for name, _ in disagreeing()])
def test_a_record_that_disagrees_with_itself_is_set_aside(aged: SimulatedDaemon, tmp_path: Path, change: Any) -> None:
    """With one warning; the daemon starts without it."""
    record = msgspec.json.decode(msgspec.json.encode(kept_by(aged)), type=Judgement)
    change(record)
    state = StateDirectory(tmp_path)
    state.save(STATE_NAME, record)
    with capture_logs() as logs:
        kept = restore(state, record.boot, BOOTED_AT)

    assert [one["log_level"] for one in logs] == ["warning"]
    assert (kept.events.xids, kept.history.counters, kept.register.incidents) == ({}, [], [])
    assert len(list(tmp_path.glob("*damaged*"))) == 1


def test_the_files_of_an_earlier_version_are_taken_over_once(aged: SimulatedDaemon, tmp_path: Path) -> None:
    """They go when the record that stands in for them has been read."""
    record, state = kept_by(aged), StateDirectory(tmp_path)
    parts = (record.events, record.job_logs, record.wraps, record.history, record.register)
    for name, part in zip(EARLIER, parts, strict=True):
        state.save(name, part)
    kept = restore(state, record.boot, BOOTED_AT)

    assert (kept.events, kept.register) == (record.events, record.register)
    assert len(list(tmp_path.iterdir())) == len(EARLIER)
    state.save(STATE_NAME, record)
    restore(state, record.boot, BOOTED_AT)
    assert [file.name for file in tmp_path.iterdir()] == [f"{STATE_NAME}.json"]


def test_files_of_an_earlier_version_that_disagree_open_nothing(aged: SimulatedDaemon, tmp_path: Path) -> None:
    """It saved them at different times: after a crash the totals are gone on with, and no finding stands on them."""
    record, state = msgspec.json.decode(msgspec.json.encode(kept_by(aged)), type=Judgement), StateDirectory(tmp_path)
    device, totals = next(iter(record.events.xids.items()))
    totals["136"] = totals.get("136", 0) + 1
    for name, part in zip(EARLIER, (record.events, record.job_logs, record.wraps, record.history), strict=False):
        state.save(name, part)
    with capture_logs() as logs:
        kept = restore(state, record.boot, BOOTED_AT)

    assert kept.events.xids[device] == totals
    assert (kept.history.counters, kept.register.incidents) == ([], [])
    assert [one["log_level"] for one in logs] == ["warning"]


@pytest.mark.parametrize(
    ("boot", "seconds", "is_known"), [("boot", 60.0, True), ("another", 60.0, False), ("boot", 7200.0, False)]
)
def test_a_counter_that_stood_still_is_known_for_a_while(
    tmp_path: Path, boot: str, seconds: float, is_known: bool
) -> None:
    """Within a boot, and not for longer than a rule looks back: what it shows then may have come at any time."""
    metric, labels = "commwatch_pcie_fatal_errors_total", ("0", "0000:17:00.0")
    state = StateDirectory(tmp_path)
    history = history_of(restore(state, "boot", 1000.0))
    history.take(metric, labels, 0.0, 1000.0)
    history.saw([metric], 1000.0)
    state.save(STATE_NAME, Judgement(boot="boot", history=history.state))
    again = history_of(restore(state, boot, 1000.0 + seconds))
    again.take(metric, labels, 1.0, 1000.0 + seconds, again.unseen_since(metric, 1000.0 + seconds))

    assert again.increase(metric, labels, 1000.0 + seconds, 3600.0) == is_known


def test_an_empty_record_agrees() -> None:
    """As a daemon has it that was started for the first time."""
    check(Judgement())


def test_flaps_of_links_outlive_a_daemon_and_end_with_the_boot(tmp_path: Path) -> None:
    """Two before a restart are two after it; of another boot only the totals are taken over."""
    faults = "- {fault: nvlink_down, gpu: 1, link: 5, at: 11m, for: 5s, every: 35s, times: 2}\n"
    shown, total = "commwatch_nvlink_link_flaps_recent", "commwatch_nvlink_link_flaps_total"
    with living(tmp_path, 650.0, faults) as daemon:
        go_on(daemon, *range(651, 720, 3))
        [labels] = [tuple(labels.values()) for labels, _ in daemon.snapshot().samples(shown)]
        assert daemon.snapshot().value(shown, *labels) == 2
    with living(tmp_path, 730.0, "") as daemon:
        assert [daemon.snapshot().value(one, *labels) for one in (shown, total)] == [2, 2]
    restored = restore(StateDirectory(tmp_path / "state" / f"simulated-{PRESET.name}"), "another boot", BOOTED_AT)
    assert (restored.flaps.recent, sum(restored.flaps.totals.values())) == ([], 2)
