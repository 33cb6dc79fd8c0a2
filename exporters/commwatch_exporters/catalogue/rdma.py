"""Metrics of RDMA ports, InfiniBand and RoCE."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = ()
