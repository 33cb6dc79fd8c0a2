"""Metrics of the probes."""

from __future__ import annotations

from typing import Final

from commwatch_exporters.catalogue.metric import PROBE, Metric, counter, gauge, histogram, info

_COPY: Final = f"{PROBE} gpu pci_bus_id direction"

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    histogram("probe_latency_seconds", PROBE, "Time of one small collective, slowest rank, one value per cycle.",
              "commwatch probe: device clock around K calls, divided by K; with gloo the median by the host's clock",
              "seconds"),
    gauge("probe_last_latency_seconds", PROBE, "Time of one small collective in the last good cycle, slowest rank.",
          "commwatch probe, last result", "seconds"),
    gauge("probe_last_bus_bandwidth_bytes_per_second", PROBE,
          "Bus bandwidth of the large operation in the last good cycle, slowest rank; of scaling over all ranks, of "
          "copies the one furthest below what is expected.",
          "algorithm bandwidth times the nccl-tests factor (all_reduce: 2(n-1)/n)", "bytes_per_second"),
    gauge("probe_last_algorithm_bandwidth_bytes_per_second", PROBE,
          "Algorithm bandwidth of the same operation.", "bytes divided by the time of one call", "bytes_per_second"),
    gauge("probe_expected_bandwidth_bytes_per_second", PROBE,
          "Bus bandwidth that this size, backend, rank count and path class should give.",
          "expected_source in commwatch_probe_info", "bytes_per_second"),
    gauge("probe_bandwidth_utilization_ratio", PROBE, "Bus bandwidth of the last good cycle over the expected one.",
          "probe_last_bus_bandwidth over probe_expected_bandwidth", "ratio"),
    gauge("probe_baseline_latency_seconds", PROBE,
          "Median latency that results are held against; absent below 6 good results.",
          "latest good results under equal conditions, at most 1.15 times the first ones", "seconds"),
    gauge("probe_latency_spike_streak", PROBE, "Latency spikes in a row, up to the last result.",
          "latency above commwatch_probe_latency_limit_seconds; 0 as soon as there is a limit"),
    gauge("probe_latency_limit_seconds", PROBE,
          "Latency above which a result is a spike; absent while nothing judges it: see probe_latency_judged_info.",
          "the lower of the absolute limit (latency_limit, else a mark of the path) and max(median + 6 MAD, 1.5 median)"
          " of the baseline, whose distance to the median is wider below 20 good results", "seconds"),
    info("probe_latency_judged_info", f"{PROBE} by",
         "What judges the latency; the value is always 1. by: baseline, first_results (6 to 19 of them, with a wider "
         "limit), mark (an absolute one alone: too few good results), too_few_results (nothing judges yet), no_result.",
         "good results under equal conditions: another GPU, NCCL version or setting begins again"),
    gauge("probe_low_bandwidth_streak", PROBE, "Results in a row below the utilisation threshold, up to the last one.",
          "probe_bandwidth_utilization_ratio below the threshold"),
    gauge("probe_latency_drift_ratio", PROBE,
          "Latency of the latest good results over that of the first ones: 1 is no change, above 1 is slower.",
          "median of up to 200 over the median of the first day's, at least 20, under equal conditions", "ratio"),
    gauge("probe_bandwidth_drift_ratio", PROBE,
          "Time of the large operation in the latest good results over that in the first ones: above 1 is slower; the "
          "worst of several operations.", "as probe_latency_drift_ratio", "ratio"),
    gauge("probe_latency_step_ratio", PROBE,
          "Latency of the last results over that of those just before: 1 is no change, above 1 is slower.",
          "median of the last 5 over the median of the 20 before, good or bad, under equal conditions", "ratio"),
    gauge("probe_bandwidth_step_ratio", PROBE,
          "Time of the large operation in the last results over that in those just before: above 1 is slower; the "
          "worst of several operations.", "as probe_latency_step_ratio", "ratio"),
    gauge("probe_latency_swing_ratio", PROBE,
          "Spread of the last latencies over that of as many before: above 1 they differ more from result to result.",
          "range of the middle half of the last 20 over that of the 20 before, which counts as 15 % of their median at "
          "least; good or bad, under equal conditions", "ratio"),
    gauge("probe_bandwidth_swing_ratio", PROBE,
          "Spread of the last times of the large operation over that of as many before; the worst of several.",
          "as probe_latency_swing_ratio", "ratio"),
    gauge("probe_rank_balance_ratio", PROBE,
          "Time of the fastest rank over that of the slowest one in the last result.",
          "per-rank times of the large operation; of copies all of a GPU together", "ratio"),
    info("probe_slowest_rank_info", f"{PROBE} rank pci_bus_id",
         "The rank that took longest in the last result; the value is always 1.", "as probe_rank_balance_ratio"),
    gauge("probe_scaling_bus_bandwidth_bytes_per_second", f"{PROBE} ranks",
          "Bus bandwidth of an all_reduce over the first so many ranks.", "commwatch probe, last result",
          "bytes_per_second"),
    gauge("probe_scaling_break_even_seconds", f"{PROBE} ranks",
          "Computing time of a training step above which so many GPUs do more than one, for each GB of gradients.",
          "time to sum 1e9 bytes of gradients over the ranks, divided by ranks - 1", "seconds"),
    gauge("probe_hidden_ratio", PROBE,
          "Share of an all_reduce of a bucket of gradients, or of a matrix product where that is shorter, that running "
          "both at once hides: 1 is all of it.", "times of both alone and at once, last result of a training probe",
          "ratio"),
    gauge("probe_copy_bandwidth_bytes_per_second", _COPY, "Bandwidth of a copy between a GPU and pinned host memory.",
          "commwatch probe, last result", "bytes_per_second"),
    gauge("probe_copy_expected_bandwidth_bytes_per_second", _COPY, "What this copy should reach.",
          "expected_bandwidth of the probe, else NCCL's planning rate of the narrowest PCIe link", "bytes_per_second"),
    counter("probe_latency_spikes_total", PROBE, "Latency spikes.", "as probe_latency_spike_streak"),
    counter("probe_attempts_total", PROBE,
            "Cycles that ran to a result or a failure; those that gave way do not count.", "commwatch probe"),
    counter("probe_failures_total", f"{PROBE} reason", "Cycles that started and gave no good result.",
            "commwatch probe"),
    counter("probe_skips_total", f"{PROBE} reason", "Cycles that did not start.", "the gate before a probe"),
    counter("probe_yields_total", f"{PROBE} reason", "Cycles that started and gave way.",
            "the looks at the node while a probe runs"),
    gauge("probe_last_completion_timestamp_seconds", PROBE, "When the last cycle with a result ended.",
          "wall clock at the end of the cycle", "seconds"),
    counter("probe_gpu_occupied_seconds_total", PROBE, "GPU seconds during which a probe held a context.",
            "time between start and end of the ranks, times GPUs", "seconds"),
    gauge("probe_setup_seconds", PROBE, "Time from start of the ranks to the end of the first, discarded call.",
          "commwatch probe, last result", "seconds"),
    info("probe_info", f"{PROBE} collective latency_bytes bandwidth_bytes ranks nccl_version torch_version settings "
         "expected_source", "What a probe measures (collective), and under what conditions; the value is always 1.",
         "configuration and the last result; settings: digest of the NCCL settings in force"),
)
