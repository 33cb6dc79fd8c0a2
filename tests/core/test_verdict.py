"""The verdict in the daemon: findings open, are told and kept, and close only where someone looked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.config.thresholds import Thresholds
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.register import RegisterState
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import Evaluate, Rule, RuleSet
from commwatch.node.run import Collected
from commwatch.readings import Absence, SourceUnavailable
from commwatch.service import judge
from commwatch.service.judge import NAMED_MAX, Readings
from commwatch.service.judgement import STATE_NAME, Judgement
from commwatch.workers.sources import SOURCES
from commwatch_exporters.node.model import NvLink
from commwatch_exporters.snapshot import Series, Snapshot, Value
from support.core import SLOTS, collected, in_loop
from support.fed_daemon import FedDaemon

LINKS = "nvml_nvlink"
STATE, EXPECTED = "commwatch_nvlink_link_state", "commwatch_nvlink_link_expected"
DOWN = "nvlink_down"
OPENS, CLOSES = CODES[DOWN].opens_after, CODES[DOWN].closes_after
ERRORS = "commwatch_finding_rule_errors_total"


class Node:
    """A daemon's collection and verdict over two GPUs with one NVLink each, at a time that the test sets."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self._patched, self.daemon = patched, FedDaemon(folder, patched)
        self.clock, self.state = self.daemon.clock, self.daemon.state
        self.block, self.absent = self.daemon.block, self.daemon.absent
        self.start()

    def start(self, rule_sets: Iterable[RuleSet] = RULE_SETS, readings: Iterable[Readings] = ()) -> None:
        """A daemon that has just been started, with what the state directory holds."""
        self._patched.setattr(judge, "RULE_SETS", tuple(rule_sets))
        self._patched.setattr(judge, "READINGS", tuple(readings))
        self.daemon.restart()
        engine = self.daemon.engine
        self._patched.setattr(engine.pipeline, "on_batch", lambda outcome: None)  # no tracker works anything out
        self.store, self.instruments, self.collection = engine.store, self.daemon.instruments, engine.collection
        self.verdict = engine.verdict
        expected: dict[Series, Value] = {(EXPECTED, (str(index), slot, "0")): 1 for index, slot in enumerate(SLOTS)}
        self.store.put("inventory", "", self.block(expected), float("inf"))

    def save(self) -> None:
        """Write what the next daemon is to know."""
        history, register = self.verdict.history.state, self.verdict.register.state
        self.state.save(STATE_NAME, Judgement(boot="boot", history=history, register=register))

    def links(self, *states: int | None, absences: tuple[Absence, ...] = ()) -> None:
        """One run of the collector: the state of the link of each GPU; None for a GPU that was not read."""
        blocks = {
            slot: self.block({(STATE, (str(index), slot, "0")): state})
            for index, (slot, state) in enumerate(zip(SLOTS, states, strict=False))
            if state is not None
        }
        self.answer(collected(blocks, *absences))

    def answer(self, answer: Collected | SourceUnavailable) -> None:
        self.daemon.feed(LINKS, answer)

    def look(self, after: float = 0.0) -> list[tuple[str, str]]:
        """A look some seconds later; the findings that are open then."""
        self.clock.now += after
        self.verdict.evaluate(self.snapshot(), self.clock.time())
        return [finding.key for finding in self.verdict.findings]

    def snapshot(self) -> Snapshot:
        return self.store.snapshot()

    def exposed(self) -> list[tuple[str, ...]]:
        """Labels of the findings on the page."""
        return [tuple(labels.values()) for labels, _ in self.snapshot().samples("commwatch_finding")]

    def failures(self, rule: str) -> Value:
        return self.instruments.block(0.0).get(ERRORS, rule)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Two links that were learned, nothing read yet."""
    return Node(tmp_path, monkeypatch)


def link(gpu: int) -> tuple[str, str]:
    return (DOWN, f"nvlink/{SLOTS[gpu]}/0")


def open_on(node: Node, *states: int) -> None:
    """Until the links that are down are findings."""
    node.links(*states)
    node.look()
    node.look(OPENS)


def events(logs: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(entry["event"], entry["component"]) for entry in logs if entry["event"].startswith("finding ")]


def test_a_gpu_that_does_not_answer_is_unknown_until_it_is_critical(node: Node) -> None:
    """From the first look on, and over as soon as it answers; no answer calls the node OK."""

    def answer(state: int, after: float) -> tuple[str, str]:
        known = ("commwatch_gpu_info", ("1", SLOTS[1], "GPU-1", "", "H100", "Hopper"))
        states: dict[Series, Value] = {("commwatch_gpu_state", ("1", SLOTS[1])): state, known: 1}
        node.store.put("gpu_state", "", node.block(states), float("inf"))
        node.links(1, 1)
        node.daemon.feed("nvml_gpu")
        node.look(after)
        return answer_of(node)

    node.absent.update({name: "not here" for name in SOURCES if name != "nvml"})
    node.collection.tend()
    silent = f"GPU1 ({SLOTS[1]}) gave no reading for {{}} s (it does not answer)"
    assert answer(0, 0.0) == ("OK", "no warning or critical finding")
    assert answer(1, 10.0) == ("Unknown", silent.format(1))
    assert answer(1, 10.0) == ("Unknown", silent.format(10))
    assert answer(0, 10.0)[0] == "OK"
    assert answer(1, CLOSES + 10.0)[0] == "Unknown"
    assert answer(1, OPENS) == ("Critical", f"GPU does not answer: GPU1 ({SLOTS[1]})")


def answer_of(node: Node) -> tuple[str, str]:
    """Word and line of the verdict now."""
    about = {"version": "1", "time": node.clock.time(), "simulated": None, "maintenance": None}
    verdict = node.verdict.document(about).verdict
    assert verdict is not None
    return verdict.word, verdict.line


def test_part_of_a_device_that_fails_is_unknown_until_it_is_a_warning(node: Node) -> None:
    """From 30 s on, and over as soon as it is read."""
    failing: dict[Series, Value] = {("commwatch_collector_device_failing", ("nvml_p2p", SLOTS[1], "unreadable")): 1}

    def answer(after: float, is_failing: bool = True) -> tuple[str, str]:
        known = ("commwatch_gpu_info", ("1", SLOTS[1], "GPU-1", "", "H100", "Hopper"))
        node.store.put("gpu_state", "", node.block({known: 1}), float("inf"))
        node.store.show("unread_devices", "nvml_p2p", failing if is_failing else {}, node.clock.now)
        node.look(after)
        node.links(1, 1)
        node.daemon.feed("nvml_gpu")
        return answer_of(node)

    node.absent.update({name: "not here" for name in SOURCES if name != "nvml"})
    node.collection.tend()
    opens = CODES["device_unread"].opens_after
    silent = f"part of GPU1 ({SLOTS[1]}) gave no reading for 30 s (collectors that fail on it: unreadable: nvml_p2p)"
    assert [answer(seconds) for seconds in (0.0, 29.9)] == [("OK", "no warning or critical finding")] * 2
    assert answer(0.1) == ("Unknown", silent)
    assert answer(10.0, is_failing=False)[0] == "OK"
    assert [answer(30.0)[0] for _ in range(int(opens / 30.0))] == ["OK", *["Unknown"] * int(opens / 30.0 - 1)]
    assert answer(30.0) == ("Warning", f"Part of a device cannot be read: GPU1 ({SLOTS[1]})")


def test_a_fault_is_found_told_and_over(node: Node) -> None:
    """It opens when it has lasted and closes when it has been gone for long enough: one event for each, one series."""
    with capture_logs() as logs:
        node.links(1, 0)
        assert node.look() == []
        assert node.exposed() == []
        assert node.look(OPENS) == [link(1)]
        assert node.exposed() == [link(1)]
        assert node.look(600.0) == [link(1)]
        node.links(1, 1)
        assert node.look(10.0) == [link(1)]
        assert node.look(CLOSES) == []

    assert node.exposed() == []
    assert events(logs) == [("finding opened", link(1)[1]), ("finding closed", link(1)[1])]
    (opened, closed) = [entry for entry in logs if entry["event"].startswith("finding ")]
    assert (opened["log_level"], opened["severity"], opened["name"]) == (
        "error", "critical", "GPU1 link 0 (0000:18:00.0/0)")  # fmt: skip
    assert opened["evidence"] == ["link state: inactive"]
    assert opened["next_step"] == CODES[DOWN].next_step
    assert closed["open_seconds"] == OPENS + 600.0 + 10.0 + CLOSES


def test_a_healthy_node_has_nothing_to_tell(node: Node) -> None:
    """No finding, no event; the page says that none was left out, at each look."""
    node.links(1, 1)
    with capture_logs() as logs:
        assert node.look() == []
        assert node.snapshot().value("commwatch_findings_left_out") == 0
        assert node.look(10.0) == []

    assert node.snapshot().value("commwatch_findings_left_out") == 0
    assert logs == []


def test_findings_outlive_a_restart(node: Node) -> None:
    """What was open is open at once, with its beginning, and is not announced again."""
    open_on(node, 1, 0)
    since = node.verdict.findings[0].since
    node.save()
    node.start()

    assert [finding.since for finding in node.verdict.findings] == [since]
    assert node.exposed() == [link(1)]
    node.links(1, 0)
    with capture_logs() as logs:
        assert node.look(10.0) == [link(1)]
    assert events(logs) == []


def test_the_state_of_an_earlier_version_is_read(node: Node) -> None:
    """Its findings are open and close as ever; what it kept of the metrics that its rules asked for is left alone."""
    component = {"kind": "nvlink", "key": f"{SLOTS[1]}/0", "name": "GPU1 link 0", "parts": [SLOTS[1]]}
    sighting = {"code": DOWN, "component": component, "evidence": [{"what": "link state", "value": "inactive"}]}
    spell = {"sighting": sighting, "first_seen": 1.0, "last_seen": node.clock.time(), "is_open": True}
    bases = {"bases": {DOWN: {"rule": "nvlink.down", "metrics": [STATE, "commwatch_gone"]}}}
    (node.state.path / "findings.json").write_text(json.dumps({"spells": [spell]}))
    (node.state.path / "finding_rules.json").write_text(json.dumps(bases))
    node.start()

    assert node.look() == [link(1)]
    node.links(1, 1)
    assert node.look(10.0) == [link(1)]
    assert node.look(CLOSES) == []


def test_what_was_repaired_while_no_daemon_ran_closes(node: Node) -> None:
    """Only after it has been read: before, no one knows."""
    open_on(node, 1, 0)
    node.save()
    node.start()

    assert node.look(600.0) == [link(1)]
    node.links(1, 1)
    assert node.look(10.0) == [link(1)]
    assert node.look(CLOSES) == []


def test_a_pause_neither_opens_nor_closes(node: Node) -> None:
    """The driver is not read during maintenance; what is well again closes once it has been read after it."""
    open_on(node, 1, 0)
    node.store.maintenance = "upgrade"
    node.collection.tend()
    assert node.look(3600.0) == [link(1)]
    assert node.exposed() == [link(1)]

    node.store.maintenance = None
    node.collection.resume()
    assert node.look(3600.0) == [link(1)]
    node.links(1, 1)
    node.look(10.0)
    assert node.look(CLOSES) == []


def test_a_gpu_that_is_not_read_keeps_its_findings(node: Node) -> None:
    """Those of the other GPU close as ever."""
    open_on(node, 0, 0)
    node.links(1, None, absences=(Absence(SLOTS[1], "lost", "GPU is lost"),))
    node.look(10.0)

    assert node.look(CLOSES) == [link(1)]
    node.links(1, 1)
    node.look(10.0)
    assert node.look(CLOSES) == []


def test_a_source_that_fails_keeps_all_findings(node: Node) -> None:
    """A driver that cannot be opened says nothing about links."""
    open_on(node, 0, 1)
    node.answer(SourceUnavailable("no_driver", "driver not loaded"))
    node.look(10.0)

    assert node.look(CLOSES) == [link(0)]


def test_a_part_that_a_whole_run_does_not_name_any_more_is_gone(node: Node) -> None:
    """A card that was taken out for good leaves no finding behind."""
    open_on(node, 1, 0)
    node.links(1)
    node.look(10.0)

    assert node.look(CLOSES) == []


def test_a_source_that_is_not_on_this_node_any_more_has_no_faults(node: Node) -> None:
    """Its absence is known, and no failure."""
    open_on(node, 1, 0)
    node.absent["nvml"] = "no NVIDIA driver is loaded and no GPU is on the PCI bus"
    in_loop(lambda: node.collection.run(node.collection.collectors[LINKS]))
    node.look(10.0)

    assert node.look(CLOSES) == []


def rules_with(*looks: Evaluate) -> tuple[RuleSet, ...]:
    """The codes of the real rules, matched by other rules."""
    codes = tuple(code for rules in RULE_SETS for code in rules.codes)
    return (RuleSet("test", codes, tuple(Rule(look, (DOWN,), (NvLink.state,)) for look in looks)),)


def down_anywhere(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links that are inactive."""
    for link, state in facts.each(NvLink.state):
        if state == 0:
            key = f"{link.address}/0"
            yield Match(DOWN, Component("nvlink", key, parts=frozenset({key})), (Evidence("state", state),))


