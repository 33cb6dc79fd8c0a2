"""Shared by `cluster check` and `cluster probe`: the start of a member, and the file of groups."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from commwatch.commands.command import Option, option
from commwatch.commands.options import positive_duration
from commwatch.config.settings import Config
from commwatch.views.terminal import print_json

if TYPE_CHECKING:
    from msgspec import Struct

    from commwatch.cluster.environment import Own
    from commwatch.cluster.member import Progress, Run

Result = TypeVar("Result")
Work: TypeAlias = "Callable[[Run, Progress, Callable[[Struct], None]], Coroutine[Any, Any, Result]]"
Ended: TypeAlias = "tuple[int, Result | None, Handed]"


def groups_option(words: str) -> Option:
    """``--groups``."""
    return option(
        "--groups", type=Path, metavar="FILE",
        help=f"{words}: lines NODE LEAF, or kubectl get nodes -o json with the labels of topograph",
    )  # fmt: skip


OUTPUT = option("--output", type=Path, metavar="FILE", help="draw the matrix of nodes into an SVG file")

# fmt: off
MEMBER_OPTIONS = (
    option("--engine", default="auto", metavar="NAME",
           help="slurm, kubernetes, torchrun, mpirun or members (default: auto)"),
    option("--members", metavar="HOST,...|FILE",
           help="all members by hand, also gpu[01-04]; the first one hosts the store"),
    option("--rank", type=int, metavar="N", help="rank of this member"),
    option("--size", type=int, metavar="N", help="number of members"),
    option("--host", metavar="HOST", help="host of member 0 (default: from the launcher)"),
    option("--port", type=int, metavar="PORT", help="meeting port of the job (default: MASTER_PORT, 29500)"),
    option("--interface", metavar="NAME", help="the interface that the job will use (default: NCCL's choice)"),
    option("--key-file", type=Path, metavar="FILE", help="the run key, instead of COMMWATCH_CLUSTER_KEY"),
    option("--join-window", type=positive_duration, default=60.0, metavar="TIME",
           help="how long to wait for members (default 1m)"),
)
# fmt: on
"""Which member this is, and where the others are."""


def check_files(args: argparse.Namespace) -> None:
    """Say before anything is measured what speaks against the files that are to be written.

    Raises:
        BadOutput: one of them cannot be written.
    """
    from commwatch.diagnosis.output_file import check_output

    for name, endings in (("output", (".svg",)), ("report", (".json",))):
        if (file := getattr(args, name, None)) is not None:
            check_output(f"--{name}", file, endings)


class Handed(NamedTuple):
    """The daemon's answer to the report of this node."""

    outcome: Literal["taken", "refused", "no_daemon"]
    words: str = ""


def take_part(
    args: argparse.Namespace, config: Config, operation: str, work: Work[Result], *, shift: int = 0
) -> Ended[Result]:  # fmt: skip
    """Be a member, and hand the report of this node to its daemon; TERM and INT end it at once.

    Args:
        operation: of the daemon's control socket, which takes the report.
        work: what the member does, with how to say what it waits for, and who takes the report.
        shift: ports beyond that of the job where the members meet, for a second run by the same members.

    Returns:
        Its rank, and what its work gave; None where the store was not reached, and that is printed as JSON.

    Raises:
        BrokenRun: the run cannot begin, or has broken; a member that did not get to the store says why.
    """
    from commwatch.cluster.environment import BrokenRun, place, run_key
    from commwatch.cluster.member import Progress, Run, Unreached, until_term
    from commwatch.cluster.store import Deadlines

    here = place(os.environ, _own(args))
    here = replace(here, port=here.port + shift)
    if args.key_file is None:
        key = run_key(os.environ, None)
    else:
        try:
            with args.key_file.open("rb") as file:
                key = run_key(os.environ, file.read(4096))
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

    reports: list[Struct] = []
    handed = Handed("no_daemon")

    async def whole() -> Result:
        return await until_term(asyncio.ensure_future(work(started, Progress(say), reports.append)))

    result = None
    try:
        result = asyncio.run(whole())
    except Unreached as error:
        if not args.json:
            raise
        print_json({"outcome": "unreached", "rank": here.rank, "failures": [error.failure]})
    finally:
        if reports:
            handed = _hand_over(config, operation, reports[-1])
    return here.rank, result, handed


def _own(args: argparse.Namespace) -> Own:
    from commwatch.cluster.environment import Own
    from commwatch.cluster.interfaces import read_interfaces
    from commwatch.cluster.run_file import read_members

    members = () if args.members is None else tuple(read_members(args.members))
    name = socket.gethostname()
    addresses = [one.address for one in read_interfaces(Path("/proc"))]
    return Own(
        names=tuple(dict.fromkeys((name, name.partition(".")[0], socket.getfqdn(), *addresses))),
        engine=args.engine, members=members, rank=args.rank, size=args.size, host=args.host, port=args.port,
    )  # fmt: skip


def _hand_over(config: Config, operation: str, report: Struct) -> Handed:
    """Give the daemon of this node the report; a refusal is printed, and it is no error where no daemon runs.

    Args:
        operation: of the daemon's control socket.
    """
    from commwatch.errors import CommwatchError
    from commwatch.lines import printable
    from commwatch.state.client import DaemonAbsent, hand_to_daemon
    from commwatch.state.directory import state_path

    state = state_path(config)
    try:
        hand_to_daemon(state, operation, report)
    except DaemonAbsent:
        return Handed("no_daemon", f"daemon of this node: none in {state}; nothing was handed over")
    except CommwatchError as error:
        words = f"daemon of this node: did not take the result: {error}"
        print(f"commwatch cluster: {printable(words)}", file=sys.stderr)
        return Handed("refused", words)
    return Handed("taken", "daemon of this node: has taken the result")


def name_list(names: list[str]) -> str:
    """The first ones, and how many more there are."""
    return f"{', '.join(names[:8])}{f' and {len(names) - 8} more' * (len(names) > 8)}"
