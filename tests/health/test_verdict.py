"""The verdict on the node: four words, by the most severe finding, and the cause that leads."""

from __future__ import annotations

from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.codes import CODES
from commwatch.findings.verdict import LOOK_SECONDS, WORDS, verdict_of
from health.reports import LINK, NOW, cause, fault, report
from support.passes import in_one_pass


@in_one_pass("code", sorted(CODES.keys() - {"rdma_functions_unread"}))
def test_the_word_is_that_of_the_severity(code: str) -> None:
    """Of each finding; its alert has the same severity, and information is OK."""
    verdict = verdict_of(report(fault(code)), NOW)

    assert (verdict.word, verdict.because) == (WORDS[CODES[code].severity], None)
    told = "no warning or critical finding" if verdict.word == "OK" else f"{CODES[code].title}: {LINK.words}"
    assert verdict.line == told


def test_fine_is_not_said_of_virtual_functions() -> None:
    """Nothing wakes anybody, and the line says what is not known."""
    verdict = verdict_of(report(fault("rdma_functions_unread")), NOW)

    line = "no warning or critical finding; not read: what virtual functions of RDMA adapters send and lose"
    assert (verdict.word, verdict.line) == ("OK", line)


def test_a_cause_is_no_finding_of_its_own() -> None:
    """It stands in the severity and the line of what it explains."""
    assert verdict_of(report(cause("nvlink_down")), NOW).word == "OK"


@in_one_pass(
    "said, because, line",
    [
        (report(maintenance="upgrade"), "paused", "the daemon is paused (upgrade)"),
        (report(looked_at=None), "not_looked_yet", "has not looked at the node yet"),
        (report(looked_at=NOW - LOOK_SECONDS - 1), "stale", "61 s old, more than 60 s"),
        (report(looked_at=NOW + 10), "stale", "10 s ahead of the clock"),
        (report(failing_rules=("nvlink.down",)), "not_read", "a rule fails (nvlink.down)"),
        (
            report(unanswered=("nvml_gpu",)),
            "starved",
            "the node is starved: nvml_gpu had no answer",
        ),
        (report(unanswered=("network", "pci")), "starved", "the node is starved: network and 1 more had no answer"),
        (report(has_gpus=False), "no_gpu", "no GPU is read at present"),
    ],
)
def test_what_cannot_be_said_is_unknown(said: FindingsDocument, because: str, line: str) -> None:
    """No fault that is seen means nothing where none could be."""
    verdict = verdict_of(said, NOW)

    assert (verdict.word, verdict.because) == ("Unknown", because)
    assert line in verdict.line


def test_what_was_found_before_a_pause_is_named() -> None:
    """It may still be so; nobody looks now."""
    paused = verdict_of(report(fault("nvlink_down"), maintenance="upgrade"), NOW)

    assert paused.line == f"the daemon is paused (upgrade); before: NVLink is down: {LINK.words}"


def test_a_fault_that_is_seen_stands_where_other_things_are_not_seen() -> None:
    """A rule that fails, no GPU, or a node that is starved."""
    for doubt in ({"failing_rules": ("nvlink.down",)}, {"has_gpus": False}, {"unanswered": ("pci",)}):
        assert verdict_of(report(fault("nvlink_down"), **doubt), NOW).word == "Critical"


def test_a_look_at_the_edge_of_its_age_counts() -> None:
    """A look of exactly the greatest age is still one of now."""
    assert verdict_of(report(looked_at=NOW - LOOK_SECONDS), NOW).word == "OK"
