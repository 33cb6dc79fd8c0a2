"""commwatch simulate: which nodes can be simulated, and what can go wrong on them."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.lines import printable
from commwatch.views.terminal import print_json

if TYPE_CHECKING:
    from commwatch_rehearsal.simulation.describe import NodeDescription
    from commwatch_rehearsal.simulation.faults.fault import Kind, Setting

_WIDEST = 100
"""Columns of text; longer lines are hard to read on any terminal."""


@command(
    "simulate",
    "list the nodes that can be simulated and the faults that can be injected",
    "With --list prints every preset and every kind of fault with its settings and an example; with "
    "the name of a preset, a file of your own or a recording, that node and how to run it. See "
    "docs/using/simulation.md.",
    "commwatch simulate --list; then commwatch run --simulate h100x8 --simulate.faults faults.yaml",
    option("node", nargs="?", metavar="NODE", help="a preset, a file of your own or a recording"),
    option("--list", action="store_true", help="print the presets and the kinds of fault"),
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Print what is asked for; a wrong node ends the program with its error."""
    node = args.node or ("" if args.list else config.simulation.preset)
    if bool(node) == args.list:
        raise UsageError("simulate: name a node or give --list")
    if args.list:
        return _list(as_json=args.json)
    from commwatch_rehearsal.simulation.describe import describe_node
    from commwatch_rehearsal.simulation.presets import find_preset

    described = describe_node(find_preset(node))
    if args.json:
        print_json(asdict(described))
        return ExitCode.OK
    _print_node(described)
    print(f"\nTo run it:\n  commwatch run --simulate {node}")
    print(f"With faults (commwatch simulate --list):\n  commwatch run --simulate {node} --simulate.faults faults.yaml")
    return ExitCode.OK


def _list(*, as_json: bool) -> int:
    from commwatch_rehearsal.simulation.describe import describe_node
    from commwatch_rehearsal.simulation.faults.kinds import FAMILIES
    from commwatch_rehearsal.simulation.presets import PRESETS

    nodes = [describe_node(preset) for preset in PRESETS.values()]
    if as_json:
        found: dict[str, Any] = {
            "presets": [asdict(node) for node in nodes],
            "faults": [
                _document(name, kind, title) for title, family in FAMILIES.items() for name, kind in family.items()
            ],
        }
        print_json(found)
        return ExitCode.OK
    print("Nodes\n")
    for node in nodes:
        _print_node(node)
    for title, family in FAMILIES.items():
        print(f"\nFaults: {title}\n")
        for name, kind in family.items():
            _print_kind(name, kind)
    print("\nEvery fault also takes 'at', 'for' and 'until': its begin, its length, its end.")
    return ExitCode.OK


def _document(name: str, kind: Kind, family: str) -> dict[str, Any]:
    return {
        "fault": name,
        "family": family,
        "target": kind.target,
        "keys": kind.keys,
        "settings": [
            {"key": key, "accepts": setting.accepts, "default": setting.default}
            for key, setting in kind.settings.items()
        ],
        "meaning": kind.help,
        "example": kind.entry(name),
        "preset": kind.preset,
    }


def _print_node(node: NodeDescription) -> None:
    print(f"{node.name}: {_plain(node.gpus)}, driver {_plain(node.driver)}")
    for label in ("nvlink", "pcie", "network", "rdma"):
        _print_wrapped(f"  {label:8}", _plain(getattr(node, label)))


def _print_kind(name: str, kind: Kind) -> None:
    # In the documentation backticks set the keys apart from the words around them, here quotes do.
    _print_wrapped(f"{name}: ", kind.help.replace("`", "'"), hang=2)
    if kind.keys:
        print(f"  strikes   {', '.join(kind.keys)}")
    for key, setting in kind.settings.items():
        _print_wrapped(f"  {key:21}", setting.accepts + _default(key, setting))
    print(f"  example   {kind.entry(name)}" + ("" if kind.preset == "h100x8" else f"  ({kind.preset})"))


def _default(key: str, setting: Setting) -> str:
    if setting.default is None:
        return ""
    if key == "rate" and not setting.default:
        return " (without it: once)"
    return f" (default {setting.default if isinstance(setting.default, str) else format(setting.default, 'g')})"


def _print_wrapped(head: str, text: str, *, hang: int | None = None) -> None:
    """A text behind a head, in lines of the terminal; further lines begin below the text, or where ``hang`` says."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    indent = " " * (len(head) if hang is None else hang)
    # Names, addresses and rates stay whole.
    print(
        textwrap.fill(
            text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    )


def _plain(text: str) -> str:
    """Text of the documentation, with names of a node, for a terminal."""
    return printable(text.replace("`", ""))
