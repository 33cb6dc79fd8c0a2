"""Recent rises of the counters that page, as series that exist only while there is one.

A rule that looks for a first error would read the zeros of all links and devices at each evaluation; of these it reads
none while nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commwatch.node.rises import Rises
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Series

GROUP: Final = "recent_errors"
METRICS: Final[Mapping[str, str]] = {
    f"commwatch_{name}_total": f"commwatch_{name}_recent"
    for name in (
        "nvlink_recoveries_failed", "pcie_aer_errors", "pcie_aer_root_port_errors", "pcie_fatal_errors",
    )
}  # fmt: skip
"""Counters for which any rise is a page, with the metric that shows it."""
_AER: Final = "commwatch_pcie_aer_errors_recent"
_DEVICES: Final = "pci"
"""The collector of the devices that are here and of the ports above them."""
_HARMLESS: Final = frozenset({"correctable", "nonfatal"})
"""Severities of AER that are no page: their counters move on healthy nodes too."""


class RecentErrors(Tracker):
    """The rises of counters that make a page, put into the store while they are recent.

    The first reading is compared with what an earlier daemon read last; where there was none, nothing says when that
    came which the counter shows, and it is no news.

    Args:
        before: what counters showed last to an earlier daemon in this boot.
    """

    collectors = ("nvml_nvlink_errors", "nvml_pcie", "pci_aer")
    """They read these counters."""

    def __init__(self, store: Store, seconds: float, before: Mapping[Series, float]) -> None:
        super().__init__(store)
        store.declare(GROUP)
        self._rises: Rises[Series] = Rises(seconds)
        for series, total in before.items():
            self._rises.take(series, total, 0.0)

    def on_batch(self, outcome: Outcome) -> None:
        """Take what one run of a collector gave."""
        for block in outcome.collected.blocks.values():
            for family in METRICS.keys() & block.layout.families.keys():
                for labels, total in block.samples(family):
                    if not _HARMLESS.intersection(labels):
                        self._rises.take((family, labels), total, block.time)
        risen = self._rises.within(outcome.time)
        recent = {(METRICS[family], labels): rise for (family, labels), rise in risen.items()}
        self._leave_out_upper_ends(recent)
        self._store.show(GROUP, "", recent, outcome.time)

    def _leave_out_upper_ends(self, recent: dict[Series, int | float]) -> None:
        """An error that both ends of a link report is one fault, reported for the lower end: the upper has other
        links."""
        reporting = {labels[0] for name, labels in recent if name == _AER}
        for block in self._store.group(_DEVICES).values() if reporting else ():
            for device, _, parent, *_ in block.labels("commwatch_pcie_device_info"):
                if device in reporting and parent in reporting:
                    for series in [one for one in recent if one[0] == _AER and one[1][0] == parent]:
                        del recent[series]
