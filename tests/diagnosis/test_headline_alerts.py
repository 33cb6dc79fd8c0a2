"""Which headline alerts can fire on a node, and from when."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Probe, Probes
from commwatch.diagnosis.headline_alerts import HeadlineAlert, headline_alerts
from commwatch.findings.api_documents import ProbeRecord
from commwatch.generate.alert_rules import shipped_alerts
from commwatch_exporters.node.model import Node
from support.facts import facts_of, shipped
from support.simulated_daemon import SimulatedDaemon, rehearsed

NOON = 1_767_268_800.0
"""2026-01-01 12:00 UTC."""
INFO = ("all_reduce", "nccl", "all_reduce", "8", "67108864", "8", "2.27.5", "", "", "reference")


def told(daemon: SimulatedDaemon, next_run_at: float | None = None) -> dict[str, HeadlineAlert]:
    """By alert, as the daemon's node is now; the probe runs next in ten minutes."""
    due = time.time() + 600 if next_run_at is None else next_run_at
    record = ProbeRecord("all_reduce", "simulated", "", None, due, "")
    found = headline_alerts(Node(daemon.snapshot()), [record], daemon.config, shipped())
    return {one.name: one for one in found}


def test_a_new_node_says_of_every_headline_alert_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are expected once they were seen; the sixth result of the probe comes 25 min after the first."""
    with rehearsed("h100x8ndr", tmp_path, monkeypatch) as daemon:
        daemon.until(1)
        new = told(daemon)
        daemon.probe("all_reduce")
        after_one = told(daemon)
        for minute in (6, 11, 16, 21, 26):
            daemon.until(minute, step=300.0)
            daemon.probe("all_reduce")
        later = told(daemon)

    assert set(new) <= set(shipped_alerts())
    assert [one.verdict for one in new.values()] == ["ok"] * 4 + ["no effect"] * 3
    assert after_one["CommwatchProbeLatencyStreak"] == HeadlineAlert(
        "CommwatchProbeLatencyStreak", "ok",
        "all_reduce is compared with the published latency; a baseline from result 2 on, about 10:11 UTC on a free "
        "node",
    )  # fmt: skip
    assert after_one["CommwatchProbeBandwidthLow"].detail == "all_reduce has an expected bandwidth (reference)"
    assert after_one["CommwatchProbeErrorRateRise"].verdict == "not yet"
    assert {one.verdict for one in later.values()} == {"ok"}
    assert later["CommwatchNvlinkDown"].detail == "144 NVLinks are expected"


def probed(source: str, by: str, **values: float) -> Node:
    """A node of which only a probe is known."""
    numbers: dict[str, dict[tuple[str, ...], float]] = {
        "commwatch_probe_info": {(*INFO[:-1], source): 1},
        "commwatch_probe_latency_judged_info": {("all_reduce", "nccl", by): 1},
        "commwatch_probe_attempts_total": {("all_reduce", "nccl"): 0},
    }
    for name, value in values.items():
        numbers[f"commwatch_probe_{name}"] = {("all_reduce", "nccl"): value}
    return facts_of(numbers).node


def verdicts(node: Node, config: Config, record: ProbeRecord) -> list[tuple[str, str]]:
    return [(one.verdict, one.detail) for one in headline_alerts(node, [record], config, shipped())]


def test_before_its_first_result_the_probe_says_why_and_when() -> None:
    """The sixth result is due five short pauses after the first; of a probe without a plan nothing is foretold."""
    record = ProbeRecord("all_reduce", "nccl", "", None, NOON + 300, "a job runs")
    [latency, bandwidth, errors] = verdicts(probed("none", "no_result"), Config(), record)
    assert latency == (
        "not yet",
        "all_reduce has no result that counts: the next one about 12:05 UTC on a free node; last left out: a job runs; "
        "a baseline from result 2 on, about 12:10 UTC on a free node",
    )
    assert bandwidth[0] == errors[0] == "not yet"

    unplanned = ProbeRecord("all_reduce", "nccl", "", None, None, "")
    assert "the next one is not planned" in verdicts(probed("none", "no_result"), Config(), unplanned)[0][1]


def test_a_model_and_the_lack_of_any_expectation_are_named() -> None:
    """The alert fires on a model; where nothing is expected it never does."""
    record = ProbeRecord("all_reduce", "nccl", "", None, NOON, "")
    on_model = verdicts(probed("model", "mark", bandwidth_utilization_ratio=0.9), Config(), record)[1]
    assert on_model == (
        "ok",
        "all_reduce is compared with a model, until 20 good results over a day are learned or expected_bandwidth is "
        "set",
    )
    assert verdicts(probed("none", "mark"), Config(), record)[1][0] == "no effect"
    assert verdicts(probed("none", "too_few_results"), Config(), record)[0][0] == "not yet"


def test_probes_that_are_off_leave_their_alerts_without_effect() -> None:
    """By configuration, and where no collective is probed."""
    record = ProbeRecord("pairs", "nccl", "", None, None, "")
    for probes in (Probes(enabled=False), Probes(gate="off"), Probes(definitions={"pairs": Probe(measure="pairs")})):
        found = verdicts(probed("none", "mark"), Config(probes=probes), record)
        assert [verdict for verdict, _ in found] == ["no effect"] * 3
