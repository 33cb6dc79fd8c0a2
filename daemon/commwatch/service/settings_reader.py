"""The reader of the audit of NCCL settings: its process lives for one audit."""

from __future__ import annotations

from collections.abc import Callable

from commwatch.node.run import Collected
from commwatch.workers.reader import Reader, ReaderEvents, ReaderSettings


class SettingsReader(Reader):
    """A reader whose process lives for one audit: what it needs is much for what is done so rarely."""

    def __init__(self, settings: ReaderSettings, events: ReaderEvents, nothing: Callable[[], Collected | None]) -> None:
        """Args:
        nothing: what a run gives without a process; None where one is needed.
        """
        super().__init__(settings, events)
        self._nothing = nothing

    async def collect(self, collector: str, every: float = 0.0) -> Collected:
        """See ``Reader.collect``."""
        if (nothing := self._nothing()) is not None:
            return nothing
        collected = await super().collect(collector)
        await self.rest()
        return collected
