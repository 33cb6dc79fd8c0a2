"""A program that is asked once: its answer, deadlines, endless output, missing ones; which is killed, which is not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from commwatch.diagnosis.bundle_machine import program_environment
from commwatch.workers.one_shot import LEFT_ALONE, Answer, NoAnswer, ask
from support.waiting import PATIENCE_SECONDS

ENVIRONMENT = program_environment(os.environ)
ENDED_BY_SIGPIPE = -13


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    """What a test leaves alone ends with it."""
    yield
    while LEFT_ALONE:
        process = LEFT_ALONE.pop()
        process.kill()
        process.wait()


def answer(
    *command: str, deadline: float = PATIENCE_SECONDS, limit: int = 1000, together: bool = False, spare: bool = False
) -> Answer:
    return asyncio.run(ask(command, ENVIRONMENT, deadline, limit=limit, together=together, spare=spare))


def test_output_errors_and_exit_code_are_taken() -> None:
    """Each by itself, or standard error in the order in which it came."""
    command = ("sh", "-c", "echo out; echo err >&2; echo on; exit 9")

    assert answer(*command) == (9, "out\non\n", "err\n", False)
    assert answer(*command, together=True) == (9, "out\nerr\non\n", "", False)


def test_a_missing_program_is_told_apart() -> None:
    """So that a caller can say that it is not installed."""
    with pytest.raises(NoAnswer) as error:
        answer("commwatch-no-such-program")

    assert error.value.missing


@pytest.mark.parametrize("script", ["exec sleep 600", "exec >&- 2>&-; exec sleep 600"])
def test_one_that_has_not_ended_is_killed(script: str) -> None:
    """The deadline is of the whole program, whether or not it still could print."""
    with pytest.raises(NoAnswer, match=r"^sh gave no answer in 0\.1 s$"):
        answer("sh", "-c", script, deadline=0.1)

    assert LEFT_ALONE == []


@pytest.mark.parametrize("script", ["exec sleep 600", "exec >&- 2>&-; exec sleep 600"])
def test_one_that_is_spared_is_left_alone(script: str) -> None:
    """Without any signal: it may sit in the driver."""
    with pytest.raises(NoAnswer, match=r"^sh gave no answer in 0\.1 s and is left alone$"):
        answer("sh", "-c", script, deadline=0.1, spare=True)

    [process] = LEFT_ALONE
    assert process.poll() is None


def test_one_that_was_left_alone_is_known_until_it_has_ended() -> None:
    """The next that is asked waits for it, so that no dead process stays behind."""
    with pytest.raises(NoAnswer):
        answer("sleep", "600", deadline=0.0, spare=True)  # it writes nothing, and so does not end with its output
    [process] = LEFT_ALONE
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    answer("true")

    assert LEFT_ALONE == []
    assert process.returncode is not None


@pytest.mark.parametrize("spare", [False, True])
def test_endless_output_is_cut(spare: bool) -> None:
    """At the limit; the program ends by itself when it writes on, or is killed."""
    found = answer("yes", limit=5000, spare=spare)

    assert (len(found.output), found.is_cut, found.code) == (5000, True, ENDED_BY_SIGPIPE)
    for process in LEFT_ALONE:
        assert process.wait(PATIENCE_SECONDS) != 0


def test_the_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours but where programs and libraries are; the system's folders are in the path."""
    monkeypatch.setenv("NCCL_PSK", "hunter2")

    found = asyncio.run(ask(("env",), program_environment(os.environ), 30.0))

    names = {line.partition("=")[0] for line in found.output.splitlines()}
    assert names <= {"LC_ALL", "PATH", "LD_LIBRARY_PATH", "PWD", "SHLVL", "_"}
    assert "/usr/sbin" in found.output


def test_one_whose_caller_is_cancelled_is_killed() -> None:
    """Nobody waits for its answer any more."""

    async def body() -> None:
        asked = asyncio.create_task(ask(("sleep", "600"), ENVIRONMENT, 600.0))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(body())

    assert LEFT_ALONE == []
