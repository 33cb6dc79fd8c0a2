"""Eight B200 SXM behind NVSwitches that the host does not see."""

from __future__ import annotations

from commwatch.simulation.presets.parts import EthernetInterface, GpuModel, NVLinkModel, Preset
from commwatch.simulation.presets.platform import Part, Platform, gpu_part, gpus_in_slots


def b200x8() -> Preset:
    """NVLink 5, with fields that earlier generations lack.

    The switches are not PCIe devices of the host. Inferred: the identities of the devices, and that the platform runs
    PCIe at generation 5.
    """
    model = GpuModel(
        name="NVIDIA B200",
        architecture=10,
        pci_class=0x030200,
        pci_device_id=0x2901,
        pci_subsystem_id=0x199910DE,
        memory_bytes=183359 * 2**20,
        pcie_generation=5,
        pcie_width=16,
        idle_pcie_generation=1,
        power_limit_watts=1000,
        mig=True,
        nvlink=NVLinkModel(
            links=18,
            version=7,
            line_rate_megabytes_per_second=53125,
            nominal_bytes_per_second=50e9,
            remote="switch",
        ),
    )
    platform = Platform(0x8086, 0x352A, 0x1000, 0xC030, generation=5)
    gpu = gpu_part(model)
    nic = Part("nic", 0x020000, 0x15B3, 0x1021, 5, 16, "mlx5_core")
    devices = [
        *platform.switch(0x14, 0, [gpu, gpu, nic]),
        *platform.switch(0x37, 0, [gpu, gpu]),
        *platform.switch(0x97, 1, [gpu, gpu, nic]),
        *platform.switch(0xB7, 1, [gpu, gpu]),
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
    return Preset(
        name="b200x8",
        model=model,
        gpus=gpus_in_slots(devices, identities),
        devices=tuple(devices),
        nvswitches=(),
        interfaces=(
            EthernetInterface("ens1np0", "0000:19:00.0", 400_000, 8.0e6),
            EthernetInterface("ens2np0", "0000:9c:00.0", 400_000, 5.0e6),
        ),
        driver_version="595.45.04",
        cuda_driver_version=13020,
    )
