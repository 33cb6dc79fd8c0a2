"""A command as the command line reads it, in this process and with a configuration that a test made."""

from __future__ import annotations

import io

from commwatch.__main__ import build_parser
from commwatch.config.settings import Config

PARSER = build_parser()
"""Of all commands, built once: it takes 25 ms."""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run_command(config: Config, command: str, *arguments: str) -> int:
    """The exit code; errors are raised as the command raises them."""
    args = PARSER.parse_args([command, *arguments])
    return int(args.run(args, config))
