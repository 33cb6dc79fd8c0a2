"""The status page: what a person wants to see of one node first, as one small HTML page without scripts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from commwatch_exporters.signs import signs
from commwatch_exporters.snapshot import Snapshot, Value

_REFRESH_SECONDS = 5
_ABSENT = "–"
"""Stands for what was not read."""
_GPU_FAMILIES = ("commwatch_gpu_info", "commwatch_gpu_state")
GPU_STATES = {0: "ok", 1: "not answering", 2: "lost", 3: "reset required", 4: "missing"}
_RDMA = ("commwatch_rdma_port_info", "commwatch_rdma_port_state")
_RDMA_STATES = {0: "no change", 1: "down", 2: "initialising", 3: "armed", 4: "active", 5: "deferred"}
_MOST_FINDINGS = 20
_MOST_SIGNS = 30
_ETHERNET = ("commwatch_ethernet_info", "commwatch_ethernet_carrier")
_LINK_UP_STATES = (1, 2)  # active, asleep

LIGHT = """color-scheme:light;--bg:#fff;--fg:#1b1f24;--dim:#59636e;--line:#d8dee4;--card:#f6f8fa;
--good:#1a7f37;--bad:#c21c2b;--note:#fff4ce;--notefg:#5c4400;--link:#0757ba"""
DARK = """color-scheme:dark;--bg:#0f1318;--fg:#e6edf3;--dim:#9aa5b1;--line:#2f3742;--card:#171c23;
--good:#4cc46b;--bad:#ff7b72;--note:#3a2f0b;--notefg:#f2dc9b;--link:#6cb2ff"""
"""Colours of all pages, as CSS properties of ``:root``."""

