"""What boards hold: GPUs by their NVSwitches, NVLinks and PCIe lanes by the GPU that is soldered to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

GPUS_BY_SWITCHES: Mapping[int, int] = {4: 8, 6: 8, 12: 16}
"""GPUs on the boards of so many NVSwitches that show on the PCI bus: HGX H100, H200 and their kin have 4 for 8 GPUs,
HGX A100 has 6 for 8, two of them 12 for 16, as HGX-2 (NVIDIA Fabric Manager user guide). Other numbers say nothing."""
GPUS_BY_NAME: Mapping[str, int] = {"NVIDIA B200": 8, "NVIDIA B300 SXM6 AC": 8}
"""GPUs on the board of a GPU that is soldered to one kind of board alone, by NVML's name: HGX B200 and B300, whose
NVSwitches do not show on the bus (the same guide). A virtual machine may have some of them."""
NVLINKS: Mapping[str, int] = {
    "Tesla V100-SXM3-32GB": 6,
    "NVIDIA A100-SXM4-40GB": 12,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA A800-SXM4-40GB": 8,
    "NVIDIA A800-SXM4-80GB": 8,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H800": 8,
    "NVIDIA H200": 18,
    "NVIDIA H20": 18,
    "NVIDIA B200": 18,
    "NVIDIA B300 SXM6 AC": 18,
}
"""Links of each GPU on such a board, by NVML's name: data sheets, 300, 600, 400 and 900 GB/s at 50 GB/s a link,
1,800 GB/s at 100 GB/s, both ways. Cards are not among them: theirs depend on the bridges."""
PCIE_LANES = 16
"""Of each GPU on such a board."""


def gpus_on_boards(switches: int, names: Collection[str], is_virtual: bool | None) -> int | None:
    """GPUs that stand on the boards of a node; None where nothing says so.

    Args:
        switches: NVSwitches on the PCI bus.
        names: of the GPUs that are here, each once.
        is_virtual: whether this is a virtual machine; None where that is not known.
    """
    if switches or is_virtual is not False or len(names) != 1:
        return GPUS_BY_SWITCHES.get(switches)
    return GPUS_BY_NAME.get(*names)
