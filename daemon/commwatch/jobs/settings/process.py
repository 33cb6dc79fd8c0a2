"""One process as the rules see it: its settings as NCCL understands them, and the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from commwatch.jobs.settings.facts import NodeFacts, ProcessSettings, Setting
from commwatch.jobs.settings.records import RemarkCode, SettingRemark, SettingSeverity
from commwatch.jobs.settings.variables import KnownVariables, read_by

Said: TypeAlias = Iterator[SettingRemark]

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)(.*)", re.DOTALL)
_LONGEST_NUMBER = 24
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Number:
    """A value as C's ``strtoll`` with base 0 reads it."""

    value: int
    """0 for text that does not begin with a number."""
    whole: bool
    """Whether all of the text is the number."""


def read_number(text: str) -> Number:
    """What NCCL makes of a value: ``0x10`` is 16, ``010`` is 8, ``4M`` is 4, ``true`` is 0."""
    match = _NUMBER.match(text)
    if match is None:
        return Number(0, whole=False)
    sign, digits, rest = match.groups()
    digits = digits[:_LONGEST_NUMBER]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    value = int(digits, base)
    return Number(-value if sign == "-" else value, whole=not rest.strip())


def printable(text: str) -> str:
    """A text that does no harm on a terminal: what does not print becomes an escape, what is too long is cut."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text[:_LONGEST_NAME]
    )
    return shown if len(text) <= _LONGEST_NAME else f"{shown}…"


class View:
    """What the rules are given."""

    def __init__(self, process: ProcessSettings, node: NodeFacts, known: KnownVariables) -> None:
        self.process, self.node, self.known = process, node, known
        self._settings = {one.name: one for one in process.settings}

    @property
    def names(self) -> tuple[str, ...]:
        """All names that are set."""
        return tuple(self._settings)

    @cached_property
    def elsewhere(self) -> SettingSeverity:
        """How grave it is what harms traffic between nodes: no harm to a job that runs on this node only."""
        return "note" if self.process.single_node else "harmful"

    def softened(self, severity: SettingSeverity) -> SettingSeverity:
        """The severity of what concerns the network only."""
        return "note" if self.process.single_node else severity

    def is_read(self, name: str) -> bool:
        """Whether the version of NCCL that the process has reads a name; where not known, the newest counts."""
        variable, version = self.known.variables.get(name), self.process.nccl_version
        if variable is None:
            return False
        if variable.reader != "nccl":
            return True
        return not variable.until if version is None else read_by(variable, version)

    def setting(self, name: str) -> Setting | None:
        """A setting that NCCL reads; None where it is not set, set to nothing, or not read by this version."""
        found = self._settings.get(name)
        return found if found is not None and found.value and self.is_read(name) else None

    def text(self, name: str) -> str | None:
        """Its value; None as for ``setting``."""
        found = self.setting(name)
        return None if found is None else found.value

    def number(self, name: str) -> int | None:
        """Its value as NCCL reads a number; None as for ``setting``."""
        text = self.text(name)
        return None if text is None else read_number(text).value

    def version_at_least(self, *version: int) -> bool:
        """Whether NCCL is so new; where not known it is."""
        own = self.process.nccl_version
        return own is None or own >= version

    def remark(
        self, code: RemarkCode, name: str, severity: SettingSeverity, words: str, next_step: str
    ) -> SettingRemark:
        """A remark on a setting of this process."""
        found = self._settings.get(name)
        return SettingRemark(
            code, printable(name), severity, words, next_step,
            origin="" if found is None else found.origin,
            pids=() if self.process.pid is None else (self.process.pid,),
        )  # fmt: skip