_STYLE = (
    f":root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1rem;background:var(--bg);color:var(--fg);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
a{color:var(--link)}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:.25rem 1rem}
header nav{margin-left:auto;display:flex;gap:1rem}
h1{font-size:1.4rem;margin:0}
h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
.dim{color:var(--dim)}
ul.summary{list-style:none;padding:0;margin:.8rem 0 0;color:var(--dim)}
.notice{background:var(--note);color:var(--notefg);border-radius:6px;padding:.6rem .8rem;margin:.8rem 0 0;
overflow-wrap:anywhere}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:6px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .7rem;text-align:left;white-space:nowrap}
th{background:var(--card);font-weight:600;color:var(--dim);font-size:.85rem}
tbody tr+tr td{border-top:1px solid var(--line)}
td.number,th.number{text-align:right}
td.text{white-space:normal;min-width:14rem;overflow-wrap:anywhere}
.good{color:var(--good)}
.bad{color:var(--bad);font-weight:600}
"""
)


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """The last run of a collector."""

    name: str
    success: bool | None
    """None before the first run."""
    age_seconds: float | None
    """Since the last success; None where there was none."""
    interval_seconds: float
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """What a probe gave last and does next."""

    name: str
    backend: str
    last_result: str = ""
    """With its units; empty where there is none."""
    age_seconds: float | None = None
    """Since the last result."""
    next_run_seconds: float | None = None
    """Until the next run."""
    skip_reason: str = ""
    """Why the last run did not take place; empty if it did."""


@dataclass(frozen=True, slots=True)
class FindingStatus:
    """Something that is wrong, by the rules of the daemon."""

    severity: str
    title: str
    """What is wrong, in a few words."""
    part: str
    """Of the node."""
    age_seconds: float
    """Since it was seen first."""
    causes: Sequence[str] = ()
    """What explains it, the likeliest first."""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """What the page says beside the snapshot."""

    version: str
    summary: Sequence[str] = ()
    """Lines about the node."""
    notices: Sequence[str] = ()
    """What the reader should know or do first."""
    findings: Sequence[FindingStatus] = ()
    """What is wrong, the gravest first."""
    collectors: Sequence[CollectorStatus] = ()
    probes: Sequence[ProbeStatus] = ()


def render_status_page(snapshot: Snapshot, status: Status, telemetry_path: str) -> str:
    """The page as HTML; every text in it is escaped."""
    simulated = snapshot.value("commwatch_simulated") == 1
    notices = ["Simulated node: no value on this page comes from hardware."] if simulated else []
    notices += status.notices
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">',
            f"<title>commwatch{' (simulated)' if simulated else ''}</title><style>{_STYLE}</style></head><body>",
            f'<header><h1>commwatch</h1><span class="dim">{html.escape(status.version)}</span><nav>',
            f'<a href="{html.escape(telemetry_path)}">Metrics</a> <a href="/api/v1/findings">Findings</a> ',
            '<a href="/api/v1/snapshot">Snapshot</a> <a href="/readyz">Ready</a> ',
            '<a href="/healthz">Health</a></nav></header>',
            *[f'<p class="notice" role="status">{html.escape(notice)}</p>' for notice in notices],
            '<ul class="summary">',
            *[f"<li>{html.escape(line)}</li>" for line in status.summary],
            "</ul><main>",
            _findings(status.findings),
            _signs(snapshot),
            _gpus(snapshot),
            _rdma_ports(snapshot),
            _interfaces(snapshot),
            _probes(status.probes),
            _collectors(status.collectors),
            "</main></body></html>\n",
        ]
    )


# --- sections ---


def _findings(findings: Sequence[FindingStatus]) -> str:
    """What is wrong and what to do; nothing where nothing is."""
    if not findings:
        return ""
    rows = [
        [
            _severity(finding.severity),
            f'<td class="text">{html.escape(finding.title)}</td><td>{html.escape(finding.part)}</td>',
            _duration(finding.age_seconds),
            f'<td class="text">{"<br>".join([html.escape(cause) for cause in finding.causes])}</td>',
            f'<td class="text">{html.escape(finding.next_step)}</td>',
        ]
        for finding in findings[:_MOST_FINDINGS]
    ]
    if len(findings) > _MOST_FINDINGS:
        more = f"and {len(findings) - _MOST_FINDINGS} more, at /api/v1/findings"
        rows.append([f'<td></td><td class="text">{more}</td><td></td><td></td><td></td><td></td>'])
    return _section("Findings", ("Severity", "Finding", "Part", "#For", "Because of", "What to do"), rows, "")


def _signs(snapshot: Snapshot) -> str:
    """What is wrong; nothing where nothing is."""
    found = signs(snapshot)
    if not found:
        return ""
    rows = [
        [f'<td>{html.escape(sign.part)}</td><td class="text">{html.escape(sign.text)}</td>']
        for sign in found[:_MOST_SIGNS]
    ]
    if len(found) > _MOST_SIGNS:
        rows.append([f'<td></td><td class="text">and {len(found) - _MOST_SIGNS} more, among the metrics</td>'])
    return _section("Signs of trouble", ("Part", "What is seen"), rows, "")


def _gpus(snapshot: Snapshot) -> str:
    labels = {(found["gpu"], found["pci_bus_id"]) for family in _GPU_FAMILIES for found, _ in snapshot.samples(family)}
    headings = ("GPU", "State", "Work", "NVLinks up", "#NVLink sends", "#receives", "PCIe", "Slot", "Model")
    names = {found["pci_bus_id"]: found["name"] for found, _ in snapshot.samples("commwatch_gpu_info")}
    rows = [
        [
            f"<td>{html.escape(gpu)}</td>",
            _gpu_state(snapshot.value("commwatch_gpu_state", gpu, slot)),
            _yes_no(snapshot.value("commwatch_gpu_busy", gpu, slot), "busy", "idle"),
            _links(snapshot, gpu, slot),
            _percent(snapshot.value("commwatch_nvlink_transmit_utilization_ratio", gpu, slot)),
            _percent(snapshot.value("commwatch_nvlink_receive_utilization_ratio", gpu, slot)),
            _pcie(snapshot, gpu, slot),
            f"<td>{html.escape(slot)}</td><td>{html.escape(names.get(slot, _ABSENT))}</td>",
        ]
        for gpu, slot in sorted(labels, key=lambda one: (len(one[0]), one))
    ]
    return _section("GPUs", headings, rows, "No GPU is read at present.")


def _rdma_ports(snapshot: Snapshot) -> str:
    """The RDMA ports; nothing where the node has none."""
    layers = {(found["device"], found["port"]): found["link_layer"] for found, _ in snapshot.samples(_RDMA[0])}
    ports = {(found["device"], found["port"]) for family in _RDMA for found, _ in snapshot.samples(family)}
    if not ports:
        return ""
    rows = [
        [
            f"<td>{html.escape(device)}</td><td>{html.escape(port)}</td>",
            f"<td>{html.escape(layers.get((device, port), _ABSENT))}</td>",
            _port_state(snapshot.value("commwatch_rdma_port_state", device, port)),
            _speed(snapshot.value("commwatch_rdma_port_speed_bytes_per_second", device, port)),
            _percent(snapshot.value("commwatch_rdma_port_transmit_utilization_ratio", device, port)),
            _percent(snapshot.value("commwatch_rdma_port_receive_utilization_ratio", device, port)),
            _count(snapshot.value("commwatch_rdma_port_flaps_total", device, port)),
        ]
        for device, port in sorted(ports, key=lambda one: (len(one[0]), one))
    ]
    headings = ("RDMA device", "Port", "Layer", "State", "#Speed", "#Sends", "#Receives", "#Flaps")
    return _section("RDMA ports", headings, rows, "")


def _interfaces(snapshot: Snapshot) -> str:
    devices = sorted({found["device"] for family in _ETHERNET for found, _ in snapshot.samples(family)})
    headings = ("Interface", "Link", "#Speed", "#Sends", "#Receives")
    rows = [
        [
            f"<td>{html.escape(device)}</td>",
            _yes_no(snapshot.value("commwatch_ethernet_carrier", device), "up", "down"),
            _speed(snapshot.value("commwatch_ethernet_speed_bytes_per_second", device)),
            _percent(snapshot.value("commwatch_ethernet_transmit_utilization_ratio", device)),
            _percent(snapshot.value("commwatch_ethernet_receive_utilization_ratio", device)),
        ]
        for device in devices
    ]
    return _section("Network interfaces", headings, rows, "No interface was read.")


def _probes(probes: Sequence[ProbeStatus]) -> str:
    headings = ("Probe", "Backend", "Last result", "#Age", "#Next in", "Skipped because")
    rows = [
        [
            f"<td>{html.escape(probe.name)}</td><td>{html.escape(probe.backend)}</td>",
            f'<td class="text">{html.escape(probe.last_result) or _ABSENT}</td>',
            _duration(probe.age_seconds),
            _duration(probe.next_run_seconds),
            f'<td class="text">{html.escape(probe.skip_reason)}</td>',
        ]
        for probe in probes
    ]
    return _section("Probes", headings, rows, "No probe is configured.")


def _collectors(collectors: Sequence[CollectorStatus]) -> str:
    headings = ("Collector", "Last run", "#Since success", "#Every", "Last error")
    rows = [
        [
            f"<td>{html.escape(collector.name)}</td>",
            _yes_no(collector.success, "ok", "failed", judged=True),
            _duration(collector.age_seconds),
            _duration(collector.interval_seconds),
            f'<td class="text">{html.escape(collector.last_error)}</td>',
        ]
        for collector in collectors
    ]
    return _section("Collectors", headings, rows, "No collector runs.")


def _section(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> str:
    """A table under a heading; a column whose heading starts with # holds numbers."""
    if not rows:
        return f'<h2>{title}</h2><p class="dim">{empty}</p>'
    head = "".join([f'<th class="number">{one[1:]}</th>' if one[0] == "#" else f"<th>{one}</th>" for one in headings])
    body = "".join([f"<tr>{''.join(row)}</tr>" for row in rows])
    return (
        f'<h2>{title}</h2><div class="wide" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


# --- cells ---


def _number(text: str) -> str:
    return f'<td class="number">{text}</td>'


def _yes_no(value: Value, yes: str, no: str, *, judged: bool = False) -> str:
    if value is None:
        return f"<td>{_ABSENT}</td>"
    kind = ("good" if value else "bad") if judged else ""
    return f'<td class="{kind}">{yes if value else no}</td>' if kind else f"<td>{yes if value else no}</td>"


def _severity(severity: str) -> str:
    text = html.escape(severity)
    return f"<td>{text}</td>" if severity == "info" else f'<td class="bad">{text}</td>'


def _gpu_state(value: Value) -> str:
    if value is None:
        return f"<td>{_ABSENT}</td>"
    text = GPU_STATES.get(int(value), f"unknown ({value})")
    return f'<td class="{"good" if value == 0 else "bad"}">{text}</td>'


def _links(snapshot: Snapshot, gpu: str, slot: str) -> str:
    states = _of_gpu(snapshot, "commwatch_nvlink_link_state", gpu, slot)
    if not states:
        return f"<td>{_ABSENT}</td>"
    up = sum(state in _LINK_UP_STATES for state in states)
    expected = int(sum(_of_gpu(snapshot, "commwatch_nvlink_link_expected", gpu, slot)))
    if not expected:
        return f"<td>{up}</td>"
    return f'<td class="{"good" if up >= expected else "bad"}">{up} of {expected}</td>'


def _of_gpu(snapshot: Snapshot, family: str, gpu: str, slot: str) -> list[float]:
    return [value for found, value in snapshot.samples(family) if (found["gpu"], found["pci_bus_id"]) == (gpu, slot)]


def _pcie(snapshot: Snapshot, gpu: str, slot: str) -> str:
    generation = snapshot.value("commwatch_pcie_link_generation", gpu, slot)
    width = snapshot.value("commwatch_pcie_link_width_lanes", gpu, slot)
    expected = snapshot.value("commwatch_pcie_link_width_expected_lanes", gpu, slot)
    if generation is None and width is None:
        return f"<td>{_ABSENT}</td>"
    text = " ".join([f"gen{generation}"] * (generation is not None) + [f"x{width}"] * (width is not None))
    if width is not None and expected is not None and width < expected:
        return f'<td class="bad">{text} of x{expected}</td>'
    degraded = any(snapshot.value("commwatch_pcie_link_degraded", gpu, slot, one) for one in ("width", "generation"))
    return f'<td class="bad">{text}</td>' if degraded else f"<td>{text}</td>"


def _port_state(value: Value) -> str:
    return f"<td>{_ABSENT if value is None else _RDMA_STATES.get(int(value), f'unknown ({value})')}</td>"


def _count(value: Value) -> str:
    return _number(_ABSENT if value is None else f"{value:g}")


def _percent(value: Value) -> str:
    return _number(_ABSENT if value is None else f"{value:.1%}")


def _speed(bytes_per_second: Value) -> str:
    return _number(_ABSENT if bytes_per_second is None else f"{bytes_per_second * 8 / 1e9:g} Gbit/s")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _number(_ABSENT)
    for limit, size, unit, digits in ((10, 1, "s", 1), (120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "h", 0)):
        if seconds < limit:
            return _number(f"{seconds / size:.{digits}f} {unit}")
    return _number(f"{seconds / 86400:.0f} d")
