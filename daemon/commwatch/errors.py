"""The errors that a user may meet: each says what failed, where, and what to do."""

from __future__ import annotations


class CommwatchError(Exception):
    """An error with a message for the user; a command prints it in one line and exits with ``exit_code``."""

    exit_code = 1


class UsageError(CommwatchError):
    """A command was given what it cannot do."""

    exit_code = 2


class ConfigError(CommwatchError):
    """The configuration cannot be used."""

    exit_code = 2

    def __init__(self, file: str, line: int | None, key: str, problem: str) -> None:
        where = f"{file}:{line}" if line is not None else file
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")
        self.file = file
        self.line = line
        self.key = key
        self.problem = problem


class StateError(CommwatchError):
    """The state directory cannot be used."""

    exit_code = 2


class ListenError(CommwatchError):
    """A listen address cannot be taken."""

    exit_code = 2
