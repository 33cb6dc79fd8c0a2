"""RDMA devices of a simulated node, as the kernel and the mlx5 driver show them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets.parts import Preset, RdmaPort
from commwatch_rehearsal.simulation.rdma import PortStretch, RdmaPortState
from commwatch_rehearsal.simulation.tree.pci import pci_folder
from commwatch_rehearsal.simulation.tree.writer import TreeWriter

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


class InfinibandPart:
    """``/sys/class/infiniband``: the RDMA devices of the preset with their ports and counters."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._homes = {
            port.device: f"{pci_folder(preset, port.pci_address)}/infiniband/{port.device}"
            for port in preset.rdma_ports
        }
        self._hardware: Hardware | None = None
        self._ports: list[tuple[RdmaPortState, str]] = []
        self._seen: dict[str, PortStretch] = {}

    def update(self, writer: TreeWriter, hardware: Hardware, time: float) -> None:
        """Bring the files up to date: constant ones only when something changed."""
        if hardware is not self._hardware:
            self._hardware, self._seen = hardware, {}
            self._ports = [
                (RdmaPortState(hardware, port), f"{self._homes[port.device]}/ports/{port.port}")
                for port in self._preset.rdma_ports
            ]
            self._write_devices(writer)
        for state, folder in self._ports:
            stretch = state.stretch(time)
            if self._seen.get(folder) is not stretch:
                self._seen[folder] = stretch
                _write_resting(writer, state, folder, stretch)
            if stretch.readable:
                for path, counter in stretch.moving:
                    writer.put(f"{folder}/{path}", str(state.value(counter, time)))

    def _write_devices(self, writer: TreeWriter) -> None:
        for device, home in self._homes.items():
            address = next(port.pci_address for port in self._preset.rdma_ports if port.device == device)
            identity = next(one.device_id for one in self._preset.devices if one.address == address)
            firmware, board = _ADAPTERS.get(identity, ("0.0.0", "MT_0000000000"))
            guid = 0x0C42A10300000000 | zlib.crc32(f"{self._preset.name} {device}".encode())
            for name, content in (
                ("node_type", "1: CA"),
                ("node_desc", f"simulated {device}"),
                ("node_guid", _guid(guid)),
                ("sys_image_guid", _guid(guid)),
                ("fw_ver", firmware),
                ("hca_type", f"MT{identity}"),
                ("board_id", board),
                ("hw_rev", "0"),
            ):
                writer.put(f"{home}/{name}", content)
            writer.link(f"class/infiniband/{device}", home)
            writer.link(f"{home}/device", pci_folder(self._preset, address))


def _write_resting(writer: TreeWriter, state: RdmaPortState, folder: str, stretch: PortStretch) -> None:
    """All but the counters that move."""
    for name, content in _port_files(state.port, stretch.up, stretch.set_up):
        writer.put(f"{folder}/{name}", content)
    writer.put(f"{folder}/hw_counters/lifespan", str(_LIFESPAN_MILLISECONDS))
    if stretch.readable:
        for path, count in stretch.resting.items():
            writer.put(f"{folder}/{path}", str(count))
    else:
        for path in (*stretch.resting, *(path for path, _ in stretch.moving)):
            writer.obstruct(f"{folder}/{path}")


def _port_files(port: RdmaPort, up: bool, set_up: bool) -> Iterator[tuple[str, str]]:
    infiniband = port.link_layer == "InfiniBand"
    active = up and (set_up or not infiniband)
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
