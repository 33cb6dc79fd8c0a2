"""The kernel log: Xids and SXids of the last hour, by what they mean for communication."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import commwatch
from commwatch.findings.codes import CODES
from commwatch.findings.finding import format_evidence
from commwatch.findings.health import DRAIN_LIST
from commwatch.node.xids import meanings
from support.facts import Numbers, before, codes_by, facts_of, seen_by, sxids_told, xids_told
from support.passes import in_one_pass

DATA = Path(commwatch.__file__).parent / "data"
ENDS_WORK = {"RESET_GPU", "RESTART_BM", "RESTART_VM", "WORKFLOW_XID_48"}
"""Immediate actions of NVIDIA's Xid catalogue by which the GPU or the node must be reset."""

GPU0 = ("0", "0000:17:00.0")
XIDS = "commwatch_gpu_xid_events_total"
SXIDS = "commwatch_nvswitch_sxid_events_total"
FATAL_XIDS, FATAL_SXIDS = "commwatch_gpu_xid_fatal_events_total", "commwatch_nvswitch_sxid_fatal_events_total"
NONFATAL_XIDS = "commwatch_gpu_xid_nonfatal_events_total"
MESSAGES = "commwatch_kernel_log_gpu_messages_total"
SWITCH = "0000:05:00.0"


def xids(code: str, count: float) -> Numbers:
    return {XIDS: {(*GPU0, "74"): 0.0, (*GPU0, code): count}}


def test_the_lists_of_numbers_are_those_of_the_data() -> None:
    """What data/xid.yaml and data/sxid.yaml call critical or a warning, with the names of there."""

    def told_by(xid: Mapping[str, Any]) -> str | None:
        is_of_fabric, gravity, action = xid.get("fabric", False), xid["severity"], xid.get("action")
        if gravity == "critical" and is_of_fabric:
            return "xid_nonfatal" if "Fatal: " in xid["advice"] else "xid_fabric"
        has_ended_work = action in ENDS_WORK or (action == "RESTART_APP" and xid["component"] == "memory")
        return "xid_gpu" if gravity == "critical" or has_ended_work else None

    xids, sxids = (yaml.safe_load((DATA / f"{kind}.yaml").read_text(encoding="utf-8")) for kind in ("xid", "sxid"))
    for code in ("xid_fabric", "xid_gpu", "xid_nonfatal"):
        names = {f"{number}": one["name"] for number, one in xids.items() if told_by(one) == code}
        note = ", not known whether fatal" * (code == "xid_nonfatal")
        assert xids_told()[code] == {number: f"Xid {number}: {name}{note}" for number, name in names.items()}
    assert {"46", "48", "64", "94"} <= xids_told()["xid_gpu"].keys()
    for code, severity in (("sxid_fatal", "critical"), ("sxid_warning", "warning")):
        assert set(sxids_told()[code]) == {f"{number}" for number, one in sxids.items() if one["severity"] == severity}


@in_one_pass(
    "xid, code",
    [("79", "xid_fabric"), ("150", "xid_fabric"), ("119", "xid_gpu"), ("48", "xid_gpu"), ("94", "xid_gpu")],
)
def test_an_xid_is_told_for_an_hour(xid: str, code: str) -> None:
    """It opens with the first one, and closes when the last is an hour ago."""
    now, history = xids(xid, 1.0), {10.0: xids(xid, 0.0)}

    [match] = seen_by("xid_fabric", facts_of(now, history))
    assert (match.code, match.component.identity) == (code, "gpu/0000:17:00.0")
    [evidence] = match.evidence
    assert (match.next_step, evidence.meaning) == (
        meanings("xid")[int(xid)].cure, meanings("xid")[int(xid)].meaning)  # fmt: skip
    assert re.fullmatch(rf"Xid {xid}: .+, once, \d\d:\d\d UTC", format_evidence(evidence))
    assert seen_by("xid_fabric", facts_of(now, {3700.0: xids(xid, 0.0), 3600.0: now})) == []


def test_an_xid_that_was_never_exposed_before_counts() -> None:
    """The series comes with its first event."""
    nothing_yet = {XIDS: {(*GPU0, "74"): 0.0}}

    assert len(seen_by("xid_fabric", facts_of(xids("119", 1.0), {10.0: nothing_yet}))) == 1


@in_one_pass("xid", ["13", "31", "43", "45", "108", "121", "137", "154", "176", "other"])
def test_job_noise_is_no_finding(xid: str) -> None:
    """A program's own fault says nothing of the node, and neither do errors that were corrected."""
    assert seen_by("xid_fabric", facts_of(xids(xid, 5.0), {10.0: xids(xid, 0.0)})) == []


def test_what_is_not_read_is_not_told() -> None:
    for code in ("xid_fabric", "sxid_fatal", "kernel_log_lost"):
        assert seen_by(code, facts_of({})) == []


