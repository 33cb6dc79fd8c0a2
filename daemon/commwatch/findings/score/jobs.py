"""The jobs on the node as the score has them: how evenly they load its GPUs, and how each fares in a word; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Finding
from commwatch.findings.rules.job_use import job_component
from commwatch.findings.score.probes import at_most_one
from commwatch.findings.score.records import JobWord, Reading
from commwatch.units import format_percent
from commwatch_exporters.node.model import Gpu

_BUSY = "busy time"
_USES = {
    _BUSY: Gpu.job_recent_use_ratio,
    "NVLink": Gpu.job_nvlink_recent_use_ratio,
    "PCIe": Gpu.job_pcie_recent_use_ratio,
    "network": Gpu.job_network_recent_use_ratio,
}
_OF_EACH_GPU = (_BUSY, "NVLink", "PCIe")
_WORDS = {
    "job_network_bound": "held up by the network",
    "job_pcie_bound": "held up by PCIe",
    "job_nvlink_bound": "held up by NVLink",
    "job_gpu_bound": "held up by one GPU",
    "job_uneven": "uneven",
    "job_half_used": "half used",
}
"""By code of the finding about a job."""

Job = dict[Gpu, Mapping[str, float]]
"""Of each GPU of a job: mean use in the last ten minutes by what was used."""


def jobs_of(facts: Facts) -> list[Job]:
    """The jobs that have been on the node for ten minutes; without any the node counts as free."""
    uses = {what: dict(facts.each(column)) for what, column in _USES.items()}
    jobs: dict[float, Job] = {}
    for gpu, first in facts.each(Gpu.job_first):
        jobs.setdefault(first, {})[gpu] = {what: known[gpu] for what, known in uses.items() if gpu in known}
    return list(jobs.values())


def loads(jobs: Sequence[Job], thresholds: Thresholds) -> Iterator[Reading]:
    """Of each job and of busy time, NVLink and PCIe what the least loaded GPU has of the most loaded one.

    Links that none of the GPUs uses to a tenth, and GPUs that only hold a process, carry no load to speak of.
    """
    least_load = dict.fromkeys(_OF_EACH_GPU, thresholds.job_peers_carry_ratio) | {_BUSY: thresholds.job_in_use_ratio}
    for job in jobs:
        for what in _OF_EACH_GPU:
            known = {gpu: use[what] for gpu, use in job.items() if what in use}
            if len(known) < 2 or max(known.values()) < least_load[what]:
                continue
            least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
            words = (
                f"GPU{least.index} {format_percent(known[least])}, GPU{most.index} {format_percent(known[most])} "
                "in the last 10 min"
            )
            ratio = known[least] / known[most] / thresholds.score_even_ratio
            yield Reading(f"{what} of {job_component(job).name}", at_most_one(ratio), words)


def words_of(jobs: Sequence[Job], findings: Sequence[Finding], thresholds: Thresholds) -> Iterator[JobWord]:
    """How each job fares, by the finding about it, else by how much it uses its GPUs."""
    said = {one.component.identity: _WORDS[one.code] for one in reversed(findings) if one.code in _WORDS}
    for job in jobs:
        component = job_component(job)
        means = {what: [use[what] for use in job.values() if what in use] for what in _USES}
        use = {what: sum(known) / len(known) for what, known in means.items() if known}
        yield JobWord(component.name, said.get(component.identity) or _unremarked(use, thresholds), use)


def _unremarked(use: Mapping[str, float], thresholds: Thresholds) -> str:
    if _BUSY not in use:
        return "use not known"
    if use[_BUSY] < thresholds.job_in_use_ratio:
        return "computes nothing"
    return "no remarks" if use[_BUSY] >= thresholds.job_use_low_ratio else "computes now and then"
