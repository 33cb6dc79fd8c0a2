"""Programs that are asked for a bundle: deadlines, endless output, missing ones; none is signalled."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from commwatch.diagnosis.programs import LEFT_ALONE, program_environment, run_program
from commwatch.workers.one_shot import NoAnswer

ENVIRONMENT = program_environment(os.environ)


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    """What a test leaves alone ends with it."""
    yield
    while LEFT_ALONE:
        process = LEFT_ALONE.pop()
        process.kill()
        process.wait()


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-S", "-c", code


def test_output_and_exit_code_are_taken() -> None:
    """Standard error with it, in the order in which it came."""
    found = run_program(("sh", "-c", "echo out; echo err >&2; exit 9"), ENVIRONMENT, 10, 1000)

    assert found == (9, "out\nerr\n", False)


def test_a_missing_program_is_told_apart() -> None:
    """So that the manifest can say that it is not installed."""
    with pytest.raises(NoAnswer) as error:
        run_program(("commwatch-no-such-program",), ENVIRONMENT, 10, 1000)

    assert error.value.missing


def test_one_that_does_not_answer_is_left_alone() -> None:
    """After its deadline, and without any signal: it may sit in the driver."""
    with pytest.raises(NoAnswer, match=r"gave no answer in 0\.1 s and is left alone"):
        run_program(("sleep", "60"), ENVIRONMENT, 0.1, 1000)

    [process] = LEFT_ALONE
    assert process.poll() is None


def test_one_that_closes_its_output_and_stays_is_left_alone() -> None:
    """The deadline is of the whole program."""
    with pytest.raises(NoAnswer, match="did not end"):
        run_program(("sh", "-c", "exec >&- 2>&-; exec sleep 60"), ENVIRONMENT, 0.2, 1000)


def test_endless_output_is_cut() -> None:
    """At the limit; the program ends when it writes on."""
    found = run_program(("yes",), ENVIRONMENT, 10, 5000)

    assert (len(found.text), found.is_cut, found.code) == (5000, True, None)
    [process] = LEFT_ALONE
    assert process.wait(10) != 0


def test_the_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours but where programs and libraries are; the system's folders are in the path."""
    monkeypatch.setenv("NCCL_PSK", "hunter2")

    found = run_program(("env",), program_environment(os.environ), 10, 10_000)
    names = {line.partition("=")[0] for line in found.text.splitlines()}
    assert names <= {"LC_ALL", "PATH", "LD_LIBRARY_PATH", "PWD", "SHLVL", "_"}
    assert "/usr/sbin" in found.text
