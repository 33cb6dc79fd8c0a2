"""What one screen is made of: the documents of a daemon, and what is known of the asking itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import FindingsDocument, ProbesDocument, SnapshotDocument
from commwatch_exporters.node.model import Node
from commwatch_exporters.node.parts import AnyColumn, Part


class Documents(msgspec.Struct, frozen=True):
    """All that a daemon said at one time."""

    findings: FindingsDocument
    probes: ProbesDocument
    snapshot: SnapshotDocument


@dataclass(frozen=True, slots=True)
class View:
    """What is shown."""

    source: str
    """Who is asked: a host name, or the address of an endpoint."""
    thresholds: Thresholds
    """Of the one who looks: which pairs are slow, what a score is called."""
    documents: Documents | None = None
    """The last answer; None before the first."""
    first: SnapshotDocument | None = None
    """That of the first answer: errors since then are new."""
    trouble: str = ""
    """Why the last question was not answered; empty where it was."""
    trouble_seconds: float = 0.0
    """Since when there has been no answer."""


def _itself(part: Part) -> Part:
    return part


def sums(node: Node | None, columns: Iterable[AnyColumn], of: Callable[[Any], Part] = _itself) -> dict[Part, float]:
    """The sum of several counters by part; absent where none of them was read.

    Args:
        node: None: nothing is known.
        columns: the counters.
        of: the part that has them together, such as the GPU of a link.
    """
    total: dict[Part, float] = {}
    if node is not None:
        for column in columns:
            for part, _, number in node.each_keyed(column):
                total[of(part)] = total.get(of(part), 0.0) + number
    return total
