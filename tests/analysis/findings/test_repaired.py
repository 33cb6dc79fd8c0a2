"""The part of an event reads healthy again, or is not known to."""

from __future__ import annotations

import pytest

from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.repaired import reads_healthy
from support.facts import Numbers, facts_of
from support.passes import in_one_pass

GPU, OTHER, SWITCH = "0000:17:00.0", "0000:18:00.0", "0000:0b:00.0"
NUMBERS: dict[str, dict[tuple[str, ...], float]] = {
    "commwatch_gpu_state": {("0", GPU): 0, ("1", OTHER): 0},
    "commwatch_gpu_recovery_action": {("0", GPU): 0, ("1", OTHER): 0},
    "commwatch_nvlink_link_state": {("0", GPU, "3"): 1, ("1", OTHER, "2"): 1},
    "commwatch_nvlink_link_expected": {("0", GPU, "3"): 1, ("1", OTHER, "2"): 1},
}


def xid(number: str = "74", code: str = "xid_fabric") -> Match:
    return Match(code, Component("gpu", GPU, "GPU0", frozenset({GPU})), (Evidence("x", 1, event=f"xid {number}"),))


SXID = Match("sxid_fatal", Component("nvswitch", SWITCH), (Evidence("SXid 12028", 1, event="sxid 12028"),))
RECOVERY = Match(
    "nvlink_recovery_failed", Component("nvlink", f"{GPU}/3", "", frozenset({GPU})), (Evidence("failed recoveries", 1),)
)
FATAL = Match("pcie_fatal", Component("pcie_link", GPU, "", frozenset({GPU})), (Evidence("fatal errors", 1),))


def without(metric: str, labels: tuple[str, ...] | None = None) -> Numbers:
    return {
        name: {key: value for key, value in series.items() if name != metric or (labels is not None and key != labels)}
        for name, series in NUMBERS.items()
    }


def changed(metric: str, labels: tuple[str, ...], value: float) -> Numbers:
    return {**NUMBERS, metric: {**NUMBERS[metric], labels: value}}


UNREAD: Numbers = {
    **without("commwatch_gpu_state"),
    "commwatch_gpu_recovery_action": {},
    "commwatch_nvlink_link_state": {},
    "commwatch_nvlink_link_expected": {},
    "commwatch_pcie_device_info": {(GPU, "gpu", "pci0000:16", "0", "10de", "2330"): 1},
}
"""The bus shows the GPU, and nothing is read of it through its driver."""

NOT_EXPECTED: Numbers = {"commwatch_nvlink_link_expected": {}}


@in_one_pass("event", [xid(), xid("95", "xid_gpu"), SXID, FATAL, RECOVERY])
def test_a_part_that_answers_with_its_links_up_is_healthy(event: Match) -> None:
    """The driver says that nothing is to be done; other findings of other parts change nothing."""
    assert reads_healthy(facts_of(NUMBERS), [event], event)


@pytest.mark.parametrize(
    ("event", "numbers"),
    [
        (xid(), changed("commwatch_gpu_state", ("0", GPU), 2)),
        (xid(), without("commwatch_gpu_state", ("0", GPU))),
        (xid(), changed("commwatch_gpu_recovery_action", ("0", GPU), 1)),
        (xid(), changed("commwatch_nvlink_link_state", ("0", GPU, "3"), 0)),
        (xid(), without("commwatch_nvlink_link_state", ("0", GPU, "3"))),
        (SXID, changed("commwatch_nvlink_link_state", ("1", OTHER, "2"), 0)),
        (SXID, without("commwatch_gpu_state")),
        (FATAL, without("commwatch_gpu_state", ("0", GPU))),
        (xid("95", "xid_gpu"), without("commwatch_gpu_recovery_action")),
        (xid("999", "xid_gpu"), without("commwatch_gpu_recovery_action")),
        (xid(), UNREAD),
        (RECOVERY, changed("commwatch_nvlink_link_state", ("0", GPU, "3"), 0)),
        (RECOVERY, {**changed("commwatch_nvlink_link_state", ("0", GPU, "3"), 0), **NOT_EXPECTED}),
        (RECOVERY, without("commwatch_nvlink_link_state", ("0", GPU, "3"))),
        (RECOVERY, changed("commwatch_gpu_recovery_action", ("0", GPU), 1)),
    ],
    ids=["lost", "not read", "to be reset", "link down", "link not read", "any link", "no GPU read", "gone",
         "calls for a reset", "unknown number", "on the bus, and not read", "its link down",
         "its link down, not expected", "its link not read", "its GPU to be reset"],
)  # fmt: skip
def test_what_is_not_known_to_work_is_not_healthy(event: Match, numbers: Numbers) -> None:
    """An Xid after which the GPU must be reset is not over where the driver cannot say that it was."""
    assert not reads_healthy(facts_of(numbers), [event], event)


def test_a_fault_that_is_there_now_on_the_same_part_keeps_the_event() -> None:
    """A narrow link; one of another GPU, a count of events and information do not."""

    def matched(code: str, address: str = GPU) -> Match:
        return Match(code, Component("pcie_link", address, "", frozenset({address})), (Evidence("what", 1),))

    facts = facts_of(NUMBERS)
    assert not reads_healthy(facts, [FATAL, matched("pcie_width_dropped")], FATAL)
    for other in (matched("pcie_width_dropped", OTHER), matched("pcie_retrained"), matched("pcie_below_maximum")):
        assert reads_healthy(facts, [FATAL, other], FATAL)
