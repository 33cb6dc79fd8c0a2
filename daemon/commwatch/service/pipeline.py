"""The analysis that follows each run of a collector: use, inventory and the state of the GPUs, into the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import structlog

from commwatch.config.settings import Config
from commwatch.config.settings import Inventory as InventorySection
from commwatch.errors import CommwatchError
from commwatch.jobs.logs.tracker import JobLogs, JobLogsState
from commwatch.node.anomaly_tracker import Anomalies
from commwatch.node.driver_tracker import DriverWatch
from commwatch.node.gpu_state import failing_gpus, gpu_states, not_working, state_block
from commwatch.node.hardware_event_tracker import HardwareLog
from commwatch.node.hardware_events import RECENT_SECONDS, HardwareEventsState
from commwatch.node.inventory import Inventory
from commwatch.node.inventory_state import InventoryState
from commwatch.node.job_use import JobUse
from commwatch.node.link_flaps import FlapsState, LinkFlaps
from commwatch.node.link_shares import Shares
from commwatch.node.links_down import LinksDown
from commwatch.node.observation import Observation, observe_blocks
from commwatch.node.pcie_tracker import PcieLinks
from commwatch.node.port_flaps import Flaps
from commwatch.node.rate import ResetWatch
from commwatch.node.recent_errors import RecentErrors
from commwatch.node.run import Collector, Outcome, is_everywhere
from commwatch.node.silent_gpus import SilentGpus
from commwatch.node.store import Store
from commwatch.node.unread_tracker import UnreadDevices
from commwatch.node.utilisation_tracker import Uses
from commwatch.readings import Absence
from commwatch.service.instruments import Instruments
from commwatch.sources.gpu_bus import gpus_to_list
from commwatch.sources.presence import NvidiaGpus, boot_identity, is_virtual, nvidia_gpus
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Block
from commwatch_exporters.state_words import GPU_STATES, word_of

log = structlog.get_logger("commwatch.pipeline")

STATE_NAME = "inventory"
OBSERVE_SECONDS = 10.0
"""Longest wait for the next look at the inventory while nothing fails."""
OBSERVED = ("nvml_identity", "nvml_nvlink", "nvml_pcie", "nvml_processes", "network", "rdma", "pci")
"""Collectors that tell the inventory what is here."""
_IDENTITY = "nvml_identity"
_PORTS = ("network", "ethtool", "rdma")
"""Collectors of network interfaces, each the only one of its source."""
_OWN_SUMS = frozenset({"nvml_gpm", "kernel_log", "nccl_logs"})
"""Their counters are sums of the source's own, which begin again with each worker: no reset of hardware."""


def _known_inventory(settings: InventorySection, boot: str, record: InventoryState | None) -> Inventory:
    state = record or InventoryState()
    state.begin(boot)
    inventory = Inventory(state, settings.expected, settings.learn_after)
    inventory.block(0.0)  # it can be shown
    return inventory


class _Follow(Protocol):
    def __call__(self, collector: Collector, blocks: Mapping[str, Block], *, is_last: bool = True) -> None: ...


_Analyse: TypeAlias = Callable[[Outcome], None]


