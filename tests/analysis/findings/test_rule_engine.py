"""One evaluation: what the rules are given, what they say of themselves, and how the history is fed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from commwatch.config.thresholds import Thresholds
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Match
from commwatch.findings.history import CounterHistory
from commwatch.findings.rule_engine import TIDY_SECONDS, RuleEngine
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node.model import Node, NvLink
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value
from support.facts import NOW, facts_of, metrics_of_details, seen_in, shipped

STATE, RECOVERIES = "commwatch_nvlink_link_state", "commwatch_nvlink_recoveries_total"
REPLAYS = "commwatch_pcie_replays_total"
LINK = Component("nvlink", "0000:17:00.0/3", parts=frozenset({"0000:17:00.0"}))


def code(name: str) -> FindingCode:
    return FindingCode(name, name, "warning", "fault", "meaning", "next step")


def inactive(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links that are inactive."""
    for _, state in facts.each(NvLink.state):
        if state == 0 and facts.node.part(NvLink, "0000:17:00.0", "3").recoveries is None:
            yield Match("link_out", LINK, ())


def recovered(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links that recovered."""
    yield from [Match("link_back", LINK, ()) for _ in facts.rises(NvLink.recoveries, 3600.0)]


def failing(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """A rule with a defect."""
    raise KeyError("link")


LINKS = RuleSet(
    "links",
    (code("link_out"), code("link_back")),
    (
        Rule(inactive, ("link_out",), (NvLink.state, NvLink.recoveries)),
        Rule(recovered, ("link_back",), (NvLink.recoveries,)),
    ),
    {NvLink.recoveries: 3600.0},
)


def engine(*rule_sets: RuleSet) -> RuleEngine:
    history = CounterHistory({RECOVERIES: 3600.0, REPLAYS: 3600.0})
    return RuleEngine(rule_sets, shipped(), history, lambda name, error: None)


def snapshot(values: Mapping[Series, Value], layout: Layout | None = None) -> Snapshot:
    return Snapshot([Block(layout or Layout(values), list(values.values()), 0.0)])


def of_link(metric: str, link: str = "3") -> Series:
    return (metric, ("0", "0000:17:00.0", link))


def test_a_rule_with_a_defect_sees_nothing_for_certain() -> None:
    """Its codes are not known to be gone; those of other rules are, whether matched before or not."""
    broken = RuleSet("broken", (code("unknown"),), (Rule(failing, ("unknown",), (NvLink.state,)),))
    rules = engine(LINKS, broken)
    rules.evaluate(snapshot({of_link(STATE): 1}), NOW)

    assert rules.failing == {"test_rule_engine.failing"}
    assert rules.reads_of("unknown") is None
    assert rules.reads_of("link_out") == (STATE, RECOVERIES)
    assert rules.reads_of("link_back") == (RECOVERIES,)


def test_a_code_of_another_rule_is_a_defect() -> None:
    """What closes it would not be known; the rule matches nothing."""
    crossed = RuleSet("crossed", LINKS.codes, (Rule(inactive, ("link_back",), (NvLink.state, NvLink.recoveries)),))
    rules = engine(crossed)

    assert rules.evaluate(snapshot({of_link(STATE): 0}), NOW) == []
    assert rules.failing == {"test_rule_engine.inactive"}


def test_the_history_takes_what_moved() -> None:
    """Also from blocks of which another number moved, and of a counter that is read for the first time later."""
    rules = engine(LINKS)
    values: dict[Series, Value] = {of_link(STATE): 1, of_link(RECOVERIES): 5, of_link(RECOVERIES, "4"): None}
    layout = Layout(values)

    def at(second: float, three: Value, four: Value, state: int = 1) -> list[str]:
        values.update({of_link(STATE): state, of_link(RECOVERIES): three, of_link(RECOVERIES, "4"): four})
        return [one.code for one in rules.evaluate(snapshot(values, layout), NOW + second)]

    assert at(0, 5, None) == []
    assert at(10, 5, None, state=2) == []
    assert at(20, 5, 7) == []
    assert at(30, 5, 8) == ["link_back"]
    assert at(40, 6, 8) == ["link_back"] * 2
    assert at(50, None, 8) == ["link_back"], "what is not read now matches nothing"
    assert at(60, 6, 8) == ["link_back"] * 2
    assert at(3630, 6, 8) == ["link_back"]
    assert at(3650, 6, 8) == []


def test_counters_of_devices_that_are_gone_are_forgotten() -> None:
    """Once an hour: a device that comes back with another number has not counted it here."""
    rules = engine(LINKS)
    rules.evaluate(snapshot({of_link(RECOVERIES): 5}), NOW)
    rules.evaluate(snapshot({of_link(STATE): 1}), NOW + TIDY_SECONDS)

    assert rules.evaluate(snapshot({of_link(RECOVERIES): 9}), NOW + TIDY_SECONDS + 10) == []


def test_a_node_shows_each_snapshot_as_it_is() -> None:
    """Labels are kept, numbers are not; a block that has gone, and one that has come, are noticed."""
    node, first, second = Node(), Layout([of_link(STATE), of_link(STATE, "4")]), Layout([of_link(STATE, "5")])

    def shown(*blocks: Block) -> list[tuple[str, float]]:
        node.show(Snapshot(blocks))
        found = [(link.number, number) for link, number in node.each(NvLink.state)]
        assert found == [(labels["link"], number) for labels, number in Snapshot(blocks).samples(STATE)]
        single = [(link, node.part(NvLink, "0000:17:00.0", link).state) for link in ("3", "4", "5")]
        assert [(link, number) for link, number in single if number is not None] == found
        return found

    assert shown(Block(first, [1, None], 0.0)) == [("3", 1)]
    assert shown(Block(first, [0, 2], 1.0), Block(second, [3], 1.0)) == [("3", 0), ("4", 2), ("5", 3)]
    assert shown(Block(second, [1], 2.0)) == [("5", 1)]
    assert shown(Block(first, [1, 1], 3.0)) == [("3", 1), ("4", 1)]


def test_a_node_hides_what_is_not_exposed() -> None:
    """Rules read what users can see."""
    node = Node(Snapshot([Block(Layout([of_link(STATE)]), [1], 0.0)], hidden={STATE}))

    assert list(node.each(NvLink.state)) == []
    assert node.part(NvLink, "0000:17:00.0", "3").state is None


def test_a_finding_closes_by_what_shows_it() -> None:
    """Parts, names and numbers beside it, as of the GPUs under a slow probe, need not be read for that."""
    rules = engine(*RULE_SETS)

    assert rules.reads_of("probe_latency_high") == ("commwatch_probe_latency_spike_streak",)
    assert rules.reads_of("rdma_counter_saturated") == ("commwatch_counters_anomaly",)


def test_what_pages_is_what_the_design_lets_page() -> None:
    """Whoever makes another code critical wakes someone: this list is changed with care."""
    assert {code.name for code in CODES.values() if code.severity == "critical"} == {
        "parts_never_seen", "driver_mismatch", "driver_not_loaded", "driver_refused", "driver_without_gpus",
        "driver_failing", "driver_calls_failing", "driver_silent",
        "gpu_not_answering", "gpu_lost", "gpu_reset_required", "gpu_missing", "gpu_not_listed", "gpu_recovery_needed",
        "fabric_unhealthy", "fabric_not_joined", "nvlink_down", "nvlink_recovery_failed", "nvlink_flapping",
        "pcie_width_dropped", "pcie_fatal", "xid_fabric", "xid_fatal", "sxid_fatal", "adapter_failed",
        "rdma_port_down", "rdma_port_flapping",
        "probe_wrong_result", "cluster_leaf_failing", "source_unread",
    }  # fmt: skip


def test_nothing_read_is_nothing_found() -> None:
    """A node without GPUs, or a driver that is not there."""
    assert seen_in(facts_of({})) == []


def test_each_code_has_one_rule() -> None:
    """A finding closes by what this rule reads: metrics of the catalogue, each once, and thresholds that are there."""
    rules = [rule for rules in RULE_SETS for rule in rules.rules]

    assert sorted(name for rule in rules for name in rule.codes) == sorted(CODES)
    for rule in rules:
        metrics = (*rule.metrics_read, *metrics_of_details(rule))
        assert rule.reads
        assert len(set(metrics)) == len(metrics)
        assert set(metrics) <= CATALOGUE.keys()
        assert set(rule.thresholds) <= {field.name for field in fields(Thresholds)}


def test_rules_have_names_of_their_own() -> None:
    """Their failures are counted by name."""
    names = [rule.name for rules in RULE_SETS for rule in rules.rules]

    assert sorted(set(names)) == sorted(names)
