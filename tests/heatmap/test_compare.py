"""Two pair matrices held against each other."""

from __future__ import annotations

from typing import Any

import msgspec

from commwatch.node.topology.pair_matrix import PairMatrix
from heatmap.command import compared, lines
from heatmap.matrices import endpoints, matrix, of_gpu
from support.passes import in_one_pass


def changed(found: PairMatrix, **fields: Any) -> PairMatrix:
    return msgspec.structs.replace(found, **fields)


def notes(before: PairMatrix, now: PairMatrix, *arguments: str) -> list[str]:
    """The notes beneath the matrix, each in one line."""
    found: list[str] = []
    for line in lines(now, *arguments, before=before):
        if line.startswith("-  ") and line != "-  not measured":
            found.append(line)
        elif found and line.startswith("   "):
            found[-1] += f" {line.strip()}"
    return found


def test_equal_matrices_have_no_change() -> None:
    """Every cell at 100 %, nothing listed, comparable."""
    found = compared(matrix(4), matrix(4), "--quantity", "latency")

    assert [one["ratio"] for one in found["changes"]] == [1.0] * 12
    assert notes(matrix(4), matrix(4), "--quantity", "latency") == ["-  No pair changed by more than 5 %"]
    assert found["not_comparable"] == []


def test_the_largest_changes_are_listed_first() -> None:
    """With both values, the ratio, and whether that is slower; small ones are left out."""
    now = matrix(4, bandwidth=100e9, factors={(0, 1): 0.9, (2, 3): 0.25, (1, 2): 1.04}, noise=0)

    assert notes(matrix(4, bandwidth=100e9, noise=0), now) == [
        "-  GPU2 to GPU3: 100 GB/s before, 25 GB/s now, 25 % of before: slower",
        "-  GPU0 to GPU1: 100 GB/s before, 90 GB/s now, 90 % of before: slower",
    ]


def test_more_time_is_slower() -> None:
    """Of latency a larger number is the worse one, also where the extremes are told."""
    before, now = matrix(3, noise=0), matrix(3, factors={(0, 1): 0.5}, noise=0)

    assert notes(before, now, "--quantity", "latency")[0].endswith("200 % of before: slower")
    told = " ".join(lines(now, "--quantity", "latency", before=before))
    assert "GPU0 to GPU1 200 %;" in told


def test_a_gpu_all_of_whose_pairs_changed_is_told_once() -> None:
    """Not fourteen pairs of it."""
    now = matrix(8, factors=dict.fromkeys(of_gpu(3), 0.5) | {(0, 1): 0.7}, noise=0)

    assert notes(matrix(8, noise=0), now) == [
        "-  All pairs of GPU3: 50 % of before in the median: slower",
        "-  GPU0 to GPU1: 360 GB/s before, 252 GB/s now, 70 % of before: slower",
    ]


def test_all_pairs_at_once_are_told_as_such() -> None:
    """And the largest of them follow."""
    found = notes(matrix(4, noise=0), matrix(4, bandwidth=720e9, noise=0))

    assert found[0] == "-  All pairs: 200 % of before in the median"
    assert found[-1] == "-  and 6 further pairs that changed by more than 5 %"


@in_one_pass(
    "fields, reason",
    [
        ({"bandwidth_bytes": 2**20}, "size: 16 MiB before, 1 MiB now"),
        ({"nccl_version": "2.28.1"}, "NCCL version: 2.27.3 before, 2.28.1 now"),
        ({"settings_digest": "deadbeef"}, "NCCL settings: none before, deadbeef now"),
        ({"backend": "gloo"}, "backend: nccl before, gloo now"),
        ({"simulated_node": "h100x8"}, "node: a real one before, h100x8 now"),
        ({"endpoints": endpoints(4, "NVIDIA A100")}, "GPU model: NVIDIA H100 80GB HBM3 before, NVIDIA A100 now"),
    ],
)  # fmt: skip
def test_what_makes_them_not_comparable_is_named(fields: dict[str, Any], reason: str) -> None:
    """The ratios are there all the same."""
    now = changed(matrix(4), **fields)
    found = compared(matrix(4), now)

    assert found["not_comparable"] == [reason]
    assert notes(matrix(4), now)[0] == f"-  Not comparable: {reason}"
    assert len(found["changes"]) == 12


def test_the_size_of_the_other_quantity_does_not_count() -> None:
    """Latency is of small messages, whatever the large ones were."""
    found = compared(matrix(3), changed(matrix(3), bandwidth_bytes=2**20), "--quantity", "latency")

    assert found["not_comparable"] == []


def test_gpus_are_found_again_by_uuid() -> None:
    """An index moves when a card is lost; the card's pairs are compared with its own."""
    before = matrix(3, factors={(0, 1): 0.5}, noise=0)
    first, second, third = before.endpoints
    swapped = (
        msgspec.structs.replace(second, label="0"),
        msgspec.structs.replace(first, label="1"),
        third,
    )
    now = changed(matrix(3, factors={(1, 0): 0.5}, noise=0), endpoints=swapped)

    assert {one["ratio"] for one in compared(before, now)["changes"]} == {1.0}


def test_an_exchanged_gpu_is_not_compared() -> None:
    """It is named, and its pairs are only in one of the two."""
    now = matrix(3)
    exchanged = (*now.endpoints[:2], msgspec.structs.replace(now.endpoints[2], device="GPU-new"))
    found = compared(matrix(3), changed(now, endpoints=exchanged))

    assert found["not_comparable"] == ["GPU2 is another GPU than before, and not compared"]
    assert {(one["source"], one["destination"]) for one in found["changes"]} == {("GPU0", "GPU1"), ("GPU1", "GPU0")}
    assert found["only_now"] == [["GPU0", "GPU2"], ["GPU1", "GPU2"], ["GPU2", "GPU0"], ["GPU2", "GPU1"]]
    assert len(found["only_before"]) == 4


def test_another_node_is_compared_by_index_and_said_to_be_another() -> None:
    """Two nodes of one build may be held against each other, with that word."""
    other = tuple(msgspec.structs.replace(one, device=f"X{one.device}") for one in endpoints(3))
    found = compared(matrix(3), changed(matrix(3), endpoints=other))

    assert found["not_comparable"] == ["these are other GPUs, compared by their indexes"]
    assert len(found["changes"]) == 6


def test_a_pair_that_was_measured_once_only_is_told() -> None:
    """Absent is not slow."""
    found = notes(matrix(3), matrix(3, missing=[(0, 1)]))

    assert found == ["-  No pair changed by more than 5 %", "-  Measured only before: GPU0 to GPU1"]
    assert notes(matrix(2), matrix(2, missing=[(0, 1), (1, 0)]))[0] == "-  No pair was measured both times"
