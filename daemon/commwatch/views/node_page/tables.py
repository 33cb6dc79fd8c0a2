"""The tables of the parts: GPUs, RDMA ports and network interfaces, and the events of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

from commwatch.node.xids import meanings
from commwatch.units import utc
from commwatch.views.node_page.marks import Marks, port_mark, worst_mark
from commwatch.views.node_page.markup import ABSENT, cell, judged, level_of, number, percent, table, wrapped
from commwatch.views.node_page.records import Mark
from commwatch_exporters.node.model import Gpu, Node, NvSwitch
from commwatch_exporters.node.parts import KeyedColumn
from commwatch_exporters.snapshot import Value
from commwatch_exporters.state_words import GPU_STATES, RDMA_STATES, word_of

_MOST_EVENTS = 30

_Device = TypeVar("_Device", Gpu, NvSwitch)


def events_table(node: Node) -> str:
    """Xids and SXids by device; nothing where none came."""
    found = list(driver_events(node))
    if not found:
        return ""
    rows = [[cell(part), wrapped(words)] for part, words in found[:_MOST_EVENTS]]
    if len(found) > _MOST_EVENTS:
        rows.append([cell("others"), wrapped(f"and {len(found) - _MOST_EVENTS} more, among the metrics")])
    return table("events", "Driver events", ("Part", "Xids and SXids"), rows, "")


def gpu_table(node: Node) -> str:
    """State, work, links and use of each GPU."""
    headings = (
        "GPU", "State", "Work", "NVLinks up", "#NVLink sends", "#receives", "PCIe", "#PCIe sends", "#receives", "Slot",
        "Model",
    )  # fmt: skip
    rows = [
        [
            cell(gpu.index),
            _gpu_state(gpu.state),
            cell(_yes_no(gpu.busy, "busy", "idle")),
            _links(gpu),
            percent(gpu.nvlink_transmit_utilization_ratio),
            percent(gpu.nvlink_receive_utilization_ratio),
            _pcie(gpu),
            percent(gpu.pcie_transmit_utilization_ratio),
            percent(gpu.pcie_receive_utilization_ratio),
            cell(gpu.address),
            wrapped(gpu.name),
        ]
        for gpu in node.gpus
    ]
    return table("gpus", "GPUs", headings, rows, "No GPU is read at present.")


def rdma_table(node: Node, marks: Marks) -> str:
    """The RDMA ports; nothing where the node has none."""
    rows = [
        [
            cell(f"{port.device}/{port.number}"),
            cell(port.link_layer),
            _marked(_port_state(port.state), port_mark(marks, port.device, port.number, port.interface)),
            _speed(port.speed_bytes_per_second),
            percent(port.transmit_utilization_ratio, is_bound=bool(port.virtual_functions)),
            percent(port.receive_utilization_ratio, is_bound=bool(port.virtual_functions)),
            _count(port.flaps),
        ]
        for port in node.rdma_ports
    ]
    headings = ("RDMA port", "Layer", "State", "#Speed", "#Sends", "#Receives", "#Flaps")
    return table("rdma", "RDMA ports", headings, rows, "") if rows else ""


def interface_table(node: Node, marks: Marks) -> str:
    """Link, speed and use of each network interface."""
    rows = [
        [
            cell(interface.name),
            _marked(_yes_no(interface.carrier, "up", "down"), worst_mark(marks, f"interface/{interface.name}")),
            _speed(interface.speed_bytes_per_second),
            percent(interface.transmit_utilization_ratio),
            percent(interface.receive_utilization_ratio),
        ]
        for interface in node.interfaces
    ]
    headings = ("Interface", "Link", "#Speed", "#Sends", "#Receives")
    return table("interfaces", "Network interfaces", headings, rows, "No interface was read.")


def pcie_words(gpu: Gpu) -> tuple[str, bool]:
    """Generation and lanes of a GPU's PCIe link, and whether it is below its best; empty where not read."""
    generation, width, degraded = gpu.pcie_generation, gpu.pcie_width_lanes, gpu.pcie_degraded
    words = " ".join([f"gen{generation}"] * (generation is not None) + [f"x{width}"] * (width is not None))
    if width is not None and degraded.get("width"):
        limits = (gpu.pcie_width_expected_lanes, gpu.pcie_width_max_lanes)
        limit = next((one for one in limits if one is not None), None)
        return words if limit is None else f"{words} of x{limit}", True
    return words, bool(degraded.get("generation"))


# --- cells ---


def _yes_no(value: Value, yes: str, no: str) -> str:
    return "" if value is None else yes if value else no


def _marked(words: str, mark: Mark | None) -> str:
    """The state, with the sign of what is wrong with the part."""
    return cell(words) if mark is None else judged(level_of(mark.severity), words or ABSENT)


def _gpu_state(value: Value) -> str:
    if value is None:
        return cell("")
    return judged("bad" if value else "good", word_of(GPU_STATES, value))


def _links(gpu: Gpu) -> str:
    up, expected = gpu.links_up, gpu.links_expected
    if up is None:
        return cell("")
    if not expected:
        return cell(str(up))
    return judged("good" if up >= expected else "bad", f"{up} of {expected}")


def _pcie(gpu: Gpu) -> str:
    words, degraded = pcie_words(gpu)
    return judged("bad", words) if degraded and words else cell(words)


def _port_state(value: Value) -> str:
    return "" if value is None else word_of(RDMA_STATES, value)


def _count(value: Value) -> str:
    return number(ABSENT if value is None else f"{value:g}")


def _speed(bytes_per_second: Value) -> str:
    return number(ABSENT if bytes_per_second is None else f"{bytes_per_second * 8 / 1e9:g} Gbit/s")


def driver_events(node: Node) -> Iterator[tuple[str, str]]:
    """Each GPU and NVSwitch that had events, and how often each code came since the totals began."""
    for gpu, codes in _codes(node, Gpu.xids, "xid").items():
        latest = gpu.last_xid_timestamp_seconds
        when = "" if latest is None else f", last {utc(latest)}"
        yield f"GPU{gpu.index} ({gpu.address})", f"Xid {codes}{when}"
    for switch, codes in _codes(node, NvSwitch.sxids, "sxid").items():
        yield f"NVSwitch {switch.address}", f"SXid {codes}"


def _codes(node: Node, column: KeyedColumn[_Device], kind: Literal["xid", "sxid"]) -> dict[_Device, str]:
    """``79: GPU has fallen off the bus (1 ×), 94: … (3 ×)`` by device."""
    found: dict[_Device, list[str]] = {}
    for device, code, count in node.each_keyed(column):
        if count:
            known = meanings(kind).get(int(code)) if code.isdigit() else None
            name = f": {known.name}" if known else ""
            found.setdefault(device, []).append(f"{code}{name} ({count:g} ×)")
    return {device: ", ".join(codes) for device, codes in found.items()}
