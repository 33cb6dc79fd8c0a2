"""The numbers of a diagnosis that another one can be held against: what probes measured last; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.diagnosis.document import Measure
from commwatch.diagnosis.marks.results import collectives, copies, operation_of, ranks_of, size_of
from commwatch.findings.facts import Facts
from commwatch.units import format_bytes


def measures_of(facts: Facts) -> Iterator[Measure]:
    """Latency and bus bandwidth of each collective, and the bandwidth of each copy."""
    for probe in collectives(facts):
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
    for probe, found in copies(facts):
        for copy, rate in found:
            what = f"copy {copy.direction.replace('_', ' ')}, {format_bytes(size_of(probe))}, GPU{copy.gpu_index}"
            yield Measure(what, rate, "bytes_per_second")
