"""Metrics of the daemon about itself."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    info("build_info", "version python_version", "Version of this daemon; the value is always 1.", "the package"),
    info("thresholds_info", "digest", "Digest of the thresholds in force; the value is always 1.", "thresholds.yaml"),
    gauge("collector_success", "collector", "1 if the collector's last run read everything it should, else 0.",
          "the daemon's own record"),
    gauge("collector_duration_seconds", "collector", "Time of the collector's last run in its worker process.",
          "the daemon's own record", "seconds"),
    gauge("collector_interval_seconds", "collector", "Interval at which the collector runs now.",
          "configuration, doubled while runs take more than a tenth of it", "seconds"),
    gauge("collector_last_success_timestamp_seconds", "collector", "When the collector last read everything it should.",
          "wall clock", "seconds"),
    gauge("collector_device_failing", "collector device reason",
          "1 while the collector's last run could not read all that it should of a device; absent of all others.",
          "the daemon's own record"),
    counter("collector_errors_total", "collector reason", "Readings that failed, by reason.",
            "the daemon's own record"),
    counter("worker_restarts_total", "worker reason", "Worker processes replaced, by reason.",
            "the daemon's own record"),
    gauge("source_available", "source", "1 if the origin of a source is on this node and answers, else 0.",
          "the source's last attempt to connect"),
    gauge("worker_stuck", "worker", "Worker processes that missed their deadline and have not come back.",
          "the daemon's own record"),
    gauge("config_last_reload_successful", "",
          "1 if the configuration on disk was taken into force when read last, or 0.",
          "the daemon's own record"),
    gauge("config_last_reload_success_timestamp_seconds", "", "When a configuration was last taken into force.",
          "wall clock", "seconds"),
    counter("scheduler_missed_runs_total", "job",
            "Runs that the scheduler dropped because the job's last run was still under way.",
            "the daemon's own record"),
    counter("clock_steps_total", "", "Steps of the wall clock by more than two seconds.",
            "wall clock compared with the monotonic clock"),
    counter("healthcheck_unknown_total", "reason", "Answers of commwatch healthcheck that said unknown, by reason.",
            "healthcheck.json in the state directory, which the command writes"),
    counter("process_cpu_seconds_total", "process", "CPU time of one of the daemon's processes.",
            "procfs /proc/PID/stat utime and stime", "seconds"),
    gauge("process_resident_memory_bytes", "process", "Resident memory of one of the daemon's processes.",
          "procfs /proc/PID/statm", "bytes"),
)
