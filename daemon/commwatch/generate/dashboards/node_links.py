"""The rows of a node about its NVLinks, its PCIe paths, and the fabric with its switches."""

from __future__ import annotations

from commwatch.generate.dashboards.panels import (
    Column,
    PanelRow,
    Query,
    Series,
    States,
    Table,
    any_is_bad,
    high_is_bad,
    low_is_bad,
)
from commwatch.generate.dashboards.words import (
    DEGRADED,
    HEALTH,
    JOINING,
    LINK_LINK,
    LINK_STATE,
    MISSING,
    NEEDS_NVLINK,
    NEEDS_PCIE,
    NOT_SEEN,
    REFUSED,
    added,
    highest_rate,
    new_events,
)
from commwatch_exporters.catalogue import LIMITS

LINK_ERRORS = tuple(
    metric.name.removesuffix("_total")
    for finding in ("nvlink_replays", "nvlink_packet_errors", "nvlink_remote_errors")
    for metric, _ in LIMITS[finding]
)
"""Counters of all generations; a healthy link has none. CRC errors are shown separately: single ones are normal."""
CRC_ERRORS = ("commwatch_nvlink_crc_flit_errors", "commwatch_nvlink_crc_data_errors")
"""NVLink 1 to 4."""
RECOVERIES = ("commwatch_nvlink_recovery_errors", "commwatch_nvlink_recoveries")
"""NVLink 1 to 4, and NVLink 5."""

_LINK = "gpu, link"
_BEHIND = (
    "min by (gpu, direction) (commwatch_nvlink_slowest_link_bytes_per_second{@gpu@}"
    " / (commwatch_nvlink_sibling_bytes_per_second{@gpu@} > on (cluster, job, instance, gpu, pci_bus_id) group_left ()"
    " @nvlink_sibling_in_use_ratio@ * gpu:commwatch_nvlink_link_capacity_bytes_per_second:mean{@gpu@}))"
)

LINK_TABLE = Table(
    title="Links",
    description="Each NVLink: state, use of its nominal rate, errors and recoveries; those that are missing or have"
                " errors first. A click on a link leads to it.",
    labels=("gpu", "link", "remote_type", "remote_pci_bus_id", "remote_link"),
    columns=(
        Column("state", f"max by ({_LINK}) (commwatch_nvlink_link_state{{@gpu@}})", names=LINK_STATE),
        Column("missing", f"max by ({_LINK}) ((commwatch_nvlink_link_expected{{@gpu@}} == 1"
               " unless on (cluster, job, instance, gpu, link) (commwatch_nvlink_link_state{@gpu@} == 1"
               " or commwatch_nvlink_link_state{@gpu@} == 2)) or 0 * commwatch_nvlink_link_expected{@gpu@})",
               names=MISSING),
        Column("sends", f"sum by ({_LINK}) (rate(commwatch_nvlink_transmit_bytes_total{{@gpu@}}[$__rate_interval]))",
               unit="Bps"),
        Column("receives", f"sum by ({_LINK}) (rate(commwatch_nvlink_receive_bytes_total{{@gpu@}}[$__rate_interval]))",
               unit="Bps"),
        Column("use",
               f"max by ({_LINK}) (rate(commwatch_nvlink_transmit_bytes_total{{@gpu@}}[$__rate_interval])"
               " / on (cluster, job, instance, gpu, pci_bus_id) group_left ()"
               " gpu:commwatch_nvlink_link_capacity_bytes_per_second:mean{@gpu@})", unit="percentunit"),
        Column("CRC errors per second",
               highest_rate(_LINK, "@gpu@", CRC_ERRORS), due="up to NVLink 4",
               scale=high_is_bad("nvlink_crc_errors_per_second", "warning", "CommwatchNvlinkBitErrors")),
        Column("errors within an hour", added("1h", _LINK, LINK_ERRORS),
               scale=high_is_bad("nvlink_packet_errors_per_hour", "warning", "CommwatchNvlinkPacketErrors")),
        Column("recoveries within an hour", added("1h", _LINK, RECOVERIES),
               scale=high_is_bad("nvlink_recoveries_per_hour", "warning", "CommwatchNvlinkRecovering")),
        Column("", f"max by ({_LINK}, remote_type, remote_pci_bus_id, remote_link) (commwatch_nvlink_info{{@gpu@}})"),
    ),
    links={"link": LINK_LINK},
    sort_by={"missing": "down", "errors within an hour": "down", "recoveries within an hour": "down", "gpu": "up",
             "link": "up"}, alerts=("CommwatchNvlinkDown", "CommwatchNvlinkReplays"), no_data=NEEDS_NVLINK,
    height=12,
)  # fmt: skip

