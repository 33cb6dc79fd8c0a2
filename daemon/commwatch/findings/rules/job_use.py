"""Jobs that leave their GPUs half used, some of them more than others, or one out; and what holds such a job up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from msgspec.structs import replace

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import gpu_of
from commwatch.findings.rules.jobs import NETWORK, network_parts
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Gpu, RdmaPort
from commwatch_exporters.node.parts import Column

_HOUR_LINKS = {
    "NVLink": Gpu.job_nvlink_use_ratio,
    "PCIe": Gpu.job_pcie_use_ratio,
    "network": Gpu.job_network_use_ratio,
}
_LATELY_LINKS = {
    "NVLink": Gpu.job_nvlink_recent_use_low_ratio,
    "PCIe": Gpu.job_pcie_recent_use_low_ratio,
    "network": Gpu.job_network_recent_use_low_ratio,
}
_LATELY = (Gpu.job_recent_use_low_ratio, Gpu.job_recent_use_high_ratio)
_HELD_UP = {"NVLink": "job_nvlink_bound", "PCIe": "job_pcie_bound", "network": "job_network_bound"}
"""Codes by what a job waits for."""

_PEERS_MIN = 2
"""Of two GPUs that talk to each other none can be silent alone."""
_RECENT = {"NVLink": Gpu.job_nvlink_recent_use_ratio, "PCIe": Gpu.job_pcie_recent_use_ratio}

_OPENS_AFTER = 120.0
"""Seconds: the hours of the GPUs of one job end one after the other."""


@dataclass(frozen=True, slots=True)
class _Use:
    """How one job used its GPUs over one time."""

    when: str
    """``over the last hour``."""
    least: Mapping[Gpu, float]
    """Share of the time, by GPU: over an hour its mean, lately what at least 8 of 10 min reached."""
    most: Mapping[Gpu, float]
    """The same; lately what at least 8 of 10 min did not exceed."""
    links: Mapping[str, float]
    """Of the busiest link of each kind, by the kind's name: mean, or what at least 8 of 10 min reached."""
    exchanged: float
    """The same of the NVLinks of the GPU that used them least; 0 where one has no number."""

    def is_half_used(self, thresholds: Thresholds) -> bool:
        """Whether its GPUs computed, and for less than half of the time."""
        return fmean(self.least.values()) >= thresholds.job_in_use_ratio and self.mean < thresholds.job_use_low_ratio

    @property
    def mean(self) -> float:
        """Over its GPUs, of the most that they were used."""
        return fmean(self.most.values())

    def uneven(self, thresholds: Thresholds) -> tuple[Gpu, Gpu, float] | None:
        """The GPU that was used least and that which was used most, where they are far apart, and the limit."""
        least, most = min(self.most, key=self.most.__getitem__), max(self.least, key=self.least.__getitem__)
        limit = thresholds.job_use_even_ratio * self.least[most]
        is_uneven = self.least[most] >= thresholds.job_in_use_ratio and self.most[least] < limit
        return (least, most, limit) if is_uneven else None


