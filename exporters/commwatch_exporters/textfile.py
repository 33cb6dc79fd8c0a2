"""The metrics as a file for node_exporter's textfile collector, for nodes where a port is unwanted."""

from __future__ import annotations

from commwatch_exporters.prometheus import Format, node_text
from commwatch_exporters.snapshot import Snapshot


def textfile_page(snapshot: Snapshot) -> bytes:
    """The page as text 0.0.4, without timestamps.

    ``process_*`` is not in it: node_exporter has these of itself, and a second one of that name and no other label is
    an error of its whole page.
    """
    return node_text(snapshot, Format.TEXT).encode()