class Pipeline:
    """Keeps what the analysis needs from run to run, and puts what it gives into the store."""

    def __init__(
        self,
        config: Config,
        state: StateDirectory,
        store: Store,
        instruments: Instruments,
        suspects: Callable[[], frozenset[str]],
        sysfs: str = "",
        procfs: str = "",
        event_window: float = RECENT_SECONDS,
        events: HardwareEventsState | None = None,
        job_logs: JobLogsState | None = None,
        flaps: FlapsState | None = None,
    ) -> None:
        """Args:
        state: where the inventory is kept.
        sysfs: where the PCI bus shows itself; empty: as configured.
        procfs: where the processors show themselves; likewise.
        event_window: seconds for which an event of the hardware is a recent one.
        events: of an earlier daemon.
        job_logs: likewise.
        flaps: likewise.
        """
        self._store = store
        self._instruments = instruments
        self._suspects = suspects
        procfs = procfs or config.paths.procfs
        known = partial(_known_inventory, config.inventory, boot_identity(procfs))
        self._inventory = state.restore(STATE_NAME, InventoryState, known)
        self._sysfs = Path(sysfs or config.paths.sysfs)
        self._is_virtual = is_virtual(Path(procfs))
        devices = (None,) if config.simulation.preset else ()
        self._to_list = partial(gpus_to_list, self._sysfs, Path(procfs), *devices)
        self._on_bus = NvidiaGpus(0, 0)
        self._looked_at_bus = float("-inf")
        self._driver = DriverWatch(store, self.driver_wanted)
        self._unread = UnreadDevices(store, self._place_of)
        self._silent = SilentGpus(self._address_of)
        self._uses = Uses(store, self._inventory)
        self._shares = Shares(store)
        self._links_down = LinksDown(store, self._inventory)
        self._recent_errors = RecentErrors(store, event_window)
        self.link_flaps = LinkFlaps(flaps or FlapsState(), store, lambda: time.time() - time.monotonic())
        self._flaps = Flaps(store, self.link_flaps)
        self._followers: dict[str, list[_Follow]] = {}
        """By collector: what follows its readings one by one."""
        self._analyses: dict[str, Sequence[_Analyse]] = {}
        """By collector: what follows its runs, in order."""
        for follower in (self._uses, self._shares, self._flaps, self.link_flaps):
            for name in follower.collectors:
                self._followers.setdefault(name, []).append(follower.after)
        self._job_use = JobUse(store)
        self._pcie_links = PcieLinks(store, self._inventory)
        self.hardware = HardwareLog(events or HardwareEventsState(), store, self._inventory, event_window)
        self.job_logs = JobLogs(job_logs or JobLogsState(), store)
        self._anomalies = Anomalies(store)
        self._resets: dict[str, dict[str, ResetWatch]] = {}
        """By collector and device."""
        self._absences: dict[str, frozenset[Absence]] = {}
        self._observe_seconds = min(OBSERVE_SECONDS, config.inventory.learn_after / 3)
        self._observed_at = float("-inf")
        self._judged_silent: Mapping[str, float] = {}
        self._working = Observation()
        """What was seen last, without the GPUs that do not work."""
        self._faulty_strangers = 0
        """GPUs that are faulty and were never read whole."""
        self._states: dict[tuple[str, str], int] = {}

    def after(self, outcome: Outcome) -> None:
        """Analyse what one run of a collector gave."""
        collector = outcome.collector
        self.follow(collector, outcome.collected.blocks)
        analyses = self._analyses.get(collector.name)
        if analyses is None:
            analyses = self._analyses[collector.name] = self._analyses_of(collector)
        for analyse in analyses:
            analyse(outcome)

    def _analyses_of(self, collector: Collector) -> Sequence[_Analyse]:
        first = [self._anomalies.after]
        first += [one.after for one in (self._job_use, self._pcie_links) if collector.name in one.collectors]
        if collector.source == "nvml":
            first += [self._driver.after, self._silent.after]
        last = (self._links_down, self._recent_errors, self.hardware, self.job_logs)
        follows = [one.after for one in last if collector.name in one.collectors]
        return (*first, self._unread.after, self._observe_when_due, *follows)

    def _observe_when_due(self, outcome: Outcome) -> None:
        """Each ``OBSERVE_SECONDS``, with each identity, and at once where something else fails than before."""
        collector = outcome.collector
        absences = frozenset(outcome.collected.absences)
        changed = absences != self._absences.get(collector.name, frozenset()) or self.silent_gpus != self._judged_silent
        self._absences[collector.name] = absences
        identified = collector.name == _IDENTITY
        if collector.source == "nvml" and not identified:
            # Its identity was dropped at this word, so the word holds until the identity is read again.
            told = frozenset(one for one in absences if one.device and is_everywhere(one))
            self._absences[_IDENTITY] = self._absences.get(_IDENTITY, frozenset()) | told
        if changed or identified or outcome.time - self._observed_at >= self._observe_seconds:
            self.observe(outcome.time)

    def follow(self, collector: Collector, blocks: Mapping[str, Block], is_last: bool = True) -> None:
        """Analyse what moves from reading to reading; of several that come at once all but the last have no more.

        Args:
            is_last: nothing newer was read.
        """
        if collector.name not in _OWN_SUMS:
            self._watch_resets(collector, blocks)
        for follow in self._followers.get(collector.name, ()):
            follow(collector, blocks, is_last=is_last)

    def _address_of(self, device: str) -> str:
        """A device by its address where it is known by its index alone: the GPU that had it last and is not listed."""
        here = self._store.group(_IDENTITY)
        known = {f"index:{gpu.index}": gpu.pci_bus_id for gpu in self._inventory.known_gpus()
                 if not gpu.is_replaced and gpu.pci_bus_id not in here}  # fmt: skip
        return known.get(device, device)

    def _place_of(self, device: str) -> str:
        """As ``_address_of``; else by the address that its state has, which the PCI bus may have told."""
        known = self._address_of(device)
        placed = {f"index:{gpu}": pci_bus_id for (gpu, pci_bus_id), state in self._states.items() if state}
        return placed.get(known) or known

    def _watch_resets(self, collector: Collector, blocks: Mapping[str, Block]) -> None:
        watches = self._resets.setdefault(collector.name, {})
        for device, block in blocks.items():
            if not block.layout.counters:
                continue
            watch = watches.get(device)
            if watch is None:
                watch = watches[device] = ResetWatch()
                self._instruments.counter_resets.labels(collector.source, device)
            if watch.update(block):
                self._instruments.counter_resets.labels(collector.source, device).inc()
                log.info("counters started again", collector=collector.name, device=device)

    def observe(self, now: float) -> None:
        """Compare what is here with what should be.

        Args:
            now: monotonic seconds.
        """
        self._observed_at = now
        seen = self._seen()
        if self._driver.hides_gpus:
            seen = replace(seen, gpus=None)  # one fault of the driver, and not one of each GPU
        absences = frozenset().union(*(these for name, these in self._absences.items() if name.startswith("nvml_")))
        silent = self._judged_silent = self.silent_gpus
        states = self._judge_gpus(seen, absences, self._suspects(), silent, now)
        if learned := self._inventory.observe(self._working, now):
            log.info("learned what to expect", what=learned)
        self._store.put("inventory", "", self._inventory.block(now, self._faulty_strangers), float("inf"))
        self._store.put("gpu_state", "", states, float("inf"))
        self._uses.drop_absent()
        self._shares.drop_absent()
        self._flaps.drop_absent(now)
        self.link_flaps.drop_absent(now)
        self._pcie_links.drop_absent()
        self._anomalies.drop_absent()
        self._forget_ports()

    @property
    def silent_gpus(self) -> Mapping[str, float]:
        """The GPUs that fail every call while others answer, as ``SilentGpus.since``; else the driver is to blame."""
        return {} if self._driver.hides_gpus else self._silent.since

    def _judge_gpus(
        self, seen: Observation, absences: frozenset[Absence], suspects: frozenset[str],
        silent: Mapping[str, float], now: float,
    ) -> Block:  # fmt: skip
        """The states of the GPUs as a block; kept is what else follows from them."""
        known = self._inventory.known_gpus()
        named = {*(one.device for one in absences), *suspects}
        on_bus = self._to_list() if any(one.startswith("index:") for one in named) else frozenset()
        self._states = gpu_states(known, seen, absences, suspects | silent.keys(), on_bus)
        self._working = seen.without(not_working(self._states))
        strangers = self._states.keys() - {(str(gpu.index), gpu.pci_bus_id) for gpu in known}
        self._faulty_strangers = sum(self._states[one] != 0 for one in strangers)
        offset = time.time() - time.monotonic()
        since = {device: round(read + offset, 3) for device, read in silent.items()}
        return state_block(self._states, known, seen, now, failing_gpus(known, seen, absences, on_bus), since, on_bus)

    def _forget_ports(self) -> None:
        """Interfaces and RDMA devices come and go by the thousand on some nodes; what is gone leaves nothing behind."""
        for name in _PORTS:
            watches = self._resets.get(name, {})
            for device in watches.keys() - self._store.devices(name):
                del watches[device]
                self._uses.forget(name, device)
                self._instruments.counter_resets.remove(name, device)

    def _seen(self) -> Observation:
        groups = {name: self._store.group(name) for name in OBSERVED}
        # An empty batch leaves the driver's own block: without any block the driver lists nothing.
        answered = frozenset(name.removeprefix("nvml_") for name, blocks in groups.items() if blocks)
        blocks = [block for blocks in groups.values() for block in blocks.values()]
        seen = observe_blocks(blocks, answered, self._is_virtual)
        is_short = seen.gpus is not None and len(seen.gpus) < max(seen.gpus_on_boards or 0, self.gpus_expected())
        # How many of the GPUs on a board are ours is not known where some were handed to virtual machines.
        return replace(seen, gpus_on_boards=None, is_handed_on=True) if is_short and self._bus().handed_on else seen

    def rest(self) -> None:
        """The driver is let go: what was read of it is not current any more."""
        self._absences.clear()
        self._driver.rest()
        self._silent.rest()
        self.link_flaps.pause()
        self._unread.rest("nvml")
        self._uses.forget("nvml_nvlink")
        self._uses.forget("nvml_gpm")
        self.observe(time.monotonic())

    def resume(self) -> None:
        """Maintenance has ended."""
        self.link_flaps.resume()
        self.hardware.forget_recent(time.monotonic())

    def driver_wanted(self, fault: str = "") -> bool:
        """Whether this node has or should have GPUs for the NVIDIA driver, so that one that fails is a fault.

        GPUs that another driver holds for a virtual machine want none, and ``inventory.expected: {gpu: 0}`` says that
        nobody does.

        Args:
            fault: of the driver; that it lists no GPU is one only while GPUs for it are on the bus.
        """
        expected = self._inventory.expected()["gpu"]
        if expected == 0:
            return False
        bus = self._bus()
        if bus.ours or fault == "no_gpu":
            return bus.ours > 0
        return bool(expected) and not bus.handed_on

    def _bus(self) -> NvidiaGpus:
        """The GPUs that sysfs shows, looked for each ``OBSERVE_SECONDS`` at most."""
        now = time.monotonic()
        if now - self._looked_at_bus >= OBSERVE_SECONDS:
            self._looked_at_bus, self._on_bus = now, nvidia_gpus(self._sysfs)
        return self._on_bus

    def rdma_ports_expected(self) -> int:
        """RDMA ports that this node should have; 0 where nothing was learned."""
        return self._inventory.expected()["rdma_port"] or 0

    def gpus_expected(self) -> int:
        """GPUs that this node should have; 0 where nothing was learned."""
        return self._inventory.expected()["gpu"] or 0

    def accept(self) -> list[str]:
        """Expect what is here now; returns what is given up, in sentences.

        Raises:
            CommwatchError: a GPU cannot be judged now, or the acceptance cannot be saved.
        """
        silent = [pci_bus_id or f"index {gpu}" for (gpu, pci_bus_id), state in self._states.items() if state == 1]
        if silent:
            raise CommwatchError(f"GPU {', '.join(silent)} does not answer, which is not gone: nothing was accepted")
        if self.gpus_expected() and self._inventory.present()["gpu"] is None:
            raise CommwatchError("the GPUs are not read now (paused, or no driver): nothing was accepted")
        given_up = self._inventory.accept()
        for sentence in given_up:
            log.warning("accepted", what=sentence)
        self.observe(time.monotonic())
        return given_up

    @property
    def inventory_state(self) -> InventoryState:
        """To keep over a restart."""
        return self._inventory.state

    @property
    def version(self) -> tuple[int, ...]:
        """Changes with each event that is counted, and with what is known of the parts of the node."""
        return (self.hardware.version, self.job_logs.version, self._flaps.version, self.link_flaps.version,
                self._inventory.learned)  # fmt: skip

    def describe_inventory(self) -> dict[str, Any]:
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

    def _missing_parts(self, expected: Any, present: Any) -> list[str]:
        named = {"gpu": len(self._missing_gpus())}
        return [
            f"{kind.replace('_', ' ')}: {present[kind]} of {expected[kind]} expected"
            for kind in expected
            if None not in (expected[kind], present[kind]) and present[kind] < expected[kind] - named.get(kind, 0)
        ]
