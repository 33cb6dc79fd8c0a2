"""The part that slow cells have in common: right, silent in health, honest about what pairs cannot tell apart."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import msgspec
import pytest

from analysis.culprit_cases import (
    Daemon,
    Scene,
    dice,
    judged,
    judged_one_way,
    pair_matrix,
    parts_of,
    quiet,
    suspects_in_health,
    suspects_with,
)
from analysis.culprit_generator import Fault, fault_of, one_way_fault_of, two_faults, unrelated_cells
from analysis.culprit_nodes import NODES, Part, direct, nvswitch
from commwatch.node.topology.pair_matrix import PairMatrix, Suspect
from commwatch.node.topology.ways import Parts
from commwatch.probes.results.culprit import find_suspects, keep_good, looks_slow
from support.passes import in_one_pass

SMALL = [node for nodes in NODES.values() for node in nodes if 2 < node.gpus <= 8]
EIGHT = nvswitch(8)
GPU3 = Part("gpu", "GPU3")
SLOW = Fault(EIGHT.cells(GPU3), 1 / 0.7)


def named(suspects: tuple[Suspect, ...]) -> list[tuple[str, str]]:
    return [(one.kind, one.element) for one in suspects]


@cache
def single_faults(scene: Scene) -> Counter[str]:
    """Verdicts on up to two parts of every machine of up to eight GPUs, at 70 % of the bandwidth."""
    random = dice(scene)
    return Counter(
        judged(node, part, suspects_with(node, random, [fault_of(node, part, 0.7, random)], scene), scene)
        for node in SMALL
        for part in random.sample(node.parts, min(2, len(node.parts)))
    )


@pytest.mark.parametrize("scene", ["known", "new"])
def test_the_part_at_fault_is_named_first(scene: Scene) -> None:
    """In at least 95 % of the cases in which the matrices show it at all, and never a part where they show nothing."""
    verdicts = single_faults(scene)
    seen = verdicts["right"] + verdicts["wrong"] + verdicts["nobody"]
    assert seen > 30
    assert verdicts["right"] >= 0.95 * seen, verdicts
    assert verdicts["hidden, somebody named"] == 0
    assert (verdicts["hidden"] > 0) == (scene == "new")


def test_a_healthy_machine_has_no_suspect() -> None:
    """With spikes, bursts, missing cells, ramp and mixed classes: nobody in dozens of sequences."""
    random = dice("healthy")
    found = [(node.shape, one) for _ in range(2) for node in SMALL for one in suspects_in_health(node, random)]
    assert found == []


def test_two_parts_at_once_are_both_named() -> None:
    """In at least nine of ten cases in which they can be told apart."""
    random, both = dice("two"), 0
    for number in range(20):
        node = SMALL[number % len(SMALL)]
        parts, faults = two_faults(node, 0.7, random)
        suspects = suspects_with(node, random, faults, "known")
        both += all(any(judged(node, part, [one], "known") == "right" for one in suspects) for part in parts)
    assert both >= 18


def test_one_direction_of_a_part_is_named_as_such() -> None:
    """Only what a part lets out, or only what it lets in, is slow: the cells of the suspect are those."""
    random = dice("one way")
    verdicts = Counter(
        judged_one_way(
            node, fault := one_way_fault_of(node, 0.7, random), suspects_with(node, random, [fault], "known")
        )
        for node in SMALL
    )
    assert verdicts["right"] >= 0.95 * len(SMALL), verdicts


def test_cells_with_nothing_in_common_accuse_nobody_but_themselves() -> None:
    """Two ordered pairs of four GPUs: the pairs are named, or nobody, and no part that other pairs use."""
    random = dice("unrelated")
    several = [
        one
        for node in SMALL
        for one in suspects_with(node, random, [unrelated_cells(node, 0.7, random)], "known")
        if len({frozenset(cell) for cell in one.cells}) > 1
    ]
    assert several == []


def test_three_matrices_in_a_row_are_needed() -> None:
    """Two slow ones name nobody, the third does, and a good one ends it."""
    machine, daemon = quiet(EIGHT), Daemon(EIGHT)
    for _ in range(3):
        assert daemon.take(machine.matrix()) == ()
    assert daemon.take(machine.matrix([SLOW])) == ()
    assert daemon.take(machine.matrix([SLOW])) == ()
    assert named(daemon.take(machine.matrix([SLOW]))) == [("gpu", "GPU3")]
    assert daemon.take(machine.matrix()) == ()
    assert daemon.take(machine.matrix([SLOW])) == ()


def test_three_slow_matrices_with_nothing_in_common_are_no_row() -> None:
    """A GPU that is slow in one matrix, another in the next: nobody."""
    machine, daemon = quiet(EIGHT), Daemon(EIGHT)
    found = [
        daemon.take(machine.matrix([Fault(EIGHT.cells(Part("gpu", f"GPU{place}")), 1 / 0.7)])) for place in (1, 4, 6)
    ]
    assert found == [(), (), ()]


@in_one_pass("share, found", [(0.80, [("gpu", "GPU3")]), (0.92, [])])
@in_one_pass("scene", ["known", "new"])
def test_how_slow_a_part_must_be(scene: Scene, share: float, found: list[tuple[str, str]]) -> None:
    """Named from a fifth less bandwidth on; a twelfth less is within the unevenness of healthy machines."""
    machine, daemon = quiet(EIGHT), Daemon(EIGHT)
    for _ in range(4 if scene == "known" else 0):
        daemon.take(machine.matrix())
    suspects: tuple[Suspect, ...] = ()
    for _ in range(3):
        suspects = daemon.take(machine.matrix([Fault(EIGHT.cells(GPU3), 1 / share)]))
    assert named(suspects) == found


def test_what_was_always_so_is_no_suspect() -> None:
    """A GPU that has been a tenth slower from the first day on is the machine's own; a fault of 30 % is not."""
    machine, daemon = quiet(EIGHT), Daemon(EIGHT)
    for _ in range(8):
        assert daemon.take(machine.matrix([Fault(EIGHT.cells(GPU3), 1 / 0.9)])) == ()

    for share, found in ((0.9, []), (0.7, [("gpu", "GPU3")])):
        worn = keep_good((), pair_matrix(EIGHT, machine.matrix([Fault(EIGHT.cells(GPU3), 1 / share)])))
        row = [pair_matrix(EIGHT, machine.matrix([Fault(EIGHT.cells(GPU3), 1 / share)])) for _ in range(3)]
        assert named(find_suspects(row, parts_of(EIGHT.shape), worn * 4)) == found


