"""The bandwidths within this node that the daemon's probes measured last."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from commwatch.config.settings import Config
from commwatch.diagnosis.estimate.quantities import Span
from commwatch.probes.by_hand.pair_history import last_matrix
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.streak import is_current
from commwatch.state.directory import state_path
from commwatch.units import format_rate, format_seconds

_MEASURES = ("all_reduce", "all_gather", "reduce_scatter", "scaling")
"""Whose bus bandwidth is that of the collectives of a training step."""


@dataclass(frozen=True, slots=True)
class KnownRates:
    """What the last results say of this node."""

    in_node: dict[int, Span]
    """Bus bandwidth by number of GPUs, bytes per second: slowest to fastest of the collectives."""
    used: tuple[str, ...]
    """Each result, for the user."""
    left_out: tuple[str, ...]
    """Results that are not used, and why."""
    gpu_name: str
    """Of all GPUs of the last pair matrix, as the driver gives it; empty where not known or not the same."""


def known_rates(config: Config, now: float) -> KnownRates:
    """The current results in the state directory. Those of gloo, which is no GPU fabric, and old ones are left out.

    Args:
        config: names the probes and the state directory.
        now: seconds since 1970.
    """
    found: dict[int, list[float]] = {}
    used: list[str] = []
    left_out: list[str] = []
    for name, probe in config.probes.definitions.items():
        if probe.measure not in _MEASURES:
            continue
        result = _last(state_path(config) / f"probe-{name}.json", probe.interval, now)
        if isinstance(result, str):
            left_out.append(f"{name}: {result}")
        elif result is not None:
            ago = format_seconds(max(0.0, now - result[0]))
            for ranks, rate in result[1]:
                found.setdefault(ranks, []).append(rate)
                used.append(f"{name} over {ranks} GPUs: {format_rate(rate)}, measured {ago} ago")
    spans = {ranks: Span(min(rates), max(rates)) for ranks, rates in sorted(found.items())}
    return KnownRates(spans, tuple(used), tuple(left_out), _gpu_name(config))


def _last(file: Path, interval: float, now: float) -> tuple[float, list[tuple[int, float]]] | str | None:
    """When the last result was taken, and its rates; why it is not used; None without any."""
    try:
        history = msgspec.json.decode(file.read_bytes(), type=ProbeHistory)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # msgspec's own errors, text that is not UTF-8
        return f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
    if history.last is None:
        return None
    if history.backend == "gloo":
        return "measured with gloo, which is no GPU fabric"
    if not is_current(history.last.finished_at, interval, now):
        return f"the last result is {format_seconds(now - history.last.finished_at)} old"
    rates = list(_rates(history))
    if not all(0 < rate < math.inf for _, rate in rates):
        return f"{file} holds a rate that is none"
    return history.last.finished_at, rates


def _rates(history: ProbeHistory) -> Iterator[tuple[int, float]]:
    """Ranks and bus bandwidth of the last result."""
    if history.last is None:
        return
    if history.last.bus_bandwidth is not None and history.conditions is not None and not history.last.scaling:
        yield history.conditions.ranks, history.last.bus_bandwidth
    for point in history.last.scaling:
        yield point.ranks, point.bus_bandwidth


def _gpu_name(config: Config) -> str:
    matrix = last_matrix(config)
    names = {one.name for one in matrix.endpoints} if matrix else set()
    return names.pop() if len(names) == 1 else ""
