"""Which node a diagnosis is of: its GPUs, its software and its firmware, as the daemon exposes them; pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from commwatch.diagnosis.known import Known
from commwatch_exporters.node.model import Gpu, Probe, RdmaPort
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
    """Names and versions that a vendor asks for first."""

    host: str
    gpus: tuple[GpuIdentity, ...]
    software: dict[str, str]
    """By name the version: commwatch, python, driver, NVML, CUDA (the driver's), NCCL, kernel."""
    firmware: dict[str, str]
    """By RDMA device."""


def identity_of(known: Known, host: str, kernel: str) -> Identity:
    """Which node it is, by what is exposed.

    Args:
        kernel: its release; empty where it is not that of this node.
    """
    node = known.facts.node
    probes = [probe for probe, _ in node.each(Probe.info)]
    software = {
        "commwatch": known.snapshot.version,
        "driver": node.driver.driver_version,
        "NVML": node.driver.nvml_version,
        "CUDA": node.driver.cuda_driver_version,
        "NCCL": _distinct(probe.nccl_version for probe in probes),
        "torch": _distinct(probe.torch_version for probe in probes),
        "python": node.daemon.python_version,
        "kernel": kernel,
    }
    return Identity(
        host=host,
        gpus=tuple(map(_gpu, node.gpus)),
        software={name: version for name, version in software.items() if version},
        firmware={port.device: port.firmware for port, _ in node.each(RdmaPort.info) if port.firmware},
    )


def _gpu(gpu: Gpu) -> GpuIdentity:
    return GpuIdentity(
        index=gpu.index,
        slot=gpu.address,
        model=gpu.name,
        uuid=gpu.uuid,
        serial=gpu.serial,
        state="" if gpu.state is None else word_of(GPU_STATES, gpu.state),
    )


def _distinct(versions: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, versions)))
