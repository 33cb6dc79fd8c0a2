"""Next steps that hold only for some versions of NCCL or some GPUs, by what a log says of them.

Sources: NCCL's sources and list of variables (data/nccl_variables.yaml), and NVIDIA's guide to the fabric manager. If
the log does not show them, the step asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, Literal, NamedTuple

from commwatch.jobs.logs.categories import Category

GPU_NAME: Final = re.compile(
    rb"\b(V100|A100|A800|A30|A40|L40S?|H100|H800|H200|H20|GH200|B200|B300|GB200|GB300|GeForce|TITAN)\b"
)
"""Names of GPUs in a log."""
GEFORCE: Final = (0,)
_GENERATIONS: Final = {"V": (7,), "A": (8,), "L": (8,), "H": (9,), "GH": (9,), "B": (10,), "GB": (10,)}
"""Major number of the compute capability by the letters of a name; every other name is of a GeForce."""


class Facts(NamedTuple):
    """The facts about the job in a log; empty if it has none, or several that differ."""

    nccl: tuple[int, ...] = ()
    """The oldest version that writes here."""
    gpu: tuple[int, ...] = ()
    """Generation: the major number of the compute capability; ``GEFORCE`` for a GeForce."""


def facts_of(versions: Collection[str], gpus: Collection[str]) -> Facts:
    """The facts behind versions of NCCL (``2.21.5``) and names of GPUs (``H100``)."""
    found = {_GENERATIONS.get(re.sub(r"\d.*", "", name), GEFORCE) for name in gpus}
    oldest = min((tuple(int(part) for part in version.split(".")) for version in versions), default=())
    return Facts(oldest, found.pop() if len(found) == 1 else ())


class _Condition(NamedTuple):
    of: frozenset[Category]
    says: re.Pattern[str]
    """In the line, or in the words of the answer."""
    fact: Literal["nccl", "gpu"]
    least: tuple[int, ...]
    below: str
    """The step where the fact is smaller; empty for none."""
    reached: str
    unknown: str
    """The step if the log does not show it."""


_CONDITIONS: Final = (
    _Condition(
        frozenset({"ib_setup", "ib_retry"}),
        re.compile(r"^(?!.{0,700}MC_GID_INDEX).{0,700}?(?:GID|RoCE|::ffff:|\(101\) Network is unreachable)"),
        "nccl", (2, 21),
        "NCCL before 2.21 takes entry 0 of the GID table: set NCCL_IB_GID_INDEX to a RoCE v2 entry (show_gids).",
        "NCCL 2.21 and newer chooses the GID itself: remove NCCL_IB_GID_INDEX.",
        "Look at the version of NCCL: before 2.21 set NCCL_IB_GID_INDEX to a RoCE v2 entry (show_gids), from 2.21 on "
        "remove it.",
    ),
    _Condition(
        frozenset({"no_algo"}), re.compile(""), "nccl", (2, 24),
        "",
        "NCCL 2.24 and newer refuses names that it does not know.",
        "From NCCL 2.24 on names that it does not know are errors.",
    ),
    _Condition(
        frozenset({"timeout"}), re.compile(""), "nccl", (2, 24),
        "",
        "While a job hangs, ncclras on one of its nodes names the ranks that do not answer.",
        "",
    ),
    _Condition(
        frozenset({"nvls"}), re.compile("error 802"), "gpu", (10,),
        "",
        "On this GPU NVLSM has to run beside the fabric manager.",
        "On B200 and newer (nvidia-smi -L) NVLSM has to run too.",
    ),
    _Condition(
        frozenset({"ib_local_prot"}), re.compile(""), "nccl", (2, 13),
        "NCCL before 2.13 has no DMA-BUF: load nvidia-peermem.",
        "",
        "",
    ),
    _Condition(
        frozenset({"ib_setup"}), re.compile("GPUDirect RDMA is off"), "gpu", (7,),
        "",
        "",
        "Look at the name of the GPUs (nvidia-smi -L): GeForce cards have no GPUDirect RDMA, and nothing is wrong "
        "then.",
    ),
)  # fmt: skip


def conditioned(next_step: str, category: str, text: str, facts: Facts) -> str:
    """A next step with what holds for this job.

    Args:
        text: the line, and what happened by the answer.
    """
    parts = [next_step]
    for one in _CONDITIONS:
        if category in one.of and one.says.search(text) is not None:
            fact: tuple[int, ...] = getattr(facts, one.fact)
            parts.append(one.unknown if not fact else one.reached if fact >= one.least else one.below)
    return " ".join(filter(None, parts))
