"""A scheduler's view of its node: the verdict, whether that is a problem for it, and the reasons for a drain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from commwatch.errors import ExitCode
from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.finding import Cause, Finding
from commwatch.findings.rules.gpu import CALLS_FAIL
from commwatch.findings.rules.inventory import BY_CONFIGURATION
from commwatch.findings.verdict import Because, Verdict, Word, and_more, verdict_of
from commwatch.units import format_seconds

DRAIN_LIST: Final[Mapping[str, str]] = {
    "driver_mismatch": "no program that starts now can use a GPU",
    "driver_not_loaded": "no program can use a GPU",
    "driver_without_gpus": "the driver has none of the GPUs that are on the bus",
    "driver_failing": "no program can open the driver",
    "driver_calls_failing": "the driver answers no call about any GPU",
    "driver_silent": "no call about any GPU returns",
    "source_unread": "nothing is known any more of parts that jobs communicate through",
    "gpu_lost": "the driver has given the GPU up",
    "gpu_reset_required": "the driver refuses the GPU until it is reset",
    "gpu_recovery_needed": "the driver itself asks for a reset, a reboot or a drain",
    "gpu_not_answering": "every call about the GPU fails, or calls have not returned for a minute",
    "gpu_missing": "a job that asks for all GPUs of the node fails",
    "parts_never_seen": "parts that the board has do not work; a job that asks for the whole node fails or is slow",
    "gpu_not_listed": "the driver could not start the GPU; a job that asks for all GPUs of the node fails",
    "fabric_unhealthy": "the fabric itself says that GPUs do not reach each other as they should",
    "fabric_not_joined": "the GPU cannot use NVLink; CUDA may not start at all",
    "nvlink_down": "a link that was up, or that the board has, is down; it comes back by a reset or a repair only",
    "nvlink_recovery_failed": "the link could not be retrained",
    "nvlink_flapping": "the link has gone down three times within an hour, and work on it with it",
    "pcie_width_dropped": "lanes that the GPU or its equals had are gone; a power cycle or a repair brings them back",
    "pcie_fatal": "the link or the device behind it needs a reset",
    "xid_fabric": "the driver says that a path of the GPU has failed",
    "xid_fatal": "the driver itself calls an error of the GPU fatal",
    "sxid_fatal": "an NVSwitch says that a link has failed",
}
"""Codes for which a node is taken from its scheduler, and why: critical faults of the node's own hardware or driver
that do not go away by themselves. A symptom has many causes; a fault of a shared network is on many nodes at once."""

BLIND: Final = frozenset({"collector_failing", "collector_stale", "device_unread", "worker_stuck", "rule_failing"})
"""Findings about commwatch itself by which something on the node is not seen."""

OF_JOBS: Final = frozenset({"jobs", "nccl_logs", "nccl_inspector", "flight_recorder", "settings", "nccl_settings"})
"""Workers and collectors that read what jobs wrote, by the keys of their findings: without it nothing is unknown of the
node."""

_OF_ALL: Final[frozenset[Because | None]] = frozenset({"paused", "not_looked_yet", "stale"})
"""Reasons why the present state is entirely unknown: nothing drains then."""
_JUDGED_ALL_THE_SAME: Final = frozenset({"not_read", "inventory"})
"""Why the node is unknown, where its measured values are known all the same."""
_NOT_ACCEPTED: Final = "nobody has said what this node should have (commwatch inventory accept)"
_SAME_LOOK_SECONDS: Final = 1.0
HANG_PASSES_SECONDS: Final = 60.0
"""A call about a GPU may return after as long: the driver waits up to 45 s for the GPU's own processor (Xid 119)."""
_REASON_LENGTH: Final = 180


@dataclass(frozen=True, slots=True)
class Asked:
    """How the question was put."""

    now: float
    """Seconds since 1970."""
    max_age: float
    """Seconds beyond which an evaluation is stale."""
    slurm: bool = False
    """A problem is only a fresh fault of the drain list; what is unknown exits 0."""
    fail_closed: bool = False
    """Whether an unknown state exits with 1."""


