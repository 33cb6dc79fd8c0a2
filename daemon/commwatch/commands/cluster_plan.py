"""commwatch cluster plan: who measures with whom, without a network."""

from __future__ import annotations

import argparse

from commwatch.commands.cluster_members import groups_option
from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.views.terminal import print_json

SCHEMA = "commwatch-cluster-plan/1"


@command(
    "plan",
    "which pairs of nodes a run would measure; no network",
    "Prints the pairs of the first two rounds: nodes of a leaf, then nodes of different leaves. Round "
    "3 has the suspects with witnesses, which depend on what was measured. The same members, groups and seed give "
    "the same pairs.",
    "commwatch cluster plan --members 'gpu[01-04]' --groups leaves.txt",
    option(
        "--members",
        required=True,
        metavar="HOST,...|FILE",
        help="all nodes, gpu[01-04,07] for several, or a file with them",
    ),
    groups_option("leaf of each node"),
    option("--seed", default="1", metavar="TEXT", help="of the run; another one gives other pairs"),
    reads_settings=False,
)
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
    rounds = []
    for number, pairs in enumerate((first, second_round(leaves, args.seed, first)), start=1):
        busy = {member for pair in pairs for member in pair[:2]}
        rounds.append((number, pairs, [name for place, name in enumerate(names) if place not in busy]))
    groups = len(set(leaves) - {NO_LEAF})
    if args.json:
        print_json({
            "schema": SCHEMA, "seed": args.seed, "members": len(names), "leaves": groups,
            "rounds": [
                {
                    "round": number,
                    "pairs": [
                        {"first": names[one.first], "second": names[one.second], "wave": one.wave} for one in pairs
                    ],
                    "resting": resting,
                }
                for number, pairs, resting in rounds
            ],
        })  # fmt: skip
        return ExitCode.OK
    print(f"{len(names)} nodes, {f'{groups} leaves' if groups else 'no groups'}, seed {args.seed}")
    for number, pairs, resting in rounds:
        waves = max((pair.wave for pair in pairs), default=0) + 1
        words = f"; {', '.join(resting)} has no partner" if resting else ""
        print(f"round {number}: {len(pairs)} pairs in {waves} wave{'s' * (waves > 1)}{words}")
        for pair in sorted(pairs, key=lambda pair: pair.wave):
            print(f"  {names[pair.first]} {names[pair.second]}" + (f"  wave {pair.wave + 1}" if waves > 1 else ""))
    print("round 3: the suspects of rounds 1 and 2 with witnesses; with up to four nodes, the pairs that have not met")
    return ExitCode.OK
