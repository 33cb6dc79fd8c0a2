"""Measured values beside the paths: what belongs to this machine, what contradicts its topology, how it is shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from commwatch.findings.slow_pairs import measured_on
from commwatch.node.topology.measured import Measured, is_stale, laid_over
from commwatch.node.topology.model import Topology
from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix, Suspect
from support.facts import shipped
from support.passes import in_one_pass
from topology.harness import codes, driver, finding, gpu, links, printed, shown, topology
from topology.trees import Tree, hgx, rtx3090x4

CARDS = ("0000:23:00.0", "0000:24:00.0", "0000:63:00.0", "0000:64:00.0")
HGX = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")
NOW = 2_000_000.0

Rates = Mapping[tuple[int, int], float]


def matrix(
    rates: Rates, addresses: tuple[str, ...] = CARDS, expected: float | None = 12.0, **fields: Any
) -> PairMatrix:  # fmt: skip
    """Pairs with their GB/s, and those expected; one stands for both directions unless the other one is given too."""
    both = {**{(target, source): rate for (source, target), rate in rates.items()}, **rates}
    cells = tuple(
        PairCell(
            source=source,
            destination=target,
            latency_seconds=1e-4 / rate,
            bandwidth=rate * 1e9,
            expected_bandwidth=None if expected is None else expected * 1e9,
            path="PIX",
        )
        for (source, target), rate in sorted(both.items())
    )
    known: dict[str, Any] = {
        "taken_at": NOW - 7200,
        "backend": "nccl",
        "nccl_version": "2.27.3",
        "latency_bytes": 8,
        "bandwidth_bytes": 2**24,
        "endpoints": tuple(
            PairEndpoint(label=str(place), device=f"GPU-{place}", pci_address=address)
            for place, address in enumerate(addresses)
        ),
        "cells": cells,
    }
    return PairMatrix(**(known | fields))


def cards(root: Path) -> Topology:
    """Four cards, two and two under a switch, all below one NUMA node."""
    rtx3090x4(root)
    return topology(root, driver(*(gpu(place, address) for place, address in enumerate(CARDS))))


def over(found: Topology, rates: Rates, **fields: Any) -> Measured:
    measured = measured_on(found, matrix(rates, **fields), NOW, shipped())
    assert isinstance(measured, Measured)
    return measured


def contradictions(found: Topology, rates: Rates, **fields: Any) -> list[Any]:
    return contradicting(found, over(found, rates, **fields))


def contradicting(found: Topology, measured: Measured | str) -> list[Any]:
    """The findings of a measurement."""
    assert isinstance(measured, Measured)
    return [one for one in shown(found, measured).findings if one.code.startswith("measured")]


PIX_SLOW = {(0, 1): 3.1, (2, 3): 3.2, (0, 2): 9.8, (0, 3): 9.5, (1, 2): 9.6, (1, 3): 9.4}
AS_PROMISED = {(0, 1): 12.0, (2, 3): 12.1, (0, 2): 9.8, (0, 3): 9.5, (1, 2): 9.6, (1, 3): 9.4}


def test_a_pair_under_one_switch_that_is_the_slow_one_is_told(tmp_path: Path) -> None:
    """Whatever the topology promises: the published case of four RTX 3090 (200 h per epoch against 120 h)."""
    (told,) = contradictions(cards(tmp_path), PIX_SLOW)

    assert told.code == "measured_nearer_slower"
    assert told.components == ("GPU0-GPU1", "GPU2-GPU3")
    assert told.text.startswith(
        "GPU0-GPU1 under one PCIe switch (PIX) carry 3.1 GB/s, less than GPU0-GPU2 across the CPU (NODE) with 9.8 GB/s"
    )
    assert told.meaning.startswith("Train on 0,2 rather than 0,1: CUDA_VISIBLE_DEVICES=0,2")


def test_indexes_out_of_pci_order_are_not_given_as_numbers_for_cuda(tmp_path: Path) -> None:
    """CUDA counts by PCI address: under the driver's numbers it would take other GPUs."""
    rtx3090x4(tmp_path)
    found = topology(tmp_path, driver(*(gpu(place, address) for place, address in enumerate(CARDS[2:] + CARDS[:2]))))

    (told,) = contradictions(found, PIX_SLOW)

    assert told.meaning.startswith("Train on GPU0-GPU2 rather than on GPU0-GPU1. Look at")


