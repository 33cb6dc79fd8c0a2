"""A loss of bandwidth, and a latency that is slow from the first minute, from the probe to finding and score."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import SimulatedDaemon, rehearsed


def codes(node: SimulatedDaemon) -> set[str]:
    """What is open of the probes."""
    return {one.code for one in node.verdict.findings if one.code.startswith("probe_")}


def score(node: SimulatedDaemon) -> float:
    """The communication score."""
    [(_, ratio)] = node.snapshot().samples("commwatch_communication_score_ratio")
    return float(ratio)


def test_a_third_of_the_bandwidth_is_a_ticket_until_it_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three cycles after it is lost; an hour later it is as open, without a current result, and the score is low."""
    fault = "- {fault: slow_probe, bandwidth: 0.667, at: 20m}\n"
    with rehearsed("h100x8", tmp_path, monkeypatch, fault) as node:
        for minute in (1.0, 6.0, 11.0):
            node.until(minute, step=150.0)
            node.probe("all_reduce")
        assert codes(node) == set()
        assert score(node) >= 0.85
        for minute in (21.0, 21.5):
            node.until(minute, step=150.0)
            node.probe("all_reduce")
        assert codes(node) == set()
        node.until(22)
        node.probe("all_reduce")
        assert codes(node) == {"probe_bandwidth_lost"}
        assert score(node) < 0.85

        node.until(82, step=300.0)
        assert codes(node) == {"probe_bandwidth_lost"}

        [sentence] = node.engine.probing.accept()
        node.until(85)
        assert "all_reduce 8" in sentence
        assert codes(node) == set()


@pytest.mark.parametrize(
    ("preset", "factor", "found"),
    [
        ("h100x8", 3, {"probe_latency_high"}),
        ("b200x8", 3, {"probe_below_model"}),
        ("rtx3090x4", 3, {"probe_below_model"}),
        ("h100x8", 1, set()),
        ("rtx3090x4", 1, set()),
    ],
)
def test_a_latency_of_the_first_minute(
    preset: str, factor: int, found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three cycles: a ticket where the latency is published, information by a model, nothing of a healthy node."""
    with rehearsed(preset, tmp_path, monkeypatch, f"- {{fault: slow_probe, latency: {factor}, at: 0s}}\n") as node:
        for minute in (1, 6, 11):
            node.until(minute, step=150.0)
            node.probe("all_reduce")
        open_now = codes(node)
    # A start of a call that is so late makes the large one low, or short of its expectation, too.
    assert found <= open_now
    assert open_now - found <= ({"probe_bandwidth_short", "probe_bandwidth_low"} if found else set())
