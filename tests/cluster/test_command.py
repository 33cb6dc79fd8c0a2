"""The command: bad input in one line, exit codes, and members as processes that are ended at any moment."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commwatch.__main__ import main
from commwatch.cluster.check import check
from commwatch.cluster.environment import BrokenRun, Place
from commwatch.cluster.member import Progress, Run
from commwatch.cluster.messages import Verdict
from commwatch.cluster.store import Deadlines
from support.daemon import environment
from support.waiting import until

Output = pytest.CaptureFixture[str]
KEY = "the key of this run"
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "PMIX_RANK", "JOB_COMPLETION_INDEX")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by hand, with a key."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMMWATCH_CLUSTER_KEY", KEY)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return min(port, 65000)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 5, "no launcher is seen"),
        (["--engine", "pbs"], 5, "unknown engine 'pbs'"),
        (["--members", "a,b,a"], 5, "a is twice in the list"),
        (["--members", "/nowhere/members"], 5, "/nowhere/members: No such file"),
        (["--members", "a,b", "--rank", "0", "--key-file", "/nowhere/key"], 5, "/nowhere/key: No such file"),
        (["--members", "a,b", "--rank", "0", "--interface", "nix0"], 5, "no interface 'nix0'"),
        (["--members", "a,nowhere.invalid", "--rank", "1", "--host", "nowhere.invalid", "--join-window", "100ms"], 1,
         "name: nowhere.invalid -> nowhere.invalid"),
    ],
)  # fmt: skip
def test_what_cannot_begin_is_one_line(
    arguments: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """With the exit code of a broken run, or of something that is named; without a key it says how to make one."""
    assert main(["cluster", "check", *arguments]) == code

    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert words in said.err
    monkeypatch.delenv("COMMWATCH_CLUSTER_KEY")
    assert main(["cluster", "check", "--members", "a,b", "--rank", "0"]) == 5
    assert "openssl rand -hex 32" in capsys.readouterr().err


def test_a_member_of_another_key_says_so_and_the_other_says_who_was_turned_away(tmp_path: Path) -> None:
    """The run of the one is broken; that of the other has too few nodes."""
    port = free_port()

    async def both() -> tuple[Verdict | BaseException, Verdict | BaseException]:
        first, other = (
            check(
                Run(Place("members", rank, 2, "127.0.0.1", port), key, {}, tmp_path, tmp_path, deadlines=deadlines),
                Progress(print),
            )
            for rank, key, deadlines in ((0, b"one key", Deadlines(join=1.0)), (1, b"another", Deadlines(join=60.0)))
        )
        return tuple(await asyncio.gather(first, other, return_exceptions=True))  # type: ignore[return-value]

    verdict, error = asyncio.run(both())

    assert isinstance(error, BrokenRun)
    assert "the run key does not match" in str(error)
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.strangers) == ("too_few", ("127.0.0.1: not sealed with the key of this run",))


def test_term_ends_a_member_at_once(tmp_path: Path) -> None:
    """With the code of a broken run; its port is free again."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "commwatch", "cluster", "check", "--members", "localhost,b", "--rank", "0",
         "--port", str(port)],
        env={**environment(), "COMMWATCH_CLUSTER_KEY": KEY}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def listens() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    until(listens)
    process.send_signal(signal.SIGTERM)
    printed, said = process.communicate(timeout=60)

    assert process.returncode == 5
    assert printed == ""
    assert said.splitlines()[-1] == "commwatch: cluster: ended by SIGTERM"
    assert not listens()