def test_the_advice_of_the_topology_gives_way_to_the_measurement(tmp_path: Path) -> None:
    """Two findings must not recommend opposite pairs."""
    found = cards(tmp_path)
    advice = {
        kind: finding(shown(found, given), "gpu_groups").meaning
        for kind, given in (("measured", over(found, PIX_SLOW)), ("unknown", ""))
    }

    assert "CUDA_VISIBLE_DEVICES=0,1" in advice["unknown"]
    assert "CUDA_VISIBLE_DEVICES=0,1" not in advice["measured"]
    assert "choose by the measurement" in advice["measured"]


def test_what_is_as_promised_is_no_finding(tmp_path: Path) -> None:
    """Nor is a nearer pair that is only a little slower, which probes of healthy machines show."""
    found = cards(tmp_path)

    assert contradictions(found, AS_PROMISED) == []
    assert contradictions(found, AS_PROMISED | {(0, 1): 8.5, (2, 3): 8.4}) == []
    assert codes(shown(found, over(found, AS_PROMISED | {(0, 1): 8.0})))[0] == "measured_nearer_slower"


def test_a_nearer_pair_must_be_below_its_share_of_the_farther_ones(tmp_path: Path) -> None:
    """Exactly at 85 % of what is usual farther away it is not told; a little below it is."""
    found = cards(tmp_path)
    farther = {(0, 2): 8.0, (0, 3): 8.0, (1, 2): 8.0, (1, 3): 8.0, (2, 3): 8.0}

    assert contradictions(found, farther | {(0, 1): 0.85 * 8.0}, expected=None) == []
    assert len(contradictions(found, farther | {(0, 1): 0.849 * 8.0}, expected=None)) == 1


def test_a_site_says_itself_how_much_slower_counts(tmp_path: Path) -> None:
    """As it does for the findings of the daemon."""
    found, rates = cards(tmp_path), AS_PROMISED | {(0, 1): 8.0}
    lower = replace(shipped(), pair_nearer_low_ratio=0.5)
    measured = measured_on(found, matrix(rates), NOW, lower)

    assert contradicting(found, measured) == []


def test_only_the_slow_one_of_two_near_pairs_is_told_and_the_other_recommended(tmp_path: Path) -> None:
    """The best pair is the one to train on, wherever it lies."""
    (told,) = contradictions(cards(tmp_path), AS_PROMISED | {(0, 1): 3.1})

    assert told.components == ("GPU0-GPU1",)
    assert told.meaning.startswith("Train on 2,3 rather than 0,1")


def test_one_slow_direction_makes_a_pair_slow(tmp_path: Path) -> None:
    """A ring goes through both."""
    (told,) = contradictions(cards(tmp_path), AS_PROMISED | {(0, 1): 12.0, (1, 0): 2.0})

    assert told.components == ("GPU0-GPU1",)
    assert "carry 2 GB/s" in told.text


def test_a_pair_much_slower_than_others_of_its_class_is_told(tmp_path: Path) -> None:
    """Below 60 % of what is expected, as the findings of the daemon have it; not at it."""
    found = cards(tmp_path)

    (told,) = contradictions(found, AS_PROMISED | {(1, 3): 5.0})
    assert (told.code, told.components) == ("measured_slow_pair", ("GPU1-GPU3",))
    assert told.text == "Measured slow: GPU1-GPU3 5 GB/s; the other NODE pairs carry 9.6 GB/s in the median."
    assert contradictions(found, AS_PROMISED | {(1, 3): 7.21}) == []
    assert len(contradictions(found, AS_PROMISED | {(1, 3): 7.19})) == 1