def test_several_xids_of_one_gpu_are_one_finding_of_each_kind() -> None:
    """The evidence has each of them."""
    now: Numbers = {XIDS: {(*GPU0, "74"): 2.0, (*GPU0, "150"): 1.0, (*GPU0, "119"): 1.0}}
    history = {10.0: before(now, {XIDS: dict.fromkeys(now[XIDS], 1.0)})}

    found = {one.code: one for one in seen_by("xid_fabric", facts_of(now, history))}
    assert found.keys() == {"xid_fabric", "xid_gpu"}
    assert [one.value for one in found["xid_fabric"].evidence] == [1.0, 1.0]


@in_one_pass(
    "xid, count, nonfatal, fatal, found",
    [
        # the kernel log is not read: NVIDIA's catalogue has both kinds of most numbers, of 150 only fatal ones
        *((xid, 1.0, 0.0, 0.0, {"xid_nonfatal": 1.0}) for xid in ("144", "145", "146", "147", "148", "149", "155")),
        ("150", 1.0, 0.0, 0.0, {"xid_fabric": 1.0}),
        ("74", 1.0, 0.0, 0.0, {"xid_fabric": 1.0}),
        # its line says which it was
        ("149", 1.0, 0.0, 1.0, {"xid_fabric": 1.0}),
        ("155", 1.0, 0.0, 1.0, {"xid_fabric": 1.0}),
        ("155", 1.0, 1.0, 0.0, {"xid_nonfatal": 1.0}),
        ("150", 1.0, 1.0, 0.0, {"xid_nonfatal": 1.0}),
        ("149", 3.0, 2.0, 1.0, {"xid_fabric": 1.0, "xid_nonfatal": 2.0}),
    ],
)
def test_an_xid_of_nvlink_5_is_as_grave_as_its_line_says(
    xid: str, count: float, nonfatal: float, fatal: float, found: Mapping[str, float]
) -> None:
    """Where it is not read, nobody is woken by a number that may be harmless, and nothing calls it so."""
    now: Numbers = {**xids(xid, count), NONFATAL_XIDS: {(*GPU0, xid): nonfatal}, FATAL_XIDS: {(*GPU0, xid): fatal}}

    seen = seen_by("xid_fabric", facts_of(now, {10.0: before(now, {**now})}))
    assert {one.code: one.evidence[0].value for one in seen} == found
    assert {code: CODES[code].severity for code in ("xid_fabric", "xid_nonfatal")} == {
        "xid_fabric": "critical", "xid_nonfatal": "warning"}  # fmt: skip


def test_an_sxid_is_as_grave_as_its_line_says() -> None:
    """One number can be either."""
    nonfatal = "commwatch_nvswitch_sxid_nonfatal_events_total"
    history: dict[float, Numbers] = {10.0: {SXIDS: {(SWITCH, "12020"): 0.0}}}
    now: Numbers = {SXIDS: {(SWITCH, "12020"): 3.0}, nonfatal: {(SWITCH, "12020"): 2.0}}

    found = {one.code: one.evidence[0].value for one in seen_by("sxid_fatal", facts_of(now, history))}
    assert found == {"sxid_fatal": 1.0, "sxid_warning": 2.0}
    now = {SXIDS: {(SWITCH, "12020"): 2.0}, nonfatal: {(SWITCH, "12020"): 2.0}}
    assert [one.code for one in seen_by("sxid_fatal", facts_of(now, history))] == ["sxid_warning"]


@in_one_pass("xid, is_its_own", [("62", True), ("31", False), ("92", False), ("94", False)])
def test_the_advice_for_a_lesser_event_is_not_given_for_a_fatal_one(xid: str, is_its_own: bool) -> None:
    """A number that a program can cause usually asks to look at the program; called fatal, the GPU is at fault."""
    now: Numbers = {**xids(xid, 1.0), "commwatch_gpu_xid_fatal_events_total": {(*GPU0, xid): 1.0}}

    [match] = seen_by("xid_fabric", facts_of(now, {10.0: xids(xid, 0.0)}))
    assert match.code == "xid_fatal"
    assert match.evidence[0].meaning == meanings("xid")[int(xid)].meaning
    assert match.next_step == (meanings("xid")[int(xid)].cure if is_its_own else "")


@in_one_pass("sxid", ["10004", "12021", "12028"])
def test_nor_for_a_fatal_event_of_a_switch(sxid: str) -> None:
    fatal = "commwatch_nvswitch_sxid_fatal_events_total"
    now: Numbers = {SXIDS: {(SWITCH, sxid): 1.0}, fatal: {(SWITCH, sxid): 1.0}}

    [match] = seen_by("sxid_fatal", facts_of(now, {10.0: {SXIDS: {(SWITCH, sxid): 0.0}}}))
    assert (match.code, match.next_step) == ("sxid_fatal", "")


