"""What a scheduler is told of its node: ok, a problem, or unknown, with one line of reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from commwatch.findings.finding import Severity
from commwatch.units import format_seconds

Verdict: TypeAlias = Literal["ok", "problem", "unknown"]

Because: TypeAlias = Literal[
    "no_daemon",  # none runs with this state directory
    "no_answer",  # one runs, and did not answer in time or not in a form that is known
    "not_looked_yet",  # it has just started
    "stale",  # its last look is too old, or did not see any more what would call for a drain
    "paused",
    "simulated",
    "not_read",  # a rule or a collector fails, so that nothing can be ruled out
    "no_result",  # the preflight has no result that is young enough, or not all that it needs to judge one
    "error",  # of this command: its use, its configuration, a defect
]
"""Why something is unknown: values of the label ``reason`` of ``commwatch_healthcheck_unknown_total``."""

DRAIN_LIST: Final[Mapping[str, str]] = {
    "gpu_lost": "the driver has given the GPU up",
    "gpu_reset_required": "the driver refuses the GPU until it is reset",
    "gpu_missing": "a job that asks for all GPUs of the node fails",
    "fabric_unhealthy": "the fabric itself says that GPUs do not reach each other as they should",
    "fabric_not_joined": "the GPU cannot use NVLink; CUDA may not start at all",
    "nvlink_down": "a link that was up is down; it comes back by a reset or a repair only",
    "nvlink_recovery_failed": "the link could not be retrained",
    "pcie_width_dropped": "lanes that were stable are gone; they come back by a reseat or a reboot only",
    "pcie_fatal": "the link or the device behind it needs a reset",
    "xid_fabric": "the driver says that a path of the GPU has failed",
    "sxid_fatal": "an NVSwitch says that a link has failed",
}
"""Codes for which a node is taken from its scheduler, and why: critical faults of the node's own hardware that do not
go away by themselves. A symptom has many causes; a fault of a shared network is on many nodes at once."""

PROGRAM_EVENTS: Final = frozenset({"xid 108", "xid 137", "xid 145"})
"""Xids of the fabric that a program's access to a wrong address shows as well: a job that does so would drain one node
after another. They drain nothing where no other fact stands beside them."""

BLIND: Final = frozenset({"collector_failing", "collector_stale", "worker_stuck", "rule_failing"})
"""Findings about commwatch itself by which something on the node is not seen."""

FUTURE_SECONDS: Final = 5.0
"""A look that is further ahead of our clock than this has a time that says nothing."""
_SAME_LOOK_SECONDS: Final = 1.0
_REASON_LENGTH: Final = 180


@dataclass(frozen=True, slots=True)
class Fault:
    """A finding, or a cause of one."""

    code: str
    title: str
    severity: Severity
    where: str
    """The component in words."""
    since: float | None = None
    """Seconds since 1970; None of a cause."""
    last_seen: float | None = None
    """When a rule saw it last, seconds since 1970; None where that is not known."""
    is_cause: bool = False
    """It explains a finding and is not one of its own."""
    lead: str = ""
    """The likeliest cause with its component, where that is named first; empty where the fault itself is."""
    events: tuple[str, ...] = ()
    """The event of each fact that it stands on: ``xid 74``; empty for a fact that is none."""

    @property
    def calls_for_drain(self) -> bool:
        """Whether it is on the drain list, and not by facts alone that a program can bring about."""
        if self.code not in DRAIN_LIST:
            return False
        return not self.events or not PROGRAM_EVENTS.issuperset(self.events)

    @property
    def words(self) -> str:
        """``NVLink is down: GPU0 link 3 (0000:17:00.0/3)``."""
        return self.lead or f"{self.title}: {self.where}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a daemon said of its node."""

    looked_at: float | None
    """When its rules ran last, seconds since 1970; None before the first time."""
    simulated: str | None
    maintenance: str | None
    failing_rules: tuple[str, ...]
    faults: tuple[Fault, ...]
    """Findings and their causes, most severe first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How the question was put."""

    now: float
    """Seconds since 1970."""
    max_age: float
    """Seconds beyond which a look is stale."""
    slurm: bool = False
    """A problem is only a fresh fault of the drain list; what is unknown exits 0."""
    fail_closed: bool = False
    """What is unknown exits 1."""


@dataclass(frozen=True, slots=True)
class Health:
    """The answer."""

    verdict: Verdict
    reason: str
    """One line, without the verdict."""
    exit_code: int
    because: Because | None = None
    """Why it is unknown."""
    drain_for: tuple[Fault, ...] = ()
    """Fresh faults of the drain list; empty unless Slurm asks and the verdict is a problem."""

    @property
    def line(self) -> str:
        """``problem: NVLink is down: GPU0 link 3 (0000:17:00.0/3)``."""
        return f"{self.verdict}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether a job of a profile may start here."""

    verdict: Verdict
    reason: str
    """One line, without the verdict."""


def exit_code_of(verdict: Verdict, *, slurm: bool, fail_closed: bool) -> int:
    """0: fine, 1: a problem, 2: unknown, as node-problem-detector has it; for Slurm what is unknown is 0."""
    if verdict != "unknown":
        return 1 if verdict == "problem" else 0
    if fail_closed:
        return 1
    return 0 if slurm else 2


def unknown(because: Because, reason: str, *, slurm: bool, fail_closed: bool) -> Health:
    """The answer where nothing can be said of the node.

    Args:
        because: in one word.
        reason: in words; line breaks and control characters are taken out.
        slurm: see ``Asked``.
        fail_closed: see ``Asked``.
    """
    code = exit_code_of("unknown", slurm=slurm, fail_closed=fail_closed)
    return Health("unknown", one_line(reason), code, because)


