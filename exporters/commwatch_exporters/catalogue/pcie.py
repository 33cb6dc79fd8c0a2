"""Metrics of PCIe: links of GPUs, adapters, switches and of the bridges above them."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, counter, gauge, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("pcie_link_generation", GPU, "PCIe generation the GPU's link runs at now; falls when the GPU is idle.",
          "NVML nvmlDeviceGetCurrPcieLinkGeneration"),
    gauge("pcie_link_generation_max", GPU, "Highest PCIe generation of GPU and slot together.",
          "NVML nvmlDeviceGetMaxPcieLinkGeneration"),
    gauge("pcie_gpu_link_generation_max", GPU, "Highest PCIe generation of the GPU alone.",
          "NVML nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    gauge("pcie_link_width_lanes", GPU, "PCIe lanes in use between the GPU and the bridge above it.",
          "NVML nvmlDeviceGetCurrPcieLinkWidth", "lanes"),
    gauge("pcie_link_width_max_lanes", GPU, "Most PCIe lanes that GPU and slot can use.",
          "NVML nvmlDeviceGetMaxPcieLinkWidth", "lanes"),
    gauge("pcie_link_width_expected_lanes", GPU, "PCIe lanes expected for this GPU: the widest that was stable.",
          "inventory kept in the state directory", "lanes"),
    gauge("pcie_capacity_bytes_per_second", GPU,
          "Rate of the expected PCIe link at its highest generation, one direction, before packet headers.",
          "transfers per second times lanes times line encoding", "bytes_per_second"),
    counter("pcie_replays_total", GPU, "PCIe packets that the GPU sent again.", "NVML field 94"),
    counter("pcie_replay_rollovers_total", GPU, "Times the replay number rolled over and the link was retrained.",
            "NVML field 95"),
    info("pcie_device_info", "device role parent numa_node vendor_id device_id",
         "A PCIe device on a path of communication: gpu, nic, nvswitch or a bridge above one; the value is always 1.",
         "sysfs /sys/bus/pci/devices/*/{class,vendor,device,numa_node}"),
    gauge("pcie_device_link_generation", "device", "PCIe generation the device's link runs at now.",
          "sysfs current_link_speed"),
    gauge("pcie_device_link_generation_max", "device", "Highest PCIe generation of the device.",
          "sysfs max_link_speed"),
    gauge("pcie_device_link_width_lanes", "device", "PCIe lanes the device uses now.", "sysfs current_link_width",
          "lanes"),
    gauge("pcie_device_link_width_max_lanes", "device", "Most PCIe lanes of the device.", "sysfs max_link_width",
          "lanes"),
)
