"""Utilisation of NVLink and network interfaces, seen from block to block."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.utilisation import EthernetUse, NvlinkExpectation, NvlinkUse, PeakWindow
from commwatch_exporters.snapshot import Block, Layout, Value

GPU = ("0", "0000:17:00.0")
LINKS = (0, 1)
METRICS = ("link_state", "transmit_bytes_total", "receive_bytes_total")
LAYOUT = Layout((f"commwatch_nvlink_{metric}", (*GPU, str(link))) for link in LINKS for metric in METRICS)
EXPECTED = NvlinkExpectation(frozenset(LINKS), 50e9)
UP, DOWN = 1, 0


def ratios(block: Block) -> tuple[Value, Value]:
    return (
        block.get("commwatch_nvlink_transmit_utilization_ratio", *GPU),
        block.get("commwatch_nvlink_receive_utilization_ratio", *GPU),
    )


def peaks(block: Block) -> tuple[Value, Value]:
    return (
        block.get("commwatch_nvlink_transmit_utilization_peak_ratio", *GPU),
        block.get("commwatch_nvlink_receive_utilization_peak_ratio", *GPU),
    )


def run(
    readings: Sequence[Sequence[Value]],
    times: Sequence[float] = range(100),
    expected: NvlinkExpectation | None = EXPECTED,
) -> Block:
    """The utilisation after the last of some readings: state, transmitted and received bytes of links 0 and 1."""
    use = NvlinkUse(*GPU, max_gap_seconds=5)
    blocks = [use.update(Block(LAYOUT, values, time), expected) for values, time in zip(readings, times, strict=False)]
    return blocks[-1]


def test_the_links_count_together() -> None:
    """The rates of both links over their nominal capacity are the ratio, for each direction."""
    after = run([[UP, 0, 0, UP, 0, 0], [UP, 10e9, 1e9, UP, 15e9, 4e9]])

    assert ratios(after) == (0.5, 0.1)


def test_the_first_reading_has_no_ratio() -> None:
    """One reading gives no rate, and no peak."""
    after = run([[UP, 0, 0, UP, 0, 0]])

    assert ratios(after) == (None, None)
    assert peaks(after) == (None, None)


def test_a_link_that_is_down_carries_nothing() -> None:
    """Use stays visible beside a fault: the inactive link counts as no traffic over the full capacity."""
    after = run([[UP, 0, 0, UP, 0, 0], [UP, 10e9, 5e9, DOWN, None, None]])

    assert ratios(after) == (0.2, 0.1)


@pytest.mark.parametrize("state", [UP, None])
def test_a_link_that_was_not_read_hides_the_ratio(state: Value) -> None:
    """An expected link without a counter makes its direction absent, not the other one."""
    after = run([[UP, 0, 0, UP, 0, 0], [UP, 10e9, 5e9, state, None, 5e9]])

    assert ratios(after) == (None, 0.2)


def test_a_link_that_is_not_in_the_block_hides_the_ratio() -> None:
    """A link that is expected and of which nothing is said makes the sum one of a part."""
    after = run([[UP, 0, 0] * 2, [UP, 1e9, 1e9] * 2], expected=NvlinkExpectation(frozenset({0, 1, 2}), 75e9))

    assert ratios(after) == (None, None)


def test_a_link_beyond_the_expected_ones_does_not_count() -> None:
    """Numerator and denominator are of the same links."""
    after = run([[UP, 0, 0] * 2, [UP, 5e9, 5e9, None, None, None]], expected=NvlinkExpectation(frozenset({0}), 25e9))

    assert ratios(after) == (0.2, 0.2)


@pytest.mark.parametrize("expected", [None, NvlinkExpectation(frozenset(LINKS), None)])
def test_without_a_capacity_there_is_no_ratio(expected: NvlinkExpectation | None) -> None:
    """A GPU of which nothing is expected, or whose links have no known rate, has no ratio."""
    after = run([[UP, 0, 0] * 2, [UP, 5e9, 5e9] * 2], expected=expected)

    assert ratios(after) == (None, None)


@pytest.mark.parametrize(("time", "ratio"), [(5.0, 0.4), (5.1, None), (0.0, None), (-1.0, None)])
def test_no_ratio_spans_a_gap(time: float, ratio: float | None) -> None:
    """Readings more than the greatest gap apart, or in time that stood still, give no ratio."""
    after = run([[UP, 0, 0] * 2, [UP, 50e9, 50e9] * 2], times=(0.0, time))

    assert ratios(after) == (ratio, ratio)


def test_a_reset_gives_no_ratio() -> None:
    """A counter that fell has no rate; the next reading has one again."""
    readings = [[UP, 9e9, 9e9] * 2, [UP, 0, 9e9] * 2, [UP, 25e9, 9e9] * 2]

    assert ratios(run(readings[:2])) == (None, 0.0)
    assert ratios(run(readings)) == (1.0, 0.0)


def test_another_layout_starts_anew() -> None:
    """Blocks of two layouts are never compared."""
    use = NvlinkUse(*GPU, max_gap_seconds=5)
    use.update(Block(LAYOUT, [UP, 0, 0] * 2, 0.0), EXPECTED)

    after = use.update(Block(Layout(reversed(LAYOUT.series)), [1e9, 1e9, UP] * 2, 1.0), EXPECTED)

    assert ratios(after) == (None, None)


def test_the_peak_is_the_highest_of_a_minute() -> None:
    """The peak stays for 60 s after its sample and then gives way to the next highest."""
    traffic = [0, 25e9, 30e9] + [30e9 + second * 1e9 for second in range(1, 70)]
    readings = [[UP, total, 0] * 2 for total in traffic]

    assert peaks(run(readings[:62])) == (1.0, 0.0)
    assert peaks(run(readings[:63])) == (0.2, 0.0)
    assert peaks(run(readings[:64])) == (0.04, 0.0)


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 2)), min_size=1))
def test_the_peak_window_is_exact(steps: list[tuple[float, float]]) -> None:
    """The window gives what a search over all samples gives."""
    window, samples, now = PeakWindow(), [], 0.0
    for step, value in steps:
        now += step
        window.add(now, value)
        samples.append((now, value))

        assert window.highest(now) == max(value for time, value in samples if time >= now - 60)
    assert window.highest(now + 61) is None


COUNTS = st.none() | st.integers(min_value=0, max_value=2**63)
STATES = st.sampled_from([None, 0, 1, 2])


@given(st.lists(st.tuples(st.floats(-2, 8), st.tuples(STATES, COUNTS, COUNTS, STATES, COUNTS, COUNTS))))
def test_ratios_are_never_negative_and_never_span_a_gap(steps: list[tuple[float, tuple[Value, ...]]]) -> None:
    """Whatever was read, a ratio is at least 0, and absent where the readings are too far apart."""
    use, now = NvlinkUse(*GPU, max_gap_seconds=5), 0.0
    for position, (step, values) in enumerate(steps):
        earlier, now = now, now + step
        after = use.update(Block(LAYOUT, values, now), EXPECTED)

        assert all(ratio is None or ratio >= 0 for ratio in (*ratios(after), *peaks(after)))
        if position == 0 or not 0 < now - earlier <= 5:
            assert ratios(after) == (None, None)


ETHERNET = Layout(
    [("commwatch_ethernet_transmit_bytes_total", ("eth0",)), ("commwatch_ethernet_receive_bytes_total", ("eth0",))]
)


@pytest.mark.parametrize(
    ("speed", "expected"), [(12.5e9, (0.8, 0.8, 0.4, 0.4)), (None, (None,) * 4)], ids=["known", "unknown"]
)
def test_ethernet_is_measured_against_the_expected_speed(speed: float | None, expected: tuple[Value, ...]) -> None:
    """The byte rate of an interface over its expected speed, for each direction, with the peak."""
    use = EthernetUse("eth0", max_gap_seconds=15)
    use.update(Block(ETHERNET, [0, 0], 0.0), speed)

    after = use.update(Block(ETHERNET, [50e9, 25e9], 5.0), speed)

    assert tuple(after.values) == expected
    assert after.get("commwatch_ethernet_receive_utilization_peak_ratio", "eth0") == expected[3]
