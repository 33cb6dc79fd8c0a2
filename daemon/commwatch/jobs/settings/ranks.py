"""Differences between the ranks of one job on this node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from commwatch.jobs.settings.facts import NodeFacts, ProcessSettings
from commwatch.jobs.settings.process import Said, View
from commwatch.jobs.settings.records import SettingSeverity
from commwatch.jobs.settings.variables import KnownVariables

_MAY_BE_MEANT = frozenset({"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"})
"""Some launchers give each rank the adapter next to its GPU."""


def judge_ranks(processes: Sequence[ProcessSettings], node: NodeFacts, known: KnownVariables) -> Said:
    """Settings that some ranks of a job have and others have not, or with another value.

    Ranks whose launcher names no job are not compared.
    """
    jobs: defaultdict[str, list[ProcessSettings]] = defaultdict(list)
    for process in processes:
        if process.job:
            jobs[process.job].append(process)
    for ranks in jobs.values():
        # Helpers that a rank starts inherit its rank.
        if len({rank.rank for rank in ranks}) > 1:
            yield from _differences(ranks, node, known)
            yield from _namespaces(ranks, node, known)


def _differences(ranks: Sequence[ProcessSettings], node: NodeFacts, known: KnownVariables) -> Said:
    values = [{one.name: one for one in rank.settings} for rank in ranks]
    for name in sorted(set().union(*values)):
        variable = known.variables.get(name)
        if variable is not None and (variable.per_rank or variable.reader == "cuda"):
            continue
        have = {None if (found := one.get(name)) is None else (found.value,) for one in values}
        if len(have) == 1:
            continue
        severity: SettingSeverity = "suspicious" if variable is None or name in _MAY_BE_MEANT else "harmful"
        if variable is None or variable.reader != "nccl":
            severity = "suspicious"
        without = sum(name not in one for one in values)
        words = f"{without} of {len(ranks)} ranks do not have it." if without else "The ranks have different values."
        for rank, settings in zip(ranks, values, strict=True):
            if name in settings:
                yield View(rank, node, known).remark(
                    "ranks_differ", name, severity, words, "Give all ranks of a job the same settings."
                )


def _namespaces(ranks: Sequence[ProcessSettings], node: NodeFacts, known: KnownVariables) -> Said:
    spaces = {rank.network_namespace for rank in ranks}
    if len(spaces) < 2 or "" in spaces:
        return
    for view in (View(rank, node, known) for rank in ranks):
        if view.number("NCCL_IPC_USE_ABSTRACT_SOCKET") == 1:
            words = "The ranks are in different network namespaces, which abstract sockets do not cross."
            yield view.remark("namespaces_differ", "NCCL_IPC_USE_ABSTRACT_SOCKET", "suspicious", words, "Set it to 0.")
