"""Renders the alert rules: fills the placeholders of alerts/templates/ from the thresholds.

A placeholder is ``@NAME@``, ``@NAME:percent@`` or ``@NAME:duration@``: seconds as Prometheus writes them, and in
descriptions as people do. NAME is a threshold or one of the words of ``_words``: addresses of the site, phrases that
many alerts share, and lists of the findings' rules, so that alerts and findings use the same conditions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Literal

from commwatch.config.assets import asset
from commwatch.config.thresholds import Thresholds
from commwatch.errors import UsageError
from commwatch.findings.rules import adapters, daemon, driver, fabric, gpu, inventory, jobs, kernel, probe
from commwatch.generate.inhibition import explained
from commwatch.generate.limits import limit_words, passed
from commwatch.generate.site import AlertChange, alerts_about_nodes, changed_rules
from commwatch.jobs.logs.categories import SIDES
from commwatch.jobs.logs.fallbacks import FALLBACKS
from commwatch.jobs.settings.records import HARMS
from commwatch.node.xids import LINK_SXIDS, LINK_XIDS, Meaning, meanings
from commwatch.sources.adapter_lines import ADAPTER_EVENTS
from commwatch.units import format_seconds
from commwatch_exporters.state_words import DRIVER_FAULTS

_RISEN = re.compile(r"@risen:([a-z_]+)@")
_RUNBOOK = re.compile(r"@runbooks@/(\w+)\.md")
_LIMIT = re.compile(r"@limit:([a-z_]+)@")
_JOBS_OF_ALERT = re.compile(r"@job_(?:on_node|number)@")
_PLACEHOLDER = re.compile(r"@([a-z_]+)(?::(duration|percent|time))?@")
_DURATION_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))

_BUSY = "max(max_over_time(commwatch_gpu_busy{cluster='%s',job='%s',instance='%s'}[5m]))"
_JOBS = "group by (scheduler, job_id) (last_over_time(commwatch_gpu_job_info{cluster='%s',job='%s',instance='%s'}[5m]))"
_JOBS_NAMED = (
    f'{{{{ with query (printf "{_JOBS}" $labels.cluster $labels.job $labels.instance) }}}}'
    ' Processes on its GPUs: {{ range $place, $one := sortByLabel "job_id" . }}{{ if lt $place 4 }}'
    "{{ if $place }}, {{ end }}"
    '{{ if eq $one.Labels.scheduler "kubernetes" }}pod{{ else }}Slurm job{{ end }} {{ $one.Labels.job_id }}'
    "{{ end }}{{ end }}"
    "{{ if gt (len .) 4 }} and {{ len (slice . 4) }} more{{ end }}."
)
"""Which jobs, the first four, where the daemons name them (``jobs.identity``); its reader adds the end."""
_JOB_ON_NODE = (
    f'{{{{ with query (printf "{_BUSY}" $labels.cluster $labels.job $labels.instance) }}}}'
    "{{ if gt (. | first | value) 0.0 }}A job was on the node within the last 5 min."
    "{{ else }}No job was on the node within the last 5 min.{{ end }}"
    f"{{{{ else }}}}Whether a job is on the node is not known.{{{{ end }}}}{_JOBS_NAMED}{{{{ end }}}}"
)
_JOB_NUMBER = (
    f"{_JOBS_NAMED}{{{{ else }}}} Which job it is, is unknown here: nvidia-smi"
    "{{ with $labels.pci_bus_id }} -i {{ . }}{{ end }} on the node shows its PIDs, scontrol pidinfo PID its number."
    "{{ end }}"
)
"""Of an alert about a job that runs: which it is, or how that is seen."""
_OTHERS = (
    "group by (alertname, pci_bus_id, link, device, port) (ALERTS{cluster='%s',job='%s',instance='%s',"
    "alertstate='firing',severity=~'critical|warning',alertname!='@own_name@'})"
)
_ALSO_OPEN = (
    f'{{{{ with query (printf "{_OTHERS}" $labels.cluster $labels.job $labels.instance) }}}} Also open on this node: '
    '{{ range $place, $one := sortByLabel "alertname" . }}{{ if lt $place 5 }}{{ if $place }}, {{ end }}'
    "{{ $one.Labels.alertname }}{{ with $one.Labels.pci_bus_id }} at {{ . }}{{ end }}{{ with $one.Labels.link }} link "
    "{{ . }}{{ end }}{{ with $one.Labels.device }} of {{ . }}{{ end }}{{ with $one.Labels.port }} port {{ . }}{{ end }}"
    "{{ end }}{{ end }}{{ if gt (len .) 5 }} and {{ len (slice . 5) }} more{{ end }}.{{ end }}"
)
"""The other pages and tickets of the node, the first five; they are sent on their own unless this one explains them."""
HEADER = "# Rendered by `commwatch rules`"
"""Each file of rules begins with it."""
_ON_DUTY = "* on (cluster, job, instance) group_left (simulated) instance:commwatch_on_duty:info"
"""Hushes an alert in maintenance and hands on the label of simulated nodes."""

_IDENTITY = "last_over_time(commwatch_gpu_info{cluster='%s',job='%s',instance='%s',pci_bus_id='%s'}[1h])"
_POSSIBLE = "last_over_time(commwatch_gpu_possible_address{cluster='%s',job='%s',instance='%s',gpu='%s'}[2m])"
_NO_ADDRESS = (
    f'{{{{ with query (printf "{_POSSIBLE}" $labels.cluster $labels.job $labels.instance $labels.gpu) }}}}: one of '
    '{{ range $place, $one := sortByLabel "address" . }}{{ if $place }}, {{ end }}{{ $one.Labels.address }}{{ end }}'
    "{{ end }}"
)
_GPU = (
    "GPU {{ $labels.gpu }}{{ if $labels.pci_bus_id }} at {{ $labels.pci_bus_id }}{{ else }}"
    f" (PCI address not known{_NO_ADDRESS}){{{{ end }}}}"
    f'{{{{ with query (printf "{_IDENTITY}" $labels.cluster $labels.job $labels.instance $labels.pci_bus_id) }}}}'
    ' ({{ . | first | label "uuid" }}){{ end }}'
)
_GPU_NAME = "GPU{{ if $labels.gpu }} {{ $labels.gpu }}{{ else }} at {{ $labels.pci_bus_id }}{{ end }}"
"""A GPU in a title; one that has no index any more by its address."""
_DEVICE_GPU = (
    f'{{{{ with query (printf "{_IDENTITY}" $labels.cluster $labels.job $labels.instance $labels.device) }}}}'
    ' (GPU {{ . | first | label "gpu" }}, {{ . | first | label "uuid" }}){{ end }}'
)
"""Which GPU a PCIe device is; nothing where it is none."""
_NAMED_GPUS = "topk by (gpu) (1, last_over_time(commwatch_gpu_info{cluster='%s',job='%s',instance='%s',gpu=~'%s'}[1h]))"
_GPUS_OF_ELEMENT = (
    f'{{{{ with query (printf "{_NAMED_GPUS}" $labels.cluster $labels.job $labels.instance '
    '(reReplaceAll "GPU" "" (reReplaceAll "-" "|" $element))) }} ('
    '{{ range $place, $one := sortByLabel "gpu" . }}{{ if $place }}, {{ end }}GPU {{ $one.Labels.gpu }} at '
    "{{ $one.Labels.pci_bus_id }}{{ end }}){{ end }}"
)
"""The GPUs of ``$element``, such as GPU3 or GPU0-GPU1; nothing where they are not known."""
_SUSPECTS: Mapping[str, str] = {
    "gpu": "", "link_group": "the NVLinks of ", "pcie_link": "the PCIe link of ", "pcie_switch": "PCIe switch ",
    "socket_link": "the link between the CPUs of ", "numa_node": "", "nic": "adapter ",
}  # fmt: skip
"""What comes before the element of a suspect, by kind."""
_XIDS = (
    "group by (xid) (last_over_time(commwatch_gpu_xid_events_recent{cluster='%s',job='%s',instance='%s',"
    "pci_bus_id='%s'}[10m]))"
)
_XIDS_OF_GPU = (
    f'{{{{ with query (printf "{_XIDS}" $labels.cluster $labels.job $labels.instance $labels.pci_bus_id) }}}}'
    ' Its driver reported Xid {{ range $place, $one := sortByLabel "xid" . }}{{ if lt $place 5 }}'
    "{{ if $place }}, {{ end }}{{ $one.Labels.xid }}{{ end }}{{ end }}.{{ end }}"
)
"""The Xids of the last minutes, the first five; their own alerts are not sent beside that of the GPU."""
_LAST_XID = (
    "last_over_time(commwatch_gpu_last_xid_timestamp_seconds{cluster='%s',job='%s',instance='%s',pci_bus_id='%s'}[10m])"
)
_XID_AT = (
    f'{{{{ with query (printf "{_LAST_XID}" $labels.cluster $labels.job $labels.instance $labels.pci_bus_id) }}}}'
    ' (the last Xid of this GPU at {{ (. | first | value | toTime).Format "15:04" }} UTC){{ end }}'
)
"""When the last one came; true for as long as the alert is held."""
_XIDS_KNOWN = frozenset({*kernel.FABRIC_FAILED, *kernel.GPU_FAILED})
_SXIDS_KNOWN = kernel.SWITCH_FAILED | kernel.SWITCH_WARNS
_RESET_GPU = (
    "drain the node; once it is free, run nvidia-bug-report.sh, then commwatch pause and reset the GPU; if that "
    "fails, power cycle the node."
)
_RESET_SWITCHES = (
    "drain the node; once it is free, run commwatch pause and reset all GPUs and NVSwitches together; on repetition "
    "call the vendor."
)
_RESET_SWITCHES_LATER = (
    "leave the node in service; if it happens again, drain the node; once it is free, run commwatch pause and reset "
    "all GPUs and NVSwitches together."
)

_FLAPS = (
    "max(last_over_time(commwatch_nvlink_link_flaps_recent{cluster='%s',job='%s',instance='%s',pci_bus_id='%s',"
    "link='%s'}[1m]))"
)
_LINK_FLAPS = (
    f'{{{{ with query (printf "{_FLAPS}" $labels.cluster $labels.job $labels.instance $labels.pci_bus_id '
    "$labels.link) }}{{ if or (gt (. | first | value) 1.0) (eq $value 1.0) (eq $value 2.0) }}, and went down "
    "{{ if eq (. | first | value) 1.0 }}once{{ else }}{{ . | first | value }} times{{ end }} in the last hour"
    "{{ end }}{{ end }}"
)
"""How often a link went down, where it is up or did so several times; nothing of links that are one part."""

_RECOVERIES = (
    "max(last_over_time(commwatch_nvlink_recoveries_failed_recent{cluster='%s',job='%s',instance='%s',pci_bus_id='%s',"
    "link='%s'}[1m]))"
)
_RECOVERY_FAILED = (
    f'{{{{ with query (printf "{_RECOVERIES}" $labels.cluster $labels.job $labels.instance $labels.pci_bus_id '
    "$labels.link) }}, and failed to recover {{ if eq (. | first | value) 1.0 }}once{{ else }}"
    "{{ . | first | value }} times{{ end }} in the last 5 min{{ end }}"
)
"""How often a link of NVLink 5 could not be trained again; nothing of links that are one part."""

_PORT_INFO = "last_over_time(commwatch_rdma_port_info{cluster='%s',job='%s',instance='%s',pci_bus_id='%s'}[1h])"
_ADAPTER = (
    f'{{{{ with query (printf "{_PORT_INFO}" $labels.cluster $labels.job $labels.instance $labels.device) }}}}'
    ' ({{ . | first | label "device" }}){{ end }}'
)
"""The RDMA device of a network adapter; nothing where it has none."""

_FIRING = "ALERTS{cluster='%s',job='%s',alertname='%s',alertstate='firing',simulated='%s'}"
_FAULTY = f"group by (instance) ({_FIRING})"
_FAULTY_BUSY = (
    "count(max by (cluster, job, instance) (max_over_time(commwatch_gpu_busy{cluster='%s',job='%s'}[5m])) > 0 "
    f"and on (cluster, job, instance) {_FIRING})"
)
_NODES = "job:commwatch_nodes:count{cluster='%s',job='%s',simulated='%s'}"
_JOB = "$labels.cluster $labels.job"
_FAULT = f"{_JOB} $labels.fault $labels.simulated"
_FAULT_ON_NODES = (
    "{{ $labels.fault }} fires on {{ $value }}"
    f'{{{{ with printf "{_NODES}" {_JOB} $labels.simulated | query }}}}'
    f' of {{{{ . | first | value }}}}{{{{ end }}}} nodes{{{{ $nodes := printf "{_FAULTY}" {_FAULT} | query }}}}'
    "{{ if gt (len $nodes) 5 }}, among them{{ else }}:{{ end }} "
    '{{ range $place, $one := sortByLabel "instance" $nodes }}'
    "{{ if lt $place 5 }}{{ if $place }}, {{ end }}{{ $one.Labels.instance }}{{ end }}{{ end }}. "
    f'{{{{ with printf "{_FAULTY_BUSY}" {_JOB} {_FAULT} | query }}}}'
    "A job was on {{ . | first | value }} of them within the last 5 min."
    "{{ else }}No job was on them within the last 5 min.{{ end }}"
)
"""How many nodes have the fault of the label ``fault``, the first five of them, and where jobs run."""

CORE_TICKETS = frozenset({
    "CommwatchCollectorFailing", "CommwatchDaemonDown", "CommwatchDeviceUnread", "CommwatchEthernetDown",
    "CommwatchFabricServiceDown", "CommwatchFaultOnManyNodes", "CommwatchFaultOnMoreNodes",
    "CommwatchGpuRecoveryNeeded", "CommwatchNvlinkRecovering", "CommwatchPcieGenerationLow",
    "CommwatchProbeBandwidthLost", "CommwatchProbeBandwidthLow", "CommwatchProbeErrorRateRise", "CommwatchProbeFailing",
    "CommwatchProbeLatencyStreak", "CommwatchRdmaErrors",
    "CommwatchRdmaPortMissing", "CommwatchSoftwareFaultOnManyNodes", "CommwatchWatchdog",
    "CommwatchXidGpu",
})  # fmt: skip
"""The core set beside all that is shipped as critical: faults that need a hand, and the ways by which they are seen."""

EXTENDED_RECORDS = frozenset({
    "device:commwatch_pcie_errors_allowed:count5m", "gpu:commwatch_utilization_peak_ratio:max",
    "gpu:commwatch_gpu_clocks_event_reason:held", "instance:commwatch_power_brake:all",
    "instance:commwatch_nvlink_utilization_under_load:avg", "instance:commwatch_nvlink_utilization_under_load:max1d",
    "instance:commwatch_pcie_utilization_under_load:avg", "instance:commwatch_pcie_utilization_under_load:max1d",
    "probe:commwatch_probe_missed_chances:increase1d", "probe:commwatch_probe_missed_chances:increase23h",
    "probe:commwatch_probe_missed_chances:sum",
})  # fmt: skip
"""Recorded for alerts of the extended set alone: no dashboard reads them."""

_TIMES = re.compile(r"\{\{\s+\$value\s+\}\}\s+times\b(?! as)")
_COUNTED = re.compile(r"(\{\{\s+\$value\s+\}\}\s+)(GPU|error|packet|direction|reading|process)(s|es)\b")

_ALERT_BLOCK = re.compile(r"^( *)- alert: (\w+)\n(?:\1 +.*\n|\n)*", re.MULTILINE)
_RECORD_BLOCK = re.compile(r"(?:^ *#.*\n)*^( *)- record: (\S+)\n(?:\1 +.*\n|\n)*", re.MULTILINE)
_DESCRIPTION = re.compile(r"(?<=description: >-\n)(?: {12}.*\n)+")
_DURATION_IN_WORDS = re.compile(r"(?<![\[\w])@([a-z_]+):duration@")
_RATE = re.compile(r"humanize\s+\}\}(?=B/s|bit/s)")
_SHARE = re.compile(r"humanizePercentage\s+\}\}")
_TIME = re.compile(r"(humanizeDuration(?:\s+\$value)?)\s+\}\}")
_SPACED_RATE = 'reReplaceAll "([0-9])([a-zA-Z]?)$" "$1 $2"'
_SPACED_TIME = " | ".join(
    f'reReplaceAll "{pattern}" "{text}"'
    for pattern, text in (
        ("([0-9])us$", "$1 µs"), ("([0-9])ms$", "$1 ms"), ("([0-9])m 0s$", "$1 min"),
        ("([0-9])m ([0-9]+)s$", "$1 min $2 s"), ("([0-9])([dhs])( |$)", "$1 $2$3"),
    )
)  # fmt: skip
"""Prometheus writes units without a space, and min as m."""
_OF_GPU = "{cluster='%s',job='%s',instance='%s',pci_bus_id='%s'}[2m])"
_LABELS_OF_GPU = "$labels.cluster $labels.job $labels.instance $labels.pci_bus_id"
_FROM_THE_JOB = (
    f'{{{{ with query (printf "last_over_time(commwatch_job_flight_recorder_rank{_OF_GPU}" {_LABELS_OF_GPU}) }}}} Its'
    ' Flight Recorder names {{ range $place, $one := sortByLabel "rank" . }}{{ if $place }}, {{ end }}rank'
    ' {{ $one.Labels.rank }} ({{ reReplaceAll "_" " " $one.Labels.verdict }}, {{ $one.Labels.operation }}'
    '{{ if $one.Value }} {{ printf "%.0f" $one.Value }}{{ end }}){{ end }}.{{ end }}'
    f'{{{{ with query (printf "last_over_time(commwatch_job_last_communication_seconds{_OF_GPU} <= %f"'
    f" {_LABELS_OF_GPU} $value) }}}} Inspector's newest record was"
    f" {{{{ . | first | value | humanizeDuration | {_SPACED_TIME} }}}} old."
    "{{ end }}"
    f'{{{{ with query (printf "last_over_time(commwatch_job_ras_ranks{_OF_GPU} > 0" {_LABELS_OF_GPU}) }}}} RAS'
    ' reports of its ranks: {{ range $place, $one := sortByLabel "state" . }}{{ if $place }}, {{ end }}'
    "{{ $one.Value }} {{ $one.Labels.state }}{{ end }}.{{ end }}"
)
"""What the job at a GPU wrote and answered; a record of Inspector only if it is younger than the last payload, since
which the alert's value counts."""
_EMPTY_GROUP = re.compile(r"^( *rules:)\n(?= *- name:|\s*\Z)", re.MULTILINE)

