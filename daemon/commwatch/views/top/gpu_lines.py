"""The GPUs of a screen: state, work, NVLinks, PCIe and what holds their clocks; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.findings.rules.counted import columns_of
from commwatch.lines import Line, Segment
from commwatch.node.pcie import is_narrow
from commwatch.views.top.table import ABSENT, BAD, DOUBTFUL, both_ways, errors, of_all, section, sums, table
from commwatch_exporters.node.model import Gpu, Node, NvLink
from commwatch_exporters.state_words import GPU_STATES, word_of

_SLOT, _TEMPERATURE, _POWER, _MEMORY = 100, 108, 120, 132
"""Columns of the terminal from which on there is room for each."""
_IDLE = "gpu_idle"
"""A reason for low clocks that is none for concern."""

NVLINK_ERRORS = (
    NvLink.crc_flit_errors, NvLink.crc_data_errors, NvLink.recovery_errors, NvLink.recoveries, NvLink.effective_errors,
    *columns_of("nvlink_replays"), *columns_of("nvlink_packet_errors"), *columns_of("nvlink_remote_errors"),
)  # fmt: skip
"""Constant on a healthy link: errors that reached a packet, and retrainings."""


def gpu_lines(node: Node, first: Node | None, width: int) -> Iterator[Line]:
    yield from section("GPUs", "tx/rx in % of capacity; errors so far +new")
    gpus = node.gpus
    if not gpus:
        yield [("no GPU is read at present", "")]
        return
    now, before = (sums(one, NVLINK_ERRORS, lambda link: link.gpu) for one in (node, first))
    heads = ["GPU", "Slot", "State", "Work", "Power", "Memory", "Temp", "NVLinks", "tx/rx", "Errors", "PCIe", "tx/rx",
             "Clocks"]  # fmt: skip
    rows = [
        [
            (_name(gpu, gpus, width), ""),
            (gpu.address, ""),
            _state(gpu.state),
            _work(gpu),
            (of_all(gpu.power_watts, gpu.power_limit_watts, "W"), ""),
            (of_all(gpu.memory_used_bytes, gpu.memory_size_bytes, "GiB", 2**30), ""),
            (ABSENT if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f} °C", ""),
            _links(gpu),
            (both_ways(gpu.nvlink_transmit_utilization_ratio, gpu.nvlink_receive_utilization_ratio), ""),
            errors(now.get(gpu), before.get(gpu)),
            _pcie_link(gpu),
            (both_ways(gpu.pcie_transmit_utilization_ratio, gpu.pcie_receive_utilization_ratio), ""),
            _clocks(gpu),
        ]
        for gpu in gpus
    ]
    needs = {"Slot": _SLOT, "Power": _POWER, "Memory": _MEMORY, "Temp": _TEMPERATURE}
    kept = [place for place, head in enumerate(heads) if width >= needs.get(head, 0)]
    yield from table([heads[place] for place in kept], [[row[place] for place in kept] for row in rows], width)


def _name(gpu: Gpu, gpus: Sequence[Gpu], width: int) -> str:
    """The index; with the address where a card that is gone had the same one and the slots are not shown."""
    is_unique = sum(one.index == gpu.index for one in gpus) == 1
    return gpu.index if is_unique or width >= _SLOT else f"{gpu.index} {gpu.address}"


def _state(state: float | None) -> Segment:
    if state is None:
        return ABSENT, ""
    return word_of(GPU_STATES, state), BAD if state else ""


def _work(gpu: Gpu) -> Segment:
    busy, use = gpu.busy, gpu.utilization_ratio
    if busy == 0:
        return "idle", ""
    if use is not None:
        return f"{100 * use:.0f} %", ""
    return (ABSENT if busy is None else "busy"), ""


def _links(gpu: Gpu) -> Segment:
    up, expected = gpu.links_up, gpu.links_expected
    if up is None:
        return ABSENT, ""
    # Before anything is learned, the links of the GPU are what is expected.
    return f"{up} of {expected or gpu.nvlink_links or up:g}", BAD if up < expected else ""


def _pcie_link(gpu: Gpu) -> Segment:
    generation, lanes = gpu.pcie_generation, gpu.pcie_width_lanes
    if generation is None and lanes is None:
        return ABSENT, ""
    text = " ".join([f"gen{generation:g}"] * (generation is not None) + [f"x{lanes:g}"] * (lanes is not None))
    expected, most = gpu.pcie_width_expected_lanes, gpu.pcie_width_max_lanes
    if is_narrow(lanes, expected, most):
        return f"{text} of x{most if expected is None else expected:g}", BAD
    # The generation is judged under load only, by the daemon.
    return (f"{text} low", BAD) if any(gpu.pcie_degraded.values()) else (text, "")


def _clocks(gpu: Gpu) -> Segment:
    reasons = gpu.clocks_event_reasons
    if not reasons:
        return ABSENT, ""
    holding = [reason.replace("_", " ") for reason, holds in reasons.items() if holds and reason != _IDLE]
    return (", ".join(holding), DOUBTFUL) if holding else ("free", "")
