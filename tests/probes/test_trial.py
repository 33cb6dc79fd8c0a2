"""commwatch probe --with: what is no setting, the rounds in turn, and what counts as a gain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from commwatch.config.settings import Config, Paths, Probe, Simulation
from commwatch.errors import CommwatchError
from commwatch.probes.by_hand.answer import Answer
from commwatch.probes.by_hand.trial import (
    ROUNDS,
    known_trials,
    name_of,
    parse_settings,
    trial_of,
    trial_probes,
    tried,
)
from commwatch.probes.cycle.environment import OWN_NCCL_SETTINGS, given_nccl_settings, rank_environment
from probes.cycles import cycle_plan
from probes.results import measured, plan_of
from probes.test_answer import NOW, answer
from probes.test_command import run
from support.passes import in_one_pass
from support.quick_ranks import measure_quickly


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A simulated node whose GPUs reach each other directly, and whose ranks have no processes."""
    measure_quickly(monkeypatch)
    (tmp_path / "state/simulated-h100x8").mkdir(parents=True)  # which the lock of a cycle makes
    return Config(paths=Paths(state=str(tmp_path / "state")), simulation=Simulation(preset="h100x8"))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["NCCL_ALGO"], "expected NAME=VALUE"),
        (["PATH=/tmp"], "expected NAME=VALUE"),
        (["NCCL_ALGO="], "expected NAME=VALUE"),
        (["NCCL_ALGOO=Ring"], "NCCL reads no NCCL_ALGOO"),
        (["NCCL_DEBUG=WARN"], "every probe has its own NCCL_DEBUG"),
        (["NCCL_ALGO=Ring", "NCCL_ALGO=Tree"], "given twice"),
    ],
)
def test_what_no_probe_can_have_is_refused(texts: list[str], words: str, node: Config) -> None:
    """Before anything is measured, in one line."""
    with pytest.raises(CommwatchError, match=words) as raised:
        run(node, *(part for text in texts for part in ("--with", text)))
    assert raised.value.exit_code == 2
    assert parse_settings(["NCCL_ALGO=Ring", "NCCL_BUFFSIZE=65536"]) == {"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "65536"}


def test_runs_take_turns_and_only_those_with_have_the_settings() -> None:
    """Whatever drifts meanwhile meets both."""
    runs = list(trial_probes({"all_reduce": Probe()}))

    assert runs == [
        name_of("all_reduce", number, tried=with_them) for number in (1, 2, 3) for with_them in (False, True)
    ]
    plans = [tried(replace(cycle_plan(backend="nccl"), probe=name), settings={"NCCL_ALGO": "Ring"}) for name in runs]
    assert [plan.settings for plan in plans] == [(), (("NCCL_ALGO", "Ring"),)] * ROUNDS
    with pytest.raises(CommwatchError, match="run with gloo") as caught:
        tried(cycle_plan(backend="gloo", devices=()), settings={"NCCL_ALGO": "Ring"})
    assert caught.value.exit_code == 3


def test_a_rank_has_the_settings_and_they_are_not_told_as_those_of_the_machine() -> None:
    """What every rank has from us stays."""
    plan = tried(replace(cycle_plan(backend="nccl"), probe="x with, round 1"), settings={"NCCL_ALGO": "Ring"})

    assert rank_environment(plan, 0, Path("/private"), {})["NCCL_ALGO"] == "Ring"
    assert given_nccl_settings(plan) == OWN_NCCL_SETTINGS | {"NCCL_ALGO"}


def of_rounds(without: Sequence[float], with_them: Sequence[float]) -> dict[str, Answer]:
    """The answers of rounds whose large call took so many seconds."""
    return {
        name_of("all_reduce", number, tried=with_it): answer(plan_of(), measured(plan_of(), NOW, [10e-6, seconds]))
        for with_it, times in ((False, without), (True, with_them))
        for number, seconds in enumerate(times, 1)
    }


@in_one_pass(
    "without, with_them, word",
    [
        ((1.0, 1.01, 1.02), (0.95, 0.96, 0.97), "faster"),
        ((1.0, 1.01, 1.02), (0.97, 0.97, 0.97), "same"),
        ((1.0, 1.1, 1.2), (0.9, 1.0, 1.01), "same"),
        ((1.0, 1.0, 1.0), (1.06, 1.07, 1.1), "slower"),
        ((1.0, 1.0, 1.0), (0.99, 1.07, 1.1), "same"),
    ],
)
def test_a_gain_is_more_than_5_percent_and_than_chance(
    without: Sequence[float], with_them: Sequence[float], word: str
) -> None:
    """Rounds that overlap say nothing."""
    trial = trial_of({"NCCL_ALGO": "Ring"}, ["all_reduce"], of_rounds(without, with_them))

    assert trial.gains[-1].word == word
    assert trial.gains[-1].gain_percent == pytest.approx(100 * (sorted(without)[1] / sorted(with_them)[1] - 1))


def test_a_setting_that_costs_is_told_and_kept(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Without peer access a sum takes longer; what each setting does to which size is the simulation's affair."""
    assert run(node, "--gpus", "0,1", "--with", "NCCL_P2P_DISABLE=1", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert [gain["word"] for gain in told["trial"]["gains"]] == ["slower", "slower"]
    assert (told["kept"], len(told["probes"])) == (True, 2 * ROUNDS)
    [kept] = known_trials(node)
    assert (kept.settings, kept.gains[1].word) == ({"NCCL_P2P_DISABLE": "1"}, "slower")


def test_the_table_has_without_with_and_gain(
    node: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a sweep each size has a row; what cannot be kept is said."""
    monkeypatch.setattr("commwatch.probes.by_hand.trial.keep_trial", lambda config, trial: False)
    assert run(node, "--with", "NCCL_P2P_DISABLE=1", "--sweep", "1MiB:64MiB:64", "--gpus", "0,1") == 0

    out = capsys.readouterr().out
    assert "Without and with NCCL_P2P_DISABLE=1, medians of 3 rounds" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("all_reduce ×2 ")]
    assert [(row[2:4], row[-1]) for row in rows] == [(["1", "MiB"], "slower"), (["64", "MiB"], "slower")]
    assert "the state directory cannot be written" in " ".join(out.split())


def test_on_a_node_in_use_nothing_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and nothing is kept."""
    (tmp_path / "faults.yaml").write_text("- {fault: job, at: 0s}\n")
    busy = Config(
        paths=Paths(state=str(tmp_path / "state")),
        simulation=Simulation(preset="a10x2", faults=str(tmp_path / "faults.yaml")),
    )

    assert run(busy, "--with", "NCCL_ALGO=Ring") == 3
    assert "gpu_busy" in capsys.readouterr().out
    assert known_trials(busy) == ()


@pytest.mark.parametrize("arguments", [("--pairs",), ("--sweep", "8B:16B:2", "--output", "a.svg")])
def test_what_has_no_steps_to_compare_is_refused(arguments: tuple[str, ...], node: Config) -> None:
    """In one line."""
    with pytest.raises(CommwatchError, match="--with compares"):
        run(node, "--with", "NCCL_ALGO=Ring", *arguments)
