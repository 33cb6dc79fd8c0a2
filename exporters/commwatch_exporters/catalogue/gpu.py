"""Metrics of the GPUs themselves and of their driver."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, gauge, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    info("gpu_info", f"{GPU} uuid serial name architecture", "Identity of a GPU; the value is always 1.",
         "NVML nvmlDeviceGetUUID, GetSerial, GetName, GetArchitecture"),
    info("software_info", "driver_version nvml_version cuda_driver_version", "Driver software; the value is always 1.",
         "NVML nvmlSystemGetDriverVersion, GetNVMLVersion, GetCudaDriverVersion_v2"),
    gauge("gpu_state", GPU,
          "State of a GPU that is or was here: 0 ok, 1 not answering, 2 lost, 3 reset required, 4 missing.",
          "NVML return codes, missed deadlines, and the inventory kept in the state directory"),
    gauge("gpu_busy", GPU, "1 while a compute process is on the GPU or it did work since the last sample, else 0.",
          "NVML nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetUtilizationRates"),
    gauge("gpu_utilization_ratio", GPU, "Share of the driver's last sample period in which a kernel ran.",
          "NVML nvmlDeviceGetUtilizationRates", "ratio"),
    gauge("gpu_compute_processes", GPU, "Compute processes on the GPU.", "NVML nvmlDeviceGetComputeRunningProcesses"),
    gauge("gpu_memory_used_bytes", GPU, "Memory in use on the GPU, without the driver's own reserve.",
          "NVML nvmlDeviceGetMemoryInfo (version 2)", "bytes"),
    gauge("gpu_compute_mode", GPU, "Compute mode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.",
          "NVML nvmlDeviceGetComputeMode"),
    gauge("gpu_mig_mode", GPU, "1 while the GPU is split by MIG, else 0.", "NVML nvmlDeviceGetMigMode"),
)
