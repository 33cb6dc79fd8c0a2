"""The place of a member in a run: rank, size and meeting place, from the variables of its launcher; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from commwatch.errors import CommwatchError, ExitCode

MOST_MEMBERS = 1024
"""Of a run; a larger cluster is checked block by block."""
KEY_VARIABLE = "COMMWATCH_CLUSTER_KEY"
SIZE_VARIABLE = "COMMWATCH_CLUSTER_SIZE"
DEFAULT_PORT = 29500
"""MASTER_PORT if no other is given: torch's own."""
SHORTEST_KEY = 16
MAKE_KEY = f"export {KEY_VARIABLE}=$(openssl rand -hex 32)"

_LONGEST_LIST = 64 * MOST_MEMBERS
_NAME = re.compile(r"[A-Za-z0-9_:]([A-Za-z0-9_.:%-]{0,252})")
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_GROUP = re.compile(r"\[([0-9,-]+)\]")


class BrokenRun(CommwatchError):
    """A run cannot begin, or cannot go on."""

    exit_code = ExitCode.RUN_BROKEN


@dataclass(frozen=True, slots=True)
class Place:
    engine: str
    rank: int
    size: int
    host: str
    """Where member 0 is: a name or an address."""
    port: int
    """Where the job's processes would meet."""
    names: tuple[str, ...] = ()
    """The names by which the members know each other, by rank; empty if the launcher gives none."""
    taken: bool = False
    """The launcher itself holds the port, as torchrun does: the check meets on the next one."""


@dataclass(frozen=True, slots=True)
class Own:
    """A member's own facts, and its command line."""

    names: tuple[str, ...] = ()
    """Its host name, short and in full, and its addresses."""
    engine: str = "auto"
    members: tuple[str, ...] = ()
    rank: int | None = None
    size: int | None = None
    host: str | None = None
    port: int | None = None


Variables = Mapping[str, str]


def place(variables: Variables, own: Own = Own()) -> Place:
    """The place of this member.

    Args:
        own: values of the command line, which take precedence.

    Raises:
        BrokenRun: they are missing or contradict each other; one line with the remedy.
    """
    engine = own.engine if own.engine != "auto" else _detected(variables, own)
    if engine not in ENGINES:
        raise BrokenRun(f"cluster: unknown engine {engine!r}; known: auto, {', '.join(ENGINES)}")
    found = ENGINES[engine](variables, own)
    if not 1 <= found.size <= MOST_MEMBERS:
        raise BrokenRun(f"cluster: {found.size} members; a run has 1 to {MOST_MEMBERS}: run block by block")
    if not 0 <= found.rank < found.size:
        raise BrokenRun(f"cluster: rank {found.rank} of {found.size} members; expected 0 to {found.size - 1}")
    if not 1 <= found.port <= 65535 - 4:
        raise BrokenRun(f"cluster: port {found.port}; expected 1 to {65535 - 4}")
    if not _NAME.fullmatch(found.host):
        raise BrokenRun(f"cluster: {found.host[:80]!r} is no host name and no address")
    return found


def run_key(variables: Variables, file: bytes | None) -> bytes:
    """The key of the run.

    Raises:
        BrokenRun: there is none, or it is too short to keep strangers out.
    """
    text = file if file is not None else variables.get(KEY_VARIABLE, "").encode("utf-8", "surrogateescape")
    key = text.strip()
    if not key:
        raise BrokenRun(f"cluster: no run key; before the launcher: {MAKE_KEY}, or --key-file FILE on all nodes")
    if len(key) < SHORTEST_KEY:
        raise BrokenRun(f"cluster: the run key has {len(key)} characters, expected at least {SHORTEST_KEY}: {MAKE_KEY}")
    return key


def partners(rank: int, ranks: Sequence[int]) -> tuple[int, ...]:
    """With whom a member tries connections: all others up to 16, else those 1, 2, 4, 8 ... places before and behind.

    So each path is tried from both ends, and a member has 2 log N partners: 20 of 1,024.
    """
    if rank not in ranks:
        return ()
    count, here = len(ranks), list(ranks).index(rank)
    if count <= 16:
        return tuple(one for one in ranks if one != rank)
    steps = [2**power for power in range((count - 1).bit_length()) if 2**power < count]
    places = dict.fromkeys((here + sign * step) % count for step in steps for sign in (1, -1))
    return tuple(ranks[one] for one in places if one != here)


# --- engines ---


def _detected(variables: Variables, own: Own) -> str:
    """The innermost launcher: torchrun and mpirun also run inside a Slurm job."""
    if own.members:
        return "members"
    if "TORCHELASTIC_RUN_ID" in variables or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= variables.keys():
        return "torchrun"
    if any(name in variables for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")) and not (
        "SLURM_STEP_ID" in variables and "OMPI_COMM_WORLD_RANK" not in variables
    ):
        return "mpirun"
    if "JOB_COMPLETION_INDEX" in variables:
        return "kubernetes"
    if "SLURM_PROCID" in variables and "SLURM_STEP_ID" in variables:
        return "slurm"
    raise BrokenRun(
        "cluster: no launcher is seen (srun, Indexed Job, torchrun, mpirun); start one member a node with one of them, "
        "or give --members HOST,HOST,..."
    )


