"""Follows which GPUs do not measure their PCIe traffic themselves (GPM), so that it must be sampled."""

from __future__ import annotations

from typing import Final

from commwatch.node.inventory import IDENTITY
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker

COLLECTOR: Final = "nvml_pcie_sampled"
_GPM: Final = "nvml_gpm"


class WithoutGpm(Tracker):
    """Whether any GPU of the node is without GPM: it then gives nothing to ``nvml_gpm``, not even a failure."""

    collectors = (_GPM,)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._gpus: frozenset[str] = frozenset()
        """PCI addresses."""

    @property
    def why_not_sampled(self) -> str | None:
        """Why PCIe traffic need not be sampled; None where it must be."""
        return None if self._gpus else "no GPU was read that does not measure its PCIe traffic itself (GPM)"

    def on_batch(self, outcome: Outcome) -> None:
        """Compare the GPUs that gave something with those that are here; a run that was cut short shows nothing."""
        collected = outcome.collected
        failed = {absence.device for absence in collected.absences}
        if "" not in failed and not collected.is_cut_short:
            self._gpus = frozenset(self._store.devices(IDENTITY) - {""} - collected.blocks.keys() - failed)
