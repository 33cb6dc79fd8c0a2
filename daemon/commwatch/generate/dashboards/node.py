"""One node on three pages: what is wrong and its parts; its network; its probes and jobs."""

from __future__ import annotations

from commwatch.generate.dashboards.node_jobs import JOBS_ROW, OURSELVES
from commwatch.generate.dashboards.node_links import FABRIC, LINK_TABLE, NVLINK, PCIE
from commwatch.generate.dashboards.node_network import PORTS
from commwatch.generate.dashboards.node_probes import BETWEEN_NODES, PROBE_TABLE, PROBES
from commwatch.generate.dashboards.panels import (
    CLUSTER,
    GPUS,
    INSTANCE,
    JOB,
    Column,
    Dashboard,
    PanelRow,
    Query,
    Series,
    Stat,
    States,
    Table,
    any_is_bad,
)
from commwatch.generate.dashboards.words import (
    ALERT_TABLE_LINKS,
    ALERT_TABLE_NAMES,
    ALERT_TABLE_ORDER,
    BUSY,
    FINDINGS,
    FIRST_STEPS,
    GPU_LINK,
    GPU_STATE,
    NEEDS_SCORE,
    NOT_SEEN,
    RECOVERY,
    SCORE,
    SEEN,
    SEVERITY_RANKS,
    SIMULATED,
    STAT_DAEMON,
    STAT_PROBES,
    STAT_RULES,
    TITLES,
    UP,
    firing,
    new_events,
    zero_with_rules,
)


def _missing(kind: str) -> str:
    parts = f'{{@node@, kind="{kind}"}}'
    return f"sum(clamp_min(commwatch_expected{parts} - commwatch_present{parts}, 0))"


_DAEMON = Stat(title="Daemon",
     description="Whether the last scrape reached the daemon of this node, or node_exporter where that passes on a"
                 " file of the daemon.",
     queries=(Query(UP),), names=SEEN, no_data=STAT_RULES,
     alerts=("CommwatchDaemonDown", "CommwatchTextfileStale"))  # fmt: skip
_DATA = Stat(title="Data", description="Whether the values on this page come from hardware or from a simulated node.",
     queries=(Query("commwatch_simulated{@node@}"),), names=SIMULATED, no_data=STAT_DAEMON)  # fmt: skip
_FIRING = Stat(title="Pages and tickets", description="Alerts of severity critical and warning that fire on this node.",
     queries=(Query(zero_with_rules('count(ALERTS{@node_alerts@, alertstate="firing",'
                                    ' severity=~"critical|warning"})')),),
     scale=any_is_bad("warning"), no_data=STAT_RULES)  # fmt: skip
_MAINTENANCE = Stat(title="Maintenance",
     description="Whether the daemon is paused: it then reads no driver, and alerts are silenced.",
     queries=(Query("max(commwatch_maintenance{@node@})"),),
     names={0: ("no", "green"), 1: ("maintenance", "blue")}, no_data=STAT_DAEMON,
     alerts=("CommwatchMaintenanceLong",))  # fmt: skip
_HEAD = PanelRow("Node", (_DAEMON, _DATA, _FIRING, _MAINTENANCE))
"""Of the pages of details."""

