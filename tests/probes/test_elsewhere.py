"""Ranks on another interpreter than the daemon's (``probes.python``): what it needs, and what is said without it."""

from __future__ import annotations

import asyncio
import json
import venv
from pathlib import Path

import msgspec
import pytest

from commwatch.__main__ import main
from commwatch.config.settings import Config, Paths, Probes, Sources, Web
from commwatch.config.yaml_file import load_config
from commwatch.errors import ConfigError
from commwatch.probes.cycle.environment import why_no_torch
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.plan import CyclePlan, CycleResult, Measured, Skipped
from commwatch.probes.rank_plan import SimulatedNodePlan
from commwatch_rehearsal.simulation.presets import PRESETS
from probes.cycles import PROCFS, all_quiet, cycle_plan
from support.command_line import run_command


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with nothing but the standard library."""
    folder = tmp_path_factory.mktemp("site") / "environment"
    venv.create(folder, with_pip=False)
    return str(folder / "bin/python")


def run(python: str, folder: Path, plan: CyclePlan) -> CycleResult:
    """One cycle whose ranks are on an interpreter."""
    return asyncio.run(Launcher(procfs=PROCFS, python=python, temporary=folder).run(plan, all_quiet))


def test_a_rank_needs_nothing_of_commwatchs_libraries(bare: str, tmp_path: Path) -> None:
    """It reads its plan and looks for torch; that it is not there is a skip that names the interpreter."""
    result = run(bare, tmp_path, cycle_plan(backend="gloo", devices=()))

    assert isinstance(result, Skipped)
    assert result.reason == "no_torch"
    assert result.detail.startswith(f"{bare}: No module named 'torch'")


def test_ranks_without_torch_stay_on_the_daemons_interpreter(bare: str, tmp_path: Path) -> None:
    """A simulated node is measured whatever the site has."""
    simulation = SimulatedNodePlan(preset="a10x2", faults_file=None, started_at=0.0)
    plan = cycle_plan(devices=tuple(gpu.uuid for gpu in PRESETS["a10x2"].gpus), simulation=simulation)

    assert isinstance(run(bare, tmp_path, plan), Measured)


def test_an_interpreter_that_is_not_there_or_may_not_run_is_named(tmp_path: Path) -> None:
    """Before ranks are started; whether torch is there, only they can say."""
    folder, text = tmp_path / "folder", tmp_path / "text"
    folder.mkdir()
    text.touch(mode=0o644)

    assert why_no_torch(str(tmp_path / "none")) == f"probes.python: there is no {tmp_path}/none"
    assert why_no_torch(str(folder)) == f"probes.python: there is no {folder}"
    assert why_no_torch(str(text)) == f"probes.python: {text} may not be executed by this user"
    text.chmod(0o755)
    assert why_no_torch(str(text)) == ""


def test_check_config_asks_it(bare: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that is no Python, one that is too old, one without torch, one with it."""
    said = {"no Python": "echo hello", "old": "echo 3 9 1", "without": f'exec {bare} "$@"', "with": "echo 3 12 1"}
    checks = {}
    for name, text in said.items():
        path = tmp_path / name.replace(" ", "")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        config = Config(
            paths=Paths(state=str(tmp_path / "state")), web=Web(listen_addresses=()),
            probes=Probes(python=str(path)),
            sources=Sources(**{one.name: one.type(enabled=False) for one in msgspec.structs.fields(Sources)}),
        )  # fmt: skip
        run_command(config, "check-config", "--runtime", "--json")
        [checks[name]] = [one for one in json.loads(capsys.readouterr().out) if one["what"] == "probe"]

    assert {name: check["verdict"] for name, check in checks.items()} == {
        "no Python": "failed", "old": "failed", "without": "failed", "with": "ok",
    }  # fmt: skip
    assert checks["no Python"]["detail"].endswith("is no Python: hello")
    assert checks["old"]["detail"].endswith("is Python 3.9; ranks need 3.10 or later")
    assert checks["without"]["detail"].endswith("has no PyTorch")
    assert checks["with"]["detail"].endswith("Python 3.12 with PyTorch")


def test_check_config_fails_without_being_asked_for_more(
    bare: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interpreter that is not there is a mistake of the file; a daemon that reads it skips its probes."""
    file = tmp_path / "commwatch.yaml"
    codes = []
    for python in (bare, "/nowhere/python"):
        file.write_text(f"probes: {{python: {python}}}")
        codes.append(main(["check-config", "--config.file", str(file)]))

    assert codes == [0, 1]
    assert "there is no /nowhere/python" in " ".join(capsys.readouterr().out.split())


def test_the_path_begins_at_the_root(tmp_path: Path) -> None:
    """Where the daemon stands says nothing to who writes the file."""
    file = tmp_path / "commwatch.yaml"
    file.write_text("probes: {python: bin/python}")

    with pytest.raises(ConfigError, match=r"commwatch.yaml:1: probes.python"):
        load_config(file)
    assert Config().probes.python == ""
