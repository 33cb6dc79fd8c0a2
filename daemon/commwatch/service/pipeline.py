"""The trackers of a node, listed once, in the order in which they see the run of a collector."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from commwatch.config.settings import Config, Paths
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import Thresholds
from commwatch.findings.history import CounterHistory
from commwatch.jobs.flight_recorder.tracker import FlightRecorderVerdicts
from commwatch.jobs.identity import JobIdentity
from commwatch.jobs.inspector.tracker import JobInspector
from commwatch.jobs.logs.tracker import JobLogs
from commwatch.jobs.over_tcp import OverTcp
from commwatch.jobs.settings.plan import JobSettings
from commwatch.jobs.stuck import StuckJobs
from commwatch.node.anomaly import Anomalies
from commwatch.node.counter_resets import CounterResets
from commwatch.node.driver_tracker import DriverWatch
from commwatch.node.fabric_manager import FabricManagerDue
from commwatch.node.gpus_on_bus import GpusOnBus
from commwatch.node.hardware_events import HardwareLog
from commwatch.node.inventory import Inventory
from commwatch.node.inventory_state import InventoryState
from commwatch.node.inventory_tracker import GROUP, OBSERVE_SECONDS, InventoryTracker, Suspecting
from commwatch.node.job_use import JobUse
from commwatch.node.link_flaps import LinkFlaps
from commwatch.node.link_shares import LinkShares
from commwatch.node.links_down import LinksDown
from commwatch.node.pcie_links import PcieLinks
from commwatch.node.pcie_samples import WithoutGpm
from commwatch.node.recent_errors import METRICS, RecentErrors
from commwatch.node.run import Collector, Outcome
from commwatch.node.silent_gpus import SilentGpus
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.node.unread_tracker import UnreadDevices
from commwatch.node.utilisation import Uses
from commwatch.node.wrap import Wraps
from commwatch.service.judge import Judge
from commwatch.service.judgement import Judgement
from commwatch.sources.presence import boot_identity, is_virtual
from commwatch.sources.rdma.places import is_excluded, is_for_packets
from commwatch.state.directory import StateDirectory

STATE_NAME = GROUP


def _known_inventory(config: Config, sysfs: str, boot: str, record: InventoryState | None) -> Inventory:
    state = record or InventoryState()
    # Ports that are not read: version 0.2.0 learned some of them.
    for name in list(state.rdma_ports):
        device, _, port = name.rpartition(":")
        home, address = f"{sysfs}/class/infiniband/{device}", state.rdma_addresses.get(name, "")
        if is_excluded(home, config.sources.rdma.exclude, address) or is_for_packets(f"{home}/ports/{port}"):
            del state.rdma_ports[name]
    inventory = Inventory(state, config.inventory.expected, config.inventory.learn_after)
    inventory.begin(boot)
    inventory.readings()  # it can be shown
    return inventory


class Pipeline:
    """Hands each run of a collector to the trackers that follow it."""

    def __init__(
        self,
        config: Config,
        thresholds: Thresholds,
        roots: Paths | SimulationPlan,
        state: StateDirectory,
        kept: Judgement,
        history: CounterHistory,
        store: Store,
        driver_readers: Collection[Suspecting],
        readers: Collection[Suspecting],
        job_settings: JobSettings,
        collectors: Iterable[Collector],
    ) -> None:
        """Args:
        roots: where the node shows itself.
        state: where the inventory is kept.
        kept: what an earlier daemon left.
        """
        procfs, window = Path(roots.procfs), thresholds.event_window_seconds
        self._boot = boot_identity(roots.procfs)
        self.wraps = Wraps(kept.wraps, self._boot)
        known = partial(_known_inventory, config, roots.sysfs, self._boot)
        parts = state.restore(STATE_NAME, InventoryState, known)
        self.bus = GpusOnBus(parts, Path(roots.sysfs), procfs, is_simulated=bool(config.simulation.preset))
        self.link_flaps = LinkFlaps(kept.flaps, store)
        self.hardware = HardwareLog(kept.events, store, parts, window)
        self.job_logs = JobLogs(kept.job_logs, store)
        self.flight_recorder = FlightRecorderVerdicts(store)
        self.stuck_jobs = StuckJobs(store, thresholds, config.jobs.hang_power, procfs)
        driver, silent = DriverWatch(store, self.bus), SilentGpus(store, parts)
        self.without_gpm = WithoutGpm(store)
        self.inventory = InventoryTracker(
            store, parts, self.bus, driver, silent, driver_readers, readers, is_virtual=is_virtual(procfs),
            observe_seconds=min(OBSERVE_SECONDS, config.inventory.learn_after / 3),
        )  # fmt: skip
        self.trackers: tuple[Tracker, ...] = (
            CounterResets(store),
            Uses(store, parts),
            LinkShares(store),
            self.link_flaps,
            Anomalies(store),
            JobUse(store),
            self.stuck_jobs,
            OverTcp(store, thresholds, procfs),
            PcieLinks(store, parts),
            self.without_gpm,
            driver,
            silent,
            UnreadDevices(store, parts),
            self.inventory,
            FabricManagerDue(store, parts, readers),
            self.hardware,
            LinksDown(store, parts, self.link_flaps, thresholds.link_flaps_per_hour, window),
            RecentErrors(store, window, {(one, labels): last for one in METRICS for labels, last in history.last(one)}),
            self.job_logs,
            JobInspector(store, procfs),
            self.flight_recorder,
            job_settings,
            *([JobIdentity(store)] if config.jobs.identity else []),
        )
        """All of them, each once."""
        self._following = {
            one.name: [tracker for tracker in self.trackers if tracker.follows(one)] for one in collectors
        }

    def on_batch(self, outcome: Outcome) -> None:
        """Take one run of a collector; what it read is in the store."""
        for tracker in self._following[outcome.collector.name]:
            tracker.on_batch(outcome)
        if self.inventory.observed_at == outcome.time:
            self._tick(outcome.time)

    def observe(self, now: float) -> None:
        """Compare what is here with what should be at monotonic seconds, and drop what is no longer read."""
        self.inventory.observe(now)
        self._tick(now)

    def _tick(self, now: float) -> None:
        for tracker in self.trackers:
            tracker.on_tick(now)

    def pause(self) -> None:
        """The driver is released: what was read of it is no longer current."""
        for tracker in self.trackers:
            tracker.pause()
        self.observe(time.monotonic())

    def resume(self) -> None:
        """Maintenance has ended."""
        for tracker in self.trackers:
            tracker.resume()

    def judgement(self, judge: Judge) -> Judgement:
        """The parts of the state that must agree after a crash; the judge has evaluated all that was counted."""
        return Judgement(
            boot=self._boot,
            events=self.hardware.state,
            job_logs=self.job_logs.state,
            wraps=self.wraps.state,
            flaps=self.link_flaps.state,
            history=judge.history.state,
            register=judge.register.state,
        )
