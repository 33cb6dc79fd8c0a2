"""The definition of a drill: faults on a simulated node, and the alerts that they must raise."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from commwatch.config.settings import Duration

DetectionClass: TypeAlias = Literal["A", "B", "C", "D"]
"""A: a state or event; B: a rate or a state that lasts; C: a streak of probes; D: a trend over days."""

CLASS_SECONDS: dict[DetectionClass, float] = {"A": 60.0, "B": 300.0, "C": 120.0, "D": 3600.0}
"""Longest time from the fault to the page at the shipped intervals, unless a drill has its own.

C: three probes 20 s apart, a scrape, an evaluation and Alertmanager's wait, and what the probes themselves take.
"""
SILENT_SECONDS = 300.0
"""Duration of a fault that must not page, at the shipped intervals: class B has five minutes."""


class Drill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the catalogue. Times are seconds at the shipped intervals."""

    name: str = ""
    """Its key in the catalogue: the kind of fault and, if it has several drills, their difference."""
    family: str = ""
    """Heading under which the catalogue has it."""
    preset: str
    faults: tuple[dict[str, str], ...] = ()
    """Entries of a file of faults, without the times at which they begin and end."""
    alerts: tuple[str, ...] = ()
    """Each of these must be paged; a row names them where they are not those of ``codes``. None: the fault must page no
    one."""
    codes: tuple[str, ...] = ()
    """Findings that the daemon must open; the alerts that they name must be paged."""
    also: tuple[str, ...] = ()
    """Alerts that may come beside them: other signs of the same fault on the same node."""
    between_nodes: tuple[dict[str, str], ...] = ()
    """Parts of the node that two runs between nodes name, with ``kind``, ``element``, ``symptom``, and ``ratio`` to
    what is usual; at the end of the fault a run names none."""
    checked: tuple[str, ...] = ()
    """Causes for which two checks between nodes blame the node; at the end of the fault a check blames it for none."""
    log: tuple[str, ...] = ()
    """Lines that a job on the node writes into its log, which the daemon follows."""
    under: tuple[dict[str, str], ...] = ()
    """Conditions from the start of the node to its end, such as a job."""
    first_day: bool = False
    """Whether its faults exist since before the first evaluation of the node's daemon, so that it learns them."""
    detection: DetectionClass = "A"
    within: Duration | None = None
    """From fault to page, where the alert waits longer than its class."""
    lasts: Duration = Duration(0)
    """For how long the alert looks back, and so goes on after its fault; not its ``keep_firing_for``."""
    settles: Duration = Duration(0)
    """How long the node must have been healthy before its fault, where that is more than usual."""
    returns: Duration = Duration(0)
    """Time that the daemon may take, at any pace, to retry a device that it has given up."""
    probes: dict[str, dict[str, str]] = {}
    """A probe that runs on the node all the time, as in the configuration."""
    probes_from: Duration = Duration(0)
    """How long after the start of the node its probe begins, so that the fault is there from its first result on."""
    nodes: int = 1
    """Nodes side by side that get the same fault; with more than one the alerts are those of the fleet."""
    stopped: bool = False
    """The fault is that the daemon is gone."""
    why_slow: str = ""
    """The part that cannot be shortened, so that the fast form does not show it; empty: it does."""

    @property
    def is_silent(self) -> bool:
        """Whether the drill shows that no one is paged."""
        return not self.alerts

    @property
    def fast(self) -> bool:
        """Whether the fast form can show it."""
        return not self.why_slow

    @property
    def limit(self) -> float:
        """Seconds from fault to page that are allowed at the shipped intervals."""
        return CLASS_SECONDS[self.detection] if self.within is None else self.within

    @property
    def fault_texts(self) -> tuple[str, ...]:
        if self.stopped:
            return ("the daemon is stopped",)
        named = (f"named between nodes ({', '.join(one.values())})" for one in self.between_nodes)
        blamed = (f"blamed by cluster check ({one})" for one in self.checked)
        logged = ("the log of a job falls back to TCP",) if self.log else ()
        return (*(entry_text(one) for one in self.faults), *named, *blamed, *logged)


def entry_text(entry: dict[str, str]) -> str:
    """An entry of a file of faults in short: its kind, and its other keys in brackets."""
    details = ", ".join(f"{key} {value}" for key, value in entry.items() if key != "fault")
    return f"{entry['fault']} ({details})" if details else entry["fault"]
