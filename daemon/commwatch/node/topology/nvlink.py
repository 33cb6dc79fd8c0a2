"""The driver's facts about GPUs and their NVLinks, taken from the node as the nvml source reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commwatch.node.store import Store
from commwatch.node.topology.model import Gpu, NvLink
from commwatch_exporters.node import model
from commwatch_exporters.node.model import Node, PeerAccess, node_at
from commwatch_exporters.snapshot import Snapshot

COLLECTORS = ("nvml_identity", "nvml_nvlink", "nvml_p2p")
"""The collectors that provide them."""

_REFUSED = frozenset({1, 2, 3, 4, 5})
"""NVML's reasons why not: chipset, GPU, topology, setting, not supported. 0 is yes, 6 unknown."""


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """NVML's answers for the GPUs that answered."""

    gpus: tuple[Gpu, ...] = ()
    """By index."""
    note: str = ""
    """Why nothing was read at all; empty where the driver answered."""
    problems: tuple[str, ...] = ()
    """Which GPUs did not answer, for the operator."""
    nvlink_refused: frozenset[frozenset[str]] = frozenset()
    """Pairs of GPUs, by PCI address, that the driver does not let reach each other over NVLink."""
    peers_refused: frozenset[frozenset[str]] = frozenset()
    """Pairs that it does not let read each other's memory at all."""


def driver_facts(node: Node, problems: Iterable[str] = ()) -> DriverFacts:
    refused: dict[str, set[frozenset[str]]] = {"nvlink": set(), "read": set()}
    for access, status in node.each(PeerAccess.status):
        if status in _REFUSED:
            refused.setdefault(access.capability, set()).add(frozenset({access.address, access.peer_address}))
    gpus = [
        Gpu(gpu.address, int(gpu.index), gpu.name, gpu.uuid, gpu.architecture, _links(gpu))
        for gpu, _ in node.each(model.Gpu.info)
        if gpu.index.isdigit() and gpu.address
    ]
    return DriverFacts(
        tuple(sorted(gpus, key=lambda gpu: int(gpu.index or 0))),
        problems=tuple(problems),
        nvlink_refused=frozenset(refused["nvlink"]),
        peers_refused=frozenset(refused["read"]),
    )


def _links(gpu: model.Gpu) -> tuple[NvLink, ...] | None:
    """The links of a GPU; None where their number or all of their states were not read, as with MIG enabled."""
    if gpu.nvlink_links is None:
        return None
    found = []
    for number in range(int(gpu.nvlink_links)):
        link = gpu.node.part(model.NvLink, gpu.address, str(number))
        state = link.state
        found.append(
            NvLink(
                number=number,
                state=None if state is None else int(state),
                version=link.version,
                remote_type=link.remote_type,
                remote_address=link.remote_address,
                line_rate=link.speed_bytes_per_second,
            )
        )
    return None if found and all(link.state is None for link in found) else tuple(found)


def stored_driver(store: Store) -> DriverFacts:
    """GPUs and NVLinks as the collectors of the driver read them last."""
    blocks = [block for collector in COLLECTORS for block in store.group(collector).values()]
    with node_at(Snapshot(blocks)) as node:
        return driver_facts(node)