_VERDICT = PanelRow("Verdict", (
    _DAEMON,
    _DATA,
    _FIRING,
    Stat(title="Score", description="Communication score: @score_excellent_ratio:percent@ and up is excellent,"
                     " @score_good_ratio:percent@ and up good.",
         queries=(Query("commwatch_communication_score_ratio{@node@}"),), unit="percentunit", scale=SCORE,
         no_data=STAT_PROBES),
    Stat(title="Missing",
         description="Parts that are expected, by configuration or because they were stable, and not here and up now.",
         queries=(
             Query(_missing("gpu"), "GPUs"),
             Query(_missing("nvlink"), "NVLinks"),
             Query(_missing("rdma_port"), "RDMA ports", due="with RDMA"),
         ),
         scale=any_is_bad("critical"), width=6, no_data="Needs GPUs, NVLinks or RDMA ports.",
         alerts=("CommwatchGpuLost", "CommwatchNvlinkDown", "CommwatchRdmaPortDown", "CommwatchPartsNeverSeen",
                 "CommwatchPortsNeverSeen")),
    Stat(title="Below equal GPUs",
         description="GPUs with fewer NVLinks, lanes or generations than the others of their model, or than GPUs of"
                     " their name have; a GPU counts once for each.",
         queries=(Query("count(commwatch_gpu_below_equals{@node@} > 0 or commwatch_gpu_below_product{@node@} > 0)"
                        " or 0 * count(commwatch_gpu_below_equals{@node@} or commwatch_gpu_below_product{@node@})"),),
         scale=any_is_bad("warning", "CommwatchStaticAsymmetry"), no_data="Needs two equal GPUs.",
         alerts=("CommwatchGpuBelowProduct",)),
    _MAINTENANCE,
    Table(title="Findings",
          description="Open findings with severity and first step of their code; those of the very case are on the"
                      " node's own page. A fault that explains another finding stands at that one, as its cause.",
          first=("severity",),
          labels=("title", "component", "next_step"),
          columns=(Column("severity", FINDINGS, names=SEVERITY_RANKS, due="with a fault"),),
          label_names={"title": TITLES, "next_step": FIRST_STEPS}, wrapped=("next_step",),
          sort_by={"severity": "down", "title": "up"}, height=13,
          no_data="None is open. Also empty without a daemon that answers."),
    Table(title="Alerts",
          description="Alerts of severity critical and warning that fire, and since when their sign was there.",
          first=("since",),
          labels=("severity", "alertname", "about", "simulated"),
          columns=(Column("since", firing("alertname, severity, simulated"), unit="dateTimeFromNow",
                          due="with a fault"),),
          links={"alertname": ALERT_TABLE_LINKS["alertname"]}, label_names=ALERT_TABLE_NAMES,
          sort_by=ALERT_TABLE_ORDER,
          no_data="None fires. Also empty without the rules of alerts/rules in this Prometheus."),
    States(title="Findings over time", description="When each finding was open.",
           queries=(Query("max by (code, component) (commwatch_finding{@node@} == 1)", "{{code}} {{component}}",
                          due="with a fault"),),
           names={1: ("open", "orange")}, width=12,
           no_data="None was open in this time. Also empty without a daemon that answers."),
    Series(title="Score over time", description="Communication score and its four parts.",
           queries=(
               Query("commwatch_communication_score_ratio{@node@}", "score"),
               Query("commwatch_communication_score_component_ratio{@node@}", "{{component}}"),
           ),
           unit="percentunit", maximum=1, scale=SCORE, no_data=NEEDS_SCORE, width=12),
))  # fmt: skip

_GPU_TABLE = Table(
    title="GPUs", description="Identity and state of each GPU that is or was here.",
    labels=("gpu", "pci_bus_id", "name", "uuid", "serial"),
    columns=(
        Column("state", "max by (gpu, pci_bus_id) (commwatch_gpu_state{@gpu@})", names=GPU_STATE),
        Column("in use", "max by (gpu, pci_bus_id) (commwatch_gpu_busy{@gpu@})", names=BUSY),
        Column("memory used", "max by (gpu, pci_bus_id) (commwatch_gpu_memory_used_bytes{@gpu@})", unit="bytes"),
        Column("temperature", "max by (gpu, pci_bus_id) (commwatch_gpu_temperature_celsius{@gpu@})", unit="celsius"),
        Column("power", "max by (gpu, pci_bus_id) (commwatch_gpu_power_watts{@gpu@})", unit="watt"),
        Column("asked for", "max by (gpu, pci_bus_id) (commwatch_gpu_recovery_action{@gpu@})", names=RECOVERY),
        Column("Xids within a day",
               new_events("commwatch_gpu_xid_events_total", "@gpu@", "gpu, pci_bus_id", "1d")
               + " or 0 * max by (gpu, pci_bus_id) (commwatch_gpu_xid_events_total{@gpu@})"),
        Column("", "max by (gpu, pci_bus_id, name, uuid, serial) (commwatch_gpu_info{@gpu@})"),
    ),
    links={"gpu": GPU_LINK},
    alerts=("CommwatchGpuLost", "CommwatchGpuNotListed", "CommwatchGpuNotAnswering", "CommwatchGpuRecoveryNeeded",
            "CommwatchGpuRecoveryOther", "CommwatchXidFabric"),
    no_data="Needs the NVIDIA driver.",
)  # fmt: skip