def judge(report: Report, asked: Asked) -> Health:
    """What a daemon's report means for the scheduler."""
    if doubt := _doubt(report, asked):
        because, reason = doubt
        return unknown(because, reason, slurm=asked.slurm, fail_closed=asked.fail_closed)
    return _for_slurm(report, asked) if asked.slurm else _for_detector(report, asked)


def with_preflight(health: Health, preflight: Preflight, asked: Asked) -> Health:
    """The answer before a job of a profile: what is true of the node, and what the profile asks for.

    For Slurm the preflight is told and changes nothing: a script that fails in a prolog drains the node, and a node
    that does not suit one job suits others.
    """
    if asked.slurm or (health.verdict == "unknown" and health.because != "not_read"):
        return replace(health, reason=one_line(f"{health.reason}; {_told(preflight)}"))
    if preflight.verdict == "problem":
        more = f"; {health.reason}" if health.verdict == "problem" else ""
        return _answer("problem", f"{preflight.reason}{more}", asked)
    if health.verdict != "ok":
        return replace(health, reason=one_line(f"{health.reason}; {_told(preflight)}"))
    if preflight.verdict == "unknown":
        return unknown("no_result", preflight.reason, slurm=False, fail_closed=asked.fail_closed)
    return _answer("ok", f"{preflight.reason}; {health.reason}", asked)


def _told(preflight: Preflight) -> str:
    return f"preflight, {preflight.verdict}: {preflight.reason}"


def _doubt(report: Report, asked: Asked) -> tuple[Because, str] | None:
    """Why the report as a whole says nothing of this node now."""
    if report.simulated is not None:
        told = _summary([fault for fault in report.faults if not fault.is_cause])
        return "simulated", f"the node is simulated ({report.simulated}); it has {told}"
    if report.maintenance is not None:
        return "paused", f"the daemon is paused ({report.maintenance})"
    if report.looked_at is None:
        return "not_looked_yet", "the daemon has just started and has not looked at the node yet"
    age = asked.now - report.looked_at
    if age < -FUTURE_SECONDS:
        return "stale", f"the daemon's last look is {format_seconds(-age)} ahead of the clock"
    if age > asked.max_age:
        limit = format_seconds(asked.max_age)
        return "stale", f"the daemon's last look is {format_seconds(age)} old, more than {limit}"
    return None


def _for_detector(report: Report, asked: Asked) -> Health:
    """Every finding but information is a problem."""
    grave = [fault for fault in report.faults if fault.severity != "info" and not fault.is_cause]
    if grave:
        return _answer("problem", _and_more(grave), asked)
    if report.failing_rules:
        return _not_read(f"a rule fails ({report.failing_rules[0]}), so that not everything is looked for", asked)
    return _answer("ok", "no finding above information", asked)


def _for_slurm(report: Report, asked: Asked) -> Health:
    """Only a fresh fault of the drain list is a problem."""
    listed = [fault for fault in report.faults if fault.calls_for_drain]
    fresh = tuple(fault for fault in listed if _is_fresh(fault, report))
    if fresh:
        return _answer("problem", _and_more(fresh), asked, fresh)
    if listed:
        old = listed[0]
        age = "" if old.last_seen is None else f" but {format_seconds(max(0.0, asked.now - old.last_seen))} ago"
        reason = f"{old.words}; not seen at the last look{age}"
        return unknown("stale", reason, slurm=True, fail_closed=asked.fail_closed)
    if report.failing_rules:
        return _not_read(f"a rule fails ({report.failing_rules[0]})", asked)
    if blind := [fault for fault in report.faults if fault.code in BLIND]:
        return _not_read(_and_more(blind), asked)
    return _answer("ok", f"nothing on the drain list; {_summary(report.faults)} open", asked)


def _is_fresh(fault: Fault, report: Report) -> bool:
    """Whether a rule saw it at the last look: one that is gone stays open for a while, and so does one not read."""
    if fault.last_seen is None or report.looked_at is None:
        return False
    return abs(fault.last_seen - report.looked_at) < _SAME_LOOK_SECONDS


def _answer(verdict: Verdict, reason: str, asked: Asked, drain_for: tuple[Fault, ...] = ()) -> Health:
    code = exit_code_of(verdict, slurm=asked.slurm, fail_closed=asked.fail_closed)
    return Health(verdict, one_line(reason), code, drain_for=drain_for)


def _not_read(reason: str, asked: Asked) -> Health:
    return unknown("not_read", reason, slurm=asked.slurm, fail_closed=asked.fail_closed)


def _and_more(faults: Iterable[Fault]) -> str:
    first, *others = faults
    return f"{first.words}; and {len(others)} more" if others else first.words


def _summary(faults: Iterable[Fault]) -> str:
    """``2 findings, the most severe Bandwidth is far below what is expected: probe ring``."""
    open_now = list(faults)
    if not open_now:
        return "no finding"
    plural = "s, the most severe" if len(open_now) > 1 else ","
    return f"{len(open_now)} finding{plural} {open_now[0].words}"


def one_line(text: str) -> str:
    """A text without line breaks and control characters: it goes to logs and terminals."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def drain_reason(faults: Iterable[Fault]) -> str:
    """What Slurm keeps as the reason of a drain: ``commwatch: nvlink_down: GPU0 link 3 (0000:17:00.0/3)``.

    Plain ASCII without quotes, at most 180 characters.
    """
    first, *others = faults
    text = f"{OUR_REASON} {first.code}: {first.where}" + (f"; and {len(others)} more" if others else "")
    return re.sub(r"[^ A-Za-z0-9_.,:;/()+-]", "?", one_line(text))[:_REASON_LENGTH]


OUR_REASON: Final = "commwatch:"
"""How the reasons begin that we give to Slurm."""
