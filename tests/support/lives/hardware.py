"""Kinds of hardware faults, and what an operator must get of each; written from the design's table of signs alone.

Imports nothing of rules, alerts, thresholds or findings: what generates the truth knows nothing of what judges it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from commwatch_rehearsal.simulation.presets.parts import NVLINK_5, Preset

Wanted: TypeAlias = Literal["page", "ticket", "either"]
"""What must reach somebody; ``either``: a page or a ticket. More than a ticket is never a miss by itself."""
Entry: TypeAlias = Mapping[str, object]
"""One entry of a file of faults of the simulated node, without its times."""

STATE_SECONDS = 60.0
"""A state or event is paged within this time."""
UNREAD_SECONDS = 100.0
"""What cannot be read any more is a page within this time; so is a driver, which may be about to be loaded."""
RATE_SECONDS = 300.0
"""A rate is a ticket within this time."""
EVENT_SECONDS = 300.0
"""An event is counted for so long after it happened; then its page holds for the 10 min of all pages."""
PORT_SECONDS = 60.0
"""An RDMA port pages once it has been down for more than this."""
PROBE_CYCLE_SECONDS = 900.0
"""Between two probes by default; the third bad one speaks."""
ENOUGH_EQUALS = 4
"""Equal parts of which the odd one is known; of fewer, a slot that was narrow from the first start is no alert."""
PAIR_SECONDS = 7200.0
"""A single slow pair is a ticket within this time: a ring need not lead over it, and pairs are measured in turn."""
GROUP_WAIT_SECONDS = 5.0
GROUP_INTERVAL_SECONDS = 60.0
"""A second alert of a node waits for the next notification of the group."""


@dataclass(frozen=True)
class Place:
    """Where something is broken."""

    names: tuple[str, ...]
    """Each of these alone names the part: PCI addresses, devices, interfaces. Empty: the node."""
    link: int | None = None
    """Beside it: the number of an NVLink, which is to be named too."""
    others: tuple[tuple[str, int], ...] = ()
    """The same link by its other end: PCI address and number."""


@dataclass(frozen=True)
class Struck:
    """A fault of a kind, at a place, as the simulated node takes it."""

    place: Place
    entries: tuple[Entry, ...]
    gpus: tuple[int, ...] = ()
    """Places of the GPUs that it strikes."""
    takes: frozenset[str] = frozenset()
    """Parts of which no second fault can be seen meanwhile."""
    may_be_built_so: bool = False
    """Whether a node that was never seen otherwise may be meant to be so: of two cards one may be in a narrow slot."""


Strike: TypeAlias = Callable[[random.Random, Preset], "Struck | None"]
"""Draws a place; None where the node has no such part."""


@dataclass(frozen=True)
class Row:
    """A kind of fault."""

    strike: Strike
    wanted: Wanted
    within: float
    """Seconds from the time at which it begins, or is first observable, to the alert; with the reading interval."""
    kinds: frozenset[str]
    """What its component may be called in the document of findings."""
    probes: Literal["", "slow", "stop"] = ""
    """What it does to collectives of the node."""
    from_boot: Wanted | None = "page"
    """Where it was there before the part was known to be well; None: nothing need be said then."""
    ends: float | None = 600.0 + 120.0
    """Seconds after the repair within which alert and finding are over; None: not within the life, not judged.

    What counts over an hour, falls and errors of a port, is open until the hour is over.
    """
    flaps: bool = False
    """It comes and goes; the third fall pages."""
    is_event: bool = False
    """It happens once: there is nothing to see of it afterwards."""
    needs_job: bool = False
    """It shows only while a job communicates."""
    lasts: tuple[float, float] = (200.0, 600.0)
    weight: float = 1.0


def _gpu(drawn: random.Random, preset: Preset) -> tuple[int, str]:
    gpu = drawn.randrange(len(preset.gpus))
    return gpu, preset.gpus[gpu].pci_address


def _has_nvlink(preset: Preset) -> bool:
    return preset.model.nvlink is not None and preset.model.nvlink.remote != "none"


def _far_ends(preset: Preset, gpu: int) -> tuple[tuple[str, int], ...]:
    """The links of other GPUs that lead to a GPU: they go down with it."""
    nvlink = preset.model.nvlink
    ends = (preset.peer(gpu, link) for link in range(nvlink.links if nvlink is not None else 0))
    return tuple((preset.gpus[end[0]].pci_address, end[1]) for end in ends if end is not None)


def _of_a_gpu(kind: str, **more: object) -> Strike:
    def strike(drawn: random.Random, preset: Preset) -> Struck | None:
        gpu, address = _gpu(drawn, preset)
        return Struck(Place((address,)), ({"fault": kind, "gpu": gpu, **more},), (gpu,))

    return strike


def _lanes(drawn: random.Random, preset: Preset) -> Struck | None:
    struck = _of_a_gpu("pcie_width", lanes=4)(drawn, preset)
    return None if struck is None else replace(struck, may_be_built_so=len(preset.gpus) < ENOUGH_EQUALS)


def _whole_gpu(kind: str, **more: object) -> Strike:
    """A GPU of which nothing else can be read."""

    def strike(drawn: random.Random, preset: Preset) -> Struck | None:
        gpu, address = _gpu(drawn, preset)
        taken = frozenset({address, "probes"})
        return Struck(
            Place((address,), None, _far_ends(preset, gpu)), ({"fault": kind, "gpu": gpu, **more},), (gpu,), taken
        )

    return strike


def _of_a_fabric(kind: str, **more: object) -> Strike:
    def strike(drawn: random.Random, preset: Preset) -> Struck | None:
        return _of_a_gpu(kind, **more)(drawn, preset) if preset.nvswitches else None

    return strike


def _of_a_link(kind: str, *, on_nvlink_5: bool | None = None, **more: object) -> Strike:
    def strike(drawn: random.Random, preset: Preset) -> Struck | None:
        nvlink = preset.model.nvlink
        if nvlink is None or not _has_nvlink(preset):
            return None
        if on_nvlink_5 is not None and on_nvlink_5 != (nvlink.version >= NVLINK_5):
            return None
        gpu, address = _gpu(drawn, preset)
        link = drawn.randrange(nvlink.links)
        far = preset.peer(gpu, link)
        if far is None and nvlink.remote != "switch":
            return None
        others = () if far is None else ((preset.gpus[far[0]].pci_address, far[1]),)
        gpus = (gpu,) if far is None else (gpu, far[0])
        return Struck(Place((address,), link, others), ({"fault": kind, "gpu": gpu, "link": link, **more},), gpus)

    return strike


def _all_links(drawn: random.Random, preset: Preset) -> Struck | None:
    if not _has_nvlink(preset):
        return None
    gpu, address = _gpu(drawn, preset)
    return Struck(
        Place((address,), None, _far_ends(preset, gpu)),
        ({"fault": "nvlink_down", "gpu": gpu},),
        (gpu,),
        frozenset({address}),
    )


def _driver(drawn: random.Random, preset: Preset) -> Struck | None:
    error = drawn.choice(("version_mismatch", "not_loaded", "unknown"))
    return Struck(Place(()), ({"fault": "driver_unusable", "error": error},), (), frozenset({"driver", "probes"}))


def _switch(severity: str, sxid: int) -> Strike:
    def strike(drawn: random.Random, preset: Preset) -> Struck | None:
        if not preset.nvswitches:
            return None
        switch = drawn.randrange(len(preset.nvswitches))
        entry = {"fault": "sxid", "nvswitch": switch, "sxid": sxid, "link": drawn.randrange(64), "severity": severity}
        return Struck(Place((preset.nvswitches[switch],)), (entry,))

    return strike


def _port(kind: str, **more: object) -> Strike:
    def strike(drawn: random.Random, preset: Preset) -> Struck | None:
        ports = [one for one in preset.rdma_ports if one.link_layer == "InfiniBand"]
        if not ports:
            return None
        device = drawn.choice(ports).device
        return Struck(Place((device,)), ({"fault": kind, "device": device, **more},), (), frozenset({device}))

    return strike


def _cable(drawn: random.Random, preset: Preset) -> Struck | None:
    """Of an interface that is no RDMA port and in no bond."""
    rdma = {address for port in preset.rdma_ports if (address := getattr(port, "pci_address", ""))}
    plain = [one for one in preset.interfaces if not one.bond and one.pci_address not in rdma]
    if not plain:
        return None
    name = drawn.choice(plain).name
    return Struck(Place((name,)), ({"fault": "ethernet_down", "interface": name},), (), frozenset({name}))


def _slow_pair(drawn: random.Random, preset: Preset) -> Struck | None:
    if len(preset.gpus) < 3:
        return None
    gpu, peer = drawn.sample(range(len(preset.gpus)), 2)
    names = (preset.gpus[gpu].pci_address, preset.gpus[peer].pci_address)
    entry = {"fault": "slow_pair", "gpu": gpu, "peer": peer, "bandwidth": 0.3}
    return Struck(Place(names), (entry,), (gpu, peer), frozenset({"probes"}))


def _slow_gpu(drawn: random.Random, preset: Preset) -> Struck | None:
    if len(preset.gpus) < 3:
        return None
    gpu, address = _gpu(drawn, preset)
    return Struck(
        Place((address,)), ({"fault": "slow_gpu", "gpu": gpu, "bandwidth": 0.4},), (gpu,), frozenset({"probes"})
    )


def _slow_calls(**more: object) -> Strike:
    def strike(drawn: random.Random, preset: Preset) -> Struck | None:
        # How long a small call takes has been published of eight H100 alone.
        unknown = "latency" in more and not (len(preset.gpus) == 8 and "H100" in preset.model.name)
        entry = {"fault": "slow_probe", **more}
        return Struck(Place(()), (entry,), (), frozenset({"probes"}), may_be_built_so=unknown)

    return strike


def _kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


_LINK, _GPU, _PCIE, _PORT = (
    _kinds("nvlink", "gpu", "nvswitch"), _kinds("gpu"), _kinds("pcie_link", "gpu"), _kinds("rdma_port", "interface"),
)  # fmt: skip
_PROBE = _kinds("probe", "pair", "gpu", "node")
_THREE_RESULTS = 3 * PROBE_CYCLE_SECONDS + RATE_SECONDS

HARDWARE: Mapping[str, Row] = {
    # Pages: a state or an event, within 60 s of the first time at which it can be read.
    "link_down": Row(_of_a_link("nvlink_down"), "page", STATE_SECONDS + 1, _LINK, "slow", weight=3),
    "link_lost_training": Row(_of_a_link("nvlink_recovery_failed"), "page", STATE_SECONDS + 10, _LINK, "slow"),
    "gpu_links_down": Row(_all_links, "page", STATE_SECONDS + 1, _LINK, "slow"),
    "gpu_off_the_bus": Row(_whole_gpu("gpu_lost"), "page", STATE_SECONDS + 10, _PCIE, "stop", weight=2),
    "gpu_needs_reset": Row(_whole_gpu("gpu_reset_required"), "page", STATE_SECONDS + 10, _GPU, "stop"),
    "gpu_silent": Row(_whole_gpu("gpu_calls_fail"), "page", STATE_SECONDS + 10, _GPU, "stop"),
    "driver_gone": Row(_driver, "page", UNREAD_SECONDS + 10, _kinds("node", "gpu"), "stop"),
    "fabric_sick": Row(_of_a_fabric("fabric_unhealthy", check="route"), "page", STATE_SECONDS + 15, _GPU),
    "switch_fatal": Row(
        _switch("Fatal", 12028), "page", STATE_SECONDS + 5, _kinds("nvswitch", "node"), is_event=True, from_boot="page"
    ),
    "pcie_fatal": Row(
        _of_a_gpu("pcie_aer", severity="fatal", error="CmpltTO", rate="2/min"), "page", STATE_SECONDS + 10, _PCIE,
        ends=EVENT_SECONDS + 600.0 + 120.0,
    ),
    "lanes_lost": Row(_lanes, "page", STATE_SECONDS + 10, _PCIE, "slow", "either", weight=2),
    "recovery_asked": Row(
        _of_a_gpu("recovery_needed", action="gpu_reset"), "page", STATE_SECONDS + 10, _GPU
    ),
    "port_down": Row(
        _port("rdma_port_down"), "page", PORT_SECONDS + STATE_SECONDS + 5, _PORT, from_boot=None, weight=2
    ),
    # Falls: three in an hour page, within 60 s of the third.
    "link_flaps": Row(_of_a_link("nvlink_down"), "page", STATE_SECONDS + 1, _LINK, ends=None, flaps=True, weight=2),
    "port_flaps": Row(_port("rdma_port_down"), "page", STATE_SECONDS + 5, _PORT, ends=None, flaps=True),
    # Tickets: a rate, within 5 min.
    "link_crc": Row(
        _of_a_link("nvlink_crc", on_nvlink_5=False, rate="1000/s"), "ticket", RATE_SECONDS + 10, _LINK,
        from_boot="ticket", lasts=(500.0, 800.0),
    ),
    "link_bit_errors": Row(
        _of_a_link("nvlink_bit_errors", on_nvlink_5=True, rate="1000/s", effective=5e-11), "ticket",
        RATE_SECONDS + 10, _LINK, from_boot="ticket", lasts=(500.0, 800.0),
    ),
    "link_replays": Row(
        # NVLink 5 sends blocks again by its physical layer, as healthy links do.
        _of_a_link("nvlink_replay", on_nvlink_5=False, rate="2/s"), "ticket", RATE_SECONDS + 10, _LINK,
        from_boot="ticket", ends=None, lasts=(500.0, 800.0),
    ),
    "link_recovers": Row(
        _of_a_link("nvlink_recovery", rate="60/h"), "ticket", 180.0 + RATE_SECONDS + 10, _LINK, from_boot="ticket",
        ends=None, lasts=(600.0, 800.0),
    ),
    "pcie_replays": Row(
        _of_a_gpu("pcie_replay", rate="200/s"), "ticket", RATE_SECONDS + 10, _PCIE, from_boot="ticket",
        lasts=(500.0, 800.0),
    ),
    "port_symbol_errors": Row(
        _port("rdma_errors", counter="symbol_error", rate="2/s"), "ticket", RATE_SECONDS + 5, _PORT,
        from_boot="ticket", ends=None, lasts=(500.0, 800.0),
    ),
    "port_saturated": Row(
        _port("rdma_saturated", counter="excessive_buffer_overrun_errors"), "ticket", RATE_SECONDS + 5, _PORT,
        from_boot=None, ends=None, lasts=(500.0, 800.0),
    ),
    "cable_out": Row(_cable, "either", RATE_SECONDS + 15, _PORT, from_boot=None, lasts=(400.0, 700.0)),
    "gpu_hot": Row(
        _of_a_gpu("gpu_throttled", reason="hw_thermal"), "ticket", RATE_SECONDS + 10, _GPU, "slow",
        from_boot="ticket", needs_job=True, lasts=(500.0, 800.0),
    ),
    "generation_low": Row(
        _of_a_gpu("pcie_generation", generation=1), "ticket", 600.0 + RATE_SECONDS, _PCIE, "slow",
        from_boot="ticket", needs_job=True, lasts=(1000.0, 1300.0),
    ),
    # Tickets of probes: the third result in a row, and the part within 15 min of the first.
    "calls_slow": Row(
        _slow_calls(latency=8), "ticket", _THREE_RESULTS, _PROBE, "slow", "ticket", ends=None,
        lasts=(4000.0, 4200.0), weight=0.7,
    ),
    "bandwidth_lost": Row(
        _slow_calls(bandwidth=0.5), "ticket", _THREE_RESULTS, _PROBE, "slow", "ticket", ends=None,
        lasts=(4000.0, 4200.0), weight=0.7,
    ),
    "gpu_slow": Row(_slow_gpu, "ticket", _THREE_RESULTS, _PROBE, "slow", "ticket", ends=None, lasts=(4000.0, 4200.0)),
    "pair_slow": Row(_slow_pair, "ticket", PAIR_SECONDS, _PROBE, "slow", "ticket", ends=None, lasts=(7300.0, 7500.0)),
}  # fmt: skip
"""By its name."""

HARMLESS: Sequence[Entry] = (
    {"fault": "xid", "xid": 13}, {"fault": "xid", "xid": 31}, {"fault": "xid", "xid": 43}, {"fault": "xid", "xid": 45},
    {"fault": "nvlink_recovery", "rate": "1/d"}, {"fault": "counter_reset"},
)  # fmt: skip
"""Happen on healthy nodes: programs that fail, one retraining of a link, a driver that counts from 0."""
