"""Metrics of the NCCL jobs on the node: what they write into their logs, and how they are set."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    counter("nccl_log_errors_total", "category", "Errors in the logs of NCCL jobs, by what they are about.",
            "the configured NCCL and job logs; the categories are those of the table in docs/probes.md"),
    counter("nccl_log_incidents_total", "category",
            "Failures of NCCL jobs by their likeliest cause: what their logs say within a minute is one failure.",
            "the configured NCCL and job logs; docs/nccl-logs.md has the order of causes"),
    counter("nccl_log_device_errors_total", "device",
            "Errors in the logs of NCCL jobs that name an RDMA device of this node.",
            "the configured NCCL and job logs: hca in lines about completions"),
    counter("nccl_log_silent_rank_incidents_total", "local_rank",
            "Time-outs of jobs that all ranks of this node report within a minute but this one, from 0 on each node.",
            "the configured NCCL and job logs: the ranks of time-outs, one for each GPU in the order of their indexes"),
    gauge("nccl_log_files", "", "Logs that are followed.", "the configured NCCL and job logs"),
    counter("nccl_log_skipped_bytes_total", "",
            "Bytes of logs that were passed over because they were written faster than they may be read.",
            "the configured NCCL and job logs"),
    gauge("nccl_setting_processes", "variable remark severity",
          "Processes on the GPUs of which this is to be said of a setting; unknown variables are called other.",
          "environment and NCCL's files of each process, held against the node; docs/nccl-settings.md has the remarks"),
    gauge("nccl_setting_read_processes", "", "Processes on the GPUs whose settings were read and judged.",
          "environment and NCCL's files of each process"),
    gauge("nccl_setting_unread_processes", "",
          "Processes on the GPUs whose settings could not be read, so that nothing is known of them.",
          "environment and NCCL's files of each process; docs/nccl-settings.md has the reasons"),
)
