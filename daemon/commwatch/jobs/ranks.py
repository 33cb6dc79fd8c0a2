"""How the processes of a job spend their time, by what the kernel shows of them to everybody and, with rights, more.

Nothing here attaches to a process: no ptrace, no ``mem``, no ``stack``. A process name is never kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from commwatch.sources import files
from commwatch.sources.services import node_processes_visible

SAMPLES: Final = 3
"""Of which the last ones must agree before a rank is named."""
RANKS_MAX: Final = 64
"""Of one job that are read: a sample of one takes up to 1 ms."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES: Final = 512
_BUSY_CORES, _STILL_CORES = 0.5, 0.1
"""A process that runs for more of the time spins, for less it waits; between them it is neither, unless it wants a core
in each sample and does not get it."""
_MAJORITY: Final = 2
"""Ranks that must be alike before a third one can differ from them."""
_FILE_WAITS = (
    "wait_for_partner", "pipe_read", "fifo_open", "folio_wait", "io_schedule", "rpc_wait", "nfs_", "request_wait",
    "fuse_", "ll_", "cl_", "osc_", "ptlrpc", "ceph_", "jbd2_", "flock_lock",
)  # fmt: skip
"""How functions of the kernel begin in which a process waits for a file or its file system."""
_NO_WAIT_FOR_PEERS = (*_FILE_WAITS, "hrtimer_nanosleep", "do_wait")
"""The same of functions in which no process waits for its peers: ranks that are all there have not arrived."""

Reason: TypeAlias = Literal["stopped", "spinning", "sleeping", "waiting_for_file", "gone"]
REASONS: Mapping[str, str] = {
    "stopped": "is stopped by a signal or a debugger",
    "spinning": "computes on the CPU while the others wait",
    "sleeping": "sleeps while the others do something else",
    "waiting_for_file": "waits for a file or its file system",
    "gone": "has ended",
}
"""State of the rank that differs, in words, by ``Reason``."""


class RankSample(NamedTuple):
    """A process at a moment."""

    state: str
    """As ``/proc/PID/stat`` has it: R, S, D, T (stopped), t (by a debugger); empty: it has ended."""
    cpu: float = 0.0
    """Seconds that all its threads have run."""
    started: float = 0.0
    """Seconds after the boot: another number is another process."""
    switches: int = 0
    """How often its first thread gave its core away."""
    where: str = ""
    """Function of the kernel in which its first thread waits; empty where we may not see it."""
    call: str = ""
    """Number of its system call; likewise."""


def read_rank(procfs: Path, pid: int) -> RankSample | None:
    """A process now; None where this process table does not show it."""
    folder = f"{procfs}/{pid}"
    try:
        words = files.read(f"{folder}/stat").rpartition(b")")[2].split()
        state, cpu, started = words[0].decode("ascii"), int(words[11]) + int(words[12]), int(words[19])
    except (FileNotFoundError, ProcessLookupError):
        return RankSample("") if node_processes_visible(procfs) else None
    except (OSError, ValueError, IndexError):
        return None
    if state in "ZX":
        return RankSample("")
    where = _text(f"{folder}/wchan")
    return RankSample(
        state, cpu / _TICKS, started / _TICKS, _switches(folder), "" if where == "0" else where,
        _text(f"{folder}/syscall").partition(" ")[0],
    )  # fmt: skip


def read_storage(procfs: Path) -> int | None:
    """Bytes that the node's disks have moved since the boot; a partition counts twice. None where not shown."""
    try:
        lines = files.read(f"{procfs}/diskstats", 1 << 20).splitlines()
        return sum(int(words[5]) + int(words[9]) for words in map(bytes.split, lines)) * _SECTOR_BYTES
    except (OSError, ValueError, IndexError):
        return None


