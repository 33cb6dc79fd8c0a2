"""A loss of bandwidth stays until the level is back or somebody accepts the new one; latency is judged at once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from commwatch.probes.results.expected import Expected
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.record import ProbeRecord
from probes.recorded import FIRM, GPUS, LIMITS, Foreseen, Probe, probe_of
from probes.results import MIB, measured, plan_of
from probes.test_expected import switched, two_switches
from support.passes import in_one_pass

USUAL = 1e-2
EDGE = USUAL / 0.85
WIDE = replace(FIRM, bytes_per_second=0.9 * MIB / USUAL)
"""An expectation of which the usual result is 111 %."""


def restarted(probe: Probe) -> Probe:
    """The same probe after a restart of the daemon."""
    history = msgspec.json.decode(msgspec.json.encode(probe.record.history), type=ProbeHistory)
    after = Probe(probe.plan, history=history)
    after.now = probe.now
    return after


def results(probe: Probe, count: int, seconds: float, expected: Expected | None = WIDE) -> Probe:
    """So many results of one bandwidth."""
    for _ in range(count):
        probe.result(bandwidth=seconds, expected=expected)
    return probe


@in_one_pass("seconds, count, losses", [(EDGE, 3, 1), (EDGE, 2, 0), (0.999 * EDGE, 300, 0)])
def test_three_results_in_a_row_at_the_edge_are_a_loss(seconds: float, count: int, losses: int) -> None:
    """15 % below the own level three times; twice is none, and neither is a little less however often."""
    probe = results(Probe(), 20, USUAL)

    results(probe, count, seconds)

    assert probe.value("losses") == losses


def test_a_loss_has_both_numbers_and_its_begin() -> None:
    """A third of the bandwidth: what it was, what it is, and when the first bad result came."""
    probe = results(Probe(), 20, USUAL)
    began = probe.now + 900

    results(probe, 3, 1.5 * USUAL)

    series = probe.series()
    assert series["loss_ratio", "all_reduce 2"] == pytest.approx(1 / 3)
    assert series["loss_level_bytes_per_second", "all_reduce 2"] == pytest.approx(MIB / USUAL)
    assert series["loss_bandwidth_bytes_per_second", "all_reduce 2"] == pytest.approx(MIB / USUAL / 1.5)
    assert series["loss_since_timestamp_seconds", "all_reduce 2"] == began
    assert len(probe.record.loss_sentences()) == 1


def test_a_loss_does_not_close_by_lasting() -> None:
    """Ten days later, over restarts, another NCCL, and without a current result it is as open as at first."""
    probe = results(Probe(), 120, USUAL)
    for _ in range(10):
        probe = restarted(results(probe, 96, 1.5 * USUAL))
    level = probe.value("loss_level_bytes_per_second", "all_reduce 2")

    probe.steps(1e-3, 1.5 * USUAL, expected={1: WIDE}, nccl_version="2.99.1")

    assert level == pytest.approx(MIB / USUAL)
    assert probe.value("losses", after=7 * 86400.0) == 1
    assert probe.value("loss_level_bytes_per_second", "all_reduce 2", after=7 * 86400.0) == level


def test_a_loss_closes_once_the_level_is_back() -> None:
    """After three good results in a row; a bad one between them begins the count again."""
    probe = results(results(Probe(), 20, USUAL), 3, 1.5 * USUAL)

    results(probe, 2, USUAL)
    assert probe.record.suspicious  # the next result comes soon
    results(probe, 1, 1.5 * USUAL)
    results(probe, 2, USUAL)
    assert probe.value("losses") == 1
    results(probe, 1, USUAL)

    assert probe.value("losses") == 0
    assert ("loss_ratio", "all_reduce 2") not in probe.series()


@pytest.mark.parametrize(("factor", "losses"), [(2.5, 0), (1.5, 1)], ids=["far too low", "only lost"])
def test_a_loss_that_another_finding_stood_for_does_not_begin_with_the_first_good_result(
    factor: float, losses: int
) -> None:
    """Results far below what is expected were reported as such, which ends now; a bad one shows the loss again."""
    probe = results(results(Probe(), 20, USUAL), 3, factor * USUAL)
    assert probe.value("losses") == 1

    results(probe, 1, USUAL)
    assert probe.value("losses") == losses
    probe = restarted(probe)
    results(probe, 1, USUAL)
    assert probe.value("losses") == losses
    results(probe, 1, factor * USUAL)
    assert probe.value("losses") == 1
    results(probe, 3, USUAL)
    assert probe.value("losses") == 0


def test_the_fall_of_a_gpu_does_not_make_what_is_lost_the_usual() -> None:
    """Eight GPUs, one is gone for an hour, and comes back slow: the level of eight is not learned again."""
    probe = results(Probe(), 20, USUAL)
    for ranks, seconds in ((3, 2 * USUAL), (2, 1.5 * USUAL)):
        probe.plan = plan_of(ranks=ranks)
        probe.record.adopt_plan(probe.plan)
        results(probe, 4, seconds, None)

    assert probe.value("losses") == 1


@pytest.mark.parametrize("changes", [{"bandwidth_bytes": 2 * MIB}, {"measure": "all_gather"}])
def test_a_loss_of_what_is_not_configured_any_more_is_open_only_while_it_is(changes: dict[str, Any]) -> None:
    """Another size or operation: nothing measures the loss. It is open again with its begin when both are back."""
    probe = results(results(Probe(), 20, USUAL), 3, 1.5 * USUAL)
    before = probe.series()["loss_since_timestamp_seconds", "all_reduce 2"]
    plan = probe.plan

    probe.record.adopt_plan(plan_of(**changes))
    assert (probe.value("losses"), probe.value("unmeasured_losses")) == (0, 1)
    assert not [key for key in probe.series() if key[0] == "loss_ratio"]
    assert probe.record.loss_sentences() == []

    probe.record.adopt_plan(plan)
    assert (probe.value("losses"), probe.value("unmeasured_losses")) == (1, None)
    assert probe.series()["loss_since_timestamp_seconds", "all_reduce 2"] == before


@in_one_pass("key", ["", "all_reduce", "all_reduce x2 many all_reduce 2", "all_reduce x2 " + "9" * 5000])
def test_a_loss_that_a_damaged_state_names_otherwise_is_not_measured(key: str) -> None:
    """It keeps no other number from being shown."""
    probe = results(results(Probe(), 20, USUAL), 3, 1.5 * USUAL)

    [level] = probe.record.history.levels.values()
    probe.record.history.levels = {key: level}

    assert (probe.value("losses"), probe.value("unmeasured_losses")) == (0, 1)


def test_an_accepted_loss_is_the_level() -> None:
    """It is given up with both numbers, stays accepted over a restart, and a further loss is one."""
    probe = results(results(Probe(), 120, USUAL), 4, 1.5 * USUAL)

    [sentence] = probe.record.accept()

    assert sentence.startswith("probe ring: all_reduce 2 gives ")
    assert probe.value("losses") == 0
    probe = restarted(probe)
    results(probe, 200, 1.5 * USUAL)
    assert probe.value("losses") == 0
    results(probe, 3, 1.8 * USUAL)
    assert probe.value("losses") == 1
    assert probe.record.accept() != []
    assert probe.record.accept() == []


def test_an_accepted_loss_is_learned_again_in_the_place_of_a_model() -> None:
    """What was learned of the first day is given up too: else the new level would stay below 60 % of it."""
    model = Expected(MIB / USUAL / 2, "model", "for the test")
    probe = results(results(Probe(), 120, USUAL, model), 3, 2 * USUAL, model)
    assert probe.value("low_bandwidth_streak") == 3

    probe.record.accept()
    results(probe, 3, 2 * USUAL, model)

    assert (probe.value("low_bandwidth_streak"), probe.value("losses")) == (0, 0)


def test_one_copy_of_many_is_lost() -> None:
    """Each GPU and direction has a level of its own, and the worst one is first."""
    probe = Probe(plan_of("host_copies", 2))
    for _ in range(6):
        probe.steps(1e-3, 1e-3, 1e-3, 1e-3)
    for _ in range(3):
        probe.steps(1e-3, 1e-3, 1.3e-3, 2e-3)

    assert [one.name for one in probe.record.losses] == ["device_to_host 0000:17:00.0", "host_to_device 0000:17:00.0"]
    assert probe.value("losses") == 2


def test_noise_is_no_loss() -> None:
    """Of 8 %, on 20 nodes for three days each, from their first results on."""
    for node in range(20):
        source, probe = random.Random(node), Probe()  # noqa: S311 - always the same
        for _ in range(3 * 96):
            results(probe, 1, USUAL * source.lognormvariate(0.0, 0.08), None)
            assert probe.record.losses == ()


# --- 60 to 85 % of what is expected ---


@in_one_pass(
    "source, share, streak",
    [
        ("configured", 0.849, 3),
        ("reference", 0.849, 3),
        ("model", 0.849, 3),
        ("reference", 0.851, 0),
        ("learned", 0.7, 0),
    ],
)
def test_results_short_of_what_is_expected_are_counted(source: str, share: float, streak: int) -> None:
    """Just below 85 % they are, just above they are not; what was learned has the level in its place."""
    expected = msgspec.convert({"bytes_per_second": MIB / USUAL, "source": source, "basis": ""}, Expected)

    probe = results(Probe(), 3, USUAL / share, expected)

    assert probe.value("short_bandwidth_streak") == streak
    assert probe.value("low_bandwidth_streak") == 0


# --- latency from the first day ---


class Small:
    """The small calls of eight GPUs behind NVSwitches, or of four over PCIe, a cycle each 15 minutes."""

    def __init__(self, gpu: str = "H100 80GB HBM3", latency_limit: float | None = None) -> None:
        self.paths = switched(gpu) if gpu else two_switches()
        self.plan = plan_of(ranks=len(self.paths.addresses))
        self.record = ProbeRecord(self.plan, probe_of(latency_limit), LIMITS)
        self.now = 1e6

    def take(self, latency: float, bandwidth: float = USUAL, expected: Expected | None = None) -> None:
        self.now += 900
        result = measured(self.plan, self.now, (latency, bandwidth))
        known = {} if expected is None else {1: expected}
        planned = Foreseen(self.plan, GPUS[: self.plan.ranks], paths=self.paths, expectations=known)
        self.record.take(result, self.now, planned)

    def cycles_to_ticket(self, latency: float, most: int = 10) -> int | None:
        for cycle in range(1, most + 1):
            self.take(latency)
            if self.record.history.latency_streak.count >= LIMITS.probe_latency_spike_streak:
                return cycle
        return None


@pytest.mark.parametrize("factor", [3, 8])
def test_a_latency_that_is_slow_from_the_first_minute_is_a_ticket_in_three_cycles(factor: int) -> None:
    """Of 10 µs, which such a node gives: three times and eight times; and it becomes no baseline."""
    node = Small()

    assert node.cycles_to_ticket(factor * 10.1e-6) == 3
    for _ in range(100):
        node.take(factor * 10.1e-6)
    assert node.record.history.courses["latency"].good == ()
    assert node.record.is_learning


KNOWN, MODELLED = ("H100 80GB HBM3",), ("B200", "")
"""GPUs whose latency is published, and those that a model stands for."""


@in_one_pass(
    "gpus, before, later, cycles",
    [
        # Three times as long later: from the third result of a node's life on it is judged by its own first ones.
        *[((*KNOWN, *MODELLED), [1.0] * healthy, 3.0, 3) for healthy in (2, 5, 40)],
        # One result as a model has it is enough to see what comes later: the model fits this machine then.
        (MODELLED, [1.0], 8.0, 3),
        (MODELLED, [1.0], 3.3, 3),
        (MODELLED, [1.0], 3.2, None),
        # Of a result that the model does not confirm it is unknown whether it is usual.
        (MODELLED, [3.0], 20.0, None),
        # 12 to 20 µs are reported of healthy nodes of 8 GPUs over NVLink.
        (KNOWN, [], 1.19, None),
        (KNOWN, [], 1.98, None),
        (KNOWN, [], 2.46, None),
    ],
)
def test_a_latency_that_becomes_longer_is_a_ticket_in_three_cycles(
    gpus: tuple[str, ...], before: list[float], later: float, cycles: int | None
) -> None:
    """In times of 10.1 µs."""
    for gpu in gpus:
        node = Small(gpu)
        for one in before:
            node.take(one * 10.1e-6)
        assert node.cycles_to_ticket(later * 10.1e-6) == cycles


@in_one_pass("gpu, factor, streak", [("B200", 3, 3), ("B200", 8, 3), ("", 3, 3), ("B200", 2, 0)])
def test_a_model_gives_information_and_no_ticket(gpu: str, factor: float, streak: int) -> None:
    """What is above a model's value may be usual for this machine: it is counted apart, and is the baseline."""
    node = Small(gpu)

    assert node.cycles_to_ticket(factor * 10.1e-6, most=3) is None
    assert node.record.history.above_model_streak.count == streak
    assert node.cycles_to_ticket(3 * factor * 10.1e-6) == 3


def test_the_limit_of_the_configuration_stands_above_what_is_published() -> None:
    """A machine that takes 40 µs says so, and is judged by that and by its own results."""
    node = Small(latency_limit=50e-6)

    assert node.cycles_to_ticket(40e-6) is None
    assert node.record.history.courses["latency"].good


def test_a_latency_of_a_cycle_with_low_bandwidth_is_no_baseline() -> None:
    """What makes the bandwidth low may have made the latency long."""
    node = Small("B200")

    for _ in range(5):
        node.take(10.1e-6, 4 * USUAL, FIRM)

    assert node.record.history.courses["latency"].good == ()


def test_a_latency_above_a_published_one_that_does_not_fit_can_be_accepted() -> None:
    """27 µs, where at most 25 are published: a ticket until somebody takes it, then judged by the own results."""
    node = Small()
    assert node.cycles_to_ticket(27e-6) == 3

    assert node.record.accept() != []

    assert node.cycles_to_ticket(27e-6) is None
    assert node.cycles_to_ticket(3 * 27e-6) == 3
