"""Metrics of the GPUs themselves and of their driver."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, counter, gauge, info

ROWS: tuple[Metric, ...] = (
    info("gpu_info", f"{GPU} uuid serial name architecture", "Identity of a GPU.",
         "NVML nvmlDeviceGetUUID, GetSerial, GetName, GetArchitecture"),
    info("software_info", "driver_version nvml_version cuda_driver_version", "Driver software.",
         "NVML nvmlSystemGetDriverVersion, GetNVMLVersion, GetCudaDriverVersion_v2"),
    gauge("driver_unusable", "reason",
          "1 while the NVIDIA driver reads none of the GPUs, with the reason; 0 with reason none; absent where "
          "unknown.", "NVML init, sysfs class, vendor and driver of PCI devices"),
    gauge("gpu_state", GPU, "GPU state: 0 ok, 1 not answering, 2 lost, 3 reset required, 4 missing, 5 not listed "
          "by the driver although bound to it.", "NVML return codes, missed deadlines, inventory, PCI bus"),
    gauge("gpu_calls_failing_timestamp_seconds", GPU,
          "When the GPU was read last, if the driver has answered every call about it with an error since, in two runs "
          "at least; no series else.", "NVML return codes", "seconds"),
    gauge("gpu_possible_address", f"{GPU} address",
          "1 for each PCI address that a faulty GPU may have, where only its index is known and several GPUs are not "
          "listed; no series else.", "sysfs vendor, class and driver of PCI devices"),
    gauge("gpu_busy", GPU, "1 while the GPU has a compute process or worked since the last sample, else 0.",
          "NVML nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetUtilizationRates"),
    gauge("gpu_utilization_ratio", GPU, "Share of the driver's last sample period in which a kernel ran.",
          "NVML nvmlDeviceGetUtilizationRates", "ratio"),
    gauge("gpu_compute_processes", GPU, "Compute processes on the GPU, with MPS clients.",
          "NVML nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetMPSComputeRunningProcesses"),
    gauge("gpu_memory_size_bytes", GPU, "Memory of the GPU.", "NVML nvmlDeviceGetMemoryInfo (version 2)", "bytes"),
    gauge("gpu_memory_used_bytes", GPU, "GPU memory in use, without the driver's reserve.",
          "NVML nvmlDeviceGetMemoryInfo (version 2)", "bytes"),
    gauge("gpu_compute_mode", GPU, "Compute mode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.",
          "NVML nvmlDeviceGetComputeMode"),
    gauge("gpu_mig_mode", GPU, "1 while the GPU is split by MIG, else 0.", "NVML nvmlDeviceGetMigMode"),
    gauge("gpu_persistence_mode", GPU,
          "1 while the driver keeps the GPU initialised without clients, else 0.", "NVML nvmlDeviceGetPersistenceMode"),
    gauge("gpu_confidential_computing_mode", "",
          "Confidential computing: 0 off, 1 on, 2 on with developer tools. On: no GPM.",
          "NVML nvmlSystemGetConfComputeState"),
    gauge("gpu_recovery_action", GPU,
          "Action the driver requests: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover "
          "the IMEX domain, 6 bus reset, 7 system reboot.", "NVML field 230"),
    gauge("gpu_clocks_event_reason", f"{GPU} reason",
          "1 while this reason determines the GPU's clocks, else 0; several can.",
          "NVML nvmlDeviceGetCurrentClocksEventReasons, or GetCurrentClocksThrottleReasons"),
    counter("gpu_performance_limited_seconds_total", f"{GPU} policy", "Time a policy held the GPU's clocks down.",
            "NVML fields 74 to 77 and 79 (nanoseconds)", "seconds"),
    gauge("gpu_performance_state", GPU, "Performance state: 0 highest, 15 lowest; absent where unknown.",
          "NVML nvmlDeviceGetPerformanceState"),
    gauge("gpu_sm_clock_hertz", GPU, "Clock of the multiprocessors.", "NVML nvmlDeviceGetClockInfo (MHz)", "hertz"),
    gauge("gpu_memory_clock_hertz", GPU, "Clock of the memory.", "NVML nvmlDeviceGetClockInfo (MHz)", "hertz"),
    gauge("gpu_temperature_celsius", GPU, "Temperature of the GPU's core.",
          "NVML nvmlDeviceGetTemperatureV, or GetTemperature", "celsius"),
    gauge("gpu_power_watts", GPU, "Power draw.", "NVML nvmlDeviceGetPowerUsage (mW)", "watts"),
    gauge("gpu_power_limit_watts", GPU, "Power limit.", "NVML nvmlDeviceGetEnforcedPowerLimit (mW)", "watts"),
    counter("gpu_energy_joules_total", GPU, "Energy used since driver load.", "NVML field 83 (mJ)", "joules"),
)
