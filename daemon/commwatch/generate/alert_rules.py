"""Renders the alert rules: fills the placeholders of alerts/templates/ from the thresholds.

A placeholder is ``@NAME@``, ``@NAME:duration@`` (seconds as Prometheus writes them) or ``@NAME:percent@``; NAME is a
threshold or one of the words of ``_words``: addresses of the site, phrases that many alerts share, and
lists of the findings' rules, so that alerts and findings look for the same.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from commwatch.config.assets import asset
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.errors import CommwatchError
from commwatch.findings.rules import daemon, jobs, kernel, probe
from commwatch.generate.limits import limit_words, passed
from commwatch.generate.site import AlertChange, SiteFile, alerts_about_nodes, changed_rules, read_site_file
from commwatch.jobs.logs.rules import SIDES
from commwatch.node.xids import meanings
from commwatch_exporters.state_words import DRIVER_FAULTS

_RISEN = re.compile(r"@risen:([a-z_]+)@")
_LIMIT = re.compile(r"@limit:([a-z_]+)@")
_PLACEHOLDER = re.compile(r"@([a-z_]+)(?::(duration|percent))?@")
_DURATION_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))

_BUSY = "max(max_over_time(commwatch_gpu_busy{cluster='%s',job='%s',instance='%s'}[5m]))"
_JOB_ON_NODE = (
    f'{{{{ with query (printf "{_BUSY}" $labels.cluster $labels.job $labels.instance) }}}}'
    "{{ if gt (. | first | value) 0.0 }}A job was on the node in the last 5 min."
    "{{ else }}No job was on the node in the last 5 min.{{ end }}"
    "{{ else }}Whether a job is on the node is not known.{{ end }}"
)
_ON_DUTY = "* on (cluster, job, instance) group_left (simulated) instance:commwatch_on_duty:info"
"""Hushes an alert in maintenance and hands on the label of simulated nodes."""

_IDENTITY = "last_over_time(commwatch_gpu_info{cluster='%s',job='%s',instance='%s',pci_bus_id='%s'}[1h])"
_GPU = (
    "GPU {{ $labels.gpu }} at {{ $labels.pci_bus_id }}"
    f'{{{{ with query (printf "{_IDENTITY}" $labels.cluster $labels.job $labels.instance $labels.pci_bus_id) }}}}'
    ' ({{ . | first | label "uuid" }}){{ end }}'
)
_DEVICE_GPU = (
    f'{{{{ with query (printf "{_IDENTITY}" $labels.cluster $labels.job $labels.instance $labels.device) }}}}'
    ' (GPU {{ . | first | label "gpu" }}, {{ . | first | label "uuid" }}){{ end }}'
)
"""Which GPU a PCIe device is; nothing where it is none."""

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
    " of {{ . | first | value }}{{ end }} nodes, among them "
    f'{{{{ range $place, $one := printf "{_FAULTY}" {_FAULT} | query | sortByLabel "instance" }}}}'
    "{{ if lt $place 5 }}{{ if $place }}, {{ end }}{{ $one.Labels.instance }}{{ end }}{{ end }}. "
    f'{{{{ with printf "{_FAULTY_BUSY}" {_JOB} {_FAULT} | query }}}}'
    "A job was on {{ . | first | value }} of them in the last 5 min."
    "{{ else }}No job was seen on them in the last 5 min.{{ end }}"
)
"""How many nodes have the fault of the label ``fault``, the first five of them, and where jobs run."""

CORE_TICKETS = frozenset({
    "CommwatchCollectorFailing", "CommwatchDaemonDown", "CommwatchDeviceUnread", "CommwatchEthernetDown",
    "CommwatchFabricServiceDown",
    "CommwatchGpuRecoveryNeeded", "CommwatchNvlinkRecovering", "CommwatchPcieGenerationLow",
    "CommwatchProbeBandwidthLow", "CommwatchProbeErrorRateRise", "CommwatchProbeFailing",
    "CommwatchProbeLatencyStreak", "CommwatchRdmaErrors",
    "CommwatchRdmaPortFlapping", "CommwatchRdmaPortMissing", "CommwatchSoftwareFaultOnManyNodes", "CommwatchWatchdog",
    "CommwatchXidGpu",
})  # fmt: skip
"""The core set beside all that is shipped as critical: faults that need a hand, and the ways by which they are seen."""

_ALERT_BLOCK = re.compile(r"^( *)- alert: (\w+)\n(?:\1 +.*\n|\n)*", re.MULTILINE)
_EMPTY_GROUP = re.compile(r"^( *rules:)\n(?= *- name:|\s*\Z)", re.MULTILINE)

_SOFTWARE_FAULTS = ("CommwatchConfigReloadFailing", "CommwatchNcclSettingHarmful", "CommwatchRuleFailing")
"""Alerts on what someone has set or written: on however many nodes, they can wait for the morning."""

_LISTS: Mapping[str, Iterable[str]] = {
    "gpu_state_reasons": daemon.GPU_STATE_REASONS,
    "xids_fabric": kernel.FABRIC_FAILED,
    "xids_gpu": kernel.GPU_FAILED,
    "sxids_fatal": kernel.SWITCH_FAILED,
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
    """What differs from one site to the next beside the thresholds."""

    job: str = "commwatch"
    """The job under which Prometheus scrapes the daemons."""
    runbooks: str = "http://localhost:3000/public/runbooks"
    """Where the files of alerts/runbooks/ can be read; as shipped, in the Grafana of grafana/compose.yaml."""
    dashboards: str = "http://localhost:3000"
    """Grafana's own address."""
    matchers: str = ""
    """Further matchers of every selector, such as ``cluster="a"``, where some targets of the job are to be left out."""


