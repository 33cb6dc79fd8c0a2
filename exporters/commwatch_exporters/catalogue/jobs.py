"""Metrics of the NCCL jobs on the node: what they write into their logs, and how they are set."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, counter, gauge, info

ROWS: tuple[Metric, ...] = (
    counter("nccl_log_errors_total", "category", "Errors in job logs by category.",
            "job logs; categories: docs/using/probes.md"),
    counter("nccl_log_incidents_total", "category",
            "Job failures by likeliest cause; log lines within a minute are one.",
            "job logs; order of causes: docs/using/nccl-logs.md"),
    counter("nccl_log_device_errors_total", "device", "Errors in job logs that name an RDMA device of this node.",
            "job logs: hca in completion lines"),
    counter("nccl_log_silent_rank_incidents_total", "local_rank",
            "Job time-outs that all other ranks of this node report within a minute.",
            "job logs: ranks of time-outs, in order of GPU index"),
    counter("nccl_log_transport_fallbacks_total", "kind",
            "Job logs that show that a job left a transport which this node has: RDMA, GPUDirect or NVLink.",
            "job logs; kinds: docs/using/nccl-logs.md"),
    gauge("nccl_log_files", "", "Logs followed.", "job logs"),
    counter("nccl_log_skipped_bytes_total", "", "Bytes of logs skipped because they came too fast.", "job logs"),
    gauge("nccl_setting_processes", "variable remark severity",
          "GPU processes with this remark on a setting; unknown variables: other.",
          "environment and NCCL files of each process; docs/using/nccl-settings.md"),
    gauge("nccl_setting_read_processes", "", "GPU processes whose settings were judged.", "environment and NCCL files"),
    gauge("nccl_setting_unread_processes", "", "GPU processes whose settings could not be read.",
          "environment and NCCL files; docs/using/nccl-settings.md"),
    gauge("job_stuck_seconds", GPU,
          "Time since its job last moved data while kernels only wait; 0 while it works. At the job's lowest GPU.",
          "GPU use and power, NVLink, PCIe, network, disks, /proc/PID/stat", "seconds"),
    gauge("job_silent_seconds", GPU,
          "Time since its job last moved data while GPUs idle and its processes sleep.",
          "as job_stuck_seconds, and CPU time of the processes", "seconds"),
    gauge("job_stopped_processes", GPU, "Processes of a job without traffic that a signal or a debugger stopped.",
          "/proc/PID/stat"),
    gauge("job_stuck_unread", f"{GPU} signal", "1 while the job is not judged because this signal is not read.",
          "as job_stuck_seconds"),
    gauge("job_odd_rank", f"{GPU} reason",
          "GPU of the one rank that differs from its peers; 1: seen as any user, 2: as root or the job's user.",
          "/proc/PID/stat, status; wchan, syscall where readable"),
    info("gpu_job_info", f"{GPU} scheduler job_id", "Slurm job or Kubernetes pod of a process on the GPU.",
         "/proc/PID/cgroup of GPU processes; with jobs.identity only"),
)