class Flaky:
    """A rule that works until it is told to fail."""

    __name__ = "flaky"

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
        yield from down_anywhere(facts, thresholds)
        if self.fails:
            raise ZeroDivisionError("no denominator")


def test_a_rule_that_fails_stops_no_other(node: Node) -> None:
    """It is logged once, counted each time and named; the findings of the others open."""
    flaky = Flaky()
    flaky.fails = True
    node.start(rules_with(flaky, down_anywhere))
    node.links(1, 0)
    with capture_logs() as logs:
        node.look()
        assert node.look(OPENS) == [link(1)]

    (name,) = node.verdict.failing_rules
    assert name.endswith(".flaky")
    assert node.failures(name) == 2
    assert [entry["rule"] for entry in logs if entry["event"].startswith("a rule failed")] == [name]


def test_findings_of_a_rule_that_fails_stay(node: Node) -> None:
    """What it would have seen is not known; once it works again, it closes."""
    flaky = Flaky()
    node.start(rules_with(flaky))
    open_on(node, 1, 0)
    flaky.fails = True
    node.links(1, 1)
    node.look(10.0)
    assert node.look(CLOSES) == [link(1)]

    flaky.fails = False
    assert node.verdict.failing_rules
    node.look(10.0)
    assert node.look(CLOSES) == []
    assert not node.verdict.failing_rules


