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

from commwatch.analysis.findings.rules import jobs, kernel, probe
from commwatch.analysis.nccl_log_rules import SIDES
from commwatch.assets import asset
from commwatch.errors import CommwatchError
from commwatch.thresholds import Thresholds, load_thresholds

_PLACEHOLDER = re.compile(r"@([a-z_]+)(?::(duration|percent))?@")
_DURATION_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))

_BUSY = "max(max_over_time(commwatch_gpu_busy{job='%s',instance='%s'}[5m]))"
_JOB_ON_NODE = (
    f'{{{{ with query (printf "{_BUSY}" $labels.job $labels.instance) }}}}'
    "{{ if gt (. | first | value) 0.0 }}A job was on the node in the last 5 min."
    "{{ else }}No job was on the node in the last 5 min.{{ end }}"
    "{{ else }}Whether a job is on the node is not known.{{ end }}"
)
_ON_DUTY = "* on (job, instance) group_left (simulated) instance:commwatch_on_duty:info"
"""Hushes an alert in maintenance and hands on the label of simulated nodes."""

_IDENTITY = "last_over_time(commwatch_gpu_info{job='%s',instance='%s',pci_bus_id='%s'}[1h])"
_GPU = (
    "GPU {{ $labels.gpu }} at {{ $labels.pci_bus_id }}"
    f'{{{{ with query (printf "{_IDENTITY}" $labels.job $labels.instance $labels.pci_bus_id) }}}}'
    ' ({{ . | first | label "uuid" }}){{ end }}'
)
_DEVICE_GPU = (
    f'{{{{ with query (printf "{_IDENTITY}" $labels.job $labels.instance $labels.device) }}}}'
    ' (GPU {{ . | first | label "gpu" }}, {{ . | first | label "uuid" }}){{ end }}'
)
"""Which GPU a PCIe device is; nothing where it is none."""

_LISTS: Mapping[str, Iterable[str]] = {
    "xids_fabric": kernel.FABRIC_FAILED,
    "xids_gpu": kernel.GPU_FAILED,
    "sxids_fatal": kernel.SWITCH_FAILED,
    "sxids_warning": kernel.SWITCH_WARNS,
    "nccl_hardware": (category for category, side in SIDES.items() if side in jobs.HARDWARE),
    "probe_missed_chances": probe.MISSED_CHANCES,
    "probe_disturbed": probe.DISTURBED,
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
    runbooks: str = "https://runbooks.example/commwatch"
    """Where the files of alerts/runbooks/ can be read."""
    dashboards: str = "https://grafana.example"
    """Grafana's own address."""


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

    return _PLACEHOLDER.sub(fill, template)


def _words(site: Site) -> Mapping[str, str]:
    """What stands for each placeholder that is no threshold."""
    phrases = {
        "job_on_node": _JOB_ON_NODE,
        "on_duty": _ON_DUTY,
        "gpu": _GPU,
        "device_gpu": _DEVICE_GPU,
        "node_dashboard": f"{site.dashboards}/d/commwatch-node?var-instance={{{{ $labels.instance }}}}",
    }
    return asdict(site) | phrases | _ALTERNATIVES


def format_duration(seconds: float) -> str:
    """Seconds as a Prometheus duration in the largest unit that divides them: ``40s``, ``2h``, ``7d``.

    Raises:
        ValueError: it is no whole number of seconds.
    """
    for unit, length in _DURATION_UNITS:
        if seconds % length == 0:
            return f"{int(seconds) // length}{unit}"
    raise ValueError(f"{seconds} s: rules need whole seconds")


def render_all(thresholds: Thresholds, site: Site) -> dict[str, str]:
    """All rule files by name."""
    header = f"# Rendered by `python -m commwatch.rules` with the thresholds {thresholds.digest}; edit the template.\n"
    templates = sorted(asset("alerts/templates").glob("*.yaml"))
    return {path.name: header + render(path.read_text(encoding="utf-8"), thresholds, site) for path in templates}


def _outdated(files: Mapping[str, str], folder: Path) -> list[str]:
    present = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    return sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the rules, or with ``--check`` say whether they are current; 0 fine, 1 outdated, 2 bad thresholds."""
    usual = Site()
    parser = argparse.ArgumentParser(prog="python -m commwatch.rules", description="Renders the alert rules.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: the shipped folder)")
    parser.add_argument("--thresholds", type=Path, metavar="FILE", help="thresholds in place of shipped ones")
    parser.add_argument("--job", default=usual.job, help="job label of the daemons (default: %(default)s)")
    parser.add_argument("--runbooks", default=usual.runbooks, metavar="URL", help="where the runbooks can be read")
    parser.add_argument("--dashboards", default=usual.dashboards, metavar="URL", help="Grafana's address")
    options = parser.parse_args(arguments)
    try:
        site = Site(options.job, options.runbooks.rstrip("/"), options.dashboards.rstrip("/"))
        files = render_all(load_thresholds(options.thresholds), site)
    except (CommwatchError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    folder = options.output or asset("alerts") / "rules"
    if options.check:
        outdated = _outdated(files, folder)
        for name in outdated:
            print(f"{folder / name} is not current; run python -m commwatch.rules", file=sys.stderr)
        return 1 if outdated else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
