"""Two A10 on different NUMA nodes."""

from __future__ import annotations

from commwatch.simulation.presets.parts import EthernetInterface, GpuModel, Preset
from commwatch.simulation.presets.platform import Part, Platform, gpu_part, gpus_in_slots


def a10x2() -> Preset:
    """No NVLink; the GPUs talk through the processors."""
    model = GpuModel(
        name="NVIDIA A10",
        architecture=7,
        pci_class=0x030200,
        pci_device_id=0x2236,
        pci_subsystem_id=0x148210DE,
        memory_bytes=23028 * 2**20,
        pcie_generation=4,
        pcie_width=16,
        idle_pcie_generation=1,
        power_limit_watts=150,
    )
    platform = Platform(0x8086, 0x347A, 0x1000, 0xC010, generation=4)
    gpu = gpu_part(model)
    devices = [
        *platform.direct(0x16, 0, gpu),
        *platform.direct(0x4A, 0, Part("nic", 0x020000, 0x15B3, 0x101D, 4, 16, "mlx5_core")),
        *platform.direct(0x98, 1, gpu),
    ]
    identities = (
        ("GPU-c1709e4b-58a2-d6f3-2b94-f07d35e8a61c", "1321021036419"),
        ("GPU-48be62d7-f3c0-9a15-d781-3e6c0b94f5a2", "1321021036702"),
    )
    return Preset(
        name="a10x2",
        model=model,
        gpus=gpus_in_slots(devices, identities),
        devices=tuple(devices),
        nvswitches=(),
        interfaces=(EthernetInterface("ens3f0np0", "0000:4b:00.0", 25_000, 2.0e6),),
    )
