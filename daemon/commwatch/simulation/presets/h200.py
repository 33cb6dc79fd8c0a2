"""One H200 SXM of an HGX board, handed to a virtual machine."""

from __future__ import annotations

from commwatch.simulation.presets.parts import EthernetInterface, GpuModel, NVLinkModel, Preset
from commwatch.simulation.presets.platform import Part, Platform, gpu_part, gpus_in_slots

VIRTUAL_MACHINE_NUMA_NODE = -1
"""The firmware of the machine says nothing about NUMA."""


def h200x1() -> Preset:
    """A guest with full passthrough of one GPU.

    Inferred, not seen: all 18 links are active and lead to switches of the board, which the guest does not see, so that
    their bus addresses are empty. Where a host leaves them untrained, faults ``nvlink_down`` and ``fabric_unhealthy``
    (``check: registration``) show what that looks like.
    """
    model = GpuModel(
        name="NVIDIA H200",
        architecture=9,
        pci_class=0x030200,
        pci_device_id=0x2335,
        pci_subsystem_id=0x18BE10DE,
        memory_bytes=143771 * 2**20,
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
    platform = Platform(0x1B36, 0x000C, 0x1000, 0xC030, generation=5)
    devices = [
        *platform.direct(0x02, VIRTUAL_MACHINE_NUMA_NODE, gpu_part(model)),
        *platform.direct(0x08, VIRTUAL_MACHINE_NUMA_NODE, Part("nic", 0x020000, 0x15B3, 0x101E, 5, 16, "mlx5_core")),
    ]
    return Preset(
        name="h200x1",
        model=model,
        gpus=gpus_in_slots(devices, [("GPU-2c8e71f0-5a9b-d346-0e17-f94b63c8d205", "1654224017731")]),
        devices=tuple(devices),
        nvswitches=(),
        interfaces=(EthernetInterface("ens9np0", "0000:09:00.0", 100_000, 3.0e6),),
    )
