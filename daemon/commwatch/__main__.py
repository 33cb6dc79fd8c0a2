"""The command line: one small module per command in commands/."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from commwatch import __version__, rehearsal
from commwatch.config.flags import config_from, settings_parser
from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode, UsageError, did_you_mean
from commwatch.lines import printable

GROUPS = {
    "look": ("top", "score", "topology", "heatmap", "inventory"),
    "investigate": ("diagnose", "flight-recorder", "probe", "cluster", "estimate", "marks"),
    "operate": (
        "run", "check-config", "healthcheck", "pause", "resume", "yield", "rules", "dashboards", "assets",
    ),
    "rehearse": tuple(rehearsal.COMMANDS),
}  # fmt: skip
COMMANDS = tuple(name for group in GROUPS.values() for name in group)


class _Parser(argparse.ArgumentParser):
    """Takes flags in full only, in each command: a misspelt one must not pass for another one's beginning."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but a command refuses what it does not know itself, so that its own usage is shown."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and self.prog != "commwatch":
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def format_help(self) -> str:
        """The help; below it what the exit codes mean."""
        import shutil  # these only here: the daemon shows no help
        import textwrap

        from commwatch.config.exit_codes import COMMANDS as WITH_CODES
        from commwatch.config.exit_codes import help_of

        text, command = super().format_help(), self.prog.removeprefix("commwatch ")
        if command not in WITH_CODES:
            return text
        return f"{text}\n{textwrap.fill(help_of(command), shutil.get_terminal_size().columns - 2)}\n"


class _GroupedHelp(argparse.HelpFormatter):
    """Lists the commands by what they are for."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add a flag, or the commands group by group."""
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)
            return
        listed = {one.dest: one for one in action._get_subactions()}
        for title, names in GROUPS.items():
            self.start_section(title)
            self.add_arguments([one for name in names if (one := listed.get(name))])
            self.end_section()


def build_parser(commands: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of the whole command line, or of some commands of it."""
    parser = _Parser(
        prog="commwatch",
        description="Monitors the communication between the GPUs of a node and names the part that is slow or failing.",
        epilog="example: commwatch run --simulate h100x8, then curl -s localhost:28029/metrics",
        formatter_class=_GroupedHelp,
    )
    parser.add_argument("--version", action="version", version=f"commwatch {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    of_the_daemon, common = settings_parser(listed=True), settings_parser(listed=False)
    for name in commands:
        declared = importlib.import_module(_module_of(name)).run
        declared.add_to(subparsers, of_the_daemon if name == "run" else common)
    return parser


def _module_of(name: str) -> str:
    own = "yield_" if name == "yield" else name.replace("-", "_")  # a word that Python keeps
    return rehearsal.COMMANDS.get(name, f"commwatch.commands.{own}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code is this one's. 2: wrong use or configuration."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        _ready_streams()
    if given[:1] == ["healthcheck"]:
        # Its exit codes drain nodes: none of those below may come out of it.
        from commwatch.diagnosis.health.answer import guarded

        return guarded(given, lambda: _run(given))
    try:
        return _run(given)
    except CommwatchError as error:
        print(f"commwatch: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has seen enough: keep Python from complaining at exit.
        sys.stderr.close()
        return ExitCode.OK
    except OSError as error:
        # Files that a command reads and writes raise errors of their own; this is its output that cannot be written.
        print(f"commwatch: output: {error.strerror}", file=sys.stderr)
        return ExitCode.FOUND
    except KeyboardInterrupt:
        return 130


def _ready_streams() -> None:
    """Keep output that cannot be shown from ending a command with a code that means something else.

    A stream that whoever started us has closed leads nowhere; else the next file that is opened would take its number.
    A sign that the terminal's encoding lacks is shown as an escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str]) -> int:
    """Parse the command line and run the command.

    Raises:
        UsageError: there is no such command.
    """
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        hint = did_you_mean(arguments[0], COMMANDS, "commwatch --help lists all commands")
        raise UsageError(f"there is no command {arguments[0]}; {hint}")
    # Imports of the other commands take time, and memory in the daemon.
    first = arguments[0] if arguments else ""
    commands = (first,) if first in COMMANDS else () if first == "--version" else COMMANDS
    parsed = build_parser(commands).parse_args(arguments)
    takes_settings = "config_file" in parsed  # of a command that reads none, no file can be wrong
    code = int(parsed.run(parsed, config_from(parsed) if takes_settings else Config()))
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
