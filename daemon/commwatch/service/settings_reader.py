"""The reader of the audit of NCCL settings: its process lives for one audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from commwatch.node.run import Collected
from commwatch.workers.reader import Reader, ReaderEvents, ReaderSettings


class SettingsReader(Reader):
    """A reader whose process lives for one audit: its memory is large for rare work."""

    def __init__(self, settings: ReaderSettings, events: ReaderEvents, nothing: Callable[[], Collected | None]) -> None:
        """Args:
        nothing: what a run gives without a process; None where one is needed.
        """
        super().__init__(settings, events)
        self._nothing = nothing

    def order(self, collector: str, every: float) -> None:
        """See ``Reader.order``: audits are jobs of the daemon's scheduler, as each has a process of its own."""

    async def now(self, collector: str) -> Collected:
        """See ``Reader.now``."""
        if (nothing := self._nothing()) is not None:
            nothing = replace(nothing, collector=collector)
            self.keeper.keep(nothing)
            return nothing
        collected = await super().now(collector)
        await self.rest()
        return collected