_FABRIC_CHECKS: Mapping[str, str] = {
    **{check: words for check, (_, words) in fabric.FAULTS.items()},
    "limited_capacity": "its capacity is limited",
}
_SOFTWARE_FAULTS = (
    "CommwatchConfigReloadFailing", "CommwatchDriverOrNcclDiffers", "CommwatchJobHeldUp",
    "CommwatchNcclSettingHarmful", "CommwatchNcclTransportFallback", "CommwatchRuleFailing",
)  # fmt: skip
"""Alerts on what someone has set or written, such as a job: on however many nodes, they can wait for the morning."""

_LISTS: Mapping[str, Iterable[str]] = {
    "gpu_state_reasons": daemon.GPU_STATE_REASONS,
    "xids_fabric": kernel.FABRIC_FAILED,
    "xids_fatal_by_line": kernel.FATAL_BY_LINE,
    "xids_gpu": kernel.GPU_FAILED,
    "sxids_fatal": kernel.SWITCH_FAILED,
    "adapter_failed": adapters.of_gravity("critical"),
    "adapter_troubled": adapters.of_gravity("warning"),
    "adapter_noted": adapters.of_gravity("info"),
    "sxids_warning": kernel.SWITCH_WARNS,
    "nccl_hardware": (category for category, side in SIDES.items() if side in jobs.HARDWARE),
    "probe_missed_chances": probe.MISSED_CHANCES,
    "probe_disturbed": probe.DISTURBED,
    "software_faults": _SOFTWARE_FAULTS,
}
_ALTERNATIVES: Mapping[str, str] = {
    name: "|".join(sorted(values, key=lambda one: (len(one), one))) for name, values in _LISTS.items()
}
"""As regular expressions."""


