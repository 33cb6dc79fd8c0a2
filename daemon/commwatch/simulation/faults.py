"""The file of faults: what goes wrong on a simulated node, where and when (docs/simulation.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

import yaml

from commwatch.errors import ConfigError
from commwatch.simulation.presets import Preset
from commwatch.units import parse_duration

Target: TypeAlias = Literal["link", "gpu", "gpus", "interface"]
"""What a kind of fault strikes: links of one GPU, one GPU, some or all GPUs, a network interface."""

_T = TypeVar("_T")

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_RATE_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class SimulatedProbeFailure(Exception):
    """An injected fault made a simulated collective fail."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the file."""

    kind: str
    start: float
    """Seconds since the node started."""
    end: float
    """Seconds since the node started; the fault is over at this instant; infinite: it never ends."""
    gpu: int | None = None
    """Place in the preset, from 0; None: all GPUs."""
    link: int | None = None
    """None: all links of the GPU."""
    interface: str = ""
    settings: Mapping[str, float] = field(default_factory=dict)
    """The numbers of this kind: rate per second, lanes, generation, factor, share."""
    reason: str = ""

    def active(self, time: float) -> bool:
        """Whether it holds at a time, seconds since the node started."""
        return self.start <= time < self.end

    def strikes(self, gpu: int, link: int | None = None) -> bool:
        """Whether this GPU, or this link of it, is among its targets."""
        return self.gpu in {None, gpu} and (link is None or self.link in {None, link})


def _number(text: str, low: float, high: float) -> float:
    if not _NUMBER.fullmatch(text) or not low <= float(text) <= high:
        raise ValueError(f"expected a number from {low:g} to {high:g}, got {text!r}")
    return float(text)


def _whole(text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"expected a whole number from {low} to {high}, got {text!r}")
    return int(text)


def _share(text: str) -> float:
    return _number(text, 0, 1)


def _factor(text: str) -> float:
    return _number(text, 0.001, 1000)


def _generation(text: str) -> float:
    return _whole(text, 1, 6)


def _lanes(text: str) -> float:
    lanes = _whole(text, 1, 16)
    if lanes not in {1, 2, 4, 8, 16}:
        raise ValueError(f"expected 1, 2, 4, 8 or 16 lanes, got {text!r}")
    return lanes


def _event_rate(text: str) -> float:
    number, slash, unit = text.partition("/")
    if not _NUMBER.fullmatch(number) or float(number) == 0 or (slash and unit not in _RATE_UNITS):
        choice = ", ".join(f"/{name}" for name in _RATE_UNITS)
        raise ValueError(f"expected a rate such as 100/s ({choice}; a bare number is per second), got {text!r}")
    return float(number) / _RATE_UNITS.get(unit, 1.0)


@dataclass(frozen=True, slots=True)
class _Kind:
    target: Target
    settings: Mapping[str, Callable[[str], float]] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    reason: bool = False


_RATE: Mapping[str, Callable[[str], float]] = {"rate": _event_rate}

KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "nvlink_down": _Kind("link"),
        "nvlink_slow": _Kind("link", {"factor": _share}),
        "nvlink_crc": _Kind("link", _RATE),
        "nvlink_recovery": _Kind("link", _RATE),
        "nvlink_replay": _Kind("link", _RATE),
        "pcie_width": _Kind("gpu", {"lanes": _lanes}),
        "pcie_generation": _Kind("gpu", {"generation": _generation}),
        "pcie_replay": _Kind("gpu", _RATE),
        "gpu_lost": _Kind("gpu"),
        "gpu_reset_required": _Kind("gpu"),
        "gpu_missing": _Kind("gpu"),
        "driver_hang": _Kind("gpu"),
        "counter_reset": _Kind("gpus"),
        "job": _Kind("gpus", {"nvlink_utilization": _share}, {"nvlink_utilization": 0.2}),
        "slow_probe": _Kind("gpus", {"latency": _factor, "bandwidth": _factor}, {"latency": 1.0, "bandwidth": 1.0}),
        "failing_probe": _Kind("gpus", reason=True),
        "ethernet_down": _Kind("interface"),
    }
)
"""Every kind of fault by its name."""


def parse_faults(text: str, file: str, preset: Preset, started_at: float, written_at: float) -> tuple[Fault, ...]:
    """The faults of a file's text, in its order.

    Args:
        text: YAML, a list of mappings; empty for no faults.
        file: name of the file, for errors.
        preset: the node; a fault must strike something that it has.
        started_at: when the node started, seconds since 1970.
        written_at: when the file was written, seconds since 1970; an entry without ``at`` holds from then on.

    Raises:
        ConfigError: the text cannot be used; it names file, line and key.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(file, mark.line + 1 if mark is not None else None, "", problem) from None
    if root is None:
        return ()
    if not isinstance(root, yaml.SequenceNode):
        raise ConfigError(file, root.start_mark.line + 1, "", "expected a list of faults")
    written = max(0.0, written_at - started_at)
    return tuple(_Entry(node, file).fault(preset, started_at, written) for node in root.value)


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

    def fault(self, preset: Preset, started_at: float, written: float) -> Fault:
        name = self._take("fault", str)
        if name is None:
            raise ConfigError(self._file, self._line, "fault", "is missing")
        kind = KINDS.get(name)
        if kind is None:
            raise self._error("fault", f"unknown kind {name!r}; known: {', '.join(KINDS)}")
        start, end = self._times(started_at, written)
        gpu, link, interface = self._target(name, kind.target, preset)
        fault = Fault(
            kind=name,
            start=start,
            end=end,
            gpu=gpu,
            link=link,
            interface=interface,
            settings=self._settings(name, kind),
            reason=(self._take("reason", str) or "injected failure") if kind.reason else "",
        )
        allowed = {"fault", "at", "until", "for", *kind.settings, *(["reason"] if kind.reason else [])}
        allowed |= {"link": {"gpu", "link"}, "gpu": {"gpu"}, "gpus": {"gpu"}, "interface": {"interface"}}[kind.target]
        for key in self._texts:
            if key not in allowed:
                raise self._error(key, f"unknown key; {name} takes {', '.join(sorted(allowed))}")
        return fault

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

    def _target(self, name: str, target: Target, preset: Preset) -> tuple[int | None, int | None, str]:
        if target == "interface":
            known = [interface.name for interface in preset.interfaces]
            interface = self._take("interface", str)
            if interface is None:
                raise ConfigError(self._file, self._line, "interface", f"is missing; {name} needs one")
            if interface not in known:
                raise self._error("interface", f"this node has no {interface!r}; it has {', '.join(known)}")
            return None, None, interface
        gpu = self._take("gpu", lambda text: _whole(text, 0, len(preset.gpus) - 1))
        if gpu is None and target != "gpus":
            raise ConfigError(self._file, self._line, "gpu", f"is missing; {name} needs one")
        link = None
        if target == "link":
            nvlink = preset.model.nvlink
            if nvlink is None:
                raise self._error("fault", f"{name}: the GPUs of this node have no NVLink")
            link = self._take("link", lambda text: _whole(text, 0, nvlink.links - 1))
        return gpu, link, ""

    def _settings(self, name: str, kind: _Kind) -> dict[str, float]:
        values = {}
        for key, parse in kind.settings.items():
            value = self._take(key, parse)
            if value is None:
                value = kind.defaults.get(key)
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