def test_classes_of_ways_are_not_held_against_each_other() -> None:
    """NVLink at ten times the bandwidth of PCIe makes no PCIe pair slow, on the first day and later."""
    node = next(one for one in SMALL if one.shape.startswith("bridges"))
    machine, daemon = quiet(node), Daemon(node)
    assert [daemon.take(machine.matrix()) for _ in range(6)] == [()] * 6


def test_a_slow_decline_does_not_become_the_measure_of_itself() -> None:
    """The first good matrices stay; the whole machine 1 % slower each time is named long before it is half as fast."""
    node = nvswitch(4)
    machine, daemon = quiet(node), Daemon(node)
    everything = frozenset(node.ways)
    for number in range(70):
        if suspects := daemon.take(machine.matrix([Fault(everything, 1.01**number)])):
            assert named(suspects) == [("node", "node0")]
            return
    pytest.fail("nobody noticed")


def test_the_whole_machine_is_named_where_every_pair_is_slow() -> None:
    """Against its own history; on the first day nothing says what it should give."""
    machine, daemon = quiet(EIGHT), Daemon(EIGHT)
    slow = Fault(frozenset(EIGHT.ways), 1 / 0.7)
    for _ in range(3):
        daemon.take(machine.matrix())
    taken = [daemon.take(machine.matrix([slow])) for _ in range(3)]
    assert named(taken[-1]) == [("node", "node0")]

    new = Daemon(EIGHT)
    assert [new.take(machine.matrix([slow])) for _ in range(3)] == [(), (), ()]


def expecting(matrix: PairMatrix, rate: float) -> PairMatrix:
    cells = tuple(msgspec.structs.replace(cell, expected_bandwidth=rate) for cell in matrix.cells)
    return msgspec.structs.replace(matrix, cells=cells)