@dataclass(frozen=True, slots=True)
class Site:
    """Settings of a site besides the thresholds."""

    job: str = "commwatch"
    """The job under which Prometheus scrapes the daemons."""
    runbooks: str = "http://localhost:3000/public/runbooks"
    """Where the files of alerts/runbooks/ can be read; as shipped, in the Grafana of grafana/compose.yaml, and in place
    of it on the node that an alert is about."""
    dashboards: str = "http://localhost:3000"
    """Grafana's own address."""
    matchers: str = ""
    """Further matchers of every selector, such as ``cluster="a"``, where some targets of the job are to be left out."""


ON_NODE = "http://{{ $labels.instance }}{{ if not (match `:` $labels.instance) }}:28029{{ end }}/runbooks"
"""The runbooks of the node that an alert is about; where its label has no port, at that of the daemon's default."""
_NODE_SILENT = frozenset({"CommwatchDaemonDown", "CommwatchTextfileStale"})
"""Alerts about a node whose daemon may not answer."""


def runbook_url(site: Site, alert: str, *, is_about_node: bool) -> str:
    """The address of a runbook in a rule, as a template of Prometheus.

    Args:
        is_about_node: whether the alert has the label ``instance`` of a daemon.
    """
    on_node = is_about_node and alert not in _NODE_SILENT and site.runbooks == Site().runbooks
    return f"{ON_NODE if on_node else site.runbooks}/{alert}.md"