def _slurm(variables: Variables, own: Own) -> Place:
    size = own.size if own.size is not None else _number(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    nodes = hostlist(_text(variables, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    if size > len(nodes):
        raise BrokenRun(f"cluster: {size} tasks on {len(nodes)} nodes; one member a node: srun --ntasks-per-node=1")
    return _placed("slurm", variables, own, _number(variables, "SLURM_PROCID"), size, nodes[0], tuple(nodes[:size]))


def _kubernetes(variables: Variables, own: Own) -> Place:
    """The pods of an Indexed Job are called JOB-INDEX, with their headless service behind."""
    rank = _number(variables, "JOB_COMPLETION_INDEX")
    size = own.size if own.size is not None else _number(variables, SIZE_VARIABLE, "WORLD_SIZE")
    full = max((name for name in own.names if "." in name and not name[0].isdigit()), key=len, default="")
    pod, _, domain = (full or variables.get("HOSTNAME", "")).partition(".")
    job, _, index = pod.rpartition("-")
    names: tuple[str, ...] = ()
    if job and index == str(rank):
        names = tuple(f"{job}-{one}.{domain}".rstrip(".") for one in range(size))
    host = own.host or variables.get("MASTER_ADDR") or (names[0] if names else "")
    if not host:
        raise BrokenRun("cluster: the pod's name does not end in its index; set MASTER_ADDR to the name of pod 0")
    return _placed("kubernetes", variables, own, rank, size, host, names)


def _torchrun(variables: Variables, own: Own) -> Place:
    if (local := _number(variables, "LOCAL_WORLD_SIZE", default=1)) > 1:
        raise BrokenRun(f"cluster: {local} members on this node; one a node: torchrun --nproc-per-node=1")
    rank, size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return _placed("torchrun", variables, own, rank, size, _text(variables, "MASTER_ADDR"), taken=agent)


def _mpirun(variables: Variables, own: Own) -> Place:
    if (local := _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", default=1)) > 1:
        raise BrokenRun(f"cluster: {local} members on this node; one a node: mpirun --map-by ppr:1:node")
    rank = _number(variables, "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    size = own.size if own.size is not None else _number(variables, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", SIZE_VARIABLE)
    host = own.host or variables.get("MASTER_ADDR", "")
    if not host:
        raise BrokenRun("cluster: mpirun does not say where rank 0 is; add -x MASTER_ADDR=HOST, or --host HOST")
    return _placed("mpirun", variables, own, rank, size, host)


def _members(variables: Variables, own: Own) -> Place:
    names = own.members
    if not names:
        raise BrokenRun("cluster: no members; give --members HOST,HOST,... or --members FILE")
    if wrong := [one for one in names if not _NAME.fullmatch(one)]:
        raise BrokenRun(f"cluster: {wrong[0][:80]!r} in the list of members is no host name and no address")
    ranks = [rank for rank, name in enumerate(names) if name in own.names]
    if own.rank is None and len(ranks) != 1:
        which = f"{len(ranks)} of the members are" if ranks else "none of the members is"
        raise BrokenRun(f"cluster: {which} this node ({', '.join(own.names[:4])}); say which with --rank N")
    return _placed("members", variables, own, ranks[0] if ranks else 0, len(names), names[0], names)


ENGINES: dict[str, Callable[[Variables, Own], Place]] = {
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "torchrun": _torchrun,
    "mpirun": _mpirun,
    "members": _members,
}


def _placed(
    engine: str, variables: Variables, own: Own, rank: int, size: int, host: str, names: tuple[str, ...] = (),
    taken: bool = False,
) -> Place:  # fmt: skip
    return Place(
        engine,
        rank if own.rank is None else own.rank,
        size,
        own.host or host,
        own.port if own.port is not None else _number(variables, "MASTER_PORT", default=DEFAULT_PORT),
        names,
        taken and own.port is None,
    )


def _text(variables: Variables, *names: str) -> str:
    for name in names:
        if value := variables.get(name, ""):
            return value
    raise BrokenRun(f"cluster: {names[0]} is not set")


def _number(variables: Variables, *names: str, default: int | None = None) -> int:
    name = next((one for one in names if one in variables), None)
    if name is None:
        if default is None:
            raise BrokenRun(f"cluster: {' or '.join(names)} is not set")
        return default
    value = variables[name]
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise BrokenRun(f"cluster: {name}={value[:40]!r}; expected a whole number")
    return int(value)


def hostlist(text: str, most: int = MOST_MEMBERS) -> list[str]:
    """The hosts of a list as Slurm writes it: ``gpu[01-03,07],login1`` is gpu01, gpu02, gpu03, gpu07, login1.

    Args:
        most: hosts that it may have.

    Raises:
        BrokenRun: it is no such list, or names more than a run may have.
    """
    if len(text) > _LONGEST_LIST:
        raise BrokenRun("cluster: the list of nodes is too long")
    hosts: list[str] = []
    for part in _parts(text):
        for host in _expanded(part):
            hosts.append(host)
            if len(hosts) > most:
                raise BrokenRun(f"cluster: more than {most} nodes: run block by block")
    if not hosts or not all(_NAME.fullmatch(host) for host in hosts):
        raise BrokenRun(f"cluster: {text[:80]!r} is no list of nodes")
    return hosts


def _parts(text: str) -> list[str]:
    """The list cut at the commas outside of brackets."""
    return [part for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]|\[)+", text) if part]


def _expanded(part: str) -> Iterator[str]:
    found = _GROUP.search(part)
    if found is None:
        yield part
        return
    for one in found[1].split(","):
        ends = _RANGE.fullmatch(one)
        if ends is None:
            raise BrokenRun(f"cluster: {part[:80]!r} is no list of nodes")
        first, last = ends[1], ends[2] or ends[1]
        for number in range(int(first), int(last) + 1):
            yield from _expanded(part[: found.start()] + str(number).zfill(len(first)) + part[found.end() :])
