"""What boards hold: GPUs by their NVSwitches, and what each GPU that is soldered to one has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

GPUS_BY_SWITCHES: Mapping[int, int] = {4: 8, 6: 8, 12: 16}
"""GPUs on a board, by the number of NVSwitches on the PCI bus: HGX H100, H200 and their kin have 4 for 8 GPUs,
HGX A100 has 6 for 8, two of them 12 for 16, as HGX-2 (NVIDIA Fabric Manager user guide). Other numbers say nothing."""
GPUS_BY_NAME: Mapping[str, int] = {"NVIDIA B200": 8, "NVIDIA B300 SXM6 AC": 8}
"""GPUs on the board of a GPU that is soldered to one kind of board alone, by NVML's name: HGX B200 and B300, whose
NVSwitches do not show on the bus (the same guide). A virtual machine may have some of them."""


class Product(NamedTuple):
    """What a GPU that is soldered to a board has."""

    nvlinks: int
    lanes: int
    """PCIe lanes."""
    generation: int
    """Of PCIe, that it has at least."""


PRODUCTS: Mapping[str, Product] = {
    "Tesla V100-SXM3-32GB": Product(6, 16, 3),
    "NVIDIA A100-SXM4-40GB": Product(12, 16, 4),
    "NVIDIA A100-SXM4-80GB": Product(12, 16, 4),
    "NVIDIA A800-SXM4-40GB": Product(8, 16, 4),
    "NVIDIA A800-SXM4-80GB": Product(8, 16, 4),
    "NVIDIA H100 80GB HBM3": Product(18, 16, 5),
    "NVIDIA H800": Product(8, 16, 5),
    "NVIDIA H200": Product(18, 16, 5),
    "NVIDIA H20": Product(18, 16, 5),
    "NVIDIA B200": Product(18, 16, 5),
    "NVIDIA B300 SXM6 AC": Product(18, 16, 5),
}
"""By NVML's name, which tells a soldered GPU from a card of the same chip. NVLinks: data sheets, 300, 600, 400 and
900 GB/s at 50 GB/s a link, 1,800 GB/s at 100 GB/s, both ways; PCIe: the same data sheets, x16 of generation 3 (V100), 4
(A100) and 5. Cards are not among them: their NVLinks depend on the bridges, and their lanes on the slot."""
WHOLE_BOARD = 8
"""GPUs of one product from which a virtual machine has a whole board: of a part of it, the partition says how many of
the NVLinks are on."""


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
