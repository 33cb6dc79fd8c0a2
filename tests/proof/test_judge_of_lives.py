"""Lives of nodes: the same seed gives the same life, the truth knows no rule, and what is told is held against it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from support.lives import hardware, healthy, life
from support.lives.hardware import HARDWARE, Place, Struck
from support.lives.healthy import healthy_life, silence
from support.lives.judge import Score, judge
from support.lives.life import Broken, Life
from support.lives.play import BEFORE_SECONDS, Course, play
from support.lives.told import Alert, Sent, alerts_of, sent
from support.passes import in_one_pass
from support.simulated_daemon import STEP_SECONDS

_SEEDS = range(200)
_PORT = Place(("0000:99:00.0",))
NARROW = Broken(
    "lanes_lost", Struck(_PORT, ({"fault": "pcie_width", "gpu": 1, "lanes": 4},), (1,)), ((240.0, 420.0),),
    is_repaired=True,
)  # fmt: skip
LIFE = Life(0, "a10x2", 600.0, (NARROW,), None, None, None, None, ())
PAGE = {
    "alertname": "CommwatchPcieWidthDropped", "severity": "critical", "instance": "node1:28029", "job": "commwatch",
    "pci_bus_id": "0000:99:00.0", "gpu": "1",
}  # fmt: skip
TICKET = {**PAGE, "alertname": "CommwatchPcieReplays", "severity": "warning"}

DRIVER = {
    "alertname": "CommwatchDriverUnusable",
    "severity": "critical",
    "instance": PAGE["instance"],
    "job": "commwatch",
}
SILENCED = {**PAGE, "alertname": "CommwatchGpuLost"}
"""A page of the same part that the one of the driver silences."""


@pytest.mark.parametrize("module", [hardware, life])
def test_the_truth_knows_no_rule(module: object) -> None:
    """Of the product it imports the simulated node alone."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]

    assert [
        name for name in names if name.startswith("commwatch") and not name.startswith("commwatch_rehearsal.simulation")
    ] == []


def test_a_seed_gives_one_life() -> None:
    """With everything in it, of nodes with faults and of healthy ones."""
    assert list(life.lives(_SEEDS)) == list(life.lives(_SEEDS))
    assert healthy_life(3, 5) == healthy_life(3, 5)


def test_lives_have_all_that_happens() -> None:
    """Each kind of fault, from one to three of them, some from the boot on, and all that is done to a daemon."""
    drawn = list(life.lives(_SEEDS))

    assert {one.kind for each in drawn for one in each.broken} == {*HARDWARE}
    assert {len(each.broken) for each in drawn} == {1, 2, 3}
    assert any(one.is_from_boot for each in drawn for one in each.broken)
    for name in ("job", "pause", "reload", "restart", "harmless"):
        assert any(getattr(each, name) for each in drawn), name


def _judged(alerts: list[Alert], documents: Course | None = None, one: Life = LIFE) -> Score:
    course = documents or Course(None, [(600.0, None)])  # type: ignore[arg-type]  # nothing was scraped
    return judge(one, course, alerts, sent(alerts, STEP_SECONDS))


def _firing(labels: dict[str, str], begin: float, end: float, text: str = "") -> Alert:
    return Alert(
        labels, [begin + STEP_SECONDS * place for place in range(round((end - begin) / STEP_SECONDS) + 1)], text
    )


_TWICE = [_firing(PAGE, 285, 300), _firing(PAGE, 405, 420)]
_ELSEWHERE = {**PAGE, "pci_bus_id": "0000:17:00.0"}


