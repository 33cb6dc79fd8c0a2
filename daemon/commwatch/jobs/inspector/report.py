"""The report on each process that the source of Inspector's files hands to the daemon beside its readings."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

COLLECTOR: Final = "nccl_inspector"
"""Of the source, and of its only collector."""
MOST_FILES: Final = 256
"""Files that were written last; the others are left out."""

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e10)]
Ratio: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class ProcessReport(msgspec.Struct, frozen=True):
    """One process, or one GPU of a .prom file, for the daemon, which knows the GPU and the job."""

    pid: int = 0
    """As the process itself counts; 0 for a .prom file."""
    is_here: bool = False
    """Whether its host name is that of this node, so that ids of its processes are."""
    uuid: str = ""
    """Of the GPU of a .prom file."""
    owner: int = -1
    """User who owns the file: it says nothing of processes of others."""
    newest_age: Seconds | None = None
    """Seconds since the newest record; None where none was seen."""
    share: Ratio | None = None
    """See ``Result.share``."""
    waits_seconds: Seconds | None = None
    """See ``Waiting.seconds``."""
    last_ratio: Ratio | None = None
    """See ``Waiting.last_ratio``."""


class InspectorReport(msgspec.Struct, frozen=True):
    processes: Annotated[tuple[ProcessReport, ...], Meta(max_length=MOST_FILES)] = ()
