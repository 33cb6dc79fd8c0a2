"""Which of the expected NVLinks are down or keep going down, as series that are there only while one is: one for each
fault.

The rule of a page would read the state of every link at each evaluation; of these it reads none while nothing is wrong.
A link that comes back is a fault, too, where it has gone down three times within an hour, the driver reports an error
of it, or it could not be trained again at first. It is shown for as long as such errors are, so that its falls and
their errors are one page. Links that came back
are grouped with one another, and not with those that are down: "most links of a GPU are inactive" would not be true.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from commwatch.node.down_links import DownLinks, FarEnds, Link, grouped
from commwatch.node.hardware_events import GROUP as EVENTS
from commwatch.node.hardware_events import RECENT_SECONDS
from commwatch.node.inventory import Inventory
from commwatch.node.link_flaps import LinkFlaps
from commwatch.node.recent_errors import GROUP as ERRORS
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.node.xids import LINK_SXIDS, LINK_XIDS
from commwatch_exporters.snapshot import Block, Series
from commwatch_exporters.state_words import NVLINK_UP

GROUP: Final = "nvlink_down"
ALL: Final = "all"
"""Label ``gpu`` of links that are down on all GPUs, and ``pci_bus_id`` where no NVSwitch is known to have them."""
SEVERAL: Final = "several"
"""Label ``link`` of what is the fault of several links."""
_LINKS: Final = "nvml_nvlink"
_STATE: Final = "commwatch_nvlink_link_state"
_SEVERAL_GPUS: Final = 3
_SEVERAL_NUMBERS: Final = 4
"""In which two GPUs lead to the same NVSwitches by more than chance."""
_EXPECTED: Final = "inventory"
"""Group of the store with the expected links."""
FLAPS_PER_HOUR: Final = 3
"""As ``link_flaps_per_hour`` of the thresholds."""
_ENDS_SECONDS: Final = 40.0
"""For which the ends of a link that is up again are shown after it went down: two scrapes see them. Errors that the
driver reports at these ends later are of other links."""
_RECOVERY_FAILED: Final = "commwatch_nvlink_recoveries_failed_recent"
_DRIVER_ERRORS: Final = (
    ("commwatch_gpu_xid_events_recent", "commwatch_gpu_xid_nonfatal_events_recent", re.compile(LINK_XIDS)),
    ("commwatch_nvswitch_sxid_events_recent", "commwatch_nvswitch_sxid_nonfatal_events_recent", re.compile(LINK_SXIDS)),
)
"""The driver's reports about links: all events, those that were not fatal, and the numbers. The last label is the
number, the one before it the PCI address."""


class LinksDown(Tracker):
    """The expected links that are down or keep going down, in the store while the states that say so are current.

    Args:
        flaps_per_hour: from which on a link that comes back is a fault.
        recent_seconds: for which it is one after it went down, and for which an error of the driver is a recent one.
    """

    collectors = (_LINKS,)

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        flaps: LinkFlaps,
        flaps_per_hour: int = FLAPS_PER_HOUR,
        recent_seconds: float = RECENT_SECONDS,
    ) -> None:
        super().__init__(store)
        store.declare(GROUP, self.collectors)
        self._inventory = inventory
        self._flaps = flaps
        self._flaps_per_hour = flaps_per_hour
        self._recent_seconds = recent_seconds

    def on_batch(self, outcome: Outcome) -> None:
        """Look at the links of all GPUs after a run that has read some."""
        expected = self._store.get(_EXPECTED, "")
        lately, failed = self._gone_down_lately(outcome.time), self._could_not_recover()
        states: dict[Link, int | float] = {}
        for block in self._store.group(_LINKS).values():
            for (gpu, address, link), state in _states(block, all_of_them=bool(lately or failed)):
                if expected is not None and expected.get("commwatch_nvlink_link_expected", gpu, address, link) == 1:
                    states[address, link] = state
        down: dict[Series, int | float] = {}
        if expected is not None and states:
            links = _expected(expected)
            gpus = {address: gpu for gpu, address, _ in links}
            ends = self._ends()
            coming_back = self._coming_back(lately, failed, ends)
            states = {one: state for one, state in states.items() if state not in NVLINK_UP or one in coming_back}
            still_down = _still_down(states, ends)
            for together in (states.keys() - still_down, still_down):
                for fault in grouped([(address, link) for _, address, link in links], together, ends):
                    of_fault = [states[one] for one in fault.links]
                    state = max([one for one in of_fault if one not in NVLINK_UP] or of_fault)
                    down["commwatch_nvlink_link_down", _labels(fault, gpus)] = state
            alike = _switches_of_all(ends)
            just_fallen = {link for link, times in lately.items() if outcome.time - times[-1] < _ENDS_SECONDS}
            for one in [one for one, state in states.items() if state not in NVLINK_UP or one in just_fallen]:
                far_gpu, _ = ends.gpus.get(one, ("", ""))
                switch = ends.switches.get(one) or (alike.get(one[1]) if not far_gpu else None)
                for device in filter(None, (one[0], switch, far_gpu)):
                    down["commwatch_nvlink_end_down", (device,)] = 1
        self._store.show(GROUP, "", down, outcome.time, outcome.collector.lifetime)

    def _gone_down_lately(self, now: float) -> Mapping[Link, Sequence[float]]:
        """When links whose last fall is recent went down within the hour, monotonic seconds in order."""
        return {
            link: times for link, times in self._flaps.of_nvlinks(now).items() if now - times[-1] < self._recent_seconds
        }

    def _could_not_recover(self) -> set[Link]:
        """Links that lately went down since they could not be trained again, however short that was."""
        block = self._store.get(ERRORS, "")
        return {(address, link) for _, address, link in block.labels(_RECOVERY_FAILED)} if block else set()

    def _coming_back(
        self, lately: Mapping[Link, Sequence[float]], failed: Collection[Link], ends: FarEnds
    ) -> set[Link]:
        """Of the links that went down lately, by both ends: those that are a fault even while they are up."""
        erring = set(self._erring()) if lately else set()
        found = {
            link for link, times in lately.items()
            if len(times) >= self._flaps_per_hour
            or not erring.isdisjoint((link[0], ends.switches.get(link), ends.gpus.get(link, ("", ""))[0]))
        }.union(failed)  # fmt: skip
        return found | {ends.gpus[one] for one in found if one in ends.gpus}

    def _erring(self) -> Iterator[str]:
        """GPUs and NVSwitches of which the driver lately reported an error of a link that it did not call nonfatal."""
        block = self._store.get(EVENTS, "")
        if block is None:
            return
        for family, nonfatal, numbers in _DRIVER_ERRORS:
            for labels, count in block.samples(family):
                if numbers.fullmatch(labels[-1]) and count > (block.get(nonfatal, *labels) or 0):
                    yield labels[-2]

    def _ends(self) -> FarEnds:
        """Where links lead, by the last word of the driver while they were up."""
        known = self._inventory.link_ends()
        switches = {link: remote for link, (kind, remote, _) in known.items() if kind == "switch"}
        gpus = {link: (remote, number) for link, (kind, remote, number) in known.items() if kind == "gpu"}
        return FarEnds(switches, gpus)


def _still_down(states: Mapping[Link, int | float], ends: FarEnds) -> set[Link]:
    """Links of which either end reads that it is down, by both ends as far as they are in ``states``."""
    read = {link for link, state in states.items() if state not in NVLINK_UP}
    far = {ends.gpus[link] for link in read if link in ends.gpus}
    return read | {link for link in states if link in far or ends.gpus.get(link) in read}


def _switches_of_all(ends: FarEnds) -> dict[str, str]:
    """By number of the link, the NVSwitch to which it leads from every GPU where that is known, of several.

    A link that was down from the boot on has no switch of its own. This is enough to see that an NVSwitch reports it,
    but not to name it. Two GPUs are enough where they agree in all numbers that they share.
    """
    found: dict[str, list[str]] = {}
    for (_, number), switch in ends.switches.items():
        found.setdefault(number, []).append(switch)
    shared = [set(all_of) for all_of in found.values() if len(all_of) > 1]
    agree = len(shared) >= _SEVERAL_NUMBERS and all(len(one) == 1 for one in shared)
    least = _SEVERAL_GPUS - 1 if agree else _SEVERAL_GPUS
    return {number: all_of[0] for number, all_of in found.items() if len(all_of) >= least and len(set(all_of)) == 1}


def _expected(inventory: Block) -> list[tuple[str, ...]]:
    """Labels of the links that should be up: ``gpu``, ``pci_bus_id`` and ``link``."""
    return [labels for labels, flag in inventory.samples("commwatch_nvlink_link_expected") if flag == 1]


def _labels(fault: DownLinks, gpus: Mapping[str, str]) -> tuple[str, str, str, str]:
    """``gpu``, ``pci_bus_id``, ``link`` and ``nvswitch``."""
    link = fault.numbers[0] if len(fault.numbers) == 1 else SEVERAL
    if fault.kind in ("link", "gpu"):
        return gpus[fault.place], fault.place, link, fault.switch
    return ALL, fault.place or ALL, link, fault.switch


def _states(block: Block, *, all_of_them: bool) -> list[tuple[tuple[str, ...], int | float]]:
    """Labels and state of the links that carry no traffic, or of all; nothing of those that were not read."""
    return [(labels, state) for labels, state in block.samples(_STATE) if all_of_them or state not in NVLINK_UP]
