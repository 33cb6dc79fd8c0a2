"""What a daemon's report means for a scheduler: the pure part of healthcheck."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.finding import SEVERITIES, Cause, Component, Evidence, Finding, Match
from commwatch.findings.health import (
    BLIND,
    DRAIN_LIST,
    OF_JOBS,
    Asked,
    drain_reason,
    exit_code_of,
    judge,
    one_line,
    unknown,
)
from commwatch.findings.register import Register
from commwatch.findings.verdict import WORDS, UnreadSource, Word
from commwatch.workers.sources import SOURCES
from health.reports import LINK, LOOKED, NOW, cause, fault, report
from support.facts import facts_of, seen_by
from support.findings import Observer, finding
from support.findings import cause as cause_of
from support.passes import in_one_pass

CALLS_FAIL, BY_CONFIGURATION = "calls of the driver about it", "expected by the configuration"
"""Evidence, as the rules say it."""
PLAIN = Asked(NOW, 60.0)
SLURM = Asked(NOW, 60.0, slurm=True)
LISTED = "nvlink_down"
UNLISTED = "probe_bandwidth_low"


def test_the_drain_list_names_critical_faults_that_exist() -> None:
    """No symptom, no state, no warning; and no code that no rule can match."""
    for code in DRAIN_LIST:
        assert (CODES[code].severity, CODES[code].role) == ("critical", "fault"), code
    assert set(CODES) >= BLIND


def test_a_healthy_node_is_fine_for_both() -> None:
    """Exit code 0, and information is no problem."""
    for asked in (PLAIN, SLURM):
        health = judge(report(fault("nvlink_recovered")), asked)
        assert (health.verdict, health.exit_code, health.because) == ("OK", 0, None)


@in_one_pass("code", [LISTED, UNLISTED, "collector_failing"])
def test_for_a_detector_every_warning_is_a_problem(code: str) -> None:
    """Exit code 1 and what it is first: node-problem-detector cuts the line after 80 characters."""
    health = judge(report(fault(code)), PLAIN)

    assert (health.verdict, health.exit_code) == (WORDS[CODES[code].severity], 1)
    assert health.line.startswith(f"{health.verdict}: {CODES[code].title}: GPU0 link 3")
    assert not health.drain_for


def test_a_detector_is_told_of_a_finding_that_is_about_to_close() -> None:
    """It is open until it closes; only a drain asks for more."""
    assert judge(report(fault(LISTED, last_seen=LOOKED - 30)), PLAIN).verdict == "Critical"


@in_one_pass("code", sorted(DRAIN_LIST))
def test_for_slurm_a_fresh_fault_of_the_drain_list_is_a_problem(code: str) -> None:
    """Exit code 1, with the fault to drain for; as a finding or as the cause of one."""
    for one in (fault(code), cause(code)):
        health = judge(report(fault(UNLISTED), one), SLURM)
        assert (health.verdict, health.exit_code, health.drain_for) == ("Critical", 1, (one,))


def test_what_the_configuration_alone_asks_for_drains_nothing() -> None:
    """It may be wrong, and then would drain a fleet; for a detector it is a problem as any other."""
    wanted = structs.replace(fault("parts_never_seen"), evidence=(Evidence(BY_CONFIGURATION, 8.0),))

    assert judge(report(wanted), SLURM).drain_for == ()
    assert judge(report(wanted), SLURM).exit_code == 0
    assert judge(report(wanted), PLAIN).exit_code == 1


@in_one_pass(
    "what, seconds, drains",
    [("GPU state", 0.0, False), ("GPU state", 59.0, False), ("GPU state", 60.0, True), (CALLS_FAIL, 0.0, True)],
)
@in_one_pass("is_cause", [False, True])
def test_a_gpu_whose_calls_do_not_return_drains_after_a_minute(
    what: str, seconds: float, drains: bool, is_cause: bool
) -> None:
    """The driver waits up to 45 s for a GPU; one that fails every call is drained at once."""
    part, seen = Component("gpu", "0000:17:00.0", "GPU0"), (Evidence(what, "all fail"),)
    hangs = finding("gpu_not_answering", part, LOOKED - 3600, seen, last_seen=LOOKED, seen_seconds=seconds)
    if is_cause:
        why = cause_of(hangs.code, part, evidence=seen, last_seen=LOOKED, seen_seconds=seconds)
        hangs = finding("probe_failing", Component("probe", "all_reduce"), LOOKED, causes=(why,))
    document = report(hangs)

    health = judge(document, SLURM)
    assert (health.exit_code, bool(health.drain_for)) == ((1, True) if drains else (0, False))
    assert health.verdict != "OK"
    assert judge(document, PLAIN).exit_code == 1


@in_one_pass(
    "looks, drains",
    [
        ([(10.0, "hangs")] * 5, False),
        ([(10.0, "hangs")] * 6, True),
        ([(10.0, "hangs")] * 2 + [(10.0, "answers")] * 3 + [(10.0, "hangs")] * 6, False),
        ([(10.0, "hangs")] * 2 + [(10.0, "answers")] * 3 + [(10.0, "hangs")] * 7, True),
        ([(10.0, "hangs")] * 2 + [(10.0, "is not read")] + [(10.0, "hangs")] * 6, False),
        ([(10.0, "hangs")] * 4 + [(3600.0, "hangs")], False),
        ([(10.0, "hangs")] * 3 + [(50.0, "hangs")], False),
        ([(10.0, "hangs")] * 5 + [(-3600.0, "hangs")], False),
        ([(10.0, "hangs")] * 3 + [(-3600.0, "hangs")] + [(10.0, "hangs")] * 5, False),
        ([(10.0, "hangs")] * 3 + [(-3600.0, "hangs")] + [(10.0, "hangs")] * 6, True),
        ([(10.0, "hangs")] * 3 + [(-50.0, "hangs")] + [(10.0, "hangs")] * 3, True),
        ([(20.0, "hangs")] * 3, True),
    ],
)
def test_the_minute_of_a_hang_is_that_of_the_looks_that_see_it_in_a_row(
    looks: list[tuple[float, str]], drains: bool
) -> None:
    """An answer in between starts it again although the finding stays open; a wall clock that is set adds nothing."""
    hang = Match("gpu_not_answering", Component("gpu", "0000:17:00.0", "GPU0"), (Evidence("GPU state", "hangs"),))
    register, now = Register(), LOOKED
    register.update([hang], Observer(), now)
    for seconds, match in looks:
        now += seconds
        is_read = match != "is not read"
        register.update([hang] if match == "hangs" else [], Observer(observable=is_read), now)
    found = join(register.open_incidents())

    health = judge(report(*found, looked_at=now), replace(SLURM, now=now))

    assert health.exit_code == int(drains)
    assert [one.code for one in health.drain_for] == ["gpu_not_answering"] * drains


@in_one_pass("code", sorted(CODES.keys() - DRAIN_LIST.keys()))
def test_for_slurm_no_other_finding_is_a_problem(code: str) -> None:
    """Exit code 0 whatever is open; what blinds commwatch is unknown, the rest is named."""
    health = judge(report(fault(code)), SLURM)

    assert (health.exit_code, health.drain_for) == (0, ())
    assert health.verdict == ("Unknown" if code in BLIND else WORDS[CODES[code].severity])
    assert CODES[code].severity == "info" or CODES[code].title in health.reason


DOUBTFUL = {
    "simulated": report(fault(LISTED), simulated="h100x8"),
    "paused": report(fault(LISTED), maintenance="driver-upgrade"),
    "not_looked_yet": report(fault(LISTED), looked_at=None),
    "stale": report(fault(LISTED, last_seen=NOW - 61), looked_at=NOW - 61),
    "a look in the future": report(fault(LISTED, last_seen=NOW + 10), looked_at=NOW + 10),
}
BECAUSE = {"a look in the future": "stale"}


@in_one_pass("doubt", DOUBTFUL)
def test_what_is_in_doubt_is_unknown_and_never_drains(doubt: str) -> None:
    """2 for a detector, 0 for Slurm, 1 where the operator wants it closed; in no case anything to drain for."""
    for asked, code in (
        (PLAIN, 2),
        (SLURM, 0),
        (dataclasses.replace(PLAIN, fail_closed=True), 1),
        (dataclasses.replace(SLURM, fail_closed=True), 1),
    ):
        health = judge(DOUBTFUL[doubt], asked)
        assert (health.verdict, health.because) == ("Unknown", BECAUSE.get(doubt, doubt))
        assert (health.exit_code, health.drain_for) == (code, ())


def test_a_simulated_node_says_what_it_has() -> None:
    """A rehearsal shows the finding, and that nothing of it is real."""
    reason = judge(DOUBTFUL["simulated"], SLURM).reason

    assert "simulated (h100x8)" in reason
    assert "NVLink is down: GPU0 link 3" in reason


def test_a_look_is_fresh_up_to_the_limit() -> None:
    """Exactly as old as allowed is not stale."""
    assert judge(report(looked_at=NOW - 60), SLURM).verdict == "OK"
    assert judge(report(looked_at=NOW - 60.1), SLURM).verdict == "Unknown"


@in_one_pass("last_seen", [LOOKED - 10, LOOKED + 20, None])
def test_a_fault_that_the_last_look_did_not_see_drains_nothing(last_seen: float | None) -> None:
    """It is gone and about to close, or its part is not read: unknown, and stale."""
    health = judge(report(fault(LISTED, last_seen=last_seen)), SLURM)

    assert (health.verdict, health.because, health.exit_code) == ("Unknown", "stale", 0)
    assert health.drain_for == ()


def test_a_failing_rule_is_unknown() -> None:
    """What it would match cannot be ruled out; what others match still counts."""
    failing = {"failing_rules": ("down",)}

    assert judge(report(**failing), PLAIN).exit_code == 2
    assert judge(report(**failing), SLURM).because == "not_read"
    assert judge(report(fault(LISTED), **failing), SLURM).exit_code == 1


def xid_fault(*xids: str) -> Finding:
    """What the rules make of Xids, as healthcheck gets it."""
    name = "commwatch_gpu_xid_events_total"
    counts = {("0", "0000:17:00.0", xid): 1.0 for xid in xids}
    facts = facts_of({name: counts}, {60.0: {name: dict.fromkeys(counts, 0.0)}})
    match = min(seen_by("xid_fabric", facts), key=lambda one: SEVERITIES.index(CODES[one.code].severity))
    return fault(match.code, events=tuple(fact.event for fact in match.evidence))


@in_one_pass("xid", ["144", "145", "146", "147", "148", "149", "155"])
def test_an_xid_of_nvlink_5_that_no_line_calls_fatal_drains_nothing(xid: str) -> None:
    """Without the kernel log it may be harmless; a job with a wrong address would drain one node after another."""
    health = judge(report(xid_fault(xid)), SLURM)

    assert (health.verdict, health.exit_code, health.drain_for) == ("Warning", 0, ())
    assert judge(report(xid_fault(xid)), PLAIN).exit_code == 1


@in_one_pass(
    "code, key, verdict, exit_code",
    [
        ("worker_stuck", "jobs", "Warning", 0),
        ("device_unread", "nccl_logs/a path of job files", "Warning", 0),
        ("collector_failing", "nccl_logs", "Warning", 0),
        ("worker_stuck", "nvml", "Unknown", 1),
        ("collector_failing", "rdma", "Unknown", 1),
    ],
)
def test_a_file_server_that_is_gone_fails_no_prolog(code: str, key: str, verdict: str, exit_code: int) -> None:
    """Job files that are not read leave nothing unknown of the node; else one server would drain the fleet."""
    unread = finding(code, Component("daemon", key, key), LOOKED - 3600, last_seen=LOOKED)

    health = judge(report(unread), replace(SLURM, fail_closed=True))
    assert (health.verdict, health.exit_code) == (verdict, exit_code)


def test_what_reads_the_files_of_jobs_is_known() -> None:
    rows = [row for row in SOURCES.values() if row.of_jobs]
    assert {one.name for row in rows for one in row.collectors} | {row.reader.name for row in rows} == OF_JOBS


def test_an_xid_of_the_hardware_drains() -> None:
    """Alone, and beside one that may be harmless; of 150 NVIDIA's catalogue has none that is."""
    for one in (xid_fault("74"), xid_fault("79"), xid_fault("150"), xid_fault("74", "145")):
        assert judge(report(one), SLURM).drain_for == (one,)