NVLINK = PanelRow("NVLink", (
    Series(title="NVLink use, sent", description="Share of the expected NVLink capacity of a GPU that it sent with.",
           queries=(Query("max by (gpu) (commwatch_nvlink_transmit_utilization_ratio{@gpu@})", "GPU {{gpu}}"),),
           unit="percentunit", maximum=1, no_data=NEEDS_NVLINK, alerts=("CommwatchNvlinkUtilizationLow",)),
    Series(title="NVLink use, received",
           description="Share of the expected NVLink capacity of a GPU that it received with.",
           queries=(Query("max by (gpu) (commwatch_nvlink_receive_utilization_ratio{@gpu@})", "GPU {{gpu}}"),),
           unit="percentunit", maximum=1, no_data=NEEDS_NVLINK, alerts=("CommwatchNvlinkUtilizationLow",)),
    Series(title="Slowest link against its siblings",
           description="Traffic of the slowest link of a GPU over the median of those that lead to the same place,"
                       " while these are in use.",
           queries=(Query(_BEHIND, "GPU {{gpu}} {{direction}}", due="with a fault"),), unit="percentunit",
           scale=low_is_bad("nvlink_sibling_low_ratio", "warning", "CommwatchNvlinkBelowSiblings"),
           no_data="None fell behind. Also empty without a job that uses more than "
                   "@nvlink_sibling_in_use_ratio:percent@ of the"
                   " NVLink capacity, and the recording rules of alerts/rules."),
    Series(title="Links up", description="NVLinks of each GPU that are active or save power.",
           queries=(Query("count by (gpu) (commwatch_nvlink_link_state{@gpu@} == 1 or"
                          " commwatch_nvlink_link_state{@gpu@} == 2) or"
                          " 0 * count by (gpu) (commwatch_nvlink_link_state{@gpu@})", "GPU {{gpu}}"),),
           no_data=NEEDS_NVLINK, alerts=("CommwatchNvlinkDown",), width=6),
    Series(title="CRC errors",
           description="Flits and data of NVLink 1 to 4 that failed their checksum, per second; the link of a GPU with"
                       " most.",
           queries=(Query(highest_rate("gpu", "@gpu@", CRC_ERRORS), "GPU {{gpu}}", due="up to NVLink 4"),),
           unit="cps", scale=high_is_bad("nvlink_crc_errors_per_second", "warning", "CommwatchNvlinkBitErrors"),
           no_data="Needs GPUs with NVLink up to 4; NVLink 5 has packets with errors instead.", width=6),
    Series(title="Errors",
           description="Errors of all kinds but CRC within an hour, of all links of a GPU; a healthy one has none.",
           queries=(Query(added("1h", "gpu", LINK_ERRORS), "GPU {{gpu}}"),),
           scale=high_is_bad("nvlink_packet_errors_per_hour", "warning", "CommwatchNvlinkPacketErrors"),
           alerts=("CommwatchNvlinkReplays", "CommwatchNvlinkRemoteErrors"), no_data=NEEDS_NVLINK, width=6),
    Series(title="Recoveries", description="Times within an hour that a link retrained; the link of a GPU with most.",
           queries=(Query(f"max by (gpu) ({added('1h', _LINK, RECOVERIES)})", "GPU {{gpu}}"),),
           scale=high_is_bad("nvlink_recoveries_per_hour", "warning", "CommwatchNvlinkRecovering"),
           alerts=("CommwatchNvlinkRecoveriesRising",), no_data=NEEDS_NVLINK, width=6),
), collapsed=True)  # fmt: skip

