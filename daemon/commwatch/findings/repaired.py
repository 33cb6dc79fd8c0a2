"""Whether an event is over: its part reads healthy again; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Match
from commwatch.findings.rules.kernel import ENDS_WORK
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER
from commwatch.node.gpu_state import OK
from commwatch.node.xids import meanings
from commwatch_exporters.node.model import Gpu, NvLink, PcieDevice
from commwatch_exporters.state_words import NVLINK_UP

OVER_AFTER: Final = 600.0
"""Seconds without a further event after which one whose part reads healthy is over."""


def reads_healthy(facts: Facts, matches: Iterable[Match], event: Match) -> bool:
    """Whether all readings of an event's part show that it works again.

    GPUs answer and ask for nothing, expected NVLinks are up, and so is the one that the event is of, devices are on the
    bus, and no rule sees a state of these parts that is a fault. A part that cannot be read is not healthy. An Xid that
    calls for a reset is over only if the driver's recovery action shows that none is needed.

    Args:
        event: of a code that is one.
    """
    gpus = [gpu for gpu in facts.node.gpus if not event.component.parts or gpu.address in event.component.parts]
    devices = event.component.parts - {gpu.address for gpu in gpus}
    if not gpus and not devices:
        return False
    if any(facts.node.part(PcieDevice, one).role == "gpu" for one in devices):
        return False  # a GPU that the driver does not show
    parts = frozenset(gpu.address for gpu in gpus) | devices
    needs_reset = _calls_for_reset(event)
    return (
        all(_works(facts, gpu, needs_reset=needs_reset) for gpu in gpus)
        and all(facts.node.part(PcieDevice, one).info is not None for one in devices)
        and (event.component.kind != "nvlink" or _is_up(facts, event.component.key))
        and not any(_is_state_of(one, parts) for one in matches)
    )


def _works(facts: Facts, gpu: Gpu, *, needs_reset: bool) -> bool:
    action = gpu.recovery_action
    if gpu.state != OK or action or (needs_reset and action is None):
        return False
    links = [link for link, flag in facts.each(NvLink.expected) if flag == 1 and link.address == gpu.address]
    return all(link.state in NVLINK_UP for link in links)


def _is_up(facts: Facts, key: str) -> bool:
    """Whether an NVLink is read as up, by the key of its component."""
    return any(state in NVLINK_UP for link, state in facts.each(NvLink.state) if f"{link.address}/{link.number}" == key)


def _calls_for_reset(event: Match) -> bool:
    """Whether an Xid, or a line without a number, leaves a GPU that must be reset."""
    if not event.code.startswith("xid_"):
        return False
    known = meanings("xid")
    numbers = [one.event.removeprefix("xid ") for one in event.evidence]
    return any(
        not number.isdecimal() or int(number) not in known or known[int(number)].action in ENDS_WORK
        for number in numbers
    )


def _is_state_of(match: Match, parts: frozenset[str]) -> bool:
    """Whether a rule sees a fault of these parts that is there now."""
    code = CODES[match.code]
    if code.role != "fault" or code.severity == "info" or code.closes_after >= COUNT_CLOSES_AFTER:
        return False
    return bool(match.component.parts) and match.component.shares_part(Component("gpu", "", "", parts))
