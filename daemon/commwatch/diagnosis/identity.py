"""Which node a diagnosis is of: its GPUs, its software and its firmware, as the daemon exposes them; pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from commwatch.findings.api_documents import SnapshotDocument
from commwatch_exporters.state_words import GPU_STATES, word_of


class GpuIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; empty texts for what is not known, as of one that was lost before the daemon started."""

    index: str
    slot: str
    """PCI address."""
    model: str = ""
    uuid: str = ""
    serial: str = ""
    state: str = ""
    """ok, lost, ..."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a vendor asks first."""

    host: str
    gpus: tuple[GpuIdentity, ...]
    software: dict[str, str]
    """By name the version: commwatch, python, driver, NVML, CUDA (the driver's), NCCL, kernel."""
    firmware: dict[str, str]
    """By RDMA device."""


def identity_of(snapshot: SnapshotDocument, host: str, kernel: str) -> Identity:
    """What a snapshot says of the node.

    Args:
        snapshot: of the daemon.
        host: name of the node.
        kernel: its release; empty where it is not that of this node.
    """
    return Identity(host=host, gpus=_gpus(snapshot), software=_software(snapshot, kernel), firmware=_firmware(snapshot))


def _gpus(snapshot: SnapshotDocument) -> tuple[GpuIdentity, ...]:
    states = {(labels["gpu"], labels["pci_bus_id"]): value for labels, value in snapshot.samples("commwatch_gpu_state")}
    infos = {(labels["gpu"], labels["pci_bus_id"]): labels for labels, _ in snapshot.samples("commwatch_gpu_info")}
    found = []
    for index, slot in sorted({*states, *infos}, key=lambda one: (len(one[0]), one)):
        info, state = infos.get((index, slot), {}), states.get((index, slot))
        found.append(
            GpuIdentity(
                index=index,
                slot=slot,
                model=info.get("name", ""),
                uuid=info.get("uuid", ""),
                serial=info.get("serial", ""),
                state="" if state is None else word_of(GPU_STATES, state),
            )
        )
    return tuple(found)


def _software(snapshot: SnapshotDocument, kernel: str) -> dict[str, str]:
    named = (
        ("driver", "commwatch_software_info", "driver_version"),
        ("NVML", "commwatch_software_info", "nvml_version"),
        ("CUDA", "commwatch_software_info", "cuda_driver_version"),
        ("NCCL", "commwatch_probe_info", "nccl_version"),
        ("torch", "commwatch_probe_info", "torch_version"),
        ("python", "commwatch_build_info", "python_version"),
    )
    found = {name: _distinct(snapshot, metric, label) for name, metric, label in named}
    return {name: text for name, text in ({"commwatch": snapshot.version} | found | {"kernel": kernel}).items() if text}


def _firmware(snapshot: SnapshotDocument) -> dict[str, str]:
    ports = (labels for labels, _ in snapshot.samples("commwatch_rdma_port_info"))
    return {labels["device"]: labels["firmware"] for labels in ports if labels["firmware"]}


def _distinct(snapshot: SnapshotDocument, metric: str, label: str) -> str:
    values: Iterable[str] = (labels[label] for labels, _ in snapshot.samples(metric))
    return ", ".join(dict.fromkeys(value for value in values if value))
