"""What the driver says of GPUs and their NVLinks, taken from the readings of the nvml source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from commwatch.node.topology.model import Gpu, NvLink
from commwatch_exporters.catalogue import family_of
from commwatch_exporters.snapshot import Series, Value

LINK_RATE = "commwatch_nvlink_link_speed_bytes_per_second"
COLLECTORS = ("identity", "nvlink", "p2p")
"""What the nvml source is asked for."""

_GPU, _COUNT, _INFO, _STATE = (
    f"commwatch_{name}" for name in ("gpu_info", "nvlink_links", "nvlink_info", "nvlink_link_state")
)
_P2P = "commwatch_gpu_p2p_status"
METRICS = frozenset({_GPU, _COUNT, _INFO, _STATE, LINK_RATE, _P2P})
"""What it takes."""

_REFUSED = frozenset({1, 2, 3, 4, 5})
"""NVML's reasons why not: chipset, GPU, topology, setting, not supported. 0 is yes, 6 unknown."""

_Key: TypeAlias = tuple[str, str, str]
"""Index, PCI address and link, the last one empty for what is said of a whole GPU."""
_Samples: TypeAlias = dict[str, dict[_Key, tuple[dict[str, str], int | float]]]
"""Labels by name, and value, by metric and key."""


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What NVML said of the GPUs that answered."""

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


def driver_facts(samples: Iterable[tuple[Series, Value]], problems: Iterable[str] = ()) -> DriverFacts:
    """GPUs and links from samples of the catalogue's NVML metrics.

    Args:
        samples: series with their values; those of other metrics are passed over.
        problems: what was not read.
    """
    by_metric: _Samples = {}
    refused: dict[str, set[frozenset[str]]] = {"nvlink": set(), "read": set()}
    for (metric, values), number in samples:
        if metric == _P2P and number in _REFUSED:
            peers = dict(zip(family_of(metric).labels, values, strict=True))
            pair = frozenset({peers["pci_bus_id"], peers["peer_pci_bus_id"]})
            refused.setdefault(peers["capability"], set()).add(pair)
        elif number is not None and metric in METRICS and metric != _P2P:
            labels = dict(zip(family_of(metric).labels, values, strict=True))
            key = (labels["gpu"], labels["pci_bus_id"], labels.get("link", ""))
            by_metric.setdefault(metric, {})[key] = (labels, number)
    gpus = [
        Gpu(address, int(index), labels["name"], labels["uuid"], labels["architecture"], _links(by_metric, *key[:2]))
        for key, (labels, _) in by_metric.get(_GPU, {}).items()
        if (index := key[0]).isdigit() and (address := key[1])
    ]
    return DriverFacts(
        tuple(sorted(gpus, key=_index)),
        problems=tuple(problems),
        nvlink_refused=frozenset(refused["nvlink"]),
        peers_refused=frozenset(refused["read"]),
    )


def _index(gpu: Gpu) -> int:
    return -1 if gpu.index is None else gpu.index


def _links(by_metric: _Samples, index: str, address: str) -> tuple[NvLink, ...] | None:
    """The links of a GPU; None where their number or all of their states were not read, as with MIG enabled."""
    count = _number(by_metric, _COUNT, (index, address, ""))
    if count is None:
        return None
    found = []
    for number in range(int(count)):
        key = (index, address, str(number))
        labels, _ = by_metric.get(_INFO, {}).get(key, ({}, 0))
        state = _number(by_metric, _STATE, key)
        found.append(
            NvLink(
                number=number,
                state=None if state is None else int(state),
                version=labels.get("version", ""),
                remote_type=labels.get("remote_type", ""),
                remote_address=labels.get("remote_pci_bus_id", ""),
                line_rate=_number(by_metric, LINK_RATE, key),
            )
        )
    return None if found and all(link.state is None for link in found) else tuple(found)


def _number(by_metric: _Samples, metric: str, key: _Key) -> int | float | None:
    found = by_metric.get(metric, {}).get(key)
    return None if found is None else found[1]
