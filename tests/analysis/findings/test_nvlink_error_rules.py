"""Errors on NVLinks: each counter against its floor, over its window, and not on what is not read."""

from __future__ import annotations

import pytest

from commwatch.findings.codes import CODES
from commwatch.findings.finding import Match
from support.facts import DAY, HOUR, Numbers, codes_by, codes_of, facts_of, seen_by

LINK = ("0", "0000:17:00.0", "3")
IDENTITY = "nvlink/0000:17:00.0/3"
RATIO = "commwatch_nvlink_effective_bit_error_ratio"
CAPACITY: Numbers = {
    "commwatch_nvlink_capacity_bytes_per_second": {("0", "0000:17:00.0"): 50e9},
    "commwatch_nvlink_link_expected": {LINK: 1.0},
}
"""One link of 50 GB/s: 2.4e14 bits in 10 min, of which 240 may be wrong."""


def risen(rule: str, metric: str, *rises: tuple[float, float], more: Numbers | None = None) -> list[Match]:
    """What is matched of a counter that rose so many seconds ago by so much; before that it stood at 1000."""
    value, history = 1000.0, {DAY - 1.0: {metric: {LINK: 1000.0}}}
    for ago, rise in sorted(rises, reverse=True):
        value += rise
        history[ago] = {metric: {LINK: value}}
    return seen_by(rule, facts_of({metric: {LINK: value}, **(more or {})}, history))


@pytest.mark.parametrize("metric", ["commwatch_nvlink_recovery_errors_total", "commwatch_nvlink_recoveries_total"])
def test_a_link_that_retrains_again_and_again_is_found(metric: str) -> None:
    """Three times in an hour or ten times in a day; fewer are for the record, and only in the hour after them."""
    assert codes_of(risen("nvlink_recovering", metric, (10.0, 3.0))) == [("nvlink_recovering", IDENTITY)]
    assert codes_of(risen("nvlink_recovering", metric, (10.0, 2.0), (2 * HOUR, 7.0))) == [
        ("nvlink_recovered", IDENTITY)
    ]
    assert codes_of(risen("nvlink_recovering", metric, (10.0, 1.0), (2 * HOUR, 9.0))) == [
        ("nvlink_recovering", IDENTITY)
    ]
    assert risen("nvlink_recovering", metric, (HOUR, 3.0)) == []
    assert CODES["nvlink_recovered"].severity == "info"


def test_kinds_of_damage_are_one_finding_of_the_link() -> None:
    """The evidence has each of them."""
    kinds = ("commwatch_nvlink_malformed_packets_total", "commwatch_nvlink_transmit_discards_total")
    now: Numbers = {kind: {LINK: 2.0} for kind in kinds}

    [match] = seen_by("nvlink_packet_errors", facts_of(now, {10.0: {kind: {LINK: 0.0} for kind in kinds}}))
    assert [one.value for one in match.evidence] == [2.0, 2.0]


@pytest.mark.parametrize("metric", ["commwatch_nvlink_crc_flit_errors_total", "commwatch_nvlink_crc_data_errors_total"])
def test_crc_errors_count_from_a_hundred_per_second(metric: str) -> None:
    """Single ones are normal: they are sent again."""
    [match] = risen("nvlink_bit_errors", metric, (30.0, 6000.0))

    assert (match.code, match.evidence[0].value) == ("nvlink_bit_errors", 100.0)
    assert risen("nvlink_bit_errors", metric, (30.0, 5999.0)) == []
    assert risen("nvlink_bit_errors", metric, (60.0, 6000.0)) == []


def test_the_effective_bit_error_ratio_has_a_limit() -> None:
    """1e-12 may be, and 2e-12 may not."""
    assert codes_by("nvlink_bit_errors", facts_of({RATIO: {LINK: 2e-12}})) == [("nvlink_bit_errors", IDENTITY)]
    assert seen_by("nvlink_bit_errors", facts_of({RATIO: {LINK: 1e-12}})) == []
    assert seen_by("nvlink_bit_errors", facts_of({})) == []


def test_errors_left_after_correction_are_held_against_what_the_link_carries() -> None:
    """The same ratio over the last 10 min: the driver's figure may be of weeks. Without a capacity nothing is said."""
    metric = "commwatch_nvlink_effective_errors_total"

    assert len(risen("nvlink_bit_errors", metric, (10.0, 241.0), more=CAPACITY)) == 1
    assert risen("nvlink_bit_errors", metric, (10.0, 240.0), more=CAPACITY) == []
    assert risen("nvlink_bit_errors", metric, (10.0, 241.0)) == []
    assert risen("nvlink_bit_errors", metric, (600.0, 241.0), more=CAPACITY) == []
