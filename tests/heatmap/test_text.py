"""The pair matrix as text."""

from __future__ import annotations

from commwatch.lines import plain
from commwatch.node.topology.pair_matrix import PairMatrix, Quantity
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.heatmap.text import heatmap_lines
from heatmap.matrices import matrix, slow_gpu


def lines(found: PairMatrix, quantity: Quantity = "bandwidth", *, relative: bool = False) -> list[str]:
    view = view_of(found, quantity, relative=relative, low_ratio=0.6)
    return [plain(line) for line in heatmap_lines(view, coloured=False)]


def test_the_matrix_reads_without_colour() -> None:
    """Heading with unit, facts, rows that send, columns that receive, marks, the extremes, and the suspects."""
    found = lines(matrix(3, bandwidth=100e9, factors={(0, 1): 0.25}, expected=100e9, noise=0))

    assert found == [
        "Bandwidth, one way (GB/s)",
        "NVIDIA H100 80GB HBM3; 16 MiB a message, backend nccl, NCCL 2.27.3; measured",
        "2026-09-21 14:13:20 UTC",
        "Row sends, column receives.",
        "",
        "        GPU0    GPU1    GPU2",
        "GPU0          25.0!    100",
        "GPU1   100             100",
        "GPU2   100     100",
        "",
        "Slowest: GPU0 to GPU1 25.0 GB/s; fastest: GPU2 to GPU1 100 GB/s; median 100",
        "GB/s.",
        "",
        "!  1 pair is below 60 % of what the path should carry: GPU0 to GPU1 over NV18 25",
        "   GB/s, 25 % of 100 GB/s",
    ]


def test_eight_gpus_fit_eighty_columns() -> None:
    """In every quantity, with marks, absolute and relative."""
    for quantity in ("bandwidth", "latency", "both_ways"):
        for relative in (False, True):
            assert max(map(len, lines(slow_gpu(), quantity, relative=relative))) <= 80


def test_a_large_matrix_is_cut_where_the_terminal_ends() -> None:
    """16 GPUs on 80 columns: two blocks of eight columns with all rows; in a pipe there is one."""
    view = view_of(matrix(16, factors={(0, 1): 0.25}), "bandwidth", relative=False, low_ratio=0.6)
    found = [plain(line) for line in heatmap_lines(view, coloured=False, width=80)]
    heads = [line.split() for line in found if line.lstrip().startswith("GPU") and line.startswith(" ")]

    assert heads == [[f"GPU{place}" for place in range(8)], [f"GPU{place}" for place in range(8, 16)]]
    assert sum(line.startswith("GPU15 ") for line in found) == 2
    assert max(map(len, found)) <= 80
    assert sum(line.startswith("GPU15 ") for line in lines(matrix(16))) == 1


def test_a_narrow_terminal_has_narrow_lines() -> None:
    """Sentences are folded there too, and a matrix has one column at least."""
    view = view_of(slow_gpu(), "bandwidth", relative=False, low_ratio=0.6)
    for width in (60, 30):
        found = [plain(line) for line in heatmap_lines(view, coloured=False, width=width)]
        assert max(map(len, found)) <= width


def test_percent_is_said_once() -> None:
    """The heading says of what."""
    assert lines(matrix(3), relative=True)[0] == "Bandwidth, one way, in percent of what is expected"


def test_one_gpu_has_no_pair() -> None:
    """Which is no gap in what was measured."""
    assert "One GPU alone has no pair." in lines(matrix(1))


def test_a_simulated_node_is_called_so_first() -> None:
    """Before any number."""
    assert lines(matrix(2, simulated_node="h100x8"))[0] == "Simulated node h100x8: none of this is real."


def test_gaps_are_explained() -> None:
    """What was not measured, and what nothing is known to hold against."""
    assert "-  not measured" in lines(matrix(3, missing=[(0, 1)]))
    assert "-  not measured" not in lines(matrix(3))
    found = lines(matrix(3, expected=None), relative=True)
    assert "?  measured, but nothing is known to hold it against" in found
    assert "Nothing to hold the values against." in found


def test_a_matrix_without_any_result_says_so() -> None:
    """No extremes of nothing."""
    every = [(source, target) for source in range(3) for target in range(3)]
    assert "Nothing was measured." in lines(matrix(3, missing=every))


def test_colour_shows_what_is_slow_and_the_scale() -> None:
    """The style of a slow cell differs from that of the others, and the scale has its ends."""
    view = view_of(matrix(3, factors={(0, 1): 0.25}, noise=0), "bandwidth", relative=False, low_ratio=0.6)
    found = list(heatmap_lines(view, coloured=True))
    styles = {text.strip(): style for line in found for text, style in line if " on rgb" in style}

    assert styles["360"].startswith("rgb(0,0,0) on ")
    assert styles["90.0!"].startswith("bold ")
    assert styles["90.0!"] != styles["360"]
    assert any("Colours: 0 GB/s" in plain(line) and "360 GB/s" in plain(line) for line in found)
