"""Pictures of pair matrices: real files with labels, unit, marks and notes."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.views.heatmap import picture
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.heatmap.picture import BadPictureName, PictureError, check_picture, draw
from heatmap.matrices import matrix, of_gpu, slow_gpu


def drawn(found: PairMatrix, file: Path) -> Path:
    draw(view_of(found, "bandwidth", relative=False, low_ratio=0.6), file)
    return file


def texts(file: Path) -> list[str]:
    return ["".join(one.itertext()).strip() for one in ET.parse(file).iter() if one.tag.endswith("}text")]  # noqa: S314


def test_an_svg_has_its_text_as_text(tmp_path: Path) -> None:
    """Heading with unit, facts, every end as row and column, every number, the scale, and the words of the suspect."""
    found = texts(drawn(slow_gpu(3), tmp_path / "pairs.svg"))

    assert "Bandwidth, one way (GB/s)" in found
    assert "16 MiB a message, backend nccl, NCCL 2.27.3" in found
    assert [found.count(f"GPU{index}") for index in range(8)] == [2] * 8
    assert sum(bool(re.fullmatch(r"3[56]\d|1[78]\d", text)) for text in found) == 56
    assert {"0", "100", "200", "300"} <= set(found)
    assert any("GB/s: the darker, the slower" in text for text in found)
    assert any(text.startswith("GPU3 is slow") for text in found)


def test_suspects_are_marked_in_the_picture(tmp_path: Path) -> None:
    """Each of their cells has a frame and the letter, as has the note below; no other cell has."""
    file = drawn(slow_gpu(3), tmp_path / "pairs.svg")

    marked = set(re.findall(r'id="mark-A-(\d+)-(\d+)"', file.read_text()))
    assert {(int(row), int(column)) for row, column in marked} == set(of_gpu(3))
    assert texts(file).count("A") == 14 + 1
    assert 'id="mark-' not in drawn(matrix(8), tmp_path / "healthy.svg").read_text()


def test_a_simulated_node_is_called_so(tmp_path: Path) -> None:
    """In the picture itself, which may travel far from the command that drew it."""
    assert any(
        "none of this is real" in text for text in texts(drawn(matrix(2, simulated_node="n"), tmp_path / "a.svg"))
    )
    assert not any("real" in text for text in texts(drawn(matrix(2), tmp_path / "b.svg")))


def test_a_png_is_whole(tmp_path: Path) -> None:
    """Signature, sound chunks to the end, pixels, and more than one colour."""
    content = drawn(slow_gpu(), tmp_path / "pairs.PNG").read_bytes()

    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, kinds, data = 8, [], b""
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack(">I", content[place + 8 + length : place + 12 + length])[0]
        kinds.append(kind)
        data += body if kind == b"IDAT" else b""
        place += 12 + length
    width, height = struct.unpack(">II", content[16:24])
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    assert width > 600
    assert height > 600
    assert len(set(zlib.decompress(data))) > 50


def test_the_same_matrix_gives_the_same_picture(tmp_path: Path) -> None:
    """So that a picture in a repository changes only when what it shows does."""
    first, second = (drawn(slow_gpu(), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second


@pytest.mark.parametrize("count", [1, 2, 12])
def test_any_number_of_ends_is_drawn(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large matrices have colours in place of numbers: where a number could not be read."""
    if count > 2:
        monkeypatch.setattr(picture, "_SMALLEST_FONT", 100.0)
    found = texts(drawn(matrix(count), tmp_path / "a.svg"))

    assert found.count("GPU0") == 2
    assert any(re.fullmatch(r"3[56]\d", text) for text in found) == (count == 2)


def test_sixteen_gpus_are_drawn_as_large_as_eight(tmp_path: Path) -> None:
    """Letters have the size that their cell has room for, and names stay upright."""

    def sizes(count: int) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {"number": set(), "name": set()}
        for one in ET.parse(drawn(matrix(count), tmp_path / "a.svg")).iter():  # noqa: S314
            text, style = "".join(one.itertext()).strip(), one.get("style", "")
            if one.tag.endswith("}text") and (size := re.search(r"font-size: (\d+(?:\.\d+)?)px", style)):
                if re.fullmatch(r"3[56]\d", text):
                    found["number"].add(size[1])
                if text.startswith("GPU"):
                    found["name"].add(f"{size[1]} {'rotate(-90' in one.get('transform', '')}")
        return found

    assert sizes(16) == sizes(8) == {"number": {"9"}, "name": {"9 False"}}


def test_a_name_without_known_ending_is_wrong_use(tmp_path: Path) -> None:
    """With the endings that there are."""
    with pytest.raises(BadPictureName, match=r"pairs\.jpg: expected a name that ends in \.png or \.svg") as caught:
        check_picture(tmp_path / "pairs.jpg")
    assert caught.value.exit_code == 2


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """The folder is not there; or it is none; nothing is left behind."""
    with pytest.raises(PictureError, match="there is no folder"):
        check_picture(tmp_path / "gone" / "a.svg")
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(PictureError, match=r"a\.svg: Is a directory"):
        drawn(matrix(2), tmp_path / "a.svg")
    assert [one.name for one in tmp_path.iterdir()] == ["a.svg"]


def test_without_matplotlib_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line."""
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]

    with pytest.raises(PictureError, match=r"pip install 'commwatch\[picture\]'") as caught:
        check_picture(tmp_path / "a.png")
    assert caught.value.exit_code == 1
