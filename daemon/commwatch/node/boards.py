"""What boards hold: GPUs by their NVSwitches, NVLinks and PCIe lanes by the GPU that is soldered to them."""

from __future__ import annotations

from collections.abc import Mapping

GPUS_BY_SWITCHES: Mapping[int, int] = {4: 8, 6: 8, 12: 16}
"""GPUs on the boards of so many NVSwitches that show on the PCI bus: HGX H100, H200 and their kin have 4 for 8 GPUs,
HGX A100 has 6 for 8, two of them 12 for 16, as HGX-2 (NVIDIA Fabric Manager user guide). Other numbers say nothing;
those of Blackwell do not show there."""
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
}
"""Links of each GPU on such a board, by NVML's name: data sheets, 300, 600, 400 and 900 GB/s at 50 GB/s a link, both
ways. Cards are not among them: theirs depend on the bridges."""
PCIE_LANES = 16
"""Of each GPU on such a board."""
