"""The audit of NCCL settings: of processes, of an environment, of a file. Blocks: for workers and commands only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from commwatch.jobs.settings.facts import NodeFacts, ProcessSettings
from commwatch.jobs.settings.judge import joined_remarks, judge_process, judge_settings
from commwatch.jobs.settings.node_network import read_node_network
from commwatch.jobs.settings.process_environment import read_process_settings, settings_of_environment, settings_of_file
from commwatch.jobs.settings.ranks import judge_ranks
from commwatch.jobs.settings.records import AuditRecord, JobProcess, SettingRemark, UnreadProcess
from commwatch.jobs.settings.topology_facts import node_facts
from commwatch.jobs.settings.variables import known_variables
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.nvlink import DriverFacts
from commwatch.node.topology.sysfs import read_sysfs
from commwatch.sources.base import Report

AUDIT_SECONDS = 3.0
"""An audit ends after this time. Thousands of processes, or one with thousands of names, may be left over."""
_MOST_REMARKS = 256
_MOST_PIDS = 64
_MOST_PLACES = 512


def read_facts(driver: DriverFacts, sysfs: Path, procfs: Path) -> NodeFacts:
    """The facts of this machine that settings are judged by.

    Args:
        driver: what is known of it already.
        sysfs: usually ``/sys``; the PCIe tree, interfaces and RDMA ports are read there.
    """
    return node_facts(build_topology(read_sysfs(sysfs, procfs), driver), read_node_network(sysfs, procfs))


def audit_environment(environment: Mapping[str, str], node: NodeFacts) -> AuditRecord:
    """The audit of a program that would be started with an environment, such as ``os.environ``, on this node.

    Args:
        environment: all of it; NCCL's files are looked for as NCCL would.
        node: the facts for the judgement; ``NodeFacts()`` if none are known.
    """
    return _audit_of(settings_of_environment(environment, known_variables()), node)


def audit_file(path: Path, node: NodeFacts) -> AuditRecord:
    """The audit of a file in the form of nccl.conf; arguments as for ``audit_environment``.

    Raises:
        OSError: as the kernel gave it.
    """
    return _audit_of(settings_of_file(path, known_variables()), node)


def audit_processes(
    pids: Iterable[int],
    node: NodeFacts,
    procfs: Path,
    report: Report = lambda process: None,
    monotonic: Callable[[], float] = time.monotonic,
) -> AuditRecord:
    """The audit of processes, and of differences between the ranks of a job; it ends after ``AUDIT_SECONDS``.

    Args:
        pids: of processes, such as those on the GPUs; those that have ended are in neither number.
        report: called with each process, by its id, before it is read, and of "" after the last.
        monotonic: seconds.
    """
    until = monotonic() + AUDIT_SECONDS
    known = known_variables()

    def begin(pid: int) -> bool:
        report(str(pid))
        return monotonic() < until

    reading = read_process_settings(pids, known, procfs, begin)
    report("")
    unread, judged, remarks = list(reading.unread), list[ProcessSettings](), list[SettingRemark]()
    for process in reading.processes:
        if monotonic() < until:
            judged.append(process)
            remarks += judge_process(process, node, known)
        elif process.pid is not None:
            unread.append(UnreadProcess(process.pid, "not_reached"))
    remarks += judge_ranks(judged, node, known)
    return AuditRecord(
        len(judged), tuple(unread), len(unread), joined_remarks(remarks), jobs=_jobs(judged),
        single_node=tuple(one.pid for one in judged if one.single_node and one.pid is not None),
        processes=tuple(_places(judged))[:_MOST_PLACES],
    )  # fmt: skip


def _places(processes: Iterable[ProcessSettings]) -> Iterator[JobProcess]:
    for one in processes:
        rank = int(one.rank) if one.rank else None
        if one.pid is not None and (rank is not None or one.dumps or one.logs):
            yield JobProcess(one.pid, rank, one.dumps, one.logs)


def _jobs(processes: Iterable[ProcessSettings]) -> tuple[tuple[int, ...], ...]:
    ranks: dict[str, list[int]] = {}
    for process in processes:
        if process.job and process.pid is not None:
            ranks.setdefault(process.job, []).append(process.pid)
    return tuple(map(tuple, ranks.values()))


def shortened(audit: AuditRecord) -> AuditRecord:
    """An audit cut to the size of one answer."""
    return replace(
        audit,
        unread=audit.unread[:_MOST_PIDS],
        remarks=tuple(
            replace(one, processes=one.process_count, pids=one.pids[:_MOST_PIDS])
            for one in audit.remarks[:_MOST_REMARKS]
        ),
        remarks_left_out=max(0, len(audit.remarks) - _MOST_REMARKS),
    )


def _audit_of(settings: ProcessSettings, node: NodeFacts) -> AuditRecord:
    return AuditRecord(1, remarks=judge_settings((settings,), node, known_variables()))
