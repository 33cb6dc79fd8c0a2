"""By which way network adapters can reach GPU memory: the kernel modules that give it to them."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from commwatch.sources import files

WAYS: Final = ("peermem", "dma_buf")
_PEERMEM_MODULES: Final = ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem")
_OPEN_MODULE: Final = b"Open Kernel Module"


class GpuDirect(NamedTuple):
    """The state of GPUDirect RDMA; None: not known."""

    peermem: bool | None
    """Whether nvidia_peermem, its forerunner nv_peer_mem, or the module of EFA adapters is loaded."""
    dma_buf: bool | None
    """Whether NVIDIA's open kernel module is loaded, which gives GPU memory by dma-buf."""


def read_gpudirect(sysfs: str, procfs: str) -> GpuDirect:
    """Look at ``/sys/module`` and ``/proc/driver/nvidia/version``; nothing of it asks the hardware."""
    modules = f"{sysfs}/module"
    peermem = any(os.path.exists(f"{modules}/{name}") for name in _PEERMEM_MODULES) if os.path.isdir(modules) else None
    version = files.read_if_there(f"{procfs}/driver/nvidia/version")
    return GpuDirect(peermem, None if version is None else _OPEN_MODULE in version)
