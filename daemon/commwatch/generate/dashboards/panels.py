"""Parts of a dashboard: panels with their queries, columns, colours, and the data that each needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Colour: TypeAlias = Literal["green", "blue", "yellow", "orange", "red", "purple", "text"]

SEVERITY_COLOURS: Mapping[str, Colour] = {"critical": "red", "warning": "orange", "info": "blue"}
"""A value beyond an alert's threshold has the colour of the alert."""

Due: TypeAlias = Literal[
    "always", "with a fault", "from eight equal nodes", "with RDMA", "up to NVLink 4", "with NVLink 5", "elsewhere"
]
"""When a query must have an answer; tests hold it against simulated nodes. ``elsewhere``: these lack what it needs."""

Names: TypeAlias = Mapping[float, tuple[str, Colour]]
"""Text and colour that replace a number."""

LabelNames: TypeAlias = Mapping[str, tuple[str, Colour]]
"""Text and colour that replace the value of a label."""

HEADINGS: Mapping[str, str] = {
    "alertname": "Alert", "capability": "Way", "collective": "Collective", "component": "Part", "cluster": "Cluster",
    "device": "Device", "digest": "Digest", "dst": "To GPU", "element": "Part", "expected_source": "Expected by",
    "fault": "Alert", "gpu": "GPU", "gpu_model": "GPU model", "instance": "Node", "link_layer": "Link layer",
    "master": "Bond", "name": "Model", "nccl_version": "NCCL", "netdev": "Interface", "next_step": "First step",
    "numa_node": "NUMA node", "parent": "Behind", "pci_bus_id": "PCI address", "peer": "Other GPU",
    "python_version": "Python", "remark": "Remark", "remote_link": "Far link", "remote_pci_bus_id": "Far end",
    "remote_type": "Leads to", "simulated": "Data", "src": "From GPU", "title": "Finding", "uuid": "UUID",
}  # fmt: skip
"""Heads of the columns of labels, where the name of the label does not serve."""

NUMBERS = frozenset({"gpu", "link", "src", "dst"})
"""Labels that are numbers: a table that is sorted by them puts 10 behind 9."""

WIDTHS: Mapping[str, int] = {
    "instance": 260, "alertname": 260, "fault": 260, "component": 220, "name": 190, "uuid": 350, "title": 310,
    "gpu": 60, "link": 60, "port": 60, "severity": 90, "pci_bus_id": 120, "remote_pci_bus_id": 120, "serial": 130,
    "remark": 200, "variable": 200, "gpu_model": 180, "since": 140, "last result": 140, "maintenance": 120,
}  # fmt: skip
"""Of columns, in pixels: names of nodes and parts are whole; the others share what is left."""


def heading(name: str) -> str:
    """The head of a column, of a label or with a title."""
    return HEADINGS.get(name) or name[:1].upper() + name[1:]


Order: TypeAlias = Literal["up", "down"]
"""Which way lines are sorted: the lowest or the highest first."""


@dataclass(frozen=True)
class Scale:
    """Which values have which colour."""

    base: Colour
    """Below all limits."""
    steps: Sequence[tuple[str | float, Colour]]
    """From each limit on; a limit is a key of alerts/thresholds.yaml or a number."""
    alert: str = ""
    whole_above: bool = False
    """The alert asks for more than a limit of whole events, a colour begins at its value: it begins one event later."""


def low_is_bad(key: str, severity: str, alert: str) -> Scale:
    """Below a threshold is bad, as an alert has it."""
    return Scale(SEVERITY_COLOURS[severity], ((key, "green"),), alert)


def high_is_bad(key: str, severity: str, alert: str) -> Scale:
    """From a threshold on is bad, as an alert has it."""
    return Scale("green", ((key, SEVERITY_COLOURS[severity]),), alert)


def more_is_bad(key: str, severity: str, alert: str) -> Scale:
    """More events than a threshold is bad, as an alert has it."""
    return Scale("green", ((key, SEVERITY_COLOURS[severity]),), alert, whole_above=True)


def any_is_bad(severity: str, alert: str = "") -> Scale:
    """Nothing is good, and one is bad."""
    return Scale("green", ((1, SEVERITY_COLOURS[severity]),), alert)


@dataclass(frozen=True)
class Query:
    """A question to Prometheus.

    ``@job@``, ``@node@``, ``@gpu@``, ``@link@``, ``@alerts@`` and ``@node_alerts@`` stand for matchers of variables,
    ``@NAME@`` for a threshold of that name, ``@NAME:duration@`` for one in seconds as Prometheus writes it. Texts of a
    panel may contain these thresholds too, and ``@NAME:percent@``.
    """

    expression: str
    legend: str = ""
    due: Due = "always"


