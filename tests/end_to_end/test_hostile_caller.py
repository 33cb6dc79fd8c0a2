"""Commands that another user has root call, from a folder of his own: nothing of it runs, and nothing of it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.hostile_caller import COMMANDS, HostileCaller, Row, console_script, installed_launcher, tried

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to lose")

FEW = ("topology", "check-config --runtime", "healthcheck", "heatmap", "probe")
"""Of each way to start a child one."""


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> HostileCaller:
    """One for all; nothing of it may run."""
    return HostileCaller(tmp_path_factory.mktemp("caller") / "folder")


@pytest.mark.parametrize("row", [row for row in COMMANDS if row.name in FEW], ids=str)
def test_nothing_of_the_callers_folder_runs_or_is_read(row: Row, caller: HostileCaller, tmp_path: Path) -> None:
    """Be it the current folder, home, the temporary folder, PATH, PYTHONPATH or what XDG names."""
    assert tried(caller, installed_launcher(tmp_path), row, tmp_path, python=True) == []


def test_the_program_that_pip_installs_is_as_safe_once_sudo_has_cleaned_the_environment(
    caller: HostileCaller, tmp_path: Path
) -> None:
    """It cannot leave variables of Python aside, since Python reads them first."""
    [row] = [row for row in COMMANDS if row.name == "topology"]
    assert tried(caller, console_script(), row, tmp_path, python=False) == []


def test_a_folder_that_is_used_after_all_is_seen(caller: HostileCaller, tmp_path: Path) -> None:
    """What holds the tests above can fail: an interpreter that is not isolated runs the caller's code."""
    [row] = [row for row in COMMANDS if row.name == "topology"]
    (python,) = console_script()
    found = tried(caller, (str(Path(python).with_name("python")), "-m", "commwatch"), row, tmp_path, python=False)
    assert any(one.startswith("ran ") for one in found)
    assert any(one.startswith(f"opened {caller.folder}") for one in found)