def test_several_faults_are_counted() -> None:
    """The most severe by name, the others by number."""
    reason = judge(report(fault(LISTED), fault("gpu_lost"), fault(UNLISTED)), SLURM).reason

    assert reason == f"NVLink is down: {LINK.words}; and 1 more"


@in_one_pass(
    "word, slurm, closed, drains, code",
    [
        ("OK", False, False, False, 0), ("OK", True, False, False, 0), ("OK", True, True, False, 0),
        ("OK", False, True, False, 0),
        ("Warning", False, False, False, 1), ("Warning", True, False, False, 0), ("Warning", True, True, False, 0),
        ("Critical", False, False, False, 1), ("Critical", True, False, False, 0), ("Critical", True, False, True, 1),
        ("Unknown", False, False, False, 2), ("Unknown", True, False, False, 0), ("Unknown", True, True, False, 1),
        ("Unknown", False, True, False, 1),
    ],
)  # fmt: skip
def test_exit_codes(word: Word, slurm: bool, closed: bool, drains: bool, code: int) -> None:
    """The table of docs/using/healthcheck.md."""
    assert exit_code_of(word, slurm=slurm, fail_closed=closed, drains=drains) == code


def report_of(faults: Iterable[Finding | Cause], **about: Any) -> FindingsDocument:
    return report(*faults, **about)


