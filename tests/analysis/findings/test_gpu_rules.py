"""GPUs: each bad state is told as what it is; clocks that are held down count while the GPU communicates."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from support.facts import Numbers, codes_by, facts_of, is_judged, seen_by
from support.passes import in_one_pass

GPU0 = ("0", "0000:17:00.0")
IDENTITY = "gpu/0000:17:00.0"
REASONS = "commwatch_gpu_clocks_event_reason"
PEAK = "commwatch_nvlink_transmit_utilization_peak_ratio"
BUSY = "commwatch_gpu_busy"
HOT: Numbers = {REASONS: {(*GPU0, "hw_thermal_slowdown"): 1.0}}


@in_one_pass("state, code", [(1, "gpu_not_answering"), (2, "gpu_lost"), (3, "gpu_reset_required"), (4, "gpu_missing")])
def test_each_bad_state_is_a_finding_of_its_own(state: int, code: str) -> None:
    """What to do differs: a lost GPU needs a power cycle, a missing one may have been taken out."""
    assert codes_by("gpu_not_answering", facts_of({"commwatch_gpu_state": {GPU0: state}})) == [(code, IDENTITY)]


@pytest.mark.parametrize(("failing", "evidence"), [({GPU0: 1.0}, "all fail"), ({}, None)])
def test_a_gpu_that_fails_every_call_is_told_from_one_that_hangs(
    failing: Mapping[tuple[str, ...], float], evidence: str | None
) -> None:
    """The scheduler takes the node at once from the first one only."""
    numbers: Numbers = {"commwatch_gpu_state": {GPU0: 1.0}, "commwatch_gpu_calls_failing_timestamp_seconds": failing}
    facts = facts_of(numbers)

    [match] = seen_by("gpu_not_answering", facts)

    assert {fact.what: fact.value for fact in match.evidence}.get("calls of the driver about it") == evidence


def test_a_gpu_that_is_well_or_unknown_is_no_finding() -> None:
    """State 0, and no state at all, as while the driver is not loaded."""
    assert seen_by("gpu_not_answering", facts_of({"commwatch_gpu_state": {GPU0: 0}})) == []
    assert seen_by("gpu_not_answering", facts_of({})) == []


def test_gpus_of_which_little_is_known_stay_apart() -> None:
    """One that was replaced has no index, one that never answered has no address."""
    facts = facts_of({"commwatch_gpu_state": {("", "0000:17:00.0"): 4, ("3", ""): 1}})

    assert [(one.component.identity, one.component.words) for one in seen_by("gpu_not_answering", facts)] == [
        ("gpu/0000:17:00.0", "0000:17:00.0"),
        ("gpu/index:3", "GPU3 (index:3)"),
    ]


def test_a_gpu_without_an_address_says_which_it_may_have() -> None:
    """Nothing is made up, and whoever goes there need not look at eight."""
    possible = {("3", "", "0000:17:00.0"): 1.0, ("3", "", "0000:18:00.0"): 1.0}

    [match] = seen_by(
        "gpu_not_answering",
        facts_of({"commwatch_gpu_state": {("3", ""): 2}, "commwatch_gpu_possible_address": possible}),
    )

    assert [fact.value for fact in match.evidence] == ["lost", "0000:17:00.0, 0000:18:00.0"]


def test_what_the_driver_asks_for_is_told_in_words() -> None:
    """A number of a newer driver is told as the number; 0 asks for nothing."""
    needed, other = "gpu_recovery_needed", "gpu_recovery_other"
    for action, code, words in (
        (1, needed, "GPU reset"), (2, needed, "node reboot"), (3, needed, "drain P2P"), (4, needed, "drain and reset"),
        (5, other, "recover the IMEX domain"), (6, needed, "bus reset"), (7, needed, "system reboot"),
        (8, other, "unknown (8)"), (255, other, "unknown (255)"),
    ):  # fmt: skip
        [match] = seen_by("gpu_recovery_needed", facts_of({"commwatch_gpu_recovery_action": {GPU0: action}}))
        assert (match.code, match.detail) == (code, words)
    assert seen_by("gpu_recovery_needed", facts_of({"commwatch_gpu_recovery_action": {GPU0: 0}})) == []
    assert seen_by("gpu_recovery_needed", facts_of({})) == []


def test_clocks_held_down_count_while_the_gpu_communicates() -> None:
    """At 1 % of its capacity in the last minute it does, just below it does not."""
    [match] = seen_by("gpu_slowed_down", facts_of({**HOT, PEAK: {GPU0: 0.01}}))

    assert (match.code, match.component.identity) == ("gpu_slowed_down", IDENTITY)
    assert match.evidence[1].threshold_origin == "gpu_communicates_ratio"
    assert seen_by("gpu_slowed_down", facts_of({**HOT, PEAK: {GPU0: 0.0099}, BUSY: {GPU0: 1}})) == []


def test_the_busier_direction_and_link_counts() -> None:
    """PCIe alone is communication too."""
    quiet: Numbers = {PEAK: {GPU0: 0.0}}
    copies: Numbers = {"commwatch_pcie_receive_utilization_peak_ratio": {GPU0: 0.5}}

    assert len(seen_by("gpu_slowed_down", facts_of({**HOT, **quiet, **copies}))) == 1


def test_where_traffic_is_not_read_a_busy_gpu_counts() -> None:
    """Without any of it nothing is known and nothing is said."""
    assert len(seen_by("gpu_slowed_down", facts_of({**HOT, BUSY: {GPU0: 1}}))) == 1
    assert seen_by("gpu_slowed_down", facts_of({**HOT, BUSY: {GPU0: 0}})) == []
    assert seen_by("gpu_slowed_down", facts_of(HOT)) == []


def test_little_in_samples_of_pcie_does_not_show_that_a_busy_gpu_moves_little() -> None:
    """Without a count of bytes they are samples, which miss most of a minute; much in them is much."""
    copies, counted = "commwatch_pcie_receive_utilization_peak_ratio", "commwatch_pcie_transmit_bytes_total"
    for peak, more, found in ((0.0099, {}, ["GPU"]), (0.01, {}, ["highest use of NVLink or PCIe in the last minute"]),
                              (0.0099, {counted: {GPU0: 1.0}}, []), (0.0099, {PEAK: {GPU0: 0.0}}, []),
                              (0.0099, {BUSY: {GPU0: 0}}, [])):  # fmt: skip
        facts = facts_of({**HOT, BUSY: {GPU0: 1}, copies: {GPU0: peak}, **more})
        assert [match.evidence[1].what for match in seen_by("gpu_slowed_down", facts)] == found


@in_one_pass("reason", ["gpu_idle", "sw_power_cap", "applications_clocks_setting", "sync_boost"])
def test_how_a_healthy_gpu_works_is_no_slowdown(reason: str) -> None:
    """The power cap is where a busy GPU lives."""
    facts = facts_of({REASONS: {(*GPU0, reason): 1.0, (*GPU0, "hw_slowdown"): 0.0}, PEAK: {GPU0: 0.9}})

    assert seen_by("gpu_slowed_down", facts) == []


GPU1 = ("1", "0000:2a:00.0")


def brake(*gpus: tuple[str, str], idle: tuple[tuple[str, str], ...] = (), hot: bool = False) -> Numbers:
    """GPUs at power brake, others that are not, the first of which is hot or not; all communicate."""
    brakes = {(*gpu, "hw_power_brake_slowdown"): float(gpu in gpus) for gpu in (*gpus, *idle)}
    held = {(*gpu, "hw_slowdown"): 1.0 for gpu in gpus}
    return {
        REASONS: {**brakes, **held, (*gpus[0], "hw_thermal_slowdown"): float(hot)},
        PEAK: dict.fromkeys((*gpus, *idle), 0.5),
    }


def test_a_power_brake_on_all_gpus_is_one_fault_of_the_chassis() -> None:
    """Not one for each GPU; on some of them it is theirs, and a single GPU is no chassis."""
    [chassis] = seen_by("gpu_slowed_down", facts_of(brake(GPU0, GPU1)))

    assert (chassis.component.identity, chassis.detail) == ("node", "power brake from outside, on all 2 GPUs")
    assert codes_by("gpu_slowed_down", facts_of(brake(GPU0, idle=(GPU1,)))) == [("gpu_slowed_down", IDENTITY)]
    assert codes_by("gpu_slowed_down", facts_of(brake(GPU0))) == [("gpu_slowed_down", IDENTITY)]


def test_a_hot_gpu_is_named_beside_the_chassis() -> None:
    """Its heat is another fault than the brake."""
    found = seen_by("gpu_slowed_down", facts_of(brake(GPU0, GPU1, hot=True)))

    assert [(one.component.identity, one.detail) for one in found[1:]] == [(IDENTITY, "too hot, by the hardware")]


def test_a_brake_of_the_chassis_closes_once_no_gpu_is_held() -> None:
    """In idle it stays as it is, as that of a GPU does."""
    [chassis] = seen_by("gpu_slowed_down", facts_of(brake(GPU0, GPU1)))
    quiet: Numbers = {PEAK: {GPU0: 0.0, GPU1: 0.0}}

    assert not is_judged(chassis, facts_of({**brake(GPU0, GPU1), **quiet}))
    assert is_judged(chassis, facts_of({REASONS: {(*GPU0, "hw_power_brake_slowdown"): 0.0}}))


def test_a_brake_that_holds_in_idle_is_still_there() -> None:
    """The finding waits for traffic while the reason holds, and closes once it has gone."""
    [match] = seen_by("gpu_slowed_down", facts_of({**HOT, PEAK: {GPU0: 0.5}}))

    assert not is_judged(match, facts_of({**HOT, PEAK: {GPU0: 0.0}}))
    assert is_judged(match, facts_of({**HOT, PEAK: {GPU0: 0.5}}))
    assert is_judged(match, facts_of({REASONS: {(*GPU0, "hw_thermal_slowdown"): 0.0}}))
