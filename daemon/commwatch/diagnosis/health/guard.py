"""Keeps what goes wrong in healthcheck itself from looking like a problem of the node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from commwatch.diagnosis.health.answer import HealthDocument, counted, print_answer, silence_output
from commwatch.findings.health import Health, unknown
from commwatch.state.directory import default_state_path


def guarded(arguments: Sequence[str], run: Callable[[], int]) -> int:
    """Run the command; wrong use, a configuration that cannot be read and defects are unknown.

    A scheduler that calls it with a misspelt option would drain the whole cluster by an exit code that says no.

    Args:
        arguments: of the command line.
        run: understands them, does the work and gives the exit code.
    """
    try:
        return run()
    except SystemExit as end:  # of the parser
        if not end.code:
            return 0
        return _answer(_of(arguments, "wrong use of the command; standard error says what"), arguments)
    except OSError as error:
        silence_output()  # it may be this that failed
        return _answer(_of(arguments, f"output or files: {error}"), arguments)
    except Exception as error:
        # Any defect of ours: whatever it is, the node must not pay for it.
        return _answer(_of(arguments, f"{type(error).__name__}: {error}"), arguments)


def _of(arguments: Sequence[str], reason: str) -> Health:
    return unknown("error", reason, slurm="--slurm" in arguments, fail_closed="--fail-closed" in arguments)


def _answer(health: Health, arguments: Sequence[str]) -> int:
    is_counted = counted(health, _state(arguments))
    document = HealthDocument(
        verdict=health.verdict, reason=health.reason, exit_code=health.exit_code, because=health.because,
        counted=is_counted, time=time.time(),
    )  # fmt: skip
    try:
        print_answer(document, as_json="--json" in arguments)
    except OSError:
        silence_output()
    return health.exit_code


def _state(arguments: Sequence[str]) -> Path:
    """The state directory as far as it is known without a configuration."""
    for place, word in enumerate(arguments):
        if word == "--path.state" and place + 1 < len(arguments):
            return Path(arguments[place + 1])
        if word.startswith("--path.state="):
            return Path(word.partition("=")[2])
    named = os.environ.get("COMMWATCH_PATH_STATE")
    return Path(named) if named else default_state_path()
