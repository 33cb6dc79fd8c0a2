"""The records of the verdict: components, evidence, what a rule sees now, and findings with their causes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["critical", "warning", "info"]
"""critical: someone must act now; warning: a ticket; info: worth knowing, no one is woken."""

SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""Most severe first."""

ComponentKind: TypeAlias = Literal[
    "node", "gpu", "nvlink", "nvswitch", "pcie_link", "rdma_port", "interface", "probe", "pair", "part", "service",
    "process", "log", "setting", "daemon", "adapter",
]  # fmt: skip

EvidenceUnit: TypeAlias = Literal["", "ratio", "seconds", "bytes", "bytes_per_second", "lanes", "per_hour"]
"""Base units; empty for a count or a code."""


class Component(msgspec.Struct, frozen=True):
    """What a finding is about."""

    kind: ComponentKind
    key: str
    """Identity that survives a restart and a new numbering: ``0000:17:00.0/3`` for link 3 of the GPU in that slot."""
    name: str = ""
    """As people call it: ``GPU0 link 3``; empty where the key is what they call it."""
    parts: frozenset[str] = frozenset()
    """PCI addresses, RDMA devices and interfaces that it stands on or uses; empty: the whole node. A link that is down
    has that of its NVSwitch too, where it is known. A part can lie in
    another: ``0000:17:00.0/nvlink/3`` in ``0000:17:00.0/nvlink`` in ``0000:17:00.0``. Symptoms say by which way
    (``/nvlink``, ``/pcie``) they use a GPU; of faults the table of explanations says so."""

    @property
    def identity(self) -> str:
        """``nvlink/0000:17:00.0/3``: value of the label ``component``."""
        return f"{self.kind}/{self.key}" if self.key else self.kind

    @property
    def words(self) -> str:
        """``GPU0 link 3 (0000:17:00.0/3)``."""
        if not self.name:
            return self.key or "this node"
        return self.name if self.key in self.name else f"{self.name} ({self.key})"

    def shares_part(self, other: Component) -> bool:
        """Whether a fault of one can touch the other: a common part, or one of them is the whole node."""
        if not self.parts or not other.parts or not self.parts.isdisjoint(other.parts):
            return True
        return any(_lies_in(one, another) or _lies_in(another, one) for one in self.parts for another in other.parts)


def _lies_in(part: str, other: str) -> bool:
    return part.startswith(f"{other}/")


class Evidence(msgspec.Struct, frozen=True):
    """One fact that a finding stands on."""

    what: str
    """``recoveries in the last hour``."""
    value: float | str
    """In the base unit; text for a state."""
    unit: EvidenceUnit = ""
    threshold: float | None = None
    """In the same unit; None where any such fact is a fault."""
    threshold_origin: str = ""
    """Key in ``thresholds.yaml``, or in words where the threshold is not a number of ours."""
    event: str = ""
    """What was counted, where it is an event with a number: ``xid 74``, ``sxid 12028``."""


class Match(msgspec.Struct, frozen=True):
    """What a rule sees now; it becomes a finding when it lasts."""

    code: str
    component: Component
    evidence: tuple[Evidence, ...]
    detail: str = ""
    """What to add to the code's own words: who is slow, what NCCL said."""
    since: float | None = None
    """When it began, seconds since 1970, where that was before it could be told: the first of several bad results in a
    row."""


class Cause(msgspec.Struct, frozen=True):
    """A fact of the same time and the same parts that explains a finding."""

    code: str
    component: Component
    evidence: tuple[Evidence, ...]
    weight: float
    """How strongly such a fact explains such a symptom, 0 to 1; causes are ranked by it, after those where it was
    measured that the part is slow."""
    reason: str
    """Why it explains the finding."""
    detail: str = ""
    seen_seconds: float = 0.0
    """As of a finding."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, in one record."""

    code: str
    component: Component
    severity: Severity
    since: float
    """Seconds since 1970 of the first match of this incident."""
    evidence: tuple[Evidence, ...]
    detail: str = ""
    causes: tuple[Cause, ...] = ()
    """The likeliest first; a cause is not listed as a finding beside the ones it explains."""
    also_seen: tuple[Cause, ...] = ()
    """Faults of the same time that can do this, of which it is not known that they touch it; each is a finding of its
    own, or a cause of another one."""
    seen_seconds: float = 0.0
    """Time up to the last evaluation over which each one matched. The first one that matches again after one that did
    not counts from 0, although the finding may have stayed open."""
    grew_at: float | None = None
    """When it was last seen to be more than before, seconds since 1970; None where that is not known."""
    well_at: float | None = None
    """When it was last known not to be so, seconds since 1970, of what is counted the first event; None where no
    reading or result before could have shown it: then it may have been there from the start."""
    healthy_since: float | None = None
    """Of an event: since when its part reads healthy again, seconds since 1970; None while it does not, or where that
    is not known."""

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same finding from evaluation to evaluation."""
        return (self.code, self.component.identity)
