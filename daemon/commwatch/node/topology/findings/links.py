"""Links that are down, narrowed, or fewer than elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from commwatch.node.topology.findings.machine import NodeView, TopologyFinding, have, label_of, labels, named
from commwatch.node.topology.model import Gpu
from commwatch.node.topology.paths import Path, narrowed, nvlinks_between, uplink

_MOST_PAIRS = 6
"""More are not written out."""


def narrowed_links(view: NodeView) -> Iterator[TopologyFinding]:
    for address, device in view.node.devices.items():
        link = uplink(view.node, device)
        if link is None or not narrowed(device, link):
            continue
        name = label_of(view.node, address)
        now = f"gen {link.generation} x{link.lanes}" if device.role != "gpu" else f"x{link.lanes}"
        best = f"gen {link.generation_max} x{link.lanes_max}" if device.role != "gpu" else f"x{link.lanes_max}"
        yield TopologyFinding(
            "link_narrowed",
            (name,),
            f"The PCIe link of {name} runs at {now}; both of its ends can do {best}.",
            "Either the slot has fewer lanes than the card, or the link came up damaged: compare with its siblings. "
            "All traffic through this link is limited. Drain the node; once it is free, power cycle it; if that does "
            "not help, call the vendor (PCIe card: reseat it first).",
        )


def below_siblings(view: NodeView) -> Iterator[TopologyFinding]:
    """GPUs of one model whose link is made smaller than that of most of their siblings."""
    links: dict[str, dict[Gpu, tuple[int, int]]] = {}
    for gpu in view.node.gpus:
        device = view.node.devices.get(gpu.address)
        link = uplink(view.node, device) if device is not None else None
        if link is not None and link.generation_max is not None and link.lanes_max is not None:
            links.setdefault(gpu.name, {})[gpu] = (link.generation_max, link.lanes_max)
    for of_model in links.values():
        counts = Counter(of_model.values())
        usual = max(counts, key=lambda one: (counts[one], one))
        for gpu, (generation, lanes) in of_model.items():
            if generation < usual[0] or lanes < usual[1]:
                yield TopologyFinding(
                    "link_below_siblings",
                    (gpu.label,),
                    f"The slot of {gpu.label} gives it PCIe gen {generation} x{lanes}; its siblings have "
                    f"gen {usual[0]} x{usual[1]}.",
                    "Every collective over PCIe waits for it. Drain the node; once it is free, power cycle it; if that "
                    "does not help, check the firmware's PCIe settings, then call the vendor. Where the node was built "
                    "so, leave it out of jobs that communicate much.",
                )


def nvlink(view: NodeView) -> Iterator[TopologyFinding]:
    if not view.node.driver_read:
        return
    idle = [gpu for gpu in view.node.gpus if _all_down(gpu)]
    if idle and len(idle) == sum(bool(gpu.nvlinks) for gpu in view.node.gpus):
        yield _none_active(view, idle)
    else:
        yield from _uneven_nvlink(view)


def peer_access(view: NodeView) -> Iterator[TopologyFinding]:
    """Pairs of GPUs that the driver does not let reach each other, whatever lies between them."""
    over_nvlink = _pairs(view.node.nvlink_refused, [way for way in view.ways if way.nvlinks])
    if over_nvlink:
        yield TopologyFinding(
            "nvlink_refused",
            over_nvlink,
            f"The driver refuses peer access over NVLink for {_some(over_nvlink)}, though links are active.",
            "NCCL does not use NVLink there. Look at Fabric Manager and at the fabric state of these GPUs.",
        )
    at_all = _pairs(view.node.peers_refused, view.ways)
    if at_all:
        which = "any two GPUs" if len(at_all) == len(view.ways) else _some(at_all)
        yield TopologyFinding(
            "peers_refused",
            at_all,
            f"The driver does not let {which} read each other's memory (no P2P).",
            "Their traffic goes through the memory of the host, also behind one switch, so that about half is "
            "expected. Some GPUs are sold without P2P; else look at IOMMU, ACS and NVreg settings.",
        )


def _pairs(refused: Collection[frozenset[str]], ways: Iterable[Path]) -> tuple[str, ...]:
    """The refused ones of some ways, as ``GPU0-GPU1``."""
    return tuple(
        f"{one.source.label}-{one.target.label}"
        for one in ways
        if frozenset({one.source.address, one.target.address}) in refused
    )


def _some(pairs: Sequence[str]) -> str:
    return named(pairs) if len(pairs) <= _MOST_PAIRS else f"{', '.join(pairs[:_MOST_PAIRS])} and others"


def _all_down(gpu: Gpu) -> bool:
    links = gpu.nvlinks or ()
    return bool(links) and all(link.state == 0 for link in links)


def _none_active(view: NodeView, idle: Sequence[Gpu]) -> TopologyFinding:
    names = labels(idle)
    links = [link for gpu in idle for link in gpu.nvlinks or ()]
    if view.node.nvswitches or any(link.remote_type == "switch" for link in links):
        return TopologyFinding(
            "nvlink_fabric_down",
            names,
            f"{named(names)} {have(idle)} NVLinks to NVSwitches, and none is active: the fabric did not come up.",
            "All traffic between these GPUs goes over PCIe, and CUDA may refuse to start. Look at Fabric Manager.",
        )
    return TopologyFinding(
        "nvlink_no_bridge",
        names,
        f"{named(names)} {have(idle)} NVLinks, and none is active: no bridge is fitted, or it is not seated.",
        "All traffic between GPUs goes over PCIe. Where a bridge should be, look at it; else the node was delivered "
        "this way.",
    )


def _uneven_nvlink(view: NodeView) -> Iterator[TopologyFinding]:
    node = view.node
    counts = {
        (one.source, one.target): links
        for one in view.ways
        if (links := nvlinks_between(node, one.source, one.target)) is not None
    }
    if len(set(counts.values())) < 2:
        return
    most = max(counts.values())
    worst = min(counts.values())
    few = [pair for pair, links in counts.items() if links == worst]
    # Where one GPU lacks links, all of its pairs do: then it is the one to name.
    shared = [gpu for gpu in node.gpus if all(gpu in pair for pair in few)]
    if len(shared) == 1 and len(few) > 1:
        who = labels(shared)
        text = f"{who[0]} reaches the others over {worst} NVLinks; other pairs have {most}."
    else:
        who = tuple(f"{first.label}-{second.label}" for first, second in few)
        text = f"{_some(who)}: {worst} NVLinks; other pairs have {most}."
    down = [f"{gpu.label} link {link.number}" for gpu in node.gpus for link in gpu.nvlinks or () if link.state == 0]
    inactive = f" Inactive: {', '.join(down[:12])}{' and more' if len(down) > 12 else ''}." if down else ""
    yield TopologyFinding(
        "nvlink_uneven",
        who,
        text + inactive,
        "A ring runs at the speed of its weakest pair. Where the GPUs are built alike, a link or a bridge is missing; "
        "else choose the GPUs with the most links between them.",
    )
