"""The pair matrix as text: units, marks, notes and colours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from commwatch.node.topology.pair_matrix import PairMatrix
from heatmap.command import lines, on_terminal
from heatmap.matrices import Pair, matrix, of_gpu, slow_gpu
from support.passes import in_one_pass


def cells(found: PairMatrix, *arguments: str) -> dict[Pair, str]:
    """The text of each cell, with its mark."""
    rows = [line.split()[1:] for line in lines(found, *arguments) if line.startswith("GPU")]
    return {
        (source, target): text
        for source, row in enumerate(rows)
        for target, text in zip([one for one in range(len(rows)) if one != source], row, strict=True)
    }


def words(found: PairMatrix, *arguments: str) -> str:
    """The whole output, in one line."""
    return " ".join(" ".join(lines(found, *arguments)).split())


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


@in_one_pass(
    "arguments, made, heading",
    [
        ((), {}, "Bandwidth, one way (GB/s)"),
        ((), {"bandwidth": 5e8}, "Bandwidth, one way (MB/s)"),
        (("--quantity", "latency"), {}, "Latency (µs)"),
        (("--quantity", "latency"), {"latency": 20e-3}, "Latency (ms)"),
        (("--quantity", "both-ways"), {}, "Bandwidth each way, both ways at once (GB/s)"),
        (("--relative",), {}, "Bandwidth, one way, in percent of what is expected"),
    ],
)
def test_the_heading_says_quantity_and_unit(
    arguments: tuple[str, ...], made: Mapping[str, Any], heading: str
) -> None:  # fmt: skip
    """Percent stands once, with what 100 % is."""
    assert lines(matrix(3, **made), *arguments)[0] == heading


def test_all_cells_have_one_unit() -> None:
    """A slow cell of a fast matrix is not in MB/s, which would read as more."""
    found = cells(matrix(4, factors={(0, 1): 0.001}, noise=0))

    assert (found[0, 1], found[1, 0]) == ("0.360!", "360")


def test_eight_gpus_fit_eighty_columns() -> None:
    """In every quantity, with marks, absolute and relative."""
    for quantity in ("bandwidth", "latency", "both-ways"):
        for relative in ((), ("--relative",)):
            assert max(map(len, lines(slow_gpu(), "--quantity", quantity, *relative))) <= 80


def test_a_large_matrix_is_cut_where_the_terminal_ends() -> None:
    """16 GPUs on 80 columns: two blocks of eight columns with all rows; in a pipe there is one."""
    made = matrix(16, factors={(0, 1): 0.25})
    found = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(made, 80)).splitlines()
    heads = [line.split() for line in found if line.lstrip().startswith("GPU") and line.startswith(" ")]

    assert heads == [[f"GPU{place}" for place in range(8)], [f"GPU{place}" for place in range(8, 16)]]
    assert sum(line.startswith("GPU15 ") for line in found) == 2
    assert max(map(len, found)) <= 80
    assert sum(line.startswith("GPU15 ") for line in lines(made)) == 1


@in_one_pass("columns", [60, 40, 30])
def test_a_narrow_terminal_without_colour_has_narrow_lines(columns: int) -> None:
    """Sentences are folded there too, and a matrix has one column at least; NO_COLOR leaves numbers and marks."""
    found = re.sub(r"\x1b\[[12]?0?m", "", on_terminal(slow_gpu(), columns))

    assert "\x1b" not in found
    assert "Colours" not in found
    assert "A  GPU3 is slow" in found
    assert max(map(len, found.splitlines())) <= columns


def test_colour_shows_what_is_slow_and_the_scale() -> None:
    """The style of a slow cell differs from that of the others, and the scale has its ends."""
    found = on_terminal(matrix(3, factors={(0, 1): 0.25}, noise=0), 80, coloured=True)
    parts = re.findall(r"\x1b\[([0-9;]+)m([^\x1b]*)", found)
    styles = {text.strip(): style for style, text in parts if "48;2" in style}

    assert styles["360"].startswith("38;2;0;0;0;48;2;")
    assert styles["90.0!"].startswith("1;")
    assert styles["90.0!"].partition("48;2")[2] != styles["360"].partition("48;2")[2]
    scale = next(line for line in re.sub(r"\x1b\[[0-9;]*m", "", found).splitlines() if "Colours: " in line)
    assert "Colours: 0 GB/s" in scale
    assert "360 GB/s" in scale


def test_one_gpu_has_no_pair() -> None:
    """Which is no gap in what was measured."""
    assert "One GPU alone has no pair." in lines(matrix(1))


def test_a_simulated_node_is_called_so_first() -> None:
    """Before any number."""
    assert lines(matrix(2, simulated_node="h100x8"))[0] == "Simulated node h100x8: none of this is real."


def test_ranks_without_gpus_are_called_so() -> None:
    """As gloo measures them."""
    ends = tuple(msgspec.structs.replace(one, device="", pci_address="") for one in matrix(2).endpoints)

    assert [line.split()[0] for line in lines(matrix(2, endpoints=ends)) if line.startswith("rank")] == [
        "rank0", "rank1",
    ]  # fmt: skip


def test_gaps_are_explained() -> None:
    """A pair that was not measured, which is not 0, and a value without an expectation."""
    found = matrix(3, missing=[(0, 1)])
    assert cells(found)[0, 1] == "-"
    assert "-  not measured" in lines(found)
    assert "-  not measured" not in lines(matrix(3))
    unknown = matrix(3, expected=None)
    assert set(cells(unknown, "--relative").values()) == {"?"}
    assert "?  measured, but nothing is known to hold it against" in lines(unknown, "--relative")
    assert "Nothing to hold the values against." in lines(unknown, "--relative")


def test_a_matrix_without_any_result_says_so() -> None:
    """No extremes of nothing."""
    every = [(source, target) for source in range(3) for target in range(3)]
    assert "Nothing was measured." in lines(matrix(3, missing=every))


def test_relative_is_in_percent_of_what_is_expected() -> None:
    """Whole percent; nothing says what a latency should be: there 100 % is what pairs of the same class give."""
    assert cells(matrix(4, bandwidth=180e9, expected=360e9, noise=0), "--relative")[0, 1].startswith("50")

    latency = matrix(4, factors={(0, 1): 0.5}, noise=0)
    found = cells(latency, "--relative", "--quantity", "latency")
    assert (found[0, 1].rstrip("!"), found[1, 2]) == ("200", "100")
    assert "median over pairs of the same path class" in words(latency, "--relative", "--quantity", "latency")


def marked(found: PairMatrix, mark: str) -> set[Pair]:
    return {cell for cell, text in cells(found).items() if text.endswith(mark)}


def test_a_suspects_cells_carry_its_letter_and_low_ones_a_mark() -> None:
    """A cell that a suspect explains is not marked as merely low."""
    assert marked(slow_gpu(3), "A") == set(of_gpu(3))
    assert marked(slow_gpu(3), "!") == set()
    assert "A  GPU3 is slow to and from every other GPU" in "\n".join(lines(slow_gpu(3)))
    assert "(confidence 97 %)" in words(slow_gpu(3))
    certain = tuple(msgspec.structs.replace(one, confidence=0.998) for one in slow_gpu(3).suspects)
    assert "(confidence above 99 %)" in words(matrix(8, suspects=certain))

    low = matrix(4, factors={(0, 1): 0.5})
    assert (marked(low, "!"), marked(low, "A")) == ({(0, 1)}, set())


def test_just_above_the_threshold_nothing_is_marked() -> None:
    """60 % of the expected value is not below it."""
    known: dict[str, Any] = {"bandwidth": 100e9, "expected": 100e9, "noise": 0.0}
    assert marked(matrix(4, factors={(0, 1): 0.6}, **known), "!") == set()
    assert marked(matrix(4, factors={(0, 1): 0.599}, **known), "!") == {(0, 1)}
    assert marked(matrix(4, expected=None, factors={(0, 1): 0.1}), "!") == set()


def test_the_slowest_cells_are_told_first() -> None:
    """With both numbers and the path."""
    found = words(matrix(4, bandwidth=100e9, expected=100e9, factors={(0, 1): 0.5, (2, 3): 0.2}, noise=0))

    assert (
        "2 pairs are below 60 % of what the path should carry: GPU2 to GPU3 over NV18 20 GB/s, 20 % of 100 GB/s; "
        "GPU0 to GPU1 over NV18 50 GB/s, 50 % of 100 GB/s" in found
    )
