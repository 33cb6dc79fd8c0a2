"""The catalogue of drills: drills.yaml."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import yaml

from commwatch.config.simulated import absolute
from commwatch.config.yaml_file import read_shipped
from commwatch.errors import ConfigError, ExitCode, did_you_mean
from commwatch.findings.codes import CODES
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.programs import DrillError
from commwatch_rehearsal.simulation.plug import check_faults
from commwatch_rehearsal.simulation.presets import find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset

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
            found[name] = msgspec.structs.replace(drill, name=name, family=family, alerts=_alerts(drill))
    return found


def _alerts(drill: Drill) -> tuple[str, ...]:
    """Those of a row, else those of its findings."""
    return drill.alerts or tuple(dict.fromkeys(alert for code in drill.codes if (alert := CODES[code].alert)))


def choose(drills: Mapping[str, Drill], names: Sequence[str]) -> list[Drill]:
    """The drills of these names or shell patterns, in the order of the catalogue; all where none is given.

    Raises:
        DrillError: no drill has such a name.
    """
    for name in names:
        if not fnmatch.filter(drills, name):
            hint = f"{did_you_mean(name, drills)} commwatch drill --list shows all".strip()
            raise UnknownDrill(f"no drill is called {name!r}; {hint}")
    return [one for one in drills.values() if not names or any(fnmatch.fnmatch(one.name, name) for name in names)]


class UnknownDrill(DrillError):
    """A name that no drill has."""

    exit_code = ExitCode.WRONG_USE


def fitted(drills: Iterable[Drill], node: str) -> tuple[list[Drill], dict[str, str]]:
    """The drills as they are played on another node, and why the others are not.

    A network interface or RDMA device of a drill is the one of the same rank on the node. For GPUs the alerts of a
    drill are known only where the NVLinks are of its kind.

    Args:
        drills: of the catalogue, each for its preset.
        node: what ``--simulate`` names.

    Raises:
        ConfigError: there is no such node.
    """
    other, path = find_preset(node), absolute(node)
    played, left_out = [], {}
    for drill in drills:
        own = find_preset(drill.preset)
        try:
            faults, under = (
                tuple(_fitted_entry(one, own, other) for one in entries) for entries in (drill.faults, drill.under)
            )
            check_faults(yaml.safe_dump([*faults, *under]), path, other)
        except _Unfit as error:
            left_out[drill.name] = str(error)
        except ConfigError as error:
            left_out[drill.name] = error.problem
        else:
            played.append(msgspec.structs.replace(drill, preset=path, faults=faults, under=under))
    return played, left_out


class _Unfit(Exception):
    pass


def _fitted_entry(entry: Mapping[str, str], own: Preset, other: Preset) -> dict[str, str]:
    """A fault of one node, for the part of the same rank on another.

    Raises:
        _Unfit: the other has none.
    """
    key = next((key for key in ("interface", "device", "nic") if key in entry), None)
    if key is None:
        if "gpu" in entry and _links(own) != _links(other):
            raise _Unfit(f"its alerts are known for NVLinks as of {own.name} alone")
        return dict(entry)
    group = next(group for group in _adapters(own) if entry[key] in _adapters(own)[group])
    place, others = _adapters(own)[group].index(entry[key]), _adapters(other)[group]
    if place >= len(others):
        raise _Unfit(f"the node has no {group} that stands for {entry[key]}")
    return {**entry, key: others[place]}


def _links(preset: Preset) -> tuple[object, ...]:
    """Version and remote ends of the NVLinks, and whether the host sees NVSwitches."""
    nvlink = preset.model.nvlink
    return (None, None, False) if nvlink is None else (nvlink.version, nvlink.remote, bool(preset.nvswitches))


def _adapters(preset: Preset) -> dict[str, list[str]]:
    """Names of the network interfaces and RDMA devices."""
    return {
        "network interface": [one.name for one in preset.interfaces],
        **{
            f"RDMA device of {layer}": [one.device for one in preset.rdma_ports if one.link_layer == layer]
            for layer in ("InfiniBand", "Ethernet")
        },
    }


def without_alert(drill: Drill, alerts: Iterable[str]) -> list[str]:
    """Those of its alerts for which there is no rule."""
    known = set(alerts)
    return [name for name in drill.alerts if name not in known]
