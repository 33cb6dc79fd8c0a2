"""The RDMA ports and network interfaces of a screen; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.lines import Line, Segment
from commwatch.views.top.frame import Series
from commwatch.views.top.table import section, table
from commwatch.views.top.words import ABSENT, BAD, both_ways, count, errors, gigabits
from commwatch_exporters.state_words import RDMA_STATES, word_of

_PORT = ("device", "port")
_ACTIVE = 4
RDMA_ERRORS = (
    "rdma_port_symbol_errors_total", "rdma_port_receive_errors_total", "rdma_port_receive_remote_physical_errors_total",
    "rdma_port_local_link_integrity_errors_total", "rdma_port_excessive_buffer_overrun_errors_total",
    "rdma_port_link_error_recovery_total",
)  # fmt: skip
ETHERNET_ERRORS = ("ethernet_transmit_errors_total", "ethernet_receive_errors_total")


def rdma_lines(series: Series, first: Series | None, width: int) -> Iterator[Line]:
    """A table of the RDMA ports; nothing where the node has none."""
    layers: dict[tuple[str, ...], str] = {
        (labels["device"], labels["port"]): labels["link_layer"] for labels, _ in series.samples("rdma_port_info")
    }
    states = series.by("rdma_port_state", *_PORT)
    expected = series.by("rdma_port_expected", *_PORT)
    speeds, flaps = series.by("rdma_port_speed_bytes_per_second", *_PORT), series.by("rdma_port_flaps_total", *_PORT)
    sends = series.by("rdma_port_transmit_utilization_ratio", *_PORT)
    receives = series.by("rdma_port_receive_utilization_ratio", *_PORT)
    now, before = series.sum_by(RDMA_ERRORS, *_PORT), first.sum_by(RDMA_ERRORS, *_PORT) if first else {}
    ports = sorted({*layers, *states}, key=lambda one: (len(one[0]), one))
    if not ports:
        return
    yield from section("RDMA ports")
    rows: list[list[Segment]] = [
        [
            (f"{port[0]}/{port[1]}", ""),
            (layers.get(port, ABSENT), ""),
            _state(states.get(port), is_expected=bool(expected.get(port))),
            (gigabits(speeds.get(port)), ""),
            (both_ways(sends.get(port), receives.get(port)), ""),
            _errors(now.get(port), before.get(port)),
            (ABSENT if port not in flaps else count(flaps[port]), ""),
        ]
        for port in ports
    ]
    yield from table(("Port", "Layer", "State", "Speed", "tx/rx", "Errors", "Flaps"), rows, width)


def interface_lines(series: Series, first: Series | None, width: int) -> Iterator[Line]:
    """A table of the network interfaces."""
    carriers, expected = series.by("ethernet_carrier", "device"), series.by("ethernet_expected", "device")
    names = sorted({labels["device"] for labels, _ in series.samples("ethernet_info")} | {one for (one,) in carriers})
    if not names:
        return
    speeds = series.by("ethernet_speed_bytes_per_second", "device")
    sends = series.by("ethernet_transmit_utilization_ratio", "device")
    receives = series.by("ethernet_receive_utilization_ratio", "device")
    now, before = series.sum_by(ETHERNET_ERRORS, "device"), first.sum_by(ETHERNET_ERRORS, "device") if first else {}
    yield from section("Interfaces")
    rows: list[list[Segment]] = [
        [
            (name, ""),
            _carrier(carriers.get((name,)), is_expected=bool(expected.get((name,)))),
            (gigabits(speeds.get((name,))), ""),
            (both_ways(sends.get((name,)), receives.get((name,))), ""),
            _errors(now.get((name,)), before.get((name,))),
        ]
        for name in names
    ]
    yield from table(("Interface", "Link", "Speed", "tx/rx", "Errors"), rows, width)


def _state(state: float | None, *, is_expected: bool) -> Segment:
    if state is None:
        return ABSENT, ""
    return word_of(RDMA_STATES, state), BAD if is_expected and state != _ACTIVE else ""


def _carrier(carrier: float | None, *, is_expected: bool) -> Segment:
    if carrier is None:
        return ABSENT, ""
    return ("up", "") if carrier else ("down", BAD if is_expected else "")


def _errors(now: float | None, before: float | None) -> Segment:
    text = errors(now, before)
    return text, BAD if "+" in text else ""
