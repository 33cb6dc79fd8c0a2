"""Pairs of GPUs: slow ones, near ones that are slower than far ones, and the parts that slow ones have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.gpu_ways import PEERS, WAYS, GpuWays, all_parts, by_nvlink, by_pcie, gpus_of, ways_of
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Pair, Probe, Suspect

_RATES = (Pair.bandwidth_bytes_per_second, Pair.expected_bandwidth_bytes_per_second)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two GPUs, in the order of their indexes, with the slower direction of what they reached."""

    indexes: tuple[str, str]
    addresses: tuple[str, str]
    bandwidth: float
    """Bytes per second."""
    expected: float | None
    """In the same direction."""

    @property
    def share(self) -> float | None:
        """Of what is expected."""
        return self.bandwidth / self.expected if self.expected else None

    def is_slow(self, thresholds: Thresholds) -> bool:
        """Whether it is far below what is expected; False where nothing is."""
        return self.share is not None and self.share < thresholds.probe_bandwidth_utilization_low_ratio

    def component(self, ways: GpuWays) -> Component:
        """The pair with the parts on its way."""
        name = "-".join(f"GPU{index}" for index in self.indexes)
        return Component("pair", "-".join(sorted(self.addresses)), name, ways.pair(*self.addresses))


def _pairs(facts: Facts) -> tuple[_Pair, ...]:
    """The last matrix's result for each pair of GPUs; for ``Facts.derived``."""
    gpus = facts.derived(gpus_of)
    slowest: dict[tuple[str, str], tuple[float, float | None]] = {}
    for pair, rate in facts.each(Pair.bandwidth_bytes_per_second):
        source, target = pair.source, pair.target
        # gloo measures processes of the host, whose ranks are no GPUs.
        if pair.backend == "gloo" or source not in gpus or target not in gpus:
            continue
        ends = (source, target) if int(source) < int(target) else (target, source)
        known = slowest.get(ends)
        if known is None or rate < known[0]:
            slowest[ends] = (rate, pair.expected_bandwidth_bytes_per_second)
    return tuple(_Pair(ends, (gpus[ends[0]], gpus[ends[1]]), rate, should) for ends, (rate, should) in slowest.items())


