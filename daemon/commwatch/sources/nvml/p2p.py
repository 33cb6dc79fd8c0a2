"""Which pairs of GPUs can reach each other directly: NVML's peer-to-peer status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pynvml

from commwatch.readings import DeviceReadings
from commwatch.sources.base import Report
from commwatch.sources.nvml import codes
from commwatch.sources.nvml.gpu import Gpu
from commwatch_exporters.snapshot import Series, Value

CAPABILITIES: Final = (("nvlink", 2), ("read", 0))
"""NVML's index of each capability; the binding's constant of the second is a tuple by mistake."""


def read_peers(gpus: Sequence[Gpu], report: Report, monotonic: Callable[[], float]) -> list[DeviceReadings]:
    """The status of all ordered pairs of the GPUs that can be peers, by GPU; failures are noted at the GPU.

    A GPU that is split by MIG has no peers, and one alone has none. A pair of which one GPU is lost has no status;
    other collectors show which one it is. If a GPU's own calls fail, no other one is blamed.

    Raises:
        GpuGone, SourceUnavailable: as for ``Gpu.note``; GpuGone never for a pair.
    """
    whole = []
    for gpu in gpus:
        report(gpu.device)
        if not gpu.mig_enabled():
            whole.append(gpu)
    if len(whole) < 2:
        return []
    readings = []
    for gpu in whole:
        report(gpu.device)
        found: dict[Series, Value] = {
            ("commwatch_gpu_p2p_status", (*gpu.labels, *peer.labels, capability)): _status(
                gpu, peer, index, to_blame=not peer.has_failed or gpu.has_failed
            )
            for peer in whole
            if peer is not gpu
            for capability, index in CAPABILITIES
        }
        readings.append(DeviceReadings(gpu.device, monotonic(), tuple(found), tuple(found.values())))
    return readings


def _status(gpu: Gpu, peer: Gpu, index: int, *, to_blame: bool) -> Value:
    value, code = gpu.ask_peer(pynvml.nvmlDeviceGetP2PStatus, peer, index)
    if code not in codes.GONE and (to_blame or code in codes.NO_DRIVER):
        gpu.note(pynvml.nvmlDeviceGetP2PStatus.__name__, code)
    return value
