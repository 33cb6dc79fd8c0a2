"""The pattern branch: what it says of pairs, sizes and time, and that it recommends nothing that was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.by_hand.answer import Answer
from commwatch.probes.plan import Failed, Measured, Skipped, Yielded
from diagnosis.exposed import answer_of, branch_of, known_of
from heatmap.matrices import endpoints, matrix, slow_gpu
from support.facts import NOW
from support.machines import merged
from support.passes import in_one_pass

PAIRS = "bandwidth of pairs, 16 MiB"
SIZES = "small messages against large ones"
COURSE = "time of the same message over time"
LABELS = ("all_reduce", "nccl")


def gpus(count: int = 4) -> dict[str, dict[Any, float]]:
    """As many as the matrices have."""
    return {
        "commwatch_gpu_info": {
            (end.label, end.pci_address, end.device, "", end.name, ""): 1.0 for end in endpoints(count)
        }
    }  # fmt: skip


def exposed(made: PairMatrix) -> dict[str, dict[Any, float]]:
    """What the daemon exports of a matrix."""
    labels = [end.label for end in made.endpoints]
    ends = {cell: (labels[cell.source], labels[cell.destination], made.backend) for cell in made.cells}
    numbers: dict[str, dict[Any, float | None]] = {
        "commwatch_pair_bandwidth_bytes_per_second": {ends[one]: one.bandwidth for one in made.cells},
        "commwatch_pair_expected_bandwidth_bytes_per_second": {ends[one]: one.expected_bandwidth for one in made.cells},
        "commwatch_suspect_ratio": {(one.kind, one.element): one.confidence for one in made.suspects},
    }
    return {
        metric: {key: value for key, value in rows.items() if value is not None} for metric, rows in numbers.items()
    }


def both(*pairs: tuple[int, int], factor: float = 0.4) -> dict[tuple[int, int], float]:
    """Pairs that are slow in both directions."""
    return {cell: factor for pair in pairs for cell in (pair, pair[::-1])}


def over_pcie(factors: Mapping[tuple[int, int], float]) -> PairMatrix:
    """Four GPUs without NVLink, two below each PCIe switch; a model expects what they give."""
    made = matrix(4, bandwidth=12.7e9, expected=11.9e9, path="", factors=factors)
    cells = tuple(
        msgspec.structs.replace(one, path="PIX" if one.source // 2 == one.destination // 2 else "NODE")
        for one in made.cells
    )
    return msgspec.structs.replace(made, cells=cells)


def tree(count: int = 4) -> dict[str, dict[Any, float]]:
    """PCIe switches with two GPUs each, every one below a root port of its own."""
    rows = {}
    for place, end in enumerate(endpoints(count)):
        switch, root = f"0000:{80 + place // 2}:00.0", f"0000:{90 + place // 2}:00.0"
        port = f"0000:{80 + place // 2}:0{1 + place % 2}.0"
        for device, role, parent in (
            (end.pci_address, "gpu", port), (port, "switch_port", switch), (switch, "switch_port", root),
            (root, "root_port", "pci0000:00"),
        ):  # fmt: skip
            rows[device, role, parent, "0", "", ""] = 1.0
    return {"commwatch_pcie_device_info": rows}


def probe(source: str = "reference", **values: float) -> dict[str, dict[Any, float]]:
    """A probe of all_reduce with some of its numbers."""
    info = (*LABELS, "all_reduce", "8", str(64 * 2**20), "8", "2.27.3", "", "", source)
    numbers: dict[str, dict[Any, float]] = {"commwatch_probe_info": {info: 1.0}}
    return numbers | {f"commwatch_probe_{name}": {LABELS: value} for name, value in values.items()}


def healthy(**values: float) -> dict[str, dict[Any, float]]:
    """A probe that is well but for some numbers."""
    known: dict[str, Any] = {
        "last_latency_seconds": 14e-6,
        "baseline_latency_seconds": 14e-6,
        "latency_spike_streak": 0.0,
        "low_bandwidth_streak": 0.0,
        "last_bus_bandwidth_bytes_per_second": 380e9,
        "bandwidth_utilization_ratio": 0.98,
        "latency_step_ratio": 1.0,
        "bandwidth_step_ratio": 1.01,
        "latency_drift_ratio": 1.0,
        "bandwidth_drift_ratio": 1.02,
    }
    return probe(**(known | values))


def found(numbers: Mapping[str, Any], made: PairMatrix | None = None, **changes: Any) -> dict[str, Check]:
    """The checks of the branch by what they are of."""
    known: Known = replace(known_of(numbers), matrix=made, **changes)
    checks = branch_of(known, "pattern")
    for check in checks:
        assert check.verdict != "failed" or (check.measured and check.required and check.next_step)
        assert check.verdict != "not measured" or (check.detail and not check.measured)
    return {check.what: check for check in checks}


def test_where_nothing_was_measured_it_recommends_to_measure_and_nothing_else() -> None:
    """Four GPUs, no matrix, no result: no word on which GPUs to take."""
    checks = found(merged(gpus(), probe()))

    assert {check.verdict for check in checks.values()} == {"not measured"}
    steps = {check.next_step for check in checks.values()} - {""}
    assert steps == {"commwatch diagnose --full-scan measures it."}


@pytest.mark.parametrize(("count", "why"), [(0, "no GPU is known"), (1, "this node has one GPU")])
def test_pairs_do_not_apply_to_fewer_than_two_gpus(count: int, why: str) -> None:
    """And what is said names how many there are."""
    check = found(gpus(count))["pairs of GPUs"]

    assert (check.verdict, check.detail) == ("does not apply", why)


def test_an_even_matrix_passes() -> None:
    """With the median and the slowest in numbers."""
    checks = found(gpus(8), matrix())

    assert checks[PAIRS].verdict == checks["latency of pairs, 8 B"].verdict == "passed"
    assert checks[PAIRS].measured.startswith("median 359 GB/s, slowest 357 GB/s (GPU")


def of_pairs(made: PairMatrix, *numbers: dict[str, dict[Any, float]]) -> dict[str, Check]:
    """The checks of a node that exports this matrix."""
    return found(merged(gpus(len(made.endpoints)), exposed(made), *numbers), made)


def test_the_pair_under_one_switch_is_named_and_the_fastest_two_are_measured_ones() -> None:
    """Four RTX 3090: 0-1 under a switch at 5 GB/s, all others at 12.7 GB/s; the topology alone would say 0 and 1."""
    checks = of_pairs(over_pcie(both((0, 1), factor=0.4)), tree())

    check = checks[PAIRS]
    assert (check.verdict, check.where) == ("failed", "GPU0-GPU1")
    assert check.measured.startswith("median 12.6 GB/s, slowest 5.0")
    assert "A pair of GPUs is slow; GPUs under one PCIe switch are slower than distant ones" in check.detail
    assert "Until then the fastest two are GPU" in check.next_step
    assert "GPU0 and GPU1" not in check.next_step


@pytest.mark.parametrize(("factor", "verdict"), [(0.83, "notice"), (0.88, "passed")])
def test_near_pairs_are_held_against_far_ones(factor: float, verdict: str) -> None:
    """Though all pairs under switches are alike: below 85 % of the way through the CPU they are slow."""
    check = of_pairs(over_pcie(both((0, 1), (2, 3), factor=factor)), tree())[PAIRS]

    assert (check.verdict, check.where) == (verdict, "GPU0-GPU1, GPU2-GPU3" if verdict == "notice" else "")


def test_a_slow_gpu_is_named_with_the_words_of_the_suspect() -> None:
    """The same part as the finding names, with why and how sure; its pairs are not named beside it."""
    check = of_pairs(slow_gpu(3))[PAIRS]

    assert (check.verdict, check.where) == ("failed", "GPU3")
    assert check.detail.startswith("GPU3 is slow to and from every other GPU")
    assert check.next_step.startswith("commwatch heatmap shows what to check")


def test_a_suspect_by_latency_stands_with_the_latency() -> None:
    """Large messages are well."""
    slow = slow_gpu(3)
    late = tuple(msgspec.structs.replace(one, quantity="latency") for one in slow.suspects)

    checks = of_pairs(matrix(suspects=late))

    assert checks[PAIRS].verdict == "passed"
    assert (checks["latency of pairs, 8 B"].verdict, checks["latency of pairs, 8 B"].where) == ("failed", "GPU3")


def test_a_pair_that_is_slow_by_both_stands_with_both() -> None:
    """What the bandwidth shows does not pass because the latency shows it too, on a machine whose pairs differ."""
    made = over_pcie(both((0, 1), factor=0.4))
    late = msgspec.structs.replace(
        slow_gpu(3).suspects[0], kind="pair", element="GPU0-GPU1", quantity="latency", cells=((0, 1), (1, 0))
    )

    checks = of_pairs(msgspec.structs.replace(made, suspects=(late,)))

    for what in (PAIRS, "latency of pairs, 8 B"):
        assert (checks[what].verdict, checks[what].where) == ("failed", "GPU0-GPU1")


def test_the_fastest_two_are_none_that_are_named() -> None:
    """Two GPUs joined by NVLink at 40 % of it are still faster than the way over PCIe; jobs are kept off both."""
    made = over_pcie({})
    cells = tuple(
        msgspec.structs.replace(one, bandwidth=20e9, expected_bandwidth=50e9, path="NV4")
        if {one.source, one.destination} == {0, 1}
        else one
        for one in made.cells
    )

    check = of_pairs(msgspec.structs.replace(made, cells=cells))[PAIRS]

    assert (check.verdict, check.where) == ("failed", "GPU0-GPU1")
    assert "Until then the fastest two are GPU" in check.next_step
    assert "GPU0 and GPU1" not in check.next_step


def test_an_unsure_suspect_is_no_fault() -> None:
    """As for the finding: below the confidence that it takes."""
    unsure = tuple(msgspec.structs.replace(one, confidence=0.3) for one in slow_gpu(3).suspects)

    assert of_pairs(matrix(suspects=unsure))[PAIRS].verdict == "passed"


@pytest.mark.parametrize(("count", "where", "verdict"), [(4, "6 of 6 pairs", "notice"), (2, "GPU0-GPU1", "failed")])
def test_all_pairs_slow_are_no_failure_and_a_single_one_is(count: int, where: str, verdict: str) -> None:
    """What they expect may not fit the machine; two GPUs have one pair."""
    every = {(one, two): 0.4 for one in range(count) for two in range(count) if one != two}

    check = of_pairs(matrix(count, expected=360e9, factors=every))[PAIRS]

    assert (check.verdict, check.where) == (verdict, where)
    assert "Until then" not in check.next_step


def test_many_slow_pairs_are_counted() -> None:
    """Six are named."""
    check = of_pairs(matrix(expected=371e9, factors=both(*((0, one) for one in range(1, 8)), (1, 2))))[PAIRS]

    assert check.where.endswith("GPU0-GPU6, 2 more")


def test_pairs_of_ranks_without_gpus_are_not_measured() -> None:
    """A matrix of gloo tells nothing of the fabric."""
    made = matrix(4, endpoints=tuple(type(end)(label=end.label) for end in endpoints(4)))

    assert found(gpus(), made)["bandwidth of pairs"].verdict == "not measured"


def test_probes_that_are_well_stand_in_one_line() -> None:
    """With the worst ratio of each side."""
    check = found(merged(gpus(8), healthy()), matrix())[SIZES]

    assert (check.verdict, check.where) == ("passed", "all_reduce")
    assert check.measured == "latency at most 1.00 times the usual; bandwidth at least 98 % of what is expected"


@in_one_pass(
    "values, verdict, says",
    [
        ({"last_latency_seconds": 42e-6, "latency_spike_streak": 3.0}, "failed", "A problem of latency"),
        ({"last_latency_seconds": 42e-6, "latency_spike_streak": 1.0}, "notice", ""),
        ({"last_latency_seconds": 20.9e-6}, "passed", ""),
        ({"last_latency_seconds": 21.1e-6}, "notice", ""),
        ({"bandwidth_utilization_ratio": 0.4, "low_bandwidth_streak": 3.0}, "failed", "A problem of bandwidth"),
        ({"bandwidth_utilization_ratio": 0.59, "low_bandwidth_streak": 1.0}, "notice", ""),
        ({"bandwidth_utilization_ratio": 0.61}, "passed", ""),
        (
            {
                "last_latency_seconds": 42e-6, "latency_spike_streak": 3.0, "bandwidth_utilization_ratio": 0.4,
                "low_bandwidth_streak": 3.0,
            },
            "failed",
            "Small and large messages are slow",
        ),
    ],
)  # fmt: skip
def test_small_or_large_messages_or_both(values: dict[str, float], verdict: str, says: str) -> None:
    """One result is worth a notice; three in a row are a fault."""
    check = found(merged(gpus(8), healthy(**values)), matrix())[SIZES]

    assert check.verdict == verdict
    assert check.detail.startswith(says)


def test_probes_that_show_the_same_stand_in_one_line_with_the_worst() -> None:
    """Two below what is expected by different shares, and one that is well."""
    numbers = healthy()
    for name, share in (("a", 0.5), ("b", 0.4)):
        info = (name, "nccl", "all_gather", "32", str(64 * 2**20), "8", "2.27.3", "", "", "reference")
        shown = {
            "last_latency_seconds": 14e-6, "bandwidth_utilization_ratio": share, "low_bandwidth_streak": 3.0,
        }  # fmt: skip
        some = {f"commwatch_probe_{metric}": {(name, "nccl"): value} for metric, value in shown.items()}
        numbers = merged(numbers, {"commwatch_probe_info": {info: 1.0}}, some)

    lines = [check for check in branch_of(known_of(numbers), "pattern") if check.what == SIZES]

    assert [(line.verdict, line.where) for line in lines] == [("failed", "a, b"), ("passed", "all_reduce")]
    assert lines[0].measured.startswith("b: 32 B 14 µs; 64 MiB - (40 %")


def test_without_a_baseline_latency_is_not_judged() -> None:
    """Fewer than twenty good results: the line says so and judges bandwidth alone."""
    numbers = healthy()
    del numbers["commwatch_probe_baseline_latency_seconds"]

    check = found(merged(gpus(8), numbers), matrix())[SIZES]

    assert check.verdict == "passed"
    assert "latency" not in check.measured
    assert "No usual latency is known yet of all_reduce" in check.detail


@pytest.mark.parametrize(
    ("values", "verdict", "says"),
    [
        ({"latency_step_ratio": 1.19, "bandwidth_drift_ratio": 1.14}, "passed", ""),
        ({"latency_step_ratio": 1.2}, "notice", "The probe has become slower"),
        ({"bandwidth_drift_ratio": 1.15}, "notice", "Probe slows over days"),
    ],
)
def test_a_step_and_a_drift(values: dict[str, float], verdict: str, says: str) -> None:
    """A step is against the results just before, a drift against the first ones."""
    check = found(merged(gpus(8), healthy(**values)), matrix())[COURSE]

    assert (check.verdict, check.detail) == (verdict, says)


def test_too_few_results_have_no_course() -> None:
    """Without a ratio there is nothing to say, and no reason to think that it is well."""
    numbers = probe(last_latency_seconds=14e-6)

    assert found(merged(gpus(8), numbers), matrix())[COURSE].verdict == "not measured"


@pytest.mark.parametrize(
    ("rule", "values", "unjudged"),
    [
        ("probe.step", {"latency_step_ratio": 1.5}, {COURSE}),
        ("probe.drift", {"bandwidth_drift_ratio": 1.5}, {COURSE}),
        ("probe.lost", {}, {SIZES}),
        ("pairs.slow", {}, {PAIRS, "latency of pairs, 8 B"}),
        ("nvlink.down", {}, set()),
    ],
)
def test_nothing_passes_whose_rule_failed(rule: str, values: dict[str, float], unjudged: set[str]) -> None:
    """It is not measured, and says which rule failed; what another rule judges passes."""
    known = known_of(merged(gpus(8), healthy(**values)), failing_rules=(rule,))

    checks = branch_of(replace(known, matrix=matrix()), "pattern")

    assert {check.what for check in checks if check.verdict == "not measured"} == unjudged
    assert {check.what for check in checks if check.detail.endswith(f"a rule failed: {rule}")} == unjudged


def test_a_rule_that_raises_here_is_one_that_failed() -> None:
    """GPUs whose index is no number, which no driver gives: the other rules see what they see."""
    ends = (("x", "0000:10:00.0"), ("y", "0000:11:00.0"))
    numbers: dict[str, dict[Any, float]] = {
        "commwatch_gpu_info": {(*end, f"GPU-{end[0]}", "", "", ""): 1.0 for end in ends},
        "commwatch_gpu_state": {ends[0]: 2.0},
        "commwatch_pair_bandwidth_bytes_per_second": {("x", "y", "nccl"): 1e9, ("y", "x", "nccl"): 1e9},
    }

    matched = known_of(numbers).matched

    assert matched.failed_of("pairs") == "a rule failed: pairs.slow, pairs.near_and_slow"
    assert [one.record.code for one in matched] == ["gpu_lost"]


MEASURED = Measured(finished_at=NOW, occupied_seconds=1.0, setup_seconds=1.0, outcomes=())
FAILED = Failed(finished_at=NOW, occupied_seconds=1.0, reason="nccl_error", detail="unhandled system error")
LOCKED = Failed(finished_at=NOW, occupied_seconds=0.0, reason="start", detail="the probe lock cannot be taken")
CAME = Yielded(finished_at=NOW, occupied_seconds=1.0, reason="process_appeared", detail="process 7 came")
ALONE = Skipped(finished_at=NOW, reason="single_gpu", detail="one rank")
BUSY = Skipped(finished_at=NOW, reason="gpu_busy", detail="GPU1 has a process")


@in_one_pass(
    "answers, verdict, says",
    [
        ((answer_of(FAILED, "failed"),), "failed", "unhandled system error; tried once"),
        ((answer_of(FAILED, "failed"),) * 3, "failed", "unhandled system error; 3 of 3 times in this scan"),
        ((answer_of(FAILED, "failed"), answer_of(MEASURED, "good")), "notice", "no streak"),
        ((answer_of(MEASURED, "low"), answer_of(MEASURED, "good")), "notice", "no streak"),
        ((answer_of(MEASURED, "low"), answer_of(CAME, "gave way")), "notice", "no streak. Gave way: process_appeared"),
        ((answer_of(MEASURED, "low"),) * 3 + (answer_of(MEASURED, "good"),), "notice", "no streak"),
        ((answer_of(BUSY, "skipped"),), "not measured", "Skipped: gpu_busy: GPU1 has a process"),
        ((answer_of(LOCKED, "failed"),), "not measured", "Could not run: start: the probe lock"),
        ((answer_of(ALONE, "skipped"),), "does not apply", "Skipped: single_gpu"),
        ((answer_of(BUSY, "skipped"), answer_of(BUSY, "skipped", "pairs")), "not measured", "Skipped: gpu_busy"),
    ],
)
def test_what_became_of_fresh_probes(answers: tuple[Answer, ...], verdict: str, says: str) -> None:
    """A failure fails; one that was well again is worth a notice; a probe that was skipped says why."""
    check = found(gpus(8), matrix(), scanned=answers)["fresh probe"]

    assert (check.verdict, says in check.detail) == (verdict, True)
    assert check.where == ", ".join(dict.fromkeys(one.probe for one in answers))


def test_fresh_probes_that_are_well_take_no_line() -> None:
    """What they measured is in the other lines."""
    assert "fresh probe" not in found(gpus(8), matrix(), scanned=(answer_of(MEASURED, "good"),))