@in_one_pass(
    "message, code",
    [("fallen_off_bus", "xid_fabric"), ("gsp_errors_limited", "xid_gpu"), ("nvlink_detection_failed", "xid_gpu")],
)
def test_lines_without_a_number_count_as_the_xid_that_is_missing(message: str, code: str) -> None:
    """A GPU can fall off its bus without Xid 79; where the line names no GPU it is of the node."""
    old: Numbers = {XIDS: {(*GPU0, "74"): 0.0}}
    told = facts_of({**old, MESSAGES: {(*GPU0, message): 1.0}}, {10.0: old})
    unnamed = facts_of({**old, MESSAGES: {("", "", message): 1.0}}, {10.0: old})

    assert codes_by("xid_fabric", told) == [(code, "gpu/0000:17:00.0")]
    assert codes_by("xid_fabric", unnamed) == [(code, "node")]


def test_a_gpu_off_its_bus_is_not_to_be_reset() -> None:
    """No reset reaches it: the step is that of Xid 79, which is missing."""
    old: Numbers = {XIDS: {(*GPU0, "74"): 0.0}}

    [match] = seen_by("xid_fabric", facts_of({**old, MESSAGES: {(*GPU0, "fallen_off_bus"): 1.0}}, {10.0: old}))
    assert match.next_step == meanings("xid")[79].cure


@in_one_pass(
    "sxid, codes",
    [("20034", ["sxid_fatal"]), ("23017", ["sxid_fatal"]), ("10004", ["sxid_warning"]), ("20001", []), ("12021", [])],
)
def test_sxids_are_told_by_what_they_mean(sxid: str, codes: list[str]) -> None:
    """Corrected errors and packets sent again are how a switch lives."""
    now: Numbers = {SXIDS: {(SWITCH, "12020"): 4.0, (SWITCH, sxid): 1.0}}
    history = {10.0: {SXIDS: {(SWITCH, "12020"): 4.0}}}

    found = seen_by("sxid_fatal", facts_of(now, history))
    assert [one.code for one in found] == codes
    assert all(one.component.identity == f"nvswitch/{SWITCH}" and not one.component.parts for one in found)


def test_lost_records_are_told() -> None:
    """An Xid may be among them."""
    name = "commwatch_kernel_log_losses_total"

    assert len(seen_by("kernel_log_lost", facts_of({name: {(): 1.0}}, {10.0: {name: {(): 0.0}}}))) == 1
    assert seen_by("kernel_log_lost", facts_of({name: {(): 1.0}}, {10.0: {name: {(): 1.0}}})) == []


def fatal_xid(xid: str, count: float, fatal: float) -> Numbers:
    return {**xids(xid, count), FATAL_XIDS: {(*GPU0, xid): fatal}}


@in_one_pass(
    "xid, code",
    [("199", "xid_fatal"), ("13", "xid_fatal"), ("119", "xid_fatal"), ("145", "xid_fabric"), ("79", "xid_fabric")],
)
def test_a_line_that_says_fatal_is_critical_whatever_the_number(xid: str, code: str) -> None:
    """Known for less, for a path, or not at all; and no number that programs can cause takes it off the drain list."""
    [match] = seen_by("xid_fabric", facts_of(fatal_xid(xid, 1.0, 1.0), {10.0: fatal_xid(xid, 0.0, 0.0)}))

    assert match.code == code
    assert CODES[code].severity == "critical"
    assert code in DRAIN_LIST
    assert [(fact.value, fact.event) for fact in match.evidence] == [(1.0, "")]
    assert f"Xid {xid}" in match.evidence[0].what


def test_events_that_the_driver_did_not_call_fatal_keep_the_rank_of_their_number() -> None:
    """Of three Xids 119 one was fatal; of three with a number that is on no list two are nothing."""
    found = seen_by("xid_fabric", facts_of(fatal_xid("119", 3.0, 1.0), {10.0: fatal_xid("119", 0.0, 0.0)}))
    assert {one.code: one.evidence[0].value for one in found} == {"xid_fatal": 1.0, "xid_gpu": 2.0}

    found = seen_by("xid_fabric", facts_of(fatal_xid("199", 3.0, 1.0), {10.0: fatal_xid("199", 0.0, 0.0)}))
    assert {one.code: one.evidence[0].value for one in found} == {"xid_fatal": 1.0}


def test_an_sxid_of_no_list_that_its_line_calls_fatal_is_critical() -> None:
    """Such numbers exist since Hopper; without the word it is none."""

    def numbers(count: float, fatal: float) -> Numbers:
        return {SXIDS: {(SWITCH, "29006"): count}, FATAL_SXIDS: {(SWITCH, "29006"): fatal}}

    [match] = seen_by("sxid_fatal", facts_of(numbers(2.0, 1.0), {10.0: numbers(0.0, 0.0)}))
    assert (match.code, match.evidence[0].value) == ("sxid_fatal", 1.0)
    assert seen_by("sxid_fatal", facts_of(numbers(2.0, 0.0), {10.0: numbers(0.0, 0.0)})) == []
