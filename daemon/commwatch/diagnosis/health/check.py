"""The work of healthcheck: the daemon's answer, without one the kernel's, and the drain that may follow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from commwatch.config.settings import Config
from commwatch.diagnosis.health.answer import DrainRecord, PreflightRecord, answer_of, fault_records, print_answer
from commwatch.diagnosis.health.draining import drain
from commwatch.diagnosis.health.kernel import SOURCES, ask_kernel
from commwatch.diagnosis.health.kernel_facts import KernelFacts, judged
from commwatch.errors import CommwatchError
from commwatch.findings.api_documents import FindingsDocument, SnapshotDocument
from commwatch.findings.health import (
    Asked,
    Health,
    Preflight,
    drain_reason,
    exit_code_of,
    judge,
    one_line,
    unknown,
    with_preflight,
)  # fmt: skip
from commwatch.findings.verdict import WORDS
from commwatch.probes.gate.schedulers import find_daemons
from commwatch.probes.gate.slurm import node_name
from commwatch.state.answer import document_of
from commwatch.state.client import DaemonAbsent, ask_daemon
from commwatch.state.directory import state_path

if TYPE_CHECKING:
    from commwatch.diagnosis.marks.profiles import Purpose

DAEMON_SECONDS = 1.5
SNAPSHOT_SECONDS = 1.0
KERNEL_SECONDS = 2.0
TOTAL_SECONDS = 3.8
"""For everything but the start of Python and the end of a child that was killed: 5 s with these."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; see its help."""

    max_age: float
    """Age of the daemon's last evaluation, seconds."""
    slurm: bool = False
    drain: bool = False
    fail_closed: bool = False
    as_json: bool = False
    require: str = ""
    """A profile or a file with one; empty: none."""
    result_age: float = 0.0
    """Of the results that a profile is judged by, seconds."""
    alone_seconds: float | None = None
    """Seconds for which one GPU alone computes on a micro-batch; None: by the profile."""
    purpose: Purpose | None = None
    """The job's use of the profile's model; None: it trains."""


@dataclass(frozen=True, slots=True)
class _Found:
    health: Health
    said: FindingsDocument | None = None
    kernel: KernelFacts | None = None
    preflight: PreflightRecord | None = None


def check(options: Options, config: Config) -> int:
    """Ask the daemon, else the kernel; judge, drain where that is asked for and due, and say it.

    Returns:
        The exit code.
    """
    until = time.monotonic() + TOTAL_SECONDS
    asked = Asked(time.time(), options.max_age, options.slurm, options.fail_closed)
    state = state_path(config)
    try:
        if options.drain and not options.slurm:
            raise CommwatchError("--drain needs --slurm")
        if options.purpose and not options.require:
            raise CommwatchError("--for needs --require")
        found = _evaluate(state, config, asked)
        if options.require and found.said is not None:
            found = _with_preflight(found, options, config, state, asked)
    except Exception as error:
        # Any defect of ours: whatever it is, the node must not pay for it.
        reason = str(error) if isinstance(error, CommwatchError) else f"{type(error).__name__}: {error}"
        found = _Found(unknown("error", reason, slurm=asked.slurm, fail_closed=asked.fail_closed))
    health, said = found.health, found.said
    drained = _drain(health, config, until) if options.drain and health.drain_for else None
    document = msgspec.structs.replace(
        answer_of(health, state, asked.now),
        looked_at=said.looked_at if said else None,
        simulated=said.simulated if said else None,
        maintenance=said.maintenance if said else None,
        findings=fault_records(said.faults) if said else (),
        kernel=found.kernel.facts if found.kernel else (),
        unread=found.kernel.unread if found.kernel else (),
        preflight=found.preflight,
        drain=drained,
    )
    print_answer(document, as_json=options.as_json)
    return health.exit_code


def _evaluate(state: Path, config: Config, asked: Asked) -> _Found:
    try:
        answer = ask_daemon(state, "findings", DAEMON_SECONDS)
        said = document_of(answer, FindingsDocument)
        # The answer for a simulated node is simulated, whatever it says of itself.
        said = msgspec.structs.replace(said, simulated=said.simulated or config.simulation.preset or None)
    except DaemonAbsent as error:
        return _without_daemon(error.fact, config, asked)
    except CommwatchError as error:
        return _Found(unknown("no_answer", str(error), slurm=asked.slurm, fail_closed=asked.fail_closed))
    return _Found(judge(said, asked), said)


