"""Metrics of use: the share of the expected capacity that moves data."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch_exporters.catalogue.metric import GPU, PORT, Metric, gauge


def _rows(family: str, labels: str, how: str) -> Iterator[Metric]:
    for direction in ("transmit", "receive"):
        yield gauge(
            f"{family}_{direction}_utilization_ratio",
            labels,
            f"Share of the expected {family} capacity used to {direction}, over the last sample.",
            how,
            "ratio",
        )
        yield gauge(
            f"{family}_{direction}_utilization_peak_ratio",
            labels,
            f"Highest sample of the {family} {direction} utilisation in the last minute.",
            how,
            "ratio",
        )


ROWS: tuple[Metric, ...] = (
    *_rows("nvlink", GPU, "sum of the link byte rates over nvlink_capacity_bytes_per_second"),
    *_rows("rdma_port", PORT, "byte rate over the expected speed of the port"),
    *_rows("pcie", GPU, "rate of pcie_transmit_bytes_total, pcie_receive_bytes_total over the expected capacity"),
    *_rows("ethernet", "device", "byte rate over the expected speed of the interface"),
)
