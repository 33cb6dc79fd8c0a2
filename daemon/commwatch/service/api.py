"""What the daemon answers when it is asked for its findings, its score or its snapshot, over HTTP or the socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from commwatch import __version__
from commwatch.config.settings import Config
from commwatch.config.simulated import node_name
from commwatch.findings.api_documents import (
    FindingsDocument,
    ProbesDocument,
    ScoreDocument,
    SettingsDocument,
    SnapshotDocument,
    metric_records,
    probe_record,
)
from commwatch.jobs.settings.plan import JobSettings
from commwatch.service.judge import About, Judge
from commwatch.state.control import Handler
from commwatch_exporters.node_page.records import ProbeStatus
from commwatch_exporters.snapshot import Snapshot

_Give = Callable[[], msgspec.Struct]


class Answers:
    """The documents of this moment."""

    def __init__(
        self,
        config: Callable[[], Config],
        verdict: Callable[[], Judge],
        snapshot: Callable[[], Snapshot],
        maintenance: Callable[[], str | None],
        settings: Callable[[], JobSettings | None] = lambda: None,
        probes: Callable[[float], Sequence[ProbeStatus]] = lambda now: (),
    ) -> None:
        """
        Args:
            config: in force.
            verdict: of the engine that runs.
            snapshot: all that is current.
            maintenance: why the daemon is paused; None where it is not.
            settings: the audits of the engine that runs; None where it makes none.
            probes: of the engine that runs, at a time in seconds since 1970.
        """
        self._config = config
        self._verdict = verdict
        self._settings = settings
        self._snapshot = snapshot
        self._maintenance = maintenance
        self._probes = probes

    def pages(self) -> Mapping[str, Callable[[], bytes]]:
        """By path of the endpoint what gives its JSON."""
        given: dict[str, _Give] = {
            "/api/v1/findings": self.findings, "/api/v1/probes": self.probes, "/api/v1/snapshot": self.snapshot,
        }  # fmt: skip
        return {path: partial(_encoded, give) for path, give in given.items()}

    def operations(self) -> Mapping[str, Handler]:
        """By name of the operation of the control socket."""
        given: dict[str, _Give] = {
            "findings": self.findings, "probes": self.probes, "score": self.score, "settings": self.settings,
            "snapshot": self.snapshot,
        }  # fmt: skip
        return {name: _handler(give) for name, give in given.items()}

    def findings(self) -> FindingsDocument:
        """What is wrong."""
        return self._verdict().document(self._about())

    def probes(self) -> ProbesDocument:
        """What the probes gave last, and when they run next."""
        about = self._about()
        statuses = self._probes(about["time"])
        return ProbesDocument(**about, probes=tuple(probe_record(one, about["time"]) for one in statuses))

    def score(self) -> ScoreDocument:
        """How well the GPUs communicate."""
        verdict, about = self._verdict(), self._about()
        return ScoreDocument(
            **about, thresholds=verdict.thresholds.digest, looked_at=verdict.looked_at, score=verdict.score(),
            verdict=verdict.document(about).verdict,
        )  # fmt: skip

    def settings(self) -> SettingsDocument:
        """What the last audit of NCCL settings said."""
        settings = self._settings()
        if settings is None:
            return SettingsDocument(**self._about(), audited_at=None, audit=None)
        return SettingsDocument(**self._about(), audited_at=settings.audited_at, audit=settings.record())

    def snapshot(self) -> SnapshotDocument:
        """All series."""
        return SnapshotDocument(**self._about(), metrics=metric_records(self._snapshot()))

    def _about(self) -> About:
        preset = self._config().simulation.preset
        return {
            "version": __version__,
            "time": time.time(),
            "simulated": node_name(preset) if preset else None,
            "maintenance": self._maintenance(),
        }


def _encoded(give: _Give) -> bytes:
    return msgspec.json.encode(give())


def _handler(give: _Give) -> Handler:
    async def answer() -> msgspec.Struct:
        return give()

    return answer
