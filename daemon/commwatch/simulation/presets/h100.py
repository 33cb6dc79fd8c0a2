"""Eight H100 SXM behind four NVSwitches, with Ethernet or with InfiniBand."""

from __future__ import annotations

from commwatch.simulation.presets.parts import NVIDIA, EthernetInterface, GpuModel, NVLinkModel, Preset, RdmaPort
from commwatch.simulation.presets.platform import Part, Platform, gpu_part, gpus_in_slots

_MODEL = GpuModel(
    name="NVIDIA H100 80GB HBM3",
    architecture=9,
    pci_class=0x030200,
    pci_device_id=0x2330,
    pci_subsystem_id=0x16C110DE,
    memory_bytes=81559 * 2**20,
    pcie_generation=5,
    pcie_width=16,
    idle_pcie_generation=1,
    power_limit_watts=700,
    mig=True,
    nvlink=NVLinkModel(
        links=18,
        version=6,
        line_rate_megabytes_per_second=26562,
        nominal_bytes_per_second=25e9,
        remote="switch",
    ),
)
_IDENTITIES = (
    ("GPU-6f2c1b7e-93d4-5a0f-8c61-2e7b90d4f318", "1653023018214"),
    ("GPU-a41d0e95-7b28-c3f6-1d9a-58e3c07b62d1", "1653023018377"),
    ("GPU-0b97e3d2-c586-4f1a-e7b4-9d25f1806c3e", "1653023019052"),
    ("GPU-d85a26f4-1e70-b9c3-42f8-7c06ab5d91e7", "1653023018846"),
    ("GPU-37c9f081-a64b-2d5e-90c7-e1f4836a2bd5", "1652923041190"),
    ("GPU-e20b7d5c-4f93-81a6-b3d0-06a9c7e5f248", "1652923041633"),
    ("GPU-5d4e91a8-0c37-f6b2-6e15-c8b370d9a4f1", "1652923040875"),
    ("GPU-94f6c3b0-d2e8-7a15-058d-b37e4f12c096", "1652923041958"),
)

_PLATFORM = Platform(0x8086, 0x352A, 0x1000, 0xC030, generation=5)
_GPU = gpu_part(_MODEL)
_NVSWITCH = Part("nvswitch", 0x068000, NVIDIA, 0x22A3, 4, 2, "nvidia-nvswitch")


def h100x8() -> Preset:
    """Two GPUs below each of four PCIe switches, two Ethernet adapters."""
    nic = Part("nic", 0x020000, 0x15B3, 0x1021, 5, 16, "mlx5_core")
    devices = [
        *_PLATFORM.switch(0x05, 0, [_NVSWITCH] * 4),
        *_PLATFORM.switch(0x14, 0, [_GPU, _GPU, nic]),
        *_PLATFORM.switch(0x37, 0, [_GPU, _GPU]),
        *_PLATFORM.switch(0x97, 1, [_GPU, _GPU, nic]),
        *_PLATFORM.switch(0xB7, 1, [_GPU, _GPU]),
    ]
    return Preset(
        name="h100x8",
        model=_MODEL,
        gpus=gpus_in_slots(devices, _IDENTITIES),
        devices=tuple(devices),
        nvswitches=tuple(device.address for device in devices if device.role == "nvswitch"),
        interfaces=(
            EthernetInterface("ens1np0", "0000:19:00.0", 400_000, 8.0e6),
            EthernetInterface("ens2np0", "0000:9c:00.0", 400_000, 5.0e6),
        ),
    )


def h100x8ndr() -> Preset:
    """The same GPUs in the same slots, an InfiniBand adapter for each below its switch, and a bond of two ports."""
    infiniband = Part("nic", 0x020700, 0x15B3, 0x1021, 5, 16, "mlx5_core")
    ethernet = Part("nic", 0x020000, 0x15B3, 0x101D, 4, 16, "mlx5_core")
    pair = [_GPU, _GPU, infiniband, infiniband]
    devices = [
        *_PLATFORM.switch(0x05, 0, [_NVSWITCH] * 4),
        *_PLATFORM.switch(0x14, 0, pair),
        *_PLATFORM.switch(0x37, 0, pair),
        *_PLATFORM.switch(0x97, 1, pair),
        *_PLATFORM.switch(0xB7, 1, pair),
        *_PLATFORM.direct(0xD6, 1, ethernet, functions=2),
    ]
    adapters = [device.address for device in devices if device.pci_class == infiniband.pci_class]
    ends = [device.address for device in devices if device.pci_class == ethernet.pci_class]
    interfaces = [
        EthernetInterface(f"ens11f{function}np{function}", address, 100_000, 4.0e6, bond="bond0", mtu=9000)
        for function, address in enumerate(ends)
    ]
    return Preset(
        name="h100x8ndr",
        model=_MODEL,
        gpus=gpus_in_slots(devices, _IDENTITIES),
        devices=tuple(devices),
        nvswitches=tuple(device.address for device in devices if device.role == "nvswitch"),
        interfaces=tuple(interfaces),
        rdma_ports=(
            *(RdmaPort(f"mlx5_{number}", 1, address, "InfiniBand", 400) for number, address in enumerate(adapters)),
            *(
                RdmaPort(
                    f"mlx5_{len(adapters) + number}",
                    1,
                    interface.pci_address,
                    "Ethernet",
                    100,
                    speed_name="EDR",
                    interface=interface.name,
                )
                for number, interface in enumerate(interfaces)
            ),
        ),
    )
