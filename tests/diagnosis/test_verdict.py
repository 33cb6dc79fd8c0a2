"""The verdict of a diagnosis: what weighs most is told, and nothing is called healthy that was not looked at."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.document import Verdict
from commwatch.diagnosis.overall import verdict_of
from commwatch.findings.api_documents import STALE_SECONDS, FindingRecord, FindingsDocument
from commwatch.findings.finding import Severity
from diagnosis.exposed import cause, finding

NOW = 1_800_000_000.0


@dataclass(frozen=True)
class Node:
    """What a verdict is made of; a healthy node unless told otherwise."""

    findings: tuple[FindingRecord, ...] = ()
    checks: tuple[CheckVerdict, ...] = ("passed", "passed")
    looked_at: float | None = NOW - 5
    failing_rules: tuple[str, ...] = ()
    has_gpus: bool = True

    @property
    def verdict(self) -> Verdict:
        checks = [
            Check(branch="topology", what="lanes", where="GPU0", measured="x4", required="x16", verdict=one)
            for one in self.checks
        ]
        told = FindingsDocument(
            version="1", time=NOW, simulated=None, maintenance=None, thresholds="", looked_at=self.looked_at,
            failing_rules=self.failing_rules, findings=self.findings,
        )  # fmt: skip
        return verdict_of(self.findings, checks, told, has_gpus=self.has_gpus)


def test_a_node_on_which_all_passed_is_healthy() -> None:
    """What was not measured is counted beside what passed."""
    assert Node(checks=("passed", "passed", "not measured")).verdict == Verdict(
        "healthy", "2 checks passed, none failed; 1 was not measured"
    )


@pytest.mark.parametrize(
    ("node", "line"),
    [
        (Node(looked_at=None), "only just started"),
        (Node(looked_at=NOW - STALE_SECONDS - 1), "looked last"),
        (Node(failing_rules=("nvlink.down",)), "rules failed: nvlink.down"),
        (Node(has_gpus=False), "no GPU"),
        (Node(checks=("not measured", "does not apply")), "nothing was measured"),
    ],
)
def test_what_was_not_looked_at_is_unknown(node: Node, line: str) -> None:
    """No fault that is seen means nothing where none could be."""
    assert node.verdict.word == "unknown"
    assert line in node.verdict.line


def test_a_look_at_the_edge_of_its_age_counts() -> None:
    """A look of exactly the greatest age is still one of now."""
    assert Node(looked_at=NOW - STALE_SECONDS).verdict.word == "healthy"


def test_a_failed_check_degrades_a_node_without_findings() -> None:
    """The line says what is and what should be, and how many more there are."""
    verdict = Node(checks=("passed", "failed", "failed", "failed")).verdict
    assert verdict == Verdict("degraded", "lanes of GPU0: x4, required x16; and 2 more failed checks")


@pytest.mark.parametrize(("severity", "word"), [("critical", "broken"), ("warning", "degraded")])
def test_a_grave_finding_decides_whatever_was_not_looked_at(severity: Severity, word: str) -> None:
    """A fault that is seen stands, also where other things cannot be seen."""
    one = finding("gpu_lost", "gpu/0000:17:00.0", severity)
    assert Node(findings=(one,), looked_at=None, checks=("failed",)).verdict.word == word


def test_the_likeliest_cause_stands_first_in_the_line() -> None:
    """Who reads one line reads which part it is; the symptom stands behind it."""
    one = finding("probe_bandwidth_low", "probe/all_reduce", causes=(cause("pcie_width_dropped", "gpu/0000:17:00.0"),))
    assert Node(findings=(one, one)).verdict.line == (
        "title of pcie_width_dropped: 0000:17:00.0, the likeliest cause of: "
        "title of probe_bandwidth_low: all_reduce; and 1 more"
    )


def test_information_alone_is_a_notice() -> None:
    """Nothing has to be done, and nothing is hidden."""
    one = finding("nvlink_never_up", "nvlink/0000:17:00.0/3", "info")
    assert Node(findings=(one,)).verdict.word == "notices"
