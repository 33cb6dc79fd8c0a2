"""What launchers (torchrun, Slurm, MPI) tell a process of its job, by their variables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from commwatch.jobs.settings.facts import Job

_JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE")
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")

LAUNCHER_NAMES = frozenset({*_JOB, *_RANK, *_NODES, *(name for pair in _SIZES for name in pair), "HOME"})
"""Variables that are looked at and not kept."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What is known of the job of a process."""

    rank: str
    job: Job | None
    single_node: bool | None


def launched(variables: Mapping[str, str], user: int | None, network_namespace: str) -> Launched:
    """What the variables of a process say.

    A process without a rank belongs to no job: two programs that someone starts by hand in one allocation are not
    ranks of one job.

    Args:
        variables: of the process.
        user: its user id.
        network_namespace: tells two jobs apart that both meet at ``localhost``.
    """
    rank = next((variables[name] for name in _RANK if variables.get(name, "").isdecimal()), "")
    parts = [variables.get(name, "") for name in _JOB]
    job = None
    if rank and any(parts):
        local = variables.get("MASTER_ADDR", "") in ("localhost", "127.0.0.1", "::1")
        identity = "\0".join((*parts, str(user), network_namespace if local else ""))
        # Only a digest is kept: the variables hold addresses.
        job = Job(hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()[:16])
    return Launched(rank[:10], job, _single_node(variables))


def _single_node(variables: Mapping[str, str]) -> bool | None:
    for everywhere, here in _SIZES:
        sizes = variables.get(everywhere, ""), variables.get(here, "")
        if all(size.isdecimal() and len(size) < 10 for size in sizes):
            return int(sizes[0]) == int(sizes[1])
    nodes = next((variables[name] for name in _NODES if variables.get(name, "").isdecimal()), "")
    return nodes == "1" if nodes else None
