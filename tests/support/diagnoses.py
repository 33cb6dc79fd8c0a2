"""Diagnoses made by hand: of a node that is well, and of one with a narrowed PCIe link and a slow GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.known import Known
from commwatch.findings.api_documents import (
    ClosedRecord,
    FindingsDocument,
    ScoreDocument,
    SnapshotDocument,
    metric_records,
)
from commwatch.findings.finding import Cause, ComponentRecord, Evidence, Finding, Role, Severity
from commwatch.findings.score.records import PartReadings, Reading, Score, weighted
from commwatch.findings.verdict import Verdict
from commwatch_exporters.snapshot import Series, Value
from heatmap.matrices import matrix, slow_gpu
from support.facts import shipped
from support.pages import snapshot_of

NOW = 1_790_000_600.0
"""Seconds since 1970 of the diagnosis."""


def healthy(**changes: Any) -> Diagnosis:
    """All that was looked at is as it should be."""
    known: dict[str, Any] = {
        "version": "0.2.0",
        "time": NOW,
        "simulated": None,
        "maintenance": None,
        "scan": "quick",
        "verdict": Verdict("OK", "no warning or critical finding"),
        "looked_at": NOW - 4,
        "findings": (),
        "checks": tuple(_links()) + _others("passed", "x16"),
        "score": score(0.97),
        "matrix": matrix(),
    }
    return Diagnosis(**(known | changes))


def faulty(**changes: Any) -> Diagnosis:
    """A slow probe with its cause, and a check that failed."""
    known = {
        "verdict": Verdict(
            "Warning",
            "PCIe link with fewer lanes: PCIe link of GPU1 (0000:18:00.0), the likeliest cause of: Slow collective: "
            "probe all_reduce",
        ),
        "findings": (finding(causes=(cause(),)), finding("info", code="slot_narrow", title="The slot is narrow")),
        "checks": tuple(_links()) + _others("failed", "x8"),
        "score": score(0.55),
        "matrix": slow_gpu(1),
    }
    return healthy(**(known | changes))


def closed_finding(until: float, **changes: Any) -> ClosedRecord:
    """A finding that was closed a while before the diagnosis, and opened 10 min before that."""
    one = finding()
    known: dict[str, Any] = {
        "code": one.code, "title": one.title, "severity": one.severity, "component": one.component,
        "since": until - 600, "until": until, "evidence": one.evidence,
    }  # fmt: skip
    return ClosedRecord(**(known | changes))


def known_of(document: Diagnosis, values: dict[Series, Value] | None = None) -> Known:
    """What a diagnosis was made from.

    Args:
        document: the diagnosis.
        values: what is exposed beside the identity of its eight GPUs.
    """
    about: dict[str, Any] = {
        "version": document.version,
        "time": document.time,
        "simulated": document.simulated,
        "maintenance": document.maintenance,
    }
    gpus: dict[Series, Value] = {}
    for gpu in range(8):
        labels = (str(gpu), f"0000:{gpu + 16:02x}:00.0")
        gpus["commwatch_gpu_state", labels] = 0
        info = (*labels, f"GPU-6f2c1b7e-{gpu}", f"165{gpu}", "NVIDIA H100 80GB HBM3", "hopper")
        gpus["commwatch_gpu_info", info] = 1
    gpus["commwatch_software_info", ("580.95.05", "13.580", "13.0")] = 1
    return Known(
        FindingsDocument(
            **about, thresholds="", looked_at=document.looked_at, failing_rules=(), findings=document.findings
        ),
        ScoreDocument(**about, thresholds="", looked_at=document.looked_at, score=document.score),
        SnapshotDocument(**about, metrics=metric_records(snapshot_of(gpus, values or {}))),
        shipped(),
        document.matrix,
    )


def finding(severity: Severity = "warning", **changes: Any) -> Finding:
    """One finding."""
    role: Role = "symptom"
    known: dict[str, Any] = {
        "code": "probe_slow",
        "title": "Slow collective",
        "severity": severity,
        "role": role,
        "component": component(),
        "since": NOW - 3600,
        "last_seen": NOW - 4,
        "detail": "rank 1 is the slowest",
        "evidence": (Evidence("bandwidth", 22e9, "bytes_per_second", 48e9, "a threshold"),),
        "causes": (),
        "meaning": "A collective takes longer than it should.",
        "next_step": "Look at the slowest rank.",
        "alert": "",
    }
    return Finding(**(known | changes))


def cause(**changes: Any) -> Cause:
    """One cause."""
    known: dict[str, Any] = {
        "code": "pcie_link_width",
        "title": "PCIe link with fewer lanes",
        "severity": "critical",
        "component": component("pcie_link", "0000:18:00.0", "PCIe link of GPU1"),
        "weight": 0.9,
        "reason": "on the way of the slow rank, since the same minute",
        "detail": "",
        "evidence": (Evidence("lanes", 8, "lanes", 16),),
        "next_step": "Reseat the card, then look at the slot and the riser.",
        "alert": "",
        "last_seen": NOW - 4,
    }
    return Cause(**(known | changes))


def component(kind: str = "probe", key: str = "all_reduce", name: str = "probe all_reduce") -> ComponentRecord:
    """What a finding is about."""
    return ComponentRecord(kind, key, name, f"{kind}/{key}", ())


def score(bandwidth: float) -> Score:
    """All parts measured, and points lost to bandwidth."""
    worst = Reading("probe all_reduce", bandwidth, f"{bandwidth * 400:.0f} GB/s of 400 GB/s")
    fine = Reading("probe all_reduce", 1.0, "10 µs")
    return weighted(
        [
            PartReadings("bandwidth", (worst,), True, "a probe"),
            PartReadings("latency", (fine,), True, "a probe"),
            PartReadings("balance", (fine,), True, "two GPUs"),
            PartReadings("stability", (), True, "20 results"),
        ],
        0.85,
        0.7,
    )


def _links() -> Iterator[Check]:
    for gpu in range(8):
        for link in range(18):
            yield Check(
                branch="topology",
                what="state of an NVLink",
                where=f"GPU{gpu} link {link}",
                measured="active",
                required="active",
                verdict="passed",
                source="this GPU's links",
            )


def _others(verdict: Any, lanes: str) -> tuple[Check, ...]:
    widths = tuple(
        Check(
            branch="topology",
            what="lanes of the PCIe link",
            where=f"GPU{gpu}",
            measured=lanes if gpu == 1 else "x16",
            required="at least x16",
            verdict=verdict if gpu == 1 else "passed",
            source="both ends of the link",
            detail="The link trained to fewer lanes than both ends have." if gpu == 1 and verdict == "failed" else "",
            next_step="Reseat the card." if gpu == 1 and verdict == "failed" else "",
        )
        for gpu in range(8)
    )
    return (
        *widths,
        Check(
            branch="bandwidth",
            what="all_reduce bus bandwidth, 256 MiB, 8 GPUs",
            measured="220 GB/s" if verdict == "failed" else "390 GB/s",
            required="at least 360 GB/s",
            verdict=verdict,
            source="90 % of what this node should give",
        ),
        Check(
            branch="bandwidth",
            what="GPU to GPU over NVLink, one way, 64 MiB",
            where="slowest pair",
            measured="361 GB/s",
            required="at least 300 GB/s",
            verdict="published mark",
            source="published mark",
        ),
        Check(
            branch="pattern",
            what="bandwidth over sizes",
            verdict="not measured",
            detail="A full scan measures it: commwatch diagnose --full-scan",
        ),
        *(
            Check(branch="infiniband", what="rate of the port", where=f"mlx5_{port} port 1", verdict="does not apply")
            for port in range(2)
        ),
    )
