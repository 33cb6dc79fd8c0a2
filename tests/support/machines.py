"""What the page says of small machines: GPUs, PCIe bridges and NVLinks, as numbers for ``facts_of``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from support.facts import Numbers

Rows: TypeAlias = dict[tuple[str, ...], float]

CARDS = ("0000:23:00.0", "0000:24:00.0", "0000:63:00.0", "0000:64:00.0")
"""Four cards without NVLink: 0 and 1 under one PCIe switch, 2 and 3 under another one."""
SWITCHES = ("0000:21:00.0", "0000:61:00.0")
"""Upstream ports of the two switches."""
HGX = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")
"""Four GPUs on NVSwitches."""
NVSWITCH = "0000:08:00.0"
LINKS = 2
"""Of each GPU on NVSwitches."""


def merged(*parts: Numbers) -> Numbers:
    """Several numbers as one; series of the same metric are put together."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for part in parts:
        for metric, series in part.items():
            found.setdefault(metric, {}).update(series)
    return found


def gpus(addresses: tuple[str, ...]) -> Numbers:
    """The identities of GPUs, by index."""
    rows = {(str(index), address, f"GPU-{index}", "", "GPU", "") for index, address in enumerate(addresses)}
    return {"commwatch_gpu_info": dict.fromkeys(rows, 1.0)}


def bridges(parents: Mapping[str, str]) -> Numbers:
    """PCIe devices by what is above them."""
    rows = {(device, "switch_port", parent, "0", "", "") for device, parent in parents.items()}
    return {"commwatch_pcie_device_info": dict.fromkeys(rows, 1.0)}


def four_cards() -> Numbers:
    """Two PCIe switches at two root ports, with two cards each."""
    parents: dict[str, str] = {}
    for root, cards in (("20", CARDS[:2]), ("60", CARDS[2:])):
        base = int(root, 16)
        port, upstream = f"0000:{root}:01.0", f"0000:{base + 1:02x}:00.0"
        parents |= {port: f"pci0000:{root}", upstream: port}
        for number, card in enumerate(cards):
            downstream = f"0000:{base + 2:02x}:{number:02x}.0"
            parents |= {downstream: upstream, card: downstream}
    return merged(gpus(CARDS), bridges(parents))


def four_on_nvswitch() -> Numbers:
    """Four GPUs that reach each other over an NVSwitch, each with a PCIe link to the CPU."""
    rows: Rows = {
        (str(index), address, str(link), "4.0", "switch", NVSWITCH, str(LINKS * index + link)): 1.0
        for index, address in enumerate(HGX)
        for link in range(LINKS)
    }
    expected: Rows = dict.fromkeys(((index, address, link) for index, address, link, *_ in rows), 1.0)
    roots = {address: f"{address[:-4]}01.0" for address in HGX}
    parents = roots | {root: f"pci{address[:7]}" for address, root in roots.items()}
    links: Numbers = {"commwatch_nvlink_info": rows, "commwatch_nvlink_link_expected": expected}
    return merged(gpus(HGX), bridges(parents), links)