@dataclass(frozen=True, slots=True)
class Health:
    verdict: Word
    reason: str
    """One line, without the verdict."""
    exit_code: int
    because: Because | None = None
    """Why it is unknown."""
    drain_for: tuple[Finding | Cause, ...] = ()
    """Fresh faults of the drain list; empty unless Slurm asks."""

    @property
    def line(self) -> str:
        """``Critical: NVLink is down: GPU0 link 3 (0000:17:00.0/3)``."""
        return f"{self.verdict}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether a job of a profile may start here; Warning where it should not."""

    verdict: Word
    reason: str
    """One line, without the verdict."""


def exit_code_of(word: Word, *, slurm: bool, fail_closed: bool, drains: bool = False) -> int:
    """0: fine, 1: a problem, 2: unknown, as node-problem-detector has it; for Slurm what is unknown is 0.

    Args:
        slurm: see ``Asked``; only a fault that calls for a drain is a problem then.
        fail_closed: see ``Asked``.
        drains: whether one is open and fresh.
    """
    if word == "Unknown":
        # 2 as node-problem-detector has it, though 2 is wrong use elsewhere: here wrong use is unknown too.
        return ExitCode.FOUND if fail_closed else ExitCode.OK if slurm else ExitCode.WRONG_USE
    return ExitCode.FOUND if (drains if slurm else word != "OK") else ExitCode.OK


def unknown(because: Because, reason: str, *, slurm: bool, fail_closed: bool) -> Health:
    """The answer if the node's state is unknown.

    Args:
        because: in one word.
        reason: in words; line breaks and control characters are taken out.
        slurm: see ``Asked``.
        fail_closed: see ``Asked``.
    """
    code = exit_code_of("Unknown", slurm=slurm, fail_closed=fail_closed)
    return Health("Unknown", one_line(reason), code, because)


def judge(document: FindingsDocument, asked: Asked) -> Health:
    """The meaning of a daemon's answer for the scheduler."""
    verdict = verdict_of(document, asked.now, asked.max_age)
    if document.simulated is not None:
        reason = f"the node is simulated ({document.simulated}), otherwise {verdict.word}: {verdict.line}"
        return unknown("simulated", reason, slurm=asked.slurm, fail_closed=asked.fail_closed)
    if asked.slurm and verdict.because not in _OF_ALL:
        return _for_slurm(document, verdict, asked)
    if verdict.because is not None:
        return unknown(verdict.because, verdict.line, slurm=asked.slurm, fail_closed=asked.fail_closed)
    if verdict.word == "OK" and not document.is_inventory_known:
        reason = f"{_NOT_ACCEPTED}, otherwise OK: {verdict.line}"
        return unknown("inventory", reason, slurm=asked.slurm, fail_closed=asked.fail_closed)
    return _answer(verdict.word, verdict.line, asked)


def with_preflight(health: Health, preflight: Preflight, asked: Asked) -> Health:
    """The answer before a job of a profile: what is true of the node, and what the profile asks for.

    For Slurm the preflight is reported and changes nothing: a script that fails in a prolog drains the node, and a node
    that does not suit one job suits others.
    """
    if asked.slurm or (health.verdict == "Unknown" and health.because not in _JUDGED_ALL_THE_SAME):
        return replace(health, reason=one_line(f"{health.reason}; {_told(preflight)}"))
    is_grave = health.verdict in ("Warning", "Critical")
    if preflight.verdict == "Warning":
        word, more = (health.verdict, f"; {health.reason}") if is_grave else ("Warning", "")
        return _answer(word, f"{preflight.reason}{more}", asked)
    if health.verdict != "OK":
        return replace(health, reason=one_line(f"{health.reason}; {_told(preflight)}"))
    if preflight.verdict == "Unknown":
        return unknown("no_result", preflight.reason, slurm=False, fail_closed=asked.fail_closed)
    return _answer("OK", f"{preflight.reason}; {health.reason}", asked)


