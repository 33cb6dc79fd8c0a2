"""The verdict on NCCL settings: all rules over all processes, equal remarks joined, and counts of them for metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from commwatch.jobs.settings.conditions import CONDITIONS, FIGURES
from commwatch.jobs.settings.facts import NodeFacts, Origin, ProcessSettings
from commwatch.jobs.settings.names import judge_names
from commwatch.jobs.settings.process import Said, View
from commwatch.jobs.settings.ranks import judge_ranks
from commwatch.jobs.settings.records import SEVERITIES, SettingRemark
from commwatch.jobs.settings.values import LEVELS, chosen, level_reached, read_number
from commwatch.jobs.settings.variables import KnownVariables, RemarkRow, public_name

WHERE: dict[Origin, str] = {
    "environment": "the environment",
    "conf_file": "the file of NCCL_CONF_FILE",
    "home_file": "~/.nccl.conf",
    "system_file": "/etc/nccl.conf",
}

MOST_COUNTS = 64
"""Of more, the most severe are given."""

Counted: TypeAlias = "tuple[str, str, str]"
"""Code, variable or ``other``, severity: what may leave the node."""


def judge_settings(
    processes: Sequence[ProcessSettings], node: NodeFacts, known: KnownVariables
) -> tuple[SettingRemark, ...]:
    """The remarks on the settings of all processes on a node; most severe first, then by variable.

    Args:
        processes: whose settings were read; those that were not read are for the caller to count and to name.
        node: what is here; what is None there is not judged by.
        known: all names, as ``variables.known_variables`` gives them.
    """
    remarks = [remark for process in processes for remark in judge_process(process, node, known)]
    return joined_remarks((*remarks, *judge_ranks(processes, node, known)))


def judge_process(process: ProcessSettings, node: NodeFacts, known: KnownVariables) -> list[SettingRemark]:
    """The remarks on one process by itself; arguments as for ``judge_settings``."""
    view = View(process, node, known)
    return [*judge_names(view), *_of_origins(view), *_of_values(view), *_of_rows(view)]


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
    """
    pids: dict[Counted, set[int]] = {}
    for remark in remarks:
        pids.setdefault((remark.code, public_name(remark.variable, known), remark.severity), set()).update(remark.pids)
    ordered = sorted(pids, key=lambda key: (SEVERITIES.index(key[2]), key[0], key[1]))
    return {key: len(pids[key]) for key in ordered[:most]}


def _order(remark: SettingRemark) -> tuple[int, str, str, tuple[int, ...]]:
    return SEVERITIES.index(remark.severity), remark.variable, remark.code, remark.pids


# --- rows of data/nccl_variables.yaml ---


def _of_rows(view: View) -> Said:
    """Settings that are harmful on this node, by the rows beside the variables."""
    for name, variable in view.known.variables.items():
        said = set[str]()
        for row in variable.remarks:
            if row.code not in said and _holds(row, view.text(name), view):
                said.add(row.code)
                severity = "note" if row.between_nodes and view.process.single_node else row.severity
                remark = view.remark(row.code, name, severity, _filled(row.words, view), _filled(row.next_step, view))
                yield replace(remark, fallback=row.fallback if severity == row.severity else "")


def _holds(row: RemarkRow, text: str | None, view: View) -> bool:
    if row.unset != (text is None):
        return False
    number = read_number(text or "").value
    return (
        (not row.value or number in row.value)
        and (row.minimum is None or number >= row.minimum)
        and (row.maximum is None or number <= row.maximum)
        and (not row.word or (text or "").upper() in row.word)
        and all(CONDITIONS[name](view) for name in row.when)
    )


def _filled(words: str, view: View) -> str:
    return re.sub(r"\{(\w+)\}", lambda figure: FIGURES[figure[1]](view), words)


# --- values that are not read as they were meant ---


def _of_values(view: View) -> Said:
    for name in view.names:
        variable, text = view.known.variables.get(name), view.text(name)
        if variable is None or text is None:
            continue
        if variable.kind in ("flag", "integer"):
            yield from _number(view, name, text)
        elif variable.kind == "words" and text.upper() not in variable.accepted:
            choice = ", ".join(variable.accepted)
            yield view.remark(
                "not_accepted", name, "suspicious", "Not a word that this setting knows.", f"One of: {choice}."
            )
        elif variable.kind == "level":
            yield from _level(view, name, text)
        elif variable.kind == "choices":
            yield from _choices(view, name, text)
        if name in view.process.missing_files:
            words = "The file that it names is not there."
            yield view.remark("file_missing", name, "suspicious", words, "Correct the path, or take the setting out.")


def _number(view: View, name: str, text: str) -> Said:
    variable, number = view.known.variables[name], read_number(text)
    if not number.whole:
        words = "Not a number: NCCL reads the digits in front, and 0 where there are none. Words such as true are 0."
        yield view.remark("unreadable_number", name, "suspicious", words, "Write a number without unit.")
        return
    low, high = (0, 1) if variable.kind == "flag" else (variable.minimum, variable.maximum)
    if (low is not None and number.value < low) or (high is not None and number.value > high):
        span = f"from {low} to {high}" if high is not None else f"of at least {low}"
        words = "Outside of what the setting takes."
        yield view.remark("out_of_range", name, "suspicious", words, f"A number {span}.")


def _level(view: View, name: str, text: str) -> Said:
    choice = ", ".join(view.known.variables[name].accepted)
    if level_reached(text) is None:
        words = "Not a level as NCCL spells it, in capitals: it takes no notice."
        yield view.remark("not_accepted", name, "suspicious", words, f"One of: {choice}.")
    elif text not in LEVELS:
        words = "Levels by number are of old; their meaning has changed between versions, and none stands for NVL."
        yield view.remark("old_style_level", name, "suspicious", words, f"One of: {choice}.")


def _choices(view: View, name: str, text: str) -> Said:
    unknown = [word for word in chosen(text) if word not in view.known.variables[name].accepted]
    if not unknown:
        return
    if view.version_at_least(2, 24):
        words = "It names something that NCCL does not know: since 2.24 the communicator then fails."
        yield view.remark("not_accepted", name, "harmful", words, "Take the setting out.")
    else:
        words = "It names something that NCCL does not know, and passes over."
        yield view.remark("not_accepted", name, "suspicious", words, "Take the setting out.")


def _of_origins(view: View) -> Said:
    """Lines and files that do not do what they were meant to."""
    for origin, number in view.process.malformed:
        words = f"Line {number} sets a name that nothing reads: NCCL strips no blanks and knows no export."
        yield view.remark(
            "malformed_line", WHERE[origin], "useless", words, "Write NAME=value, without blanks or quotes."
        )
    for origin, reason in view.process.files_not_read:
        words = f"The file was not read ({reason}): what it sets is not judged."
        yield view.remark(
            "file_not_read", WHERE[origin], "note", words, "Run the check as the user of the process or as root."
        )
    for setting in view.process.shadowed:
        origins: list[Origin] = [one.origin for one in view.process.settings if one.name == setting.name]
        winner = origins[0] if origins else "environment"
        words = f"Set in {WHERE[setting.origin]} too, to another value; that of {WHERE[winner]} counts."
        yield view.remark("shadowed", setting.name, "note", words, "Keep one of the two.")
