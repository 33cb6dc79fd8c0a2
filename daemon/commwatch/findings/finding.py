"""The records of the verdict: components, evidence, what a rule sees now, and findings with their causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from commwatch.jobs.evidence import JobEvidence
from commwatch.state.records import Timestamp
from commwatch.units import clock, format_bytes, format_rate, format_seconds

Severity: TypeAlias = Literal["critical", "warning", "info"]
"""critical: someone must act now; warning: a ticket; info: worth knowing, no one is woken."""

_MOST_EVIDENCE = 2
"""Facts in one line."""

_LEAST_PERCENT = 1e-5
"""Smaller ratios are read without a unit, as bit error ratios are."""

SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""Most severe first."""

Role: TypeAlias = Literal["fault", "symptom", "state"]
"""fault: something is broken or set wrongly; symptom: communication is slow or fails, and a fault may be why; state:
worth knowing, and neither."""

ComponentKind: TypeAlias = Literal[
    "node", "gpu", "nvlink", "nvswitch", "pcie_link", "rdma_port", "interface", "probe", "pair", "part", "service",
    "process", "log", "setting", "daemon", "adapter",
]  # fmt: skip

_DEVICES: Final = frozenset({"gpu", "nvlink", "pcie_link", "rdma_port", "adapter", "pair"})
"""Kinds whose key is an address or a device's name."""

EvidenceUnit: TypeAlias = Literal["", "ratio", "seconds", "bytes", "bytes_per_second", "lanes", "per_hour", "events"]
"""Base units; empty for a count or a code."""


class Component(msgspec.Struct, frozen=True):
    kind: ComponentKind
    key: str
    """Identity that survives a restart and a new numbering: ``0000:17:00.0/3`` for link 3 of the GPU in that slot."""
    name: str = ""
    """As people call it: ``GPU0 link 3``; empty where the key is what they call it."""
    parts: frozenset[str] = frozenset()
    """PCI addresses, RDMA devices and interfaces that it consists of or uses; empty: the whole node. A link that is
    down has its NVSwitch's address too, if that is known. A part can lie in another: ``0000:17:00.0/nvlink/3`` in
    ``0000:17:00.0/nvlink`` in ``0000:17:00.0``. Symptoms say by which way (``/nvlink``, ``/pcie``) they use a GPU; of
    faults the table of explanations says so."""

    @property
    def identity(self) -> str:
        """``nvlink/0000:17:00.0/3``: value of the label ``component``."""
        return f"{self.kind}/{self.key}" if self.key else self.kind

    @property
    def record(self) -> ComponentRecord:
        """As documents have it."""
        return ComponentRecord(self.kind, self.key, self.name, self.identity, tuple(sorted(self.parts)))

    @property
    def words(self) -> str:
        """``GPU0 link 3 (0000:17:00.0/3)``; the key of what is no device, such as a job, is for programs."""
        if not self.name:
            return self.key or "this node"
        return self.name if self.kind not in _DEVICES or self.key in self.name else f"{self.name} ({self.key})"

    def shares_part(self, other: Component) -> bool:
        """Whether a fault of one can touch the other: a common part, or one of them is the whole node."""
        if not self.parts or not other.parts or not self.parts.isdisjoint(other.parts):
            return True
        return any(_lies_in(one, another) or _lies_in(another, one) for one in self.parts for another in other.parts)


def _lies_in(part: str, other: str) -> bool:
    return part.startswith(f"{other}/")


class Evidence(msgspec.Struct, frozen=True):
    """One fact that supports a finding."""

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
    """The counted event, if it has a number: ``xid 74``, ``sxid 12028``."""
    last_at: Timestamp | None = None
    """When the last of the counted events was seen, seconds since 1970; None if that is not known."""
    meaning: str = ""
    """The meaning of the counted event in a sentence, if it has a number that is known."""


class Match(msgspec.Struct, frozen=True):
    """The current match of a rule; it becomes a finding when it lasts."""

    code: str
    component: Component
    evidence: tuple[Evidence, ...]
    detail: str = ""
    """Addition to the code's own words: the slow part, or NCCL's message."""
    since: float | None = None
    """When it began, seconds since 1970, where that was before it could be known: the first of several bad results in a
    row."""
    next_step: str = ""
    """The first step for this event; empty where that of the code holds."""


class ComponentRecord(msgspec.Struct, frozen=True):
    """A component as documents have it."""

    kind: str
    key: str
    name: str
    identity: str
    """Value of the label ``component``."""
    parts: tuple[str, ...]

    @property
    def component(self) -> Component:
        """As the rules have it."""
        return Component(self.kind, self.key, self.name, frozenset(self.parts))  # type: ignore[arg-type]  # a kind of a later version is kept

    @property
    def words(self) -> str:
        """``GPU0 link 3 (0000:17:00.0/3)``."""
        return self.component.words