def half_used(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs whose GPUs compute for less than half of the time."""
    nvlinks = dict(facts.each(Gpu.nvlink_links))
    is_split = any(facts.each(RdmaPort.virtual_functions))
    for use in _uses(facts):
        if use.is_half_used(thresholds):
            links = dict(use.links)
            # What virtual functions move is not read; of GPUs that have NVLinks the other links alone say nothing.
            unread = is_split and links.get("network", 0.0) < thresholds.job_links_full_ratio
            if unread:
                links.pop("network", None)
            unread |= "NVLink" not in links and any(nvlinks.get(gpu) for gpu in use.most)
            evidence = [_half(use, thresholds)]
            evidence += [Evidence(f"use of {name} {use.when}", share, "ratio") for name, share in links.items()]
            yield Match("job_half_used", job_component(use.most), tuple(evidence), _words(links, unread, thresholds))


def uneven(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs that use some of their GPUs far less than others."""
    for use in _uses(facts):
        if (found := use.uneven(thresholds)) is not None:
            yield Match("job_uneven", job_component(use.most), _far_apart(use, *found))


def held_up(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs of which two signs of the same ten minutes agree: GPUs that wait, and a full link or a GPU that does not.

    A service has GPUs that are half used, and unevenly; only GPUs that all exchange much wait for each other.
    """
    for use in _uses_lately(facts):
        if not use.is_half_used(thresholds):
            continue
        half, full = _half(use, thresholds), thresholds.job_link_bound_ratio
        for name, share in use.links.items():
            if share >= full:
                evidence = Evidence(f"use of {name} {use.when}", share, "ratio", full, "job_link_bound_ratio")
                component = job_component(use.most)
                if name == "network":
                    component = replace(component, parts=component.parts | network_parts(facts))
                yield Match(_HELD_UP[name], component, (half, evidence))
        apart = use.uneven(thresholds)
        if apart is not None and use.exchanged >= thresholds.job_peers_carry_ratio:
            detail = f"GPU{apart[1].index} computes while GPU{apart[0].index} waits"
            yield Match("job_gpu_bound", job_component(use.most), (half, *_far_apart(use, *apart)), detail)


def left_out(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs that carried nothing over NVLink or PCIe in ten minutes while the others of their job carried much."""
    first_of = dict(facts.each(Gpu.job_first))
    found: dict[Gpu, list[Evidence]] = {}
    for name, column in _RECENT.items():
        shares = {gpu: share for gpu, share in facts.each(column) if gpu in first_of}
        for gpu, share in shares.items():
            peers = [one for other, one in shares.items() if other != gpu and first_of[other] == first_of[gpu]]
            most, usual = thresholds.job_gpu_silent_ratio, median(peers) if len(peers) >= _PEERS_MIN else 0.0
            if share < most and usual >= thresholds.job_peers_carry_ratio:
                found.setdefault(gpu, []).extend((
                    Evidence(f"use of {name} over the last 10 min", share, "ratio", most, "job_gpu_silent_ratio"),
                    Evidence(f"median use of {name} by the job's other GPUs", usual, "ratio"),
                ))  # fmt: skip
    for gpu, evidence in found.items():
        yield Match("job_gpu_left_out", gpu_of(gpu), tuple(evidence))


def _uses(facts: Facts) -> Iterator[_Use]:
    """Of each job over the last ten minutes, then over the last hour: the later says more of now."""
    yield from _uses_lately(facts)
    hour = Gpu.job_use_ratio
    yield from _uses_over(facts, "over the last hour", hour, hour, _HOUR_LINKS)


def _uses_lately(facts: Facts) -> Iterator[_Use]:
    yield from _uses_over(facts, "in 8 of the last 10 min", *_LATELY, _LATELY_LINKS)


def _uses_over(
    facts: Facts, when: str, least: Column[Gpu], most: Column[Gpu], links: Mapping[str, Column[Gpu]]
) -> Iterator[_Use]:
    lows, highs = dict(facts.each(least)), dict(facts.each(most))
    of_links = {name: dict(facts.each(column)) for name, column in links.items()}
    jobs: dict[float, list[Gpu]] = {}
    for gpu, first in facts.each(Gpu.job_first):
        if gpu in lows and gpu in highs:
            jobs.setdefault(first, []).append(gpu)
    for gpus in jobs.values():
        shares = {name: [known[gpu] for gpu in gpus if gpu in known] for name, known in of_links.items()}
        yield _Use(
            when,
            {gpu: lows[gpu] for gpu in gpus},
            {gpu: highs[gpu] for gpu in gpus},
            {name: max(known) for name, known in shares.items() if known},
            min(shares["NVLink"]) if len(shares["NVLink"]) == len(gpus) else 0.0,
        )


def _half(use: _Use, thresholds: Thresholds) -> Evidence:
    return Evidence(f"use of its GPUs {use.when}", use.mean, "ratio", thresholds.job_use_low_ratio, "job_use_low_ratio")


def _far_apart(use: _Use, least: Gpu, most: Gpu, limit: float) -> tuple[Evidence, Evidence]:
    return (
        Evidence(f"use of GPU{least.index} {use.when}", use.most[least], "ratio", limit, "job_use_even_ratio"),
        Evidence(f"use of GPU{most.index} {use.when}", use.least[most], "ratio"),
    )


def job_component(gpus: Iterable[Gpu]) -> Component:
    """A job as findings name it: by the first of its GPUs, and with all of them in its name."""
    known: Sequence[Gpu] = sorted(gpus, key=lambda gpu: int(gpu.index))
    names = ", ".join(f"GPU{gpu.index}" for gpu in known)
    return Component("process", known[0].address, f"job on {names}", frozenset(gpu.address for gpu in known))


def _words(links: Mapping[str, float], unread: bool, thresholds: Thresholds) -> str:
    idle, full = thresholds.job_links_idle_ratio, thresholds.job_links_full_ratio
    names = ", ".join(links)
    if busy := [name for name, share in links.items() if share >= full]:
        verb = "is" if len(busy) == 1 else "are"
        return f"{' and '.join(busy)} {verb} the bottleneck, near the limit; the GPUs wait for transfers"
    if unread or not links:
        return "how much its links were used is not known"
    if all(share < idle for share in links.values()):
        return f"near idle: {names}; the GPUs do not wait for transfers, but for data, the CPU or the program"
    return f"neither near idle nor near the limit: {names}; see when in a step they are used"


JOB_USE = RuleSet(
    name="Use of GPUs by jobs",
    codes=(
        FindingCode(
            name="job_half_used",
            title="A job leaves its GPUs half used",
            severity="info",
            role="state",
            meaning="For 8 of 10 min, or an hour on average, a job's GPUs were mostly idle. Unless its links are near "
            "their limit, the node is not at fault. An idle service looks the same.",
            next_step="Links idle: check data loading, CPU and storage (nvidia-smi dmon, py-spy, a profile of one "
            "step). Links near their limit (commwatch probe): larger batches, gradient accumulation, more "
            "overlap.",
            opens_after=_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="job_uneven",
            title="Job uses its GPUs unevenly",
            severity="info",
            role="state",
            meaning="For 8 of 10 min, or an hour on average, one GPU of a job computed far less than another. The "
            "busiest one sets the pace.",
            next_step="Check how work is divided (sample length, pipeline layers, experts), and whether the idle rank"
            " does CPU work (data loading, checkpoints).",
            opens_after=_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        *(
            FindingCode(
                name=name,
                title=f"{what[0].upper()}{what[1:]} holds up a job",
                severity="warning",
                role="symptom",
                meaning=f"For 8 of 10 min {what} was used above 80 % while the job's GPUs computed for less than half "
                "of the time: they probably wait for it. Parts of the node that are well can be too slow for a job.",
                next_step=step,
                alert="CommwatchJobHeldUp",
                opens_after=_OPENS_AFTER,
                replaces=("job_half_used",),
            )
            for name, what, step in (
                (
                    "job_network_bound",
                    "the network",
                    "Larger batches, gradient accumulation, sharding within the node, "
                    "or fewer nodes; check that all ports and RDMA are used (commwatch topology, NCCL_DEBUG=INFO).",
                ),
                (
                    "job_pcie_bound",
                    "PCIe",
                    "Check lanes and generation (commwatch topology); less offloading, larger "
                    "batches, pinned memory, or GPUs with NVLink.",
                ),
                ("job_nvlink_bound", "NVLink", "Larger batches, less tensor parallelism, more overlap."),
            )
        ),
        FindingCode(
            name="job_gpu_bound",
            title="One GPU holds up a job",
            severity="warning",
            role="state",
            meaning="For 8 of 10 min the GPUs of a job that exchange data over NVLink computed for less than half of "
            "the time, and one of them far more than another: they probably wait for it.",
            next_step="Check how work is divided (sample length, pipeline layers, experts), and the clocks and the "
            "PCIe link of the busiest GPU.",
            alert="CommwatchJobHeldUp",
            opens_after=_OPENS_AFTER,
            replaces=("job_half_used", "job_uneven"),
        ),
        FindingCode(
            name="job_gpu_left_out",
            title="A GPU of a job carries nothing while its peers do",
            severity="info",
            role="state",
            meaning="For 10 min the GPU moved no data over a kind of link that the job's other GPUs used much. Its "
            "rank takes no part, or its traffic takes another way.",
            next_step="Check whether its rank belongs to the same process groups (py-spy), and whether the driver "
            "lets it use its links: commwatch topology, nvidia-smi topo -p2p n.",
            opens_after=_OPENS_AFTER,
        ),
    ),
    rules=(
        Rule(
            left_out,
            ("job_gpu_left_out",),
            reads=(Gpu.job_first, *_RECENT.values()),
            thresholds=("job_gpu_silent_ratio", "job_peers_carry_ratio"),
        ),
        Rule(
            half_used,
            ("job_half_used",),
            reads=(Gpu.job_first, Gpu.job_use_ratio, *_LATELY),
            details=(*_HOUR_LINKS.values(), *_LATELY_LINKS.values(), Gpu.nvlink_links, RdmaPort.virtual_functions),
            thresholds=("job_use_low_ratio", "job_in_use_ratio", "job_links_idle_ratio", "job_links_full_ratio"),
        ),
        Rule(
            uneven,
            ("job_uneven",),
            reads=(Gpu.job_first, Gpu.job_use_ratio, *_LATELY),
            details=(*_HOUR_LINKS.values(), *_LATELY_LINKS.values()),
            thresholds=("job_use_even_ratio", "job_in_use_ratio"),
        ),
        Rule(
            held_up,
            (*_HELD_UP.values(), "job_gpu_bound"),
            reads=(Gpu.job_first, *_LATELY, *_LATELY_LINKS.values()),
            details=NETWORK,
            thresholds=(
                "job_use_low_ratio",
                "job_in_use_ratio",
                "job_link_bound_ratio",
                "job_use_even_ratio",
                "job_peers_carry_ratio",
            ),
        ),
    ),
)
