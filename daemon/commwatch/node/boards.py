"""Contents of boards: GPUs by their NVSwitches, else by the model that is soldered to only one kind of board."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from commwatch.node.gpu_models import board_gpus_of

GPUS_BY_SWITCHES: Mapping[int, int] = {4: 8, 6: 8, 12: 16}
"""GPUs on a board, by the number of NVSwitches on the PCI bus: HGX H100, H200 and their kin have 4 for 8 GPUs,
HGX A100 has 6 for 8, two of them 12 for 16, as HGX-2 (NVIDIA Fabric Manager user guide). Other numbers say nothing."""
WHOLE_BOARD = 8
"""GPUs of one product from which a virtual machine has a whole board: of a part of it, the partition says how many of
the NVLinks are on."""


def gpus_on_boards(switches: int, names: Collection[str], is_virtual: bool | None) -> int | None:
    """GPUs on the boards of a node; None if their number is not known.

    Args:
        names: of the GPUs that are here, each once.
        is_virtual: whether this is a virtual machine; None where that is not known.
    """
    if switches or is_virtual is not False or len(names) != 1:
        return GPUS_BY_SWITCHES.get(switches)
    return board_gpus_of(*names)