class Cause(msgspec.Struct, frozen=True):
    """A fault of the same time and the same parts that explains a finding."""

    code: str
    title: str
    severity: Severity
    component: ComponentRecord
    weight: float
    """How strongly such a fault explains such a symptom, 0 to 1; causes are ranked by it, after those where it was
    measured that the part is slow."""
    reason: str
    """Why it explains the finding."""
    detail: str
    evidence: tuple[Evidence, ...]
    next_step: str
    alert: str
    last_seen: Timestamp | None
    seen_seconds: float = 0.0
    """As of a finding."""
    since: Timestamp | None = None
    """As of a finding; None from a daemon that does not give it."""

    @property
    def key(self) -> tuple[str, str]:
        """As of a finding."""
        return (self.code, self.component.identity)

    @property
    def words(self) -> str:
        """``NVLink is down: GPU0 link 3 (0000:17:00.0/3)``."""
        return f"{self.title}: {self.component.words}"


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, with its code's words: the one record of it, from the rules to every view."""

    code: str
    title: str
    severity: Severity
    """Its own, or that of its most severe cause."""
    role: Role
    component: ComponentRecord
    since: Timestamp
    """Seconds since 1970 of the first match."""
    last_seen: Timestamp | None
    """Last evaluation at which a rule matched it, seconds since 1970: older than that of the document where it is not
    read or about to close."""
    detail: str
    """Addition to the code's own words."""
    evidence: tuple[Evidence, ...]
    causes: tuple[Cause, ...]
    """The likeliest first, of a job that is stuck the earliest; a cause is not listed as a finding beside the ones it
    explains."""
    meaning: str
    next_step: str
    alert: str
    also_seen: tuple[Cause, ...] = ()
    """Faults of the same time that can do this, of which it is not known that they touch it; each is a finding of its
    own, or a cause of another one."""
    seen_seconds: float = 0.0
    """Time up to ``last_seen`` over which each evaluation matched it."""
    job_evidence: tuple[JobEvidence, ...] = ()
    """Of a job, the words of the sources that know it, in the order of trust: what it wrote and answered, as the daemon
    knows it, and what a command learned about its processes when it was asked."""

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the finding from evaluation to evaluation."""
        return (self.code, self.component.identity)

    @property
    def lead(self) -> Finding | Cause:
        """The entry that every view names first: the likeliest cause, unless the finding is a fault itself."""
        return self.causes[0] if self.role != "fault" and self.causes else self

    @property
    def words(self) -> str:
        """``NVLink is down: GPU0 link 3 (0000:17:00.0/3)``, of what leads."""
        return f"{self.lead.title}: {self.lead.component.words}"


def format_evidence(evidence: Evidence) -> str:
    """``recoveries in the last hour: 4 (limit 3)``; of events ``Xid 48: double-bit ECC error, once, 03:07 UTC``."""
    if isinstance(evidence.value, str):
        return f"{evidence.what}: {evidence.value}"
    if evidence.unit == "events":
        last = "" if evidence.value == 1 else "last at "
        when = "" if evidence.last_at is None else f", {last}{clock(evidence.last_at)}"
        return f"{evidence.what}, {format_quantity(evidence.value, evidence.unit)}{when}"
    said = f"{evidence.what}: {format_quantity(evidence.value, evidence.unit)}"
    if evidence.threshold is None:
        return said
    return f"{said} (limit {format_quantity(evidence.threshold, evidence.unit)})"


def by_lead(findings: Iterable[Finding]) -> list[list[Finding]]:
    """The findings in groups with the same leading entry, in their order: each cause once, with all it explains."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.lead.key, []).append(finding)
    return list(groups.values())


def job_words(findings: Sequence[Finding]) -> list[str]:
    """The words of the sources on the jobs of some findings; of several findings each with its job."""
    return [
        f"{one.component.words}: {known.words}" if len(findings) > 1 else known.words
        for one in findings
        for known in one.job_evidence
    ]


def evidence_line(entry: Finding | Cause) -> str:
    """The evidence of a finding or cause in one line, with the meaning of its first event: ``Xid 48: double-bit ECC
    error, once, 03:07 UTC. Memory of the GPU held data …``; empty if there is none."""
    shown = "; ".join(map(format_evidence, entry.evidence[:_MOST_EVIDENCE]))
    left = len(entry.evidence) - _MOST_EVIDENCE
    more = f"; {left} more" if left > 0 else ""
    meaning = next((one.meaning for one in entry.evidence if one.meaning), "")
    return f"{shown}{more}{meaning and f'. {meaning}'}"


def format_quantity(value: float, unit: EvidenceUnit) -> str:
    """A number in a base unit as people read it: ``48 GB/s``, ``37.5 %``, ``1e-12``, ``x8``."""
    if unit == "bytes_per_second":
        return format_rate(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "ratio":
        return f"{value:.3g}" if 0 < value < _LEAST_PERCENT else f"{value * 100:.3g} %"
    number = f"{value:.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"
    if unit == "lanes":
        return f"x{number}"
    if unit == "events":
        return "once" if value == 1 else f"{number} times"
    return f"{number} per hour" if unit == "per_hour" else number
