"""The row of one metric in the catalogue, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

MetricType: TypeAlias = Literal["counter", "gauge", "histogram", "info"]

SUFFIXES: Final[Mapping[str, str]] = {"counter": "_total", "info": "_info"}
"""By type, what the name of a metric ends in; that of another type ends in its unit, if in anything."""

GPU: Final = "gpu pci_bus_id"
LINK: Final = "gpu pci_bus_id link"
PORT: Final = "device port"
PROBE: Final = "probe backend"

SUSTAINED_SECONDS: Final = 120.0
"""Over which a rate is taken of what a network may do for a moment."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How far a counter may rise before it is evidence of a finding; rules, alerts and dashboards follow from it."""

    finding: str
    what: str
    """The counted events in words: ``symbol errors``."""
    window_seconds: float
    """Over which the rise is taken."""
    threshold: str = ""
    """Key of ``alerts/thresholds.yaml``; empty where any rise is too much."""
    per_seconds: float = 1.0
    """The period to which the threshold applies, in seconds."""
    inclusive: bool = False
    """Whether the threshold itself is too much already."""

    def most(self, threshold: float) -> float:
        """The highest permitted rise within the whole window."""
        return threshold * self.window_seconds / self.per_seconds

    def is_exceeded(self, rise: float, most: float | None) -> bool:
        """Whether a rise in the window is too much; ``most`` is None where any is."""
        return most is None or rise > most or (self.inclusive and rise == most)


def in_an_hour(finding: str, what: str, threshold: str = "", *, inclusive: bool = False) -> Limit:
    return Limit(finding, what, 3600.0, threshold, 3600.0, inclusive)


def in_a_minute(finding: str, what: str, threshold: str) -> Limit:
    return Limit(finding, what, 60.0, threshold, 60.0)


def sustained(finding: str, what: str, threshold: str, *, per_seconds: float = 1.0) -> Limit:
    """A rate, taken over two minutes, of what a network may do for a moment."""
    return Limit(finding, what, SUSTAINED_SECONDS, threshold, per_seconds)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """Full name as exposed, with namespace, unit and ``_total`` or ``_info``."""
    type: MetricType
    labels: tuple[str, ...]
    help: str
    """The meaning of the number, one sentence."""
    origin: str
    """Where it is read or how it is computed: NVML field, sysfs file, formula."""
    unit: str = ""
    """Base unit, as in the name; empty if the number has none."""
    saturates_at: int | None = None
    """The number at which the hardware's counter stops counting; None where it does not stop."""
    opt_in: bool = False
    """Exposed only where the configuration asks for it: many series that few need."""
    wraps_at: int | None = None
    """The modulus of the hardware's counter, which restarts at 0 there; None if it does not wrap. The exposed number
    keeps growing."""
    limits: tuple[Limit, ...] = ()
    """The limits that make a rise evidence of a finding at the counter's part."""

    def judged(self, *limits: Limit) -> Metric:
        """The row with the limits of its counter."""
        return replace(self, limits=limits)

    def labels_of(self, series_name: str) -> tuple[str, ...]:
        """Label names of one of its series: the buckets of a histogram have ``le`` too."""
        return (*self.labels, "le") if series_name == f"{self.name}_bucket" else self.labels

    @property
    def text(self) -> str:
        """The HELP text of the exposition."""
        return f"{self.help} Origin: {self.origin}."


def _row(
    metric_type: MetricType,
    name: str,
    labels: str,
    help_text: str,
    origin: str,
    unit: str = "",
    *,
    saturates_at: int | None = None,
    opt_in: bool = False,
    wraps_at: int | None = None,
) -> Metric:
    full_name, label_names = f"commwatch_{name}", tuple(labels.split())
    return Metric(full_name, metric_type, label_names, help_text, origin, unit, saturates_at, opt_in, wraps_at)


counter: Final = partial(_row, "counter")
"""A row of a number that only grows."""
gauge: Final = partial(_row, "gauge")
"""A row of a number that rises and falls."""
histogram: Final = partial(_row, "histogram")
"""A row of a distribution."""
info: Final = partial(_row, "info")
"""A row of labels that describe something; its value is always 1."""


RECENT_RISE: Final = "Rise of the counter in the last 5 minutes (event_window_seconds); only while there is one."


def recent(name: str, labels: str) -> Metric:
    """A row of how far a counter has risen lately; ``name`` is that of the counter without ``_total``."""
    return gauge(f"{name}_recent", labels, RECENT_RISE, f"{name}_total since the daemon started")
