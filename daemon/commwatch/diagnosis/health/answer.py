"""The answer of healthcheck: counted if it is unknown, and printed as one line or as JSON."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.health.counts import count_unknown
from commwatch.diagnosis.health.kernel_facts import KernelFact
from commwatch.errors import StateError
from commwatch.findings.finding import Cause, Finding, Severity
from commwatch.findings.health import Health, calls_for_drain, unknown
from commwatch.findings.verdict import Because, Word
from commwatch.state.directory import default_state_path
from commwatch.views.terminal import print_json

HEALTH_SCHEMA: Literal["commwatch-health/1"] = "commwatch-health/1"


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    title: str
    severity: Severity
    component: str
    """In words."""
    since: float | None
    """Seconds since 1970; None of a cause."""
    last_seen: float | None
    is_cause: bool
    calls_for_drain: bool
    """Whether it is on the drain list, however old it is."""


class DrainRecord(msgspec.Struct, frozen=True):
    """The result of ``--drain``."""

    drained: bool
    detail: str


class PreflightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``--require``."""

    profile: str
    purpose: str = "training"
    """The job's use of the model."""
    verdict: Word
    reason: str
    checks: tuple[Check, ...] = ()
    """The marks and what the profile asks for, one by one."""


class HealthDocument(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["commwatch-health/1"] = HEALTH_SCHEMA
    verdict: Word
    reason: str
    exit_code: int
    because: Because | None
    """Why it is unknown."""
    counted: bool | None
    """Whether an unknown was counted; None where there is nothing to count."""
    time: float
    """Of the answer, seconds since 1970."""
    looked_at: float | None = None
    """When the daemon's rules ran last."""
    simulated: str | None = None
    maintenance: str | None = None
    findings: tuple[FaultRecord, ...] = ()
    """Of the daemon, with causes."""
    kernel: tuple[KernelFact, ...] = ()
    """Facts from sysfs and the kernel log; without a daemon only."""
    unread: tuple[str, ...] = ()
    """Sources among them that could not be read."""
    preflight: PreflightRecord | None = None
    """None where ``--require`` was not given or the daemon did not answer."""
    drain: DrainRecord | None = None
    """None where ``--drain`` was not given or there was nothing to drain for."""


def fault_records(faults: Iterable[Finding | Cause]) -> tuple[FaultRecord, ...]:
    """Findings and causes as they are printed."""
    return tuple(
        FaultRecord(
            code=fault.code, title=fault.title, severity=fault.severity, component=fault.component.words,
            since=fault.since if isinstance(fault, Finding) else None, last_seen=fault.last_seen,
            is_cause=isinstance(fault, Cause), calls_for_drain=calls_for_drain(fault),
        )
        for fault in faults
    )  # fmt: skip


def answer_of(health: Health, state: Path, now: float) -> HealthDocument:
    """The answer with what every one has; an unknown is counted in the state directory."""
    return HealthDocument(
        verdict=health.verdict, reason=health.reason, exit_code=health.exit_code, because=health.because,
        counted=_counted(health, state), time=now,
    )  # fmt: skip


def _counted(health: Health, state: Path) -> bool | None:
    """Count an unknown; what keeps it from being counted is reported on standard error and changes nothing else."""
    if health.because is None:
        return None
    try:
        count_unknown(state, health.because)
    except StateError as error:
        with suppress(OSError):
            print(f"commwatch healthcheck: not counted: {error}", file=sys.stderr)
        return False
    return True


def print_answer(document: HealthDocument, *, as_json: bool) -> None:
    """One line, or the document as JSON."""
    if as_json:
        print_json(document)
    else:
        said = "" if document.drain is None else f"; {_drained(document.drain)}"
        print(f"{document.verdict}: {document.reason}{said}")
    sys.stdout.flush()


def _drained(drain: DrainRecord) -> str:
    return drain.detail if drain.drained else f"not drained: {drain.detail}"


def _silence_output() -> None:
    """Let what cannot be written go nowhere: Python would end with a code of its own otherwise."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# --- errors of healthcheck itself must not look like a problem of the node ---


def guarded(arguments: Sequence[str], run: Callable[[], int]) -> int:
    """Run the command; wrong use, a configuration that cannot be read and defects are unknown.

    A scheduler that calls it with a misspelt option would drain the whole cluster by an exit code that says no.
    """
    try:
        return run()
    except SystemExit as end:  # of the parser
        if not end.code:
            return 0
        return _answer(_of(arguments, "wrong use of the command; standard error says what"), arguments)
    except OSError as error:
        _silence_output()  # it may be this that failed
        return _answer(_of(arguments, f"output or files: {error}"), arguments)
    except Exception as error:
        # Any defect of ours: whatever it is, the node must not pay for it.
        return _answer(_of(arguments, f"{type(error).__name__}: {error}"), arguments)


def _of(arguments: Sequence[str], reason: str) -> Health:
    return unknown("error", reason, slurm="--slurm" in arguments, fail_closed="--fail-closed" in arguments)


def _answer(health: Health, arguments: Sequence[str]) -> int:
    try:
        print_answer(answer_of(health, _state(arguments), time.time()), as_json="--json" in arguments)
    except OSError:
        _silence_output()
    return health.exit_code


def _state(arguments: Sequence[str]) -> Path:
    """The state directory as far as it is known without a configuration."""
    for place, word in enumerate(arguments):
        if word == "--path.state" and place + 1 < len(arguments):
            return Path(arguments[place + 1])
        if word.startswith("--path.state="):
            return Path(word.partition("=")[2])
    named = os.environ.get("COMMWATCH_PATH_STATE")
    return Path(named) if named else default_state_path()
