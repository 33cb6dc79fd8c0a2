"""Rules are run where they may sight something else than before, and a look gives what one with all rules gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import FindingCode
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Sighting
from commwatch.findings.history import CounterHistory
from commwatch.findings.looking import Looking
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import Look, Rule, RuleSet
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node.model import Gpu
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value
from support.any_page import GPUS, LABELS, NUMBERS, RISES
from support.examples import examples
from support.facts import NOW, shipped

STATE, REPLAYS, LINKS = (f"commwatch_{name}" for name in ("gpu_state", "pcie_replays_total", "nvlink_links"))
SLOT = ("0", "0000:17:00.0")
NODE = Component("node", "")


class Ran:
    """A rule of a test, and how often it was run."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self.times = 0
        rule = Rule(self, ("sighted",), (Gpu.state,), (Gpu.pcie_replays,))
        code = FindingCode("sighted", "sighted", "warning", "fault", "meaning", "next step")
        history = CounterHistory({REPLAYS: 60.0})
        rule_set = RuleSet("one", (code,), (rule,))
        self.looking = Looking([rule_set], shipped(), history, lambda name, error: None)
        self._layouts: dict[tuple[Series, ...], Layout] = {}

    def __call__(self, facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
        self.times += 1
        return self._look(facts, thresholds)

    def at(self, second: float, **numbers: Value) -> int:
        """How often it was run until after this look; raises where it does not sight what a run of it would."""
        values: dict[Series, Value] = {(f"commwatch_{name}", SLOT): value for name, value in numbers.items()}
        layout = self._layouts.setdefault(tuple(values), Layout(values))
        sighted = self.looking.at(Snapshot([Block(layout, tuple(values.values()), 0.0)]), NOW + second)
        try:
            assert sighted == list(self._look(self.looking.facts, shipped()))
        except ZeroDivisionError:
            assert sighted == []
        return self.times


def states(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """GPUs with a state."""
    return [Sighting("sighted", NODE, (), f"{state:g}") for _, state in facts.each(Gpu.state) if state]


def test_a_rule_is_run_when_what_it_reads_changes() -> None:
    """A fault appears, changes, is absent, comes back and goes away; what it does not read moves all the time."""
    rule = Ran(states)

    assert rule.at(0, gpu_state=0, nvlink_links=1) == 1
    assert rule.at(10, gpu_state=0, nvlink_links=2) == 1
    assert rule.at(20, gpu_state=2, nvlink_links=3) == 2
    assert rule.at(30, gpu_state=2, nvlink_links=4) == 2, "what it sights while all stays it sights without being run"
    assert rule.at(40, gpu_state=3, nvlink_links=4) == 3
    assert rule.at(50, gpu_state=None, nvlink_links=5) == 4
    assert rule.at(60, gpu_state=2, nvlink_links=6) == 5
    assert rule.at(70, nvlink_links=7) == 6, "its series are gone"
    assert rule.at(80, nvlink_links=8) == 6
    assert rule.at(90, gpu_state=2, nvlink_links=8) == 7
    assert rule.at(100, gpu_state=0, nvlink_links=9) == 8


def test_a_rule_that_asks_for_the_time_is_run_at_each_look() -> None:
    """By itself or by what it derives, also where another one has derived that; while it does not ask it is not."""

    def late(facts: Facts) -> bool:
        return facts.now > NOW + 25

    def aged(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
        if any(state for _, state in facts.each(Gpu.state)) and facts.derived(late) and facts.derived(late):
            yield Sighting("sighted", NODE, ())

    rule = Ran(aged)

    assert [rule.at(second, gpu_state=0) for second in (0, 10)] == [1, 1]
    assert [rule.at(second, gpu_state=1) for second in (20, 30, 40)] == [2, 3, 4]
    assert [rule.at(second, gpu_state=0) for second in (50, 60)] == [5, 5]


def test_a_rule_over_a_counter_that_moved_is_run_until_that_is_forgotten() -> None:
    """What rose in a window falls out of it by time alone."""

    def rising(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
        return [Sighting("sighted", NODE, (), f"{rise:g}") for _, rise in facts.rises(Gpu.pcie_replays, 30.0)]

    rule = Ran(rising)

    assert [rule.at(second, pcie_replays_total=5) for second in (0, 10)] == [1, 1]
    assert [rule.at(second, pcie_replays_total=6) for second in (20, 30, 40, 50, 60, 70, 80)] == [2, 3, 4, 5, 6, 7, 8]
    assert [rule.at(second, pcie_replays_total=6) for second in (90, 100)] == [8, 8]


def test_a_rule_that_failed_is_run_again() -> None:
    """Each look that fails is counted."""

    def broken(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
        return [Sighting("sighted", NODE, (), f"{1 / state:g}") for _, state in facts.each(Gpu.state)]

    rule = Ran(broken)

    assert [rule.at(second, gpu_state=0) for second in (0, 10, 20)] == [1, 2, 3]
    assert rule.looking.failing
    assert [rule.at(second, gpu_state=1) for second in (30, 40)] == [4, 4]
    assert not rule.looking.failing


def any_pages(dice: Random) -> Callable[[], list[Block]]:
    """A page of three GPUs with any numbers; each call moves some of them, and now and then its layouts."""
    names = {label: dice.choice(values) for label, values in LABELS.items()}
    absent = dice.choice((0.05, 0.5))
    numbers: dict[str, dict[tuple[str, ...], Value]] = {}
    for metric in CATALOGUE.values():
        if metric.type != "histogram" and dice.random() >= absent:
            labels = [tuple({**names, **gpu}.get(label, "1") for label in metric.labels) for gpu in GPUS]
            numbers[metric.name] = {one: dice.choice(NUMBERS) for one in labels}
    layouts: dict[tuple[Series, ...], Layout] = {}
    hidden: set[str] = set()

    def page() -> list[Block]:
        for metric in dice.sample(sorted(numbers), k=dice.choice((0, 1, 3, 30))):
            for labels, value in numbers[metric].items():
                is_counter = CATALOGUE[metric].type == "counter"
                moved = (value or 0.0) + dice.choice(RISES) if is_counter else dice.choice(NUMBERS)
                numbers[metric][labels] = None if dice.random() < 0.1 else moved
        if dice.random() < 0.1:
            hidden.symmetric_difference_update(dice.sample(sorted(numbers), k=3))
        blocks = []
        for group in range(3):
            values = {
                (metric, labels): value
                for place, (metric, series) in enumerate(numbers.items())
                for labels, value in series.items()
                if place % 3 == group and metric not in hidden
            }
            layout = layouts.setdefault(tuple(values), Layout(values))
            blocks.append(Block(layout, list(values.values()), 0.0))
        return blocks

    return page


@given(seed=st.integers(0, 2**32))
@examples(20)
def test_a_look_gives_what_a_look_with_all_rules_gives(seed: int) -> None:
    """On pages of any numbers of which some move, over looks that lie seconds, minutes or hours apart."""
    dice = Random(seed)  # noqa: S311 - hypothesis chooses
    page, now = any_pages(dice), NOW
    failed: dict[bool, list[str]] = {True: [], False: []}
    some = Looking(RULE_SETS, shipped(), CounterHistory(WATCHED, EVENTS), lambda name, _: failed[False].append(name))
    whole = Looking(RULE_SETS, shipped(), CounterHistory(WATCHED, EVENTS), lambda name, _: failed[True].append(name))
    for _ in range(12):
        now += dice.choice((10.0, 10.0, 10.0, 300.0, 4000.0))
        snapshot = Snapshot(page())
        whole._sighted = [None] * len(whole._sighted)
        assert some.at(snapshot, now) == whole.at(snapshot, now)
        assert failed[False] == failed[True]
