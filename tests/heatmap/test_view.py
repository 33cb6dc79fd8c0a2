"""What is drawn of a pair matrix: units, scales, marks, colours."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.topology.pair_matrix import PairMatrix, Quantity
from commwatch.probes.results.slow_cells import name_of, slow_cells
from commwatch.views.heatmap.colours import colour, ink, luminance
from commwatch.views.heatmap.grid import LOW, View, scale_ticks
from commwatch.views.heatmap.matrix_view import view_of
from heatmap.matrices import matrix, of_gpu, slow_gpu


def view(found: PairMatrix, quantity: Quantity = "bandwidth", *, relative: bool = False) -> View:
    return view_of(found, quantity, relative=relative, low_ratio=0.6)


def test_all_cells_have_one_unit() -> None:
    """A slow cell of a fast matrix is not in MB/s, which would read as more."""
    found = view(matrix(4, factors={(0, 1): 0.001}, noise=0))

    assert found.unit == "GB/s"
    assert (found.text((0, 1)), found.text((1, 0)), found.text((2, 2))) == ("0.360", "360", "")
    assert view(matrix(2, bandwidth=5e8), "bandwidth").unit == "MB/s"
    assert view(matrix(2, latency=20e-3), "latency").unit == "ms"


def test_what_was_not_measured_has_no_number() -> None:
    """Not 0, and not the darkest colour."""
    found = view(matrix(4, missing=[(0, 1)]))

    assert found.text((0, 1)) == "-"
    assert (0, 1) not in found.numbers


def test_relative_is_in_percent_of_what_is_expected() -> None:
    """Whole percent; a cell without expected value says so."""
    found = view(matrix(4, bandwidth=180e9, expected=360e9, noise=0), relative=True)
    assert (found.text((0, 1)), found.unit, found.high) == ("50", "%", 100.0)

    unknown = view(matrix(4, expected=None), relative=True)
    assert unknown.text((0, 1)) == "?"
    assert unknown.numbers == {}


def test_relative_latency_is_held_against_pairs_of_the_same_class() -> None:
    """Nothing says what a latency should be; the heading tells what 100 % is."""
    found = view(matrix(4, factors={(0, 1): 0.5}, noise=0), "latency", relative=True)

    assert (found.text((0, 1)), found.text((1, 2))) == ("200", "100")
    assert "median over pairs of the same path class" in found.heading


def test_a_suspects_cells_carry_its_letter_and_low_ones_a_mark() -> None:
    """A cell that a suspect explains is not marked as merely low."""
    slow = view(slow_gpu(3))
    assert {pair for pair, mark in slow.marks.items() if mark == "A"} == set(of_gpu(3))
    assert LOW not in slow.marks.values()
    assert slow.notes[0].startswith("A  GPU3 is slow to and from every other GPU")

    assert slow.notes[0].endswith("(confidence 97 %)")
    certain = tuple(msgspec.structs.replace(one, confidence=0.998) for one in slow_gpu(3).suspects)
    assert view(matrix(8, suspects=certain)).notes[0].endswith("(confidence above 99 %)")

    low = view(matrix(4, factors={(0, 1): 0.5}))
    assert low.marks == {(0, 1): LOW}
    (note,) = low.notes
    assert note.startswith("!  1 pair is below 60 % of what the path should carry: GPU0 to GPU1 over NV18 179 GB/s")


def test_just_above_the_threshold_nothing_is_marked() -> None:
    """60 % of the expected value is not below it."""
    at = {(0, 1): 0.61}
    assert view(matrix(4, bandwidth=100e9, expected=100e9, factors=at, noise=0)).marks == {}
    assert view(matrix(4, expected=None, factors={(0, 1): 0.1})).marks == {}


def test_the_slowest_cells_are_told_first() -> None:
    """With both numbers and the path."""
    found = slow_cells(matrix(4, bandwidth=100e9, expected=100e9, factors={(0, 1): 0.5, (2, 3): 0.2}, noise=0), 0.6)

    assert [one.text for one in found] == [
        "GPU2 to GPU3 over NV18 20 GB/s, 20 % of 100 GB/s",
        "GPU0 to GPU1 over NV18 50 GB/s, 50 % of 100 GB/s",
    ]


@pytest.mark.parametrize("quantity", ["bandwidth", "latency", "both_ways"])
def test_a_healthy_matrix_is_bright_and_a_slow_cell_dark(quantity: Quantity) -> None:
    """Noise of some percent does not show; half the bandwidth does, whatever the quantity."""
    found = view(matrix(factors={(0, 1): 0.4}), quantity)
    others = [found.brightness(number) for pair, number in found.numbers.items() if pair != (0, 1)]

    assert min(others) > 0.9
    assert max(others) - min(others) < 0.05
    assert found.brightness(found.numbers[0, 1]) < min(others) - 0.3


def test_ranks_without_gpus_are_called_so() -> None:
    """As gloo measures them."""
    (endpoint, *_) = matrix(2).endpoints
    assert name_of(endpoint) == "GPU0"
    assert name_of(msgspec.structs.replace(endpoint, device="", pci_address="")) == "rank0"


@given(st.floats(1e-9, 1e12), st.floats(1.0, 1e4), st.booleans())
def test_ticks_are_within_the_scale(low: float, span: float, logarithmic: bool) -> None:
    """Rising, between the ends, and more than one wherever the scale is wide enough for it."""
    found = View(heading="", facts=(), unit="", names=(), numbers={}, marks={}, logarithmic=logarithmic,
                 low=low if logarithmic else 0.0, high=low * span * 1.1)  # fmt: skip
    ticks = scale_ticks(found)
    places = [place for _, place in ticks]

    assert places == sorted(places)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    assert len(ticks) >= (1 if logarithmic and span < 2.5 else 2) or (logarithmic and span < 1.5)


def test_a_logarithmic_scale_shows_where_it_begins_and_ends() -> None:
    """Healthy latencies lie all at its lower end, which no round number would name."""
    ticks = scale_ticks(view(matrix(3, latency=7.13e-6, noise=0), "latency"))

    assert [round(number, 2) for number, _ in ticks] == [7.13, 10, 15, 20, 28.52]
    assert (ticks[0][1], ticks[-1][1]) == (0.0, 1.0)


def test_colours_can_be_told_apart_in_grey() -> None:
    """The lightness only rises, by as much at the dark end as at the bright one."""
    steps = [luminance(colour(place / 20)) ** (1 / 2.2) for place in range(21)]
    rises = [after - before for before, after in pairwise(steps)]

    assert min(rises) > 0.4 * median(rises)
    assert steps[-1] - steps[0] > 0.6


def test_colours_can_be_told_apart_without_red_or_green() -> None:
    """They differ along blue and yellow: to those who see red and green as one, order and distance stay."""
    as_seen = [(0.5 * (red + green), blue) for red, green, blue in (colour(place / 10) for place in range(11))]

    assert all(after[0] > before[0] for before, after in pairwise(as_seen))


@given(st.floats(0, 1))
def test_a_number_reads_well_on_its_colour(place: float) -> None:
    """Contrast of 4.5 to 1 at least, as WCAG 2.1 asks of text."""
    ground = colour(place)
    dark, light = sorted((luminance(ground), luminance(ink(ground))))

    assert (light + 0.05) / (dark + 0.05) >= 4.5
