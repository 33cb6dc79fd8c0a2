"""The score of simulated nodes: healthy ones are excellent, and a fault lowers the part that it is about."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from analysis.score.cases import part
from commwatch.findings.codes import WATCHED
from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch.findings.score.records import Score
from commwatch.findings.score.score import score_of
from commwatch_exporters.node.model import Node
from commwatch_rehearsal.simulation.presets import PRESETS
from support.facts import NOW, shipped
from support.probed_node import ProbedNode


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Score]:
    """The score of a preset after one cycle of each default probe, healthy or under a fault; each is probed once."""

    @cache
    def score(preset: str, fault: str = "") -> Score:
        with pytest.MonkeyPatch.context() as patched:
            node = ProbedNode(preset, tmp_path_factory.mktemp(preset), patched)
            page = node.snapshot(f"- {{fault: {fault}}}" if fault else "")
        return score_of(Facts(Node(page), CounterHistory(WATCHED), NOW), shipped())

    return score


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
    """Every pair goes over every NVSwitch: all collectives but no copy to the host lose."""
    healthy, slow = scored("h100x8"), scored("h100x8", "slow_switch, nvswitch: 0, bandwidth: 0.5")
    lost = {one.subject: one.lost for one in slow.losses if one.part == "bandwidth"}
    before = {one.subject: one.lost for one in healthy.losses if one.part == "bandwidth"}

    assert slow.word == "needs work"
    assert lost["probe host_copies"] == pytest.approx(before["probe host_copies"])
    assert all(lost[name] > 0.025 for name in lost if name != "probe host_copies")
    assert any("56 of 56 pairs" in one.words for one in slow.losses if one.part == "balance")


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
