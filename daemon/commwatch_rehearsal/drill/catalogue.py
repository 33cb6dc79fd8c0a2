"""The catalogue of drills: drills.yaml."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from commwatch.config.yaml_file import read_shipped
from commwatch.errors import ExitCode
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.programs import DrillError

FILE = Path(__file__).resolve().with_name("drills.yaml")


def load_drills(file: Path = FILE) -> dict[str, Drill]:
    """The drills by name, in the order of the file.

    Raises:
        ConfigError: a row has an unknown key or a value that cannot be.
        ValueError: two rows have one name.
    """
    families = read_shipped(file, dict[str, dict[str, Drill]], texts_only=True)
    found: dict[str, Drill] = {}
    for family, rows in families.items():
        for name, drill in rows.items():
            if name in found:
                raise ValueError(f"two drills are called {name}")
            found[name] = msgspec.structs.replace(drill, name=name, family=family)
    return found


def choose(drills: Mapping[str, Drill], names: Sequence[str]) -> list[Drill]:
    """The drills of these names or shell patterns, in the order of the catalogue; all where none is given.

    Raises:
        DrillError: no drill has such a name.
    """
    for name in names:
        if not fnmatch.filter(drills, name):
            import difflib

            close = difflib.get_close_matches(name, drills, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UnknownDrill(f"no drill is called {name!r}; {hint}commwatch drill --list shows all")
    return [one for one in drills.values() if not names or any(fnmatch.fnmatch(one.name, name) for name in names)]


class UnknownDrill(DrillError):
    """A name that no drill has."""

    exit_code = ExitCode.WRONG_USE


def without_alert(drill: Drill, alerts: Iterable[str]) -> list[str]:
    """Those of its alerts for which there is no rule."""
    known = set(alerts)
    return [name for name in drill.alerts if name not in known]
