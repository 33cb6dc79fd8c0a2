"""Which GPUs belong together, and which are far from a NIC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.node.topology.bandwidth import path_bandwidth
from commwatch.node.topology.findings.machine import NodeView, TopologyFinding, classes, have, labels, named
from commwatch.node.topology.findings.measured import nearer_is_slower
from commwatch.node.topology.model import End, Gpu
from commwatch.node.topology.paths import NEAR, THROUGH_CPU, PathClass, all_paths, nearest_nics, rank


def gpu_groups(view: NodeView) -> Iterator[TopologyFinding]:
    """GPUs that reach some of the others only through the CPU."""
    groups = _near_groups(view)
    if len(groups) < 2 or max(map(len, groups)) < 2:
        return
    apart = {view.way(first[0], second[0]).kind for place, first in enumerate(groups) for second in groups[place + 1 :]}
    if not apart <= THROUGH_CPU:
        return
    parts = [_group_text(view, group) for group in groups]
    sizes = sorted({len(group) for group in groups if len(group) > 1})
    lists = [view.cuda_list(group) for group in groups if len(group) > 1]
    what = f"{sizes[0]}-GPU jobs" if len(sizes) == 1 else f"jobs of up to {sizes[-1]} GPUs"
    meaning = f"A job that spans groups runs at the speed of the CPU path. For {what} choose GPUs of one group"
    if nearer_is_slower(view):
        meaning = "Measured, some GPUs of one group are slower than GPUs of two groups: choose by the measurement"
    elif not _nearer_is_faster(view, groups):
        meaning = (
            "No group is expected to be faster than GPUs of two groups: measure the pairs before you choose, commwatch "
            "diagnose --full-scan"
        )
    elif all(lists):
        choice = " or ".join(f"CUDA_VISIBLE_DEVICES={one}" for one in lists)
        meaning += (
            f": {choice}. These are the driver's indexes: set CUDA_DEVICE_ORDER=PCI_BUS_ID with them, "
            "because CUDA itself counts the fastest GPU first"
        )
    text = f"{'; '.join(parts)}. Between these groups all traffic goes through the CPU ({classes(apart)})."
    yield TopologyFinding("gpu_groups", labels(gpu for group in groups for gpu in group), text, f"{meaning}.")


def _nearer_is_faster(view: NodeView, groups: Sequence[Sequence[Gpu]]) -> bool:
    """Whether some pair within a group should carry more than one of two groups; so too where a figure is not known."""
    place: dict[End, int] = {gpu: number for number, group in enumerate(groups) for gpu in group}
    rates: dict[bool, list[float]] = {True: [], False: []}
    for way in view.ways:
        expected = path_bandwidth(view.node, way)
        if expected is None:
            return True
        rates[place[way.source] == place[way.target]].append(expected.bytes_per_second)
    return max(rates[True]) > min(rates[False])


def _near_groups(view: NodeView) -> list[list[Gpu]]:
    groups: list[list[Gpu]] = []
    for gpu in view.node.gpus:
        joined = [group for group in groups if any(view.way(gpu, other).kind in NEAR for other in group)]
        rest = [group for group in groups if group not in joined]
        groups = [*rest, [gpu, *(other for group in joined for other in group)]]
    order = view.node.gpus.index
    return sorted((sorted(group, key=order) for group in groups), key=lambda group: order(group[0]))


def _group_text(view: NodeView, group: Sequence[Gpu]) -> str:
    names = named(labels(group))
    if len(group) == 1:
        return f"{names} stands alone"
    kinds = {one.kind for one in all_paths(view.node, group)}
    if "NV" in kinds:
        return f"{names} are joined by NVLink"
    return f"{names} share a PCIe switch ({max(kinds, key=rank)})"


def nics(view: NodeView) -> Iterator[TopologyFinding]:
    near = {gpu: found for gpu in view.node.gpus if (found := nearest_nics(view.node, gpu)) is not None}
    kinds = {one.kind for one in near.values()}
    # Behind a switch counts against through the CPU; where none is behind a switch, the own socket against the other.
    far_kinds: frozenset[PathClass] = THROUGH_CPU if kinds & NEAR else frozenset({"SYS"})
    far = [end for end, one in near.items() if one.kind in far_kinds]
    good = [end for end in near if end not in far]
    if not good or not far:
        return
    names, others = (named(labels(ends)) for ends in (far, good))
    ways, better = (classes(near[end].kind for end in ends) for ends in (far, good))
    yield TopologyFinding(
        "gpu_without_near_nic",
        labels(far),
        f"{names} {'reaches its' if len(far) == 1 else 'reach their'} nearest NIC only by {ways}; {others} "
        f"{have(good)} one at {better}.",
        f"What these GPUs send to other machines crosses the CPU{_around(view, far, good)}. For jobs of several "
        "machines on part of the GPUs, choose those with a NIC near.",
    )


def _around(view: NodeView, far: Sequence[Gpu], good: Sequence[Gpu]) -> str:
    """The way around the CPU, where there is one."""
    if not any(view.way(one, other).kind == "NV" for one in far for other in good):
        return ""
    return ", unless NCCL takes it over NVLink to a GPU that has a NIC near (PXN)"