def slow(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Pairs far below what is expected, or slow three times in a row with no part to blame.

    Most of them are one finding where no GPU is part of them all: a single GPU, or its link, is what two or three GPUs
    show as well.
    """
    least = thresholds.probe_bandwidth_utilization_low_ratio
    judged = [(pair, share) for pair in facts.derived(_pairs) if (share := pair.share) is not None]
    low = {pair.indexes: share for pair, share in judged if share < least}
    is_most = len(low) > thresholds.pairs_slow_share_ratio * len(judged)
    if is_most and not set.intersection(*map(set, low)):
        yield _all_slow(facts, thresholds, [share for _, share in judged], len(low))
        return
    alone = {
        frozenset(one.element.replace("GPU", "").split("-")): confidence
        for one, confidence in _sure(facts, thresholds)
        if one.kind == "pair"
    }
    if not low and not alone:
        return
    ways, parts = facts.derived(ways_of), [_suspect(facts, one) for one, _ in _parts(facts, thresholds)]
    for pair in facts.derived(_pairs):
        component = pair.component(ways)
        # A part that is named already stands for the pairs on whose way it lies.
        share = None if any(component.shares_part(part) for part in parts) else low.get(pair.indexes)
        confidence = alone.get(frozenset(pair.indexes))
        if share is None and confidence is None:
            continue
        evidence = [Evidence("bandwidth, slower direction", pair.bandwidth, "bytes_per_second")]
        if share is not None:
            evidence.insert(0, Evidence("share of the expected bandwidth", share, "ratio", least,
                                        "probe_bandwidth_utilization_low_ratio"))  # fmt: skip
        if confidence is not None:
            evidence.append(_confidence(confidence, thresholds))
        yield Match("pair_slow", component, tuple(evidence), _ONLY_PAIR if len(judged) == 1 else "")


_ONLY_PAIR = "the only pair: GPU, link or host; commwatch probe host_copies tells more"


def _all_slow(facts: Facts, thresholds: Thresholds, shares: list[float], low: int) -> Match:
    least = thresholds.probe_bandwidth_utilization_low_ratio
    evidence = (
        Evidence("median share of the expected bandwidth", median(shares), "ratio", least,
                 "probe_bandwidth_utilization_low_ratio"),
        Evidence("share of pairs that are slow", low / len(shares), "ratio", thresholds.pairs_slow_share_ratio,
                 "pairs_slow_share_ratio"),
    )  # fmt: skip
    component = Component("node", "", "", facts.derived(all_parts))
    return Match("pairs_all_slow", component, evidence, f"{low} of {len(shares)} pairs")


def near_and_slow(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Pairs under one PCIe switch that carry less than the usual pair that has to go through the CPU."""
    for pair, usual in _near_and_slow(facts, thresholds):
        evidence = (
            Evidence("share of what the usual pair across the CPU carries", pair.bandwidth / usual, "ratio",
                     thresholds.pair_nearer_low_ratio, "pair_nearer_low_ratio"),
            Evidence("bandwidth, slower direction", pair.bandwidth, "bytes_per_second"),
            Evidence("usual across the CPU", usual, "bytes_per_second"),
        )  # fmt: skip
        yield Match("pair_nearer_slower", pair.component(facts.derived(ways_of)), evidence)


def _near_and_slow(facts: Facts, thresholds: Thresholds) -> list[tuple[_Pair, float]]:
    """Such pairs, and the median of the pairs across the CPU in bytes per second."""
    pairs = facts.derived(_pairs)
    rates = [pair.bandwidth for pair in pairs]
    if not rates or min(rates) >= thresholds.pair_nearer_low_ratio * max(rates):
        return []  # whatever lies between them: spares a healthy node the search
    ways = facts.derived(ways_of)
    by_pci = [pair for pair in pairs if ways.only_over_pcie(*pair.addresses)]
    near = [pair for pair in by_pci if ways.share_switch(*pair.addresses)]
    far = [pair.bandwidth for pair in by_pci if ways.meet_at_cpu(*pair.addresses)]
    if not near or not far:
        return []
    usual = median(far)
    return [(pair, usual) for pair in near if pair.bandwidth < thresholds.pair_nearer_low_ratio * usual]


def suspects(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Parts that the slow cells of three matrices in a row have in common."""
    for part, confidence in _parts(facts, thresholds):
        yield Match("part_suspect", _suspect(facts, part), (_confidence(confidence, thresholds),))


def _sure(facts: Facts, thresholds: Thresholds) -> Iterable[tuple[Suspect, float]]:
    """The suspects that explain the slow pairs better than anything else."""
    for part, confidence in facts.each(Suspect.ratio):
        if confidence >= thresholds.suspect_confidence_min:
            yield part, confidence


def _parts(facts: Facts, thresholds: Thresholds) -> list[tuple[Suspect, float]]:
    """Those of them that are more than a pair with nothing of its own on the way."""
    return [(part, confidence) for part, confidence in _sure(facts, thresholds) if part.kind != "pair"]


def pairs_are_well(facts: Facts, thresholds: Thresholds, since: float | None) -> bool:
    """Whether a matrix that was measured after a time has no slow pair and no suspect; False where there is none.

    Args:
        since: seconds since 1970; None where it is not known, and no matrix is known to be later.
    """
    least = thresholds.probe_bandwidth_utilization_low_ratio
    shares = [share for pair in facts.derived(_pairs) if (share := pair.share) is not None]
    suspected = any(True for _ in facts.each(Suspect.ratio))
    return bool(shares) and min(shares) >= least and not suspected and _is_measured_after(facts, since)


def suspected_parts(facts: Facts, thresholds: Thresholds, since: float | None) -> frozenset[str]:
    """The parts that a matrix measured after a time points at; empty where there is none, or they are not known.

    Slow pairs that none of these explains show a further fault, which can slow the same traffic: their ways belong to
    them.

    Args:
        since: as for ``pairs_are_well``.
    """
    sure = [one for one, _ in _sure(facts, thresholds)]
    if not sure or not _is_measured_after(facts, since):
        return frozenset()
    ways, found = facts.derived(ways_of), []
    for one in sure:
        ends = [ways.gpus.get(name.removeprefix("GPU"), "") for name in one.element.split("-")]
        is_pair = one.kind == "pair" and len(ends) == 2 and all(ends)
        found.append(ways.pair(*ends) if is_pair else _suspected_parts(ways, one.kind, one.element))
    suspected = [Component("part", "", "", parts) for parts in found]
    slow = [pair.component(ways) for pair in facts.derived(_pairs) if pair.is_slow(thresholds)]
    found += [pair.parts for pair in slow if not any(pair.shares_part(part) for part in suspected)]
    return frozenset({PEERS}).union(*found) if all(found) else frozenset()


MEASURED_AFTER = (*_RATES, Suspect.ratio, Probe.last_completion_timestamp_seconds)
"""Metrics that ``pairs_are_well`` and ``suspected_parts`` read besides the paths."""


def _is_measured_after(facts: Facts, since: float | None) -> bool:
    completed = [at for probe, at in facts.each(Probe.last_completion_timestamp_seconds) if probe.collective == "pairs"]
    return since is not None and any(at >= since for at in completed)


def _confidence(confidence: float, thresholds: Thresholds) -> Evidence:
    least = thresholds.suspect_confidence_min
    return Evidence("confidence over three matrices", confidence, "ratio", least, "suspect_confidence_min")


_SUSPECTS: Final = {
    "link_group": "NVLinks of", "pcie_link": "PCIe link", "pcie_switch": "PCIe switch", "socket_link": "link",
}  # fmt: skip
"""Words before the element of a suspect, which alone does not say what it is."""


def _suspect(facts: Facts, part: Suspect) -> Component:
    kind, element = part.kind, part.element
    name = f"{_SUSPECTS.get(kind, '')} {element}".strip()
    return Component("part", f"{kind}/{element}", name, _suspected_parts(facts.derived(ways_of), kind, element))


def _suspected_parts(ways: GpuWays, kind: str, element: str) -> frozenset[str]:
    """The parts of a suspect; empty for the whole node: where it is that, or where more is not known."""
    if kind in ("pcie_link", "pcie_switch"):
        return frozenset({by_pcie(element)})
    ends = [ways.gpus.get(name.removeprefix("GPU"), "") for name in element.split("-")]
    if kind not in ("gpu", "link_group") or not all(ends):
        return frozenset()
    if kind == "link_group" and len(ends) == 1:
        return frozenset({by_nvlink(ends[0])})
    if len(ends) == 2:
        return ways.pair(ends[0], ends[1])
    return frozenset({by_nvlink(ends[0]), by_pcie(ends[0])})


_MATRIX_OPENS_AFTER = 240.0
"""Seconds: a slow matrix brings the next ones forward by 30 s each, so that two more have confirmed it by then."""

PAIRS = RuleSet(
    name="Pairs of GPUs",
    codes=(
        FindingCode(
            name="pair_slow",
            title="A pair of GPUs is slow",
            severity="warning",
            role="symptom",
            quantities=("bandwidth", "pairs"),
            meaning="The pair is below its path's expected or former rate. Jobs over both GPUs run at the speed of "
            "this pair. Two GPUs are one pair, which does not show whether a GPU, its link or the host is slow.",
            next_step="Run commwatch heatmap: it says what to check there; so do the causes listed. Until it is "
            "mended, keep jobs that communicate much off the node.",
            alert="CommwatchPairSlow",
            opens_after=_MATRIX_OPENS_AFTER,
        ),
        FindingCode(
            name="pairs_all_slow",
            title="Most pairs of GPUs are slow",
            severity="info",
            role="symptom",
            quantities=("bandwidth", "pairs"),
            meaning="Most pairs are far below their expected rate, and no GPU is part of them all: what they share "
            "is slow (virtualisation, IOMMU, ACS, a switch or its uplink, the link between CPUs), several GPUs are, or "
            "the model does not fit this machine.",
            next_step="Run nvidia-smi topo -p2p r, then check IOMMU, ACS, virtualisation and the switches, and an "
            "equal node; commwatch heatmap shows which pairs. Replace no card before. commwatch estimate shows the "
            "effect on a job.",
            opens_after=_MATRIX_OPENS_AFTER,
        ),
        FindingCode(
            name="pair_nearer_slower",
            title="GPUs under one PCIe switch are slower than distant ones",
            severity="info",
            role="symptom",
            quantities=("bandwidth", "pairs"),
            meaning="The pair shares a PCIe switch but is slower than pairs across the CPU. Jobs over both GPUs run "
            "slower.",
            next_step="Run sudo lspci -vv (ReqRedir+: ACS sends their traffic over the CPU), then check IOMMU, and "
            "lanes of the switch's uplink; until then train on GPUs of different switches.",
            alert="CommwatchPairNearerSlower",
            opens_after=_MATRIX_OPENS_AFTER,
        ),
        FindingCode(
            name="part_suspect",
            title="Slow pairs point at a part",
            severity="warning",
            role="symptom",
            quantities=("bandwidth", "pairs"),
            meaning="The same pairs were slow in three measurements in a row, and this part explains them best. Jobs "
            "run at the speed of the slow pairs.",
            next_step="Run commwatch heatmap: it says what to check there; so do the causes listed. Until it is "
            "mended, keep jobs that communicate much off the node.",
            alert="CommwatchPartSuspect",
            opens_after=0.0,
        ),
    ),
    rules=(
        Rule(
            slow,
            ("pair_slow", "pairs_all_slow"),
            reads=(*_RATES, Suspect.ratio, *WAYS),
            thresholds=("probe_bandwidth_utilization_low_ratio", "pairs_slow_share_ratio", "suspect_confidence_min"),
        ),
        Rule(
            near_and_slow,
            ("pair_nearer_slower",),
            reads=(Pair.bandwidth_bytes_per_second, *WAYS),
            details=(Pair.expected_bandwidth_bytes_per_second,),
            thresholds=("pair_nearer_low_ratio",),
        ),
        Rule(suspects, ("part_suspect",), reads=(Suspect.ratio,), details=WAYS, thresholds=("suspect_confidence_min",)),
    ),
)
