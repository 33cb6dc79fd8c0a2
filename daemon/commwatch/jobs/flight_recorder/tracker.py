"""Keeps the verdicts of the newest dumps, and logs each once."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import structlog

from commwatch.jobs.flight_recorder.verdict import Verdict
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker

log = structlog.get_logger("commwatch.flight_recorder")

SOURCE: Final = "flight_recorder"
"""Of the source, and of its only collector."""
_LONGEST: Final = 4096
_Verdicts = Annotated[tuple[Verdict, ...], msgspec.Meta(max_length=64)]


class FlightRecorderVerdicts(Tracker):
    """The verdicts of the newest dumps.

    Args:
        store: of the node; no group of it is this tracker's.
    """

    collectors = (SOURCE,)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.latest: tuple[Verdict, ...] = ()
        """The likeliest cause first; empty where no rank waits in the dumps, or there are none."""
        self.time = float("-inf")
        """When they were judged, monotonic seconds."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take the verdicts of a run that has new ones."""
        if outcome.collected.audit is None:
            return
        try:
            verdicts = msgspec.json.decode(outcome.collected.audit, type=_Verdicts)
        except (ValueError, RecursionError) as error:
            log.error("the verdicts on dumps are not known: the source returned no such record",
                      error=type(error).__name__)  # fmt: skip
            return
        for one in verdicts:
            if one not in self.latest:
                log.warning(
                    "ranks of a job wait", verdict=one.kind, certain=one.is_certain, ranks=one.ranks[:64],
                    group=one.group[:256], operation=one.operation[:256], detail=one.detail[:_LONGEST])  # fmt: skip
        self.latest, self.time = verdicts, outcome.time
