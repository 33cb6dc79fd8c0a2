"""The settings audit for a terminal on the node itself: with values, unlike all that is exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from commwatch.analysis.nccl_settings.model import SettingRemark, SettingSeverity
from commwatch.analysis.nccl_settings.values import WHERE
from commwatch.styled import HEADING, WIDTH, Line

_STYLES: dict[SettingSeverity, str] = {"harmful": "red", "suspicious": "yellow", "useless": "yellow", "note": ""}
_MOST_PIDS = 8


def settings_lines(
    remarks: Sequence[SettingRemark], read: int, unread: Sequence[int] = (), show_values: bool = True
) -> Iterator[Line]:
    """What is to be said of the settings, the gravest first.

    Args:
        remarks: as ``judge_settings`` gives them.
        read: processes whose settings were read.
        unread: ids of those that belong to others and may not be looked at: not known to be clean.
        show_values: False for text that leaves the node, such as a report or a bundle.
    """
    yield [("NCCL settings", HEADING)]
    yield [(f"  {_count(read, 'process')} read", "")]
    if unread:
        text = f"{_count(len(unread), 'process')} not read, so not judged (run as root to see): {_pids(unread)}"
        yield from _paragraph(text, "  ", "yellow")
    if not remarks:
        yield [("  Nothing to say." if read else "  No settings to judge.", "")]
    for remark in remarks:
        value = f"={remark.value}" if show_values and remark.value is not None else ""
        where = f", in {WHERE[remark.origin]}" if remark.origin not in (None, "environment") else ""
        head = f"{remark.severity}: {remark.variable}{value}{where} [{remark.code}]"
        yield from _paragraph(head, "  ", _STYLES[remark.severity])
        yield from _paragraph(remark.words, "    ")
        yield from _paragraph(f"Next: {remark.next_step}", "    ")
        if remark.pids:
            yield from _paragraph(f"Process {_pids(remark.pids)}", "    ")


def _paragraph(text: str, indent: str, style: str = "") -> Iterator[Line]:
    for line in wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  "):
        yield [(line, style)]


def _pids(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:_MOST_PIDS]))
    return f"{shown} and {len(pids) - _MOST_PIDS} more" if len(pids) > _MOST_PIDS else shown


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}es"