def render(template: str, thresholds: Thresholds, site: Site) -> str:
    """The rule file that a template makes.

    Raises:
        KeyError: the template names a placeholder that does not exist.
        ValueError: a value cannot be written in the form that the template wants.
    """
    words = {**_words(site), "digest": thresholds.digest}
    about_node = alerts_about_nodes(template)
    numbers: Mapping[str, float] = asdict(thresholds)

    def fill(match: re.Match[str]) -> str:
        name, form = match[1], match[2]
        if name in words:
            return words[name]
        if form == "duration":
            return format_duration(numbers[name])
        if form == "time":
            return format_seconds(numbers[name])
        if form == "percent":
            return f"{numbers[name] * 100:g} %"
        return f"{numbers[name]:g}" if numbers[name] < 1e6 else f"{numbers[name]:.0f}"

    template = _RUNBOOK.sub(
        lambda link: runbook_url(site, link[1], is_about_node=about_node.get(link[1], False)), template
    )
    text = _PLACEHOLDER.sub(fill, _in_words(template))
    if not site.matchers:
        return text
    # Each selector of a template begins with the job.
    job = f'job="{site.job}"'
    return text.replace(job, f"{job}, {site.matchers}")


def _in_words(template: str) -> str:
    """The template with the counts and times of its texts as people say them: ``once``, ``1 process``, ``5 min``."""
    template = _DESCRIPTION.sub(lambda text: _DURATION_IN_WORDS.sub(r"@\1:time@", text[0]), template)
    template = _RATE.sub(lambda _: f"humanize | {_SPACED_RATE} }}}}", template)
    template = _SHARE.sub('humanizePercentage | reReplaceAll "%" " %" }}', template)
    template = _TIME.sub(lambda found: f"{found[1]} | {_SPACED_TIME} }}}}", template)
    text = _TIMES.sub("{{ if eq $value 1.0 }}once{{ else }}{{ $value }} times{{ end }}", template)
    return _COUNTED.sub(r"\1\2{{ if ne $value 1.0 }}\3{{ end }}", text)


