"""The table of exit codes against the commands: their help, their source and what they end with."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import commwatch
from commwatch.__main__ import main
from commwatch.config.exit_codes import COMMANDS, meanings_of
from support.command_line import PARSER
from support.passes import in_one_pass

SOURCES = Path(commwatch.__file__).parent


def parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command, and the commands of a command, by the words after ``commwatch``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                below = list(parsers(one))
                yield from below or [(one.prog.removeprefix("commwatch "), one)]


ALL = dict(parsers(PARSER))


def test_each_command_has_its_codes() -> None:
    """No command without a row, no row without a command."""
    assert sorted(ALL) == sorted(COMMANDS)


@in_one_pass("command", COMMANDS)
def test_the_help_of_a_command_has_its_codes(command: str) -> None:
    """Each with its meaning, and in no second wording beside it."""
    shown = " ".join(ALL[command].format_help().split())
    assert shown.count("Exit code ") == 1
    for code, meaning in meanings_of(command).items():
        assert f"{code}: {meaning}" in shown


@in_one_pass("command", COMMANDS)
def test_the_help_of_a_command_begins_and_ends_with_what_is_typed(command: str) -> None:
    """Its usage, and an example that is a command line of it."""
    shown = " ".join(ALL[command].format_help().split())
    assert shown.startswith(f"usage: commwatch {command} ")
    assert f"commwatch {command}" in shown.partition("example: ")[2]


def test_no_code_is_a_bare_number() -> None:
    """Errors and commands name a code of the table, which alone says what it means."""
    for path in SOURCES.rglob("*.py"):
        bare = r"^ +exit_code(: int)? = [0-9]"
        if path.parent.name == "commands":
            bare += r"|^ +return [0-9]$|^ +return [0-9] if "
        assert not re.search(bare, path.read_text(encoding="utf-8"), re.MULTILINE), path


USES = {
    "top": {"--once --web.listen-address 127.0.0.1:1": 4, "--url x": 2},  # a daemon may run on this machine
    "score": {"--path.procfs .": 3},
    "topology": {"--dot --json": 2},
    "heatmap": {"": 4, "--from nowhere.json": 2},
    "inventory": {"": 4},
    "diagnose": {
        "": 4,
        "--full-scan --path.procfs .": 3,
        "--log nowhere.log": 2,
        "--compare a b": 2,
        "--flight-recorder nowhere": 2,
    },
    "probe": {"nowhere": 2},
    "cluster check": {"": 5},
    "cluster probe": {"": 5},
    "cluster scan": {"": 5},
    "cluster plan": {"--members a": 3, "--members a,b": 0, "--members a,a": 5},
    "cluster locate": {"nowhere.json": 5},
    "flight-recorder convert": {"nowhere out.json": 2},
    "estimate": {"--nodes 2": 2},
    "marks learn": {"nowhere.json --output a.yaml": 2, "http://127.0.0.1:1 --output a.yaml": 3},
    "run": {"--simulate nowhere": 2},
    "check-config": {"": 0, "--config.file nowhere.yaml": 2},
    "healthcheck": {"": 2, "--slurm": 0, "--fail-closed": 1},
    "pause": {"--for never": 2, "": 4},
    "resume": {"": 4},
    "yield": {"--wait never": 2, "--wait 0s": 0},
    "rules": {"--check": 2, "--check --output .": 1},
    "dashboards": {"": 2, "--check --output .": 1},
    "assets": {"--to .": 2, "": 0},
    "simulate": {"nowhere": 2, "--list": 0},
    "record": {"": 2, "--list nowhere.cwrec": 2},
    "drill": {"nowhere": 2, "--list": 0},
}
"""Without a daemon, from an empty folder: what each command ends with."""


@pytest.mark.parametrize(("command", "arguments"), [(one, use) for one in USES for use in USES[one]])
def test_a_command_ends_with_a_code_of_its_table(
    command: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The expected one, which the table has for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    for variable in ("COMMWATCH_CLUSTER_KEY", "SLURM_JOB_ID", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)

    code = main([*command.split(), *arguments.split()])

    assert code == USES[command][arguments], capsys.readouterr().err
    assert code in meanings_of(command)


def test_each_command_is_tried() -> None:
    """So that a new one is, too."""
    assert set(USES) == set(COMMANDS)
