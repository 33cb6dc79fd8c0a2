"""One node: what is wrong, then its parts, each over time on the same axis as clocks, Xids and jobs."""

from __future__ import annotations

from commwatch.dashboards.model import (
    CLUSTER,
    GPUS,
    INSTANCE,
    JOB,
    Column,
    Dashboard,
    Query,
    Row,
    Series,
    Stat,
    States,
    Table,
    any_is_bad,
    high_is_bad,
)
from commwatch.dashboards.node_fabric import FABRIC
from commwatch.dashboards.node_links import NVLINK, PCIE
from commwatch.dashboards.node_network import NETWORK
from commwatch.dashboards.node_probes import PROBES
from commwatch.dashboards.words import (
    AGE,
    ALERT_TABLE_LINKS,
    BUSY,
    FIRING,
    GPU_STATE,
    NEEDS_DAEMON,
    NEEDS_SCORE,
    NOT_SEEN,
    RECOVERY,
    SCORE,
    SEEN,
    SIMULATED,
    new_events,
    zero_with_rules,
)

_MISSING = 'sum(clamp_min(commwatch_expected{{@node@, kind="{kind}"}} - commwatch_present{{@node@, kind="{kind}"}}, 0))'


def _missing(title: str, kind: str, severity: str, alert: str, needs: str) -> Stat:
    return Stat(
        title=title,
        description=f"{title}: expected by configuration or because they were stable, and not here and up now.",
        queries=(Query(_MISSING.format(kind=kind), due="with RDMA" if kind == "rdma_port" else "always"),),
        scale=any_is_bad(severity, alert), no_data=needs,
    )  # fmt: skip


_VERDICT = Row("Verdict", (
    Stat(title="Daemon", description="Whether the last scrape reached the daemon of this node.",
         queries=(Query("up{@node@}"),), names=SEEN, no_data="Needs a target of this name in Prometheus.",
         alerts=("CommwatchDaemonDown",)),
    Stat(title="Data", description="Whether the values on this page come from hardware or from a simulated node.",
         queries=(Query("commwatch_simulated{@node@}"),), names=SIMULATED, no_data=NEEDS_DAEMON),
    Stat(title="Pages and tickets", description="Alerts of severity critical and warning that fire on this node.",
         queries=(Query(zero_with_rules('count(ALERTS{@node_alerts@, alertstate="firing",'
                                        ' severity=~"critical|warning"})')),),
         scale=any_is_bad("warning"), no_data="Needs the rules of alerts/rules in this Prometheus."),
    Stat(title="Score", description="Communication score: @score_excellent_ratio:percent@ and up is excellent,"
                     " @score_good_ratio:percent@ and up good.",
         queries=(Query("commwatch_communication_score_ratio{@node@}"),), unit="percentunit", scale=SCORE,
         no_data=NEEDS_SCORE),
    _missing("GPUs missing", "gpu", "critical", "CommwatchGpuLost", "Needs the NVIDIA driver."),
    _missing("NVLinks missing", "nvlink", "critical", "CommwatchNvlinkDown", "Needs GPUs with NVLink."),
    _missing("RDMA ports missing", "rdma_port", "critical", "CommwatchRdmaPortDown", "Needs RDMA ports."),
    Stat(title="Maintenance",
         description="Whether the daemon is paused: it then reads no driver, and alerts are hushed.",
         queries=(Query("max(commwatch_maintenance{@node@})"),),
         names={0: ("no", "green"), 1: ("maintenance", "blue")}, no_data=NEEDS_DAEMON,
         alerts=("CommwatchMaintenanceLong",)),
    Table(title="Alerts",
          description="Alerts of severity critical and warning that fire, and since when their sign was there.",
          labels=("alertname", "severity", "gpu", "link", "device", "port", "probe", "about", "simulated", "instance",
                  "cluster", "job"),
          columns=(Column("since", FIRING, unit="dateTimeFromNow", due="with a fault"),),
          links=ALERT_TABLE_LINKS, sort_by="since", width=12, height=8,
          no_data="No alert fires. It needs the rules of alerts/rules in this Prometheus."),
    Table(title="Findings",
          description="Open findings. A fault that explains another finding stands at that one, as its cause.",
          labels=("code", "component", "instance", "cluster", "job"),
          columns=(Column("", "max by (cluster, job, instance, code, component) (commwatch_finding{@node@} == 1)",
                          due="with a fault"),),
          width=12, height=8, no_data="No finding is open. It needs a daemon that answers."),
    States(title="Findings over time", description="When each finding was open.",
           queries=(Query("max by (code, component) (commwatch_finding{@node@} == 1)", "{{code}} {{component}}",
                          due="with a fault"),),
           names={1: ("open", "orange")}, width=12,
           no_data="No finding was open in this time. It needs a daemon that answers."),
    Series(title="Score over time", description="Communication score and its four parts.",
           queries=(
               Query("commwatch_communication_score_ratio{@node@}", "score"),
               Query("commwatch_communication_score_component_ratio{@node@}", "{{component}}"),
           ),
           unit="percentunit", maximum=1, scale=SCORE, no_data=NEEDS_SCORE, width=12),
))  # fmt: skip

