"""What a diagnosis comes to: the verdict of all faces, of which a check that the daemon knows is no part."""

from __future__ import annotations

import dataclasses

import pytest

from commwatch.diagnosis.check import Branch, Check, CheckVerdict
from commwatch.diagnosis.marks.profiles import ALL_PROFILES, PROFILES, Asked
from commwatch.diagnosis.walk import overall
from commwatch.findings.finding import Finding, Severity
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.verdict import Verdict, Word
from diagnosis.exposed import cause, finding, known_of
from support.passes import in_one_pass


def came_to(
    *verdicts: CheckVerdict,
    findings: tuple[Finding, ...] = (),
    branch: Branch = "topology",
    what: str = "lanes",
    asked: Asked = ALL_PROFILES,
    failing_rules: tuple[str, ...] = (),
) -> Verdict:
    """The verdict on checks of a quantity of GPU0."""
    checks = [
        Check(branch=branch, what=what, where="GPU0", measured="x4", required="x16", verdict=one) for one in verdicts
    ]
    known = dataclasses.replace(known_of({}, findings, failing_rules=failing_rules), asked=asked)
    return overall(known, checks)


def test_a_check_is_no_verdict_of_its_own() -> None:
    """In the words of every other face; the checks are counted below."""
    cases: tuple[tuple[CheckVerdict, ...], ...] = (("passed", "passed", "not measured"), ("passed", "failed"))
    for verdicts in cases:
        assert came_to(*verdicts) == Verdict("OK", "no warning or critical finding")


@pytest.mark.parametrize(("severity", "word"), [("critical", "Critical"), ("warning", "Warning")])
def test_a_finding_is_what_the_verdict_names(severity: Severity, word: Word) -> None:
    """Whatever checks fail beside it."""
    verdict = came_to("failed", findings=(finding("gpu_lost", "gpu/0000:17:00.0", severity),))

    assert verdict == Verdict(word, "title of gpu_lost: 0000:17:00.0")


@in_one_pass(
    "branch, what, asked",
    [
        ("stress", "bandwidth under load", ALL_PROFILES),
        ("pattern", "fresh probe", ALL_PROFILES),
        ("profile", "7b: all_reduce bus bandwidth", Asked(PROFILES["7b"])),
    ],
)
def test_what_only_this_command_measures_fails_by_itself(branch: Branch, what: str, asked: Asked) -> None:
    """The daemon knows nothing of it; the line says what is and what should be, and how many more there are."""
    verdict = came_to("failed", "failed", "passed", branch=branch, what=what, asked=asked)

    assert verdict == Verdict("Warning", f"{what} of GPU0: x4, required x16; and 1 more failed check")


def test_a_profile_that_nobody_asked_for_does_not_fail() -> None:
    """A mark of hardware is no finding."""
    assert came_to("failed", branch="profile").word == "OK"


def test_what_is_unknown_stays_unknown() -> None:
    """Whatever the checks say: the other faces say so too."""
    assert came_to("passed", failing_rules=("nvlink.down",)).word == "Unknown"


def test_the_likeliest_cause_leads_and_counts_once() -> None:
    """Who reads one line reads which part it is, and how many others are broken."""
    narrow = cause("pcie_width_dropped", "gpu/0000:17:00.0")
    symptoms = tuple(
        finding("probe_bandwidth_low", f"probe/{name}", causes=(narrow,)) for name in ("all_reduce", "pairs")
    )
    down = finding("rdma_port_down", "port/mlx5_0/1")

    assert came_to("failed", findings=symptoms).line == "title of pcie_width_dropped: 0000:17:00.0"
    assert came_to("failed", findings=(*symptoms, down)).line == (
        "title of pcie_width_dropped: 0000:17:00.0; and 1 more"
    )


UNMEASURED_FAMILIES = {
    "NVLink errors", "PCIe errors", "Kernel log", "Network adapters", "Network interfaces", "Between nodes", "Jobs",
    "The daemon itself", "Use of GPUs by jobs", "Stuck jobs",
}  # fmt: skip
"""Events, error counters, and what is no part of a GPU's way: the findings alone name them."""
UNMEASURED = {
    "gpu_recovery_needed", "gpu_recovery_other", "gpu_slowed_down", "fabric_unhealthy", "fabric_limited",
    "fabric_recovering", "fabric_misconfigured", "fabric_manager_down", "fabric_service_down", "nvlink_reduced",
    "nvlink_below_siblings", "c2c_down", "nvlink_flapping", "ethernet_flapping", "probe_failing",
    "probe_error_rate_rise", "probe_wrong_result",
}  # fmt: skip
"""Of the other families."""


def test_a_code_names_the_checks_that_fail_by_it_or_is_of_what_none_measures() -> None:
    """A new warning or critical code has to be decided on: a check of its quantity would else pass over it."""
    grave = [(rules.name, code) for rules in RULE_SETS for code in rules.codes if code.severity != "info"]

    silent = {code.name for family, code in grave if not code.quantities and family not in UNMEASURED_FAMILIES}
    named = {code.name for family, code in grave if code.quantities and family in UNMEASURED_FAMILIES}
    assert (silent, named) == (UNMEASURED, set())