@in_one_pass(
    "share, firm, found",
    [(0.55, True, [("node", "node0")]), (0.65, True, []), (0.55, False, [])],
)
def test_a_firm_expectation_finds_on_the_first_day_what_has_no_peers(
    share: float, firm: bool, found: list[tuple[str, str]]
) -> None:
    """All pairs below 60 % of what was configured are slow; what a model expects accuses nobody."""
    machine = quiet(EIGHT)
    rates = [cell.bandwidth for cell in pair_matrix(EIGHT, machine.matrix()).cells if cell.bandwidth]
    expected = sorted(rates)[len(rates) // 2]
    row = [
        expecting(pair_matrix(EIGHT, machine.matrix([Fault(frozenset(EIGHT.ways), 1 / share)])), expected)
        for _ in range(3)
    ]
    assert named(find_suspects(row, parts_of(EIGHT.shape), firm_expected=firm)) == found


def test_a_first_round_before_the_clocks_are_up_is_no_fault() -> None:
    """All pairs of the first round a quarter slower, every time, and history begins with it."""
    machine, daemon = quiet(EIGHT), Daemon(EIGHT)
    machine.ramp, machine.decay = 0.3, 0.4
    assert [daemon.take(machine.matrix()) for _ in range(5)] == [()] * 5


def test_latency_alone_is_seen_too() -> None:
    """A GPU whose small messages take twice as long while its bandwidth is full; below one and a half times nobody."""
    for factor, found in ((2.0, [("gpu", "GPU3")]), (1.3, [])):
        machine, daemon = quiet(EIGHT), Daemon(EIGHT)
        late = Fault(EIGHT.cells(GPU3), 1.0, factor)
        suspects = [daemon.take(machine.matrix([late])) for _ in range(3)][-1]
        assert named(suspects) == found
        assert all("times as long for a small message" in one.words for one in suspects)


def test_a_late_pair_is_late_both_ways_every_time() -> None:
    """Nothing else was measured that would tell a spike of a small message from a fault."""
    both = Fault(frozenset({(2, 5), (5, 2)}), 1.0, 4.0)
    one = Fault(frozenset({(2, 5)}), 1.0, 9.0)
    for faults, found in (([both, both, both], [("pair", "GPU2-GPU5")]), ([both, one, both], [])):
        machine, daemon = quiet(EIGHT), Daemon(EIGHT)
        taken = [daemon.take(machine.matrix([fault])) for fault in faults]
        assert named(taken[-1]) == found


def test_a_matrix_of_another_series_ends_the_row() -> None:
    """Another NCCL version, size or GPU is not compared."""
    machine = quiet(EIGHT)
    row = [pair_matrix(EIGHT, machine.matrix([SLOW])) for _ in range(3)]
    parts = parts_of(EIGHT.shape)
    assert find_suspects(row, parts)
    for changed in ({"nccl_version": "2.29.1"}, {"bandwidth_bytes": 1}, {"settings_digest": "abcd"}):
        assert find_suspects([msgspec.structs.replace(row[0], **changed), *row[1:]], parts) == ()
    fast = [pair_matrix(EIGHT, machine.matrix()) for _ in range(3)]
    other = [msgspec.structs.replace(one, nccl_version="2.29.1") for one in row]
    assert find_suspects(other, parts, fast)[0].words.count("what the others do") == 1


def test_what_pairs_cannot_tell_apart_is_named_together() -> None:
    """A GPU and its NVLinks lie on the same ways: the sentence has both, and the evidence."""
    machine = quiet(EIGHT)
    row = [pair_matrix(EIGHT, machine.matrix([SLOW])) for _ in range(3)]
    (suspect,) = find_suspects(row, parts_of(EIGHT.shape))
    assert suspect.words.startswith("GPU3 or link group GPU3: 14 of its 14 paths between two GPUs carry ")
    assert re.search(r"carry (69|70|71) % of what the others do, 3 times in a row", suspect.words)
    assert suspect.slowdown == pytest.approx(1 / 0.7, rel=0.05)
    assert set(suspect.cells) == EIGHT.cells(GPU3)
    assert suspect.confidence > 0.9


def test_a_single_matrix_may_be_asked_too() -> None:
    """For a cycle by hand: the same part, less sure, and the sentence says that it was measured once."""
    machine = quiet(EIGHT)
    row = [pair_matrix(EIGHT, machine.matrix([SLOW])) for _ in range(3)]
    (one,) = find_suspects(row[:1], parts_of(EIGHT.shape), fewest=1)
    (three,) = find_suspects(row, parts_of(EIGHT.shape))
    assert (one.element, three.element) == ("GPU3", "GPU3")
    assert one.confidence <= three.confidence
    assert ", measured once; " in one.words
    assert ", 3 times in a row; " in three.words


@in_one_pass("shape", [node.shape for node in NODES["two GPUs"]])
def test_of_two_gpus_the_pair_is_named(shape: str) -> None:
    """Every part lies on the only two ways: neither GPU is accused alone, and on the first day nobody is."""
    node = next(one for one in NODES["two GPUs"] if one.shape == shape)
    machine, known, new = quiet(node), Daemon(node), Daemon(node)
    for _ in range(3):
        assert known.take(machine.matrix()) == ()
    slow = Fault(frozenset(node.ways), 1 / 0.7)
    assert named([known.take(machine.matrix([slow])) for _ in range(3)][-1]) == [("pair", "GPU0-GPU1")]
    assert [new.take(machine.matrix([slow])) for _ in range(3)] == [()] * 3


def test_a_class_of_two_pairs_is_enough_for_three_matrices() -> None:
    """Two and two GPUs under a switch: one pair is held against the other, but one matrix names nobody yet."""
    node = next(one for one in SMALL if one.shape.startswith("PCIe, 1 × 2 switches, 4"))
    machine, daemon = quiet(node), Daemon(node)
    slow = Fault(frozenset({(0, 1), (1, 0)}), 1 / 0.7)
    taken = [machine.matrix([slow]) for _ in range(3)]
    assert [named(daemon.take(one)) for one in taken] == [[], [], [("pcie_switch", "0000:80:00.0")]]

    first = pair_matrix(node, taken[0])
    assert find_suspects([first], parts_of(node.shape), fewest=1) == ()
    assert looks_slow(first, parts_of(node.shape))
    assert not looks_slow(pair_matrix(node, machine.matrix()), parts_of(node.shape))


def test_one_direction_is_told_in_words() -> None:
    """Only what GPU3 sends is slow."""
    machine = quiet(EIGHT)
    sent = Fault(EIGHT.cells(GPU3, "out"), 1 / 0.7)
    (suspect,) = find_suspects([pair_matrix(EIGHT, machine.matrix([sent])) for _ in range(3)], parts_of(EIGHT.shape))
    assert ", only from GPU3 to the others: 7 of its 7 paths" in suspect.words


def test_confidence_is_low_where_another_explanation_is_nearly_as_good() -> None:
    """With most of its cells missing a GPU is hardly told from a pair; with all of them nothing comes near."""
    node = direct(4, False)
    machine = quiet(node)
    row = [pair_matrix(node, machine.matrix([Fault(node.cells(Part("gpu", "GPU0")), 1 / 0.7)])) for _ in range(3)]
    whole = find_suspects(row, parts_of(node.shape))
    kept = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1), (0, 2)}
    thin = [
        msgspec.structs.replace(one, cells=tuple(c for c in one.cells if (c.source, c.destination) in kept))
        for one in row
    ]
    few = find_suspects(thin, parts_of(node.shape))
    assert whole[0].element == "GPU0"
    assert not few or few[0].confidence < whole[0].confidence