def _words(site: Site) -> Mapping[str, str]:
    """The text for each placeholder that is no threshold."""
    phrases = {
        "job_number": _JOB_NUMBER,
        "job_on_node": _JOB_ON_NODE,
        "from_the_job": _FROM_THE_JOB,
        "gpus_of_element": _GPUS_OF_ELEMENT,
        "suspect": _of_label("kind", _SUSPECTS, otherwise="{{ $labels.kind }} "),
        "one_suspect": _of_label("kind", _SUSPECTS, of="$one.Labels", otherwise="{{ $one.Labels.kind }} "),
        "on_duty": _ON_DUTY,
        "gpu_gone": _gpu_gone(site.job),
        "gpu": _GPU,
        "gpu_name": _GPU_NAME,
        "device_gpu": _DEVICE_GPU,
        "xids_of_gpu": _XIDS_OF_GPU,
        "link_flaps": _LINK_FLAPS,
        "recovery_failed": _RECOVERY_FAILED,
        "xids_link": LINK_XIDS,
        "sxids_link": LINK_SXIDS,
        "adapter_is": _ADAPTER,
        "adapter_means": _adapter_meanings(),
        "fault_on_nodes": _FAULT_ON_NODES,
        "driver_is": _of_label("reason", {reason: what for reason, (what, _) in DRIVER_FAULTS.items()}),
        "driver_effect": _of_label(
            "reason", {reason: code.meaning for reason, code in driver.CODES.items()}, otherwise=""
        ),
        "driver_cure": _of_label(
            "reason",
            {reason: cure for reason, (_, cure) in DRIVER_FAULTS.items()},
            otherwise="commwatch diagnose on the node",
        ),
        "xid_means": _of_number("xid", _XIDS_KNOWN, lambda one: f" ({one.name})"),
        "xid_meaning": _of_number("xid", _XIDS_KNOWN, lambda one: f" {one.meaning}"),
        "xid_cure": _off_bus_cure(_of_number("xid", _XIDS_KNOWN, _cure_within, _RESET_GPU)),
        "xid_fatal_cure": _of_number("xid", _critical("xid", kernel.GPU_FAILED), _cure_within, _RESET_GPU),
        "xid_at": _XID_AT,
        "kind_is": _of_label("kind", inventory.KINDS),
        "check_is": _of_label("check", _FABRIC_CHECKS),
        "slowdown_is": _of_label("reason", gpu.SLOWDOWNS, of="$one.Labels"),
        "setting_harm": _of_label("remark", HARMS),
        "fallback_is": _of_label(
            "kind",
            {kind: one.abouts[0].happened for kind, one in FALLBACKS.items()},
            otherwise="These rules do not know the kind {{ $labels.kind }}.",
        ),
        "fallback_cure": _of_label(
            "kind",
            {
                kind: ("tell the job's owner to " if one.abouts[0].side == "config" else "") + _lowered(one.step)
                for kind, one in FALLBACKS.items()
            },
            otherwise="run commwatch diagnose --log FILE on it.",
        ),
        "message_is": _of_label("message", {code: words for code, (_, words) in kernel.MESSAGE_CODES.items()}),
        "sxid_means": _of_number("sxid", _SXIDS_KNOWN, lambda one: f" ({one.name})"),
        "sxid_meaning": _of_number("sxid", _SXIDS_KNOWN, lambda one: f" {one.meaning}"),
        "sxid_cure": _of_number("sxid", _critical("sxid", _SXIDS_KNOWN), _cure_within, _RESET_SWITCHES),
        "sxid_warning_cure": _of_number("sxid", kernel.SWITCH_WARNS, _cure_within, _RESET_SWITCHES_LATER),
        # Without the label no cluster is chosen: behind a store of several Prometheus series may have one all the same.
        "node_dashboard": f"{site.dashboards}/d/commwatch-node?var-job={{{{ $labels.job }}}}"
        "&var-instance={{ $labels.instance }}{{ with $labels.cluster }}&var-cluster={{ . }}{{ end }}",
    }
    return {**asdict(site), **phrases, **_ALTERNATIVES}


