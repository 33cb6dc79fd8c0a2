"""Metrics of the NVSwitch fabric as the GPUs see it, and of the services that run it."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, gauge, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    info("fabric_info", f"{GPU} cluster_uuid clique_id",
         "The NVLink domain that a GPU has joined and its clique there; the value is always 1.",
         "NVML nvmlDeviceGetGpuFabricInfoV"),
    gauge("fabric_state", GPU,
          "How far the GPU is with joining the fabric: 0 not supported, 1 not started, 2 in progress, 3 completed.",
          "NVML nvmlDeviceGetGpuFabricInfoV, state"),
    gauge("fabric_status", GPU,
          "How joining the fabric ended, an NVML return code: 0 is success; absent until it has completed.",
          "NVML nvmlDeviceGetGpuFabricInfoV, status"),
    gauge("fabric_health", GPU,
          "The driver's verdict: 1 healthy, 2 unhealthy, 3 limited capacity; absent where it gives none.",
          "NVML nvmlDeviceGetGpuFabricInfoV version 3, healthSummary"),
    gauge("fabric_fault", f"{GPU} check", "1 while the fabric has this fault, else 0; absent where it is not checked.",
          "NVML nvmlDeviceGetGpuFabricInfoV, healthMask"),
    gauge("fabric_incorrect_configuration", GPU,
          "What is configured wrongly: 1 nothing, 2 system GUID, 3 chassis serial number, 4 no partition, "
          "5 insufficient NVLinks, 6 GPU firmware, 7 location, 8 GPU state; absent where it is not checked.",
          "NVML nvmlDeviceGetGpuFabricInfoV, healthMask bits 8 to 11"),
    gauge("service_running", "service",
          "1 while a service of the driver runs, 0 while it does not: nvidia-fabricmanager where there are NVSwitches, "
          "nvidia-persistenced where the driver is loaded; also nvidia-imex and nvlsm once they have been seen.",
          "procfs comm and cmdline of the processes"),
    gauge("gpudirect_rdma_available", "way",
          "1 where network adapters can reach GPU memory by this way, else 0: peermem (the module nvidia_peermem is "
          "loaded) or dma_buf (the driver's open kernel module is); absent where that is not known.",
          "sysfs /sys/module, procfs driver/nvidia/version"),
    gauge("gpu_p2p_status", f"{GPU} peer peer_pci_bus_id capability",
          "Whether a GPU reaches another directly (capability nvlink: over NVLink; read: at all): 0 yes, not because "
          "of 1 chipset, 2 GPU, 3 topology, 4 a setting of the driver, 5 not supported, 6 unknown.",
          "NVML nvmlDeviceGetP2PStatus"),
)
