"""Reference marks on simulated nodes: a healthy one of every preset fails none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.marks.profiles import ALL_PROFILES, PROFILES
from commwatch.diagnosis.preflight import preflight
from commwatch.diagnosis.profile import checks_of
from commwatch.findings.api_documents import metric_records
from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch_exporters.node.model import Node
from commwatch_rehearsal.simulation.presets import PRESETS
from diagnosis.exposed import known_of
from support.facts import NOW
from support.probed_node import ProbedNode

UNMET = {
    ("h200x1", "235b"): "memory",
    ("a100x4", "235b"): "memory",
    ("a10x2", "7b"): "all_reduce",
    ("a10x2", "30b"): "memory all_reduce",
    ("a10x2", "70b"): "memory all_reduce",
    ("a10x2", "235b"): "memory all_reduce",
    ("rtx3090x4", "7b"): "all_reduce",
    ("rtx3090x4", "30b"): "all_reduce",
    ("rtx3090x4", "70b"): "memory all_reduce",
    ("rtx3090x4", "235b"): "memory all_reduce",
}
"""What a healthy node of a preset lacks for a profile."""


@pytest.mark.parametrize("preset", PRESETS)
def test_a_healthy_node_fails_no_mark(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But those of a profile that it cannot meet; what was measured is shown, and what is needed is measured."""
    facts = Facts(Node(ProbedNode(preset, tmp_path, monkeypatch).snapshot()), CounterHistory({}), NOW)
    alone = len(PRESETS[preset].gpus) == 1

    for profile in PROFILES.values():
        answer, checks = preflight(facts, profile, None, NOW, 60.0)
        unmet = UNMET.get((preset, profile.name), "")
        failed = {check.what.removeprefix(f"{profile.name}: ") for check in checks if check.verdict == "failed"}
        assert [check.what for check in checks if check.verdict in ("notice", "not measured")] == []
        assert any(check.verdict == "passed" and check.measured for check in checks)
        assert {one.split()[0] for one in failed} == {*unmet.split()}
        assert answer.verdict == ("Warning" if unmet else "OK")
        assert ("nobody to talk to" in answer.reason) == (alone and not unmet)


@pytest.fixture
def h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbedNode:
    """Eight H100."""
    return ProbedNode("h100x8", tmp_path, monkeypatch)


def failed(node: ProbedNode, fault: str) -> dict[str, Check]:
    """What fails under a fault, by how it begins."""
    known = known_of({})
    snapshot = structs.replace(known.snapshot, metrics=metric_records(node.snapshot(f"- {{fault: {fault}}}")))
    checks = checks_of(replace(known, snapshot=snapshot).facts, ALL_PROFILES)
    return {check.what.split(",")[0]: check for check in checks if check.verdict == "failed"}


def test_a_slow_gpu_fails_the_marks_that_it_is_below(h100: ProbedNode) -> None:
    """At 0.5 NVLink's and that of the published result, at 0.25 that of the large model too, at 0.15 all of them."""
    share, nvlink, seven, large = (
        "share of the expected bandwidth",
        "all_reduce over NVLink 3.0 or 4.0",
        "7b: all_reduce bus bandwidth",
        "235b: all_reduce bus bandwidth",
    )

    assert {*failed(h100, "slow_gpu, gpu: 2, bandwidth: 0.5")} == {share, nvlink}
    assert {*failed(h100, "slow_gpu, gpu: 2, bandwidth: 0.25")} == {share, nvlink, large}
    assert {*failed(h100, "slow_gpu, gpu: 2, bandwidth: 0.15")} == {share, nvlink, seven, large}


def test_a_narrowed_link_fails_the_mark_of_pcie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of that GPU halve; the GPUs of this node talk over NVLink."""
    found = failed(ProbedNode("a100x4", tmp_path, monkeypatch), "pcie_width, gpu: 1, lanes: 8")

    assert [*found] == ["PCIe gen 4 x16"]
    assert found["PCIe gen 4 x16"].where == "GPU1"
