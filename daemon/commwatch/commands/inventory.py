"""commwatch inventory: what this node should have and has; accept what is here now."""

from __future__ import annotations

import argparse

import msgspec

from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.node.inventory_state import InventoryAnswer, PartCounts, origin_words
from commwatch.state.answer import document_of
from commwatch.state.client import ask_daemon, hand_to_daemon, of_the_only_daemon
from commwatch.state.directory import state_path
from commwatch.views.terminal import print_json, print_table


@command(
    "inventory",
    "show what the node should have and has; accept a change",
    "Shows the parts that the daemon expects and the parts that are here. What was learned is lowered "
    "only by `commwatch inventory accept`, which drops everything that is not here now, takes a bandwidth that is "
    "lost as the new level, and lists both.",
    "commwatch inventory; after a card was taken out for good: commwatch inventory accept",
    option("action", nargs="?", choices=("show", "accept"), default="show", help="default: show"),
)
def run(args: argparse.Namespace, config: Config) -> int:
    if args.action == "accept":
        answer = hand_to_daemon(state_path(config), "inventory-accept")
    else:
        answer = ask_daemon(state_path(of_the_only_daemon(config)), "inventory")
    inventory = document_of(answer, InventoryAnswer)
    if args.json:
        print_json(answer)
    else:
        rows = [_row(kind, counts) for kind, counts in inventory.kinds.items()]
        print_table("Inventory", ("part", "expected", "present", "source", "verdict"), rows)
        for line in inventory.missing:
            print(line)
        for line in inventory.given_up:
            print(f"given up: {line}")
    if inventory.missing:
        return ExitCode.FOUND
    unread = any(counts.expected is not None and counts.present is None for counts in inventory.kinds.values())
    return ExitCode.NOT_KNOWN if unread else ExitCode.OK


def _row(kind: str, counts: PartCounts) -> tuple[str, str, str, str, str]:
    expected, present = counts.expected, counts.present
    shown = ["not known yet" if expected is None else str(expected), "not read" if present is None else str(present)]
    if expected is None or present is None:
        verdict = "-"
    else:
        verdict = "missing" if present < expected else "ok"
    return kind, shown[0], shown[1], origin_words(msgspec.structs.asdict(counts)) or "-", verdict