_GPUS = PanelRow("GPUs, clocks and Xids", (
    States(title="Driver unusable",
           description="When no GPU could be read through the NVIDIA driver, and why.",
           queries=(Query("max by (reason) (commwatch_driver_unusable{@node@} == 1)", "{{reason}}", due="elsewhere"),),
           names={1: ("cannot be used", "red")}, alerts=("CommwatchDriverUnusable",),
           no_data="None in this time. Also empty without GPUs of NVIDIA.", width=6),
    States(title="Busy", description="GPUs that a job is on. Probes run only while none is busy.",
           queries=(Query("max by (gpu) (commwatch_gpu_busy{@gpu@})", "GPU {{gpu}}"),), names=BUSY,
           no_data="Needs the NVIDIA driver.", width=6),
    States(title="GPU clock slowdowns",
           description="When heat, a brake or a fault of power held the clocks of a GPU down.",
           queries=(Query('max by (gpu, reason) (commwatch_gpu_clocks_event_reason{@gpu@, reason=~'
                          '"hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown"} == 1)',
                          "GPU {{gpu}} {{reason}}", due="with a fault"),),
           names={1: ("slowed down", "orange")}, alerts=("CommwatchGpuSlowedDown",),
           no_data="None was slowed down in this time. Also empty without the NVIDIA driver.", width=6),
    Series(title="Xids", description="Errors that the driver reported within an hour, by code.",
           queries=(Query(new_events("commwatch_gpu_xid_events_total", "@gpu@", "gpu, xid"),
                          "GPU {{gpu}} Xid {{xid}}", due="with a fault"),),
           alerts=("CommwatchXidFabric", "CommwatchXidFatal", "CommwatchXidGpu", "CommwatchXidNonfatal"),
           no_data=NOT_SEEN, width=6),
    Series(title="Temperature", description="Temperature of each GPU's core.",
           queries=(Query("max by (gpu) (commwatch_gpu_temperature_celsius{@gpu@})", "GPU {{gpu}}"),), unit="celsius",
           minimum=None, no_data="Needs the NVIDIA driver."),
    Series(title="Power", description="Power that each GPU draws.",
           queries=(Query("max by (gpu) (commwatch_gpu_power_watts{@gpu@})", "GPU {{gpu}}"),), unit="watt",
           no_data="Needs the NVIDIA driver."),
    Series(title="Clock", description="Clock of each GPU's multiprocessors.",
           queries=(Query("max by (gpu) (commwatch_gpu_sm_clock_hertz{@gpu@})", "GPU {{gpu}}"),), unit="hertz",
           no_data="Needs the NVIDIA driver."),
), collapsed=True)  # fmt: skip

_PARTS = PanelRow("GPUs, links and probes", (_GPU_TABLE, LINK_TABLE, PROBE_TABLE))

NODE = Dashboard(
    uid="commwatch-node",
    title="commwatch / Node",
    description="One node: verdict, GPUs, links and probes.",
    variables=(CLUSTER, JOB, INSTANCE, GPUS),
    rows=(_VERDICT, _PARTS, NVLINK, _GPUS),
)
NETWORK = Dashboard(
    uid="commwatch-network",
    title="commwatch / Network",
    description="One node: its RDMA ports and network interfaces, its PCIe paths, and the fabric with its switches.",
    variables=(CLUSTER, JOB, INSTANCE, GPUS),
    rows=(_HEAD, PORTS, PCIE, FABRIC),
)
JOBS = Dashboard(
    uid="commwatch-jobs",
    title="commwatch / Probes and jobs",
    description="One node: its probes, its part in measurements between nodes, its jobs, and its daemon.",
    variables=(CLUSTER, JOB, INSTANCE, GPUS),
    rows=(_HEAD, PROBES, JOBS_ROW, BETWEEN_NODES, OURSELVES),
)
