"""Metrics of the NVSwitch fabric as the GPUs see it, and of the services that run it."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, gauge, info

ROWS: tuple[Metric, ...] = (
    info("fabric_info", f"{GPU} cluster_uuid clique_id", "NVLink domain and clique of a GPU.",
         "NVML nvmlDeviceGetGpuFabricInfoV"),
    gauge("fabric_state", GPU, "Joining the fabric: 0 not supported, 1 not started, 2 in progress, 3 completed.",
          "NVML nvmlDeviceGetGpuFabricInfoV, state"),
    gauge("fabric_status", GPU, "Result of joining the fabric, an NVML return code: 0 success; absent until completed.",
          "NVML nvmlDeviceGetGpuFabricInfoV, status"),
    gauge("fabric_health", GPU, "Fabric health: 1 healthy, 2 unhealthy, 3 limited capacity.",
          "NVML nvmlDeviceGetGpuFabricInfoV version 3, healthSummary"),
    gauge("fabric_fault", f"{GPU} check", "1 while the fabric has this fault, else 0.",
          "NVML nvmlDeviceGetGpuFabricInfoV, healthMask"),
    gauge("fabric_incorrect_configuration", GPU,
          "Misconfiguration: 1 none, 2 system GUID, 3 chassis serial number, 4 no partition, 5 insufficient NVLinks, "
          "6 GPU firmware, 7 location, 8 GPU state.", "NVML nvmlDeviceGetGpuFabricInfoV, healthMask bits 8 to 11"),
    gauge("service_running", "service",
          "1 while the service runs, else 0: nvidia-fabricmanager (with NVSwitches), nvidia-persistenced (with the "
          "driver), nvidia-imex and nvlsm (once seen).", "procfs comm and cmdline"),
    gauge("service_fabric_mode", "service",
          "FABRIC_MODE: 0 bare metal or full passthrough, 1 shared NVSwitch, 2 vGPU.", "fabricmanager.cfg"),
    gauge("gpudirect_rdma_available", "way",
          "1 where adapters can reach GPU memory by peermem (module nvidia_peermem) or dma_buf (open kernel module), "
          "else 0.", "sysfs /sys/module, procfs driver/nvidia/version"),
    gauge("gpu_p2p_status", f"{GPU} peer peer_pci_bus_id capability",
          "Whether a GPU reaches another (nvlink: over NVLink; read: directly): 0 yes; no by 1 chipset, 2 GPU, 3 "
          "topology, 4 driver setting, 5 not supported, 6 unknown.", "NVML nvmlDeviceGetP2PStatus"),
)