def test_a_gpu_that_all_slow_pairs_share_is_named_in_their_place(tmp_path: Path) -> None:
    """Eight GPUs behind NVSwitches, one of which is slow with every other."""
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(HGX)]
    found = topology(hgx(tmp_path).root, driver(*gpus))
    rates = {(one, two): 100.0 if 2 in (one, two) else 360.0 for one in range(4) for two in range(one + 1, 4)}

    (told,) = contradictions(found, rates, addresses=HGX, expected=360.0)

    assert told.components == ("GPU2",)
    assert told.text.startswith("GPU2 carries at least 100 GB/s and at most 100 GB/s with 3 of the other GPUs")


def test_a_gpu_that_the_driver_lost_since_is_judged_too(tmp_path: Path) -> None:
    """It has no index any more; and the names of the ends in a file are whatever a program wrote."""
    rtx3090x4(tmp_path)
    found = topology(tmp_path, driver(*(gpu(place, address) for place, address in enumerate(CARDS[:3]))))
    ends = tuple(PairEndpoint(label=f"<{place}>", pci_address=address) for place, address in enumerate(CARDS))

    (told,) = contradictions(found, AS_PROMISED | {(1, 3): 5.0}, endpoints=ends)

    assert told.components == ("GPU1-(64:00.0)",)


def test_pairs_that_a_suspected_part_explains_are_slow(tmp_path: Path) -> None:
    """As three matrices have named it, also where nothing is expected; not one of which they are unsure."""
    found = cards(tmp_path)
    rates = AS_PROMISED | {(1, 3): 7.5, (1, 2): 7.6}
    suspect = Suspect(
        kind="gpu", element="GPU1", confidence=0.95, slowdown=1.3, cells=((1, 3), (3, 1), (1, 2)), words="GPU1: slow"
    )
    unsure = msgspec.structs.replace(suspect, confidence=0.3)

    (told,) = contradictions(found, rates, expected=None, suspects=(suspect,))
    assert (told.code, told.components) == ("measured_slow_pair", ("GPU1",))
    assert told.text.startswith("GPU1 carries at least 7.5 GB/s and at most 7.6 GB/s with 2 of the other GPUs; ")
    assert contradictions(found, rates, expected=None, suspects=(unsure,)) == []


def test_what_was_not_measured_contradicts_nothing(tmp_path: Path) -> None:
    """A pair of which one direction is missing has no value; nor is a single pair slow of which nothing is expected."""
    found = cards(tmp_path)
    (cell, *others) = matrix(PIX_SLOW).cells
    half = (msgspec.structs.replace(cell, bandwidth=None), *others)
    laid = measured_on(found, msgspec.structs.replace(matrix(PIX_SLOW), cells=half), NOW, shipped())

    [pair] = contradicting(found, laid)
    assert pair.components == ("GPU2-GPU3",)
    assert contradictions(found, {(0, 1): 3.0}, expected=None) == []
    [single] = contradictions(found, {(0, 1): 3.0})
    assert single.text == "Measured slow: GPU0-GPU1 3 GB/s; there is no other PIX pair, and 12 GB/s is expected."


def test_gpus_of_another_machine_are_not_taken_for_ours(tmp_path: Path) -> None:
    """The UUID decides, also where the slot is the same; without one the slot does."""
    found = cards(tmp_path)
    ends = matrix(PIX_SLOW).endpoints
    others = tuple(msgspec.structs.replace(one, device=f"other-{one.label}") for one in ends)
    silent = tuple(msgspec.structs.replace(one, device="") for one in ends)

    assert laid_over(found, matrix(PIX_SLOW, endpoints=others), NOW) == (
        "the values were measured on GPUs that are not here"
    )
    one_new = (*ends[:3], others[3])
    assert "not here any more: GPU3" in str(laid_over(found, matrix(PIX_SLOW, endpoints=one_new), NOW))
    assert isinstance(laid_over(found, matrix(PIX_SLOW, endpoints=silent), NOW), Measured)


