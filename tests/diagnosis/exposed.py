"""What a branch of the diagnosis reads, made by hand: exposed numbers, findings, an audit, limits of the host."""

from __future__ import annotations

from collections.abc import Iterable
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


def shows(check: Check, verdict: str, *, says: str = "", never: str = "\0", **fields: str) -> None:
    """A check has a verdict and fields as they print, and its detail says one thing and not another."""
    assert {name: getattr(check, name) for name in ("verdict", *fields)} == {"verdict": verdict, **fields}
    assert says in check.detail
    assert never not in check.detail