@dataclass(frozen=True)
class Column:
    title: str
    """Empty: the numbers are not shown, only the labels."""
    expression: str
    """All columns of a table have some labels in common; further ones become columns of their own."""
    unit: str = "none"
    scale: Scale | None = None
    names: Names = field(default_factory=dict)
    due: Due = "always"


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    description: str
    no_data: str
    """The data that the panel needs; shown while it is missing."""
    queries: Sequence[Query] = ()
    unit: str = "none"
    scale: Scale | None = None
    names: Names = field(default_factory=dict)
    minimum: float | None = 0
    maximum: float | None = None
    width: int = 8
    """Of 24."""
    height: int = 8
    alerts: Sequence[str] = ()
    """Whose runbooks it links to, beside that of its scale."""

    @property
    def runbooks(self) -> Sequence[str]:
        """The alerts whose runbooks the panel links to."""
        own = (self.scale.alert,) if self.scale is not None and self.scale.alert else ()
        return (*own, *self.alerts)


@dataclass(frozen=True, kw_only=True)
class Stat(Panel):
    """Single numbers of now; those with the legend ``simulated`` have the colour of simulated data."""

    width: int = 3
    height: int = 4
    shows_legend: bool = False
    """Whether only the legends are shown, for panels whose information is in a label."""


@dataclass(frozen=True, kw_only=True)
class Series(Panel):
    """Lines over time."""

    stacked: bool = False


@dataclass(frozen=True, kw_only=True)
class States(Panel):
    """States over time: one bar for each series."""

    minimum: float | None = None


@dataclass(frozen=True, kw_only=True)
class Heat(Panel):
    """The buckets of a histogram over time."""


@dataclass(frozen=True, kw_only=True)
class Matrix(Panel):
    """One number for each pair of the labels ``src`` and ``dst``, now."""

    width: int = 12
    height: int = 10
    """Eight GPUs."""


@dataclass(frozen=True, kw_only=True)
class Table(Panel):
    """One line for each combination of labels, now."""

    columns: Sequence[Column] = ()
    labels: Sequence[str] = ()
    """The labels that are shown, in this order, under the headings of ``HEADINGS``."""
    first: Sequence[str] = ()
    """Titles of columns that come before the labels."""
    label_names: Mapping[str, LabelNames] = field(default_factory=dict)
    """Words and colours of labels."""
    wrapped: Sequence[str] = ()
    """Labels whose text takes two lines."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Targets of a click on a label; ``@runbooks@`` stands for the address of the runbooks."""
    sort_by: Mapping[str, Order] = field(default_factory=dict)
    """Titles and labels that it is sorted by, in turn; empty: by the first label."""
    width: int = 24
    height: int = 11
    """Eight lines below a head of two."""
    minimum: float | None = None

    @property
    def order(self) -> Mapping[str, Order]:
        """What it is sorted by, in turn."""
        return self.sort_by or {self.labels[0]: "up"}


@dataclass(frozen=True)
class PanelRow:
    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


@dataclass(frozen=True)
class Variable:
    """A choice above the panels."""

    name: str
    label: str
    values: str
    """As ``label_values`` takes it."""
    all_values: str = ""
    """The regular expression for all of them; empty: exactly one is chosen."""


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[PanelRow]
    time_from: str = "now-6h"
    annotated_node: bool = True
    """Whether Xids are marked; over many nodes they would cover everything."""

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]


CLUSTER = Variable("cluster", "Cluster", "commwatch_build_info, cluster", ".*")
"""A label of the site; where there is none the only choice is All, which matches its absence."""
JOB = Variable("job", "Job", 'commwatch_build_info{cluster=~"$cluster"}, job', ".+")
INSTANCES = Variable("instance", "Instance", 'commwatch_build_info{cluster=~"$cluster", job=~"$job"}, instance', ".+")
INSTANCE = Variable("instance", "Instance", INSTANCES.values)
"""One node: the GPUs of two would fall together."""
GPUS = Variable("gpu", "GPU", "commwatch_gpu_info{@node@}, gpu", ".+")
GPU = Variable("gpu", "GPU", "commwatch_gpu_info{@node@}, gpu")
LINKS = Variable("link", "Link", 'commwatch_nvlink_link_state{@node@, gpu=~"$gpu"}, link', ".+")
