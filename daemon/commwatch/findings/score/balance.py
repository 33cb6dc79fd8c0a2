"""Balance: how near to its due the GPU comes that is worst off; the rest of the node waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.score.probes import Rates, Reached, at_most_one, of_probes
from commwatch.findings.score.records import PartReadings, Reading
from commwatch.units import format_percent, format_rate
from commwatch_exporters.node.model import Gpu, Inventory, NvLink, Probe, SlowestRank, Suspect
from commwatch_exporters.state_words import NVLINK_UP

_NEEDS = "a current result of a probe over two or more GPUs"
_SUSPECT_COST = 0.5
"""What a part that is surely slow costs: half, as it is not told by how much it is slow."""

_COUNTED = (("gpu", "GPUs", "here"), ("rdma_port", "RDMA ports", "active"), ("ethernet_port", "Ethernet ports", "up"))
"""Kinds of the inventory of which each that is gone takes its share; lanes and links are held against their GPU."""


def balance(facts: Facts, rates: Rates, thresholds: Thresholds) -> PartReadings:
    """The least of what each kind of measurement says.

    A rate is held against what is expected of it, not against those of the other GPUs: else the score would rise when
    the fast ones become slow. What the hardware alone says only takes away: a node that no probe has measured would
    be in perfect balance.
    """
    even = thresholds.score_even_ratio
    readings = [*_ranks(facts, rates, even), *_rates(rates, even)]
    if readings:
        readings += [*_suspects(facts), *_nvlinks(facts), *_pcie_links(facts), *_inventory(facts)]
    return PartReadings("balance", tuple(readings), least_counts=True, needs=_NEEDS)


def _ranks(facts: Facts, rates: Rates, even: float) -> Iterator[Reading]:
    """Time of the fastest rank over the slowest one's; of copies each GPU's own rate says more."""
    for probe, ratio in of_probes(facts, Probe.rank_balance_ratio):
        if probe in rates.copies:
            continue
        slowest = facts.node.part(SlowestRank, *probe.identity)
        words = f"the fastest rank takes {format_percent(ratio)} of the time of the slowest one"
        if slowest.rank:
            words += f", rank {slowest.rank} ({slowest.address})"
        yield Reading(f"probe {probe.name}", at_most_one(ratio / even), words)


def _rates(rates: Rates, even: float) -> Iterator[Reading]:
    for one in rates.copies.values():
        if one.gpus > 1:
            yield _worst(one.rates, "copies", even)
    if rates.pairs:
        yield _worst(rates.pairs, "pairs", even)


def _worst(rates: Sequence[Reached], what: str, even: float) -> Reading:
    worst = min(rates, key=lambda one: one.share)
    low = sum(one.share < even for one in rates)
    words = f"{format_rate(worst.bytes_per_second)} of {format_rate(worst.expected)} expected"
    if low:
        words += f"; {low} of {len(rates)} {what} below {format_percent(even)}"
    return Reading(worst.subject, at_most_one(worst.share / even), words)


def _suspects(facts: Facts) -> Iterator[Reading]:
    for part, confidence in facts.each(Suspect.ratio):
        subject = part.element if part.kind == "gpu" else f"{part.kind} {part.element}"
        words = f"what slow pairs have in common, {format_percent(confidence)} sure"
        yield Reading(subject, at_most_one(1.0 - _SUSPECT_COST * confidence), words)


def _nvlinks(facts: Facts) -> Iterator[Reading]:
    """The GPU with the smallest share of its expected links that carry traffic."""
    known: dict[str, list[bool]] = {}
    for link, flag in facts.each(NvLink.expected):
        if flag == 1 and (state := link.state) is not None:
            known.setdefault(link.index, []).append(state in NVLINK_UP)
    readings = [
        Reading(f"NVLinks of GPU{gpu}", sum(up) / len(up), f"{sum(up)} of {len(up)} carry traffic")
        for gpu, up in known.items()
    ]
    yield from _least(readings)


def _pcie_links(facts: Facts) -> Iterator[Reading]:
    """The GPU with the smallest share of its expected PCIe lanes."""
    readings = [
        Reading(f"PCIe link of GPU{gpu.index}", at_most_one(lanes / wanted), f"{lanes:g} of {wanted:g} lanes")
        for gpu, lanes in facts.each(Gpu.pcie_width_lanes)
        if (wanted := gpu.pcie_width_expected_lanes)
    ]
    yield from _least(readings)


def _inventory(facts: Facts) -> Iterator[Reading]:
    for kind, subject, here in _COUNTED:
        parts = facts.node.part(Inventory, kind)
        if parts.expected and (present := parts.present) is not None:
            words = f"{present:g} of {parts.expected:g} are {here}"
            yield Reading(subject, at_most_one(present / parts.expected), words)


def _least(readings: Sequence[Reading]) -> Sequence[Reading]:
    return [min(readings, key=lambda one: one.ratio)] if readings else []
