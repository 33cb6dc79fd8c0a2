"""Values as NCCL reads them: numbers, levels, lists of names, of adapters and of algorithms."""

from __future__ import annotations

import re
from dataclasses import dataclass

from commwatch.jobs.settings.facts import Level, RdmaPort

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)(.*)", re.DOTALL)
_LONGEST_NUMBER = 24

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""All levels that NCCL distinguishes, the nearest first; undocumented ones are accepted too."""
_BY_NUMBER = ("LOC", "PIX", "PXB", "PHB", "SYS")
"""Meaning of the old numbers; greater ones are SYS."""


@dataclass(frozen=True, slots=True)
class Number:
    """A value as C's ``strtoll`` with base 0 reads it."""

    value: int
    """0 for text that does not begin with a number."""
    whole: bool
    """Whether all of the text is the number."""


def read_number(text: str) -> Number:
    """A value as NCCL reads it: ``0x10`` is 16, ``010`` is 8, ``4M`` is 4, ``true`` is 0."""
    match = _NUMBER.match(text)
    if match is None:
        return Number(0, whole=False)
    sign, digits, rest = match.groups()
    digits = digits[:_LONGEST_NUMBER]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    value = int(digits, base)
    return Number(-value if sign == "-" else value, whole=not rest.strip())


def level_reached(text: str) -> str | None:
    """The level that NCCL understands; None where it takes no notice. ``nvl`` and `` NVL`` are no levels to it.

    Source: ``ncclGetLevel`` in ``src/graph/paths.cc``.
    """
    if text in LEVELS:
        return text
    if text[:1].isascii() and text[:1].isdigit():
        return _BY_NUMBER[min(max(read_number(text).value, 0), len(_BY_NUMBER) - 1)]
    return None


def beyond(levels: frozenset[Level], reached: str) -> frozenset[Level]:
    """Those distances that a level leaves out."""
    return frozenset(level for level in levels if LEVELS.index(level) > LEVELS.index(reached))


def chosen(text: str) -> list[str]:
    """The algorithms or protocols that a value names, in small letters, whether it asks for them or against them.

    ``ring,tree;allreduce:^nvls`` names ring, tree and nvls.
    """
    lists = (part.rpartition(":")[2].removeprefix("^") for part in text.split(";"))
    return [word.lower() for part in lists for word in part.split(",") if word]


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of names as NCCL_SOCKET_IFNAME and NCCL_IB_HCA have it: ``^=eth0,eth1``."""

    excludes: bool
    exact: bool
    names: tuple[str, ...]

    def fits(self, entry: str, name: str) -> bool:
        """Whether an entry means a name."""
        return name == entry if self.exact else name.startswith(entry)

    def selects(self, name: str) -> bool:
        return any(self.fits(entry, name) for entry in self.names) != self.excludes


def parse_names(text: str) -> NameList:
    """Read a list; ``^`` and ``=`` count at its beginning only and hold for all entries."""
    excludes = text.startswith("^")
    rest = text.removeprefix("^")
    return NameList(excludes, rest.startswith("="), tuple(one for one in rest.removeprefix("=").split(",") if one))


@dataclass(frozen=True, slots=True)
class AdapterList:
    """A value of NCCL_IB_HCA: a list of adapters, each with a port or all of them, such as ``mlx5_0:1``."""

    names: NameList
    ports: tuple[int | None, ...]

    def selects(self, port: RdmaPort) -> bool:
        found = any(
            self.names.fits(entry, port.device) and number in (None, port.port)
            for entry, number in zip(self.names.names, self.ports, strict=True)
        )
        return found != self.names.excludes


def parse_adapters(text: str) -> AdapterList:
    """Read a value of NCCL_IB_HCA."""
    entries = parse_names(text)
    fields = [one.split(":") for one in entries.names]
    ports = tuple(int(one[1][:_LONGEST_NUMBER]) if len(one) > 1 and one[1].isdecimal() else None for one in fields)
    return AdapterList(NameList(entries.excludes, entries.exact, tuple(one[0] for one in fields)), ports)
