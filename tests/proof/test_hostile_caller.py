"""Every command that another user has root call from a folder of his own: nothing of it runs, and nothing is read."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch.__main__ import COMMANDS as OF_THE_PROGRAM
from support.hostile_caller import COMMANDS, HostileCaller, Row, console_script, installed_launcher, tried
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to lose")

FORMS = ("packages", "pip")
ELSEWHERE = {"run", "cluster", "drill"}
"""Commands of which the tests below are no rows."""


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> HostileCaller:
    """One for all; nothing of it may run."""
    return HostileCaller(tmp_path_factory.mktemp("caller") / "folder")


def program(form: str, folder: Path) -> tuple[str, ...]:
    """As the packages install it, with all that the caller can set; or pip, with what sudo leaves of it."""
    return installed_launcher(folder) if form == "packages" else console_script()


@pytest.fixture(scope="module", params=FORMS)
def daemons(
    request: pytest.FixtureRequest, caller: HostileCaller, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """The form and the state of two daemons that the caller has started: of this machine, and of a simulated node."""
    folder = tmp_path_factory.mktemp("daemons")
    command = [*program(request.param, folder), "run", f"--path.state={folder / 'state'}"]
    with caller.watched() as seen:
        started = [
            caller.start(
                [*command, "--web.listen-address=127.0.0.1:0", "--log.format=json", *node],
                python=request.param == "packages",
            )
            for node in ([], ["--simulate=a10x2"])
        ]
        try:
            for daemon in started:
                assert daemon.stderr is not None
                assert any('"msg": "ready"' in line for line in daemon.stderr)
            yield request.param, folder / "state"
        finally:
            for daemon in started:
                daemon.terminate()
                daemon.communicate(timeout=PATIENCE_SECONDS)
    assert seen == []


def test_every_command_is_tried() -> None:
    """A new one is a new row."""
    tested = {row.arguments.partition(" ")[0] for row in COMMANDS} | ELSEWHERE
    assert tested == set(OF_THE_PROGRAM)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("row", COMMANDS, ids=str)
def test_without_a_daemon(row: Row, form: str, caller: HostileCaller, tmp_path: Path) -> None:
    """Commands read the node themselves, by children."""
    assert tried(caller, program(form, tmp_path), row, tmp_path, python=form == "packages") == []


@pytest.mark.parametrize("row", COMMANDS, ids=str)
def test_beside_a_daemon(row: Row, daemons: tuple[str, Path], caller: HostileCaller, tmp_path: Path) -> None:
    """They ask it, and start probes and programs of their own."""
    form, state = daemons
    assert tried(caller, program(form, tmp_path), row, tmp_path, python=form == "packages", state=state) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["check", "probe"])
def test_between_nodes(what: str, form: str, caller: HostileCaller, tmp_path: Path) -> None:
    """Both members stand in the folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--rounds=1", "--host=127.0.0.1", "--interface=lo", "--simulate=h200x1"] if what == "probe" else []
    with caller.watched() as seen:
        members = [
            caller.start(
                [*program(form, tmp_path), "cluster", what, "--members=localhost,b", f"--rank={rank}",
                 f"--port={port}", f"--path.state={tmp_path}/{rank}", *options],
                python=form == "packages", COMMWATCH_CLUSTER_KEY="the key of this run",
            )
            for rank in (0, 1)
        ]  # fmt: skip
        printed = [member.communicate(timeout=PATIENCE_SECONDS) for member in members]
    assert seen == []
    assert {member.returncode for member in members} <= {0, 1, 3}, printed


@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus")
@pytest.mark.parametrize("form", FORMS)
def test_a_drill(form: str, caller: HostileCaller, tmp_path: Path) -> None:
    """It starts servers, daemons and a receiver of pages."""
    row = Row("drill", "drill --fast gpu_lost", "")
    assert tried(caller, program(form, tmp_path), row, tmp_path, python=form == "packages") == []