def _gpu_gone(job: str) -> str:
    """GPUs that are gone; one whose slot holds another since, and has no index any more, says nothing of that one."""
    state = f'commwatch_gpu_state{{job="{job}", gpu'
    return f"""(
              {state}!=""}} > 0 < 5
              or
              {state}=""}} > 0 < 5 unless on (cluster, job, instance, pci_bus_id) {state}!=""}}
            )"""


def _adapter_meanings() -> str:
    """A template expression that gives the meaning of the label ``event`` in words."""
    choices = [f'if eq $labels.event "{code}" }}}}{event.meaning}{{{{ ' for code, event in ADAPTER_EVENTS.items()]
    return f"{{{{ {'else '.join(choices)}end }}}}"


def _of_number(
    kind: Literal["xid", "sxid"], numbers: Iterable[str], words: Callable[[Meaning], str], otherwise: str = ""
) -> str:
    """A template expression that gives words about the label's number, and others for any other number."""
    known = meanings(kind)
    by_words: dict[str, list[str]] = {}
    for number in sorted(numbers, key=int):
        if (meaning := known.get(int(number))) is not None:
            by_words.setdefault(words(meaning), []).append(f'"{number}"')
    choices = [f"if eq $labels.{kind} {' '.join(same)} }}}}{text}{{{{ " for text, same in by_words.items()]
    other = f"else }}}}{otherwise}{{{{ " if otherwise else ""
    return f"{{{{ {'else '.join(choices)}{other}end }}}}"


