"""The file of faults (docs/using/simulation.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import yaml

from commwatch.config.user_loader import UserLoader
from commwatch.errors import ConfigError, did_you_mean
from commwatch.units import parse_duration
from commwatch_rehearsal.simulation.faults.fault import TARGET_KEYS, Fault, Kind, Target
from commwatch_rehearsal.simulation.faults.kinds import KINDS
from commwatch_rehearsal.simulation.faults.values import whole
from commwatch_rehearsal.simulation.presets.parts import Preset

_T = TypeVar("_T")

_LAST_NVSWITCH_LINK = 63
_MOST_TIMES = 1000


def parse_faults(text: str, file: str, preset: Preset, started_at: float, written_at: float) -> tuple[Fault, ...]:
    """The faults of a file's text, in its order.

    Args:
        text: YAML, a list of mappings; empty for no faults.
        preset: the node; a fault must strike something that it has.
        started_at: when the node started, seconds since 1970.
        written_at: when the file was written, seconds since 1970; an entry without ``at`` holds from then on.

    Raises:
        ConfigError: the text cannot be used; it names file, line and key.
    """
    try:
        root = yaml.compose(text, Loader=UserLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(file, mark.line + 1 if mark is not None else None, "", problem) from None
    if root is None:
        return ()
    if not isinstance(root, yaml.SequenceNode):
        raise ConfigError(file, root.start_mark.line + 1, "", "expected a list of faults")
    written = max(0.0, written_at - started_at)
    return tuple(fault for node in root.value for fault in _Entry(node, file).faults(preset, started_at, written))


_Struck: TypeAlias = dict[str, Any]
"""The targets of a fault, by the fields of ``Fault``."""


class _Entry:
    """One mapping of the file, its keys with their lines."""

    def __init__(self, node: yaml.Node, file: str) -> None:
        self._file = file
        self._line = node.start_mark.line + 1
        self._texts: dict[str, tuple[str, int]] = {}
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(file, self._line, "", "expected a mapping that begins with 'fault: KIND'")
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
                raise ConfigError(file, line, str(key.value), "expected one value")
            if key.value in self._texts:
                raise ConfigError(file, line, key.value, "appears twice")
            self._texts[key.value] = (value.value, line)

    def faults(self, preset: Preset, started_at: float, written: float) -> Iterator[Fault]:
        """The fault of the entry, and where it comes again, each time."""
        first = self._fault(preset, started_at, written)
        every = self._take("every", parse_duration)
        times = self._number("times", 2, _MOST_TIMES)
        if (every is None) != (times is None):
            raise self._error("times" if every is None else "every", "needs 'every' and 'times' together")
        if every is not None and every <= first.end - first.start:
            raise self._error("every", "must be longer than the fault lasts ('for')")
        for number in range(times or 1):
            later = number * (every or 0.0)
            yield replace(first, start=first.start + later, end=first.end + later)

    def _fault(self, preset: Preset, started_at: float, written: float) -> Fault:
        name = self._take("fault", str)
        if name is None:
            raise ConfigError(self._file, self._line, "fault", "is missing")
        kind = KINDS.get(name)
        if kind is None:
            hint = f"{did_you_mean(name, KINDS)} commwatch simulate --list shows all".strip()
            raise self._error("fault", f"unknown kind {name!r}; {hint}")
        self._refuse_unknown_keys(name, kind)
        start, end = self._times(started_at, written)
        struck = self._target(name, kind.target, preset)
        values = self._settings(name, kind)
        fault = Fault(
            kind=name,
            start=start,
            end=end,
            settings={key: value for key, value in values.items() if not isinstance(value, str)},
            words={key: value for key, value in values.items() if isinstance(value, str)},
            **struck,
        )
        for key, problem in kind.problems(fault, preset):
            raise self._error(key if key in self._texts else "fault", problem)
        return fault

    def _refuse_unknown_keys(self, name: str, kind: Kind) -> None:
        allowed = {"fault", "at", "until", "for", "every", "times", *kind.settings, *kind.keys}
        for key in self._texts:
            if key not in allowed:
                raise self._error(key, f"unknown key; {name} takes {', '.join(sorted(allowed))}")

    def _times(self, started_at: float, written: float) -> tuple[float, float]:
        def moment(text: str) -> float:
            return _moment(text, started_at)

        start = self._take("at", moment)
        until = self._take("until", moment)
        duration = self._take("for", parse_duration)
        if until is not None and duration is not None:
            raise self._error("for", "cannot stand beside 'until'")
        begin = written if start is None else start
        if until is not None and until <= begin:
            raise self._error("until", "is not after the start of the fault")
        if duration is not None:
            return begin, begin + duration
        return begin, math.inf if until is None else until

    def _target(self, name: str, target: Target, preset: Preset) -> _Struck:
        if target == "interface":
            return {"interface": self._name(name, "interface", [one.name for one in preset.interfaces])}
        if target == "rdma":
            return self._rdma(name, preset)
        if target == "pci":
            return self._pci(name, preset)
        if target == "nvswitch":
            return self._nvswitch(name, preset)
        if target == "switch":
            return self._switch(name, preset)
        return {} if target == "node" else self._gpus(name, target, preset)

    def _gpus(self, name: str, target: Target, preset: Preset) -> _Struck:
        last = len(preset.gpus) - 1
        gpu = self._number("gpu", 0, last)
        if gpu is None and target != "gpus":
            raise self._missing(name, "gpu")
        if target == "pair":
            peer = self._number("peer", 0, last)
            if peer is None:
                raise self._missing(name, "peer")
            if peer == gpu:
                raise self._error("peer", "is the GPU itself")
            return {"gpu": gpu, "peer": peer}
        if target != "link":
            return {"gpu": gpu}
        if preset.model.nvlink is None:
            raise self._error("fault", f"{name}: the GPUs of this node have no NVLink")
        return {"gpu": gpu, "link": self._number("link", 0, preset.model.nvlink.links - 1)}

    def _rdma(self, name: str, preset: Preset) -> _Struck:
        if not preset.rdma_ports:
            raise self._error("fault", f"{name}: this node has no RDMA device")
        device = self._name(name, "device", list(dict.fromkeys(port.device for port in preset.rdma_ports)))
        last = max(port.port for port in preset.rdma_ports if port.device == device)
        return {"device": device, "port": self._number("port", 1, last)}

    def _pci(self, name: str, preset: Preset) -> _Struck:
        given = [key for key in TARGET_KEYS["pci"] if key in self._texts]
        if len(given) != 1:
            raise ConfigError(self._file, self._line, "device", f"{name} needs one of device, gpu and nic")
        if given == ["gpu"]:
            return {"device": preset.gpus[self._number("gpu", 0, len(preset.gpus) - 1) or 0].pci_address}
        if given == ["device"]:
            return {"device": self._name(name, "device", [device.address for device in preset.devices])}
        addresses = {
            **{interface.name: interface.pci_address for interface in preset.interfaces},
            **{port.device: port.pci_address for port in preset.rdma_ports},
        }
        return {"device": addresses[self._name(name, "nic", list(addresses))]}

    def _nvswitch(self, name: str, preset: Preset) -> _Struck:
        if not preset.nvswitches:
            raise self._error("fault", f"{name}: this node has no NVSwitch")
        place = self._number("nvswitch", 0, len(preset.nvswitches) - 1)
        if place is None:
            raise self._missing(name, "nvswitch")
        return {"device": preset.nvswitches[place], "link": self._number("link", 0, _LAST_NVSWITCH_LINK)}

    def _switch(self, name: str, preset: Preset) -> _Struck:
        """A PCIe switch is known by its upstream port, as in the path from a device to the host."""
        if "nvswitch" in self._texts and "device" in self._texts:
            raise self._error("nvswitch", "cannot stand beside 'device'")
        if "nvswitch" in self._texts:
            return self._nvswitch(name, preset)
        switches = [device.address for device in preset.devices if device.role in {"switch_upstream", "nvswitch"}]
        if not switches:
            raise self._error("fault", f"{name}: the host of this node sees no switch")
        return {"device": self._name(name, "device", switches)}

    def _number(self, key: str, low: int, high: int) -> int | None:
        return self._take(key, lambda text: whole(text, low, high))

    def _name(self, name: str, key: str, known: Sequence[str]) -> str:
        given = self._take(key, str)
        if given is None:
            raise self._missing(name, key)
        if given not in known:
            raise self._error(key, f"this node has no {given!r}; it has {', '.join(known)}")
        return given

    def _missing(self, name: str, key: str) -> ConfigError:
        return ConfigError(self._file, self._line, key, f"is missing; {name} needs one")

    def _settings(self, name: str, kind: Kind) -> dict[str, float | str]:
        values = {}
        for key, setting in kind.settings.items():
            value = self._take(key, setting.parse)
            if value is None:
                value = setting.default
            if value is None:
                raise ConfigError(self._file, self._line, key, f"is missing; {name} needs it")
            values[key] = value
        return values

    def _take(self, key: str, parse: Callable[[str], _T]) -> _T | None:
        if key not in self._texts:
            return None
        try:
            return parse(self._texts[key][0])
        except ValueError as error:
            raise self._error(key, str(error)) from None

    def _error(self, key: str, problem: str) -> ConfigError:
        return ConfigError(self._file, self._texts[key][1], key, problem)


def _moment(text: str, started_at: float) -> float:
    """Seconds since the node started, of a duration (``30s``) or of a date with its time zone."""
    if re.match(r"\d{4}-\d\d-\d\d", text) is None:
        return parse_duration(text)
    date = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    if date.tzinfo is None:
        raise ValueError(f"expected a date with its time zone, such as 2030-01-31T12:00:00Z, got {text!r}")
    return max(0.0, date.timestamp() - started_at)
