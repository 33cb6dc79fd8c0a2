"""The row of a node about its fabric: health, switches, services, and who refuses whom."""

from __future__ import annotations

from commwatch.generate.dashboards.panels import Column, PanelRow, Query, Series, States, Table
from commwatch.generate.dashboards.words import HEALTH, JOINING, NOT_SEEN, REFUSED, new_events

_NEEDS_FABRIC = "Needs GPUs behind NVSwitches and a driver that reports on the fabric."

FABRIC = PanelRow("Fabric and switches", (
    States(title="Health", description="The driver's verdict on the fabric behind each GPU.",
           queries=(Query("max by (gpu) (commwatch_fabric_health{@gpu@})", "GPU {{gpu}}", due="with NVLink 5"),),
           names=HEALTH, alerts=("CommwatchFabricUnhealthy", "CommwatchFabricDegraded"), no_data=_NEEDS_FABRIC),
    States(title="Joining", description="How far each GPU is with joining the fabric.",
           queries=(Query("max by (gpu) (commwatch_fabric_state{@gpu@})", "GPU {{gpu}}"),), names=JOINING,
           alerts=("CommwatchFabricNotJoined",), no_data=_NEEDS_FABRIC),
    States(title="Services",
           description="Services of the driver: the fabric manager where there are NVSwitches, persistence.",
           queries=(Query("max by (service) (commwatch_service_running{@node@})", "{{service}}"),),
           names={0: ("stopped", "orange"), 1: ("runs", "green")}, alerts=("CommwatchFabricServiceDown",),
           no_data="Needs the NVIDIA driver."),
    Table(title="Faults of the fabric", description="What the driver says is wrong with the fabric behind a GPU.",
          labels=("gpu", "check"),
          columns=(Column("", "max by (gpu, check) (commwatch_fabric_fault{@gpu@} == 1)", due="with a fault"),),
          alerts=("CommwatchFabricMisconfigured",), width=8, no_data=f"None is named by the driver. {_NEEDS_FABRIC}"),
    Table(title="Peers that are refused",
          description="Pairs of GPUs that the driver does not let reach each other over NVLink or at all.",
          labels=("gpu", "peer", "capability"),
          columns=(Column("because of", "max by (gpu, peer, capability) (commwatch_gpu_p2p_status{@gpu@} != 0)",
                          due="with a fault", names=REFUSED),),
          alerts=("CommwatchNvlinkP2pRefused",), width=8, no_data="None is refused. It needs two GPUs."),
    Series(title="SXids", description="Errors of NVSwitches by code, counted within an hour.",
           queries=(Query(new_events("commwatch_nvswitch_sxid_events_total", "@node@", "device, sxid"),
                          "{{device}} SXid {{sxid}}", due="with a fault"),),
           alerts=("CommwatchSxidFatal", "CommwatchSxidWarning"), no_data=NOT_SEEN),
    States(title="Chip-to-chip links", description="Links between a GPU and a Grace CPU.",
           queries=(Query("max by (gpu, link) (commwatch_c2c_link_up{@gpu@})", "GPU {{gpu}} link {{link}}",
                          due="elsewhere"),),
           names={0: ("down", "orange"), 1: ("up", "green")}, alerts=("CommwatchC2cDown",),
           no_data="Needs Grace Hopper or Grace Blackwell."),
), collapsed=True)  # fmt: skip
