"""The verdict on NCCL settings: all rules over all processes, equal remarks joined, and counts of them for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from commwatch.jobs.settings.adapters import judge_adapters
from commwatch.jobs.settings.facts import NodeFacts, ProcessSettings
from commwatch.jobs.settings.names import judge_names
from commwatch.jobs.settings.network import judge_network
from commwatch.jobs.settings.process import View
from commwatch.jobs.settings.ranks import judge_ranks
from commwatch.jobs.settings.records import SEVERITIES, SettingRemark
from commwatch.jobs.settings.tuning import judge_tuning
from commwatch.jobs.settings.values import judge_origins, judge_values
from commwatch.jobs.settings.variables import KnownVariables, public_name
from commwatch.jobs.settings.within_node import judge_within_node

MOST_COUNTS = 64
"""Of more, the most severe are given."""

Counted: TypeAlias = "tuple[str, str, str]"
"""Code, variable or ``other``, severity: what may leave the node."""

_RULES = (judge_names, judge_origins, judge_values, judge_within_node, judge_network, judge_adapters, judge_tuning)


def judge_settings(
    processes: Sequence[ProcessSettings], node: NodeFacts, known: KnownVariables
) -> tuple[SettingRemark, ...]:
    """What is to be said of the settings of all processes on a node; most severe first, then by variable.

    Args:
        processes: whose settings were read; those that were not read are for the caller to count and to name.
        node: what is here; what is None there is not judged by.
        known: all names, as ``variables.known_variables`` gives them.
    """
    remarks = [remark for process in processes for remark in judge_process(process, node, known)]
    return joined_remarks((*remarks, *judge_ranks(processes, node, known)))


def judge_process(process: ProcessSettings, node: NodeFacts, known: KnownVariables) -> list[SettingRemark]:
    """What is to be said of one process by itself; arguments as for ``judge_settings``."""
    view = View(process, node, known)
    return [remark for rule in _RULES for remark in rule(view)]


def joined_remarks(remarks: Iterable[SettingRemark]) -> tuple[SettingRemark, ...]:
    """Equal remarks as one, most severe first, then by variable."""
    return tuple(sorted(_joined(remarks), key=_order))


def _joined(remarks: Iterable[SettingRemark]) -> list[SettingRemark]:
    """The same remark on several processes as one."""
    pids: dict[SettingRemark, set[int]] = {}
    for remark in remarks:
        pids.setdefault(replace(remark, pids=()), set()).update(remark.pids)
    return [replace(remark, pids=tuple(sorted(those))) for remark, those in pids.items()]


def remark_counts(
    remarks: Iterable[SettingRemark], known: KnownVariables, most: int = MOST_COUNTS
) -> dict[Counted, int]:
    """On how many processes each remark is made; most severe first, no value and no name that a job made up.

    Args:
        remarks: as ``judge_settings`` gives them.
        known: all names.
        most: how many at most.
    """
    pids: dict[Counted, set[int]] = {}
    for remark in remarks:
        pids.setdefault((remark.code, public_name(remark.variable, known), remark.severity), set()).update(remark.pids)
    ordered = sorted(pids, key=lambda key: (SEVERITIES.index(key[2]), key[0], key[1]))
    return {key: len(pids[key]) for key in ordered[:most]}


def _order(remark: SettingRemark) -> tuple[int, str, str, tuple[int, ...]]:
    return SEVERITIES.index(remark.severity), remark.variable, remark.code, remark.pids
