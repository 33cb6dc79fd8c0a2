"""commwatch cluster check: whether the nodes of a job fit together and reach each other, before it starts."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.profile_options import positive_duration
from commwatch.config.settings import Config
from commwatch.views.terminal import json_option, print_json

if TYPE_CHECKING:
    from commwatch.cluster.environment import Own
    from commwatch.cluster.messages import Verdict

FINE, NAMED, TOO_FEW = 0, 1, 3


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "check",
        parents=parents,
        allow_abbrev=False,
        help="versions, names, interfaces, ports both ways, large packets; no GPU, seconds",
        description="Compares the nodes of a job and tries the connections that it will need. Needs no GPU and no idle "
        "node; start one member a node, with the same run key in COMMWATCH_CLUSTER_KEY. Member 0 prints what is found. "
        "Exit code 0: fine; 1: something is named; 3: fewer than two nodes came; 5: the run is broken.",
        epilog="example: export COMMWATCH_CLUSTER_KEY=$(openssl rand -hex 32); srun --ntasks-per-node=1 commwatch "
        "cluster check",
    )
    parser.add_argument(
        "--engine",
        default="auto",
        metavar="NAME",
        help="slurm, kubernetes, torchrun, mpirun or members (default: auto)",
    )
    parser.add_argument("--members", metavar="HOST,...|FILE", help="all members by hand, the first one hosts the store")
    parser.add_argument("--rank", type=int, metavar="N", help="which member this is")
    parser.add_argument("--size", type=int, metavar="N", help="how many members there are")
    parser.add_argument("--host", metavar="HOST", help="where member 0 is (default: what the launcher says)")
    parser.add_argument("--port", type=int, metavar="PORT", help="where the job meets (default: MASTER_PORT, 29500)")
    parser.add_argument(
        "--interface", metavar="NAME", help="the interface that the job will use (default: NCCL's choice)"
    )
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="the run key, instead of COMMWATCH_CLUSTER_KEY")
    parser.add_argument(
        "--join-window", type=positive_duration, default=60.0, metavar="TIME",
        help="how long members are waited for (default 1m)",
    )  # fmt: skip
    json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Take part, and as member 0 print the verdict.

    Raises:
        BrokenRun: the run cannot begin, or has broken; a member that did not get to the store says why.
    """
    from commwatch.cluster.environment import BrokenRun, place, run_key
    from commwatch.cluster.member import Progress, Run, Unreached, check, until_term
    from commwatch.cluster.store import Deadlines

    here = place(os.environ, _own(args))
    if args.key_file is None:
        key = run_key(os.environ, None)
    else:
        try:
            key = run_key(os.environ, args.key_file.read_bytes()[:4096])
        except OSError as error:
            raise BrokenRun(f"cluster: {args.key_file}: {error.strerror}") from error
    started = Run(
        here, key, dict(os.environ), Path(config.paths.sysfs), Path(config.paths.procfs), args.interface or "",
        Deadlines(join=args.join_window),
    )  # fmt: skip

    def say(text: str) -> None:
        # A launcher shows what all members print.
        if here.rank == 0 or here.engine == "members":
            print(text, file=sys.stderr, flush=True)

    async def whole() -> Verdict:
        return await until_term(asyncio.ensure_future(check(started, Progress(say))))

    try:
        verdict = asyncio.run(whole())
    except Unreached as error:
        if args.json:
            print_json({"outcome": "unreached", "rank": here.rank, "failures": [error.failure]})
            return NAMED
        raise
    if here.rank == 0:
        if args.json:
            print_json(verdict)
        else:
            _print(verdict)
    return {"fine": FINE, "named": NAMED, "too_few": TOO_FEW}[verdict.outcome]


def _own(args: argparse.Namespace) -> Own:
    from commwatch.cluster.environment import BrokenRun, Own
    from commwatch.cluster.interfaces import read_interfaces

    members: tuple[str, ...] = ()
    if args.members is not None:
        text = args.members
        if "/" in text or os.path.isfile(text):
            try:
                text = Path(text).read_text("utf-8", "replace")
            except OSError as error:
                raise BrokenRun(f"cluster: {args.members}: {error.strerror}") from error
        lines = (line.partition("#")[0] for line in text.splitlines())
        members = tuple(one for line in lines for one in line.replace(",", " ").split())
        if not members:
            raise BrokenRun("cluster: no members; give --members HOST,HOST,... or --members FILE")
    name = socket.gethostname()
    addresses = [one.address for one in read_interfaces(Path("/proc"))]
    return Own(
        names=tuple(dict.fromkeys((name, name.partition(".")[0], socket.getfqdn(), *addresses))),
        engine=args.engine, members=members, rank=args.rank, size=args.size, host=args.host, port=args.port,
    )  # fmt: skip


def _print(verdict: Verdict) -> None:
    from commwatch.cluster.verdict import line_of
    from commwatch.lines import printable

    states = {state: [one.name for one in verdict.members if one.state == state] for state in ("absent", "lost")}
    checked = len(verdict.members) - sum(map(len, states.values()))
    lines = [
        f"{checked} of {len(verdict.members)} nodes checked, {verdict.paths} connections tried, {verdict.seconds:.1f} s"
    ]
    for state, words in (("absent", "did not come"), ("lost", "came, and left or did not report in time")):
        if names := states[state]:
            lines.append(f"{state}: {', '.join(names[:8])}{f' and {len(names) - 8} more' * (len(names) > 8)}: {words}")
    lines += [line_of(one) for one in verdict.failures if not one.minor]
    lines += [f"note: {line_of(one)}" for one in verdict.failures if one.minor]
    lines += [f"turned away: {one}" for one in verdict.strangers]
    if verdict.outcome == "fine":
        lines.append("nothing is wrong between these nodes")
    elif verdict.outcome == "too_few":
        lines.append("fewer than two nodes: nothing can be said")
    for line in lines:
        print(printable(line))
