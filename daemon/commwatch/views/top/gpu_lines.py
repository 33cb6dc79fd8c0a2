"""The GPUs of a screen: state, work, NVLinks, PCIe and what holds their clocks; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.lines import Line, Segment
from commwatch.node.pcie import is_narrow
from commwatch.views.top.frame import Series
from commwatch.views.top.table import section, table
from commwatch.views.top.words import ABSENT, BAD, DOUBTFUL, both_ways, errors
from commwatch_exporters.state_words import GPU_STATES, word_of

_GPU = ("gpu", "pci_bus_id")
_WIDE = 100
"""Columns from which on there is room for the slot."""
_UP = (1, 2)
"""States of a link that carries traffic or sleeps."""
_IDLE = "gpu_idle"
"""A reason for low clocks that is none for concern."""

NVLINK_ERRORS = (
    "nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total", "nvlink_replay_errors_total",
    "nvlink_recovery_errors_total", "nvlink_ecc_data_errors_total", "nvlink_malformed_packets_total",
    "nvlink_buffer_overrun_errors_total", "nvlink_receive_errors_total", "nvlink_receive_remote_errors_total",
    "nvlink_receive_general_errors_total", "nvlink_local_link_integrity_errors_total",
    "nvlink_transmit_discards_total", "nvlink_recoveries_total", "nvlink_effective_errors_total",
)  # fmt: skip
"""What stands still on a healthy link: errors that reached a packet, and retrainings."""

_Cells = dict[tuple[str, ...], float]


def gpu_lines(series: Series, first: Series | None, width: int) -> Iterator[Line]:
    """A table with one row for each GPU that is or was here."""
    yield from section("GPUs", "tx/rx in % of capacity; errors so far +new")
    slots = {(labels["gpu"], labels["pci_bus_id"]) for name in ("gpu_info", "gpu_state")
             for labels, _ in series.samples(name)}  # fmt: skip
    if not slots:
        yield [("no GPU is read at present", "")]
        return
    heads = ["GPU", "State", "Work", "NVLinks", "tx/rx", "Errors", "PCIe", "tx/rx", "Clocks"]
    rows = _Gpus(series, first).rows(sorted(slots, key=lambda one: (len(one[0]), one)))
    if width >= _WIDE:
        heads.insert(1, "Slot")
    else:
        for row in rows:
            del row[1]
    yield from table(heads, rows, width)


class _Gpus:
    """The metrics of all GPUs, each looked up once."""

    def __init__(self, series: Series, first: Series | None) -> None:
        self._series = series
        self._state = series.by("gpu_state", *_GPU)
        self._busy, self._use = series.by("gpu_busy", *_GPU), series.by("gpu_utilization_ratio", *_GPU)
        self._links_up: dict[tuple[str, ...], int] = {}
        for labels, state in series.samples("nvlink_link_state"):
            slot = labels["gpu"], labels["pci_bus_id"]
            self._links_up[slot] = self._links_up.get(slot, 0) + (state in _UP)
        self._links_expected = series.by("nvlink_link_expected", *_GPU)
        self._links_here = series.by("nvlink_links", *_GPU)
        self._nvlink = self._both("nvlink")
        self._pcie = self._both("pcie")
        self._errors = series.sum_by(NVLINK_ERRORS, *_GPU)
        self._errors_before = first.sum_by(NVLINK_ERRORS, *_GPU) if first else {}
        self._generation = series.by("pcie_link_generation", *_GPU)
        self._lanes = series.by("pcie_link_width_lanes", *_GPU)
        self._lanes_expected = series.by("pcie_link_width_expected_lanes", *_GPU)
        self._lanes_most = series.by("pcie_link_width_max_lanes", *_GPU)
        self._degraded = series.by("pcie_link_degraded", *_GPU)
        self._reasons: dict[tuple[str, ...], list[str]] = {}
        for labels, holds in series.samples("gpu_clocks_event_reason"):
            reasons = self._reasons.setdefault((labels["gpu"], labels["pci_bus_id"]), [])
            if holds and labels["reason"] != _IDLE:
                reasons.append(labels["reason"].replace("_", " "))

    def _both(self, path: str) -> tuple[_Cells, _Cells]:
        ways = (f"{path}_transmit_utilization_ratio", f"{path}_receive_utilization_ratio")
        return self._series.by(ways[0], *_GPU), self._series.by(ways[1], *_GPU)

    def rows(self, slots: list[tuple[str, str]]) -> list[list[Segment]]:
        return [
            [
                (slot[0], ""),
                (slot[1], ""),
                self._state_cell(slot),
                self._work(slot),
                self._links(slot),
                (both_ways(self._nvlink[0].get(slot), self._nvlink[1].get(slot)), ""),
                self._error_cell(slot),
                self._pcie_link(slot),
                (both_ways(self._pcie[0].get(slot), self._pcie[1].get(slot)), ""),
                self._clocks(slot),
            ]
            for slot in slots
        ]

    def _state_cell(self, slot: tuple[str, str]) -> Segment:
        state = self._state.get(slot)
        if state is None:
            return ABSENT, ""
        return word_of(GPU_STATES, state), BAD if state else ""

    def _work(self, slot: tuple[str, str]) -> Segment:
        busy, use = self._busy.get(slot), self._use.get(slot)
        if busy == 0:
            return "idle", ""
        if use is not None:
            return f"{100 * use:.0f} %", ""
        return (ABSENT if busy is None else "busy"), ""

    def _links(self, slot: tuple[str, str]) -> Segment:
        if slot not in self._links_up:
            return ABSENT, ""
        up = self._links_up[slot]
        # What was not learned yet is held against what the GPU has.
        expected = self._links_expected.get(slot) or self._links_here.get(slot) or up
        return f"{up} of {expected:g}", BAD if up < self._links_expected.get(slot, 0.0) else ""

    def _error_cell(self, slot: tuple[str, str]) -> Segment:
        text = errors(self._errors.get(slot), self._errors_before.get(slot))
        return text, BAD if "+" in text else ""

    def _pcie_link(self, slot: tuple[str, str]) -> Segment:
        generation, lanes = self._generation.get(slot), self._lanes.get(slot)
        if generation is None and lanes is None:
            return ABSENT, ""
        text = " ".join([f"gen{generation:g}"] * (generation is not None) + [f"x{lanes:g}"] * (lanes is not None))
        expected, most = self._lanes_expected.get(slot), self._lanes_most.get(slot)
        if is_narrow(lanes, expected, most):
            return f"{text} of x{most if expected is None else expected:g}", BAD
        # The generation is judged under load only, by the daemon.
        return (f"{text} low", BAD) if self._degraded.get(slot) else (text, "")

    def _clocks(self, slot: tuple[str, str]) -> Segment:
        if slot not in self._reasons:
            return ABSENT, ""
        reasons = self._reasons[slot]
        return (", ".join(reasons), DOUBTFUL) if reasons else ("free", "")
