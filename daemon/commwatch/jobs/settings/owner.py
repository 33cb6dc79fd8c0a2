"""Whose a process is: the Slurm job or the Kubernetes pod whose cgroup it is in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from commwatch.regular_file import open_regular

Scheduler: TypeAlias = Literal["slurm", "kubernetes"]

_FILE_BYTES = 16 * 1024
"""Paths of up to 4 KiB; of cgroup v1 one for each controller, of which the first will do."""
_MOST_OWNERS = 64

_SLURM = re.compile(
    r"/(?:[\w.-]{1,80}_)?slurmstepd\.scope/job_([0-9]{1,10})(?=/|$)"  # v2: system.slice/[NODE_]slurmstepd.scope/job_N
    r"|/slurm(?:_[\w.-]{1,80})?/uid_[0-9]{1,10}/job_([0-9]{1,10})(?=/|$)",  # v1: slurm[_NODE]/uid_N/job_N
    re.ASCII | re.MULTILINE,
)
_POD = re.compile(
    r"/(?:[\w.-]{0,80}-)?kubepods(?:-\w{1,20})?(?:\.slice)?/(?:[\w.-]{1,120}/)??"  # the class of the pod, or none
    r"(?:[\w.-]{0,120}-)?pod"
    r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=/|$)",
    re.ASCII | re.MULTILINE,
)
"""With the driver cgroupfs ``kubepods/burstable/podUID``, with systemd ``kubepods.slice/kubepods-burstable.slice/
kubepods-burstable-podUID.slice`` with ``_`` in the UID. That of a static pod has no dashes."""

_OF_USER = re.compile(r"^[^\n/]*:(?:/\.\.)*/user\.slice/.*$", re.MULTILINE)


class Owner(msgspec.Struct, frozen=True, order=True):
    """A job or a pod; both texts are short and plain by their form."""

    scheduler: Scheduler
    job: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f-]{1,36}\Z")]
    """Number of the Slurm job, or UID of the pod."""


class OwnedProcesses(msgspec.Struct, frozen=True):
    owner: Owner
    pids: tuple[int, ...]


def owner_of(cgroup: str) -> Owner | None:
    """The owner that ``/proc/PID/cgroup`` names; None where it names none.

    Of a Slurm node that is itself a pod the job counts; of several the outermost one, since a job may make cgroups.
    Below ``user.slice`` a user gives all names, and they count for nothing.

    Args:
        cgroup: the file's text, of version 1 or 2; prefixes such as ``/../..`` of a cgroup namespace do no harm.
    """
    cgroup = _OF_USER.sub("", cgroup)
    if found := _SLURM.search(cgroup):
        return Owner("slurm", found[1] or found[2])
    if found := _POD.search(cgroup):
        return Owner("kubernetes", found[1].replace("_", "-"))
    return None


def read_owners(pids: Iterable[int], procfs: Path) -> tuple[OwnedProcesses, ...]:
    """Who owns these processes; processes without an owner, ended ones and unreadable ones are left out."""
    found: dict[Owner, list[int]] = {}
    for pid in sorted(pids):
        with suppress(OSError):
            with open(open_regular(procfs / str(pid) / "cgroup"), "rb") as file:
                owner = owner_of(file.read(_FILE_BYTES).decode("utf-8", "replace"))
            if owner is not None and (owner in found or len(found) < _MOST_OWNERS):
                found.setdefault(owner, []).append(pid)
    return tuple(OwnedProcesses(owner, tuple(these)) for owner, these in found.items())
