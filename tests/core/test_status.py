"""What the node's page is told of a running engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from commwatch import __version__
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Component, Match
from commwatch.findings.register import Closed, Register, RegisterState
from commwatch.findings.verdict import Verdict
from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix
from commwatch.readings import Absence
from commwatch.service.api import Answers
from commwatch.service.engine import Engine
from commwatch.service.judge import Judge
from commwatch.service.page import NO_DRIVER, describe, marks_of
from commwatch.views.node_page.records import CollectorStatus, Fact, Mark, Status
from commwatch.workers.reader import Reader
from commwatch_exporters.snapshot import Series, Snapshot, Value
from support.core import Clock, block
from support.fed_daemon import FedDaemon
from support.findings import cause, finding

LINKS = "nvml_nvlink"
EMPTY = Snapshot([])


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FedDaemon:
    """One with a driver that has not read anything."""
    return FedDaemon(tmp_path, monkeypatch)


@pytest.fixture
def clock(daemon: FedDaemon) -> Clock:
    """The clock of the page."""
    return daemon.clock


@pytest.fixture
def running(daemon: FedDaemon) -> Engine:
    """The engine that the daemon runs."""
    return daemon.engine


def told(running: Engine, snapshot: Snapshot = EMPTY) -> Status:
    return describe(Answers(running), snapshot)


def page(values: Mapping[Series, Value]) -> Snapshot:
    return Snapshot([block(values)])


def matrix(expected: float | None = 100e9) -> PairMatrix:
    """Two GPUs, one of which sends slowly."""
    ends = tuple(PairEndpoint(label=str(one), device=f"GPU-{one}") for one in range(2))
    cells = (
        PairCell(source=0, destination=1, bandwidth=95e9, expected_bandwidth=expected),
        PairCell(source=1, destination=0, bandwidth=50e9, expected_bandwidth=expected),
    )
    return PairMatrix(
        taken_at=1.8e9, backend="nccl", latency_bytes=8, bandwidth_bytes=2**24, endpoints=ends, cells=cells
    )  # fmt: skip


def links(running: Engine) -> CollectorStatus:
    (one,) = [one for one in told(running).collectors if one.name == LINKS]
    return one


def test_an_engine_that_has_not_run_has_nothing_to_tell(running: Engine) -> None:
    """A collector that was not tried yet is neither good nor bad."""
    before = told(running)

    assert (before.version, before.facts, before.notices, before.probes) == (__version__, (), (), [])
    assert (before.verdict.word, before.score, before.pairs, before.findings) == ("Unknown", None, None, ())
    assert [one.name for one in before.collectors] == [*running.collection.collectors]
    assert {(one.success, one.age_seconds, one.last_error) for one in before.collectors} == {(None, None, "")}


def test_collectors_of_a_source_that_is_not_here_are_not_listed(daemon: FedDaemon) -> None:
    """A node without GPUs shows no line about them, until a driver is there."""
    collectors = daemon.engine.collection.collectors
    others = [name for name, one in collectors.items() if one.source != "nvml"]
    for absent, listed in (({"nvml": "no driver"}, others), ({}, [*collectors])):
        daemon.absent = absent
        daemon.feed(LINKS)
        assert [one.name for one in told(daemon.engine).collectors] == listed


LOST = [Absence(f"0000:{bus}:00.0", "lost", "GPU is lost") for bus in ("3b", "18", "9a", "17")]


@pytest.mark.parametrize(
    ("ago", "failing", "expected"),
    [
        (2.5, [], (True, 2.5, "")),
        (60.0, LOST, (False, 60.0, "; ".join(f"0000:{bus}:00.0 GPU is lost" for bus in ("17", "18", "3b")))),
        (None, [Absence("", "no_driver", "driver not loaded")], (False, None, "driver not loaded")),
        (-3600.0, [], (True, 0.0, "")),
    ],
    ids=["last success", "at most three errors", "never succeeded", "a clock that was set back"],
)
def test_a_collector_tells_its_last_success_and_first_errors(
    running: Engine, clock: Clock, ago: float | None, failing: list[Absence], expected: tuple[bool, float | None, str]
) -> None:
    """With the interval that is in force, also when it was slowed down; errors in the order of the devices."""
    collector = running.collection.collectors[LINKS]
    collector.attempted, collector.stretch, collector.failing = True, 4, frozenset(failing)
    collector.last_success = None if ago is None else clock.time() - ago
    is_good, age, errors = expected

    assert links(running) == CollectorStatus(LINKS, is_good, age, 4.0, errors)


def test_the_facts_name_parts_and_driver(running: Engine) -> None:
    """How many of how many, those short of it as such; a kind of which nothing is expected stands alone."""
    snapshot = page({
        ("commwatch_software_info", ("580.65", "13.580.65", "13.0")): 1,
        **{("commwatch_gpu_info", (str(gpu), f"0000:{gpu}7:00.0", "", "", "NVIDIA H100", "")): 1 for gpu in range(7)},
        ("commwatch_present", ("gpu",)): 7,
        ("commwatch_expected", ("gpu",)): 8,
        ("commwatch_present", ("ethernet_port",)): 2,
        ("commwatch_expected", ("ethernet_port",)): None,
        ("commwatch_present", ("rdma_port",)): 9,
        ("commwatch_expected", ("rdma_port",)): 9,
        ("commwatch_present", ("nvlink",)): None,
        ("commwatch_expected", ("nvlink",)): 144,
    })  # fmt: skip

    assert told(running, snapshot=snapshot).facts == (
        Fact("Model", "7 × NVIDIA H100"),
        Fact("GPUs here", "7 of 8", is_short=True),
        Fact("Ethernet ports up", "2"),
        Fact("RDMA ports up", "9 of 9"),
        Fact("NVIDIA driver, NVML", "580.65, 13.580.65"),
    )


def test_maintenance_is_said_first(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the page learns why it is empty; a missing driver comes after."""
    monkeypatch.setattr(running.presence, "has_driver", lambda: False)

    running.store.maintenance = "swap"
    notices = told(running).notices

    assert notices == ("Paused for maintenance (swap): GPUs are neither read nor probed.", NO_DRIVER)
    assert "--simulate h100x8" in NO_DRIVER