def test_without_topology_only_pairs_are_named() -> None:
    """The way is not known, so no part can be."""
    machine = quiet(EIGHT)
    slow = Fault(frozenset({(2, 5), (5, 2)}), 2.0)
    row = [pair_matrix(EIGHT, machine.matrix([slow])) for _ in range(3)]
    (suspect,) = find_suspects(row, Parts({}, tuple(f"GPU{place}" for place in range(8))))
    assert (suspect.kind, suspect.element) == ("pair", "GPU2-GPU5")
    assert "nothing on the way that other pairs use is slow" in suspect.words


def test_nothing_is_made_of_nothing() -> None:
    """No matrices, or matrices without a number, have no suspect."""
    parts = parts_of(EIGHT.shape)
    empty = msgspec.structs.replace(pair_matrix(EIGHT, quiet(EIGHT).matrix()), cells=())
    assert find_suspects([], parts) == ()
    assert find_suspects([empty] * 3, parts) == ()


def test_the_first_good_matrices_are_kept_and_the_latest() -> None:
    """Four and eight of one series; another series begins again."""
    one = pair_matrix(EIGHT, quiet(EIGHT).matrix())
    good: tuple[PairMatrix, ...] = ()
    for number in range(20):
        good = keep_good(good, msgspec.structs.replace(one, taken_at=float(number)))
    assert [matrix.taken_at for matrix in good] == [0, 1, 2, 3, *range(12, 20)]
    other = msgspec.structs.replace(one, nccl_version="2.29.1")
    assert keep_good(good, other) == (other,)