_GPU = "gpu, pci_bus_id"
PCIE = PanelRow("PCIe", (
    Table(title="Paths of GPUs",
          description="The PCIe link of each GPU. Its generation falls while it is idle, which is normal.",
          labels=("gpu", "pci_bus_id"),
          columns=(
              Column("lanes", f"max by ({_GPU}) (commwatch_pcie_link_width_lanes{{@gpu@}})"),
              Column("lanes expected", f"max by ({_GPU}) (commwatch_pcie_link_width_expected_lanes{{@gpu@}})"),
              Column("generation", f"max by ({_GPU}) (commwatch_pcie_link_generation{{@gpu@}})"),
              Column("highest", f"max by ({_GPU}) (commwatch_pcie_link_generation_max{{@gpu@}})"),
              Column("width", f'max by ({_GPU}) (commwatch_pcie_link_degraded{{@gpu@, aspect="width"}})',
                     names=DEGRADED),
              Column("speed under load",
                     f'max by ({_GPU}) (commwatch_pcie_link_degraded{{@gpu@, aspect="generation"}})',
                     names=DEGRADED, due="with a fault"),
              Column("sends", f"max by ({_GPU}) (commwatch_pcie_transmit_utilization_ratio{{@gpu@}})",
                     unit="percentunit"),
              Column("receives", f"max by ({_GPU}) (commwatch_pcie_receive_utilization_ratio{{@gpu@}})",
                     unit="percentunit"),
              Column("replays within 5 min",
                     f"max by ({_GPU}) (round(increase(commwatch_pcie_replays_total{{@gpu@}}[5m])))"),
              Column("allowed", f"max by ({_GPU}) (gpu:commwatch_pcie_errors_allowed:count5m{{@gpu@}})"),
          ),
          alerts=("CommwatchPcieWidthDropped", "CommwatchPcieGenerationLow", "CommwatchPcieReplays"),
          no_data=NEEDS_PCIE),
    Series(title="PCIe use",
           description="Share of the expected PCIe capacity of a GPU, the busier direction. Without GPM (before Hopper)"
                       " each point is a sample of 20 ms.",
           queries=(Query("max by (gpu) (commwatch_pcie_transmit_utilization_ratio{@gpu@}"
                          " >= commwatch_pcie_receive_utilization_ratio{@gpu@} or"
                          " commwatch_pcie_receive_utilization_ratio{@gpu@})", "GPU {{gpu}}"),),
           unit="percentunit", maximum=1, no_data=NEEDS_PCIE, alerts=("CommwatchPcieUtilizationLow",), width=6),
    Series(title="Replays over what is allowed",
           description="Packets that a GPU sent again within 5 min over what a bit error ratio of"
                       " @pcie_bit_error_ratio_max@ allows.",
           queries=(Query("max by (gpu) (round(increase(commwatch_pcie_replays_total{@gpu@}[5m]))"
                          " / gpu:commwatch_pcie_errors_allowed:count5m{@gpu@})", "GPU {{gpu}}"),),
           scale=any_is_bad("warning", "CommwatchPcieReplays"),
           no_data=f"{NEEDS_PCIE} And the recording rules of alerts/rules.", width=6),
    Series(title="Errors reported by devices (AER)",
           description="Within 5 min, by device and severity, of those that have had any.",
           queries=(Query("sum by (device, role, severity)"
                          " (round(increase(commwatch_pcie_aer_errors_total{@node@}[5m]))) > 0",
                          "{{role}} {{device}} {{severity}}", due="with a fault"),),
           alerts=("CommwatchPcieFatal", "CommwatchPcieNonfatal", "CommwatchPcieCorrected"),
           no_data="None was reported. Also empty without AER in the kernel.", width=6),
    Series(title="Retrained links",
           description="Times within an hour that a GPU's link retrained because packets had to be sent again too"
                       " often.",
           queries=(Query("max by (gpu) (round(increase(commwatch_pcie_replay_rollovers_total{@gpu@}[1h])))",
                          "GPU {{gpu}}"),),
           scale=any_is_bad("warning", "CommwatchPcieRetrained"), no_data=NEEDS_PCIE, width=6),
    Table(title="Paths of adapters and switches", description="PCIe devices on the paths between GPUs and adapters.",
          labels=("device", "role", "parent", "numa_node"),
          columns=(
              Column("lanes", "max by (device) (commwatch_pcie_device_link_width_lanes{@node@})"),
              Column("most lanes", "max by (device) (commwatch_pcie_device_link_width_max_lanes{@node@})"),
              Column("generation", "max by (device) (commwatch_pcie_device_link_generation{@node@})"),
              Column("highest", "max by (device) (commwatch_pcie_device_link_generation_max{@node@})"),
              Column("link", "max by (device) (commwatch_pcie_device_link_degraded{@node@})", names=DEGRADED),
              Column("", "max by (device, role, parent, numa_node) (commwatch_pcie_device_info{@node@})"),
          ),
          alerts=("CommwatchPcieDeviceDegraded",), no_data=NEEDS_PCIE),
))  # fmt: skip