REPORTS = st.builds(
    report_of,
    looked_at=st.none() | st.floats(NOW - 1000, NOW + 1000),
    simulated=st.sampled_from([None, "h100x8"]),
    maintenance=st.sampled_from([None, "upgrade"]),
    failing_rules=st.sampled_from([(), ("down",)]),
    faults=st.lists(
        st.builds(
            fault,
            st.sampled_from(sorted(CODES)),
            last_seen=st.none() | st.floats(NOW - 1000, NOW + 1000),
        )
        | st.builds(cause, st.sampled_from(sorted(CODES)), last_seen=st.none() | st.floats(NOW - 1000, NOW + 1000)),
        max_size=4,
    ).map(tuple),
)


@given(said=REPORTS, fail_closed=st.booleans())
def test_nothing_is_drained_for_but_a_fresh_listed_fault_of_a_real_node_at_work(
    said: FindingsDocument, fail_closed: bool
) -> None:
    """Whatever a daemon says: written without a look at how it is judged."""
    health = judge(said, Asked(NOW, 60.0, slurm=True, fail_closed=fail_closed))

    is_live = said.simulated is None and said.maintenance is None and said.looked_at is not None
    is_recent = said.looked_at is not None and -5 <= NOW - said.looked_at <= 60
    for one in health.drain_for:
        assert is_live
        assert is_recent
        assert one in said.faults
        assert one.code in DRAIN_LIST
        assert one.last_seen is not None
        assert said.looked_at is not None
        assert abs(one.last_seen - said.looked_at) < 1
    assert health.verdict == "Critical" or not health.drain_for
    assert health.exit_code == (1 if health.drain_for or (fail_closed and health.verdict == "Unknown") else 0)
    assert (health.because is not None) == (health.verdict == "Unknown")


