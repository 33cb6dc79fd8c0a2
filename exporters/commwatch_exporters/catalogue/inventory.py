"""Metrics of the inventory: what should be here, and what is."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, PORT, Metric, gauge, info

# The rows are a table to be read: one look gives name, labels, help and origin.
# fmt: off

ROWS: tuple[Metric, ...] = (
    gauge("expected", "kind", "Parts the node should have: configured, accepted, by its board, or learned.",
          "configuration or inventory"),
    info("inventory_info", "kind source", "Source of the expectation: configured, accepted, board, or learned.",
         "configuration, inventory, NVSwitches on the bus"),
    gauge("present", "kind", "Parts present and up: gpu, nvlink, pcie_lane, rdma_port, ethernet_port.",
          "gpu_info, nvlink_link_state, pcie_link_width_lanes, rdma_port_state, ethernet_carrier"),
    gauge("never_seen", "kind", "Expected parts that were never learned or up.",
          "inventory.expected, else the board (NVSwitches on the bus, GPU names), less parts present or learned"),
    gauge("gpu_below_equals", f"{GPU} aspect",
          "NVLinks, PCIe lanes, PCIe generations or network adapters behind its switch (aspect) that the GPU lacks "
          "against others of its model.",
          "inventory; four GPUs of a model, three quarters agree, or all but two with one NVLink less; 0 where "
          "accepted"),
    gauge("rdma_port_below_equals", PORT, "1 where the port was never up and all others of its kind are.",
          "inventory; four ports of one model, link layer and card, one or more per GPU; 0 where accepted"),
)
