"""Constraints between the keys of a fault; each check gives key and problem."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch_rehearsal.simulation.aer_errors import SEVERITIES
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.presets.parts import NVLINK_5, Preset
from commwatch_rehearsal.simulation.rdma_counters import ROCE_COUNTERS


def error_of_severity(fault: Fault, _preset: Preset) -> Iterable[tuple[str, str]]:
    """The kernel counts each error under some severities only."""
    names = [name for _, name in SEVERITIES[fault.words["severity"]]]
    if fault.words["error"] not in names:
        yield "error", f"no {fault.words['severity']} error; these are: {', '.join(names)}"


def counter_of_port(fault: Fault, preset: Preset) -> Iterable[tuple[str, str]]:
    """Some counters are there on Ethernet only."""
    layers = {port.link_layer for port in preset.rdma_ports if port.device == fault.device}
    if fault.words["counter"] in {counter.name for counter in ROCE_COUNTERS} and layers == {"InfiniBand"}:
        yield "counter", f"{fault.device} has no such counter: it is there on Ethernet only"


def needs_nvlink_5(_fault: Fault, preset: Preset) -> Iterable[tuple[str, str]]:
    """Earlier generations have no such counters."""
    nvlink = preset.model.nvlink
    if nvlink is None or nvlink.version < NVLINK_5:
        yield "fault", "the GPUs of this node have no NVLink 5"


def needs_switches(_fault: Fault, preset: Preset) -> Iterable[tuple[str, str]]:
    """Without switches GPUs register with no fabric."""
    nvlink = preset.model.nvlink
    if nvlink is None or nvlink.remote != "switch":
        yield "fault", "the GPUs of this node are not joined by NVSwitches"


def rank_of_node(fault: Fault, preset: Preset) -> Iterable[tuple[str, str]]:
    """A probe has at most one rank for each GPU."""
    if fault.settings["rank"] >= len(preset.gpus):
        yield "rank", f"expected a whole number from 0 to {len(preset.gpus) - 1}: one rank for each GPU"
