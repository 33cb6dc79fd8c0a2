"""Properties of GPU models, by the driver's name for them: the only table of facts that are not read from a driver."""

from __future__ import annotations

from typing import NamedTuple

_MIB = 2**20


class Product(NamedTuple):
    """Properties of a GPU that is soldered to a board."""

    nvlinks: int
    lanes: int
    generation: int
    """PCIe generation, the least; 0 as the number of lanes where it is not known."""
    tray_gpus: int | None = None
    """GPUs of one node of a rack: with all of them it has all NVLinks, in a virtual machine as well, which the
    processor of such a node does not show. None for other boards."""


class GpuModel(NamedTuple):
    name: str
    """Start of the driver's name, without the vendor, in whole words."""
    memory_bytes: int | None
    """As a current driver reports it, older ones up to 1.6 % less; None where models of this name differ by half."""
    flops_per_second: float
    """Peak of tensor cores for bf16 or fp16, dense, summed in fp32."""
    source: str
    """Share of the peak; memory is what nvidia-smi prints, unless noted here."""
    product: Product | None = None
    """None for a card: its NVLinks depend on the bridges, and its lanes on the slot."""
    board_gpus: int | None = None
    """GPUs on the board of a model that is soldered to one kind of board alone, whose NVSwitches do not show on the
    bus: HGX B200 and B300 (NVIDIA Fabric Manager user guide)."""
    host: str = ""
    """grace: on one module with that processor; rack: likewise, and NVLinks lead to other nodes."""


_V100 = Product(6, 16, 3)
_A100, _A800 = Product(12, 16, 4), Product(8, 16, 4)
_H100, _H800 = Product(18, 16, 5), Product(8, 16, 5)
_RACK = Product(18, 0, 0, 4)
"""NVLinks: data sheets, 300, 600, 400 and 900 GB/s at 50 GB/s a link, 1,800 GB/s at 100 GB/s, both ways; PCIe: the same
data sheets, x16 of generation 3 (V100), 4 (A100) and 5."""


def _model(
    name: str, mebibytes: int | None, teraflops: float, source: str, product: Product | None = None,
    board_gpus: int | None = None, host: str = "",
) -> GpuModel:  # fmt: skip
    memory = None if mebibytes is None else mebibytes * _MIB
    return GpuModel(name, memory, teraflops * 1e12, source, product, board_gpus, host)


