"""Four A100 SXM4 on one board, joined without switches."""

from __future__ import annotations

from commwatch.simulation.presets.parts import EthernetInterface, GpuModel, NVLinkModel, Preset
from commwatch.simulation.presets.platform import Part, Platform, gpu_part, gpus_in_slots


def a100x4() -> Preset:
    """Each GPU has four links to each of the other three; which link leads where is inferred."""
    model = GpuModel(
        name="NVIDIA A100-SXM4-80GB",
        architecture=7,
        pci_class=0x030200,
        pci_device_id=0x20B2,
        pci_subsystem_id=0x147F10DE,
        memory_bytes=81920 * 2**20,
        pcie_generation=4,
        pcie_width=16,
        idle_pcie_generation=1,
        power_limit_watts=400,
        mig=True,
        nvlink=NVLinkModel(
            links=12,
            version=4,
            line_rate_megabytes_per_second=25000,
            nominal_bytes_per_second=25e9,
            remote="gpu",
        ),
    )
    platform = Platform(0x1022, 0x1483, 0x1000, 0xC010, generation=4)
    gpu = gpu_part(model)
    devices = [
        *platform.direct(0x00, 3, gpu),
        *platform.direct(0x40, 1, gpu),
        *platform.direct(0x80, 7, gpu),
        *platform.direct(0xC0, 5, gpu),
        *platform.direct(0xE0, 5, Part("nic", 0x020000, 0x15B3, 0x101D, 4, 16, "mlx5_core")),
    ]
    identities = (
        ("GPU-8d5f02b6-31ce-4a97-d280-6c1be7f90a43", "1564720006112"),
        ("GPU-f16a9c3e-07d4-b825-5e39-a84d10f2c76b", "1564720006140"),
        ("GPU-49e3b7d8-6c50-1fa2-93d7-0b25fe8164ca", "1564720005877"),
        ("GPU-b20d84f5-e97a-63c1-08b4-d57f3a91e6c2", "1564720006203"),
    )
    return Preset(
        name="a100x4",
        model=model,
        gpus=gpus_in_slots(devices, identities),
        devices=tuple(devices),
        nvswitches=(),
        interfaces=(EthernetInterface("enp225s0f0np0", "0000:e1:00.0", 100_000, 3.0e6),),
    )
