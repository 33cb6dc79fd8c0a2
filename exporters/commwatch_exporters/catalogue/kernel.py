"""Metrics of what the kernel log and the driver's events say."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, counter, gauge

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    counter("gpu_xid_events_total", f"{GPU} xid",
            "Errors (Xids) of a GPU, each once, over restarts and reboots; those of the fabric begin with 0; a GPU of "
            "which the index is not known has none.",
            "kernel log and NVML nvmlEventSetWait_v2, event type 0x8"),
    counter("gpu_xid_nonfatal_events_total", f"{GPU} xid",
            "Those of them of which the driver said that they were not fatal, which it says of NVLink 5; a code has "
            "a series once that has happened.",
            "kernel log"),
    gauge("gpu_last_xid_timestamp_seconds", GPU, "When the last Xid of a GPU happened, seconds since 1970.",
          "kernel log and NVML nvmlEventSetWait_v2", "seconds"),
    counter("gpu_driver_events_total", f"{GPU} event",
            "Events of a GPU without an Xid: gpu_unavailable, recovery_action (what it needs has changed).",
            "NVML nvmlEventSetWait_v2, event types 0x4000 and 0x8000"),
    counter("nvswitch_sxid_events_total", "device sxid",
            "Errors (SXids) of an NVSwitch, over restarts and reboots; those of failing links begin with 0.",
            "kernel log"),
    counter("nvswitch_sxid_nonfatal_events_total", "device sxid",
            "Those of them of which the driver said that they were not fatal; a code has a series once that has "
            "happened.",
            "kernel log"),
    counter("kernel_log_gpu_messages_total", f"{GPU} message",
            "Lines without a number that tell a fault: fallen_off_bus, gsp_errors_limited, nvlink_detection_failed; "
            "both labels of the GPU are empty where the line names none.",
            "kernel log"),
    counter("kernel_log_losses_total", "",
            "How often records were overwritten before they were read; events may be missing.",
            "/dev/kmsg, EPIPE"),
)
