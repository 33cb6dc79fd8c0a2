"""Metrics of the inventory: what should be here, and what is."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, gauge

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("expected", "kind", "Parts of one kind that this node should have: configured, or the most that was stable.",
          "configuration, or the inventory kept in the state directory"),
    gauge("present", "kind",
          "Parts of one kind that are here and up: gpu, nvlink, pcie_lane, rdma_port, ethernet_port.",
          "gpu_info, nvlink_link_state, pcie_link_width_lanes, rdma_port_state and ethernet_carrier of working parts"),
    gauge("never_seen", "kind",
          "Parts of one kind that the configuration expects and that were neither learned nor are here and up.",
          "inventory.expected less the parts that are here and those in the state directory; absent without it"),
)