def _told(preflight: Preflight) -> str:
    return f"preflight, {preflight.verdict}: {preflight.reason}"


def _for_slurm(document: FindingsDocument, verdict: Verdict, asked: Asked) -> Health:
    """Only a fresh fault of the drain list is a problem."""
    listed = [fault for fault in document.faults if calls_for_drain(fault)]
    fresh = tuple(fault for fault in listed if _is_fresh(fault, document))
    if fresh:
        return _answer("Critical", and_more(fresh), asked, fresh)
    if listed:
        old = listed[0]
        age = "" if old.last_seen is None else f" but {format_seconds(max(0.0, asked.now - old.last_seen))} ago"
        reason = f"{old.words}; not seen at the last look{age}"
        return unknown("stale", reason, slurm=True, fail_closed=asked.fail_closed)
    if document.failing_rules:
        return _not_read(f"a rule fails ({document.failing_rules[0]})", asked)
    if document.unread:
        return _not_read(document.unread_words, asked)
    if blind := [fault for fault in document.faults if _is_blind(fault)]:
        return _not_read(and_more(blind), asked)
    if verdict.because is not None:
        return unknown(verdict.because, verdict.line, slurm=True, fail_closed=asked.fail_closed)
    return _answer(verdict.word, f"{verdict.line}; nothing on the drain list", asked)


def calls_for_drain(fault: Finding | Cause) -> bool:
    """Whether it is on the drain list, does not pass by itself, and has evidence that neither a program nor the
    configuration can cause."""
    return (
        fault.code in DRAIN_LIST
        and not any(fact.what == BY_CONFIGURATION for fact in fault.evidence)
        and not _may_pass(fault)
    )


def _may_pass(fault: Finding | Cause) -> bool:
    """Whether calls about a GPU that do not return now may still return."""
    is_failing = any(fact.what == CALLS_FAIL for fact in fault.evidence)
    return fault.code == "gpu_not_answering" and not is_failing and fault.seen_seconds < HANG_PASSES_SECONDS


def _is_fresh(fault: Finding | Cause, document: FindingsDocument) -> bool:
    """Whether a rule matched it at the last evaluation: one that is gone or not read stays open for a while."""
    if fault.last_seen is None or document.looked_at is None:
        return False
    return abs(fault.last_seen - document.looked_at) < _SAME_LOOK_SECONDS


def _answer(word: Word, reason: str, asked: Asked, drain_for: tuple[Finding | Cause, ...] = ()) -> Health:
    code = exit_code_of(word, slurm=asked.slurm, fail_closed=asked.fail_closed, drains=bool(drain_for))
    return Health(word, one_line(reason), code, drain_for=drain_for)


def _is_blind(fault: Finding | Cause) -> bool:
    return fault.code in BLIND and fault.component.key.partition("/")[0] not in OF_JOBS


def _not_read(reason: str, asked: Asked) -> Health:
    return unknown("not_read", reason, slurm=True, fail_closed=asked.fail_closed)


def one_line(text: str) -> str:
    """A text without line breaks and control characters: it goes to logs and terminals."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def drain_reason(faults: Iterable[Finding | Cause]) -> str:
    """The drain reason for Slurm: ``commwatch: nvlink_down: GPU0 link 3 (0000:17:00.0/3)``.

    Plain ASCII without quotes, at most 180 characters.
    """
    first, *others = faults
    text = f"{OUR_REASON} {first.code}: {first.component.words}" + (f"; and {len(others)} more" if others else "")
    return re.sub(r"[^ A-Za-z0-9_.,:;/()+-]", "?", one_line(text))[:_REASON_LENGTH]


OUR_REASON: Final = "commwatch:"
"""How the reasons begin that we give to Slurm."""