_GPUS = Row("GPUs, clocks and Xids", (
    Table(title="GPUs", description="Identity and state of each GPU that is or was here.",
          labels=("gpu", "pci_bus_id", "name", "uuid", "serial"),
          columns=(
              Column("state", "max by (gpu, pci_bus_id) (commwatch_gpu_state{@gpu@})", names=GPU_STATE),
              Column("job", "max by (gpu, pci_bus_id) (commwatch_gpu_busy{@gpu@})", names=BUSY),
              Column("memory used", "max by (gpu, pci_bus_id) (commwatch_gpu_memory_used_bytes{@gpu@})", unit="bytes"),
              Column("temperature", "max by (gpu, pci_bus_id) (commwatch_gpu_temperature_celsius{@gpu@})",
                     unit="celsius"),
              Column("power", "max by (gpu, pci_bus_id) (commwatch_gpu_power_watts{@gpu@})", unit="watt"),
              Column("driver asks for", "max by (gpu, pci_bus_id) (commwatch_gpu_recovery_action{@gpu@})",
                     names=RECOVERY),
              Column("Xids within a day",
                     "sum by (gpu, pci_bus_id) (round(increase(commwatch_gpu_xid_events_total{@gpu@}[1d])))"),
              Column("", "max by (gpu, pci_bus_id, name, uuid, serial) (commwatch_gpu_info{@gpu@})"),
          ),
          alerts=("CommwatchGpuLost", "CommwatchGpuNotAnswering", "CommwatchGpuRecoveryNeeded", "CommwatchXidFabric"),
          no_data="Needs the NVIDIA driver."),
    States(title="Busy", description="GPUs that a job is on. Probes run only while none is busy.",
           queries=(Query("max by (gpu) (commwatch_gpu_busy{@gpu@})", "GPU {{gpu}}"),), names=BUSY,
           no_data="Needs the NVIDIA driver."),
    States(title="What slows GPUs down",
           description="When heat, a brake or a fault of power held the clocks of a GPU down.",
           queries=(Query('max by (gpu, reason) (commwatch_gpu_clocks_event_reason{@gpu@,'
                          ' reason=~"hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown"})',
                          "GPU {{gpu}} {{reason}}"),),
           names={0: ("no", "green"), 1: ("slowed down", "orange")}, alerts=("CommwatchGpuSlowedDown",),
           no_data="Needs the NVIDIA driver."),
    Series(title="Xids",
           description="Errors that the driver reported within an hour, by code.",
           queries=(Query(new_events("commwatch_gpu_xid_events_total", "@gpu@", "gpu, xid"),
                          "GPU {{gpu}} Xid {{xid}}", due="with a fault"),),
           alerts=("CommwatchXidFabric", "CommwatchXidGpu", "CommwatchXidNonfatal"), no_data=NOT_SEEN),
    Series(title="Temperature", description="Temperature of each GPU's core.",
           queries=(Query("max by (gpu) (commwatch_gpu_temperature_celsius{@gpu@})", "GPU {{gpu}}"),), unit="celsius",
           minimum=None, no_data="Needs the NVIDIA driver."),
    Series(title="Power", description="Power that each GPU draws.",
           queries=(Query("max by (gpu) (commwatch_gpu_power_watts{@gpu@})", "GPU {{gpu}}"),), unit="watt",
           no_data="Needs the NVIDIA driver."),
    Series(title="Clock", description="Clock of each GPU's multiprocessors.",
           queries=(Query("max by (gpu) (commwatch_gpu_sm_clock_hertz{@gpu@})", "GPU {{gpu}}"),), unit="hertz",
           no_data="Needs the NVIDIA driver."),
))  # fmt: skip

_JOBS = Row("Jobs", (
    Series(title="Errors in the logs of jobs",
           description="Errors within @nccl_log_errors_window_seconds:duration@ by what they are about;"
                       " docs/nccl-logs.md.",
           queries=(Query("sum by (category) (category:commwatch_nccl_log_errors:increase{@node@})", "{{category}}",
                          due="elsewhere"),),
           scale=high_is_bad("nccl_log_errors_min", "warning", "CommwatchNcclErrors"),
           no_data="None were seen. Needs logs that the configuration names (sources.nccl_logs)."),
    Series(title="Logs that are followed", description="Logs of NCCL jobs that the daemon reads.",
           queries=(Query("commwatch_nccl_log_files{@node@}", "logs", due="elsewhere"),),
           no_data="Needs logs that the configuration names (sources.nccl_logs)."),
    Table(title="Settings",
          description="What is to be said of the NCCL settings of the processes on the GPUs; docs/nccl-settings.md.",
          labels=("severity", "variable", "remark"),
          columns=(Column("processes",
                          "max by (severity, variable, remark) (commwatch_nccl_setting_processes{@node@}) > 0",
                          due="with a fault"),),
          alerts=("CommwatchNcclSettingHarmful",), width=8, height=8,
          no_data="Nothing is to be said. It needs a job on the node."),
), collapsed=True)  # fmt: skip

