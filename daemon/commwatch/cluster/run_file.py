"""A saved run between nodes: who took part, what each pair measured; JSON, versioned. And the file of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from commwatch.cluster.environment import BrokenRun, hostlist
from commwatch.cluster.node_report import LeafSource
from commwatch.cluster.schedule import NO_LEAF
from commwatch.errors import CommwatchError, ExitCode
from commwatch.lines import printable

SCHEMA: Final = "commwatch-cluster-run/1"
LARGEST_FILE: Final = 128 * 2**20
"""Bytes; 16,384 nodes with 8 rails take 19 MB."""

MOST_PLANNED: Final = 65536
"""Nodes of a list with ranges."""

_SMALLEST: Final = 1e-12
_LARGEST: Final = 1e15
"""Of bytes per second and of seconds."""

Rail: TypeAlias = int | None
"""Number of a NIC, the same one of each node; None: all of a node together."""

_TOPOGRAPH_LEAVES: Final = ("fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf")
"""Labels of a Kubernetes node, newest generation first (NVIDIA topograph 1.0 renamed them)."""


class RunUnreadable(CommwatchError):
    """A saved run or its groups cannot be used."""

    exit_code = ExitCode.RUN_BROKEN


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    leaf: str = NO_LEAF
    """Switch to which it is connected; empty: not known."""
    model: str = ""
    """The properties that must be equal for two nodes to be compared: GPU model, settings."""
    rates: tuple[float, ...] = ()
    """Rate of each rail in bytes per second, one direction; empty: not known."""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The measurements of one rail of a pair of nodes in a round."""

    round: int
    first: int
    """Place in the list of members."""
    second: int
    rail: Rail = None
    forward: float | None = None
    """Bytes per second from the first to the second."""
    backward: float | None = None
    both: float | None = None
    """Bytes per second of a collective over both, where directions are not apart."""
    latency: float | None = None
    """Seconds of a small message there and back, halved."""
    transport: str = ""
    """As NCCL names it: ``NET/IB``, ``NET/Socket``."""
    failed: str = ""
    """Why nothing was measured though both were there: ``refused``, ``filtered``, ``timeout``; else empty."""
    adapter_latency: float | None = None
    """Seconds of a small message one way between the RDMA adapters alone, by ``ib_write_lat``."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    schema: str
    members: tuple[Member, ...]
    measured: tuple[Measured, ...]
    seed: str = ""
    leaf_source: LeafSource = "none"
    expected: float | None = None
    """Bytes per second that a rail should carry in one direction; None: the rates of the members count."""
    inside: float | None = None
    """Bytes per second between the GPUs of a node, for comparison with what the network carries."""


def read_run(file: Path) -> Run:
    """A saved run.

    Raises:
        RunUnreadable: it cannot be read, or says what cannot be.
    """
    try:
        run = msgspec.json.decode(_content(file), type=Run)
    except (ValueError, RecursionError) as error:  # msgspec's own errors, text that is not UTF-8, endless nesting
        raise _unreadable(file, str(error)) from error
    if run.schema != SCHEMA:
        raise _unreadable(file, f"schema {run.schema!r}; this version reads {SCHEMA!r}")
    problem = _problem(run)
    if problem:
        raise _unreadable(file, problem)
    return run


def encode_run(run: Run) -> bytes:
    return msgspec.json.encode(run) + b"\n"


def _problem(run: Run) -> str:
    """The first invalid value of the run; empty if all are valid."""
    names = {one.name for one in run.members}
    if len(names) < len(run.members):
        return "a node is twice among the members"
    count = len(run.members)
    for place, one in enumerate(run.measured):
        if not (0 <= one.first < count and 0 <= one.second < count) or one.first == one.second:
            return f"$.measured[{place}]: {one.first} with {one.second} are no two of {count} members"
        if one.rail is not None and not 0 <= one.rail < 64:
            return f"$.measured[{place}]: rail {one.rail}; expected 0 to 63"
        for name in ("forward", "backward", "both", "latency", "adapter_latency"):
            if problem := _no_quantity(f"$.measured[{place}].{name}", getattr(one, name)):
                return problem
    rates = ((f"$.members[{place}].rates", rate) for place, one in enumerate(run.members) for rate in one.rates)
    others = (("$.expected", run.expected), ("$.inside", run.inside), *rates)
    return next(filter(None, (_no_quantity(*one) for one in others)), "")


def _no_quantity(where: str, value: float | None) -> str:
    """The error in a bandwidth or a time; empty if it is valid."""
    if value is None or _SMALLEST <= value <= _LARGEST:
        return ""
    return f"{where}: {value}; expected {_SMALLEST:g} to {_LARGEST:g}"


# --- members and groups ---


def read_members(given: str) -> list[str]:
    """The nodes of a text ``HOST,HOST``, or of a file with one or more a line; ``gpu[01-04,07]`` stands for five.

    Raises:
        RunUnreadable: the file cannot be read, a list in brackets is none, there is no node, or one is twice.
    """
    text, where = given, "--members"
    if "/" in given or Path(given).is_file():
        text, where = _content(Path(given)).decode("utf-8", "replace"), printable(given)
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        for words in line.partition("#")[0].split():
            if not {"[", "]"} & set(words):
                names += filter(None, words.split(","))
                continue
            try:
                names += hostlist(words, MOST_PLANNED)
            except BrokenRun as error:
                place = where if where == "--members" else f"{where}:{number}"
                raise RunUnreadable(
                    f"cluster: {place}: {printable(words[:80])!r} is no list of at most {MOST_PLANNED} hosts; expected "
                    "names, or ranges with the lower number first: gpu[01-04,07],login1"
                ) from error
    if not names:
        raise RunUnreadable("cluster: no members; give --members HOST,HOST,... or --members FILE")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RunUnreadable(f"cluster: {printable(name[:80])} is twice in the list of members")
        seen.add(name)
    return names


def leaf_of_slurm(address: str, pattern: str = "") -> str:
    """The leaf switch of ``SLURM_TOPOLOGY_ADDR``; empty where it names the node alone.

    Args:
        address: such as ``spine.leaf0.gpu01``.
        pattern: ``SLURM_TOPOLOGY_ADDR_PATTERN``, such as ``switch.switch.node``; empty: the node is the last part.
    """
    return next((part for part, kind in _above_node(address, pattern) if kind == "switch"), NO_LEAF)


def block_of_slurm(address: str, pattern: str = "") -> str:
    """The part of ``SLURM_TOPOLOGY_ADDR`` above the leaf: the next switch, or a block (topology/block); empty
    without."""
    above = _above_node(address, pattern)
    switches = [part for part, kind in above if kind == "switch"]
    return next((part for part, kind in above if kind == "block"), switches[1] if len(switches) > 1 else "")


def _above_node(address: str, pattern: str) -> list[tuple[str, str]]:
    """Names with their kinds, the one next to the node first."""
    parts = address.split(".")
    kinds = pattern.split(".") if pattern else ["switch"] * (len(parts) - 1) + ["node"]
    if len(parts) != len(kinds):  # the name of a node may have dots, and is the last part
        parts = parts[: len(kinds) - 1]
    return list(zip(parts, kinds, strict=False))[::-1]


def leaf_of_labels(labels: Mapping[str, str]) -> str:
    """The leaf switch that NVIDIA topograph wrote to a Kubernetes node, in either generation; empty: none."""
    return next((labels[one] for one in _TOPOGRAPH_LEAVES if labels.get(one)), NO_LEAF)


def read_groups(file: Path) -> dict[str, str]:
    """The leaf of each node: lines ``NODE LEAF``, or the JSON of ``kubectl get nodes -o json`` with topograph's labels.

    Raises:
        RunUnreadable: it cannot be read, or has a line that is neither.
    """
    content = _content(file)
    if content.lstrip().startswith(b"{"):
        return _groups_of_kubernetes(file, content)
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise _unreadable(file, "is no text") from error
    leaves: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise RunUnreadable(f"{file}:{number}: {printable(line.strip()[:80])!r}; expected NODE LEAF")
        if leaves.setdefault(words[0], words[1]) != words[1]:
            raise RunUnreadable(f"{file}:{number}: {printable(words[0])} has two leaves")
    if not leaves:
        raise _unreadable(file, "names no node; expected lines NODE LEAF")
    return leaves


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class _Node(msgspec.Struct):
    metadata: _Metadata


class _Nodes(msgspec.Struct):
    items: list[_Node]


def _groups_of_kubernetes(file: Path, content: bytes) -> dict[str, str]:
    try:
        nodes = msgspec.json.decode(content, type=_Nodes).items
    except (ValueError, RecursionError) as error:  # msgspec's own errors, text that is not UTF-8, endless nesting
        raise _unreadable(file, str(error)) from error
    leaves = {one.metadata.name: leaf for one in nodes if (leaf := leaf_of_labels(one.metadata.labels))}
    if not leaves:
        raise _unreadable(file, f"no node has a label {' or '.join(_TOPOGRAPH_LEAVES)}")
    return leaves


def grouped(run: Run, leaves: Mapping[str, str], file: Path) -> Run:
    """The run with the leaves of a file in place of its own.

    Raises:
        RunUnreadable: the file names no member of the run.
    """
    known = leaves_of([one.name for one in run.members], leaves, file)
    members = tuple(msgspec.structs.replace(one, leaf=leaf) for one, leaf in zip(run.members, known, strict=True))
    return msgspec.structs.replace(run, members=members, leaf_source="file")


def leaves_of(names: Sequence[str], leaves: Mapping[str, str], file: Path) -> list[str]:
    """The leaf of each member; empty for those that the file does not name.

    Raises:
        RunUnreadable: it names none of them.
    """
    found = [leaves.get(name, NO_LEAF) for name in names]
    if not any(found):
        raise _unreadable(file, f"names none of the {len(names)} members")
    return found


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from error
    if len(content) > LARGEST_FILE:
        raise _unreadable(file, f"larger than {LARGEST_FILE // 2**20} MiB")
    return content


def _unreadable(file: Path, problem: str) -> RunUnreadable:
    return RunUnreadable(f"{printable(str(file))}: {printable(problem)}")
