"""The catalogue of drills: data/drills.yaml."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from commwatch.config.settings import decode_quantity
from commwatch.drill.drill import Drill
from commwatch.drill.programs import DrillError

FILE = Path(__file__).resolve().parents[1] / "data/drills.yaml"


def load_drills(text: str | None = None) -> dict[str, Drill]:
    """The drills by name, in the order of the file.

    Args:
        text: of another catalogue; the shipped one where absent.

    Raises:
        msgspec.ValidationError: a row has an unknown key or a value that cannot be.
        ValueError: two rows have one name.
    """
    # Values stay text: a PCI address would be read as a number to the base 60.
    families = yaml.load(FILE.read_text(encoding="utf-8") if text is None else text, Loader=yaml.BaseLoader)  # noqa: S506
    found: dict[str, Drill] = {}
    for family, rows in families.items():
        for name, row in rows.items():
            if name in found:
                raise ValueError(f"two drills are called {name}")
            found[name] = _drill(family, name, row)
    return found


def _drill(family: str, name: str, row: Mapping[str, Any]) -> Drill:
    words, flags = {"yes": True, "no": False}, {"fast", "shipped", "stopped"}
    settings = {key: words.get(value, value) if key in flags else value for key, value in row.items()}
    return msgspec.convert({"name": name, "family": family, **settings}, Drill, strict=False, dec_hook=decode_quantity)


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

    exit_code = 2


def without_alert(drill: Drill, alerts: Iterable[str]) -> list[str]:
    """Those of its alerts for which there is no rule."""
    known = set(alerts)
    return [name for name in drill.alerts if name not in known]