def read_uptime(procfs: Path) -> float | None:
    """Seconds since the boot; None where not shown."""
    try:
        return float(files.read(f"{procfs}/uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _text(path: str) -> str:
    try:
        return files.read(path).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _switches(folder: str) -> int:
    name, _, rest = _text(f"{folder}/status").partition("\nvoluntary_ctxt_switches:")
    number = rest.split(maxsplit=1)[:1]
    return int(number[0]) if name and number and number[0].isdecimal() else 0


Sampled: TypeAlias = tuple[float, Mapping[int, RankSample]]
"""When, in monotonic seconds, and the processes by id."""


def idle_share(first: Sampled, last: Sampled, uptime: float) -> float | None:
    """The CPU time and switches of the busiest process between two samples, over its own mean since it began.

    Args:
        first: the earlier sample.
        last: the later one, of the same processes.
        uptime: seconds since the boot, at the later one.

    Returns:
        The highest share of all; None where a process ended, began, or has never run.
    """
    shares = []
    for pid, now in last[1].items():
        before, age = first[1].get(pid), uptime - now.started
        if before is not None and not (now.state or before.state):
            continue  # it had ended before
        if before is None or not (now.state and before.state) or before.started != now.started:
            return None
        if last[0] <= first[0] or age <= 0 or not now.cpu or not now.switches:
            return None
        stretch = (last[0] - first[0]) / age
        shares += [
            (now.cpu - before.cpu) / now.cpu / stretch,
            (now.switches - before.switches) / now.switches / stretch,
        ]
    return max(shares, default=None)


class OddRank(NamedTuple):
    """The one process that differs from all others of its job."""

    pid: int
    reason: Reason
    is_full: bool
    """Whether the kernel showed where the processes wait, as it does to root and to the job's user."""


def odd_rank(samples: Sequence[Sampled]) -> OddRank | None:
    """The process that differs from an otherwise uniform majority; None where there is none, or several.

    Args:
        samples: the last ``SAMPLES`` of the same processes, the oldest first.
    """
    if len(samples) < SAMPLES:
        return None
    pids = samples[0][1].keys()
    if len(pids) <= _MAJORITY or any(one.keys() != pids for _, one in samples):
        return None
    kinds = {pid: tuple(_kinds([(time, one[pid]) for time, one in samples])) for pid in pids}
    # What a process does tells more than where it waits: ranks whose peer is gone may wait in different places.
    alone = _alone({pid: kind[:1] for pid, kind in kinds.items()}) or _alone(kinds)
    if alone is None:
        return None
    pid, others = alone
    reasons = {_reason(kinds[pid], kinds[other]) for other in others}
    seen = [one for _, sample in samples for one in sample.values() if one.state]
    reason = reasons.pop()
    return None if reason is None or reasons else OddRank(pid, reason, all(one.call for one in seen))


def _alone(kinds: Mapping[int, tuple[str, ...]]) -> tuple[int, Sequence[int]] | None:
    """The process of another kind than all others, which are of one, and those others; None without one."""
    for pid, kind in kinds.items():
        others = [other for other in kinds if other != pid]
        usual = {kinds[other] for other in others}
        if len(usual) == 1 and kind not in usual and "" not in {kind[0], next(iter(usual))[0]}:
            return pid, others
    return None


def _kinds(course: Sequence[tuple[float, RankSample]]) -> Iterator[str]:
    """State of a process, the same in all samples, and where it waits; empty if the samples differ."""
    states = [one for _, one in course]
    (begin, first), (end, last) = course[0], course[-1]
    if not last.state:
        yield "gone"
    elif len({one.started for one in states}) > 1:  # another process has its number
        yield ""
    elif all(one.state in "tT" for one in states):
        yield "stopped"
    else:
        cores = (last.cpu - first.cpu) / (end - begin) if end > begin else 0.0
        if cores >= _BUSY_CORES or (cores > _STILL_CORES and all(one.state == "R" for one in states)):
            yield "spinning"
        elif cores > _STILL_CORES or any(one.state in "tT" for one in states):
            yield ""
        else:
            yield "disk" if all(one.state == "D" for one in states) else "sleeping"
            yield from (next(iter(seen)) if len(seen) == 1 else "" for seen in (
                {one.where for one in states}, {one.call for one in states}))  # fmt: skip


def _reason(kind: Sequence[str], usual: Sequence[str]) -> Reason | None:
    """In a word; None where both sleep and it is not known to be in different places, and where the others do not wait
    for a peer: then the one that differs may be the only one that arrived."""
    if usual[0] not in ("sleeping", "spinning") or any(where.startswith(_NO_WAIT_FOR_PEERS) for where in usual[1:2]):
        return None
    if kind[0] in ("gone", "stopped", "spinning"):
        return kind[0]  # type: ignore[return-value]  # just compared
    where = kind[1]
    if kind[0] == "disk" or where.startswith(_FILE_WAITS):
        return "waiting_for_file"
    if usual[0] == "spinning":
        return "sleeping"
    return "sleeping" if all((*kind, *usual)) else None
