"""Facts about the variables that NCCL, torch and CUDA read: data/nccl_variables.yaml, read when first needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from commwatch.config.yaml_file import read_shipped
from commwatch.jobs.logs.fallbacks import FallbackKind
from commwatch.jobs.settings.records import RemarkCode, SettingSeverity

_FILE = Path(__file__).resolve().parents[2] / "data/nccl_variables.yaml"

Reader: TypeAlias = Literal["nccl", "torch", "cuda"]
Kind: TypeAlias = Literal[
    "flag", "integer", "number", "level", "words", "interfaces", "adapters", "choices", "file", "text", ""
]
"""How a value is read; empty where that is not documented."""

Version: TypeAlias = tuple[int, ...]
"""``(2, 27, 3)``."""


class RemarkRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a value does harm, and the remark on it. All conditions of a row must hold."""

    code: RemarkCode
    severity: SettingSeverity
    words: str
    """The error; names in braces are those of ``conditions.FIGURES``."""
    next_step: str = "Take it out."
    fallback: FallbackKind | Literal[""] = ""
    """How the log of a job with it shows it; empty of what is no fallback of the transport."""
    value: tuple[int, ...] = ()
    """The numbers that do; any if empty."""
    minimum: int | None = None
    maximum: int | None = None
    word: tuple[str, ...] = ()
    """The words that do, in capitals, however they are written; any if empty."""
    unset: bool = False
    """Whether the remark is made where the variable is not set."""
    when: tuple[str, ...] = ()
    """Names of ``conditions.CONDITIONS``."""
    between_nodes: bool = False
    """Whether it harms traffic between nodes only: of a job that runs on this node alone it is a note."""


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One name, as ``data/nccl_variables.yaml`` has it; its head says what the fields mean."""

    reader: Reader = "nccl"
    kind: Kind = ""
    since: str = ""
    until: str = ""
    seen: str = ""
    default: str = ""
    meaning: str = ""
    use: str = ""
    accepted: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    per_rank: bool = False
    secret: bool = False
    remarks: tuple[RemarkRow, ...] = ()
    """Of the rows with one code the first that holds counts."""


class KnownVariables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    variables: dict[str, Variable]
    never_read: dict[str, str]
    """The replacement, by a name that no program reads."""
    plugins: dict[str, str]
    """Which plugin reads names that begin so."""


@cache
def known_variables() -> KnownVariables:
    """All facts about settings, by name."""
    return read_shipped(_FILE, KnownVariables)


def parse_version(text: str) -> Version:
    """``2.27.3`` as numbers; empty for text that is no version."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def read_by(variable: Variable, version: Version) -> bool:
    """Whether a version of NCCL reads a name; where the first or last one is not known, it does.

    Only major and minor numbers count: the data knows no more.
    """
    since, until = parse_version(variable.since), parse_version(variable.until)
    return (not since or version[:2] >= since[:2]) and (not until or version[:2] <= until[:2])


def public_name(name: str, known: KnownVariables) -> str:
    """The name if it is a known one, else ``other``: fit for a label."""
    return name if name in known.variables or name in known.never_read else "other"
