"""Functions of the simulated driver library about two GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commwatch_rehearsal.simulation.abi import INVALID_ARGUMENT, Argument, integer, store
from commwatch_rehearsal.simulation.call import Call

_READ, _WRITE, _NVLINK, _ATOMICS, _PCI = range(5)
_OK, _CHIPSET_NOT_SUPPORTED, _NOT_SUPPORTED = 0, 1, 5


def _p2p_status(first: Call, second: Call, index: Argument, status: Argument) -> int:
    """Peer access over NVLink where active links join the two, else over PCIe where the GPU model allows it."""
    number = integer(index)
    if not _READ <= number <= _PCI or first.place == second.place:
        return INVALID_ARGUMENT
    joined = _joined_by_nvlink(first, second)
    if number == _NVLINK:
        return store(status, _OK if joined else _NOT_SUPPORTED)
    if number == _PCI or not joined:
        if not first.model.pcie_peer_access:
            return store(status, _CHIPSET_NOT_SUPPORTED)
        return store(status, _NOT_SUPPORTED if number == _ATOMICS else _OK)
    return store(status, _OK)


def _joined_by_nvlink(first: Call, second: Call) -> bool:
    ends = first.condition, second.condition
    if any(end.p2p_broken or "registration" in end.fabric_checks or not any(end.links_active) for end in ends):
        return False
    nvlink = first.model.nvlink
    if nvlink is not None and nvlink.remote == "switch":
        return True
    peers = [
        first.hardware.preset.peer(first.place, link)
        for link, active in enumerate(first.condition.links_active)
        if active
    ]
    return any(peer is not None and peer[0] == second.place for peer in peers)


PAIR_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "nvmlDeviceGetP2PStatus": _p2p_status,
}
"""Function by symbol; each takes the calls about both GPUs and what follows their handles, and returns a code."""
