"""Which of the expected NVLinks are down, as series that are there only while one is: one for each fault.

The rule of a page would read the state of every link at each evaluation; of these it reads none while nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commwatch.node.down_links import DownLinks, FarEnds, Link, grouped
from commwatch.node.inventory import Inventory
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Layout, Series
from commwatch_exporters.state_words import NVLINK_UP

GROUP: Final = "nvlink_down"
ALL: Final = "all"
"""Label ``gpu`` of links that are down on all GPUs, and ``pci_bus_id`` where no NVSwitch is known to have them."""
SEVERAL: Final = "several"
"""Label ``link`` of what is the fault of several links."""
_LINKS: Final = "nvml_nvlink"
_SEVERAL_GPUS: Final = 3
_EXPECTED: Final = "inventory"
"""Group of the store that says which links are expected."""


class LinksDown(Tracker):
    """The expected links that are down, put into the store while the states that say so are current."""

    collectors = (_LINKS,)

    def __init__(self, store: Store, inventory: Inventory) -> None:
        super().__init__(store)
        store.declare(GROUP, self.collectors)
        self._inventory = inventory

    def on_batch(self, outcome: Outcome) -> None:
        """Look at the links of all GPUs after a run that has read some."""
        expected = self._store.get(_EXPECTED, "")
        states: dict[Link, int | float] = {}
        for block in self._store.group(_LINKS).values():
            for (gpu, address, link), state in _not_up(block):
                if expected is not None and expected.get("commwatch_nvlink_link_expected", gpu, address, link) == 1:
                    states[address, link] = state
        down: dict[Series, int | float] = {}
        if expected is not None and states:
            links = _expected(expected)
            gpus = {address: gpu for gpu, address, _ in links}
            ends = self._ends()
            for fault in grouped([(address, link) for _, address, link in links], states, ends):
                state = max(states[one] for one in fault.links)
                down["commwatch_nvlink_link_down", _labels(fault, gpus)] = state
            alike = _switches_of_all(ends)
            for one in states:
                far_gpu, _ = ends.gpus.get(one, ("", ""))
                switch = ends.switches.get(one) or (alike.get(one[1]) if not far_gpu else None)
                for device in filter(None, (one[0], switch, far_gpu)):
                    down["commwatch_nvlink_end_down", (device,)] = 1
        if down:
            block = Block(Layout(down), list(down.values()), outcome.time)
            self._store.put(GROUP, "", block, outcome.time + outcome.collector.lifetime)
        else:
            self._store.drop(GROUP, "")

    def _ends(self) -> FarEnds:
        """Where links lead, by the last word of the driver while they were up."""
        switches: dict[Link, str] = {}
        gpus: dict[Link, Link] = {}
        for record in [one for one in self._inventory.state.gpus.values() if not one.is_replaced]:
            for link, (kind, remote, remote_link) in record.link_ends.items():
                if kind == "switch":
                    switches[record.pci_bus_id, str(link)] = remote
                elif kind == "gpu":
                    gpus[record.pci_bus_id, str(link)] = (remote, remote_link)
        return FarEnds(switches, gpus)


def _switches_of_all(ends: FarEnds) -> dict[str, str]:
    """By number of the link, the NVSwitch to which it leads from every GPU where that is known, of several.

    A link that was down from the boot on says nothing itself. This is enough to tell that an NVSwitch speaks of it,
    and not to name it.
    """
    found: dict[str, list[str]] = {}
    for (_, number), switch in ends.switches.items():
        found.setdefault(number, []).append(switch)
    return {
        number: all_of[0] for number, all_of in found.items() if len(all_of) >= _SEVERAL_GPUS and len(set(all_of)) == 1
    }


def _expected(inventory: Block) -> list[tuple[str, ...]]:
    """Labels of the links that should be up: ``gpu``, ``pci_bus_id`` and ``link``."""
    series, values = inventory.layout.series, inventory.values
    places = inventory.layout.families.get("commwatch_nvlink_link_expected", ())
    return [series[place][1] for place in places if values[place] == 1]


def _labels(fault: DownLinks, gpus: Mapping[str, str]) -> tuple[str, str, str, str]:
    """``gpu``, ``pci_bus_id``, ``link`` and ``nvswitch``."""
    link = fault.numbers[0] if len(fault.numbers) == 1 else SEVERAL
    if fault.kind in ("link", "gpu"):
        return gpus[fault.place], fault.place, link, fault.switch
    return ALL, fault.place or ALL, link, fault.switch


def _not_up(block: Block) -> list[tuple[tuple[str, ...], int | float]]:
    """Labels and state of the links that carry no traffic; nothing of those that were not read."""
    values, series = block.values, block.layout.series
    states = block.layout.slices.get("commwatch_nvlink_link_state")
    if states is None or NVLINK_UP.issuperset(values[states]):
        return []
    return [
        (series[place][1], state)
        for place in block.layout.families.get("commwatch_nvlink_link_state", ())
        if (state := values[place]) is not None and state not in NVLINK_UP
    ]