@given(st.text())
def test_an_answer_is_one_line(text: str) -> None:
    """Whatever an error or a part is called; a terminal gets no control character."""
    line = unknown("error", text, slurm=True, fail_closed=False).line

    assert line.isprintable()
    assert len(line.splitlines()) == 1
    assert one_line(text) == one_line(one_line(text))


@given(st.text())
def test_a_reason_for_slurm_is_plain(where: str) -> None:
    """Short ASCII without quotes, equals signs and line breaks: it stands in one argument of scontrol."""
    reason = drain_reason(
        (structs.replace(fault(LISTED), component=Component("gpu", where, where).record), fault("gpu_lost"))
    )

    assert reason.startswith("commwatch: nvlink_down: ")
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) <= 180
    assert not set("\"'=\\$`") & set(reason)


SILENT = UnreadSource("nvml", 31.0, "Unknown Error")
BESIDE = UnreadSource("kernel_log", 31.0, "no permission", lists_parts=False)


@in_one_pass(
    "codes, unread, plain, slurm",
    [
        ((), SILENT, ("Unknown", 2), ("Unknown", 0)),
        ((), BESIDE, ("Unknown", 2), ("Unknown", 0)),
        ((UNLISTED,), SILENT, ("Unknown", 2), ("Unknown", 0)),
        ((UNLISTED,), BESIDE, ("Warning", 1), ("Unknown", 0)),
        (("driver_calls_failing",), SILENT, ("Critical", 1), ("Critical", 1)),
        (("driver_silent",), SILENT, ("Critical", 1), ("Critical", 1)),
        (("driver_failing",), SILENT, ("Critical", 1), ("Critical", 1)),
        (("source_unread",), SILENT, ("Critical", 1), ("Critical", 1)),
        (("gpu_not_answering",), SILENT, ("Critical", 1), ("Critical", 1)),
    ],
)
def test_a_node_without_a_current_reading_is_never_ok(
    codes: tuple[str, ...], unread: UnreadSource, plain: tuple[Word, int], slurm: tuple[Word, int]
) -> None:
    """Unknown with the reason, whatever warning is open about other parts; a drain once it is Critical by its rule."""
    told = report(*map(fault, codes), unread=(unread,))

    for asked, expected in ((PLAIN, plain), (SLURM, slurm)):
        health = judge(told, asked)
        assert (health.verdict, health.exit_code) == expected
        if health.verdict == "Unknown":
            assert health.because == "not_read"
            assert f"{unread.source} gave no reading for 31 s ({unread.why})" in health.reason
