"""Pictures of pair matrices: text as text, unit, marks and notes, and a number for each pair somehow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import TypeAlias
from xml.etree import ElementTree as ET

import pytest

from commwatch.node.topology.pair_matrix import PairEndpoint
from heatmap.command import picture
from heatmap.matrices import Pair, endpoints, matrix, of_gpu, slow_gpu
from support.passes import in_one_pass

_NUMBER = re.compile(r"3[56]\d|1[48]\d|17\d")


def of_kind(drawing: str, kind: str) -> list[ET.Element]:
    return [one for one in ET.fromstring(drawing).iter() if one.tag.endswith(f"}}{kind}")]  # noqa: S314 - our own drawing


def texts(drawing: str, kind: str = "text") -> list[str]:
    return ["".join(one.itertext()) for one in of_kind(drawing, kind)]


def test_a_picture_says_all_that_is_known_of_the_matrix() -> None:
    """Heading with unit, facts, every end as row and column, every number, the scale, and the words of the suspect."""
    found = texts(picture(slow_gpu(3)))

    assert "Bandwidth, one way (GB/s)" in found
    assert "16 MiB a message, backend nccl, NCCL 2.27.3" in found
    assert [found.count(f"GPU{index}") for index in range(8)] == [2] * 8
    assert sum(bool(_NUMBER.fullmatch(text)) for text in found) == 56
    assert {"0", "100", "200", "300", "GB/s; darker is slower"} <= set(found)
    assert any(text.startswith("Slowest: GPU3 to GPU0 178 GB/s") for text in found)
    assert any(text.startswith("GPU3 is slow") for text in found)


def test_a_screen_reader_is_told_what_the_picture_shows() -> None:
    """The heading as its name; facts, slowest and fastest pair, suspects and signs as its description."""
    drawing = picture(matrix(8, missing=[(0, 1)], suspects=slow_gpu(3).suspects))
    (description,) = texts(drawing, "desc")

    assert ET.fromstring(drawing).get("role") == "img"  # noqa: S314 - our own drawing
    assert texts(drawing, "title") == ["Bandwidth, one way (GB/s)"]
    for part in ("NCCL 2.27.3", "Slowest: ", "A  GPU3 is slow to and from every other GPU", "-  not measured"):
        assert part in description


def test_marked_cells_have_a_frame_and_the_mark() -> None:
    """Those of a suspect a full one, those that are only low a dashed one; no other cell has one."""
    slow, low, healthy = picture(slow_gpu(3)), picture(matrix(8, factors={(0, 1): 0.4})), picture(matrix(8))
    frames = [[one.get("stroke-dasharray") for one in of_kind(drawing, "rect") if one.get("class") == "mark"]
              for drawing in (slow, low, healthy)]  # fmt: skip

    assert frames == [[None] * len(of_gpu(3)), ["4 2"], []]
    assert (texts(slow).count("A"), texts(low).count("!")) == (14 + 1, 1 + 1)


def test_what_was_not_measured_has_a_sign_and_no_colour_of_the_scale() -> None:
    """As has the cell of an end with itself, which has no sign."""
    drawing = picture(matrix(4, missing=[(0, 1)]))

    assert texts(drawing).count("-") == 1 + 1
    assert sum(one.get("class") == "blank" for one in of_kind(drawing, "rect")) == 4 + 1


def test_a_simulated_node_is_called_so() -> None:
    """In the picture itself, which may travel far from the command that drew it."""
    assert "Simulated node n: none of this is real." in texts(picture(matrix(2, simulated_node="n")))
    assert not any("real" in text for text in texts(picture(matrix(2))))


@in_one_pass("count", [1, 2, 16, 32])
def test_cells_show_their_number_while_there_is_room(count: int) -> None:
    """Up to 32 GPUs."""
    found = Counter(bool(_NUMBER.fullmatch(text)) for text in texts(picture(matrix(count))))

    assert found[True] == count * (count - 1)


def test_a_cell_without_room_says_its_number_under_the_pointer() -> None:
    """Of 64 GPUs, with its mark; signs and marks are still written."""
    drawing = picture(matrix(64, factors={(0, 1): 0.4}, missing=[(3, 4)]))
    titles = texts(drawing, "title")

    assert not any(_NUMBER.fullmatch(text) for text in texts(drawing))
    assert len(titles) == 1 + 64 * 63
    assert {"GPU0 to GPU1: 143 !", "GPU3 to GPU4: -"} <= set(titles)
    assert texts(drawing).count("!") == texts(drawing).count("-") == 1 + 1


@in_one_pass("count", [1, 8, 32, 80])
@in_one_pass("quantity", ["bandwidth", "latency"])
def test_everything_lies_within_the_picture(count: int, quantity: str) -> None:
    """Boxes by their corners; texts by where they begin, end or have their middle."""
    drawing = picture(matrix(count, factors={(0, 1): 0.3}), "--quantity", quantity)
    _, _, width, height = map(float, str(ET.fromstring(drawing).get("viewBox")).split())  # noqa: S314 - our own drawing
    boxes = [
        [float(one.get(key, "0")) for key in ("x", "y", "width", "height")] for one in of_kind(drawing, "rect")[1:]
    ]
    places = [[float(one.get(key, "0")) for key in ("x", "y")] for one in of_kind(drawing, "text")]

    assert all(0 <= x <= x + wide <= width and 0 <= y <= y + high <= height for x, y, wide, high in boxes)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)


def test_names_stand_upright_where_they_fit() -> None:
    """Else they run upwards; one that is very long is cut."""
    assert "rotate" not in picture(matrix(8))
    assert picture(matrix(32)).count("rotate(-90)") == 32
    long = picture(matrix(2, endpoints=(*endpoints(2)[:1], PairEndpoint(label="x" * 500))))
    assert texts(long).count("rankxxxxxxxxxxx…") == 2


def test_dark_is_a_matter_of_style_alone() -> None:
    """What knows no style sheets sees dark letters on white; paper takes the light colours."""
    drawing = picture(matrix(2))
    (style,) = texts(drawing, "style")

    assert of_kind(drawing, "rect")[0].get("fill") == "#ffffff"
    assert "@media screen and (prefers-color-scheme:dark)" in style
    assert all(line.startswith((".pair-matrix", "@media")) for line in style.splitlines())


def test_the_same_matrix_gives_the_same_picture() -> None:
    """So that a picture in a repository changes only when what it shows does."""
    assert picture(slow_gpu()) == picture(slow_gpu())


def test_nothing_is_run_or_loaded_whatever_a_name_says() -> None:
    """No script, no link, no event; names stay texts, without what turns text around."""
    hostile = '</text><script>alert(1)</script>"onload="x\u202e\x1b\x00'
    drawing = picture(matrix(3, endpoints=endpoints(3, hostile), simulated_node=hostile, nccl_version=hostile))

    assert {one.tag.rpartition("}")[2] for one in ET.fromstring(drawing).iter()} <= {  # noqa: S314 - our own drawing
        "svg", "title", "desc", "style", "rect", "text", "g", "path",
    }  # fmt: skip
    assert "url(" not in drawing
    assert not {"\u202e", "\x1b", "\x00"} & set(drawing)
    assert "<script>" in "".join(texts(drawing, "desc"))


def scale(drawing: str) -> list[tuple[str, float]]:
    """The numbers on the scale, and their places from 0 to 1."""
    boxes = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="10"', drawing)
    begin, end = float(boxes[0][0]), float(boxes[-1][0]) + float(boxes[-1][1])
    ticks = re.findall(r'<path class="faded" d="M([\d.]+) [^>]*/><text [^>]*>([\d.]+)</text>', drawing)
    return [(text, (float(x) + 0.5 - begin) / (end - begin)) for x, text in ticks]


def test_a_logarithmic_scale_shows_where_it_begins_and_ends() -> None:
    """Healthy latencies lie all at its lower end, which no round number would name."""
    found = scale(picture(matrix(3, latency=7.13e-6, noise=0), "--quantity", "latency"))

    assert [text for text, _ in found] == ["7.13", "10", "15", "20", "28.5"]
    assert [round(place, 2) for _, place in (found[0], found[-1])] == [0, 1]


@in_one_pass("quantity", ["bandwidth", "latency", "both-ways"])
@in_one_pass("size", [1e-3, 0.07, 1, 3, 250])
@in_one_pass("slowest", [0.9, 0.3, 0.01, 0.0004])
def test_ticks_are_within_the_scale(quantity: str, size: float, slowest: float) -> None:
    """Rising round numbers, whatever the unit and the span."""
    made = matrix(3, bandwidth=size * 1e9, latency=size * 1e-6, factors={(0, 1): slowest}, noise=0)
    found = scale(picture(made, "--quantity", quantity))
    numbers, places = [float(text) for text, _ in found], [place for _, place in found]

    assert len(found) >= 2
    assert (numbers, places) == (sorted(numbers), sorted(places))
    assert all(-0.01 <= place <= 1.01 for place in places)


def colours(drawing: str) -> dict[str, tuple[Colour, Colour]]:
    """By number of a cell its ground and its ink."""
    mark = "(?:(?:<rect [^>]*>){2}<text [^>]*>.</text>)?"
    cells = rf'<rect [^>]*rx="3" fill="#(\w{{6}})"/>{mark}<text [^>]*fill="#(\w{{6}})"[^>]*>([\d.]+)</text>'
    found = re.findall(cells, drawing)
    return {number: (rgb(ground), rgb(ink)) for ground, ink, number in found}


Colour: TypeAlias = tuple[int, ...]


def rgb(code: str) -> Colour:
    return tuple(int(code[place : place + 2], 16) for place in (0, 2, 4))


def luminance(shade: Colour) -> float:
    """Relative, as WCAG 2.1 has it."""
    parts = [one / 255 for one in shade]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.fixture(scope="module")
def shades() -> list[tuple[Colour, Colour]]:
    """Ground and ink of 30 bandwidths that are spread evenly over the scale, the slowest first."""
    cells = [(source, target) for source in range(6) for target in range(6) if source != target]
    factors = {cell: (place + 1) / 30 for place, cell in enumerate(cells)}
    found = colours(picture(matrix(6, bandwidth=300e9, expected=None, factors=factors, noise=0)))
    assert len(found) == 30
    return [found[number] for number in sorted(found, key=float)]


def test_colours_can_be_told_apart_in_grey_and_without_red_or_green(shades: list[tuple[Colour, Colour]]) -> None:
    """The lightness rises evenly; to those who see red and green as one, order and distance stay."""
    grey = [luminance(ground) ** (1 / 2.2) for ground, _ in shades]
    rises = [after - before for before, after in pairwise(grey)]
    as_seen = [0.5 * (red + green) for (red, green, _), _ in shades]

    assert min(rises) > 0.4 * median(rises)
    assert grey[-1] - grey[0] > 0.55
    assert all(after > before for before, after in pairwise(as_seen))


def test_a_number_reads_well_on_its_colour(shades: list[tuple[Colour, Colour]]) -> None:
    """Contrast of 4.5 to 1 at least, as WCAG 2.1 asks of text."""
    for ground, ink in shades:
        dark, light = sorted((luminance(ground), luminance(ink)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def brightness(factors: Mapping[Pair, float], quantity: str) -> list[float]:
    """The lightness of the cells, the darkest first."""
    found = re.findall(r'<rect [^>]*rx="3" fill="#(\w{6})"', picture(matrix(factors=factors), "--quantity", quantity))
    return sorted(luminance(rgb(one)) for one in found)


@in_one_pass("quantity", ["bandwidth", "latency", "both-ways"])
def test_a_healthy_matrix_is_bright_and_a_slow_cell_dark(quantity: str) -> None:
    """Noise of some percent does not show; half the bandwidth does, whatever the quantity."""
    slow, *others = brightness({(0, 1): 0.4}, quantity)

    assert min(others) > 0.65
    assert max(others) - min(others) < 0.1
    assert slow < min(others) - 0.3
