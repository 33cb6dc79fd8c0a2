"""commwatch cluster plan: who measures with whom, without a network."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from commwatch.commands.cluster_members import groups_option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.views.terminal import json_option, print_json

if TYPE_CHECKING:
    from commwatch.cluster.schedule import Pair

SCHEMA = "commwatch-cluster-plan/1"


class PlannedPair(msgspec.Struct, frozen=True):
    """Two nodes that measure together."""

    first: str
    second: str
    wave: int
    """Pairs of a later wave begin when those of the earlier ones are done."""


class PlannedRound(msgspec.Struct, frozen=True):
    """Pairs that no result changes; round 3 has the suspects of the first two with witnesses."""

    round: int
    pairs: tuple[PlannedPair, ...]
    resting: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """The first two rounds."""

    schema: str
    seed: str
    members: int
    leaves: int
    rounds: tuple[PlannedRound, ...]


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command, which reads no setting, to the command line."""
    parser = subparsers.add_parser(
        "plan",
        allow_abbrev=False,
        help="which pairs of nodes a run would measure; no network",
        description="Prints the pairs of the first two rounds: nodes of a leaf, then nodes of different leaves. Round "
        "3 has the suspects with witnesses, which depend on what was measured. The same members, groups and seed give "
        "the same pairs.",
        epilog="example: commwatch cluster plan --members gpu01,gpu02,gpu03,gpu04 --groups leaves.txt",
    )
    parser.add_argument("--members", required=True, metavar="HOST,...|FILE", help="all nodes, or a file with them")
    groups_option(parser, "leaf of each node")
    parser.add_argument("--seed", default="1", metavar="TEXT", help="of the run; another one gives other pairs")
    json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Print the pairs.

    Raises:
        RunUnreadable: the members or the groups cannot be used.
    """
    from commwatch.cluster.run_file import leaves_of, read_groups, read_members
    from commwatch.cluster.schedule import NO_LEAF, first_round, second_round

    names = read_members(args.members)
    leaves = [NO_LEAF] * len(names)
    if args.groups is not None:
        leaves = leaves_of(names, read_groups(args.groups), args.groups)
    if len(names) < 2:
        print("fewer than two nodes: no pair to measure")
        return ExitCode.NOT_KNOWN
    first = first_round(leaves, args.seed)
    rounds = tuple(
        _planned(number, pairs, names)
        for number, pairs in enumerate((first, second_round(leaves, args.seed, first)), start=1)
    )
    plan = Plan(SCHEMA, args.seed, len(names), len(set(leaves) - {NO_LEAF}), rounds)
    if args.json:
        print_json(plan)
    else:
        _print(plan)
    return ExitCode.OK


def _planned(number: int, pairs: tuple[Pair, ...], names: list[str]) -> PlannedRound:
    busy = {member for pair in pairs for member in pair[:2]}
    return PlannedRound(
        number,
        tuple(PlannedPair(names[one.first], names[one.second], one.wave) for one in pairs),
        tuple(name for place, name in enumerate(names) if place not in busy),
    )


def _print(plan: Plan) -> None:
    groups = f"{plan.leaves} leaves" if plan.leaves else "no groups"
    print(f"{plan.members} nodes, {groups}, seed {plan.seed}")
    for one in plan.rounds:
        waves = max((pair.wave for pair in one.pairs), default=0) + 1
        resting = f"; {', '.join(one.resting)} rests" if one.resting else ""
        print(f"round {one.round}: {len(one.pairs)} pairs in {waves} wave{'s' * (waves > 1)}{resting}")
        for pair in sorted(one.pairs, key=lambda pair: pair.wave):
            print(f"  {pair.first} {pair.second}" + (f"  wave {pair.wave + 1}" if waves > 1 else ""))
    print("round 3: the suspects of rounds 1 and 2 with witnesses; with up to four nodes, the pairs that have not met")
