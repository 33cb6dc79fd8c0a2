"""The tables of the parts: GPUs, RDMA ports and network interfaces, and the events of the driver."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch_exporters.node_page.driver_events import driver_events
from commwatch_exporters.node_page.marks import Marks, port_mark, worst_mark
from commwatch_exporters.node_page.markup import ABSENT, cell, judged, level_of, number, percent, table, text
from commwatch_exporters.node_page.records import Mark
from commwatch_exporters.snapshot import Snapshot, Value
from commwatch_exporters.state_words import GPU_STATES, RDMA_STATES, word_of

LINK_UP_STATES = (1, 2)
"""Active and asleep."""
_GPU_FAMILIES = ("commwatch_gpu_info", "commwatch_gpu_state")
_RDMA = ("commwatch_rdma_port_info", "commwatch_rdma_port_state")
_ETHERNET = ("commwatch_ethernet_info", "commwatch_ethernet_carrier")
_MOST_EVENTS = 30


def gpu_keys(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Index and slot of each GPU, by index."""
    found = {(one["gpu"], one["pci_bus_id"]) for family in _GPU_FAMILIES for one, _ in snapshot.samples(family)}
    return sorted(found, key=lambda one: (len(one[0]), one))


def rdma_keys(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Device and number of each RDMA port."""
    found = {(one["device"], one["port"]) for family in _RDMA for one, _ in snapshot.samples(family)}
    return sorted(found, key=lambda one: (len(one[0]), one))


def interface_names(snapshot: Snapshot) -> list[str]:
    """The network interfaces."""
    return sorted({found["device"] for family in _ETHERNET for found, _ in snapshot.samples(family)})


def events_table(snapshot: Snapshot) -> str:
    """Xids and SXids by device; nothing where none came."""
    found = list(driver_events(snapshot))
    if not found:
        return ""
    rows = [[cell(part), f'<td class="text">{text(words)}</td>'] for part, words in found[:_MOST_EVENTS]]
    if len(found) > _MOST_EVENTS:
        rows.append([cell("others"), f'<td class="text">and {len(found) - _MOST_EVENTS} more, among the metrics</td>'])
    return table("events", "Driver events", ("Part", "Xids and SXids"), rows, "")


def gpu_table(snapshot: Snapshot) -> str:
    """State, work, links and use of each GPU."""
    headings = ("GPU", "State", "Work", "NVLinks up", "#NVLink sends", "#receives", "PCIe", "Slot", "Model")
    names = {found["pci_bus_id"]: found["name"] for found, _ in snapshot.samples("commwatch_gpu_info")}
    states = by_gpu(snapshot, "commwatch_nvlink_link_state")
    wanted = by_gpu(snapshot, "commwatch_nvlink_link_expected")
    rows = [
        [
            cell(gpu),
            _gpu_state(snapshot.value("commwatch_gpu_state", gpu, slot)),
            cell(_yes_no(snapshot.value("commwatch_gpu_busy", gpu, slot), "busy", "idle")),
            _links(states.get((gpu, slot), {}), wanted.get((gpu, slot), {})),
            percent(snapshot.value("commwatch_nvlink_transmit_utilization_ratio", gpu, slot)),
            percent(snapshot.value("commwatch_nvlink_receive_utilization_ratio", gpu, slot)),
            _pcie(snapshot, gpu, slot),
            cell(slot),
            cell(names.get(slot, "")),
        ]
        for gpu, slot in gpu_keys(snapshot)
    ]
    return table("gpus", "GPUs", headings, rows, "No GPU is read at present.")


def rdma_table(snapshot: Snapshot, marks: Marks) -> str:
    """The RDMA ports; nothing where the node has none."""
    about = {(found["device"], found["port"]): found for found, _ in snapshot.samples(_RDMA[0])}
    rows = [
        [
            cell(f"{device}/{port}"),
            cell(about.get((device, port), {}).get("link_layer", "")),
            _marked(
                _port_state(snapshot.value("commwatch_rdma_port_state", device, port)),
                port_mark(marks, device, port, about.get((device, port), {}).get("netdev", "")),
            ),
            _speed(snapshot.value("commwatch_rdma_port_speed_bytes_per_second", device, port)),
            percent(snapshot.value("commwatch_rdma_port_transmit_utilization_ratio", device, port)),
            percent(snapshot.value("commwatch_rdma_port_receive_utilization_ratio", device, port)),
            _count(snapshot.value("commwatch_rdma_port_flaps_total", device, port)),
        ]
        for device, port in rdma_keys(snapshot)
    ]
    headings = ("RDMA port", "Layer", "State", "#Speed", "#Sends", "#Receives", "#Flaps")
    return table("rdma", "RDMA ports", headings, rows, "") if rows else ""


def interface_table(snapshot: Snapshot, marks: Marks) -> str:
    """Link, speed and use of each network interface."""
    rows = [
        [
            cell(device),
            _marked(
                _yes_no(snapshot.value("commwatch_ethernet_carrier", device), "up", "down"),
                worst_mark(marks, f"interface/{device}"),
            ),
            _speed(snapshot.value("commwatch_ethernet_speed_bytes_per_second", device)),
            percent(snapshot.value("commwatch_ethernet_transmit_utilization_ratio", device)),
            percent(snapshot.value("commwatch_ethernet_receive_utilization_ratio", device)),
        ]
        for device in interface_names(snapshot)
    ]
    headings = ("Interface", "Link", "#Speed", "#Sends", "#Receives")
    return table("interfaces", "Network interfaces", headings, rows, "No interface was read.")


def by_gpu(snapshot: Snapshot, family: str) -> dict[tuple[str, str], dict[str, float]]:
    """By GPU the number of each of its links in a family."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for labels, value in snapshot.samples(family):
        found.setdefault((labels["gpu"], labels["pci_bus_id"]), {})[labels["link"]] = value
    return found


def pcie_words(snapshot: Snapshot, gpu: str, slot: str) -> tuple[str, bool]:
    """Generation and lanes of a GPU's PCIe link, and whether it is below its best; empty where not read."""
    generation = snapshot.value("commwatch_pcie_link_generation", gpu, slot)
    width = snapshot.value("commwatch_pcie_link_width_lanes", gpu, slot)
    words = " ".join([f"gen{generation}"] * (generation is not None) + [f"x{width}"] * (width is not None))
    if width is not None and snapshot.value("commwatch_pcie_link_degraded", gpu, slot, "width"):
        limits = (snapshot.value(f"commwatch_pcie_link_width_{one}_lanes", gpu, slot) for one in ("expected", "max"))
        limit = next((one for one in limits if one is not None), None)
        return words if limit is None else f"{words} of x{limit}", True
    return words, bool(snapshot.value("commwatch_pcie_link_degraded", gpu, slot, "generation"))


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


def _links(states: Mapping[str, float], wanted: Mapping[str, float]) -> str:
    if not states:
        return cell("")
    up = sum(state in LINK_UP_STATES for state in states.values())
    expected = int(sum(wanted.values()))
    if not expected:
        return cell(str(up))
    return judged("good" if up >= expected else "bad", f"{up} of {expected}")


def _pcie(snapshot: Snapshot, gpu: str, slot: str) -> str:
    words, degraded = pcie_words(snapshot, gpu, slot)
    return judged("bad", words) if degraded and words else cell(words)


def _port_state(value: Value) -> str:
    return "" if value is None else word_of(RDMA_STATES, value)


def _count(value: Value) -> str:
    return number(ABSENT if value is None else f"{value:g}")


def _speed(bytes_per_second: Value) -> str:
    return number(ABSENT if bytes_per_second is None else f"{bytes_per_second * 8 / 1e9:g} Gbit/s")
