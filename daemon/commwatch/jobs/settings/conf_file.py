"""nccl.conf files as NCCL reads them, and which origin of a setting wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commwatch.jobs.settings.facts import Origin, Setting

_LONGEST = 1023
"""NCCL cuts names and values after this number of bytes."""


@dataclass(frozen=True, slots=True)
class ConfFile:
    origin: Origin
    settings: tuple[Setting, ...] = ()
    """By name, the first line of each name: later ones set nothing."""
    malformed: tuple[int, ...] = ()
    """Numbers of lines, from 1, that were meant to set something and set a name that nothing reads."""


def parse_conf_file(content: bytes, origin: Origin, wanted: Callable[[str], bool]) -> ConfFile:
    """Read a file as NCCL does: ``NAME=value`` up to the end of the line, nothing stripped, ``#`` in column 1 only.

    A blank before ``=`` becomes part of the name, ``export`` too: NCCL then sets a name that it never looks for.

    Args:
        wanted: whether a setting of this name is kept.

    Source: ``setEnvFile`` in ``src/misc/param.cc`` of NCCL.
    """
    found: dict[str, Setting] = {}
    malformed = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        # getline gives all up to the end of the line; to C the text ends at the first NUL.
        text = line.split(b"\0", 1)[0]
        if text.startswith(b"#"):
            continue
        before, equals, after = text.partition(b"=")
        name = before[:_LONGEST].decode("utf-8", "backslashreplace")
        if not equals:
            if _meant(name, wanted):
                malformed.append(number)
            continue
        if wanted(name) and name == name.strip():
            value = after[:_LONGEST].decode("utf-8", "backslashreplace")
            found.setdefault(name, Setting(name, value, origin))
        elif _meant(name, wanted):
            malformed.append(number)
    return ConfFile(origin, tuple(found.values()), tuple(malformed))


def _meant(name: str, wanted: Callable[[str], bool]) -> bool:
    """Whether a name that nothing reads was meant to be one that is wanted: blanks, ``export``."""
    return not name.lstrip().startswith("#") and any(wanted(word) for word in name.split())


def effective_settings(
    environment: Sequence[Setting], files: Sequence[ConfFile]
) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """The settings that NCCL finds, and the values that an earlier origin overrides with another one.

    Args:
        environment: of the process; it comes before all files, and also a name that is set to nothing counts.
        files: in NCCL's order: that of NCCL_CONF_FILE or else of the home directory, then the system's.
    """
    found: dict[str, Setting] = {}
    shadowed = []
    for setting in (*environment, *(one for file in files for one in file.settings)):
        first = found.setdefault(setting.name, setting)
        if first is not setting and first.value != setting.value:
            shadowed.append(setting)
    return tuple(found[name] for name in sorted(found)), tuple(shadowed)
