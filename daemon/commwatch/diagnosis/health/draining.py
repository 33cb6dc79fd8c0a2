"""A drain of this node in Slurm, where it may be drained."""

from __future__ import annotations

import os
import re
import socket
import time
from typing import NamedTuple

from commwatch.children import clean_environment
from commwatch.probes.gate.slurm import field_of, parse_node
from commwatch.workers.one_shot import Answer, NoAnswer, ask

_DRAINED_FROM = frozenset({"IDLE", "ALLOCATED", "MIXED"})
"""Mixed is both: allocated in part."""
_DRAINED_WITH = frozenset({"COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
"""With any other flag (DRAIN, FAIL, MAINT, RESERVED, REBOOT_REQUESTED, POWERING_DOWN, NOT_RESPONDING, ...) the node is
already being managed by a person or a program."""


class Drain(NamedTuple):
    """The result of an attempt to drain a node."""

    drained: bool
    """Slurm has taken our reason."""
    detail: str


def why_not_drained(text: str, name: str, host: str) -> str | None:
    """Why a node must not be drained by us; None where it may be.

    Args:
        text: what ``scontrol show node NAME`` printed.
    """
    node = parse_node(text)
    if node is None or node.name != name or len(re.findall(r"^\s*NodeName=", text, re.MULTILINE)) != 1:
        return f"scontrol said nothing clear of node {name}"
    where = re.search(r"\bNodeHostName=(\S+)", text)
    if where is None or _short(where[1]) != _short(host):
        there = "an unknown host" if where is None else where[1]
        return f"node {name} is on {there} for Slurm, and this is {host}; set probes.slurm_node"
    reason = re.search(r"^\s*Reason=(.*)$", text, re.MULTILINE)
    if reason is not None and reason[1].strip() not in ("", "(null)"):
        return f"node {name} has a reason already: {reason[1].strip()}"
    said = field_of(text, "State") or ""
    # A mark such as the * of IDLE* (does not respond) is in no list above, and so refuses too.
    base, *flags = said.split("+")
    if base not in _DRAINED_FROM or not _DRAINED_WITH.issuperset(flags):
        return f"node {name} is in state {said}"
    return None


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


async def drain(name: str, reason: str, deadline: float) -> Drain:
    """Drain the node, if it may be drained; jobs on it go on, and an existing reason is never overwritten.

    Another user may drain it between our check and our change: Slurm has no atomic operation for both.

    Args:
        reason: in plain ASCII, without quotes.
        deadline: seconds for everything.
    """
    until = time.monotonic() + deadline
    try:
        shown = await _scontrol(until, "show", "node", name)
    except NoAnswer as error:
        return Drain(False, str(error))
    if shown.code:
        return Drain(False, f"scontrol failed: {shown.last_error}")
    refusal = why_not_drained(shown.output, name, socket.gethostname())
    if refusal is not None:
        return Drain(False, refusal)
    try:
        answer = await _scontrol(until, "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")
    except NoAnswer as error:
        return Drain(False, f"{error}; it may have been taken all the same")
    if answer.code:
        return Drain(False, f"scontrol failed: {answer.last_error}")
    return Drain(True, f"node {name} is drained")


async def _scontrol(until: float, *arguments: str) -> Answer:
    left = until - time.monotonic()
    if left <= 0:
        raise NoAnswer("no time is left to ask Slurm")
    return await ask(("scontrol", *arguments), clean_environment(os.environ, "SLURM_CONF"), left)
