"""Metrics of use: the share of the expected capacity that moves data."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch_exporters.catalogue.metric import GPU, PORT, Metric, gauge


def _rows(family: str, labels: str, how: str, of_samples: str = "") -> Iterator[Metric]:
    for direction in ("transmit", "receive"):
        yield gauge(f"{family}_{direction}_utilization_ratio", labels,
                    f"Share of the expected capacity used to {direction}, last sample{of_samples}.",
                    how, "ratio")
        yield gauge(f"{family}_{direction}_utilization_peak_ratio", labels,
                    f"Highest sample of the {direction} utilisation in the last minute{of_samples}.",
                    how, "ratio")


_USED = (
    ("", "the GPU", "", "gpu_utilization_ratio"),
    ("nvlink_", "its NVLinks", ", the busier direction", "nvlink_{transmit,receive}_utilization_ratio"),
    ("pcie_", "its PCIe link", ", the busier direction", "pcie_{transmit,receive}_utilization_ratio"),
    ("network_", "the busiest RDMA port or interface of the node", "",
     "the highest {rdma_port,ethernet}_{transmit,receive}_utilization_ratio"),
)  # fmt: skip
"""By a part of the name: what a job uses, which of several values counts, and what the mean is of."""

ROWS: tuple[Metric, ...] = (
    *_rows("nvlink", GPU, "link byte rates over nvlink_capacity_bytes_per_second"),
    gauge("nvlink_slowest_link", f"{GPU} direction",
          "Link furthest behind its siblings (active links to the same peer, at least two) in the last full minute.",
          "their byte counters"),
    gauge("nvlink_slowest_link_bytes_per_second", f"{GPU} direction",
          "Rate of the slowest link in the last full minute.", "its byte counter", "bytes_per_second"),
    gauge("nvlink_sibling_bytes_per_second", f"{GPU} direction", "Median rate of its siblings in that minute.",
          "their byte counters", "bytes_per_second"),
    *_rows("rdma_port", PORT, "byte rate over expected speed"),
    *_rows("pcie", GPU, "byte rate over pcie_capacity_bytes_per_second", " (of 20 ms without GPM)"),
    *_rows("ethernet", "device", "byte rate over expected speed"),
    gauge("gpu_job_first", GPU, "Lowest GPU index of the job that has been on this GPU for 10 min.",
          "GPU processes and their launchers"),
    *(
        gauge(f"gpu_job_{kind}recent_use_ratio", GPU,
              f"Mean use of {what} over its job's last 10 min.",
              f"as gpu_job_{kind}use_ratio", "ratio")
        for kind, what, *_ in _USED
    ),
    *(
        gauge(f"gpu_job_{kind}recent_use_low_ratio", GPU,
              f"Mean use of {what} that at least 8 of the job's last 10 min reached.",
              f"as gpu_job_{kind}use_ratio, second lowest two minutes", "ratio")
        for kind, what, *_ in _USED
    ),
    gauge("gpu_job_recent_use_high_ratio", GPU,
          "Mean use of the GPU that at least 8 of the job's last 10 min did not exceed.",
          "second highest two minutes of gpu_utilization_ratio", "ratio"),
    *(
        gauge(f"gpu_job_{kind}use_ratio", GPU,
              f"Mean use of {what}{which} over its job's last hour.",
              f"mean of {how}", "ratio")
        for kind, what, which, how in _USED
    ),
)
