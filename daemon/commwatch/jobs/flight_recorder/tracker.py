"""Keeps the verdicts of the newest dumps, and logs each once."""

from __future__ import annotations

import msgspec
import structlog

from commwatch.jobs.flight_recorder.report import COLLECTOR, JobVerdict, JobVerdicts, shortened
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker

log = structlog.get_logger("commwatch.flight_recorder")


class FlightRecorderVerdicts(Tracker):
    """The verdicts of the newest dumps.

    Args:
        store: of the node; no group of it is this tracker's.
    """

    collectors = (COLLECTOR,)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.latest: tuple[JobVerdict, ...] = ()
        """The likeliest cause first; empty where no rank waits in the dumps, or there are none."""
        self.time = float("-inf")
        """When they were judged, monotonic seconds."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take the verdicts of a run that has new ones."""
        if outcome.collected.audit is None:
            return
        try:
            told = msgspec.json.decode(outcome.collected.audit, type=JobVerdicts)
        except (ValueError, RecursionError) as error:
            log.error("the verdicts on dumps are not known: the source returned no such record",
                      error=type(error).__name__)  # fmt: skip
            return
        verdicts = tuple(msgspec.structs.replace(one, verdict=shortened(one.verdict)) for one in told)
        known = [(one.series, one.verdict) for one in self.latest]
        for found in verdicts:
            one = found.verdict
            if (found.series, one) not in known:
                log.warning(
                    "ranks of a job wait", verdict=one.kind, certain=one.is_certain, ranks=one.ranks, group=one.group,
                    operation=one.operation, detail=one.detail)  # fmt: skip
        self.latest, self.time = verdicts, outcome.time
