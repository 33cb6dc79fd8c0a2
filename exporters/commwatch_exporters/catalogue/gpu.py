"""Metrics of the GPUs themselves and of their driver."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, counter, gauge, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    info("gpu_info", f"{GPU} uuid serial name architecture", "Identity of a GPU; the value is always 1.",
         "NVML nvmlDeviceGetUUID, GetSerial, GetName, GetArchitecture"),
    info("software_info", "driver_version nvml_version cuda_driver_version", "Driver software; the value is always 1.",
         "NVML nvmlSystemGetDriverVersion, GetNVMLVersion, GetCudaDriverVersion_v2"),
    gauge("driver_unusable", "reason",
          "1 while no GPU can be read through the NVIDIA driver although there are GPUs for it, with the reason, once "
          "that has lasted; 0 with reason none while it can be used; absent where nothing is known.",
          "answers of NVML as it is opened, and sysfs class, vendor and driver of the PCI devices"),
    gauge("gpu_state", GPU,
          "State of a GPU that is or was here: 0 ok, 1 not answering, 2 lost, 3 reset required, 4 missing.",
          "NVML return codes, missed deadlines, and the inventory kept in the state directory"),
    gauge("gpu_busy", GPU, "1 while a compute process is on the GPU or it did work since the last sample, else 0.",
          "NVML nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetUtilizationRates"),
    gauge("gpu_utilization_ratio", GPU, "Share of the driver's last sample period in which a kernel ran.",
          "NVML nvmlDeviceGetUtilizationRates", "ratio"),
    gauge("gpu_compute_processes", GPU, "Compute processes on the GPU, clients of MPS among them.",
          "NVML nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetMPSComputeRunningProcesses"),
    gauge("gpu_memory_size_bytes", GPU, "Memory of the GPU, all of it.", "NVML nvmlDeviceGetMemoryInfo (version 2)",
          "bytes"),
    gauge("gpu_memory_used_bytes", GPU, "Memory in use on the GPU, without the driver's own reserve.",
          "NVML nvmlDeviceGetMemoryInfo (version 2)", "bytes"),
    gauge("gpu_compute_mode", GPU, "Compute mode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.",
          "NVML nvmlDeviceGetComputeMode"),
    gauge("gpu_mig_mode", GPU, "1 while the GPU is split by MIG, else 0.", "NVML nvmlDeviceGetMigMode"),
    gauge("gpu_persistence_mode", GPU,
          "1 while the driver keeps the GPU set up without any client, else 0.", "NVML nvmlDeviceGetPersistenceMode"),
    gauge("gpu_confidential_computing_mode", "",
          "Confidential computing on this node: 0 off, 1 on, 2 on with developer tools. On, there is no GPM.",
          "NVML nvmlSystemGetConfComputeState"),
    gauge("gpu_recovery_action", GPU,
          "What the driver asks for: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, "
          "5 recover the IMEX domain, 6 bus reset, 7 system reboot.", "NVML field 230"),
    gauge("gpu_clocks_event_reason", f"{GPU} reason",
          "1 while this holds the clocks of the GPU where they are, else 0; several can at once.",
          "NVML nvmlDeviceGetCurrentClocksEventReasons, or GetCurrentClocksThrottleReasons"),
    counter("gpu_performance_limited_seconds_total", f"{GPU} policy",
            "Time for which a policy held the GPU below the clocks it could run at.",
            "NVML fields 74 to 77 and 79 (nanoseconds)", "seconds"),
    gauge("gpu_performance_state", GPU,
          "Performance state: 0 is the highest, 15 the lowest; absent where the driver calls it unknown.",
          "NVML nvmlDeviceGetPerformanceState"),
    gauge("gpu_sm_clock_hertz", GPU, "Clock of the multiprocessors now.", "NVML nvmlDeviceGetClockInfo (MHz)", "hertz"),
    gauge("gpu_memory_clock_hertz", GPU, "Clock of the memory now.", "NVML nvmlDeviceGetClockInfo (MHz)", "hertz"),
    gauge("gpu_temperature_celsius", GPU, "Temperature of the GPU's core.",
          "NVML nvmlDeviceGetTemperatureV, or GetTemperature", "celsius"),
    gauge("gpu_power_watts", GPU, "Power that the GPU draws.", "NVML nvmlDeviceGetPowerUsage (mW)", "watts"),
    gauge("gpu_power_limit_watts", GPU, "Power limit in force.", "NVML nvmlDeviceGetEnforcedPowerLimit (mW)", "watts"),
    counter("gpu_energy_joules_total", GPU, "Energy used since the driver was loaded.", "NVML field 83 (mJ)", "joules"),
)
