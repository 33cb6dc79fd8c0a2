"""Which of the parts are marked: the highest severity of the findings of each, by the part's identities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from commwatch.views.node_page.markup import level_of
from commwatch.views.node_page.records import Mark

Marks: TypeAlias = Mapping[str, Mark]

LEVELS: Final = ("bad", "warn", "info", "unknown", "off", "good")
"""How a part is, the worst first."""


def worst_mark(marks: Marks, *identities: str) -> Mark | None:
    """The most severe mark of what has some identities; None where it has none."""
    found = [marks[one] for one in identities if one in marks]
    return min(found, key=lambda mark: LEVELS.index(level_of(mark.severity)), default=None)


def port_mark(marks: Marks, device: str, port: str, interface: str) -> Mark | None:
    """The most severe mark of an RDMA port, of its network interface, or of its adapter as a suspect."""
    return worst_mark(marks, f"rdma_port/{device}/{port}", f"interface/{interface}", f"part/nic/{device}")