def render(template: str, thresholds: Thresholds, site: Site) -> str:
    """The rule file that a template makes.

    Raises:
        KeyError: the template names a placeholder that does not exist.
        ValueError: a value cannot be written in the form that the template wants.
    """
    words = {**_words(site), "digest": thresholds.digest}
    numbers: Mapping[str, float] = asdict(thresholds)

    def fill(match: re.Match[str]) -> str:
        name, form = match[1], match[2]
        if name in words:
            return words[name]
        if form == "duration":
            return format_duration(numbers[name])
        if form == "percent":
            return f"{numbers[name] * 100:g} %"
        return f"{numbers[name]:g}" if numbers[name] < 1e6 else f"{numbers[name]:.0f}"

    text = _PLACEHOLDER.sub(fill, template)
    if not site.matchers:
        return text
    # Each selector of a template begins with the job.
    job = f'job="{site.job}"'
    return text.replace(job, f"{job}, {site.matchers}")


def _words(site: Site) -> Mapping[str, str]:
    """What stands for each placeholder that is no threshold."""
    phrases = {
        "job_on_node": _JOB_ON_NODE,
        "on_duty": _ON_DUTY,
        "gpu": _GPU,
        "device_gpu": _DEVICE_GPU,
        "fault_on_nodes": _FAULT_ON_NODES,
        "driver_is": _of_reason({reason: what for reason, (what, _) in DRIVER_FAULTS.items()}),
        "driver_cure": _of_reason({reason: cure for reason, (_, cure) in DRIVER_FAULTS.items()}),
        "xid_means": _meanings("xid", {*kernel.FABRIC_FAILED, *kernel.GPU_FAILED}),
        "sxid_means": _meanings("sxid", kernel.SWITCH_FAILED | kernel.SWITCH_WARNS),
        # Without the label no cluster is chosen: behind a store of several Prometheus series may have one all the same.
        "node_dashboard": f"{site.dashboards}/d/commwatch-node?var-job={{{{ $labels.job }}}}"
        "&var-instance={{ $labels.instance }}{{ with $labels.cluster }}&var-cluster={{ . }}{{ end }}",
    }
    return {**asdict(site), **phrases, **_ALTERNATIVES}


def _meanings(kind: Literal["xid", "sxid"], numbers: Iterable[str]) -> str:
    """What the number of a label means, in brackets; nothing for any other number."""
    known = meanings(kind)
    by_name: dict[str, list[str]] = {}
    for number in sorted(numbers, key=int):
        if (meaning := known.get(int(number))) is not None:
            by_name.setdefault(meaning.name, []).append(f'"{number}"')
    choices = [f"if eq $labels.{kind} {' '.join(same)} }}}} ({name}){{{{ " for name, same in by_name.items()]
    return f"{{{{ {'else '.join(choices)}end }}}}"


