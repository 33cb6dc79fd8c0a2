"""`commwatch score`, and the score on the daemon's page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis.score.cases import (
    BASELINE,
    HEALTHY,
    LATENCY,
    PAIR,
    RANK_BALANCE,
    SUSPECT,
    UTILIZATION,
    Values,
    of_a_job,
    only,
)
from analysis.score.cases import score as score_with
from commwatch.config.settings import Config, Paths
from commwatch.errors import CommwatchError
from commwatch.findings.api_documents import ScoreDocument
from support.command_line import run_command
from support.facts import NOW
from support.fed_daemon import FedDaemon
from support.simulated_daemon import rehearsed

Output = pytest.CaptureFixture[str]


def answer(changes: Values | None = None, **about: Any) -> dict[str, Any]:
    """What a daemon says of the healthy node with some numbers changed."""
    known: dict[str, Any] = {"version": "1", "time": NOW, "simulated": None, "maintenance": None, **about}
    document = ScoreDocument(**known, thresholds="0" * 12, looked_at=NOW - 4, score=score_with(changes))
    return msgspec.json.decode(msgspec.json.encode(document), type=dict[str, Any])


def run(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], *, as_json: bool = False) -> int:
    """Exit code of the command when the daemon tells this."""

    def ask(state: Path, operation: str, timeout: float) -> dict[str, Any]:
        assert (operation, timeout) == ("score", 1.5)
        return told

    monkeypatch.setattr("commwatch.commands.score.ask_daemon", ask)
    return run_command(Config(paths=Paths(state="/nonexistent")), "score", *["--json"] * as_json)


def test_the_text_has_the_score_its_parts_and_what_reduced_it(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part with share and value; losses with part, place and numbers; what comes next without points."""
    code = run(monkeypatch, answer({UTILIZATION: 0.7, SUSPECT: 1.0, PAIR: 180e9, BASELINE: None}))

    assert code == 0
    assert capsys.readouterr().out.splitlines() == [
        "Communication score: 0.77, good",
        "",
        "part       share  value",
        "bandwidth  40 %   0.83",
        "latency    -      -",
        "balance    33 %   0.50",
        "stability  27 %   1.00",
        "latency: not measured; it takes a latency baseline: 2 good results of a collective",
        "",
        "reduced by  part       where         what",
        "0.167       balance    GPU1          what slow pairs have in common, 100 % sure",
        "0.040       bandwidth  probe ring    reaches 70 % of what is expected: 100 GB/s of 100 GB/s",
        "0.027       bandwidth  pairs         2 pairs reach 80 % of what is expected on average, "
        "the worst (GPU0 to GPU1) 180 GB/s of 300 GB/s",
        "next        balance    GPU0 to GPU1  180 GB/s of 300 GB/s expected, the others usually reach 100 % of it; "
        "1 of 2 pairs below 85 % of that",
    ]


def test_a_healthy_node_has_no_table_of_losses(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was lost."""
    assert run(monkeypatch, answer()) == 0

    out = capsys.readouterr().out
    assert out.startswith("Communication score: 1.00, excellent\n")
    assert "reduced by" not in out


def test_the_word_of_a_job_stands_below_that_of_the_node(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how much it used what."""
    run(monkeypatch, answer(of_a_job([0.9, 0.92], pcie=[0.2, 0.2])))

    assert capsys.readouterr().out.splitlines()[:3] == [
        "Communication score: 1.00, excellent",
        "job on GPU0, GPU1: no remarks (last 10 min: busy time 91 %, PCIe 20 %)",
        "",
    ]


def test_noise_is_no_loss_to_read_about(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of a part prints as 0.000 and is left out."""
    run(monkeypatch, answer({LATENCY: 10.01e-6}))

    assert "reduced by" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({LATENCY: 10e-6}, 0),
        ({RANK_BALANCE: 0.2}, 0),
        ({RANK_BALANCE: 0.01, UTILIZATION: 0.1}, 1),
        (only(), 3),
    ],
    ids=["excellent", "good", "needs work", "not measured"],
)
def test_the_exit_code_is_the_word(changes: Values, code: int, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 for excellent and good, 1 for needs work, 3 where nothing was measured; the same with --json."""
    assert run(monkeypatch, answer(changes)) == code
    assert run(monkeypatch, answer(changes), as_json=True) == code


def test_json_is_the_answer_of_the_daemon(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schema, score, parts with all readings, and losses that add up."""
    told = answer({UTILIZATION: 0.7}, simulated="h100x8")
    run(monkeypatch, told, as_json=True)

    printed = json.loads(capsys.readouterr().out)
    assert printed == told
    assert printed["schema"] == "commwatch-score/1"
    found = printed["score"]
    assert found["ratio"] + sum(one["lost"] for one in found["losses"]) == pytest.approx(1.0)
    assert [one["name"] for one in found["parts"]] == ["bandwidth", "latency", "balance", "stability"]


def test_simulated_and_paused_are_said_first(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the number must know."""
    run(monkeypatch, answer(simulated="h100x8", maintenance="driver upgrade"))

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Simulated node h100x8: none of this is real."
    assert lines[2] == "The daemon is paused (driver upgrade): nothing new is measured."


def test_a_daemon_of_another_version_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that this command does not understand is an error in one line, not a traceback."""
    with pytest.raises(CommwatchError, match="another version"):
        run(monkeypatch, {**answer(), "schema": "commwatch-score/2"})


def test_the_daemon_answers_and_says_what_was_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that has just begun has no score."""
    with rehearsed("h200x1", tmp_path, monkeypatch) as daemon:
        daemon.until(1)
        code, output = daemon.command("score")
        metric = daemon.exposed().value("commwatch_communication_score_ratio")

    assert (code, metric) == (3, None)
    assert "Simulated node h200x1" in output
    assert "Communication score: not measured" in output


def test_a_look_puts_the_score_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Score and parts of what was measured, and nothing of what was not."""
    daemon = FedDaemon(tmp_path, monkeypatch)
    daemon.engine.look()
    assert daemon.value("communication_score_ratio") is None

    values = {(f"commwatch_{metric}", labels): value for (metric, labels), value in HEALTHY.items()}
    daemon.engine.store.put("probes", "", daemon.block(values), float("inf"))
    daemon.clock.now += 10.0
    daemon.engine.look()

    assert daemon.value("communication_score_ratio") == pytest.approx(1.0)
    parts = {part for (part,) in daemon.series("communication_score_component_ratio")}
    assert parts == {"bandwidth", "latency", "balance", "stability"}
    assert daemon.engine.verdict.score().word == "excellent"