_OURSELVES = Row("commwatch on this node", (
    Table(title="Collectors", description="What the daemon reads, how old it is, and what it takes.",
          labels=("collector",),
          columns=(
              Column("reads all", "max by (collector) (commwatch_collector_success{@node@})",
                     names={0: ("fails", "orange"), 1: ("yes", "green")}),
              Column("age", "max by (collector) (time() - commwatch_collector_last_success_timestamp_seconds{@node@})",
                     unit="s"),
              Column("of the age allowed", AGE, unit="percentunit", scale=any_is_bad("warning", "CommwatchDataStale")),
              Column("interval", "max by (collector) (commwatch_collector_interval_seconds{@node@})", unit="s"),
              Column("takes", "max by (collector) (commwatch_collector_duration_seconds{@node@})", unit="s"),
              Column("errors within an hour",
                     "sum by (collector) (round(increase(commwatch_collector_errors_total{@node@}[1h])))",
                     scale=any_is_bad("info"), due="with a fault"),
          ),
          alerts=("CommwatchCollectorFailing", "CommwatchDataStale"), width=12, no_data=NEEDS_DAEMON),
    Table(title="Counters that cannot be believed",
          description="Counters of hardware that answer blank, stand still while others count, or are at their end.",
          labels=("source", "device", "counter"),
          columns=(Column("state", "max by (source, device, counter) (commwatch_counter_anomaly{@node@})",
                          names={2: ("blank", "orange"), 3: ("stale", "orange"), 4: ("saturated", "orange")},
                          due="with a fault"),),
          alerts=("CommwatchRdmaCounterSaturated",), width=12,
          no_data="All that are read can be believed. It needs NVLink, RDMA or Ethernet counters."),
    States(title="Configuration",
           description="Whether the configuration on disk was taken into force when it was read last.",
           queries=(Query("commwatch_config_last_reload_successful{@node@}", "configuration"),),
           names={0: ("refused", "orange"), 1: ("in force", "green")}, alerts=("CommwatchConfigReloadFailing",),
           no_data=NEEDS_DAEMON),
    Series(title="What the daemon missed",
           description="Within an hour: rules that failed, messages of the kernel log that were lost, steps of the"
                       " clock.",
           queries=(
               Query("sum by (rule) (round(increase(commwatch_finding_rule_errors_total{@node@}[1h])) > 0)",
                     "rule {{rule}}", due="elsewhere"),
               Query("round(increase(commwatch_kernel_log_losses_total{@node@}[1h]))", "kernel log"),
               Query("round(increase(commwatch_clock_steps_total{@node@}[1h]))", "clock steps"),
           ),
           scale=any_is_bad("warning", "CommwatchRuleFailing"),
           alerts=("CommwatchKernelLogLost", "CommwatchClockStepped"),
           no_data=NEEDS_DAEMON),
    Series(title="CPU", description="CPU time of commwatch's processes.",
           queries=(Query("sum by (process) (rate(commwatch_process_cpu_seconds_total{@node@}[$__rate_interval]))",
                          "{{process}}", due="elsewhere"),),
           unit="percentunit", no_data=NEEDS_DAEMON),
    Series(title="Memory", description="Resident memory of commwatch's processes.",
           queries=(Query("sum by (process) (commwatch_process_resident_memory_bytes{@node@})", "{{process}}",
                          due="elsewhere"),),
           unit="bytes", no_data=NEEDS_DAEMON),
    Series(title="Workers that hang or were replaced",
           description="Processes that have not come back from a driver, and those replaced within an hour.",
           queries=(
               Query("sum by (worker) (commwatch_worker_stuck{@node@})", "{{worker}} hangs", due="elsewhere"),
               Query("sum by (worker) (round(increase(commwatch_worker_restarts_total{@node@,"
                     " reason=~\"crashed|deadline\"}[1h])))",
                     "{{worker}} replaced", due="elsewhere"),
           ),
           scale=high_is_bad("worker_restarts_per_hour", "warning", "CommwatchWorkerRestarting"),
           alerts=("CommwatchWorkerStuck",), no_data=NEEDS_DAEMON),
), collapsed=True)  # fmt: skip

NODE = Dashboard(
    uid="commwatch-node",
    title="commwatch / Node",
    description="One node: verdict, links, PCIe, network, probes, and GPUs on one time axis.",
    variables=(CLUSTER, JOB, INSTANCE, GPUS),
    rows=(_VERDICT, NVLINK, PROBES, _GPUS, FABRIC, PCIE, NETWORK, _JOBS, _OURSELVES),
)
