"""Settings that keep the GPUs of a node from the best way to each other."""

from __future__ import annotations

from commwatch.jobs.settings.facts import Level
from commwatch.jobs.settings.process import Said, View
from commwatch.jobs.settings.values import level_reached, within

_DIRECT: frozenset[Level] = frozenset({"NVL", "PIX", "PXB"})
"""The ways that NCCL takes by itself on any processor."""


def used_levels(view: View) -> frozenset[Level]:
    """The direct ways between GPUs that NCCL would take if nothing were set.

    Source: ``ncclTopoCheckP2p`` in ``src/graph/paths.cc``: PXB, and all with two GPUs on AMD processors.
    """
    node = view.node
    everything = node.cpu_vendor == "amd" and node.gpus is not None and node.gpus <= 2
    return node.peer_levels if everything else node.peer_levels & _DIRECT


def judge_within_node(view: View) -> Said:
    """What concerns the GPUs of one node."""
    if view.node.gpus is not None and view.node.gpus < 2:
        return
    yield from _direct(view)
    yield from _shared_memory(view)
    yield from _switches(view)


def _direct(view: View) -> Said:
    lost, name = _lost(view)
    if not name:
        return
    off = view.number("NCCL_P2P_DISABLE") == 1 or level_reached(view.text(name) or "") == "LOC"
    if lost:
        ways = "NVLink" if "NVL" in lost else "PCIe"
        if off:
            words = f"GPUs may not reach each other directly, although they can over {ways}."
            yield view.remark("p2p_off", name, "harmful", words, "Take it out.")
        else:
            words = f"The level leaves out GPUs that reach each other directly over {ways} ({', '.join(sorted(lost))})."
            yield view.remark("p2p_level_low", name, "harmful", words, "Take it out: NCCL chooses the level itself.")
    elif off and view.node.peers_unknown:
        words = "GPUs may not reach each other directly; whether they could was not read."
        yield view.remark("p2p_off", name, "suspicious", words, "Take it out unless it is a known remedy here.")


def _lost(view: View) -> tuple[frozenset[Level], str]:
    """The ways that a setting takes away, and which setting; an empty name where none limits them."""
    used = used_levels(view)
    if view.number("NCCL_P2P_DISABLE") == 1:
        return used, "NCCL_P2P_DISABLE"
    reached = level_reached(view.text("NCCL_P2P_LEVEL") or "")
    if reached is None:
        return frozenset(), ""
    return frozenset(level for level in used if not within(level, reached)), "NCCL_P2P_LEVEL"


def _shared_memory(view: View) -> Said:
    if view.number("NCCL_SHM_DISABLE") != 1:
        return
    node, lost = view.node, _lost(view)[0]
    if lost or node.peers_refused or node.peer_levels - used_levels(view):
        words = "GPUs that cannot reach each other directly have to go over the network instead of shared memory."
        yield view.remark("shm_off", "NCCL_SHM_DISABLE", "harmful", words, "Take it out.")
    else:
        words = "GPUs that cannot reach each other directly would have to go over the network instead of shared memory."
        yield view.remark(
            "shm_off", "NCCL_SHM_DISABLE", "suspicious", words, "Take it out unless it is a known remedy here."
        )


def _switches(view: View) -> Said:
    node = view.node
    if node.nvls and view.number("NCCL_NVLS_ENABLE") == 0:
        words = "The NVSwitches of this node could add up, and may not."
        yield view.remark(
            "nvls_off", "NCCL_NVLS_ENABLE", "suspicious", words, "Take it out unless it is a known remedy here."
        )
    if (node.nvls or node.node_nvlink) and view.number("NCCL_CUMEM_ENABLE") == 0:
        words = "Without it neither NVLink SHARP nor NVLink between nodes works."
        yield view.remark("cumem_off", "NCCL_CUMEM_ENABLE", "suspicious", words, "Take it out.")
    if node.node_nvlink and view.number("NCCL_MNNVL_ENABLE") == 0:
        words = "NVLink leads to other nodes here, and may not be used for it."
        yield view.remark("node_nvlink_off", "NCCL_MNNVL_ENABLE", view.elsewhere, words, "Take it out.")