def _with_preflight(found: _Found, options: Options, config: Config, state: Path, asked: Asked) -> _Found:
    try:
        record = _preflight(options, config, state, asked.now)
    except Exception as error:
        # A defect here must not hide the daemon's answer about the node.
        said = str(error) if isinstance(error, CommwatchError) else f"{type(error).__name__}: {error}"
        record = PreflightRecord(profile=options.require, verdict="Unknown", reason=f"{options.require}: {said}")
    health = with_preflight(found.health, Preflight(record.verdict, record.reason), asked)
    return replace(found, health=health, preflight=record)


def _preflight(options: Options, config: Config, state: Path, now: float) -> PreflightRecord:
    """The verdict of a profile on the daemon's last results.

    Raises:
        CommwatchError: the daemon does not answer, or is of another version.
    """
    from commwatch.diagnosis.marks.floors import read_floors
    from commwatch.diagnosis.marks.profiles import Asked as AskedProfile
    from commwatch.diagnosis.marks.profiles import profile_of
    from commwatch.diagnosis.preflight import preflight
    from commwatch.findings.facts import Facts
    from commwatch.findings.history import CounterHistory

    snapshot = document_of(ask_daemon(state, "snapshot", SNAPSHOT_SECONDS), SnapshotDocument)
    facts = Facts(snapshot.node, CounterHistory({}), now)
    profile = profile_of(options.require)
    floors = read_floors(Path(config.marks)) if config.marks else None
    asked = AskedProfile(profile, options.alone_seconds, options.purpose or "training", floors)
    answer, checks = preflight(facts, asked, now, options.result_age)
    reason = one_line(answer.reason)
    return PreflightRecord(
        profile=profile.name, purpose=asked.purpose, verdict=answer.verdict, reason=reason, checks=checks
    )


def _without_daemon(why: str, config: Config, asked: Asked) -> _Found:
    """Only sysfs and the kernel log are left; they can show a fault, and never that all is well."""
    if config.simulation.preset:
        return _Found(unknown("no_daemon", why, slurm=asked.slurm, fail_closed=asked.fail_closed))
    sources = [name for name in SOURCES if getattr(config.sources, name).enabled]
    paths = config.paths
    exclude = config.sources.rdma.exclude
    read = asyncio.run(ask_kernel(Path(paths.sysfs), Path(paths.procfs), sources, KERNEL_SECONDS, exclude))
    kernel = judged(read, asked.now)
    grave = [fact for fact in kernel.facts if fact.severity != "info"]
    more = f"; and {len(grave) - 1} more" if len(grave) > 1 else ""
    if grave and not asked.slurm:
        word = WORDS[grave[0].severity]
        code = exit_code_of(word, slurm=False, fail_closed=asked.fail_closed)
        return _Found(Health(word, one_line(f"{grave[0].text}{more} ({why})"), code), kernel=kernel)
    if grave:
        reason = f"{why}; the kernel shows: {grave[0].text}{more}"
    elif kernel.unread:
        reason = f"{why}; the kernel could not be asked for everything: {kernel.unread[0]}"
    else:
        reason = f"{why}; sysfs and the kernel log show no fault"
    return _Found(unknown("no_daemon", reason, slurm=asked.slurm, fail_closed=asked.fail_closed), kernel=kernel)


def _drain(health: Health, config: Config, until: float) -> DrainRecord:
    """Drain this node for its fresh faults; what goes wrong is reported and changes no exit code."""
    try:
        name = node_name(config.probes.slurm_node, find_daemons(Path(config.paths.procfs)).slurmd)
        answer = asyncio.run(drain(name, drain_reason(health.drain_for), until - time.monotonic()))
    except Exception as error:
        # As above: a defect must not end in a code that says something else.
        return DrainRecord(False, f"{type(error).__name__}: {error}")
    return DrainRecord(answer.drained, one_line(answer.detail))
