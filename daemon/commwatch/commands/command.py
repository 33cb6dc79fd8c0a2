"""How a command is declared: one decorator with its words, its own options, and those that it has in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from commwatch.config.settings import Config

if TYPE_CHECKING:
    _Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

Action: TypeAlias = Callable[[argparse.Namespace, Config], int]
"""What a command does; returns its exit code. A CommwatchError that it raises is printed in one line, with its code."""


class Option(NamedTuple):
    """One option, or one argument, as ``argparse`` takes it."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


class Group(NamedTuple):
    """Options under a heading of their own, or of which only one may be given."""

    title: str
    """Empty: of these only one may be given."""
    description: str | None
    options: tuple[Option, ...]


def option(*flags: str, **settings: Any) -> Option:
    """An option, in the words of ``argparse.ArgumentParser.add_argument``."""
    return Option(flags, settings)


def group(title: str, *options: Option, description: str | None = None) -> Group:
    """Options under a heading of their own."""
    return Group(title, description, options)


def one_of(*options: Option) -> Group:
    """Options that do not go together."""
    return Group("", None, options)


JSON = option("--json", action="store_true", help="print JSON")


class Command(NamedTuple):
    """A command of the command line: what stands above ``run`` in its module."""

    name: str
    summary: str
    description: str
    example: str
    options: tuple[Option | Group, ...]
    reads_settings: bool
    action: Action

    def __call__(self, args: argparse.Namespace, config: Config) -> int:
        """Do it; returns the exit code."""
        return self.action(args, config)

    def add_to(self, commands: _Commands, settings: argparse.ArgumentParser) -> None:
        """Add the command to a command line.

        Args:
            commands: of the command line.
            settings: the flags that set a setting of the configuration.
        """
        parser = commands.add_parser(
            self.name,
            parents=[settings] if self.reads_settings else [],
            help=self.summary,
            description=self.description,
            epilog=f"example: {self.example}",
        )
        for one in self.options:
            if isinstance(one, Option):
                parser.add_argument(*one.flags, **one.settings)
                continue
            place: argparse._ActionsContainer = (
                parser.add_argument_group(one.title, one.description) if one.title
                else parser.add_mutually_exclusive_group()
            )  # fmt: skip
            for each in one.options:
                place.add_argument(*each.flags, **each.settings)
        parser.set_defaults(run=self.action)


def command(
    name: str,
    summary: str,
    description: str,
    example: str,
    *options: Option | Group,
    reads_settings: bool = True,
    prints_json: bool = True,
) -> Callable[[Action], Command]:
    """Declares a command: the decorator of its ``run``.

    Args:
        name: as it is typed.
        summary: its line in ``commwatch --help``.
        description: the first paragraph of its own help.
        example: a command line that can be typed.
        options: its own.
        reads_settings: it takes the flags of the configuration and is given that; else it is given the default one.
        prints_json: it takes ``--json``.
    """

    def declared(action: Action) -> Command:
        return Command(
            name, summary, description, example, (*options, JSON) if prints_json else options, reads_settings, action
        )

    return declared


class Family(NamedTuple):
    """A command that has commands of its own, such as ``commwatch cluster check``."""

    name: str
    summary: str
    description: str
    example: str
    commands: tuple[Command, ...]

    def add_to(self, commands: _Commands, settings: argparse.ArgumentParser) -> None:
        """As of ``Command``."""
        parser = commands.add_parser(
            self.name, help=self.summary, description=self.description, epilog=f"example: {self.example}"
        )
        own = parser.add_subparsers(
            title="commands", dest=f"{self.name}_command", metavar="COMMAND", required=True
        )  # fmt: skip
        for one in self.commands:
            one.add_to(own, settings)
