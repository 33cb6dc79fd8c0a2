"""The content of one screen: the documents of a daemon, and the state of the requests for them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import FindingsDocument, ProbesDocument, SnapshotDocument


class Documents(msgspec.Struct, frozen=True):
    """All that a daemon said at one time."""

    findings: FindingsDocument
    probes: ProbesDocument
    snapshot: SnapshotDocument


@dataclass(frozen=True, slots=True)
class View:
    source: str
    """Who is asked: a host name, or the address of an endpoint."""
    thresholds: Thresholds
    """Thresholds of the viewer: which pairs are slow, how a score is named."""
    documents: Documents | None = None
    """The last answer; None before the first."""
    first: SnapshotDocument | None = None
    """That of the first answer: errors since then are new."""
    trouble: str = ""
    """Why the last question was not answered; empty where it was."""
    trouble_seconds: float = 0.0
    """Since when there has been no answer."""
