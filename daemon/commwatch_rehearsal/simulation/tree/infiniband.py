"""RDMA devices of a simulated node, as the kernel and the mlx5 driver show them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets.parts import Preset, RdmaPort
from commwatch_rehearsal.simulation.rdma import PortCondition
from commwatch_rehearsal.simulation.tree.pci import pci_folder
from commwatch_rehearsal.simulation.tree.writer import Entry, Link, Tree

_ADAPTERS = {
    0x1017: ("16.35.4030", "MT_0000000012"),
    0x101B: ("20.39.1002", "MT_0000000223"),
    0x101D: ("22.39.1002", "MT_0000000359"),
    0x1021: ("28.39.1002", "MT_0000000838"),
}
"""PCI device id: version of the firmware, and board."""
_LIFESPAN_MILLISECONDS = 10
_SUBNET_MANAGER_LID = 1
_NO_LID = 0xFFFF
_VERSION_1, _VERSION_2 = "IB/RoCE v1", "RoCE v2"
"""Types of GIDs; those of InfiniBand have the first as well."""
_CAPABILITIES = {"InfiniBand": "0xa751e848", "Ethernet": "0x00010000"}
_RATE_WHEN_DOWN = {"InfiniBand": "10 Gb/sec (4X SDR)", "Ethernet": "40 Gb/sec (4X QDR)"}
"""The mlx5 driver's rate of a port that is down."""


def infiniband_tree(hardware: Hardware, time: float) -> Tree:
    """``/sys/class/infiniband``: the RDMA devices of the preset with their ports and counters."""
    tree: dict[str, Entry] = {}
    for condition in hardware.epoch(time).rdma_ports:
        port = condition.port
        device = pci_folder(hardware.preset, port.pci_address)
        home = f"{device}/infiniband/{port.device}"
        files = dict(_device_files(hardware.preset, port))
        files |= {f"ports/{port.port}/{name}": content for name, content in _port_files(condition)}
        files[f"ports/{port.port}/hw_counters/lifespan"] = str(_LIFESPAN_MILLISECONDS)
        tree |= {f"{home}/{name}": f"{content}\n" for name, content in files.items()}
        tree |= {
            f"{home}/ports/{port.port}/{path}": f"{count}\n" if condition.readable else None
            for path, count in condition.counts(time)
        }
        tree |= {f"class/infiniband/{port.device}": Link(home), f"{home}/device": Link(device)}
    return tree


def _device_files(preset: Preset, port: RdmaPort) -> Iterator[tuple[str, str]]:
    identity = next(one.device_id for one in preset.devices if one.address == port.pci_address)
    firmware, board = _ADAPTERS.get(identity, ("0.0.0", "MT_0000000000"))
    guid = 0x0C42A10300000000 | zlib.crc32(f"{preset.name} {port.device}".encode())
    yield "node_type", "1: CA"
    yield "node_desc", f"simulated {port.device}"
    yield "node_guid", _guid(guid)
    yield "sys_image_guid", _guid(guid)
    yield "fw_ver", firmware
    yield "hca_type", f"MT{identity}"
    yield "board_id", board
    yield "hw_rev", "0"


def _port_files(condition: PortCondition) -> Iterator[tuple[str, str]]:
    port, up = condition.port, condition.up
    infiniband = port.link_layer == "InfiniBand"
    active = up and (condition.set_up or not infiniband)
    lid = zlib.crc32(f"{port.device}/{port.port}".encode()) % 0xBF00 + 2 if active else _NO_LID
    yield "state", "4: ACTIVE" if active else "2: INIT" if up else "1: DOWN"
    yield "phys_state", "5: LinkUp" if up else "2: Polling" if infiniband else "3: Disabled"
    yield "link_layer", port.link_layer
    rate = f"{port.rate_gigabits_per_second} Gb/sec ({port.lanes}X {port.speed_name})"
    yield "rate", rate if up else _RATE_WHEN_DOWN[port.link_layer]
    yield "lid", f"0x{lid:x}" if infiniband else "0x0"
    yield "sm_lid", f"0x{_SUBNET_MANAGER_LID if infiniband and active else 0:x}"
    yield "sm_sl", "0"
    yield "lid_mask_count", "0"
    yield "cap_mask", _CAPABILITIES[port.link_layer]
    for index, (gid, kind) in enumerate(_gids(port)):
        yield f"gids/{index}", gid
        yield f"gid_attrs/types/{index}", kind
        if port.interface:
            # Without an interface the kernel has the file too, but to read it is an error.
            yield f"gid_attrs/ndevs/{index}", port.interface


def _gids(port: RdmaPort) -> Iterator[tuple[str, str]]:
    """GID and type of each filled entry: the kernel makes one of each RoCE version of every address."""
    number = zlib.crc32(f"{port.device}/{port.port}".encode())
    link_local = f"fe80:0000:0000:0000:{_guid(0x0C42A10300000000 | number)}"
    yield link_local, _VERSION_1
    if port.link_layer == "Ethernet":
        yield link_local, _VERSION_2
        network, host = 0xC612, number & 0xFFFF  # 198.18.0.0/15 is set aside for tests
        for version in (_VERSION_1, _VERSION_2):
            yield f"0000:0000:0000:0000:0000:ffff:{network:04x}:{host:04x}", version


def _guid(number: int) -> str:
    digits = f"{number:016x}"
    return ":".join(digits[start : start + 4] for start in range(0, 16, 4))
