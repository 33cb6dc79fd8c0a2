"""The NVLinks of one GPU, each by itself: state, traffic, errors by their kind, and what happened beside them."""

from __future__ import annotations

from commwatch.generate.dashboards.node_links import CRC_ERRORS
from commwatch.generate.dashboards.panels import (
    CLUSTER,
    GPU,
    INSTANCE,
    JOB,
    LINKS,
    Column,
    Dashboard,
    PanelRow,
    Query,
    Series,
    Stat,
    States,
    Table,
    any_is_bad,
    high_is_bad,
)
from commwatch.generate.dashboards.words import (
    BANDWIDTH_MODE,
    GPU_STATE,
    HEALTH,
    LINK_STATE,
    NEEDS_NVLINK,
    NEEDS_NVLINK_5,
    NOT_SEEN,
    SIMULATED,
    STAT_DAEMON,
    STAT_NVLINK,
    highest_rate,
    new_events,
)

_NEEDS_NVLINK_4 = "Needs NVLink up to 4; NVLink 5 has other counters, below."


def _within_an_hour(title: str, description: str, *counters: str, scale_key: str, alert: str, before_5: bool) -> Series:
    """Events of counters, by link."""
    return Series(
        title=title, description=description,
        queries=tuple(
            Query(f"max by (link) (round(increase(commwatch_nvlink_{counter}_total{{@link@}}[1h])))",
                  "link {{link}}" if len(counters) == 1 else f"link {{{{link}}}} {counter.replace('_', ' ')}",
                  due="up to NVLink 4" if before_5 else "with NVLink 5")
            for counter in counters
        ),
        scale=high_is_bad(scale_key, "warning", alert), no_data=_NEEDS_NVLINK_4 if before_5 else NEEDS_NVLINK_5,
    )  # fmt: skip


_STATE = PanelRow("State", (
    Stat(title="Data", description="Whether the values on this page come from hardware or from a simulated node.",
         queries=(Query("commwatch_simulated{@node@}"),), names=SIMULATED, no_data=STAT_DAEMON, width=4),
    Stat(title="GPU", description="State of the GPU.", queries=(Query("max(commwatch_gpu_state{@gpu@})"),),
         names=GPU_STATE, no_data="Needs the NVIDIA driver.", alerts=("CommwatchGpuLost",), width=4),
    Stat(title="Links down", description="Links that are expected and not up.",
         queries=(Query("count(commwatch_nvlink_link_expected{@link@} == 1 unless"
                        " (commwatch_nvlink_link_state{@link@} == 1 or commwatch_nvlink_link_state{@link@} == 2))"
                        " or 0 * count(commwatch_nvlink_link_expected{@link@})"),),
         scale=any_is_bad("critical", "CommwatchNvlinkDown"), no_data=STAT_NVLINK, width=4),
    Stat(title="Nominal rate", description="The most that one link carries in one direction.",
         queries=(Query("max(gpu:commwatch_nvlink_link_capacity_bytes_per_second:mean{@gpu@})"),), unit="Bps",
         no_data="Needs NVLink and alerts/rules.", width=4),
    Stat(title="Bandwidth mode", description="Setting of the links, where NVLink 5 has one.",
         queries=(Query("max(commwatch_nvlink_bandwidth_mode{@gpu@})", due="with NVLink 5"),), names=BANDWIDTH_MODE,
         no_data="Needs GPUs with NVLink 5.", alerts=("CommwatchNvlinkReduced",), width=4),
    Stat(title="Fabric", description="The driver's verdict on the fabric behind this GPU.",
         queries=(Query("max(commwatch_fabric_health{@gpu@})", due="with NVLink 5"),), names=HEALTH,
         no_data="Needs a GPU behind NVSwitches.", alerts=("CommwatchFabricUnhealthy",), width=4),
    States(title="State of the links", description="Each link over time.",
           queries=(Query("max by (link) (commwatch_nvlink_link_state{@link@})", "link {{link}}"),), names=LINK_STATE,
           no_data=NEEDS_NVLINK, alerts=("CommwatchNvlinkDown",), width=12, height=10),
    Table(title="Where the links lead", description="The device at the other end of each link.",
          labels=("link", "version", "remote_type", "remote_pci_bus_id", "remote_link"),
          columns=(Column("",
                          "max by (link, version, remote_type, remote_pci_bus_id, remote_link)"
                          " (commwatch_nvlink_info{@link@})"),),
          no_data=NEEDS_NVLINK, width=12, height=10),
))  # fmt: skip

_NOMINAL = Query("max(gpu:commwatch_nvlink_link_capacity_bytes_per_second:mean{@gpu@})", "nominal rate of a link")

