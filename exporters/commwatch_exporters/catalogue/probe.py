"""Metrics of the probes."""

from __future__ import annotations

from typing import Final

from commwatch_exporters.catalogue.metric import PROBE, Metric, counter, gauge, histogram, info

_COPY: Final = f"{PROBE} gpu pci_bus_id direction"

# The rows are a table to be read: one look gives name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    histogram("probe_latency_seconds", PROBE, "Time of a small collective per cycle, slowest rank.",
              "device clock around K calls, divided by K; gloo: median by host clock", "seconds"),
    gauge("probe_last_latency_seconds", PROBE, "Time of a small collective in the last good cycle, slowest rank.",
          "last result", "seconds"),
    gauge("probe_last_bus_bandwidth_bytes_per_second", PROBE,
          "Bus bandwidth of the large operation in the last good cycle, slowest rank; scaling: all ranks, copies: "
          "furthest below expectation.",
          "algorithm bandwidth times the nccl-tests factor (all_reduce: 2(n-1)/n)", "bytes_per_second"),
    gauge("probe_last_algorithm_bandwidth_bytes_per_second", PROBE,
          "Algorithm bandwidth of the same operation.", "bytes divided by the time of one call", "bytes_per_second"),
    gauge("probe_expected_bandwidth_bytes_per_second", PROBE,
          "Expected bus bandwidth for size, backend, ranks and path class.",
          "expected_source in commwatch_probe_info", "bytes_per_second"),
    gauge("probe_bandwidth_utilization_ratio", PROBE, "Bus bandwidth over the expected one, last good cycle.",
          "probe_last_bus_bandwidth over probe_expected_bandwidth", "ratio"),
    gauge("probe_baseline_latency_seconds", PROBE, "Median latency of good results; absent below 6.",
          "latest under equal conditions, at most 1.15 times the first", "seconds"),
    gauge("probe_latency_spike_streak", PROBE, "Latency spikes in a row.",
          "latency above commwatch_probe_latency_limit_seconds"),
    gauge("probe_latency_limit_seconds", PROBE,
          "Latency above which a result is a spike; absent without a judge (probe_latency_judged_info).",
          "the lower of latency_limit (else the path's mark) and max(median + 6 MAD, 1.5 median) of the baseline, "
          "wider below 20 results", "seconds"),
    info("probe_latency_judged_info", f"{PROBE} by",
         "What judges the latency: baseline, first_results (6 to 19, wider limit), mark (absolute limit only), "
         "too_few_results (no judge), no_result.", "good results with equal GPU, NCCL version and settings"),
    gauge("probe_low_bandwidth_streak", PROBE, "Results in a row below the utilisation threshold.",
          "probe_bandwidth_utilization_ratio below the threshold"),
    gauge("probe_latency_drift_ratio", PROBE, "Latency of the latest good results over the first; above 1 is slower.",
          "median of up to 200 over that of the first day, at least 20, equal conditions", "ratio"),
    gauge("probe_bandwidth_drift_ratio", PROBE,
          "Time of the large operation, latest good results over the first; worst operation.",
          "as probe_latency_drift_ratio", "ratio"),
    gauge("probe_latency_step_ratio", PROBE, "Latency of the last results over those before; above 1 is slower.",
          "median of the last 5 over the 20 before, equal conditions", "ratio"),
    gauge("probe_bandwidth_step_ratio", PROBE,
          "Time of the large operation, last results over those before; worst operation.",
          "as probe_latency_step_ratio", "ratio"),
    gauge("probe_latency_swing_ratio", PROBE, "Spread of the last latencies over those before; above 1 they vary more.",
          "range of the middle half, last 20 over the 20 before (at least 15 % of their median), equal conditions",
          "ratio"),
    gauge("probe_bandwidth_swing_ratio", PROBE,
          "Spread of the large operation's times over those before; worst operation.",
          "as probe_latency_swing_ratio", "ratio"),
    gauge("probe_rank_balance_ratio", PROBE, "Time of the fastest over the slowest rank, last result.",
          "per-rank times of the large operation; copies: per GPU", "ratio"),
    info("probe_slowest_rank_info", f"{PROBE} rank pci_bus_id",
         "The slowest rank of the last result.", "as probe_rank_balance_ratio"),
    gauge("probe_scaling_bus_bandwidth_bytes_per_second", f"{PROBE} ranks",
          "Bus bandwidth of an all_reduce over the first ranks.", "last result", "bytes_per_second"),
    gauge("probe_scaling_break_even_seconds", f"{PROBE} ranks",
          "Computing time per step and GB of gradients above which so many GPUs do more than one.",
          "time to sum 1e9 bytes over the ranks, divided by ranks - 1", "seconds"),
    gauge("probe_hidden_ratio", PROBE,
          "Share of the shorter of gradient all_reduce and matrix product hidden by running both at once.",
          "times alone and at once, last training probe", "ratio"),
    gauge("probe_copy_bandwidth_bytes_per_second", _COPY, "Copy bandwidth between GPU and pinned host memory.",
          "last result", "bytes_per_second"),
    gauge("probe_copy_expected_bandwidth_bytes_per_second", _COPY, "Expected bandwidth of this copy.",
          "expected_bandwidth, else NCCL's planning rate of the narrowest PCIe link", "bytes_per_second"),
    counter("probe_latency_spikes_total", PROBE, "Latency spikes.", "as probe_latency_spike_streak"),
    counter("probe_attempts_total", PROBE, "Cycles that ended in a result or failure.", "commwatch probe"),
    counter("probe_failures_total", f"{PROBE} reason", "Cycles without a good result.", "commwatch probe"),
    counter("probe_skips_total", f"{PROBE} reason", "Cycles that did not start.", "the gate before a probe"),
    counter("probe_yields_total", f"{PROBE} reason", "Cycles that started and gave way.", "checks while a probe runs"),
    gauge("probe_last_completion_timestamp_seconds", PROBE, "End of the last cycle with a result.",
          "wall clock", "seconds"),
    counter("probe_gpu_occupied_seconds_total", PROBE, "GPU seconds with a probe's context.",
            "run time of the ranks times GPUs", "seconds"),
    gauge("probe_setup_seconds", PROBE, "Time from start of the ranks to their first call's end.",
          "last result", "seconds"),
    info("probe_info", f"{PROBE} collective latency_bytes bandwidth_bytes ranks nccl_version torch_version settings "
         "expected_source", "What a probe measures (collective), and its conditions.",
         "configuration, last result; settings: digest of the NCCL settings"),
)
