"""What a branch of the diagnosis reads, made by hand: exposed numbers, findings, an audit, limits of the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from commwatch.diagnosis.check import Branch, Check, CheckVerdict
from commwatch.diagnosis.known import HostLimits, Known
from commwatch.diagnosis.walk import diagnose
from commwatch.findings.api_documents import (
    FindingsDocument,
    ScoreDocument,
    SettingsDocument,
    SnapshotDocument,
    metric_records,
)
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Cause, ComponentRecord, Evidence, Finding, Severity
from commwatch.findings.score.records import Score
from commwatch.jobs.settings.records import AuditRecord
from commwatch.probes.by_hand.answer import Answer, CycleVerdict
from commwatch.probes.plan import CycleResult
from support.facts import NOW, Numbers, shipped
from support.pages import snapshot_of

ROOT, UPSTREAM = "0000:10:01.0", "0000:11:00.0"
GPUS = ("0000:13:00.0", "0000:14:00.0")
NICS = ("0000:15:00.0", "0000:16:00.0")
_PORTS = tuple(f"0000:12:{slot:02x}.0" for slot in range(4))

Series = Mapping[str, dict[Any, float]]


def known_of(
    numbers: Numbers,
    findings: Iterable[Finding] = (),
    *,
    audit: AuditRecord | None = None,
    host: HostLimits | None = None,
    simulated: str | None = None,
    looked_at: float | None = NOW,
    failing_rules: tuple[str, ...] = (),
) -> Known:
    """All that a branch may read.

    Args:
        numbers: what is exposed, by metric and label values.
        findings: that are open.
        audit: of the settings of jobs; None where there is none.
        host: its limits.
        simulated: the simulated node; None for a real one.
        looked_at: when the rules ran.
        failing_rules: that raised.
    """
    about: dict[str, Any] = {"version": "0.2.0", "time": NOW, "simulated": simulated, "maintenance": None}
    series = {(metric, labels): value for metric, some in numbers.items() for labels, value in some.items()}
    told = FindingsDocument(
        **about, thresholds="", looked_at=looked_at, failing_rules=failing_rules, findings=tuple(findings)
    )
    return Known(
        told,
        ScoreDocument(**about, thresholds="", looked_at=looked_at, score=Score(None, "not measured", (), ())),
        SnapshotDocument(**about, metrics=metric_records(snapshot_of(series))),
        shipped(),
        settings=SettingsDocument(**about, audited_at=None if audit is None else NOW, audit=audit),
        host=host,
    )


def finding(code: str, component: str, severity: Severity = "warning", causes: tuple[Cause, ...] = ()) -> Finding:
    """An open finding of a component such as ``rdma_port/mlx5_0/1``."""
    role = CODES[code].role if code in CODES else "fault"
    return Finding(
        code, f"title of {code}", severity, role, _component(component), NOW - 60, NOW, "",
        (Evidence("rise", 12.0, "", 10.0, "rdma_packet_errors_per_hour"),), causes, "meaning", "do this", "",
    )  # fmt: skip


def cause(code: str, component: str) -> Cause:
    """A fault beneath a finding."""
    return Cause(
        code, f"title of {code}", "warning", _component(component), 0.9, "same path", "", (), "do that", "", NOW
    )


def _component(identity: str) -> ComponentRecord:
    kind, _, key = identity.partition("/")
    return ComponentRecord(kind, key, "", identity, ())


def branch_of(known: Known, branch: Branch) -> list[Check]:
    """The checks of a branch, once what the rules see has lasted for long enough to be a finding."""
    lasting = (*known.findings.findings, *(one.record for one in known.matched if not one.is_open))
    known = replace(known, findings=msgspec.structs.replace(known.findings, findings=lasting))
    return [check for check in diagnose(known, "quick").checks if check.branch == branch]


def answer_of(result: CycleResult, verdict: CycleVerdict = "good", probe: str = "all_reduce", **changes: Any) -> Answer:
    """The result of one cycle of a probe."""
    known: dict[str, Any] = {
        "probe": probe, "measure": "all_reduce", "backend": "simulated", "ranks": 8, "gpus": (), "verdict": verdict,
        "shares_gpus": False, "result": result,
    }  # fmt: skip
    return Answer(**(known | changes))


def verdicts(checks: Iterable[Check], what: str = "") -> dict[str, CheckVerdict]:
    """The verdict of each check of one quantity by its part; without a quantity of all, by what is looked at."""
    if what:
        return {check.where: check.verdict for check in checks if check.what == what}
    return {f"{check.what}: {check.where}" if check.where else check.what: check.verdict for check in checks}


def merged(*parts: Series) -> dict[str, dict[Any, float]]:
    """All of them together; a later one wins."""
    numbers: dict[str, dict[Any, float]] = {}
    for part in parts:
        for metric, series in part.items():
            numbers[metric] = {**numbers.get(metric, {}), **series}
    return numbers


def without(numbers: Series, *metrics: str) -> dict[str, dict[Any, float]]:
    """The same without some metrics."""
    return {metric: dict(series) for metric, series in numbers.items() if metric not in metrics}


def switched_node() -> dict[str, dict[Any, float]]:
    """Two GPUs with two NVLinks between them, and two RDMA adapters, under one PCIe switch; nothing learned yet."""
    places = dict(zip(_PORTS, (*GPUS, *NICS), strict=True))
    devices = {
        ROOT: ("switch_port", "pci0000:10"),
        UPSTREAM: ("switch_port", ROOT),
        **dict.fromkeys(_PORTS, ("switch_port", UPSTREAM)),
        **{end: ("gpu" if end in GPUS else "nic", port) for port, end in places.items()},
    }
    links: dict[str, dict[Any, float]] = {
        "commwatch_pcie_device_link_generation": dict.fromkeys(((one,) for one in devices), 4.0),
        "commwatch_pcie_device_link_generation_max": dict.fromkeys(((one,) for one in devices), 5.0),
        "commwatch_pcie_device_link_width_lanes": dict.fromkeys(((one,) for one in devices), 16.0),
        "commwatch_pcie_device_link_width_max_lanes": dict.fromkeys(((one,) for one in devices), 16.0),
    }
    gpus = [(str(index), address) for index, address in enumerate(GPUS)]
    nvlinks = [(*gpu, str(link)) for gpu in gpus for link in range(2)]
    return {
        **links,
        "commwatch_present": {("gpu",): 2.0},
        "commwatch_gpu_info": {(*gpu, f"GPU-{gpu[0]}", "", "NVIDIA H100 80GB HBM3", "Hopper"): 1.0 for gpu in gpus},
        "commwatch_gpu_state": dict.fromkeys(gpus, 0.0),
        "commwatch_pcie_device_info": {
            (device, role, parent, "0", "", ""): 1.0 for device, (role, parent) in devices.items()
        },
        "commwatch_nvlink_links": dict.fromkeys(gpus, 2.0),
        "commwatch_nvlink_link_state": dict.fromkeys(nvlinks, 1.0),
        "commwatch_nvlink_info": {
            (*link, "4.0", "gpu", GPUS[1 - int(link[0])], link[2]): 1.0 for link in nvlinks
        },
        "commwatch_gpu_p2p_status": {
            ("0", GPUS[0], "1", GPUS[1], "read"): 0.0, ("1", GPUS[1], "0", GPUS[0], "read"): 0.0,
        },
        "commwatch_rdma_port_info": {
            (f"mlx5_{place}", "1", "InfiniBand", "0x2", "0x1", "28.39", "MT4129", address, ""): 1.0
            for place, address in enumerate(NICS)
        },
    }  # fmt: skip
