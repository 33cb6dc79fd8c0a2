"""How a command is declared: one decorator with its words, its own options, and those that all commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from commwatch.config.settings import Config

if TYPE_CHECKING:
    _Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

Action: TypeAlias = Callable[[argparse.Namespace, Config], int]
"""Does what a command is for and returns its exit code. A CommwatchError ends it with one line and its exit code."""
Option: TypeAlias = "Callable[[argparse._ActionsContainer], object]"
"""Adds itself to a parser, or to a group of its options."""


def option(*flags: str, **settings: Any) -> Option:
    """An option or an argument, as ``argparse.ArgumentParser.add_argument`` takes it."""
    return lambda parser: parser.add_argument(*flags, **settings)


def group(title: str, *options: Option, description: str | None = None) -> Option:
    """Options under a heading of their own in the help."""
    return lambda parser: _add(options, parser.add_argument_group(title, description))


def one_of(*options: Option) -> Option:
    """Options of which a command takes one at most."""
    return lambda parser: _add(options, parser.add_mutually_exclusive_group())


def _add(options: tuple[Option, ...], parser: argparse._ActionsContainer) -> None:
    for one in options:
        one(parser)


JSON = option("--json", action="store_true", help="print JSON")


class Command(NamedTuple):
    action: Action
    add_to: Callable[[_Commands, argparse.ArgumentParser], None]
    """Adds it to a command line; the second parser has the flags of the configuration."""

    def __call__(self, args: argparse.Namespace, config: Config) -> int:
        """Run it; returns the exit code."""
        return self.action(args, config)


def command(
    name: str,
    summary: str,
    description: str,
    example: str,
    *options: Option,
    reads_settings: bool = True,
    prints_json: bool = True,
) -> Callable[[Action], Command]:
    """Declares a command; the decorator of its ``run``.

    Args:
        name: what the user types.
        summary: its line in ``commwatch --help``.
        description: the first paragraph of its own help.
        reads_settings: it takes the flags of the configuration; its ``run`` is given the default one otherwise.
        prints_json: it takes ``--json``.
    """

    def declared(action: Action) -> Command:
        def add_to(commands: _Commands, settings: argparse.ArgumentParser) -> None:
            parser = commands.add_parser(
                name,
                parents=[settings] if reads_settings else [],
                help=summary,
                description=description,
                epilog=f"example: {example}",
            )
            _add((*options, JSON) if prints_json else options, parser)
            parser.set_defaults(run=action)

        return Command(action, add_to)

    return declared


class Family(NamedTuple):
    """A command that has commands of its own, such as ``commwatch cluster check``."""

    name: str
    summary: str
    description: str
    example: str
    commands: tuple[Command, ...]

    def add_to(self, commands: _Commands, settings: argparse.ArgumentParser) -> None:
        """Add it with its commands to a command line; ``settings`` has the flags of the configuration."""
        parser = commands.add_parser(
            self.name, help=self.summary, description=self.description, epilog=f"example: {self.example}"
        )
        own = parser.add_subparsers(title="commands", dest=f"{self.name}_command", metavar="COMMAND", required=True)
        for one in self.commands:
            one.add_to(own, settings)
