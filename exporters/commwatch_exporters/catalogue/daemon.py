"""Metrics of the daemon about itself."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge, info

ROWS: tuple[Metric, ...] = (
    info("build_info", "version python_version", "Version of this daemon.", "the package"),
    info("thresholds_info", "digest", "Digest of the thresholds.", "thresholds.yaml"),
    gauge("collector_success", "collector", "1 if the collector's last run read everything, else 0.", "daemon"),
    gauge("collector_duration_seconds", "collector", "Time of the collector's last run.", "daemon", "seconds"),
    gauge("collector_interval_seconds", "collector", "Current interval of the collector.",
          "configuration, doubled while runs take over a tenth", "seconds"),
    gauge("collector_last_success_timestamp_seconds", "collector", "When the collector last read everything.",
          "wall clock", "seconds"),
    gauge("collector_device_failing", "collector device reason",
          "1 while the collector's last run missed part of a device; otherwise absent.", "daemon"),
    counter("collector_errors_total", "collector reason", "Readings that failed, by reason.", "daemon"),
    counter("worker_restarts_total", "worker reason", "Worker processes replaced, by reason.", "daemon"),
    gauge("source_available", "source", "1 if the source is available, else 0.", "last attempt to connect"),
    gauge("source_unread", "source", "1 while the source has given no reading for two of its intervals, else 0.",
          "the last run that read anything"),
    gauge("worker_stuck", "worker", "Worker processes stuck past their deadline.", "daemon"),
    gauge("config_last_reload_successful", "", "1 if the last configuration read was accepted, else 0.", "daemon"),
    gauge("config_last_reload_success_timestamp_seconds", "", "When a configuration was last accepted.",
          "wall clock", "seconds"),
    gauge("starved", "", "1 while the node is too short of CPU or memory to judge missed deadlines, else 0.", "daemon"),
    gauge("daemon_late_seconds", "", "How late the daemon's last beat came; on a starved node, at its last sign.",
          "monotonic clock", "seconds"),
    gauge("stall_ratio", "resource", "Share of the last beat in which the daemon waited for CPU, or tasks for memory; "
          "on a starved node, of its last sign.",
          "procfs /proc/PID/schedstat, /proc/pressure/memory total", "ratio"),
    counter("scheduler_missed_runs_total", "job", "Runs dropped because the job's last run was still going.", "daemon"),
    counter("clock_steps_total", "", "Wall clock steps above two seconds.", "wall clock against monotonic clock"),
    counter("healthcheck_unknown_total", "reason", "Unknown results of commwatch healthcheck, by reason.",
            "healthcheck.json in the state directory"),
    counter("process_cpu_seconds_total", "process", "CPU time of a daemon process.",
            "procfs /proc/PID/stat utime and stime", "seconds"),
    gauge("process_resident_memory_bytes", "process", "Resident memory of a daemon process.",
          "procfs /proc/PID/statm", "bytes"),
)
