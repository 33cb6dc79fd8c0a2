"""Metrics of the inventory: what should be here, and what is."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, Metric, gauge, info

ROWS: tuple[Metric, ...] = (
    gauge("expected", "kind", "Parts the node should have: configured, accepted, by its board, or learned.",
          "configuration or inventory"),
    info("inventory_info", "kind source",
         "Source of the expectation: configured, accepted, board, or learned; board also where configured.",
         "configuration, inventory, NVSwitches on the bus"),
    gauge("present", "kind", "Parts present and up: gpu, nvlink, pcie_lane, rdma_port, ethernet_port.",
          "gpu_info, nvlink_link_state, pcie_link_width_lanes, rdma_port_state, ethernet_carrier"),
    gauge("never_seen", "kind", "Expected parts that no reading of this boot has shown and that nothing else names.",
          "inventory.expected, else the board (NVSwitches on the bus, GPU names), less parts present, seen or learned"),
    gauge("gpu_below_equals", f"{GPU} aspect",
          "NVLinks, PCIe lanes, PCIe generations or network adapters behind its switch (aspect) that the GPU lacks "
          "against others of its model.",
          "inventory; four GPUs of a model, three quarters agree, or all but two with one NVLink less; 0 where "
          "accepted"),
    gauge("gpu_below_product", f"{GPU} aspect",
          "NVLinks, PCIe lanes or PCIe generations (aspect) that the GPU lacks against what GPUs of its name have.",
          "inventory; GPUs that are soldered to a board; 0 where accepted or where the slot gives no more"),
    gauge("gpu_never_seen", f"{GPU} kind", "NVLinks (kind) that the GPU lacks of those in never_seen.",
          "inventory; only while there are any, and where each GPU should have equally many"),
)
