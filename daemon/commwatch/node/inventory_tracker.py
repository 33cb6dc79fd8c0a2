"""Follows what is here against what should be: the inventory and the state of each GPU."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from commwatch.errors import CommwatchError
from commwatch.node.down_links import Link
from commwatch.node.driver_tracker import DriverWatch
from commwatch.node.gpu_state import GROUP as STATES
from commwatch.node.gpu_state import failing_gpus, gpu_states, not_working, state_block
from commwatch.node.gpus_on_bus import GpusOnBus
from commwatch.node.inventory import IDENTITY, Inventory, Kind, LinkEnd
from commwatch.node.inventory_state import InventoryState
from commwatch.node.observation import Observation, observe_blocks
from commwatch.node.pcie_samples import COLLECTOR as PCIE_SAMPLES
from commwatch.node.run import Collector, Outcome, is_everywhere
from commwatch.node.silent_gpus import SilentGpus
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Block, Layout, Series
from commwatch_exporters.state_words import GPU_STATES, word_of

log = structlog.get_logger("commwatch.pipeline")

GROUP: Final = "inventory"
OBSERVE_SECONDS: Final = 10.0
"""Longest time between two observations while nothing fails."""
_OBSERVED: Final = (IDENTITY, "nvml_gpu", "nvml_nvlink", "nvml_pcie", "network", "rdma", "pci")
"""Collectors that read what is here."""
_FABRIC: Final = ("nvml_fabric", "services")
"""Those that say which GPUs wait for a partition."""


def _with_end(series: Series, known: Mapping[Link, LinkEnd]) -> Series:
    """The series of what a link is, with where it leads if that is known and not said."""
    metric, labels = series
    if metric != "commwatch_nvlink_info":
        return series
    gpu, address, link, version, _, remote, _ = labels
    return series if remote else (metric, (gpu, address, link, version, *known.get((address, link), labels[4:])))


class Suspecting(Protocol):
    """A reader whose processes may hang on a device."""

    @property
    def suspects(self) -> frozenset[str]:
        """Devices on which a process of it hangs."""


class InventoryTracker(Tracker):
    """
    Args:
        driver: whether it is to blame for GPUs that are not read.
        silent: GPUs that fail every call.
        driver_readers: the readers whose devices are GPUs.
        readers: all readers; the devices of the others may be interfaces, services or paths as well.
        is_virtual: the node is a virtual machine; None where that is not known.
        observe_seconds: longest time between two observations.
    """

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        bus: GpusOnBus,
        driver: DriverWatch,
        silent: SilentGpus,
        driver_readers: Collection[Suspecting] = (),
        readers: Collection[Suspecting] = (),
        *,
        is_virtual: bool | None = None,
        observe_seconds: float = OBSERVE_SECONDS,
    ) -> None:
        super().__init__(store)
        store.declare(GROUP, _OBSERVED)
        store.declare(STATES, [IDENTITY])
        self._inventory = inventory
        self._bus = bus
        self._driver = driver
        self._silent = silent
        self._driver_readers, self._readers = driver_readers, readers
        self._is_virtual = is_virtual
        self._observe_seconds = observe_seconds
        self._absences: dict[str, frozenset[Absence]] = {}
        """By collector: those of its last run."""
        self.silent_gpus: Mapping[str, float] = {}
        """The GPUs that fail every call while others answer, as ``SilentGpus.since``; else the driver is to blame."""
        self._working = Observation()
        """The inventory that was seen last, without the GPUs that do not work."""
        self._faulty_strangers = 0
        """GPUs that are faulty and were never read whole."""
        self._states: dict[tuple[str, str], int] = {}
        self.observed_at = float("-inf")
        """Monotonic seconds of the last observation."""

    def follows(self, collector: Collector) -> bool:
        return True

    def on_batch(self, outcome: Outcome) -> None:
        """Observe when it is time, with each identity, and at once where something else fails than before."""
        collector = outcome.collector
        absences = frozenset(outcome.collected.absences)
        changed = absences != self._absences.get(collector.name, frozenset()) or self._silent_now() != self.silent_gpus
        self._absences[collector.name] = absences
        identified = collector.name == IDENTITY
        if collector.source == "nvml" and not identified:
            # Its identity was dropped at this word, so the word holds until the identity is read again.
            of_devices = frozenset(one for one in absences if one.device and is_everywhere(one))
            self._absences[IDENTITY] = self._absences.get(IDENTITY, frozenset()) | of_devices
        if changed or identified or outcome.time - self.observed_at >= self._observe_seconds:
            self.observe(outcome.time)
        if identified:
            self._show_known_ends(outcome)

    def observe(self, now: float) -> None:
        """Compare what is here with what should be.

        Args:
            now: monotonic seconds.
        """
        self.observed_at = now
        seen = self._seen()
        if self._driver.hides_gpus:
            seen = replace(seen, gpus=None)  # one fault of the driver, and not one of each GPU
        states = self._judge_gpus(seen, now)
        if learned := self._inventory.observe(self._working, now):
            log.info("learned what to expect", what=learned)
        self.version = self._inventory.learned
        self._store.show(GROUP, "", self._inventory.readings(self._faulty_strangers), now)
        self._store.put(STATES, "", states)

    def _show_known_ends(self, outcome: Outcome) -> None:
        """Show the far ends of links that are down, which neither the driver nor a reader that has started since then
        knows."""
        known = self._inventory.link_ends()
        for device, block in outcome.collected.blocks.items():
            series = [_with_end(one, known) for one in block.layout.series]
            if series != list(block.layout.series):
                known_ends = Block(Layout(series), block.values, block.time)
                self._store.put(IDENTITY, device, known_ends, outcome.collector.lifetime)

    def _seen(self) -> Observation:
        groups = {name: self._store.group(name) for name in (*_OBSERVED, *_FABRIC)}
        # An empty batch leaves the driver's own block: without any block the driver lists nothing.
        answered = frozenset(name.removeprefix("nvml_") for name, blocks in groups.items() if blocks)
        blocks = [block for blocks in groups.values() for block in blocks.values()]
        seen = observe_blocks(blocks, answered, self._is_virtual)
        is_short = seen.gpus is not None and len(seen.gpus) < max(seen.gpus_on_boards or 0, self.expects("gpu"))
        # How many of the GPUs on a board are ours is not known where some were handed to virtual machines.
        handed_on = is_short and self._bus.gpus().handed_on
        return replace(seen, gpus_on_boards=None, is_handed_on=True) if handed_on else seen

    def _judge_gpus(self, seen: Observation, now: float) -> Block:
        """The states of the GPUs as a block; kept is what else follows from them."""
        # Samples may find a GPU lost for minutes after it has come back, as their process is renewed by itself.
        of_driver = {name for name in self._absences if name.startswith("nvml_")} - {PCIE_SAMPLES}
        absences = frozenset().union(*(self._absences[name] for name in of_driver))
        silent = self.silent_gpus = self._silent_now()
        known = self._inventory.state.gpus
        gpus = {gpu.pci_bus_id for gpu in known.values()} | {gpu.pci_bus_id for gpu in seen.gpus or ()}
        suspects = frozenset().union(*(reader.suspects for reader in self._readers)) & gpus
        suspects = suspects.union(*(reader.suspects for reader in self._driver_readers)) - {""}
        named = {*(one.device for one in absences), *suspects}
        on_bus = self._bus.to_list() if any(one.startswith("index:") for one in named) else frozenset()
        self._states = gpu_states(known, seen, absences, suspects | silent.keys(), on_bus)
        self._working = seen.without(not_working(self._states))
        strangers = self._states.keys() - {(str(gpu.index), gpu.pci_bus_id) for gpu in known.values()}
        self._faulty_strangers = sum(self._states[one] != 0 for one in strangers)
        offset = time.time() - time.monotonic()
        since = {device: round(read + offset, 3) for device, read in silent.items()}
        return state_block(self._states, known, seen, now, failing_gpus(known, seen, absences, on_bus), since, on_bus)

    def pause(self) -> None:
        """Forget what could not be read."""
        self._absences.clear()

    def _silent_now(self) -> Mapping[str, float]:
        return {} if self._driver.hides_gpus else self._silent.since

    @property
    def state(self) -> InventoryState:
        """To keep over a restart."""
        return self._inventory.state

    def expects(self, kind: Kind) -> int:
        """Parts of a kind that this node should have; 0 where nothing was learned."""
        return self._inventory.due(kind) or 0

    def accept(self) -> list[str]:
        """Expect what is here now; returns what is given up, in sentences.

        Raises:
            CommwatchError: a GPU cannot be judged now, or the acceptance cannot be saved.
        """
        silent = [pci_bus_id or f"index {gpu}" for (gpu, pci_bus_id), state in self._states.items() if state == 1]
        if silent:
            raise CommwatchError(f"GPU {', '.join(silent)} does not answer, which is not gone: nothing was accepted")
        if self.expects("gpu") and self._inventory.present()["gpu"] is None:
            raise CommwatchError("the GPUs are not read now (paused, or no driver): nothing was accepted")
        given_up = self._inventory.accept()
        for sentence in given_up:
            log.warning("accepted", what=sentence)
        self.observe(time.monotonic())
        return given_up

    def describe(self) -> dict[str, Any]:
        """Counts by kind, where each expectation comes from, and what is missing in sentences."""
        expected, present = self._inventory.expected(), self._inventory.present()
        origins, learning = self._inventory.origins(), self._inventory.learning_seconds()
        return {
            "kinds": {
                kind: {
                    "expected": expected[kind],
                    "present": present[kind],
                    "source": origins.get(kind),
                    "learning_seconds": round(learning[kind]),
                }
                for kind in expected
            },
            "missing": [*self._missing_gpus(), *self._missing_parts(expected, present), *self._inventory.odd()],
        }

    def _missing_gpus(self) -> list[str]:
        return [
            f"GPU{gpu or '?'} ({pci_bus_id or 'address not known'}): {word_of(GPU_STATES, state)}"
            for (gpu, pci_bus_id), state in self._states.items()
            if state
        ]

    def _missing_parts(self, expected: Mapping[Kind, int | None], present: Mapping[Kind, int | None]) -> list[str]:
        named = {"gpu": len(self._missing_gpus())}
        return [
            f"{kind.replace('_', ' ')}: {here} of {due} expected"
            for kind, due in expected.items()
            if due is not None and (here := present[kind]) is not None and here < due - named.get(kind, 0)
        ]
