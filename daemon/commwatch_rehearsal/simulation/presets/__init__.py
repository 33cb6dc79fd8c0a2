"""The nodes that can be simulated: their GPUs, NVLinks, PCIe tree and network interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from commwatch.config.simulated import is_recording, names_a_file
from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.presets.parts import (
    NVIDIA,
    EthernetInterface,
    GpuModel,
    NVLinkModel,
    Preset,
    RdmaPort,
)
from commwatch_rehearsal.simulation.presets.platform import Platform, gpu_part, part, preset_of

VIRTUAL_MACHINE_NUMA_NODE = -1
"""The firmware of the machine gives no NUMA node."""

_H100 = GpuModel(
    name="NVIDIA H100 80GB HBM3",
    architecture=9,
    pci_device_id=0x2330,
    pci_subsystem_id=0x16C110DE,
    memory_bytes=81559 * 2**20,
    pcie_generation=5,
    power_limit_watts=700,
    mig=True,
    nvlink=NVLinkModel(
        links=18, version=6, line_rate_megabytes_per_second=26562, nominal_bytes_per_second=25e9, remote="switch"
    ),
)
_H100_IDENTITIES = (
    ("GPU-6f2c1b7e-93d4-5a0f-8c61-2e7b90d4f318", "1653023018214"),
    ("GPU-a41d0e95-7b28-c3f6-1d9a-58e3c07b62d1", "1653023018377"),
    ("GPU-0b97e3d2-c586-4f1a-e7b4-9d25f1806c3e", "1653023019052"),
    ("GPU-d85a26f4-1e70-b9c3-42f8-7c06ab5d91e7", "1653023018846"),
    ("GPU-37c9f081-a64b-2d5e-90c7-e1f4836a2bd5", "1652923041190"),
    ("GPU-e20b7d5c-4f93-81a6-b3d0-06a9c7e5f248", "1652923041633"),
    ("GPU-5d4e91a8-0c37-f6b2-6e15-c8b370d9a4f1", "1652923040875"),
    ("GPU-94f6c3b0-d2e8-7a15-058d-b37e4f12c096", "1652923041958"),
)
_NVSWITCH = part("nvswitch", 0x068000, NVIDIA, 0x22A3, 4, 2, "nvidia-nvswitch")
_CONNECTX_6 = part("nic", 0x020000, 0x15B3, 0x101D, 4, 16, "mlx5_core")
_CONNECTX_7 = part("nic", 0x020000, 0x15B3, 0x1021, 5, 16, "mlx5_core")
_XEON = Platform(0x8086, 0x352A, 0x1000, 0xC030, generation=5)
_EPYC = Platform(0x1022, 0x1483, 0x1000, 0xC010, generation=4)
_TWO_ADAPTERS = (
    EthernetInterface("ens1np0", "0000:19:00.0", 400_000, 8.0e6),
    EthernetInterface("ens2np0", "0000:9c:00.0", 400_000, 5.0e6),
)


def _h100x8() -> Preset:
    """Two GPUs below each of four PCIe switches, four NVSwitches, two Ethernet adapters."""
    gpu = gpu_part(_H100)
    devices = [
        *_XEON.switch(0x05, 0, [_NVSWITCH] * 4),
        *_XEON.switch(0x14, 0, [gpu, gpu, _CONNECTX_7]),
        *_XEON.switch(0x37, 0, [gpu, gpu]),
        *_XEON.switch(0x97, 1, [gpu, gpu, _CONNECTX_7]),
        *_XEON.switch(0xB7, 1, [gpu, gpu]),
    ]
    return preset_of("h100x8", _H100, devices, _H100_IDENTITIES, _TWO_ADAPTERS)


def _h100x8ndr() -> Preset:
    """The same GPUs in the same slots, an InfiniBand adapter for each below its switch, and a bond of two ports."""
    gpu, infiniband = gpu_part(_H100), replace(_CONNECTX_7, pci_class=0x020700)
    pair = [gpu, gpu, infiniband, infiniband]
    devices = [
        *_XEON.switch(0x05, 0, [_NVSWITCH] * 4),
        *_XEON.switch(0x14, 0, pair),
        *_XEON.switch(0x37, 0, pair),
        *_XEON.switch(0x97, 1, pair),
        *_XEON.switch(0xB7, 1, pair),
        *_XEON.direct(0xD6, 1, _CONNECTX_6, functions=2),
    ]
    adapters = [device.address for device in devices if device.pci_class == infiniband.pci_class]
    ends = [device.address for device in devices if device.pci_class == _CONNECTX_6.pci_class]
    interfaces = [
        EthernetInterface(f"ens11f{function}np{function}", address, 100_000, 4.0e6, bond="bond0", mtu=9000)
        for function, address in enumerate(ends)
    ]
    ports = [RdmaPort(f"mlx5_{number}", 1, address, "InfiniBand", 400) for number, address in enumerate(adapters)]
    ports += [
        RdmaPort(f"mlx5_{number}", 1, one.pci_address, "Ethernet", 100, speed_name="EDR", interface=one.name)
        for number, one in enumerate(interfaces, len(adapters))
    ]
    return preset_of("h100x8ndr", _H100, devices, _H100_IDENTITIES, interfaces, rdma_ports=tuple(ports))


def _h200x1() -> Preset:
    """One H200 SXM of an HGX board, handed to a virtual machine: a guest with full passthrough of one GPU.

    Inferred, not seen: all 18 links are active and lead to switches of the board, which the guest does not see, so that
    their bus addresses are empty. Where a host leaves them untrained, faults ``nvlink_down`` and ``fabric_unhealthy``
    (``check: registration``) show the result.
    """
    model = replace(
        _H100, name="NVIDIA H200", pci_device_id=0x2335, pci_subsystem_id=0x18BE10DE, memory_bytes=143771 * 2**20
    )
    platform = Platform(0x1B36, 0x000C, 0x1000, 0xC030, generation=5)
    devices = [
        *platform.direct(0x02, VIRTUAL_MACHINE_NUMA_NODE, gpu_part(model)),
        *platform.direct(0x08, VIRTUAL_MACHINE_NUMA_NODE, part("nic", 0x020000, 0x15B3, 0x101E, 5, 16, "mlx5_core")),
    ]
    identities = [("GPU-2c8e71f0-5a9b-d346-0e17-f94b63c8d205", "1654224017731")]
    interfaces = [EthernetInterface("ens9np0", "0000:09:00.0", 100_000, 3.0e6)]
    return preset_of("h200x1", model, devices, identities, interfaces)


def _b200x8() -> Preset:
    """Eight B200 SXM behind NVSwitches that are no PCIe devices of the host: NVLink 5, with fields of its own.

    Inferred: the identities of the devices, and that the platform runs PCIe at generation 5.
    """
    model = GpuModel(
        name="NVIDIA B200",
        architecture=10,
        pci_device_id=0x2901,
        pci_subsystem_id=0x199910DE,
        memory_bytes=183359 * 2**20,
        pcie_generation=5,
        power_limit_watts=1000,
        mig=True,
        nvlink=NVLinkModel(
            links=18, version=7, line_rate_megabytes_per_second=53125, nominal_bytes_per_second=50e9, remote="switch"
        ),
    )
    gpu = gpu_part(model)
    devices = [
        *_XEON.switch(0x14, 0, [gpu, gpu, _CONNECTX_7]),
        *_XEON.switch(0x37, 0, [gpu, gpu]),
        *_XEON.switch(0x97, 1, [gpu, gpu, _CONNECTX_7]),
        *_XEON.switch(0xB7, 1, [gpu, gpu]),
    ]
    identities = (
        ("GPU-e58c1a27-d604-93bf-71c5-3f80ab6d92e4", "1660325004081"),
        ("GPU-17d3f6b9-802e-c45a-e69d-5b0c74a8f213", "1660325004127"),
        ("GPU-c9402be8-5f71-0da6-3b84-e61d97f5a0c2", "1660325004209"),
        ("GPU-7ab6e513-94c8-2fd0-a05e-18f3c2d7b964", "1660325004333"),
        ("GPU-30fd85c6-eb12-7a49-d8f1-94b6023ce75a", "1660325011018"),
        ("GPU-d4917ea0-3c6b-58f2-062d-c7a5f1e8b439", "1660325011042"),
        ("GPU-6be20c94-a7d5-f138-4fc9-0d72e9b5163a", "1660325011117"),
        ("GPU-85f1d3a7-0e49-b6c2-97b0-a2e46d3c8f51", "1660325011236"),
    )
    return preset_of(
        "b200x8", model, devices, identities, _TWO_ADAPTERS, driver_version="595.45.04", cuda_driver_version=13020
    )


def _a100x4() -> Preset:
    """Four A100 SXM4 on one board, joined without switches: each GPU has four links to each of the other three.

    Inferred: which link leads where.
    """
    model = GpuModel(
        name="NVIDIA A100-SXM4-80GB",
        architecture=7,
        pci_device_id=0x20B2,
        pci_subsystem_id=0x147F10DE,
        memory_bytes=81920 * 2**20,
        pcie_generation=4,
        power_limit_watts=400,
        mig=True,
        nvlink=NVLinkModel(
            links=12, version=4, line_rate_megabytes_per_second=25000, nominal_bytes_per_second=25e9, remote="gpu"
        ),
    )
    gpu = gpu_part(model)
    devices = [
        *_EPYC.direct(0x00, 3, gpu),
        *_EPYC.direct(0x40, 1, gpu),
        *_EPYC.direct(0x80, 7, gpu),
        *_EPYC.direct(0xC0, 5, gpu),
        *_EPYC.direct(0xE0, 5, _CONNECTX_6),
    ]
    identities = (
        ("GPU-8d5f02b6-31ce-4a97-d280-6c1be7f90a43", "1564720006112"),
        ("GPU-f16a9c3e-07d4-b825-5e39-a84d10f2c76b", "1564720006140"),
        ("GPU-49e3b7d8-6c50-1fa2-93d7-0b25fe8164ca", "1564720005877"),
        ("GPU-b20d84f5-e97a-63c1-08b4-d57f3a91e6c2", "1564720006203"),
    )
    interfaces = [EthernetInterface("enp225s0f0np0", "0000:e1:00.0", 100_000, 3.0e6)]
    return preset_of("a100x4", model, devices, identities, interfaces)


def _a10x2() -> Preset:
    """Two A10 on different NUMA nodes; no NVLink, the GPUs talk through the processors."""
    model = GpuModel(
        name="NVIDIA A10",
        architecture=7,
        pci_device_id=0x2236,
        pci_subsystem_id=0x148210DE,
        memory_bytes=23028 * 2**20,
        pcie_generation=4,
        power_limit_watts=150,
    )
    platform, gpu = Platform(0x8086, 0x347A, 0x1000, 0xC010, generation=4), gpu_part(model)
    devices = [
        *platform.direct(0x16, 0, gpu),
        *platform.direct(0x4A, 0, _CONNECTX_6),
        *platform.direct(0x98, 1, gpu),
    ]
    identities = (
        ("GPU-c1709e4b-58a2-d6f3-2b94-f07d35e8a61c", "1321021036419"),
        ("GPU-48be62d7-f3c0-9a15-d781-3e6c0b94f5a2", "1321021036702"),
    )
    interfaces = [EthernetInterface("ens3f0np0", "0000:4b:00.0", 25_000, 2.0e6)]
    return preset_of("a10x2", model, devices, identities, interfaces)


def _rtx3090x4() -> Preset:
    """Four RTX 3090, pairs behind separate PCIe switches; NVLinks without a bridge."""
    model = GpuModel(
        name="NVIDIA GeForce RTX 3090",
        architecture=7,
        pci_class=0x030000,
        pci_device_id=0x2204,
        pci_subsystem_id=0x147D10DE,
        memory_bytes=24576 * 2**20,
        pcie_generation=4,
        power_limit_watts=350,
        pcie_peer_access=False,
        nvlink=NVLinkModel(
            links=4, version=5, line_rate_megabytes_per_second=14062, nominal_bytes_per_second=14.0625e9, remote="none"
        ),
    )
    gpu = gpu_part(model)
    devices = [
        *_EPYC.switch(0x20, 0, [gpu, gpu]),
        *_EPYC.switch(0x60, 0, [gpu, gpu]),
        *_EPYC.direct(0xC0, 0, part("nic", 0x020000, 0x8086, 0x1563, 3, 4, "ixgbe")),
    ]
    identities = (
        ("GPU-7e35d0c9-b146-8f2a-a5d3-40c8e917f6b2", None),
        ("GPU-1fa8b4e6-6d09-c573-3e80-d92b75f0a4c1", None),
        ("GPU-b602c97d-e4f1-305a-97b6-1c5d8fe3a078", None),
        ("GPU-83d9f51a-207e-b4c6-f869-a70e2c4bd135", None),
    )
    interfaces = [EthernetInterface("enp193s0", "0000:c1:00.0", 10_000, 1.0e6)]
    return preset_of("rtx3090x4", model, devices, identities, interfaces)


PRESETS: Mapping[str, Preset] = {
    preset.name: preset for preset in (_h100x8(), _h100x8ndr(), _h200x1(), _b200x8(), _a100x4(), _a10x2(), _rtx3090x4())
}
"""Every preset by its name."""


def find_preset(preset: str) -> Preset:
    """The node that ``--simulate`` names.

    Raises:
        ConfigError: there is no such preset, or the file cannot be used; it names file, line and key.
    """
    if is_recording(preset):
        from commwatch_rehearsal.simulation.recording.node import load
        from commwatch_rehearsal.simulation.recording.parts import recorded_preset

        return recorded_preset(Path(preset), load(Path(preset)))
    if names_a_file(preset):
        # With all that reading a file needs; most processes of a simulated node never do.
        from commwatch_rehearsal.simulation.node_file import read_node

        return read_node(Path(preset))
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError("--simulate", None, "", f"no preset {preset!r}; there are {known}, or a file of your own")
    return PRESETS[preset]
