"""The errors that a user may meet: each says what failed, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of commands; ``config/exit_codes.py`` has the meaning of each for each command."""

    OK = 0
    FOUND = 1
    """Something is wrong, slow or missing, or the requested action failed."""
    WRONG_USE = 2
    """Of the command line or of the configuration; of ``healthcheck`` also that nothing is known."""
    NOT_KNOWN = 3
    """Nothing could be measured or judged."""
    NO_DAEMON = 4
    """No daemon runs with this state directory."""
    RUN_BROKEN = 5
    """A run over several nodes could not begin or did not last."""


class CommwatchError(Exception):
    """An error with a message for the user; a command prints it in one line and exits with ``exit_code``."""

    exit_code: int = ExitCode.FOUND

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(CommwatchError):
    """A command was given a value that it cannot use or read; the message names it and the valid ones."""

    exit_code = ExitCode.WRONG_USE


class ConfigError(CommwatchError):
    exit_code = ExitCode.WRONG_USE

    def __init__(self, file: str, line: int | None, key: str, problem: str) -> None:
        where = f"{file}:{line}" if line is not None else file
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")
        self.file = file
        self.line = line
        self.key = key
        self.problem = problem


class StateError(CommwatchError):
    """The state directory cannot be used."""

    exit_code = ExitCode.WRONG_USE


class ListenError(CommwatchError):
    """A listen address cannot be taken."""

    exit_code = ExitCode.WRONG_USE


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", likeness: float = 0.6) -> str:
    """``did you mean all_reduce?`` where a known name is so much like the given one; else the other words."""
    import difflib  # for a wrong name alone: no process that goes on needs it

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f"did you mean {close[0]}?" if close else otherwise
