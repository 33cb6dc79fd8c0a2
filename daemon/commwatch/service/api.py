"""The daemon's documents for HTTP and the control socket: findings, score, probes, settings, snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from commwatch import __version__
from commwatch.config.simulated import node_name
from commwatch.findings.api_documents import (
    FindingsDocument,
    JobsDocument,
    ProbeRecord,
    ProbesDocument,
    ScoreDocument,
    SettingsDocument,
    SnapshotDocument,
    metric_records,
)
from commwatch.probes.results.records import ProbeStatus
from commwatch.service.engine import Engine
from commwatch.state.control import Question


class Answers:
    """The documents of this moment."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        """Of the configuration in force."""

    def pages(self) -> Mapping[str, Callable[[], bytes]]:
        """By path of the endpoint what gives its JSON."""
        given: dict[str, Callable[[], msgspec.Struct]] = {
            "/api/v1/findings": self.findings, "/api/v1/probes": self.probes, "/api/v1/snapshot": self.snapshot,
        }  # fmt: skip
        pages = {path: partial(_encoded, give) for path, give in given.items()}
        index = msgspec.json.encode({"documents": list(given)})
        return {**pages, "/api/v1": lambda: index, "/api/v1/": lambda: index}

    def operations(self) -> Mapping[str, Question]:
        """By name of the operation of the control socket."""
        return {
            "inventory": self.inventory, "findings": self.findings, "jobs": self.jobs, "probes": self.probes,
            "score": self.score, "settings": self.settings, "snapshot": self.snapshot,
        }  # fmt: skip

    def inventory(self) -> dict[str, Any]:
        """The document of ``commwatch inventory``."""
        return self.engine.inventory()

    def findings(self) -> FindingsDocument:
        """The open findings, with the verdict."""
        return self.engine.verdict.document(self._about())

    def jobs(self) -> JobsDocument:
        """The jobs that move no data, with their processes."""
        jobs = self.engine.pipeline.stuck_jobs.suspected()
        pids = {pid for these in self.engine.store.occupants.values() for pid in these}
        others = pids - {one.pid for job in jobs for one in job.ranks}
        return JobsDocument(**self._about(), jobs=jobs, others=tuple(sorted(others)))

    def probes(self) -> ProbesDocument:
        """The last result of each probe and the time of its next run."""
        about = self._about()
        statuses = self.engine.probing.status(about["time"])
        return ProbesDocument(**about, probes=tuple(probe_record(one, about["time"]) for one in statuses))

    def score(self) -> ScoreDocument:
        """How well the GPUs communicate."""
        judge, about = self.engine.verdict, self._about()
        return ScoreDocument(
            **about, thresholds=judge.thresholds.digest, looked_at=judge.looked_at, score=judge.score(),
            verdict=judge.document(about).verdict,
        )  # fmt: skip

    def settings(self) -> SettingsDocument:
        """The result of the last audit of NCCL settings."""
        settings = self.engine.job_settings
        return SettingsDocument(**self._about(), audited_at=settings.audited_at, audit=settings.record())

    def snapshot(self) -> SnapshotDocument:
        """All series."""
        return SnapshotDocument(**self._about(), metrics=metric_records(self.engine.whole_snapshot()))

    def _about(self) -> dict[str, Any]:
        """The fields of ``About``."""
        preset = self.engine.config.simulation.preset
        return {
            "version": __version__,
            "time": time.time(),
            "simulated": node_name(preset) if preset else None,
            "maintenance": self.engine.store.maintenance,
        }


def _encoded(give: Callable[[], msgspec.Struct]) -> bytes:
    return msgspec.json.encode(give())


def probe_record(status: ProbeStatus, now: float) -> ProbeRecord:
    """A probe as the document has it, at seconds since 1970."""
    age, left = status.age_seconds, status.next_run_seconds
    return ProbeRecord(
        name=status.name,
        backend=status.backend,
        last_result=status.last_result,
        last_completion_at=None if age is None else now - age,
        next_run_at=None if left is None else now + left,
        skip_reason=status.skip_reason,
    )