def test_a_rule_that_sights_what_is_on_no_list_has_failed(node: Node) -> None:
    """A code without documentation is a defect of the rule, and takes nothing with it."""

    def unlisted(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
        yield Match("nonsense", Component("node", ""), ())

    node.start(rules_with(unlisted, down_anywhere))
    open_on(node, 1, 0)

    assert [name.rpartition(".")[2] for name in node.verdict.failing_rules] == ["unlisted"]
    assert node.exposed() == [link(1)]


def many(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """More than anyone reads."""
    for number in range(NAMED_MAX + 7):
        yield Match(DOWN, Component("nvlink", f"{number:03}", parts=frozenset({str(number)})), ())


def test_the_page_names_a_bounded_number(node: Node) -> None:
    """The rest is counted on the page, summed up in the log, and in full at the API."""
    node.start(rules_with(many))
    node.look()
    with capture_logs() as logs:
        assert len(node.look(OPENS)) == NAMED_MAX + 7

    assert len(node.exposed()) == NAMED_MAX
    assert node.snapshot().value("commwatch_findings_left_out") == 7
    assert len(node.verdict.findings) == NAMED_MAX + 7
    assert len(events(logs)) == judge.LOGGED_PER_LOOK
    assert [entry["count"] for entry in logs if entry["event"].startswith("more findings")] == [
        NAMED_MAX + 7 - judge.LOGGED_PER_LOOK]  # fmt: skip


def test_further_readings_stand_beside_the_findings(node: Node) -> None:
    """One set of them that fails is counted, and takes neither the findings nor the others with it."""

    def ratio(facts: Facts, thresholds: Thresholds, findings: object) -> Iterable[tuple[str, tuple[str, ...], Value]]:
        yield ("commwatch_gpu_busy", ("0", SLOTS[0]), len(list(facts.each(NvLink.state))))

    def broken(facts: Facts, thresholds: Thresholds, findings: object) -> Iterable[tuple[str, tuple[str, ...], Value]]:
        raise KeyError("no such part")

    node.start(readings=(broken, ratio))
    open_on(node, 1, 0)

    assert node.exposed() == [link(1)]
    assert node.snapshot().value("commwatch_gpu_busy", "0", SLOTS[0]) == 2
    assert node.failures("broken") == 2


def test_a_damaged_state_begins_anew(node: Node) -> None:
    """It is set aside; what is wrong is found again."""
    (node.state.path / "judgement.json").write_text('{"register": 7}')
    node.start()

    assert node.verdict.findings == []
    open_on(node, 1, 0)
    assert node.state.load("findings", RegisterState) is None
    assert node.exposed() == [link(1)]


def test_a_defect_of_the_verdict_itself_is_seen(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon goes on, and the failure is counted."""

    def broken(findings: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(judge, "join", broken)
    with capture_logs() as logs:
        node.look()
        node.look(10.0)

    assert node.failures("engine") == 2
    assert len(logs) == 1


# --- a loss of bandwidth ---

LOST = ("probe_bandwidth_lost", "probe/all_reduce")
PROBE = ("all_reduce", "nccl")


def probe(node: Node, **values: float) -> None:
    """What the store has of the probe, by metrics without their prefix."""
    series: dict[Series, Value] = {(f"commwatch_probe_{name}", PROBE): value for name, value in values.items()}
    node.store.put(
        "probes", "all_reduce", node.block({("commwatch_probe_attempts_total", PROBE): 9, **series}), float("inf")
    )


def lost(node: Node) -> None:
    """Until the loss is a finding."""
    node.links(1, 1)
    probe(node, losses=1)
    node.look()
    assert LOST in node.look(CODES[LOST[0]].opens_after + 10)


@pytest.mark.parametrize(
    ("after", "note"),
    [({"losses": 0}, ""), ({"losses": 0, "unmeasured_losses": 1}, "no longer measured"), (None, "no longer measured")],
    ids=["level is back", "another size is configured", "the probe is not configured"],
)
def test_a_loss_closes_with_what_closed_it(node: Node, after: dict[str, float] | None, note: str) -> None:
    """The history says where it was not cured."""
    lost(node)

    for _ in range(2):
        node.links(1, 1)
        node.store.drop_group("probes") if after is None else probe(node, **after)
        found = node.look(CODES[LOST[0]].closes_after + 10)

    assert found == []
    assert [one.note for one in node.verdict.register.closed()] == [note]


def test_a_loss_stays_while_nothing_new_is_measured(node: Node) -> None:
    """Under a job of days, and over a restart in it: the probe is there, and has no result that speaks of the loss."""
    lost(node)
    node.save()
    node.start()

    for _ in range(3):
        node.links(1, 1)
        probe(node)
        found = node.look(86_400.0)

    assert found == [LOST]


FLAPPING = ("nvlink_flapping", f"nvlink/{SLOTS[0]}/0")


def flaps(node: Node, count: int, *, counter: bool) -> None:
    """Falls of the first link within the hour; their total where the daemon counts it."""
    labels = ("0", SLOTS[0], "0")
    series: dict[Series, Value] = {("commwatch_nvlink_link_flaps_recent", labels): count or None}
    if counter:
        series["commwatch_nvlink_link_flaps_total", labels] = 7 + count
    node.store.put("flaps", "", node.block(series), float("inf"))


@pytest.mark.parametrize(("counter", "well_for"), [(True, 610.0), (False, 1800.0 - 3600.0)])
def test_a_link_that_flaps_was_well_until_it_fell_first(node: Node, counter: bool, well_for: float) -> None:
    """Not until its third fall; where nothing tells when the first was, it may have been an hour before that."""
    began = node.clock.time()
    for fall in range(4):
        for after in (10.0, 590.0):
            node.links(1, 1)
            flaps(node, fall, counter=counter)
            node.look(after)
    [found] = [one for one in node.verdict.register.open_incidents() if one.key == FLAPPING]

    assert found.well_at == began + well_for


HOUR = 3600.0


@pytest.mark.parametrize(
    ("recoveries", "well_at"),
    [
        ([0.0, 1000.0, 1900.0], 0.0),
        ([0.0, 20 * HOUR, 20 * HOUR + 100.0, 20 * HOUR + 200.0], 19 * HOUR + 190.0),
        ([2 * HOUR * number for number in range(10)], 0.0),
    ],
    ids=["three in the hour", "three in the hour and one the day before", "ten in the day"],
)
def test_a_count_began_within_the_time_over_which_it_is_counted(
    node: Node, recoveries: list[float], well_at: float
) -> None:
    """One recovery of the day before explains nothing of the day, where it takes three in an hour."""
    began = node.clock.time()
    series = ("commwatch_nvlink_recovery_errors_total", ("0", SLOTS[0], "0"))
    for total, after in enumerate(recoveries):
        for count, seconds in ((total, after - 10.0), (total + 1, after)):
            node.links(1, 1)
            node.store.put("recoveries", "", node.block({series: count}), float("inf"))
            node.look(began + seconds - node.clock.time())
    [found] = [one for one in node.verdict.register.open_incidents() if one.code == "nvlink_recovering"]

    assert found.well_at == began + well_at
