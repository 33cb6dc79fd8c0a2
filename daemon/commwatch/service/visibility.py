"""Whether a fault could be seen now if it were there: whether what shows it was read lately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from commwatch.findings.codes import EVENTS
from commwatch.findings.finding import Component
from commwatch.jobs import identity
from commwatch.jobs.logs import tracker
from commwatch.node import anomaly_tracker, job_use, link_flaps, links_down, recent_errors, unread_tracker
from commwatch.node.gpus_now import PROCESS_COLLECTOR
from commwatch.node.link_shares import LINK_SHARES
from commwatch.node.pcie_tracker import DEVICE_LINKS, GPU_LINKS
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch.service.collection import Collection
from commwatch.service.pipeline import OBSERVED
from commwatch.workers.sources import SOURCES
from commwatch_exporters.catalogue import SECTIONS
from commwatch_exporters.node.model import (
    C2cLink,
    FindingRule,
    NcclSetting,
    Node,
    NvLink,
    Probe,
    RdmaPort,
    SourceCounter,
    Suspect,
    UnreadDevice,
    Worker,
)
from commwatch_exporters.snapshot import Block, Layout

FEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvlink_use": ("nvml_nvlink",),
    LINK_SHARES: ("nvml_nvlink",),
    links_down.GROUP: ("nvml_nvlink",),
    "pcie_use": ("nvml_gpm",),
    job_use.GROUP: (job_use.COLLECTOR, PROCESS_COLLECTOR),
    identity.GROUP: (PROCESS_COLLECTOR, "nccl_settings"),
    "ethernet_use": ("network",),
    "rdma_use": ("rdma",),
    "rdma_port_flaps": ("rdma",),
    link_flaps.TOTALS: ("nvml_nvlink",),
    link_flaps.RECENT: (),
    GPU_LINKS: ("nvml_pcie",),
    DEVICE_LINKS: ("pci",),
    "driver": ("nvml_identity",),
    "gpu_state": ("nvml_identity",),
    "inventory": OBSERVED,
    unread_tracker.GROUP: (),
    recent_errors.GROUP: (),
    "hardware_events": (),
    tracker.GROUP: (tracker.SOURCE,),
    "daemon": (),
    "verdict": (),
}
"""Collectors behind the groups of the analysis; none where what they hold is known without reading anything."""

PROBES: Final = "probes"

_OF_A_RESULT: Final = "commwatch_probe_setup_seconds"
"""Each probe has it while its last result is current."""

SILENT: Final[Mapping[str, str]] = {
    SourceCounter.anomaly.metric: anomaly_tracker.GROUP,
    Suspect.ratio.metric: PROBES,
    NcclSetting.processes.metric: "nccl_settings",
    UnreadDevice.failing.metric: unread_tracker.GROUP,
    Worker.restarts.metric: "daemon",
    FindingRule.errors.metric: "daemon",
}
"""Metrics without a series while nothing is wrong, and the group that holds them: of these alone a daemon that has
just started knows where they would stand."""


class Observability:
    """Knows which collector reads what, from what the store has held."""

    def __init__(self, store: Store, collection: Collection) -> None:
        self._store = store
        self._collection = collection
        self._groups: dict[str, set[str]] = {metric: {group} for metric, group in SILENT.items()}
        # Without a current result, or with probes switched off, a probe has no series either.
        self._groups |= {metric.name: {PROBES} for metric in SECTIONS["Probe"]}
        """By metric: the groups of the store that have held it since the daemon started."""
        self._layouts: Sequence[Layout] = ()
        """Those of the last look."""
        self._node = Node()

    def take(self, node: Node) -> None:
        """Learn which groups hold which metrics."""
        self._node = node
        if node.layouts == self._layouts:
            return
        known = set(self._layouts)
        self._layouts = node.layouts
        for group, block in self._store.blocks():
            if block.layout not in known:
                for metric in block.layout.families:
                    self._groups.setdefault(metric, set()).add(group)

    def sees(self, component: Component, metrics: Iterable[str]) -> bool:
        """Whether all that a rule reads was read lately of a component.

        Args:
            component: what a finding is about.
            metrics: what its rule reads; those that this node never had do not count.
        """
        known = [metric for metric in metrics if metric in self._groups]
        return bool(known) and all(self._is_read(metric, component) for metric in known)

    def saw(self, component: Component, metrics: Iterable[str], before: Node) -> bool:
        """Whether what shows a fault now was read at an earlier look as well.

        Args:
            component: what the fault is about.
            metrics: what its rule reads.
            before: the node at that look.
        """
        now = [metric for metric in metrics if metric in self._groups and _is_shown(metric, component, self._node)]
        born = EVENTS | SILENT.keys()
        return bool(now) and all(metric in born or _is_shown(metric, component, before) for metric in now)

    def is_probed(self, component: Component) -> bool:
        """Whether a component is a probe that is configured, and has its counts, whatever its results are."""
        return self._of_probe(component) is not None

    def _of_probe(self, component: Component) -> Block | None:
        return self._store.get(PROBES, component.key) if component.kind == "probe" else None

    def _awaits_result(self, component: Component) -> bool:
        """Whether a probe that tells of a component is configured, and its last result is no longer current."""
        if component.kind == "probe":
            blocks = [self._of_probe(component)]
        else:  # pairs of GPUs, and the parts that they point at
            blocks = [block for block in self._store.group(PROBES).values() if _measures_pairs(block)]
        return any(
            all(block.values[place] is None for place in block.layout.families.get(_OF_A_RESULT, ()))
            for block in blocks
            if block is not None
        )

    def _is_read(self, metric: str, component: Component) -> bool:
        return _is_shown(metric, component, self._node) or all(
            self._may_be_told(group, component) for group in self._groups[metric]
        )

    def _may_be_told(self, group: str, component: Component) -> bool:
        """Whether a group that holds no series of a component says by this that there is nothing to tell."""
        if group == PROBES:
            # A result that grew old, as under a long job, says nothing; a probe that is not configured never will.
            return not self._collection.is_paused and not self._awaits_result(component)
        absent = self._collection.absent_sources
        feeds = [one for one in self._feeding(group, component) if one.source not in absent]
        return all(one.attempted and not _failed_on(one, component) for one in feeds)

    def _feeding(self, group: str, component: Component) -> Iterator[Collector]:
        collectors = self._collection.collectors
        if group == anomaly_tracker.GROUP:
            # Of an anomaly there is no series once it is over: it is the sources of its counters that tell.
            yield from [one for one in collectors.values() if component.kind in SOURCES[one.source].components]
            return
        for name in FEEDS.get(group, (group,)):
            if name in collectors:
                yield collectors[name]


def _measures_pairs(probe: Block) -> bool:
    series = probe.layout.series
    return any(series[place][1][2] == "pairs" for place in probe.layout.families.get(Probe.info.metric, ()))


def _is_shown(metric: str, component: Component, node: Node) -> bool:
    """Whether there is a series of this very component."""
    device, _, number = component.key.partition("/")
    for part, _ in node.series(metric):
        if not component.key:
            return True
        within = part.number if isinstance(part, NvLink | C2cLink | RdmaPort) else number
        if device in part.identity and (not number or within == number):
            return True
    return False


def _failed_on(collector: Collector, component: Component) -> bool:
    """Whether the last run could not read a component, or nothing at all."""
    return any(not absence.device or _is_of(absence.device, component) for absence in collector.failing)


def _is_of(device: str, component: Component) -> bool:
    """Whether a device, by its key in the store, belongs to a component; the whole node has all of them."""
    names = {component.key, *component.parts} - {""}
    if not names:
        return True
    if component.kind == "rdma_port":
        names.add(component.key.replace("/", ":"))  # the store knows it as NCCL writes it: mlx5_0:1
    return any(name == device or name.startswith(f"{device}/") or device.startswith(f"{name}/") for name in names)
