"""One process as the rules see it: its settings as NCCL understands them, and the node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from commwatch.jobs.settings.facts import NodeFacts, ProcessSettings, Setting
from commwatch.jobs.settings.records import RemarkCode, SettingRemark, SettingSeverity
from commwatch.jobs.settings.values import read_number
from commwatch.jobs.settings.variables import KnownVariables, read_by

Said: TypeAlias = Iterator[SettingRemark]

_LONGEST_NAME = 200


def printable(text: str) -> str:
    """A text that does no harm on a terminal: what does not print becomes an escape, what is too long is cut."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text[:_LONGEST_NAME]
    )
    return shown if len(text) <= _LONGEST_NAME else f"{shown}…"


class View:
    def __init__(self, process: ProcessSettings, node: NodeFacts, known: KnownVariables) -> None:
        self.process, self.node, self.known = process, node, known
        self._settings = {one.name: one for one in process.settings}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._settings)

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
        found = self._settings.get(name)
        return SettingRemark(
            code, printable(name), severity, words, next_step,
            origin="" if found is None else found.origin,
            pids=() if self.process.pid is None else (self.process.pid,),
        )  # fmt: skip