GPU_MODELS = (
    _model("Tesla V100-SXM2-16GB", 16384, 125, "V100 data sheet; fp16"),
    _model("Tesla V100-SXM2-32GB", 32768, 125, "V100 data sheet; fp16"),
    _model("Tesla V100-SXM3-32GB", 32768, 125, "V100 data sheet; fp16", _V100),
    _model("Tesla V100-PCIE-16GB", 16384, 112, "V100 data sheet; fp16"),
    _model("Tesla V100-PCIE-32GB", 32768, 112, "V100 data sheet; fp16"),
    _model("Tesla V100", None, 125, "V100 data sheet, SXM2; fp16"),
    _model("Tesla T4", 15360, 65, "T4 data sheet; fp16"),
    _model("A100-SXM4-80GB", 81920, 312, "A100 data sheet", _A100),
    _model("A100-SXM4-40GB", 40960, 312, "A100 data sheet", _A100),
    _model("A100 80GB PCIe", 81920, 312, "A100 data sheet"),
    _model("A100-PCIE-40GB", 40960, 312, "A100 data sheet"),
    _model("A100", None, 312, "A100 data sheet"),
    _model("A800-SXM4-80GB", 81920, 312, "A800 data sheet; memory as A100", _A800),
    _model("A800-SXM4-40GB", 40960, 312, "A800 data sheet; memory as A100", _A800),
    _model("A800 80GB PCIe", 81920, 312, "A800 data sheet; memory as A100"),
    _model("A800", None, 312, "A800 data sheet"),
    _model("A10G", 23028, 70, "A10G data sheet"),
    _model("A10", 23028, 125, "A10 data sheet"),
    _model("A30", 24576, 165, "A30 data sheet"),
    _model("GeForce RTX 3090", 24576, 71, "GA102 white paper"),
    _model("GeForce RTX 4090", 24564, 165.2, "Ada white paper, summed in fp32"),
    _model("GeForce RTX 5090", 32607, 209.5, "RTX Blackwell white paper, summed in fp32"),
    _model("RTX A6000", 49140, 154.8, "RTX A6000 data sheet"),
    _model("RTX PRO 6000", 97887, 500, "RTX PRO 6000 data sheet, an eighth of the sparse FP4 rate"),
    _model("L4", 23034, 121, "L4 data sheet, half of the sparse rate"),
    _model("L20", 46068, 119.5, "L20 data sheet"),
    _model("L40S", 46068, 362, "L40S data sheet"),
    _model("H20-3e", 143771, 148, "H20 data sheet"),
    _model("H20", 97871, 148, "H20 data sheet", _H100),
    _model("H800 PCIe", 81559, 756, "H100 data sheet, PCIe: H800 differs in NVLink and fp64"),
    _model("H800", 81559, 989.4, "H800 data sheet, SXM", _H800),
    _model("H100 80GB HBM3", 81559, 989.4, "H100 data sheet, SXM", _H100),
    _model("H100 PCIe", 81559, 756, "H100 data sheet, PCIe"),
    _model("H100 NVL", 95830, 835, "H100 data sheet, NVL"),
    _model("H200 NVL", 143771, 835, "H200 data sheet, NVL"),
    _model("H200", 143771, 989, "H200 data sheet", _H100),
    _model("GH200", 97871, 989, "GH200 data sheet; memory of the one with HBM3", host="grace"),
    _model("B200", 183359, 2250, "HGX B200 data sheet", _H100, 8),
    _model("B300 SXM6 AC", 275040, 2250, "HGX B300 data sheet", _H100, 8),
    _model("B300", 275040, 2250, "HGX B300 data sheet"),
    _model("GB200", 189471, 2500, "GB200 NVL72 data sheet", _RACK, host="rack"),
    _model("GB300", 284208, 2500, "GB300 NVL72 data sheet, half of the sparse rate", _RACK, host="rack"),
)
"""The more exact name first."""

_SOLDERED = {one.name: one for one in GPU_MODELS if one.product is not None}
MOST_MEMORY_BYTES = max(one.memory_bytes or 0 for one in GPU_MODELS)
"""Of any model: what needs more fits on none of them."""


def is_model(gpu_name: str, model: str) -> bool:
    """Whether a GPU is of a model.

    Args:
        gpu_name: as the driver gives it.
        model: start of such names, without the vendor, in whole words: H20 is not H200.
    """
    name = gpu_name.removeprefix("NVIDIA ").strip()
    return name == model or name.startswith((f"{model} ", f"{model}-"))


def gpu_model(name: str) -> GpuModel | None:
    """The model of a GPU; None for one that is not known.

    Args:
        name: as the driver gives it, or as people write it: ``4090``, ``A6000``, ``V100``.
    """
    short = _short(name)
    return next((one for one in GPU_MODELS if is_model(short, _short(one.name))), None)


def product_of(name: str) -> Product | None:
    """The board properties of the GPU with exactly this name; None for a card, and for an unknown GPU."""
    model = _SOLDERED.get(name.removeprefix("NVIDIA "))
    return None if model is None else model.product


def board_gpus_of(name: str) -> int | None:
    """GPUs on the one kind of board that carries this GPU; None where there are several kinds, or none is known."""
    model = _SOLDERED.get(name.removeprefix("NVIDIA "))
    return None if model is None else model.board_gpus


def variants(name: str) -> list[GpuModel]:
    """The models of which a name is the beginning: ``H100``, of which each has figures of its own."""
    return [one for one in GPU_MODELS if is_model(_short(one.name), _short(name)) and _short(one.name) != _short(name)]


def _short(name: str) -> str:
    """Without vendor and brand."""
    for brand in ("NVIDIA ", "GeForce ", "RTX ", "Tesla "):
        name = name.removeprefix(brand)
    return name.upper()
