"""The facts of a diagnosis: the daemon's state, and the later measurements of a full scan."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from commwatch.config.settings import Config
from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.judged import Matches, matched_by
from commwatch.diagnosis.marks.profiles import ALL_PROFILES, Asked
from commwatch.errors import CommwatchError, ExitCode
from commwatch.findings.api_documents import (
    FindingsDocument,
    JobsDocument,
    ScoreDocument,
    SettingsDocument,
    SnapshotDocument,
)
from commwatch.findings.codes import WATCHED
from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch.jobs.evidence import JobEvidence, SuspectedJob
from commwatch.probes.plan import CycleResult, Measured, Skipped, Yielded
from commwatch.state.answer import document_of
from commwatch.state.client import DaemonAbsent, ask_daemon
from commwatch.state.directory import state_path
from commwatch_exporters.node.parts import AnyColumn

if TYPE_CHECKING:
    from commwatch.node.topology.pair_matrix import PairMatrix
    from commwatch.probes.by_hand.answer import Answer
    from commwatch.probes.by_hand.trial import SettingTrial

_DAEMON_SECONDS = 1.5
"""For each answer in a quick diagnosis; a daemon that hangs gives none, one on a busy node gives all of them late."""

OWN_FAILURES = frozenset({"start", "internal"})
"""Reasons of failures that come before any GPU is touched: a lock or a process of ours, and no fault of the node."""

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is asked for its size alone

_Document = TypeVar("_Document", bound=msgspec.Struct)


class Rise(NamedTuple):
    """A counter that rose while the load ran."""

    column: AnyColumn
    where: str
    """``GPU3``, ``GPU3 link 2``, a PCI address."""
    what: str
    """The policy, if it limited the clocks; else a key of the counter, or empty."""
    by: float
    """In the counter's unit."""


@dataclass(frozen=True, slots=True)
class Stress:
    seconds: float
    """Asked for."""
    answer: Answer
    """Its rows are the slices of the run, each a bandwidth of its own."""
    rises: tuple[Rise, ...] | None
    """None where the daemon did not answer afterwards."""
    samples: int
    """How often the daemon was asked while the load ran, and answered."""
    held: Mapping[str, tuple[str, ...]]
    """By GPU the reasons that limited its clocks at any of these evaluations."""
    slow_links: tuple[str, ...]
    """``PCIe link of GPU2``: below its generation at any of these evaluations, under load."""


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of this process and its mounts: a job in a container, or of a scheduler, may have others."""

    locked_memory: float | None
    """Bytes that a process may pin; infinite where there is no limit; None where not read."""
    shared_memory: int | None
    """Size of ``/dev/shm`` in bytes; None where it is not mounted."""
    shared_memory_free: int | None
    """Bytes of it that are free."""


@dataclass(frozen=True)
class Known:
    """The facts that the branches of a diagnosis read."""

    findings: FindingsDocument
    score: ScoreDocument
    snapshot: SnapshotDocument
    thresholds: Thresholds
    matrix: PairMatrix | None = None
    """The last one of the daemon while it is current, or that of the full scan."""
    scanned: tuple[Answer, ...] = ()
    """Results of the probes of a full scan; empty in a quick diagnosis."""
    stress: Stress | None = None
    """Result of a stress run; None without one."""
    lost: str = ""
    """Why the daemon did not answer after a full scan, so that all but the fresh values is from before it."""
    asked: Asked = ALL_PROFILES
    """The profiles that the node is compared with."""

    settings: SettingsDocument | None = None
    """Result of the last audit of the jobs' NCCL settings; None if it was not requested."""
    host: HostLimits | None = None
    """Limits that this command meets itself; None of a simulated node, which is another one."""
    jobs: tuple[SuspectedJob, ...] = ()
    """Jobs that move no data, as the daemon knows them."""
    other_processes: tuple[int, ...] = ()
    """Processes on the GPUs that are of none of these jobs."""
    job_evidence: Mapping[str, tuple[JobEvidence, ...]] = field(default_factory=dict)
    """What this command learned about them, by the PCI address of the job's lowest GPU."""
    trials: tuple[SettingTrial, ...] = ()
    """Gains of NCCL settings on this node by ``probe --with``, the oldest first."""

    @cached_property
    def facts(self) -> Facts:
        """The snapshot as the rules read it; no counter has a past in it."""
        return Facts(self.snapshot.node, CounterHistory(WATCHED), self.snapshot.time)

    @cached_property
    def matched(self) -> Matches:
        """The matches of the rules on this node, open or not yet, the worst first."""
        return matched_by(self.findings, self.facts, self.thresholds)


def why_not(result: CycleResult) -> str:
    """Why there is no result, as a sentence begins: ``Skipped: gpu_busy: GPU1 has a process``."""
    if isinstance(result, Measured):
        return "Several ranks share a GPU: times say nothing"
    word = "Skipped" if isinstance(result, Skipped) else "Gave way" if isinstance(result, Yielded) else "Could not run"
    return f"{word}: {result.reason}: {result.detail}"


def read_host_limits() -> HostLimits:
    """Read them: ``ulimit -l`` and the size of ``/dev/shm``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        shared = os.statvfs(_SHARED_MEMORY) if os.path.ismount(_SHARED_MEMORY) else None
    except OSError:
        shared = None
    return HostLimits(
        locked_memory=float("inf") if soft == resource.RLIM_INFINITY else float(soft),
        shared_memory=None if shared is None else shared.f_blocks * shared.f_frsize,
        shared_memory_free=None if shared is None else shared.f_bavail * shared.f_frsize,
    )


def ask(config: Config, thresholds: Thresholds, seconds: float | None = None) -> Known:
    """The daemon's current facts.

    Args:
        seconds: that the daemon has for each of its answers; None: 1.5.

    Raises:
        DaemonAbsent: no daemon runs with this state directory.
        CommwatchError: it does not answer, or is of another version: neither a fault of the node nor its health.
    """
    from commwatch.probes.by_hand.trial import known_trials

    seconds = _DAEMON_SECONDS if seconds is None else seconds
    findings = _asked(config, "findings", FindingsDocument, seconds)
    score = _asked(config, "score", ScoreDocument, seconds)
    snapshot = _asked(config, "snapshot", SnapshotDocument, seconds)
    settings = _asked(config, "settings", SettingsDocument, seconds)
    jobs = _asked(config, "jobs", JobsDocument, seconds)
    return Known(
        findings, score, snapshot, thresholds, _current_matrix(config, snapshot.time), settings=settings,
        host=read_host_limits() if snapshot.simulated is None else None, jobs=jobs.jobs,
        other_processes=jobs.others, trials=known_trials(config),
    )  # fmt: skip


def _asked(config: Config, operation: str, kind: type[_Document], seconds: float) -> _Document:
    try:
        return document_of(ask_daemon(state_path(config), operation, seconds), kind)
    except DaemonAbsent:
        raise
    except CommwatchError as error:
        raise CommwatchError(str(error), ExitCode.NOT_KNOWN) from error


def _current_matrix(config: Config, now: float) -> PairMatrix | None:
    from commwatch.node.topology.measured import is_stale
    from commwatch.probes.by_hand.pair_matrix import last_matrix, pairs_interval

    matrix = last_matrix(config)
    return None if matrix is None or is_stale(now - matrix.taken_at, pairs_interval(config)) else matrix
