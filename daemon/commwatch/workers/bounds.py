"""What the daemon takes of a worker process at most, whatever has become of that process: text, and which series."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.lines import printable
from commwatch.state.records import LONGEST_LABEL
from commwatch_exporters.snapshot import Series

MOST_DEVICES = 8192
"""Devices of one worker, over all its collectors."""
MOST_EARLY = 10
"""Batches of one collector that may come before they are due."""
MOST_WAITING = 1000
"""Batches of one collector that may wait in the socket, as after a time in which the daemon itself was not run."""
MOST_ALIASES = 8192
LARGEST_FRAME = 4 * 2**20
"""Bytes; the largest of b200x8 with all metrics has 340 kB."""
LONGEST_DETAIL = 1024
"""Characters of the details of a failure or an event."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a worker may fill the page with."""

    prefixes: tuple[str, ...] = ("commwatch_",)
    """Names of its metrics begin so."""
    most_series: int = 40_000
    """Of all its collectors and devices together."""
    largest_frame: int = LARGEST_FRAME
    """Bytes."""

    def checked(self, series: tuple[Series, ...]) -> tuple[Series, ...]:
        """Series as they may be shown: label values in one line, without what moves a terminal's cursor, not too long.

        Raises:
            ValueError: a name is none of its metrics.
        """
        for name, _ in series:
            if not name.startswith(self.prefixes):
                raise ValueError(f"a series {shortened(name, LONGEST_LABEL)!r}, which is not of this worker")
        if all(label.isprintable() and len(label) <= LONGEST_LABEL for _, labels in series for label in labels):
            return series
        return tuple([(name, tuple([shortened(label, LONGEST_LABEL) for label in labels])) for name, labels in series])


def shortened(text: str, most: int) -> str:
    """A text in one printable line of so many characters at most."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    return text if text.isprintable() else printable(text)
