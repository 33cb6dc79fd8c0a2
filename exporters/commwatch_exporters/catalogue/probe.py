"""Metrics of the probes."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import PROBE, Metric, counter, gauge, histogram, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    histogram("probe_latency_seconds", PROBE, "Time of one small collective, slowest rank, one value per cycle.",
              "commwatch probe: device clock around K calls, divided by K; with gloo the median by the host's clock",
              "seconds"),
    gauge("probe_last_latency_seconds", PROBE, "Time of one small collective in the last good cycle, slowest rank.",
          "commwatch probe, last result", "seconds"),
    gauge("probe_last_bus_bandwidth_bytes_per_second", PROBE,
          "Bus bandwidth of the large collective in the last good cycle, slowest rank.",
          "algorithm bandwidth times the nccl-tests factor (all_reduce: 2(n-1)/n)", "bytes_per_second"),
    gauge("probe_last_algorithm_bandwidth_bytes_per_second", PROBE,
          "Algorithm bandwidth of the large collective in the last good cycle, slowest rank.",
          "bytes divided by the time of one call", "bytes_per_second"),
    gauge("probe_expected_bandwidth_bytes_per_second", PROBE,
          "Bus bandwidth that this size, backend, rank count and path class should give.",
          "expected_source in commwatch_probe_info", "bytes_per_second"),
    gauge("probe_bandwidth_utilization_ratio", PROBE, "Bus bandwidth of the last good cycle over the expected one.",
          "probe_last_bus_bandwidth over probe_expected_bandwidth", "ratio"),
    gauge("probe_baseline_latency_seconds", PROBE, "Median latency of the good results kept; absent below 20 of them.",
          "state directory, per probe, backend, size, ranks and NCCL version", "seconds"),
    gauge("probe_latency_spike_streak", PROBE, "Latency spikes in a row, up to the last result.",
          "latency above max(median + 6 MAD, 1.5 median) or above the probe's absolute limit"),
    gauge("probe_low_bandwidth_streak", PROBE, "Results in a row below the utilisation threshold, up to the last one.",
          "probe_bandwidth_utilization_ratio below the threshold"),
    counter("probe_latency_spikes_total", PROBE, "Latency spikes.", "as probe_latency_spike_streak"),
    counter("probe_attempts_total", PROBE, "Cycles that ran to a result or a failure; those that gave way are skips.",
            "commwatch probe"),
    counter("probe_failures_total", f"{PROBE} reason", "Cycles that started and gave no good result.",
            "commwatch probe"),
    counter("probe_skips_total", f"{PROBE} reason", "Cycles that did not start, or gave way.",
            "the gate before a probe"),
    gauge("probe_last_completion_timestamp_seconds", PROBE, "When the last cycle with a result ended.",
          "wall clock at the end of the cycle", "seconds"),
    counter("probe_gpu_occupied_seconds_total", PROBE, "GPU seconds during which a probe held a context.",
            "time between start and end of the ranks, times GPUs", "seconds"),
    gauge("probe_setup_seconds", PROBE, "Time from start of the ranks to the end of the first, discarded call.",
          "commwatch probe, last result", "seconds"),
    info("probe_info", f"{PROBE} collective latency_bytes bandwidth_bytes ranks nccl_version expected_source",
         "What a probe measures; the value is always 1.", "configuration and the last result"),
)