def _critical(kind: Literal["xid", "sxid"], numbers: Iterable[str]) -> list[str]:
    """Those whose advice holds where the driver calls them fatal; that of others is for the usual, lesser case."""
    known = meanings(kind)
    return [one for one in numbers if int(one) in known and known[int(one)].severity == "critical"]


def _cure_within(meaning: Meaning) -> str:
    return _lowered(meaning.cure)


def _lowered(sentence: str) -> str:
    """A sentence as it goes on after ``First action:``."""
    return sentence[:1].lower() + sentence[1:]


def _off_bus_cure(otherwise: str) -> str:
    """The advice where the kernel log says without an Xid that a GPU has fallen off its bus, and other words else."""
    cure = _cure_within(meanings("xid")[int(kernel.OFF_BUS_XID)])
    return f'{{{{ if eq $labels.message "fallen_off_bus" }}}}{cure}{{{{ else }}}}{otherwise}{{{{ end }}}}'


def _of_label(label: str, texts: Mapping[str, str], of: str = "$labels", otherwise: str | None = None) -> str:
    """A template expression that gives the words of a label's value.

    Args:
        otherwise: of a value that newer daemons may have; None for the value itself.
    """
    choices = [f'if eq {of}.{label} "{value}" }}}}{text}{{{{ ' for value, text in texts.items()]
    other = f'{{{{ reReplaceAll "_" " " {of}.{label} }}}}' if otherwise is None else otherwise
    return f"{{{{ {'else '.join(choices)}else }}}}{other}{{{{ end }}}}"


