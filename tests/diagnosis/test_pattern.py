"""The pattern branch: what it says of pairs, sizes and time, and that it recommends nothing that was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.by_hand.answer import Answer
from commwatch.probes.plan import Failed, Measured, Skipped, Yielded
from diagnosis.exposed import answer_of, branch_of, known_of, shows
from heatmap.matrices import endpoints, matrix, slow_gpu
from support.facts import NOW
from support.machines import merged
from support.passes import in_one_pass

PAIRS = "bandwidth of pairs, 16 MiB"
LATE = "latency of pairs, 8 B"
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


def of_pairs(made: PairMatrix) -> dict[str, Check]:
    """The checks of a node that exports this matrix; without NVLink with the switches between its GPUs."""
    switches = tree() if any(one.path == "PIX" for one in made.cells) else {}
    return found(merged(gpus(len(made.endpoints)), exposed(made), switches), made)


def suspected(**changes: Any) -> PairMatrix:
    """An even matrix with the suspect of a slow GPU3, changed."""
    return matrix(suspects=tuple(msgspec.structs.replace(one, **changes) for one in slow_gpu(3).suspects))


def slow_by_both() -> PairMatrix:
    """The same pair by bandwidth and by latency, on a machine whose pairs differ."""
    late = msgspec.structs.replace(
        slow_gpu(3).suspects[0], kind="pair", element="GPU0-GPU1", quantity="latency", cells=((0, 1), (1, 0))
    )
    return msgspec.structs.replace(over_pcie(both((0, 1), factor=0.4)), suspects=(late,))


def narrow_nvlink() -> PairMatrix:
    """Two GPUs whose NVLink gives 40 % of what it should, which is more than PCIe gives."""
    made = over_pcie({})
    cells = tuple(
        msgspec.structs.replace(one, bandwidth=20e9, expected_bandwidth=50e9, path="NV4")
        if {one.source, one.destination} == {0, 1}
        else one
        for one in made.cells
    )
    return msgspec.structs.replace(made, cells=cells)


def all_slow(count: int) -> PairMatrix:
    every = {(one, two): 0.4 for one in range(count) for two in range(count) if one != two}
    return matrix(count, expected=360e9, factors=every)


MANY = matrix(expected=371e9, factors=both(*((0, one) for one in range(1, 8)), (1, 2)))
PAIR_CASES: list[tuple[PairMatrix, str, str, str]] = [
    (matrix(), PAIRS, "passed", ""),
    (matrix(), LATE, "passed", ""),
    (over_pcie(both((0, 1))), PAIRS, "failed", "GPU0-GPU1"),
    # Near pairs are compared with far ones, though all under switches are alike: below 85 % they are slow.
    (over_pcie(both((0, 1), (2, 3), factor=0.83)), PAIRS, "notice", "GPU0-GPU1, GPU2-GPU3"),
    (over_pcie(both((0, 1), (2, 3), factor=0.88)), PAIRS, "passed", ""),
    (slow_gpu(3), PAIRS, "failed", "GPU3"),
    (suspected(quantity="latency"), PAIRS, "passed", ""),
    (suspected(quantity="latency"), LATE, "failed", "GPU3"),
    (slow_by_both(), PAIRS, "failed", "GPU0-GPU1"),
    (slow_by_both(), LATE, "failed", "GPU0-GPU1"),
    (narrow_nvlink(), PAIRS, "failed", "GPU0-GPU1"),
    (suspected(confidence=0.3), PAIRS, "passed", ""),
    # What all pairs expect may not fit the machine; two GPUs have one pair.
    (all_slow(4), PAIRS, "notice", "6 of 6 pairs"),
    (all_slow(2), PAIRS, "failed", "GPU0-GPU1"),
    (MANY, PAIRS, "failed", "GPU0-GPU1, GPU0-GPU2, GPU0-GPU3, GPU0-GPU4, GPU0-GPU5, GPU0-GPU6, 2 more"),
]


@in_one_pass("made, what, verdict, where", PAIR_CASES)
def test_slow_pairs_are_named(made: PairMatrix, what: str, verdict: str, where: str) -> None:
    """By the part of a suspect that is sure, or by themselves."""
    shows(of_pairs(made)[what], verdict, where=where)


def test_pairs_are_said_in_numbers_and_words() -> None:
    """Median and slowest; what is slow, why, and which two are the fastest: measured ones, and none that are named."""
    even, gpu, pair = (of_pairs(made)[PAIRS] for made in (matrix(), slow_gpu(3), over_pcie(both((0, 1)))))

    assert even.measured.startswith("median 359 GB/s, slowest 357 GB/s (GPU")
    assert gpu.detail.startswith("GPU3 is slow to and from every other GPU")
    assert gpu.next_step.startswith("Run commwatch heatmap: it says what to check")
    assert pair.measured.startswith("median 12.6 GB/s, slowest 5.0")
    assert "A pair of GPUs is slow; GPUs under one PCIe switch are slower than distant ones" in pair.detail
    for named in (pair, of_pairs(narrow_nvlink())[PAIRS]):
        assert "Until then the fastest two are GPU" in named.next_step
        assert "GPU0 and GPU1" not in named.next_step
    assert not any("Until then" in of_pairs(all_slow(count))[PAIRS].next_step for count in (2, 4))


def test_pairs_that_nothing_measures_have_no_verdict() -> None:
    """Fewer than two GPUs, no matrix, or one of gloo, which says nothing of the fabric."""
    bare = tuple(type(end)(label=end.label) for end in endpoints(4))

    shows(found(gpus(0))["pairs of GPUs"], "does not apply", detail="no GPU is known")
    shows(found(gpus(1))["pairs of GPUs"], "does not apply", detail="this node has one GPU")
    shows(found(gpus(), matrix(4, endpoints=bare))["bandwidth of pairs"], "not measured")
    checks = found(merged(gpus(), probe()))
    assert {check.verdict for check in checks.values()} == {"not measured"}
    assert {check.next_step for check in checks.values()} - {""} == {"commwatch diagnose --full-scan measures it."}


SLOW_SMALL = {"last_latency_seconds": 42e-6, "latency_spike_streak": 3.0}
LOW_LARGE = {"bandwidth_utilization_ratio": 0.4, "low_bandwidth_streak": 3.0}


@in_one_pass(
    "what, values, verdict, says",
    [
        (SIZES, SLOW_SMALL, "failed", "A problem of latency"),
        (SIZES, {"last_latency_seconds": 42e-6, "latency_spike_streak": 1.0}, "notice", ""),
        (SIZES, {"last_latency_seconds": 20.9e-6}, "passed", ""),
        (SIZES, {"last_latency_seconds": 21.1e-6}, "notice", ""),
        (SIZES, LOW_LARGE, "failed", "A problem of bandwidth"),
        (SIZES, {"bandwidth_utilization_ratio": 0.59, "low_bandwidth_streak": 1.0}, "notice", ""),
        (SIZES, {"bandwidth_utilization_ratio": 0.61}, "passed", ""),
        (SIZES, SLOW_SMALL | LOW_LARGE, "failed", "Small and large messages are slow"),
        (COURSE, {"latency_step_ratio": 1.19, "bandwidth_drift_ratio": 1.14}, "passed", ""),
        (COURSE, {"latency_step_ratio": 1.2}, "notice", "The probe has become slower"),
        (COURSE, {"bandwidth_drift_ratio": 1.15}, "notice", "Probe slows over days"),
    ],
)
def test_a_probe_over_sizes_and_over_time(
    what: str, values: dict[str, float], verdict: str, says: str
) -> None:  # fmt: skip
    """One result is worth a notice; three in a row are a fault. A step is against the results just before it, a drift
    against the first ones."""
    check = found(merged(gpus(8), healthy(**values)), matrix())[what]

    assert (check.verdict, check.where) == (verdict, "all_reduce")
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

    slow, well = (check for check in branch_of(known_of(numbers), "pattern") if check.what == SIZES)

    assert [(line.verdict, line.where) for line in (slow, well)] == [("failed", "a, b"), ("passed", "all_reduce")]
    assert slow.measured.startswith("b: 32 B 14 µs; 64 MiB - (40 %")
    assert well.measured == "latency at most 1.00 times the usual; bandwidth at least 98 % of what is expected"


def test_what_has_no_past_yet_is_not_judged_by_one() -> None:
    """Fewer than twenty good results: bandwidth alone is judged, and there is no course."""
    numbers = healthy()
    del numbers["commwatch_probe_baseline_latency_seconds"]
    few = found(merged(gpus(8), probe(last_latency_seconds=14e-6)), matrix())

    check = found(merged(gpus(8), numbers), matrix())[SIZES]

    shows(check, "passed", says="No usual latency is known yet of all_reduce")
    assert "latency" not in check.measured
    assert few[COURSE].verdict == "not measured"


@in_one_pass(
    "rule, values, unjudged",
    [
        ("probe.step", {"latency_step_ratio": 1.5}, {COURSE}),
        ("probe.drift", {"bandwidth_drift_ratio": 1.5}, {COURSE}),
        ("probe.lost", {}, {SIZES}),
        ("pairs.slow", {}, {PAIRS, LATE}),
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
    """A failure fails; one that was well again is worth a notice; a probe that was skipped says why, and one that is
    well takes no line."""
    check = found(gpus(8), matrix(), scanned=answers)["fresh probe"]

    assert (check.verdict, says in check.detail) == (verdict, True)
    assert check.where == ", ".join(dict.fromkeys(one.probe for one in answers))
    assert "fresh probe" not in found(gpus(8), matrix(), scanned=(answer_of(MEASURED, "good"),))
