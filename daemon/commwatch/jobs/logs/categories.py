"""The categories of what NCCL's logs tell, and the side of each; without the patterns, which few processes need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Category: TypeAlias = Literal[
    "cuda",
    "oom",  # no memory was left, on the GPU or for the job
    "crash",  # a process of the job ended by itself
    "killed",  # a process of the job was ended from outside, as happens where memory runs out
    "ib_async",  # the adapter or its link reported an event
    "ib_retry",
    "ib_rnr",
    "ib_local_prot",
    "ib_remote_access",
    "ib_setup",
    "ib_other",
    "nvls",
    "mnnvl",
    "p2p",
    "socket",
    "no_interface",
    "shm",  # no room in shared memory
    "shm_gone",  # a segment that a peer had made is not there
    "version",
    "dup_gpu",
    "no_algo",
    "mismatch",
    "usage",  # NCCL was called with what it does not take
    "other",  # a warning that no rule knows
    "ib_flush",
    "remote",
    "timeout",
    "cancelled",  # the scheduler or a person ended the job
    "teardown",
]
"""What a warning is about."""

Side: TypeAlias = Literal["network", "gpu", "nvlink", "host", "config", "program", "peer", "symptom", "unknown"]
"""Where the cause is to be looked for; ``symptom``: somewhere else."""

SIDES: Mapping[Category, Side] = {
    "cuda": "gpu",
    "oom": "program",
    "crash": "program",
    "killed": "program",
    "ib_async": "network",
    "ib_retry": "network",
    "ib_rnr": "peer",
    "ib_local_prot": "host",
    "ib_remote_access": "peer",
    "ib_setup": "config",
    "ib_other": "network",
    "nvls": "nvlink",
    "mnnvl": "nvlink",
    "p2p": "host",
    "socket": "network",
    "no_interface": "config",
    "shm": "config",
    "shm_gone": "config",
    "version": "config",
    "dup_gpu": "config",
    "no_algo": "config",
    "mismatch": "program",
    "usage": "program",
    "other": "unknown",
    "ib_flush": "symptom",
    "remote": "symptom",
    "timeout": "symptom",
    "cancelled": "symptom",
    "teardown": "symptom",
}

PRECEDENCE: tuple[frozenset[Category], ...] = (
    frozenset({"cuda"}),
    frozenset({"ib_async"}),
    frozenset({"ib_retry", "ib_rnr", "ib_local_prot", "ib_remote_access", "ib_setup"}),
    frozenset({"ib_other"}),
    frozenset({"nvls", "mnnvl", "p2p"}),
    frozenset({"socket"}),
    frozenset({"no_interface", "shm", "shm_gone", "version", "dup_gpu", "no_algo"}),
    frozenset({"oom", "crash", "killed", "mismatch", "usage"}),
)
"""Of what is seen together, the likelier cause first; what is not named comes after these, symptoms last of all."""

ENDINGS: frozenset[Category] = frozenset({"oom", "crash", "killed", "cancelled"})
"""What ends processes of a job, which takes their connections with it."""
SEVERED: frozenset[Category] = frozenset({"ib_retry", "ib_rnr", "ib_remote_access", "ib_other", "socket"})
"""What the other processes may then see: after an ending these are no cause."""
