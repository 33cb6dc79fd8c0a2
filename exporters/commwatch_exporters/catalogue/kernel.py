"""Metrics of events from the kernel log and the driver."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, counter, gauge, recent

ROWS: tuple[Metric, ...] = (
    counter("gpu_xid_events_total", f"{GPU} xid",
            "Xids of a GPU, counted over restarts and reboots; those of the fabric start at 0.",
            "kernel log, NVML nvmlEventSetWait_v2"),
    counter("gpu_xid_nonfatal_events_total", f"{GPU} xid",
            "Xids that the driver marked nonfatal (NVLink 5), once seen.", "kernel log"),
    counter("gpu_xid_fatal_events_total", f"{GPU} xid", "Xids of any number that the driver called Fatal, once seen.",
            "kernel log"),
    recent("gpu_xid_events", f"{GPU} xid"),
    recent("gpu_xid_fatal_events", f"{GPU} xid"),
    recent("gpu_xid_nonfatal_events", f"{GPU} xid"),
    gauge("gpu_last_xid_timestamp_seconds", GPU, "Time of the GPU's last Xid.",
          "kernel log, NVML nvmlEventSetWait_v2", "seconds"),
    counter("gpu_driver_events_total", f"{GPU} event",
            "GPU events without Xid: gpu_unavailable, recovery_action (changed).",
            "NVML nvmlEventSetWait_v2, event types 0x4000 and 0x8000"),
    counter("nvswitch_sxid_events_total", "device sxid",
            "SXids of an NVSwitch, counted over restarts and reboots; those of failing links start at 0.",
            "kernel log"),
    counter("nvswitch_sxid_nonfatal_events_total", "device sxid", "SXids that the driver marked nonfatal, once seen.",
            "kernel log"),
    counter("kernel_log_gpu_messages_total", f"{GPU} message",
            "Fault lines without a number: fallen_off_bus, gsp_errors_limited, nvlink_detection_failed, init_failed, "
            "unreadable_xid; GPU labels are empty where unnamed.", "kernel log"),
    gauge("gpu_init_failed", f"{GPU} reason",
          "1 for a GPU that the driver could not start since the boot, with the reason of the last time; otherwise "
          "absent.", "kernel log: RmInitAdapter failed"),
    counter("nvswitch_sxid_fatal_events_total", "device sxid",
            "SXids of any number that the driver called Fatal, once seen.", "kernel log"),
    recent("nvswitch_sxid_events", "device sxid"),
    recent("nvswitch_sxid_fatal_events", "device sxid"),
    recent("nvswitch_sxid_nonfatal_events", "device sxid"),
    recent("kernel_log_gpu_messages", f"{GPU} message"),
    counter("adapter_events_total", "device event",
            "Lines of drivers about a network adapter, counted over restarts: firmware_fatal, health_lost, "
            "recovery_failed, slot_unavailable, health_critical, health_issue, command_timeout, firmware_reset, "
            "adapter_hot, module_hot, module_fault, transmit_timeout, device_reset, slot_power_low, pcie_limited.",
            "kernel log"),
    recent("adapter_events", "device event"),
    counter("kernel_log_losses_total", "", "Times unread records were overwritten.", "/dev/kmsg, EPIPE"),
)
