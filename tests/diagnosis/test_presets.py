"""Reference marks and score of simulated nodes: a healthy one of every preset fails none and is excellent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from msgspec import structs

from analysis.score.cases import part
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.marks.profiles import ALL_PROFILES, PROFILES, Asked
from commwatch.diagnosis.preflight import preflight
from commwatch.diagnosis.profile import checks_of
from commwatch.findings.api_documents import metric_records
from commwatch.findings.codes import WATCHED
from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch.findings.score.records import Score
from commwatch.findings.score.score import score_of
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Snapshot
from commwatch_rehearsal.simulation.presets import PRESETS
from diagnosis.exposed import known_of
from support.facts import NOW, shipped
from support.passes import in_one_pass
from support.probed_node import ProbedNode

UNMET = {
    **{(node, model): "memory" for node in ("h100x8", "h100x8ndr", "h200x1", "a100x4") for model in ("70b", "235b")},
    ("b200x8", "235b"): "memory",
    **{(node, "30b"): "memory" for node in ("h200x1", "a100x4")},
    ("a10x2", "7b"): "memory all_reduce",
    ("a10x2", "30b"): "memory all_reduce",
    ("a10x2", "70b"): "memory all_reduce",
    ("a10x2", "235b"): "memory all_reduce",
    ("rtx3090x4", "7b"): "memory all_reduce",
    ("rtx3090x4", "30b"): "memory all_reduce",
    ("rtx3090x4", "70b"): "memory all_reduce",
    ("rtx3090x4", "235b"): "memory all_reduce",
}
"""What a healthy node of a preset lacks to train the model of a profile."""


Probed = Callable[..., Snapshot]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Probed:
    """``probed(preset, fault="")``: a node after one cycle of each default probe; each is probed once for all tests."""

    @cache
    def snapshot(preset: str, fault: str = "") -> Snapshot:
        with pytest.MonkeyPatch.context() as patched:
            node = ProbedNode(preset, tmp_path_factory.mktemp(preset), patched)
            return node.snapshot(f"- {{fault: {fault}}}" if fault else "")

    return snapshot


@pytest.fixture
def scored(probed: Probed) -> Callable[..., Score]:
    """The score of a preset, healthy or under a fault."""
    return lambda *node: score_of(Facts(Node(probed(*node)), CounterHistory(WATCHED), NOW), shipped())


@in_one_pass("preset", PRESETS)
def test_a_healthy_node_fails_no_mark(preset: str, probed: Probed) -> None:
    """But those of a profile that it cannot meet; what was measured is shown, and what is needed is measured."""
    facts = Facts(Node(probed(preset)), CounterHistory({}), NOW)
    alone = len(PRESETS[preset].gpus) == 1

    for profile in PROFILES.values():
        answer, checks = preflight(facts, Asked(profile), NOW, 60.0)
        unmet = UNMET.get((preset, profile.name), "")
        failed = {check.what.removeprefix(f"{profile.name}: ") for check in checks if check.verdict == "failed"}
        unmeasured = [check.what for check in checks if check.verdict in ("notice", "not measured")]
        assert unmeasured == (["Azure ND H100 v5: RDMA writes between GPUs"] if preset == "h100x8ndr" else [])
        assert any(check.verdict == "passed" and check.measured for check in checks)
        assert {one.split()[0] for one in failed} == {*unmet.split()}
        assert answer.verdict == ("Warning" if unmet else "OK")
        assert ("nobody to talk to" in answer.reason) == (alone and not unmet)


def failed(snapshot: Snapshot) -> dict[str, Check]:
    """What fails on a node, by how it begins."""
    known = known_of({})
    known = replace(known, snapshot=structs.replace(known.snapshot, metrics=metric_records(snapshot)))
    found = checks_of(known.facts, ALL_PROFILES)
    return {check.what.split(",")[0]: check for check in found if check.verdict == "failed"}


def test_a_slow_gpu_fails_the_marks_that_it_is_below(probed: Probed) -> None:
    """At 0.5 NVLink's, that of the published result, and copies of such machines; at 0.25 that of the large model
    too, at 0.15 all of them."""
    copy, share, nvlink, seven, large = (
        "Azure ND H100 v5: copies between GPU and host",
        "share of the expected bandwidth",
        "all_reduce over NVLink 3.0 or 4.0",
        "7b: all_reduce bus bandwidth",
        "235b: all_reduce bus bandwidth",
    )

    for bandwidth, marks in ((0.5, {share, nvlink}), (0.25, {share, nvlink, large}),
                             (0.15, {share, nvlink, seven, large})):  # fmt: skip
        assert {*failed(probed("h100x8", f"slow_gpu, gpu: 2, bandwidth: {bandwidth}"))} == {*marks, copy}


def test_a_narrowed_link_fails_the_mark_of_pcie(probed: Probed) -> None:
    """The copies of that GPU halve; the GPUs of this node talk over NVLink."""
    found = failed(probed("a100x4", "pcie_width, gpu: 1, lanes: 8"))

    assert [*found] == ["PCIe gen 4 x16"]
    assert found["PCIe gen 4 x16"].where == "GPU1"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_healthy_node_of_every_preset_is_excellent(preset: str, scored: Callable[..., Score]) -> None:
    """From its first results on, every collective, copy and pair among them."""
    found = scored(preset)

    assert found.word == "excellent"
    assert part(found, "bandwidth").ratio is not None
    assert (part(found, "balance").ratio is None) == (len(PRESETS[preset].gpus) == 1)
    assert part(found, "balance").ratio in (None, 1.0), "nothing is worse off than noise makes it"


def test_a_slow_gpu_is_out_of_balance(scored: Callable[..., Score]) -> None:
    """Everything that it takes part in is slow, and the greatest loss names it."""
    healthy, slow = scored("h100x8"), scored("h100x8", "slow_gpu, gpu: 2, bandwidth: 0.5")

    assert slow.word == "needs work"
    assert "GPU2" in slow.losses[0].subject
    assert slow.losses[0].part == "balance"
    for name in ("balance", "bandwidth"):
        before, after = part(healthy, name).ratio, part(slow, name).ratio
        assert before is not None
        assert after is not None
        assert after < before - 0.3


def test_a_slow_switch_costs_bandwidth(scored: Callable[..., Score]) -> None:
    """Every pair goes over every NVSwitch: all collectives but no copy to the host lose, and all pairs are equal."""
    healthy, slow = scored("h100x8"), scored("h100x8", "slow_switch, nvswitch: 0, bandwidth: 0.5")
    lost = {one.subject: one.lost for one in slow.losses if one.part == "bandwidth"}
    before = {one.subject: one.lost for one in healthy.losses if one.part == "bandwidth"}

    assert slow.word == "needs work"
    assert lost["probe host_copies"] == pytest.approx(before["probe host_copies"])
    assert all(lost[name] > 0.025 for name in lost if name != "probe host_copies")
    assert part(slow, "balance").ratio == part(healthy, "balance").ratio


def test_a_slow_pair_under_one_switch_is_named(scored: Callable[..., Score]) -> None:
    """Four cards behind two switches, and the near pair is the slow one."""
    slow = scored("rtx3090x4", "slow_switch, device: 0000:21:00.0, bandwidth: 0.4, traffic: peer")

    worst = part(slow, "balance").readings[0]
    assert worst.subject in ("GPU0 to GPU1", "GPU1 to GPU0")
    assert "2 of 12 pairs" in worst.words


def test_a_narrowed_link_costs_balance_and_little_bandwidth(scored: Callable[..., Score]) -> None:
    """The GPUs talk over NVLink: only copies of that GPU are slow."""
    slow = scored("h100x8", "pcie_width, gpu: 1, lanes: 8")

    assert slow.word == "good"
    assert slow.losses[0].subject.startswith("GPU1 ")
    assert part(slow, "bandwidth").ratio == pytest.approx(0.98, abs=0.02)
    assert part(slow, "balance").ratio == pytest.approx(0.5 / 0.85, abs=0.03)
