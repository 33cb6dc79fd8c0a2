"""Four RTX 3090 without bridges."""

from __future__ import annotations

from commwatch.simulation.presets.parts import EthernetInterface, GpuModel, NVLinkModel, Preset
from commwatch.simulation.presets.platform import Part, Platform, gpu_part, gpus_in_slots


def rtx3090x4() -> Preset:
    """GPU pairs behind separate PCIe switches; NVLinks without a bridge."""
    model = GpuModel(
        name="NVIDIA GeForce RTX 3090",
        architecture=7,
        pci_class=0x030000,
        pci_device_id=0x2204,
        pci_subsystem_id=0x147D10DE,
        memory_bytes=24576 * 2**20,
        pcie_generation=4,
        pcie_width=16,
        idle_pcie_generation=1,
        power_limit_watts=350,
        pcie_peer_access=False,
        nvlink=NVLinkModel(
            links=4,
            version=5,
            line_rate_megabytes_per_second=14062,
            nominal_bytes_per_second=14.0625e9,
            remote="none",
        ),
    )
    platform = Platform(0x1022, 0x1483, 0x1000, 0xC010, generation=4)
    gpu = gpu_part(model)
    devices = [
        *platform.switch(0x20, 0, [gpu, gpu]),
        *platform.switch(0x60, 0, [gpu, gpu]),
        *platform.direct(0xC0, 0, Part("nic", 0x020000, 0x8086, 0x1563, 3, 4, "ixgbe")),
    ]
    identities = (
        ("GPU-7e35d0c9-b146-8f2a-a5d3-40c8e917f6b2", None),
        ("GPU-1fa8b4e6-6d09-c573-3e80-d92b75f0a4c1", None),
        ("GPU-b602c97d-e4f1-305a-97b6-1c5d8fe3a078", None),
        ("GPU-83d9f51a-207e-b4c6-f869-a70e2c4bd135", None),
    )
    return Preset(
        name="rtx3090x4",
        model=model,
        gpus=gpus_in_slots(devices, identities),
        devices=tuple(devices),
        nvswitches=(),
        interfaces=(EthernetInterface("enp193s0", "0000:c1:00.0", 10_000, 1.0e6),),
    )
