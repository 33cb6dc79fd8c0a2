"""NVIDIA's driver, read through NVML: identity, NVLink, PCIe and use of every GPU of the node."""
