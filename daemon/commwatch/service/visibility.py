"""Whether a fault could be seen now if it were there: whether what shows it was read lately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from commwatch.findings.codes import EVENTS
from commwatch.findings.finding import Component
from commwatch.node import anomaly
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch.service.collection import Collection
from commwatch.workers.sources import SOURCES
from commwatch_exporters.catalogue import SECTIONS
from commwatch_exporters.node.model import (
    C2cLink,
    FindingRule,
    Node,
    NvLink,
    Probe,
    RdmaPort,
    Suspect,
    Worker,
)
from commwatch_exporters.snapshot import Block

PROBES: Final = "probes"
DAEMON: Final = "daemon"
"""Groups of the store."""

_OF_A_RESULT: Final = "commwatch_probe_setup_seconds"
"""Each probe has it while its last result is current."""


class Observability:
    """Knows which collector reads what, from what the store has held."""

    def __init__(self, store: Store, collection: Collection) -> None:
        self._store = store
        self._collection = collection
        store.declare(DAEMON, silent=[Worker.restarts.metric, FindingRule.errors.metric])
        # Without a current result, or with probes switched off, a probe has no series.
        store.declare(PROBES, silent=[Suspect.ratio.metric], holds=[metric.name for metric in SECTIONS["Probe"]])

    def sees(self, component: Component, metrics: Iterable[str], node: Node) -> bool:
        """Whether all that a rule reads was read lately of a component; what this node never had does not count."""
        known = [metric for metric in metrics if self._store.holders(metric)]
        return bool(known) and all(self._is_read(metric, component, node) for metric in known)

    def saw(self, component: Component, metrics: Iterable[str], node: Node, before: Node) -> bool:
        """Whether the metrics of a rule that show a fault now were also read at the evaluation before."""
        now = [metric for metric in metrics if self._store.holders(metric) and _is_shown(metric, component, node)]
        return bool(now) and all(
            metric in EVENTS or metric in self._store.silent or _is_shown(metric, component, before) for metric in now
        )

    def is_probed(self, component: Component) -> bool:
        """Whether a component is a probe that is configured, and has its counts, whatever its results are."""
        return self._of_probe(component) is not None

    def _of_probe(self, component: Component) -> Block | None:
        return self._store.get(PROBES, component.key) if component.kind == "probe" else None

    def _awaits_result(self, component: Component) -> bool:
        """Whether a probe that measures a component is configured and its last result is no longer current."""
        if component.kind == "probe":
            blocks = [self._of_probe(component)]
        else:  # pairs of GPUs, and the parts that they point at
            blocks = [block for block in self._store.group(PROBES).values() if _measures_pairs(block)]
        return any(
            all(block.values[place] is None for place in block.layout.families.get(_OF_A_RESULT, ()))
            for block in blocks
            if block is not None
        )

    def _is_read(self, metric: str, component: Component, node: Node) -> bool:
        return _is_shown(metric, component, node) or all(
            self._may_be_told(group, component) for group in self._store.holders(metric)
        )

    def _may_be_told(self, group: str, component: Component) -> bool:
        """Whether a group without series of a component thereby reports that the component has no fault."""
        if group == PROBES:
            # A result that grew old, as under a long job, says nothing; a probe that is not configured never will.
            return self._store.maintenance is None and not self._awaits_result(component)
        absent = self._collection.absent_sources
        feeds = [one for one in self._feeding(group, component) if one.source not in absent]
        return all(one.attempted and not _failed_on(one, component) for one in feeds)

    def _feeding(self, group: str, component: Component) -> Iterator[Collector]:
        collectors = self._collection.collectors
        if group == anomaly.GROUP:
            # An anomaly has no series once it is over: the sources of its counters show that it is.
            yield from [one for one in collectors.values() if component.kind in SOURCES[one.source].components]
            return
        for name in self._store.collectors(group):
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
