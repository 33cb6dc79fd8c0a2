"""What of the settings audit may leave the node: counts by code, known name and severity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from commwatch.jobs.settings.facts import SEVERITIES, RemarkCode, SettingRemark, SettingSeverity

MOST_COUNTS = 64
"""Of more, the gravest are given."""

Counted: TypeAlias = "tuple[RemarkCode, str, SettingSeverity]"
"""Code, variable or ``other``, severity."""


def remark_counts(remarks: Iterable[SettingRemark], most: int = MOST_COUNTS) -> dict[Counted, int]:
    """On how many processes each remark is made; the gravest first, no value and no name that a job made up.

    Args:
        remarks: as ``judge_settings`` gives them.
        most: how many at most.
    """
    pids: dict[Counted, set[int]] = {}
    for remark in remarks:
        pids.setdefault((remark.code, remark.label, remark.severity), set()).update(remark.pids)
    ordered = sorted(pids, key=lambda key: (SEVERITIES.index(key[2]), key[0], key[1]))
    return {key: len(pids[key]) for key in ordered[:most]}