def format_duration(seconds: float) -> str:
    """Seconds as a Prometheus duration in the largest unit that divides them: ``40s``, ``2h``, ``7d``.

    Raises:
        ValueError: it is no whole number of seconds.
    """
    for unit, length in _DURATION_UNITS:
        if seconds % length == 0:
            return f"{int(seconds) // length}{unit}"
    raise ValueError(f"{seconds} s: rules need whole seconds")


def render_all(
    thresholds: Thresholds, site: Site, changes: Mapping[str, AlertChange] | None = None, *, core: bool = False
) -> dict[str, str]:
    """All rule files by name, ``core`` without the extended set; ``changes`` are those of the site to single alerts."""
    header = f"{HEADER} with the thresholds {thresholds.digest}; edit the template.\n"
    keep_firing = format_duration(thresholds.critical_keep_firing_seconds)
    return {
        name: changed_rules(
            header + render(core_only(template) if core else template, thresholds, site),
            changes or {},
            site.job,
            keep_firing,
        )
        for name, template in templates().items()
    }


def core_only(template: str) -> str:
    """A template without what is in the extended set alone."""

    def kept(block: re.Match[str]) -> str:
        is_core = "severity: critical\n" in block[0] or block[2] in CORE_TICKETS
        return block[0] if is_core else ""

    def read(block: re.Match[str]) -> str:
        return "" if block[2] in EXTENDED_RECORDS else block[0]

    return _EMPTY_GROUP.sub(r"\1 []\n", _RECORD_BLOCK.sub(read, _ALERT_BLOCK.sub(kept, template)))


def templates() -> dict[str, str]:
    """The shipped templates by the file that each makes, with faults and the counters of the catalogue in them."""
    paths = sorted(asset("alerts/templates").glob("*.yaml"))
    texts = {path.name: _with_fault(_with_explained(path.read_text(encoding="utf-8"))) for path in paths}
    return {
        name: _LIMIT.sub(lambda match: limit_words(match[1]), _RISEN.sub(lambda match: passed(match[1]), text))
        for name, text in texts.items()
    }


def shipped_alerts() -> dict[str, bool]:
    """All alerts, each with whether it is about one node."""
    return {name: one for template in templates().values() for name, one in alerts_about_nodes(template).items()}


_EXPLAINED = re.compile(r"^( *)@unless_explained@$", re.MULTILINE)


def _with_explained(template: str) -> str:
    """The template with the symptoms taken away that an alert of the same node explains."""
    text = explained('job="@job@", alertstate="firing"')
    return _EXPLAINED.sub(lambda match: indent(text, match[1]), template)


def _with_fault(template: str) -> str:
    """The template with the label ``fault`` at each alert about a node, its own name, and with what else is open there.

    The fleet's alerts have there the name of the alert that is on many nodes; Alertmanager compares labels of one name.
    """
    head, *alerts = re.split(r"^(?= *- alert: )", template, flags=re.MULTILINE)
    return head + "".join(
        _JOBS_OF_ALERT.sub(
            rf"\g<0>{_ALSO_OPEN.replace('@own_name@', name)}",
            alert.replace("labels:\n", f"labels:\n          fault: {name}\n", 1),
        )
        if is_about_node
        else alert
        for alert in alerts
        for name, is_about_node in alerts_about_nodes(alert).items()
    )


def one_document(files: Mapping[str, str]) -> str:
    head = next(iter(files.values())).partition("\n")[0]
    return "".join((head, "\ngroups:\n", *(text.partition("\ngroups:\n")[2] for text in files.values())))


def prometheus_rule(files: Mapping[str, str], labels: Sequence[str]) -> str:
    """All rules as the object of Prometheus' operator.

    Args:
        labels: its own, as ``NAME=VALUE``.

    Raises:
        UsageError: a label has no value.
    """
    pairs = [label.partition("=") for label in labels]
    for label, (name, _, value) in zip(labels, pairs, strict=True):
        if not (name and value):
            raise UsageError(f"--operator {label}: expected LABEL=VALUE, such as release=kube-prometheus-stack")
    own = {"labels": {name: value for name, _, value in pairs}} if pairs else {}
    # JSON is YAML as well; the rules themselves keep their form and remarks.
    metadata = json.dumps({"name": "commwatch", **own})
    spec = re.sub(r"^(?=.)", "  ", one_document(files), flags=re.MULTILINE)
    return f"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {metadata}\nspec:\n{spec}"
