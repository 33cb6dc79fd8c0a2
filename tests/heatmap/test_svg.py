"""Pictures of pair matrices: text as text, unit, marks and notes, and a number for each pair somehow."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree as ET

import pytest

from commwatch.node.topology.pair_matrix import PairEndpoint, PairMatrix, Quantity
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.heatmap.svg import matrix_svg
from heatmap.matrices import endpoints, matrix, of_gpu, slow_gpu

_NUMBER = re.compile(r"3[56]\d|1[48]\d|17\d")


def drawn(found: PairMatrix, quantity: Quantity = "bandwidth") -> str:
    return matrix_svg(view_of(found, quantity, relative=False, low_ratio=0.6))


def of_kind(picture: str, kind: str) -> list[ET.Element]:
    return [one for one in ET.fromstring(picture).iter() if one.tag.endswith(f"}}{kind}")]  # noqa: S314


def texts(picture: str, kind: str = "text") -> list[str]:
    return ["".join(one.itertext()) for one in of_kind(picture, kind)]


def test_a_picture_says_all_that_is_known_of_the_matrix() -> None:
    """Heading with unit, facts, every end as row and column, every number, the scale, and the words of the suspect."""
    found = texts(drawn(slow_gpu(3)))

    assert "Bandwidth, one way (GB/s)" in found
    assert "16 MiB a message, backend nccl, NCCL 2.27.3" in found
    assert [found.count(f"GPU{index}") for index in range(8)] == [2] * 8
    assert sum(bool(_NUMBER.fullmatch(text)) for text in found) == 56
    assert {"0", "100", "200", "300", "GB/s; darker is slower"} <= set(found)
    assert any(text.startswith("Slowest: GPU3 to GPU0 178 GB/s") for text in found)
    assert any(text.startswith("GPU3 is slow") for text in found)


def test_a_screen_reader_is_told_what_the_picture_shows() -> None:
    """The heading as its name; facts, slowest and fastest pair, suspects and signs as its description."""
    picture = drawn(matrix(8, missing=[(0, 1)], suspects=slow_gpu(3).suspects))
    (description,) = texts(picture, "desc")

    assert ET.fromstring(picture).get("role") == "img"  # noqa: S314
    assert texts(picture, "title") == ["Bandwidth, one way (GB/s)"]
    for part in ("NCCL 2.27.3", "Slowest: ", "A  GPU3 is slow to and from every other GPU", "-  not measured"):
        assert part in description


def test_marked_cells_have_a_frame_and_the_mark() -> None:
    """Those of a suspect a full one, those that are only low a dashed one; no other cell has one."""
    slow, low, healthy = drawn(slow_gpu(3)), drawn(matrix(8, factors={(0, 1): 0.4})), drawn(matrix(8))
    frames = [[one.get("stroke-dasharray") for one in of_kind(picture, "rect") if one.get("class") == "mark"]
              for picture in (slow, low, healthy)]  # fmt: skip

    assert frames == [[None] * len(of_gpu(3)), ["4 2"], []]
    assert (texts(slow).count("A"), texts(low).count("!")) == (14 + 1, 1 + 1)


def test_what_was_not_measured_has_a_sign_and_no_colour_of_the_scale() -> None:
    """As has the cell of an end with itself, which has no sign."""
    picture = drawn(matrix(4, missing=[(0, 1)]))

    assert texts(picture).count("-") == 1 + 1
    assert sum(one.get("class") == "blank" for one in of_kind(picture, "rect")) == 4 + 1


def test_a_simulated_node_is_called_so() -> None:
    """In the picture itself, which may travel far from the command that drew it."""
    assert "Simulated node n: none of this is real." in texts(drawn(matrix(2, simulated_node="n")))
    assert not any("real" in text for text in texts(drawn(matrix(2))))


@pytest.mark.parametrize("count", [1, 2, 16, 32])
def test_cells_show_their_number_while_there_is_room(count: int) -> None:
    """Up to 32 GPUs."""
    found = Counter(bool(_NUMBER.fullmatch(text)) for text in texts(drawn(matrix(count))))

    assert found[True] == count * (count - 1)


def test_a_cell_without_room_says_its_number_under_the_pointer() -> None:
    """Of 64 GPUs, with its mark; signs and marks are still written."""
    picture = drawn(matrix(64, factors={(0, 1): 0.4}, missing=[(3, 4)]))
    titles = texts(picture, "title")

    assert not any(_NUMBER.fullmatch(text) for text in texts(picture))
    assert len(titles) == 1 + 64 * 63
    assert {"GPU0 to GPU1: 143 !", "GPU3 to GPU4: -"} <= set(titles)
    assert texts(picture).count("!") == texts(picture).count("-") == 1 + 1


@pytest.mark.parametrize("count", [1, 8, 16, 32, 64, 80])
@pytest.mark.parametrize("quantity", ["bandwidth", "latency"])
def test_everything_lies_within_the_picture(count: int, quantity: Quantity) -> None:
    """Boxes by their corners; texts by where they begin, end or have their middle."""
    picture = drawn(matrix(count, factors={(0, 1): 0.3}), quantity)
    _, _, width, height = map(float, str(ET.fromstring(picture).get("viewBox")).split())  # noqa: S314
    boxes = [
        [float(one.get(key, "0")) for key in ("x", "y", "width", "height")] for one in of_kind(picture, "rect")[1:]
    ]
    places = [[float(one.get(key, "0")) for key in ("x", "y")] for one in of_kind(picture, "text")]

    assert all(0 <= x <= x + wide <= width and 0 <= y <= y + high <= height for x, y, wide, high in boxes)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)


def test_names_stand_upright_where_they_fit() -> None:
    """Else they run upwards; one that is very long is cut."""
    assert "rotate" not in drawn(matrix(8))
    assert drawn(matrix(32)).count("rotate(-90)") == 32
    long = drawn(matrix(2, endpoints=(*endpoints(2)[:1], PairEndpoint(label="x" * 500))))
    assert texts(long).count("rankxxxxxxxxxxx…") == 2


def test_dark_is_a_matter_of_style_alone() -> None:
    """What knows no style sheets sees dark letters on white; paper takes the light colours."""
    picture = drawn(matrix(2))
    (style,) = texts(picture, "style")

    assert of_kind(picture, "rect")[0].get("fill") == "#ffffff"
    assert "@media screen and (prefers-color-scheme:dark)" in style
    assert all(line.startswith((".pair-matrix", "@media")) for line in style.splitlines())


def test_the_same_matrix_gives_the_same_picture() -> None:
    """So that a picture in a repository changes only when what it shows does."""
    assert drawn(slow_gpu()) == drawn(slow_gpu())


def test_nothing_is_run_or_loaded_whatever_a_name_says() -> None:
    """No script, no link, no event; names stay texts, without what turns text around."""
    hostile = '</text><script>alert(1)</script>"onload="x\u202e\x1b\x00'
    picture = drawn(matrix(3, endpoints=endpoints(3, hostile), simulated_node=hostile, nccl_version=hostile))

    assert {one.tag.rpartition("}")[2] for one in ET.fromstring(picture).iter()} <= {  # noqa: S314
        "svg", "title", "desc", "style", "rect", "text", "g", "path",
    }  # fmt: skip
    assert "url(" not in picture
    assert not {"\u202e", "\x1b", "\x00"} & set(picture)
    assert "<script>" in "".join(texts(picture, "desc"))