@in_one_pass(
    "alerts, kinds",
    [
        ([_firing(PAGE, 285, 480)], []),
        ([], ["not told"]),
        ([_firing(PAGE, 330, 480)], ["late"]),
        ([_firing(TICKET, 285, 480)], ["a ticket instead of a page"]),
        ([_firing(PAGE, 285, 480), _firing(_ELSEWHERE, 285, 480)], ["false page"]),
        ([_firing(PAGE, 285, 480), _firing({**PAGE, "alertname": "CommwatchPcieFatal"}, 285, 480)],
         ["several alerts for one fault"]),
        ([Alert(PAGE, [time for one in _TWICE for time in one.times])], ["paged several times"]),
        ([_firing(PAGE, 285, 1200)], ["alert stays"]),
        ([_firing(SILENCED, 285, 480), _firing(DRIVER, 270, 495)], ["never sent"]),
        ([_firing(SILENCED, 285, 480), _firing(DRIVER, 270, 390)], ["sent late", "paged several times"]),
    ],
)  # fmt: skip
def test_each_miss_is_found(alerts: list[Alert], kinds: list[str]) -> None:
    """Right page, place, time, number and end: none without the other."""
    assert [one.kind for one in _judged(alerts).misses] == kinds


@pytest.mark.parametrize(
    ("begun", "severity", "kinds"),
    [
        (0.0, "warning", []), (0.0, "critical", []), (240.0, "critical", ["late"]),
        (240.0, "warning", ["a ticket instead of a page"]),
    ],
)  # fmt: skip
def test_a_ticket_that_is_enough_has_the_time_of_a_ticket(begun: float, severity: str, kinds: list[str]) -> None:
    """Lanes that were missing at the first reading may be a ticket; lanes that were there before are a page."""
    narrow = dataclasses.replace(NARROW, spans=((begun, begun + 400.0),))
    alerts = [_firing({**PAGE, "severity": severity}, begun + 75, begun + 480)]

    assert [one.kind for one in _judged(alerts, one=dataclasses.replace(LIFE, broken=(narrow,))).misses] == kinds


@pytest.mark.parametrize(("label", "kinds"), [("A", ["alert stays"]), ("C", [])])
def test_what_probes_say_ends_with_the_next_one(label: str, kinds: list[str]) -> None:
    """A part that results point at is named as any other, and only a further result clears it."""
    told = [_firing(PAGE, 285, 480), _firing({**TICKET, "class": label}, 285, 1500)]

    assert [one.kind for one in _judged(told).misses] == kinds


@pytest.mark.parametrize(
    ("lost", "last", "kinds"),
    [((390.0, 2000.0), 3600, []), ((390.0, 2000.0), 3630, ["alert stays"]), ((1400.0, 2000.0), 3600, ["alert stays"])],
    ids=["once a probe could run", "later", "a probe had run before"],
)
def test_what_probes_say_stays_while_no_probe_can_run(lost: life.Span, last: float, kinds: list[str]) -> None:
    """Of a node with a lost GPU none can."""
    gpu = Broken("gpu_off_the_bus", Struck(Place(("0000:17:00.0",)), ()), (lost,), is_repaired=True)
    page = {**PAGE, "alertname": "CommwatchGpuLost", "pci_bus_id": "0000:17:00.0", "gpu": "0"}
    alerts = [
        _firing(PAGE, 285, 480),
        _firing(page, lost[0] + 15, lost[1] + 480),
        _firing({**TICKET, "class": "C"}, 300, last),
    ]
    found = _judged(alerts, one=dataclasses.replace(LIFE, seconds=4000.0, broken=(NARROW, gpu)))

    assert [one.kind for one in found.misses] == kinds


def test_what_is_silenced_is_not_told() -> None:
    """A ticket beside a page of the same node is sent where the shipped example lets it, and is a miss where not."""
    ports = [_firing(PAGE, 285, 480), _firing({**PAGE, "alertname": "CommwatchNvlinkDown", "link": "3"}, 300, 480)]
    lost = [*ports, _firing({**PAGE, "alertname": "CommwatchGpuLost"}, 270, 480)]

    assert {place for one in sent(ports, STEP_SECONDS) for place in one.new} == {0, 1}
    assert {place for one in sent(lost, STEP_SECONDS) for place in one.new} == {2}


