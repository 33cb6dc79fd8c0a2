"""Results of probes, by names under which two nodes, or two times of a node, can be compared; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from commwatch.diagnosis.document import Measure
from commwatch.diagnosis.marks.results import (
    ALWAYS,
    collectives,
    copies,
    is_since,
    operation_of,
    pair_class,
    pair_rates,
    probes_of,
    ranks_of,
    size_of,
)
from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import gpus_of, ways_of
from commwatch.units import format_bytes

_OF_ONE_GPU = re.compile(r", GPU\d+\Z")


def measures_of(facts: Facts, since: float = ALWAYS) -> Iterator[Measure]:
    """Latency and bus bandwidth of each collective, the slowest pair of each class, and each copy.

    Args:
        since: older results are left out, seconds since 1970.
    """
    for probe in collectives(facts):
        if not is_since(probe, since):
            continue
        operation = operation_of(probe)
        of = f"{ranks_of(probe)} GPUs" + ("" if probe.name == operation else f" ({probe.name})")
        latency, rate = probe.last_latency_seconds, probe.last_bus_bandwidth_bytes_per_second
        if latency is not None:
            yield Measure(
                f"{operation} latency, {format_bytes(float(probe.latency_bytes or 0))}, {of}", latency, "seconds"
            )
        if rate is not None:
            what = f"{operation} bus bandwidth, {format_bytes(size_of(probe))}, {of}"
            yield Measure(what, rate, "bytes_per_second")
        if (hidden := probe.hidden_ratio) is not None:
            yield Measure(f"{operation} hidden under a product, {format_bytes(size_of(probe))}, {of}", hidden, "ratio")
    yield from _pairs(facts, since)
    for probe, found in copies(facts):
        for copy, rate in found if is_since(probe, since) else ():
            what = f"copy {copy.direction.replace('_', ' ')}, {format_bytes(size_of(probe))}, GPU{copy.gpu_index}"
            yield Measure(what, rate, "bytes_per_second")


def _pairs(facts: Facts, since: float) -> Iterator[Measure]:
    probe = next((one for one in probes_of(facts) if one.collective == "pairs" and is_since(one, since)), None)
    if probe is None:
        return
    gpus, ways = facts.derived(gpus_of), facts.derived(ways_of)
    slowest: dict[str, float] = {}
    for pair, rate in pair_rates(facts):
        name = pair_class(ways, gpus[pair.source], gpus[pair.target])
        slowest[name] = min(rate, slowest.get(name, rate))
    for name, rate in slowest.items():
        yield Measure(f"slowest pair over {name}, one way, {format_bytes(size_of(probe))}", rate, "bytes_per_second")


def bandwidths(measures: Iterable[Measure]) -> dict[str, float]:
    """Bytes per second by name; of a copy that of the slowest GPU."""
    found: dict[str, float] = {}
    for one in measures:
        if one.unit == "bytes_per_second":
            name = _OF_ONE_GPU.sub("", one.what)
            found[name] = min(one.value, found.get(name, one.value))
    return found
