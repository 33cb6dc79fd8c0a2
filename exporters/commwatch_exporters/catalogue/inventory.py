"""Metrics of the inventory: what should be here, and what is."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, PORT, Metric, gauge, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("expected", "kind",
          "Parts of one kind that this node should have: configured, accepted, of its boards, or what was stable.",
          "configuration, or the inventory kept in the state directory"),
    info("inventory_info", "kind source",
         "Where the expectation of a kind comes from: configured, accepted by an operator, board, or learned.",
         "configuration, the inventory kept in the state directory, and the NVSwitches on the bus"),
    gauge("present", "kind",
          "Parts of one kind that are here and up: gpu, nvlink, pcie_lane, rdma_port, ethernet_port.",
          "gpu_info, nvlink_link_state, pcie_link_width_lanes, rdma_port_state and ethernet_carrier of working parts"),
    gauge("never_seen", "kind",
          "Parts of one kind that configuration or boards expect and that were neither learned nor are here and up.",
          "inventory.expected, else the board that the NVSwitches on the bus and the GPUs' names show, less the parts "
          "that are here and those in the state directory; absent without"),
    gauge("gpu_below_equals", f"{GPU} aspect",
          "How many NVLinks, PCIe lanes, PCIe generations or network adapters behind its PCIe switch (aspect) the GPU "
          "has less than others of its model here.",
          "inventory; needs four GPUs of one model of which three quarters agree, or all but two with one NVLink less; "
          "0 where it was accepted"),
    gauge("rdma_port_below_equals", PORT, "1 where the port is down, was never up, and all others of its kind are up.",
          "inventory; needs four ports of one model, link layer and card, one or more for each GPU; 0 where it was "
          "accepted"),
)
