"""NVIDIA's driver, read through NVML: identity, NVLink, PCIe and use of every GPU of the node."""

from commwatch.sources.nvml.source import NvmlSource

__all__ = ["NvmlSource"]