def test_part_of_the_gpus_is_enough(tmp_path: Path) -> None:
    """A probe may leave some out."""
    some = over(cards(tmp_path), {(0, 1): 3.0}, addresses=CARDS[:2])

    assert len(some.cells) == 2


@in_one_pass(
    "age, interval, stale",
    [(1700, 60, False), (1900, 60, True), (3 * 86400 - 1, 86400, False), (3 * 86400 + 1, 86400, True), (-5, 60, False)],
)  # fmt: skip
def test_values_age(age: float, interval: float, stale: bool) -> None:
    """Three intervals of the probe, and half an hour at least; a clock that was set back makes nothing stale."""
    assert is_stale(age, interval) is stale


def printed_with(found: Topology, rates: Rates, folder: Path) -> list[str]:
    """The output of the command with a matrix of two hours ago."""
    file = folder / "pairs.json"
    file.write_bytes(msgspec.json.encode(matrix(rates, taken_at=time.time() - 7200)))
    return printed(found, "--pairs", str(file))


def test_the_text_has_a_line_for_each_class(tmp_path: Path) -> None:
    """With the number of ordered pairs, what was expected, the range of what was measured, and the age."""
    found = cards(tmp_path)
    lines = printed_with(found, PIX_SLOW, tmp_path)
    start = lines.index("Measured, one direction")

    assert lines[start + 1] == "  2 h ago, backend nccl, NCCL 2.27.3, 16 MiB a message; each pair in both"
    assert [line.split() for line in lines[start + 3 : start + 6]] == [
        ["path", "pairs", "expected", "bandwidth", "latency"],
        ["PIX", "4", "12", "GB/s", "3.1", "GB/s", "to", "3.2", "GB/s", "31.3", "µs", "to", "32.3", "µs"],
        ["NODE", "8", "12", "GB/s", "9.4", "GB/s", "to", "9.8", "GB/s", "10.2", "µs", "to", "10.6", "µs"],
    ]


def test_without_values_the_text_says_why_and_how_to_get_them(tmp_path: Path) -> None:
    """But not where there are values, nor where there is no pair of GPUs."""
    found = cards(tmp_path / "four")
    text = " ".join(" ".join(printed(found)).split())
    assert "Nothing is known. To measure: commwatch probe --pairs --json" in text
    assert not any("To measure" in line for line in printed_with(found, PIX_SLOW, tmp_path))

    tree = Tree(tmp_path / "one")
    tree.add("pci0000:00", "0000:00:05.0", kind="gpu")
    assert not any("Measured" in line for line in printed(topology(tree.root)))


def test_the_document_has_the_values_beside_each_path(tmp_path: Path) -> None:
    """Both directions, with what the measurement was; null where a path was not measured."""
    found = cards(tmp_path)
    measured = over(found, {(0, 1): 3.0, (1, 0): 2.0})
    node = msgspec.to_builtins(shown(found, measured))

    assert node["measurement"] == {
        "taken_at": NOW - 7200, "age_seconds": 7200.0, "backend": "nccl", "nccl_version": "2.27.3",
        "latency_bytes": 8, "bandwidth_bytes": 2**24,
    }  # fmt: skip
    ways = {(one["source"], one["target"]): one["measured"] for one in node["paths"]}
    assert ways["GPU0", "GPU1"]["forward"] == {
        "bytes_per_second": 3e9, "both_ways_bytes_per_second": None, "latency_seconds": 1e-4 / 3,
        "expected_bytes_per_second": 12e9,
    }  # fmt: skip
    assert ways["GPU0", "GPU1"]["back"]["bytes_per_second"] == 2e9
    assert ways["GPU0", "GPU2"] is None

    unknown = shown(found, "stale")
    assert (unknown.measurement, unknown.measurement_note) == (None, "stale")
