"""Jobs that leave their GPUs half used for an hour, or one of them out. Worth knowing, and no faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import gpu_of
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Gpu

_LINKS = {
    "NVLink": Gpu.job_nvlink_use_ratio,
    "PCIe": Gpu.job_pcie_use_ratio,
    "network": Gpu.job_network_use_ratio,
}

_PEERS_MIN = 2
"""Of two GPUs that talk to each other none can be silent alone."""
_RECENT = {"NVLink": Gpu.job_nvlink_recent_use_ratio, "PCIe": Gpu.job_pcie_recent_use_ratio}

_OPENS_AFTER = 120.0
"""Seconds: the hours of the GPUs of one job end one after the other."""


def half_used(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs whose GPUs compute for less than half of an hour."""
    least, most = thresholds.job_in_use_ratio, thresholds.job_use_low_ratio
    idle, full = thresholds.job_links_idle_ratio, thresholds.job_links_full_ratio
    links = {name: dict(facts.each(column)) for name, column in _LINKS.items()}
    nvlinks = dict(facts.each(Gpu.nvlink_links))
    for gpus in _jobs(facts).values():
        use = fmean(gpus.values())
        if not least <= use < most:
            continue
        of_links = {
            name: max(known)
            for name, numbers in links.items()
            if (known := [numbers[one] for one in gpus & numbers.keys()])
        }
        # Of GPUs that have NVLinks the other links alone say nothing.
        unread = "NVLink" not in of_links and any(nvlinks.get(gpu) for gpu in gpus)
        evidence = [Evidence("use of its GPUs over the last hour", use, "ratio", most, "job_use_low_ratio")]
        evidence += [Evidence(f"use of {name} over the last hour", share, "ratio") for name, share in of_links.items()]
        yield Match(
            "job_half_used",
            job_component(gpus),
            tuple(evidence),
            _words(of_links, unread, idle, full),
        )


def uneven(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs that use some of their GPUs far less than others."""
    for gpus in _jobs(facts).values():
        least, most = min(gpus, key=gpus.__getitem__), max(gpus, key=gpus.__getitem__)
        limit = thresholds.job_use_even_ratio * gpus[most]
        if gpus[most] >= thresholds.job_in_use_ratio and gpus[least] < limit:
            evidence = (
                Evidence(
                    f"use of GPU{least.index} over the last hour", gpus[least], "ratio", limit, "job_use_even_ratio"
                ),
                Evidence(f"use of GPU{most.index} over the last hour", gpus[most], "ratio"),
            )
            yield Match("job_uneven", job_component(gpus), evidence)


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


def _jobs(facts: Facts) -> Mapping[float, dict[Gpu, float]]:
    """By the first GPU of a job: the use of each of its GPUs."""
    use = dict(facts.each(Gpu.job_use_ratio))
    jobs: dict[float, dict[Gpu, float]] = {}
    for gpu, first in facts.each(Gpu.job_first):
        if gpu in use:
            jobs.setdefault(first, {})[gpu] = use[gpu]
    return jobs


def job_component(gpus: Iterable[Gpu]) -> Component:
    """The job on these GPUs."""
    known: Sequence[Gpu] = sorted(gpus, key=lambda gpu: int(gpu.index))
    names = ", ".join(f"GPU{gpu.index}" for gpu in known)
    return Component("process", known[0].address, f"job on {names}", frozenset(gpu.address for gpu in known))


def _words(links: Mapping[str, float], unread: bool, idle: float, full: float) -> str:
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
            meaning="For an hour a job's GPUs were mostly idle. Unless its links are near their limit, the node is "
            "not at fault. An idle service looks the same.",
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
            meaning="Over an hour one GPU of a job computed far less than another. The busiest one sets the pace.",
            next_step="Check how work is divided (sample length, pipeline layers, experts), and whether the idle rank"
            " does CPU work (data loading, checkpoints).",
            opens_after=_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
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
            reads=(Gpu.job_first, Gpu.job_use_ratio),
            details=(*_LINKS.values(), Gpu.nvlink_links),
            thresholds=("job_use_low_ratio", "job_in_use_ratio", "job_links_idle_ratio", "job_links_full_ratio"),
        ),
        Rule(
            uneven,
            ("job_uneven",),
            reads=(Gpu.job_first, Gpu.job_use_ratio),
            thresholds=("job_use_even_ratio", "job_in_use_ratio"),
        ),
    ),
)