_TRAFFIC = PanelRow("Traffic", (
    Series(title="Sent", description="Payload that each link sent.",
           queries=(Query("max by (link) (rate(commwatch_nvlink_transmit_bytes_total{@link@}[$__rate_interval]))",
                          "link {{link}}"), _NOMINAL),
           unit="Bps", no_data=NEEDS_NVLINK, alerts=("CommwatchNvlinkBelowSiblings",)),
    Series(title="Received", description="Payload that each link received.",
           queries=(Query("max by (link) (rate(commwatch_nvlink_receive_bytes_total{@link@}[$__rate_interval]))",
                          "link {{link}}"), _NOMINAL),
           unit="Bps", no_data=NEEDS_NVLINK, alerts=("CommwatchNvlinkBelowSiblings",)),
    Series(title="Number of the slowest link",
           description="The link that fell furthest behind those that lead to the same place.",
           queries=(Query("max by (direction) (commwatch_nvlink_slowest_link{@gpu@})", "{{direction}}"),),
           no_data="Needs links with siblings: two or more that lead to the same place."),
))  # fmt: skip

_ERRORS = PanelRow("Errors and recoveries", (
    Series(title="CRC errors", description="Flits and data that failed their checksum, per second.",
           queries=(Query(highest_rate("link", "@link@", CRC_ERRORS), "link {{link}}", due="up to NVLink 4"),),
           unit="cps", scale=high_is_bad("nvlink_crc_errors_per_second", "warning", "CommwatchNvlinkBitErrors"),
           no_data=_NEEDS_NVLINK_4),
    _within_an_hour("Replays", "Times a link sent packets again, within an hour; a healthy link has none.",
                    "replay_errors",
                    scale_key="nvlink_replays_per_hour", alert="CommwatchNvlinkReplays", before_5=True),
    _within_an_hour("Recoveries, up to NVLink 4", "Times a link retrained, within an hour.", "recovery_errors",
                    scale_key="nvlink_recoveries_per_hour", alert="CommwatchNvlinkRecovering", before_5=True),
    _within_an_hour("Recoveries, NVLink 5", "Times a link retrained, within an hour.", "recoveries",
                    scale_key="nvlink_recoveries_per_hour", alert="CommwatchNvlinkRecovering", before_5=False),
    _within_an_hour("Packets with errors", "By their kind, within an hour; a healthy link has none.",
                    "malformed_packets", "buffer_overrun_errors", "receive_errors", "receive_general_errors",
                    scale_key="nvlink_packet_errors_per_hour", alert="CommwatchNvlinkPacketErrors", before_5=False),
    _within_an_hour("Packets that the far end marked bad", "Within an hour; the fault lies behind the far end.",
                    "receive_remote_errors",
                    scale_key="nvlink_packet_errors_per_hour", alert="CommwatchNvlinkRemoteErrors", before_5=False),
    Series(title="Times down", description="Times a link went down and came back, within an hour.",
           queries=(Query("max by (link) (round(increase(commwatch_nvlink_link_flaps_total{@link@}[1h])))",
                          "link {{link}}"),),
           scale=high_is_bad("link_flaps_per_hour", "critical", "CommwatchNvlinkDown"),
           alerts=("CommwatchLinkFlapped",), no_data=NEEDS_NVLINK),
    Series(title="Failed recoveries",
           description="Times a link lost its training and could not regain it, within an hour.",
           queries=(Query("max by (link) (round(increase(commwatch_nvlink_recoveries_failed_total{@link@}[1h])))",
                          "link {{link}}", due="with NVLink 5"),),
           scale=any_is_bad("critical", "CommwatchNvlinkDown"), no_data=NEEDS_NVLINK_5),
    Series(title="Bit errors after correction", description="Effective bit error ratio of each link.",
           queries=(Query("max by (link) (commwatch_nvlink_effective_bit_error_ratio{@link@})", "link {{link}}",
                          due="with NVLink 5"),),
           scale=high_is_bad("nvlink_bit_error_ratio_max", "warning", "CommwatchNvlinkBitErrors"),
           no_data=NEEDS_NVLINK_5, unit="sci"),
    Series(title="Bit errors before correction", description="Raw bit error ratio of each link; these are normal.",
           queries=(Query("max by (link) (commwatch_nvlink_raw_bit_error_ratio{@link@})", "link {{link}}",
                          due="with NVLink 5"),),
           no_data=NEEDS_NVLINK_5, unit="sci"),
    Series(title="Recoveries by day", description="Recoveries of a link in the last 24 h, of links that had any.",
           queries=(Query("max by (link) (link:commwatch_nvlink_recoveries:sum1d{@link@})", "link {{link}}",
                          due="elsewhere"),),
           scale=high_is_bad("nvlink_recoveries_per_day", "warning", "CommwatchNvlinkRecovering"),
           alerts=("CommwatchNvlinkRecoveriesRising",),
           no_data="None retrained. Also empty without the recording rules of alerts/rules."),
    Series(title="Xids of the GPU", description="Errors that the driver reported of this GPU within an hour, by code.",
           queries=(Query(new_events("commwatch_gpu_xid_events_total", "@gpu@", "xid"), "Xid {{xid}}",
                          due="with a fault"),),
           alerts=("CommwatchXidFabric",), no_data=NOT_SEEN),
))  # fmt: skip

LINK = Dashboard(
    uid="commwatch-link",
    title="commwatch / Links",
    description="The NVLinks of a GPU, each by itself.",
    variables=(CLUSTER, JOB, INSTANCE, GPU, LINKS),
    rows=(_STATE, _TRAFFIC, _ERRORS),
)
