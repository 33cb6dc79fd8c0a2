"""A family of rules: its codes, its counters with their windows, and each rule with the metrics that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Match, Role, Severity
from commwatch_exporters.node.parts import AnyColumn

Quantity: TypeAlias = Literal[
    "gpus", "nvlinks", "nvlink_fabric", "nvlink_peers", "pcie_lanes", "device_lanes", "pcie_generation", "pcie_slot",
    "rdma_port_state", "rdma_port_count", "subnet_manager", "rdma_speed", "rdma_address", "rdma_errors", "rdma_losses",
    "rdma_congestion", "gpudirect", "bandwidth", "pairs", "small_messages", "large_messages", "message_sizes",
    "course", "settings",
]  # fmt: skip
"""The quantities of a part that a diagnosis checks."""

Evaluate: TypeAlias = Callable[[Facts, Thresholds], Iterable[Match]]
"""One rule, or several that belong together."""

Judge: TypeAlias = Callable[[Facts, Thresholds, Component], bool]
"""Whether a component can be judged now: a PCIe link shows its speed under load alone."""

HOUR = 3600.0
DAY = 24 * HOUR

STATE_OPENS_AFTER = 15.0
"""Seconds: one bad sample opens nothing; the alerts on states wait as long."""
STATE_CLOSES_AFTER = 60.0
"""Seconds: what comes back within a minute is one incident."""
COUNT_CLOSES_AFTER = 300.0
"""Seconds after an event has left its window."""


@dataclass(frozen=True, slots=True)
class FindingCode:
    """One code of the closed list; the row of ``docs/reference/findings/README.md`` is made of it."""

    name: str
    """Value of the label ``code``: ``nvlink_down``."""
    title: str
    """The finding in a few words, without its component: ``NVLink is down``."""
    severity: Severity
    role: Role
    meaning: str
    """The meaning for the node, and the consequence for its users."""
    next_step: str
    """The first step."""
    alert: str = ""
    """The alert on the same metric; empty where none is shipped."""
    opens_after: float = STATE_OPENS_AFTER
    """Seconds for which it must be seen."""
    closes_after: float = STATE_CLOSES_AFTER
    """Seconds for which it must be gone."""
    is_event: bool = False
    """Whether it happened at one moment and may be over while it is still counted; all others are states, or counts
    over a time."""
    quantities: tuple[Quantity, ...] = ()
    """The wrong quantities of its component, whose checks fail by it. Empty if no check measures it, as for events and
    error counters."""
    replaces: tuple[str, ...] = ()
    """Names of the codes that are lesser degrees of it: at a component where it is open, none of them is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One or several checks that belong together, and what they read; a test refuses it everything else."""

    evaluate: Evaluate
    codes: tuple[str, ...]
    """Names of the codes that it matches; no other rule matches them."""
    reads: tuple[AnyColumn, ...]
    """Numbers by which it decides whether it matches, and at which component. A finding closes only where these were
    read."""
    details: tuple[AnyColumn, ...] = ()
    """Numbers that add numbers, names and parts to what it matches; without them it matches the same."""
    counts: tuple[AnyColumn, ...] = ()
    """Counters that show when a counted event began, besides those that it reads."""
    thresholds: tuple[str, ...] = ()
    """Keys of ``alerts/thresholds.yaml`` that it compares the numbers with."""
    row: str = ""
    """Name of one that has no function of its own."""

    @property
    def metrics_read(self) -> tuple[str, ...]:
        """``reads`` as metrics."""
        return _metrics(self.reads)

    @property
    def metrics_counted(self) -> tuple[str, ...]:
        """Metrics whose first change shows when a count began."""
        return _metrics((*self.reads, *self.counts))

    @property
    def name(self) -> str:
        """``nvlink.down``: family and name of the function; value of the label ``rule``."""
        if self.row:
            return self.row
        function = getattr(self.evaluate, "__name__", type(self.evaluate).__name__)
        return f"{self.evaluate.__module__.rpartition('.')[2]}.{function}"


@dataclass(frozen=True, slots=True)
class RuleSet:
    name: str
    """Heading in the documentation."""
    codes: tuple[FindingCode, ...]
    rules: tuple[Rule, ...]
    windows: Mapping[AnyColumn, float] = field(default_factory=dict)
    """Counters whose past changes the rules use, with the window in seconds."""
    events: frozenset[AnyColumn] = frozenset()
    """Those of them of which a series is not there before its first event: it counts from 0."""
    judged: Mapping[str, Judge] = field(default_factory=dict)
    """By code, for those that cannot always be judged: where one cannot, its finding stays as it is."""

    @property
    def metrics_watched(self) -> Mapping[str, float]:
        """``windows`` by metric."""
        return dict(zip(_metrics(self.windows), self.windows.values(), strict=True))

    @property
    def metrics_of_events(self) -> frozenset[str]:
        """``events`` as metrics."""
        return frozenset(_metrics(self.events))


def _metrics(columns: Iterable[AnyColumn]) -> tuple[str, ...]:
    return tuple(one.metric for one in columns)
