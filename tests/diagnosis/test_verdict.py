"""What a diagnosis comes to: the verdict of all faces, and failed checks only where a finding stands."""

from __future__ import annotations

import dataclasses

import pytest

from commwatch.diagnosis.check import Branch, Check, CheckVerdict
from commwatch.diagnosis.marks.profiles import ALL_PROFILES, PROFILES, Asked
from commwatch.diagnosis.walk import overall
from commwatch.findings.finding import Finding, Severity
from commwatch.findings.verdict import Verdict, Word
from diagnosis.exposed import cause, finding, known_of


def came_to(
    *verdicts: CheckVerdict,
    findings: tuple[Finding, ...] = (),
    branch: Branch = "topology",
    what: str = "lanes",
    asked: Asked = ALL_PROFILES,
    failing_rules: tuple[str, ...] = (),
) -> tuple[Verdict, list[CheckVerdict]]:
    """The verdict on checks of a quantity of GPU0, and what became of them."""
    checks = [
        Check(branch=branch, what=what, where="GPU0", measured="x4", required="x16", verdict=one) for one in verdicts
    ]
    known = dataclasses.replace(known_of({}, findings, failing_rules=failing_rules), asked=asked)
    verdict, judged = overall(known, checks)
    return verdict, [one.verdict for one in judged]


def test_a_node_on_which_all_passed_is_ok() -> None:
    """In the words of every other face; the checks are counted below."""
    verdict, _ = came_to("passed", "passed", "not measured")

    assert verdict == Verdict("OK", "no warning or critical finding")


def test_a_check_without_a_finding_is_a_notice() -> None:
    """The other faces say OK of this node, and so does the diagnosis; it says what it saw."""
    verdict, judged = came_to("passed", "failed")

    assert verdict == Verdict("OK", "no warning or critical finding")
    assert judged == ["passed", "notice"]


@pytest.mark.parametrize(("severity", "word"), [("critical", "Critical"), ("warning", "Warning")])
def test_a_check_fails_beside_a_finding(severity: Severity, word: Word) -> None:
    """The finding is what the verdict names."""
    verdict, judged = came_to("failed", findings=(finding("gpu_lost", "gpu/0000:17:00.0", severity),))

    assert verdict == Verdict(word, "title of gpu_lost: 0000:17:00.0")
    assert judged == ["failed"]


@pytest.mark.parametrize(
    ("branch", "what", "asked"),
    [
        ("stress", "bandwidth under load", ALL_PROFILES),
        ("pattern", "fresh probe", ALL_PROFILES),
        ("profile", "7b: all_reduce bus bandwidth", Asked(PROFILES["7b"])),
    ],
)
def test_what_only_this_command_measures_fails_by_itself(branch: Branch, what: str, asked: Asked) -> None:
    """The daemon knows nothing of it; the line says what is and what should be, and how many more there are."""
    verdict, judged = came_to("failed", "failed", "passed", branch=branch, what=what, asked=asked)

    assert verdict == Verdict("Warning", f"{what} of GPU0: x4, required x16; and 1 more failed check")
    assert judged == ["failed", "failed", "passed"]


def test_a_profile_that_nobody_asked_for_does_not_fail() -> None:
    """A mark of hardware is no finding."""
    assert came_to("failed", branch="profile")[0].word == "OK"


def test_what_is_unknown_stays_unknown() -> None:
    """Whatever the checks say: the other faces say so too."""
    assert came_to("passed", failing_rules=("nvlink.down",))[0].word == "Unknown"


def test_the_likeliest_cause_leads() -> None:
    """Who reads one line reads which part it is."""
    one = finding("probe_bandwidth_low", "probe/all_reduce", causes=(cause("pcie_width_dropped", "gpu/0000:17:00.0"),))

    assert came_to("failed", findings=(one, one))[0].line == "title of pcie_width_dropped: 0000:17:00.0; and 1 more"
