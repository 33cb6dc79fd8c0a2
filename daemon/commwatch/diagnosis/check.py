"""One check of a diagnosis: what was measured, what is required, and what follows; values only."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

Branch: TypeAlias = Literal["topology", "bandwidth", "pattern", "infiniband", "settings", "stress", "profile"]
"""The branches of a diagnosis, in an expert's order."""

CheckVerdict: TypeAlias = Literal["failed", "notice", "passed", "published mark", "not measured", "does not apply"]
"""The most important first. notice: worth knowing, no fault; published mark: shown without a verdict, because healthy
hardware need not meet it; not measured: nothing gave a value; does not apply: this node has no such part."""

BRANCHES: tuple[Branch, ...] = get_args(Branch)
VERDICTS: tuple[CheckVerdict, ...] = get_args(CheckVerdict)


class Check(msgspec.Struct, frozen=True):
    branch: Branch
    what: str
    """The quantity with its direction and size: ``all_reduce bus bandwidth, 256 MiB, 8 GPUs``."""
    verdict: CheckVerdict
    where: str = ""
    """The part: ``GPU0-GPU1``, ``mlx5_0 port 1``; empty for the whole node."""
    measured: str = ""
    """With its unit, as it prints; empty where nothing was measured."""
    required: str = ""
    """With its unit and direction: ``at least 48 GB/s``; empty where nothing is required."""
    source: str = ""
    """Where the requirement comes from: a key of thresholds.yaml, a published figure, the hardware's own maximum."""
    detail: str = ""
    """Further facts about the value: the path class, or the reason why it was not measured."""
    next_step: str = ""
    """The next step after a failure; empty if a finding has it."""
