"""Errors, packets sent again and congestion of an RDMA port: what the rules found in how its counters moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.rdma_ports import name_of
from commwatch.findings.rules.rule_set import Quantity
from commwatch_exporters.node.model import RdmaPort


class _Trouble(NamedTuple):
    what: str
    quantity: Quantity
    counts: Callable[[RdmaPort], Iterable[float | None]]
    """Counters of the port or its interface; one of them has to be read for anything to be seen."""


_TROUBLES = (
    _Trouble(
        "errors of the link, last hour",
        "rdma_errors",
        lambda port: (port.symbol_errors, port.receive_errors, port.icrc_errors),
    ),
    _Trouble(
        "packets sent again or dropped",
        "rdma_losses",
        lambda port: (
            port.ack_timeouts, port.packet_sequence_errors, port.retransmitted_packets, port.port_transmit_discards,
        ),
    ),
    _Trouble(
        "congestion (ECN, CNP, credit, pause)",
        "rdma_congestion",
        lambda port: (
            port.ecn_marked, port.cnp_handled, port.port_transmit_wait_ticks,
            port.network_interface.global_receive_pause_seconds,
            *port.network_interface.pfc_receive_pause_seconds.values(),
        ),
    ),
)  # fmt: skip


def troubles(known: Known, port: RdmaPort) -> Iterator[Check]:
    """One line for each kind of trouble: what was found, or that it was looked for."""
    parts = {f"rdma_port/{port.device}/{port.number}"}
    if port.interface:
        parts.add(f"interface/{port.interface}")
    for trouble in _TROUBLES:
        check = Check(
            branch="infiniband", what=trouble.what, where=name_of(port), required="nothing beyond the thresholds",
            verdict="not measured",
        )  # fmt: skip
        found = judged(check, known.matched, trouble.quantity, parts)
        yield _nothing(known, port, trouble, check) if found is check else found


def _nothing(known: Known, port: RdmaPort, trouble: _Trouble, check: Check) -> Check:
    if why := _not_looked_at(known, port, trouble):
        return msgspec.structs.replace(check, required="", detail=why)
    return msgspec.structs.replace(
        check, measured="nothing", verdict="passed", source="thresholds.yaml, watched by the daemon"
    )


def _not_looked_at(known: Known, port: RdmaPort, trouble: _Trouble) -> str:
    """Why a trouble would not have been seen; empty where it would."""
    if known.findings.looked_at is None:
        return "the daemon has not looked yet"
    if failed := known.matched.failed_of(trouble.quantity):
        return failed
    if any(count is not None for count in trouble.counts(port)):
        return ""
    return "this adapter has none of the counters that would show it, or they were not read"
