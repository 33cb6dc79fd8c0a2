"""Jobs that have stopped moving data: stuck, silent, or stopped by someone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.job_use import job_component
from commwatch.findings.rules.jobs import NETWORK, network_parts
from commwatch.findings.rules.rule_set import STATE_CLOSES_AFTER, FindingCode, Rule, RuleSet
from commwatch.jobs.ranks import REASONS
from commwatch_exporters.node.model import Gpu

_RIGHTS = {
    1.0: "seen with the rights of the daemon: state, CPU time and switches",
    2.0: "seen with the rights of root or of the job's user",
}


def stuck(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs whose kernels only wait, by how long they do."""
    degrees = (
        ("job_stuck_long", "job_stuck_long_seconds"),
        ("job_stuck", "job_stuck_seconds"),
        ("job_stuck_suspected", "job_stuck_suspected_seconds"),
    )
    for gpu, seconds in facts.each(Gpu.job_stuck_seconds):
        for code, name in degrees:
            limit = getattr(thresholds, name)
            if seconds >= limit:
                component = _component(facts, gpu)
                evidence = Evidence("time without payload while kernels only wait", seconds, "seconds", limit, name)
                detail = "; ".join(_odd(facts, component))
                # A rank on another node is reached over the network of this one: any part of it can be the cause.
                component = msgspec.structs.replace(component, parts=component.parts | network_parts(facts))
                yield Match(code, component, (evidence,), detail, facts.now - seconds)
                break


def silent(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs whose GPUs are idle while all processes sleep."""
    limit = thresholds.job_stuck_suspected_seconds
    for gpu, seconds in facts.each(Gpu.job_silent_seconds):
        if seconds >= limit:
            component = _component(facts, gpu)
            evidence = Evidence(
                "time without payload while all processes sleep", seconds, "seconds", limit,
                "job_stuck_suspected_seconds",
            )  # fmt: skip
            yield Match("job_silent", component, (evidence,), "; ".join(_odd(facts, component)))


def stopped(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs that wait for a process that someone has stopped."""
    for gpu, count in facts.each(Gpu.job_stopped_processes):
        yield Match("job_stopped", _component(facts, gpu), (Evidence("stopped processes", count),))


def _component(facts: Facts, gpu: Gpu) -> Component:
    first_of = dict(facts.each(Gpu.job_stuck_first))
    own = first_of.get(gpu)
    job = job_component({gpu, *(one for one, first in first_of.items() if own is not None and first == own)})
    return msgspec.structs.replace(job, key=gpu.address)


def _odd(facts: Facts, component: Component) -> Iterator[str]:
    """The rank that differs from the others, with its reason and how it was seen."""
    for gpu, reason, rights in facts.each_keyed(Gpu.job_odd_rank):
        if gpu.address in component.parts:
            yield (
                f"the rank on GPU{gpu.index} differs from its peers: it {REASONS.get(reason, reason)} "
                f"({_RIGHTS.get(rights, 'seen in /proc')})"
            )


_ALIKE = "A rank that works on the CPU alone while its peers wait looks the same."

JOB_STUCK = RuleSet(
    name="Stuck jobs",
    codes=(
        FindingCode(
            name="job_stuck_suspected",
            title="Job moves no data and its kernels only wait",
            severity="info",
            role="symptom",
            meaning="After at least 10 min of traffic nothing has moved for 40 s: the GPUs are busy at low power. "
            f"{_ALIKE}",
            next_step="Wait for 5 min, or ask the ranks: py-spy dump, Flight Recorder.",
            opens_after=0.0,
            closes_after=STATE_CLOSES_AFTER,
        ),
        FindingCode(
            name="job_stuck",
            title="Job is stuck",
            severity="warning",
            role="symptom",
            meaning="For 5 min the job moved nothing over NVLink, PCIe, network or disks, while its kernels wait for a "
            f"rank that does not arrive. {_ALIKE}",
            next_step="Look at links and ports with errors. Tell the job's owner, who saves the stacks (py-spy dump "
            "--pid PID) of the rank named here, else of all, before the job is cancelled.",
            alert="CommwatchJobStuck",
            opens_after=0.0,
            replaces=("job_stuck_suspected",),
        ),
        FindingCode(
            name="job_stuck_long",
            title="Job has been stuck for long",
            severity="warning",
            role="symptom",
            meaning="For 15 min, longer than the usual time-out of a collective, nothing has moved. A service without "
            "requests whose kernels spin, and a rank that merges a checkpoint, look the same.",
            next_step="Ask the job's owner whether it is meant to wait; if not, the owner saves dumps of all ranks "
            "(Flight Recorder, py-spy), then ends and restarts it.",
            alert="CommwatchJobHung",
            opens_after=0.0,
            replaces=("job_stuck", "job_stuck_suspected"),
        ),
        FindingCode(
            name="job_silent",
            title="Job is silent: idle GPUs and sleeping processes",
            severity="info",
            role="state",
            meaning="After at least 10 min of traffic the GPUs are idle, and all processes run for less than 2 % of "
            "their mean. It waits for data, storage, another node or requests; no counter tells which.",
            next_step="A service without requests is well. Of training, read its log and ask the ranks: py-spy dump.",
            opens_after=0.0,
        ),
        FindingCode(
            name="job_stopped",
            title="Process of a job is stopped",
            severity="info",
            role="state",
            meaning="A signal (SIGSTOP) or a debugger has stopped a process of a job; its peers wait. The node is "
            "not at fault.",
            next_step="Ask its owner; kill -CONT PID lets it go on.",
            opens_after=0.0,
        ),
    ),
    rules=(
        Rule(
            stuck,
            ("job_stuck_long", "job_stuck", "job_stuck_suspected"),
            reads=(Gpu.job_stuck_seconds,),
            details=(Gpu.job_stuck_first, Gpu.job_odd_rank, *NETWORK),
            thresholds=("job_stuck_suspected_seconds", "job_stuck_seconds", "job_stuck_long_seconds"),
        ),
        Rule(
            silent,
            ("job_silent",),
            reads=(Gpu.job_silent_seconds,),
            details=(Gpu.job_stuck_first, Gpu.job_odd_rank),
            thresholds=("job_stuck_suspected_seconds",),
        ),
        Rule(
            stopped,
            ("job_stopped",),
            reads=(Gpu.job_stopped_processes,),
            details=(Gpu.job_stuck_first,),
        ),
    ),
)
