"""The probes and the slow pairs of a screen; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import ProbeRecord, ProbesDocument
from commwatch.lines import Line, Segment, folded
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch.views.top.table import ABSENT, BAD, DIM, DOUBTFUL, age, section, table
from commwatch_exporters.node.model import Node, Pair, Probe

_MOST_PAIRS = 10


def probe_lines(document: ProbesDocument, node: Node, width: int, now: float) -> Iterator[Line]:
    """A table of the probes: the last result beside what is normal, and when the next one comes or why it did not."""
    yield from section("Probes", "baseline: median of good results; expected: share that is reached")
    if not document.probes:
        yield [("no probe is planned", "")]
        return
    heads = ("Probe", "Latency", "baseline", "Bandwidth", "expected", "Streak", "Age", "Next")
    probes = [(record, node.part(Probe, record.name, record.backend)) for record in document.probes]
    yield from table(heads, [_row(record, probe, now) for record, probe in probes], width)
    for probe, numbers in probes:
        # The row shows all of the last result if it has a number.
        is_shown = numbers.last_latency_seconds is not None or numbers.last_bus_bandwidth_bytes_per_second is not None
        if probe.last_result and not is_shown:
            yield from folded([(f"  {probe.name}: ", DIM), (probe.last_result, "")], width, 4)
        if probe.skip_reason:
            yield from folded([(f"  {probe.name} skipped: ", DOUBTFUL), (probe.skip_reason, "")], width, 4)


def _row(record: ProbeRecord, probe: Probe, now: float) -> list[Segment]:
    latency, baseline = probe.last_latency_seconds, probe.baseline_latency_seconds
    bandwidth, share = probe.last_bus_bandwidth_bytes_per_second, probe.bandwidth_utilization_ratio
    done, planned = record.last_completion_at, record.next_run_at
    return [
        (record.name, ""),
        (ABSENT if latency is None else format_seconds(latency), ""),
        (ABSENT if baseline is None else format_seconds(baseline), DIM),
        (ABSENT if bandwidth is None else format_rate(bandwidth), ""),
        (ABSENT if share is None else format_percent(share), DIM),
        _streak(probe),
        (age(None if done is None else now - done), ""),
        (ABSENT if planned is None else f"in {age(planned - now)}" if planned > now else "now", ""),
    ]


def _streak(probe: Probe) -> Segment:
    """How many results in a row were too slow, and how many too low in bandwidth."""
    slow, low = probe.latency_spike_streak, probe.low_bandwidth_streak
    if slow is None and low is None:
        return ABSENT, ""
    parts = [f"{streak:g} {word}" for streak, word in ((slow, "slow"), (low, "low")) if streak]
    return (", ".join(parts), BAD) if parts else ("0", "")


def pair_lines(node: Node, thresholds: Thresholds, width: int) -> Iterator[Line]:
    """The pairs that carry too little of what is expected, the slowest first."""
    least = thresholds.probe_bandwidth_utilization_low_ratio
    rates = list(node.each(Pair.bandwidth_bytes_per_second))
    shares = [
        (rate / expected, pair, rate, expected)
        for pair, rate in rates
        if (expected := pair.expected_bandwidth_bytes_per_second)
    ]
    slow = sorted((one for one in shares if one[0] < least), key=lambda one: (one[0], one[1].identity))
    if not rates:
        yield from section("Pairs", "no matrix is young enough")
        return
    words = f"{len(slow)} of {len(shares)} below {format_percent(least)} of what is expected"
    yield from section("Pairs", words if shares else f"{len(rates)} measured, with nothing to hold them against")
    for share, pair, rate, expected in slow[:_MOST_PAIRS]:
        ends = " to ".join(f"{'rank' if pair.backend == 'gloo' else 'GPU'}{one}" for one in (pair.source, pair.target))
        words = f"{format_rate(rate)}, {format_percent(share)} of {format_rate(expected)}"
        yield from folded([(f"{ends}: ", BAD), (words, "")], width, 2)
    if len(slow) > _MOST_PAIRS:
        yield [(f"and {len(slow) - _MOST_PAIRS} more: commwatch heatmap", "")]
