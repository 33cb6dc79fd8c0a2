"""The driver as a whole: each reason for which it cannot be used is a finding with a cure of its own."""

from __future__ import annotations

from commwatch.findings.codes import CODES
from commwatch_exporters.state_words import DRIVER_FAULTS
from support.facts import codes_of, facts_of, seen_by
from support.passes import in_one_pass

METRIC = "commwatch_driver_unusable"


@in_one_pass(
    "reason, code, cure",
    [
        ("library_mismatch", "driver_mismatch", "reboot"),
        ("no_driver", "driver_not_loaded", "Secure Boot"),
        ("no_permission", "driver_refused", "/dev/nvidia"),
        ("no_gpu", "driver_without_gpus", "matching driver"),
        ("unreadable", "driver_failing", "nvidia-bug-report"),
    ],
)
def test_each_reason_is_a_finding_of_its_own(reason: str, code: str, cure: str) -> None:
    """It names NVML's answer, and what to do."""
    matches = seen_by("driver_mismatch", facts_of({METRIC: {(reason,): 1.0}}))

    assert codes_of(matches) == [(code, "node")]
    assert matches[0].evidence[0].value == DRIVER_FAULTS[reason][0]
    assert cure in CODES[code].next_step
    assert (CODES[code].severity, CODES[code].alert) == ("critical", "CommwatchDriverUnusable")


def test_a_driver_that_can_be_used_or_is_not_wanted_is_no_finding() -> None:
    """Reason none, and no word at all, as on a node without GPUs of NVIDIA."""
    assert seen_by("driver_mismatch", facts_of({METRIC: {("none",): 0.0}})) == []
    assert seen_by("driver_mismatch", facts_of({})) == []
