"""Which links that are down are one fault: a link, the links of a GPU, of an NVSwitch, or of the whole node; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Link: TypeAlias = tuple[str, str]
"""PCI address of the GPU, and number of the link."""

ALL_GPUS_FROM = 3
"""Fewer GPUs share a link rather than an NVSwitch."""
MOST_LINKS_RATIO = 0.5
"""Of the links of a GPU: if more are down, the GPU is the fault. A few that come back do not make it many faults."""

PEERS_FROM = 2
"""GPUs to which one is linked that show how many links each two of a board have."""


@dataclass(frozen=True, slots=True)
class FarEnds:
    """The far ends of links, as far as the driver reports them."""

    switches: Mapping[Link, str] = field(default_factory=dict)
    """PCI address of the NVSwitch."""
    gpus: Mapping[Link, Link] = field(default_factory=dict)
    """The same link as another GPU has it; the number is empty where only the GPU is known."""


@dataclass(frozen=True, slots=True)
class DownLinks:
    """Links that are down together."""

    kind: Literal["link", "gpu", "switch", "node"]
    place: str
    """PCI address of the GPU or NVSwitch; empty of the node, and of an NVSwitch that is not known."""
    links: tuple[Link, ...]
    """In order of address and number; those of the GPU itself come first."""
    switch: str = ""
    """PCI address of the NVSwitch to which all of them lead; empty where that is not known or there are several."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers of the links as the GPU has them, or as all GPUs have them, each once."""
        own = [one for one in self.links if one[0] == self.place] or self.links
        return tuple(sorted({number for _, number in own}, key=_by_number))


def grouped(expected: Collection[Link], down: Collection[Link], ends: FarEnds) -> list[DownLinks]:
    """The faults that links make which are down, each link in one of them, or in two GPUs that it joined.

    Args:
        down: expected links that are not up.
    """
    left = set(down) & set(expected)
    ends = FarEnds(ends.switches, {**_unread_ends(expected, ends), **ends.gpus}) if left else ends
    gpus = {gpu for gpu, _ in expected}
    if len(gpus) >= ALL_GPUS_FROM and left and left == set(expected):
        return [_made("node", "", left, ends)]
    found = []
    for switch, links in _of_switches(gpus, left, ends).items() if len(gpus) >= ALL_GPUS_FROM else ():
        found.append(_made("switch", switch, links, ends))
        left -= links
    # A GPU that is gone reads no link: its peers say it, and so it comes before them, and one that has lost all next.
    lost, some_up = set(left), {gpu for gpu, _ in set(expected) - left}
    reading = {gpu for gpu, _ in lost}
    for gpu in sorted(gpus, key=lambda one: (one in reading, one in some_up, one)):
        own = {one for one in left if one[0] == gpu}
        far = {one for one in left if ends.gpus.get(one, ("", ""))[0] == gpu}
        if max(len(own), len(far)) > max(1, MOST_LINKS_RATIO * sum(one[0] == gpu for one in expected)):
            found.append(_made("gpu", gpu, {one for one in lost if one[0] == gpu} | far, ends))
            left -= own | far
    for one in sorted(left, key=_in_order):
        if one in left:
            links = {one, ends.gpus.get(one, one)} & left
            found.append(_made("link", one[0], links, ends))
            left -= links
    return found


def _unread_ends(expected: Collection[Link], ends: FarEnds) -> dict[Link, Link]:
    """The ends of links between GPUs that were never up, so that the driver does not say where they lead.

    Where a board joins each two of its GPUs by the same number of links, at least two, a GPU that is one short to one
    other alone has its only unread link there, and so has that other GPU. If it is short to GPUs alone of which no link
    was ever up, all that are unread lead to them; to which of several, and to which link, is not known. Where more is
    unread, as of a board of which a GPU is missing, or where the numbers of links differ, nothing is known.
    """
    gpus = {gpu for gpu, _ in expected}
    dark = gpus - {gpu for gpu, _ in ends.gpus}
    short: dict[str, tuple[Link, str]] = {}
    found: dict[Link, Link] = {}
    for gpu in gpus - dark:
        own = [link for link in expected if link[0] == gpu]
        unread = [link for link in own if link not in ends.gpus]
        peers = Counter(ends.gpus[link][0] for link in own if link in ends.gpus)
        joined = peers.keys() | dark
        each, rest = divmod(len(own), len(joined))
        fewer = sorted(peer for peer in joined if peers[peer] != each)
        if rest or len(joined) < PEERS_FROM or len(unread) != sum(each - peers[peer] for peer in fewer):
            continue
        if dark.issuperset(fewer):
            found |= dict.fromkeys(unread, (fewer[0], "")) if fewer else {}
        elif len(fewer) == len(unread) == 1:
            short[gpu] = unread[0], fewer[0]
    return found | {
        link: short[peer][0] for gpu, (link, peer) in short.items() if peer in short and short[peer][1] == gpu
    }


def _of_switches(gpus: Collection[str], down: set[Link], ends: FarEnds) -> dict[str, set[Link]]:
    """Links with one number that are down on all GPUs, by NVSwitch; all others of which it is not known together."""
    found: dict[str, set[Link]] = {}
    for number in {number for _, number in down}:
        links = {one for one in down if one[1] == number}
        if {gpu for gpu, _ in links} == set(gpus) and not links & ends.gpus.keys():
            found.setdefault(_switch_of(links, ends), set()).update(links)
    return dict(sorted(found.items()))


def _made(kind: Literal["link", "gpu", "switch", "node"], place: str, links: set[Link], ends: FarEnds) -> DownLinks:
    in_order = sorted(links, key=lambda one: (one[0] != place, _in_order(one)))
    return DownLinks(kind, place, tuple(in_order), _switch_of(links, ends))


def _switch_of(links: Collection[Link], ends: FarEnds) -> str:
    """The NVSwitch to which all of them lead; empty where that is not known or there are several."""
    found = {ends.switches.get(one, "") for one in links}
    return found.pop() if len(found) == 1 else ""


def _in_order(link: Link) -> tuple[str, tuple[int, str]]:
    return link[0], _by_number(link[1])


def _by_number(number: str) -> tuple[int, str]:
    return (int(number) if number.isdecimal() else 0, number)