_BESIDE = "No GPU can be read. Also open on this node: CommwatchPcieWidthDropped at 0000:99:00.0. First action: reboot."


@pytest.mark.parametrize(("text", "kinds"), [(_BESIDE, []), ("GPU 0000:99:00.0 cannot be read.", ["place not named"])])
def test_what_else_is_open_is_no_place(text: str, kinds: list[str]) -> None:
    """An alert about the node lists the parts of other alerts, and is about none of them."""
    gone = Broken("driver_gone", Struck(Place(()), (), ()), ((240.0, 420.0),), is_repaired=True)
    life_of_it = dataclasses.replace(LIFE, broken=(gone,))

    assert [one.kind for one in _judged([_firing(DRIVER, 285, 480, text)], one=life_of_it).misses] == kinds


def test_a_group_waits_for_its_interval() -> None:
    """The second alert of a node comes with the next notification of the group, a minute after the first."""
    alerts = [_firing(PAGE, 285, 480), _firing({**PAGE, "alertname": "CommwatchPcieFatal"}, 300, 480)]

    assert sent(alerts, STEP_SECONDS) == [Sent(290.0, "page", (0,)), Sent(350.0, "page", (1,))]


@pytest.mark.prometheus
def test_a_life_is_played_and_judged(tmp_path: Path) -> None:
    """A PCIe link loses lanes after 4 min and has them back 3 min later: paged in time, at its GPU, once."""
    course = play(LIFE, tmp_path)
    alerts = alerts_of(course.scraped, tmp_path, STEP_SECONDS, BEFORE_SECONDS)
    score = judge(LIFE, course, alerts, sent(alerts, STEP_SECONDS))

    assert [one.line for one in score.misses] == []
    assert (score.right, score.pages) == (1, 1)


@pytest.mark.parametrize(
    ("begin", "built_so", "kinds"), [(0.0, True, []), (0.0, False, ["not told"]), (5.0, True, ["not told"])]
)
def test_a_slot_that_was_always_narrow_may_be_so(begin: float, built_so: bool, kinds: list[str]) -> None:
    """Of two cards nobody can say which is the odd one; lanes that were seen and are lost are."""
    struck = dataclasses.replace(NARROW.struck, may_be_built_so=built_so)
    narrow = dataclasses.replace(NARROW, struck=struck, spans=((begin, begin + 500.0),))

    assert [one.kind for one in _judged([], one=dataclasses.replace(LIFE, broken=(narrow,))).misses] == kinds


@pytest.mark.parametrize(("begin", "kinds"), [(0.0, []), (20.0, ["not told"])])
def test_a_cable_is_missed_once_its_interface_is_known(begin: float, kinds: list[str]) -> None:
    """One that never had a link in this boot need not have one; one that a single reading has shown up is missed."""
    out = Broken("cable_out", Struck(Place(("ens1np0",)), (), ()), ((begin, begin + 400.0),), is_repaired=True)

    assert [
        one.kind for one in _judged([], one=dataclasses.replace(LIFE, seconds=1500.0, broken=(out,))).misses
    ] == kinds


@pytest.mark.prometheus
def test_a_healthy_day_is_silent(tmp_path: Path) -> None:
    """And the same day with a broken part is not."""
    day = dataclasses.replace(healthy_life(1, 1), node="a10x2", noise=())
    broken = healthy.Noise(40_000.0, 43_000.0, '{"fault": "pcie_width", "gpu": 1, "lanes": 4}')

    healthy_and_broken = []
    for name, noise in (("day", ()), ("broken", (broken,))):
        (tmp_path / name).mkdir()
        healthy_and_broken.append(silence(dataclasses.replace(day, noise=noise), tmp_path / name, quiet=7200.0))
    quiet, loud = healthy_and_broken

    assert (quiet.pages, quiet.findings) == ([], [])
    assert len(loud.pages) == 1