def _of_reason(texts: Mapping[str, str]) -> str:
    """The text that belongs to the label ``reason``."""
    choices = [f'if eq $labels.reason "{reason}" }}}}{text}{{{{ ' for reason, text in texts.items()]
    return f"{{{{ {'else '.join(choices)}end }}}}"


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
    command = "python -m commwatch.generate.alert_rules"
    header = f"# Rendered by `{command}` with the thresholds {thresholds.digest}; edit the template.\n"
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
    """A template without the alerts that are in the extended set alone; recorded series stay."""

    def kept(block: re.Match[str]) -> str:
        is_core = "severity: critical\n" in block[0] or block[2] in CORE_TICKETS
        return block[0] if is_core else ""

    return _EMPTY_GROUP.sub(r"\1 []\n", _ALERT_BLOCK.sub(kept, template))


def templates() -> dict[str, str]:
    """The shipped templates by the file that each makes, with faults and the counters of the catalogue in them."""
    paths = sorted(asset("alerts/templates").glob("*.yaml"))
    texts = {path.name: _with_fault(path.read_text(encoding="utf-8")) for path in paths}
    return {
        name: _LIMIT.sub(lambda match: limit_words(match[1]), _RISEN.sub(lambda match: passed(match[1]), text))
        for name, text in texts.items()
    }


def shipped_alerts() -> dict[str, bool]:
    """All alerts, each with whether it is about one node."""
    return {name: one for template in templates().values() for name, one in alerts_about_nodes(template).items()}


def _with_fault(template: str) -> str:
    """The template with the label ``fault`` at each alert about a node: its own name.

    The fleet's alerts have there the name of the alert that is on many nodes; Alertmanager compares labels of one name.
    """
    head, *alerts = re.split(r"^(?= *- alert: )", template, flags=re.MULTILINE)
    return head + "".join(
        alert.replace("labels:\n", f"labels:\n          fault: {name}\n", 1) if is_about_node else alert
        for alert in alerts
        for name, is_about_node in alerts_about_nodes(alert).items()
    )


def _outdated(files: Mapping[Path, str], folder: Path) -> list[Path]:
    """The files that are missing, differ, or lie among the rules without being one of them."""
    present = {path for path in (*files, *folder.glob("*.yaml")) if path.exists()}
    differing = {path for path in present & files.keys() if path.read_text(encoding="utf-8") != files[path]}
    return sorted((files.keys() ^ present) | differing)


def _site(own: SiteFile, options: argparse.Namespace) -> Site:
    """The words of the site: of a flag, else of its file, else as shipped."""
    given = {key: getattr(options, key) for key in ("job", "runbooks", "dashboards") if getattr(options, key)}
    words = {**own.words, **given}
    for key in ("runbooks", "dashboards"):
        if key in words:
            words[key] = words[key].rstrip("/")
    return Site(**words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the rules, or with ``--check`` say whether they are current; 0 fine, 1 outdated, 2 bad thresholds."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m commwatch.generate.alert_rules", description="Renders the alert rules."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: the shipped folder)")
    parser.add_argument("--site", type=Path, metavar="FILE", help="what your site changes (alerts/site.example.yml)")
    parser.add_argument("--thresholds", type=Path, metavar="FILE", help="thresholds in place of shipped ones")
    parser.add_argument(
        "--set",
        choices=("core", "extended"),
        help="core: pages and the tickets that need a hand (default: extended, all)",
    )
    parser.add_argument("--job", help=f"job label of the daemons (default: {Site().job})")
    parser.add_argument("--runbooks", metavar="URL", help="where the runbooks can be read")
    parser.add_argument("--dashboards", metavar="URL", help="Grafana's address")
    options = parser.parse_args(arguments)
    if options.site is not None and options.output is None:
        parser.error("--site needs --output: the shipped rules stay as they are")
    if options.set == "core" and options.output is None:
        parser.error("--set core needs --output: the shipped rules are all")
    try:
        own = SiteFile() if options.site is None else read_site_file(options.site, shipped_alerts())
        thresholds = load_thresholds(options.thresholds or own.thresholds)
        core = (options.set or own.alert_set) == "core"
        texts = render_all(thresholds, _site(own, options), own.alerts, core=core)
    except (CommwatchError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    folder = options.output or asset("alerts") / "rules"
    files = {folder / name: text for name, text in texts.items()}
    if options.check:
        outdated = _outdated(files, folder)
        for path in outdated:
            print(f"{path} is not current; run python -m commwatch.generate.alert_rules", file=sys.stderr)
        return 1 if outdated else 0
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