def test_stuck_processes_are_told_once(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five collectors of one reader are one notice."""
    monkeypatch.setattr(Reader, "stuck_count", property(lambda reader: 2 if reader.settings.name == "nvml" else 0))

    (notice,) = told(running).notices
    assert notice.startswith("2 worker processes are stuck")
    assert "nvml" in notice


def test_the_status_has_the_findings_as_they_are(running: Engine, clock: Clock) -> None:
    """Parts carry the marks of their findings, also those of causes."""
    why = cause("nvlink_down", Component("nvlink", "0000:17:00.0/3", "GPU0 link 3"))
    probe = Component("probe", "all_reduce", "probe all_reduce")
    slow = finding("probe_bandwidth_low", probe, clock.time() - 90, causes=(why,), severity="critical")
    lost = finding("gpu_lost", Component("gpu", "0000:18:00.0", "GPU1"))
    running.verdict.findings = [slow, lost]
    running.verdict.looked_at = clock.time()
    status = told(running)

    assert (status.time, status.findings) == (clock.time(), (slow, lost))
    assert status.marks == {
        "probe/all_reduce": Mark("critical", CODES["probe_bandwidth_low"].title),
        "nvlink/0000:17:00.0/3": Mark("critical", CODES["nvlink_down"].title),
        "gpu/0000:18:00.0": Mark("critical", CODES["gpu_lost"].title),
    }


def test_the_status_has_what_was_closed_lately(running: Engine) -> None:
    """The latest first."""
    link = Match("nvlink_down", Component("nvlink", "0000:17:00.0/3", "GPU0 link 3"), ())
    loss = Match("probe_bandwidth_lost", Component("probe", "all_reduce", "probe all_reduce"), ())
    closed = [Closed(link, 1.8e9, 1.8e9 + 60), Closed(loss, 1.8e9, 1.8e9 + 90, "no longer measured")]
    running.verdict.register = Register(RegisterState(closed=closed))

    assert [one.code for one in told(running).closed] == ["probe_bandwidth_lost", "nvlink_down"]


def test_a_part_is_marked_with_the_most_severe_that_is_said_of_it() -> None:
    """Findings come most severe first, but a cause may be graver than those before it."""
    part = Component("nvlink", "0000:17:00.0/3", "GPU0 link 3")
    other = Component("probe", "all_reduce")
    why = cause("nvlink_down", part)
    found = [
        finding("nvlink_recovering", part),
        finding("probe_bandwidth_low", other, causes=(why,), severity="critical"),
    ]

    for findings in (found, found[::-1]):
        assert marks_of(findings)["nvlink/0000:17:00.0/3"] == Mark("critical", CODES["nvlink_down"].title)


def test_a_node_of_which_nothing_was_read_is_unknown(running: Engine, clock: Clock) -> None:
    """The rules have looked and found nothing, and no source has given a reading yet: that is not OK."""
    running.verdict.looked_at = clock.time()

    said = told(running)
    assert said.verdict == Verdict("Unknown", "nvml has given no reading yet; and 6 more", "not_read")


def test_nothing_wrong_is_said_too(running: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the rules have looked, although no GPU is known here."""
    running.verdict.looked_at = clock.time()
    monkeypatch.setattr(running.collection, "unread", lambda: ())

    said = told(running)
    assert (said.verdict.line, said.findings) == ("no GPU is read at present", ())
    assert said.score is not None
    assert said.score.ratio is None  # the page says "not measured"


def test_rules_that_failed_are_named(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they look for is not known, whatever the findings say."""
    monkeypatch.setattr(Judge, "failing_rules", frozenset({"nvlink_down", "gpu_lost"}))

    said = told(running)
    assert said.notices == ("2 rules failed, so that what they look for is not known: gpu_lost, nvlink_down.",)


def test_the_last_pairs_are_shown_while_they_are_young(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probing says which they are; colours, numbers and marks are those of commwatch heatmap."""
    monkeypatch.setattr(running.probing, "last_pairs", lambda now: matrix())
    pairs = told(running).pairs

    assert pairs is not None
    assert pairs.names == ("GPU0", "GPU1")
    assert (pairs.numbers, pairs.marks) == ({(0, 1): 95.0, (1, 0): 50.0}, {(1, 0): "!"})
    assert pairs.with_unit(pairs.low) == "0 %"
    assert [note[0] for note in pairs.notes] == ["!"]


def test_pairs_of_which_nothing_is_expected_are_shown_as_they_are(
    running: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In GB/s, and what was not measured as such."""
    unknown = matrix(expected=None)
    monkeypatch.setattr(running.probing, "last_pairs", lambda now: replace(unknown, cells=unknown.cells[:1]))
    pairs = told(running).pairs

    assert pairs is not None
    assert [pairs.text(pair) for pair in ((0, 1), (1, 0))] == ["95.0", "-"]
    assert pairs.title.endswith("(GB/s)")