_FABRIC = "GPUs behind NVSwitches and a driver that reports on the fabric."
_NEEDS_FABRIC = f"Needs {_FABRIC}"

FABRIC = PanelRow("Fabric and switches", (
    States(title="Health", description="The driver's verdict on the fabric behind each GPU.",
           queries=(Query("max by (gpu) (commwatch_fabric_health{@gpu@})", "GPU {{gpu}}", due="with NVLink 5"),),
           names=HEALTH, alerts=("CommwatchFabricUnhealthy", "CommwatchFabricDegraded"), no_data=_NEEDS_FABRIC,
           width=6),
    States(title="Joining", description="How far each GPU is with joining the fabric.",
           queries=(Query("max by (gpu) (commwatch_fabric_state{@gpu@})", "GPU {{gpu}}"),), names=JOINING,
           alerts=("CommwatchFabricNotJoined",), no_data=_NEEDS_FABRIC, width=6),
    States(title="Services",
           description="Services of the driver: the fabric manager where there are NVSwitches, persistence.",
           queries=(Query("max by (service) (commwatch_service_running{@node@})", "{{service}}"),),
           names={0: ("stopped", "orange"), 1: ("runs", "green")}, alerts=("CommwatchFabricServiceDown",),
           no_data="Needs the NVIDIA driver.", width=6),
    States(title="Chip-to-chip links", description="Links between a GPU and a Grace CPU.",
           queries=(Query("max by (gpu, link) (commwatch_c2c_link_up{@gpu@})", "GPU {{gpu}} link {{link}}",
                          due="elsewhere"),),
           names={0: ("down", "orange"), 1: ("up", "green")}, alerts=("CommwatchC2cDown",),
           no_data="Needs Grace Hopper or Grace Blackwell.", width=6),
    Table(title="Faults of the fabric", description="Faults that the driver reports of the fabric behind a GPU.",
          labels=("gpu", "check"),
          columns=(Column("", "max by (gpu, check) (commwatch_fabric_fault{@gpu@} == 1)", due="with a fault"),),
          alerts=("CommwatchFabricMisconfigured",), width=8,
          no_data=f"None is named by the driver. Also empty without {_FABRIC}"),
    Table(title="P2P refused",
          description="Pairs of GPUs that the driver does not let reach each other over NVLink or at all.",
          labels=("gpu", "peer", "capability"),
          columns=(Column("because of", "max by (gpu, peer, capability) (commwatch_gpu_p2p_status{@gpu@} != 0)",
                          due="with a fault", names=REFUSED),),
          alerts=("CommwatchNvlinkP2pRefused",), width=8, no_data="None is refused. Also empty without two GPUs."),
    Series(title="SXids", description="Errors of NVSwitches by code, counted within an hour.",
           queries=(Query(new_events("commwatch_nvswitch_sxid_events_total", "@node@", "device, sxid"),
                          "{{device}} SXid {{sxid}}", due="with a fault"),),
           alerts=("CommwatchSxidFatal", "CommwatchSxidWarning"), no_data=NOT_SEEN),
), collapsed=True)  # fmt: skip
