"""The probes and the slow pairs of a screen; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import ProbeRecord, ProbesDocument
from commwatch.lines import Line, Segment, folded
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch.views.top.frame import Series
from commwatch.views.top.table import section, table
from commwatch.views.top.words import ABSENT, BAD, DIM, DOUBTFUL, age

_PROBE = ("probe", "backend")
_MOST_PAIRS = 10


def probe_lines(document: ProbesDocument, series: Series, width: int, now: float) -> Iterator[Line]:
    """A table of the probes: the last result beside what is normal, and when the next one comes or why it did not."""
    yield from section("Probes", "baseline: median of good results; expected: share that is reached")
    if not document.probes:
        yield [("no probe is planned", "")]
        return
    heads = ("Probe", "Latency", "baseline", "Bandwidth", "expected", "Streak", "Age", "Next")
    cells = _Probes(series)
    rows = [cells.row(probe, now) for probe in document.probes]
    yield from table(heads, rows, width)
    for probe in document.probes:
        if probe.last_result and not cells.has_numbers(probe):
            yield from folded([(f"  {probe.name}: ", DIM), (probe.last_result, "")], width, 4)
        if probe.skip_reason:
            yield from folded([(f"  {probe.name} skipped: ", DOUBTFUL), (probe.skip_reason, "")], width, 4)


class _Probes:
    """The metrics of all probes, each looked up once."""

    def __init__(self, series: Series) -> None:
        self._latency = series.by("probe_last_latency_seconds", *_PROBE)
        self._baseline = series.by("probe_baseline_latency_seconds", *_PROBE)
        self._bandwidth = series.by("probe_last_bus_bandwidth_bytes_per_second", *_PROBE)
        self._share = series.by("probe_bandwidth_utilization_ratio", *_PROBE)
        self._slow = series.by("probe_latency_spike_streak", *_PROBE)
        self._low = series.by("probe_low_bandwidth_streak", *_PROBE)

    def has_numbers(self, probe: ProbeRecord) -> bool:
        """Whether the row says all of the last result."""
        key = (probe.name, probe.backend)
        return key in self._latency or key in self._bandwidth

    def row(self, probe: ProbeRecord, now: float) -> list[Segment]:
        key = (probe.name, probe.backend)
        latency, baseline = self._latency.get(key), self._baseline.get(key)
        bandwidth, share = self._bandwidth.get(key), self._share.get(key)
        done, planned = probe.last_completion_at, probe.next_run_at
        return [
            (probe.name, ""),
            (ABSENT if latency is None else format_seconds(latency), ""),
            (ABSENT if baseline is None else format_seconds(baseline), DIM),
            (ABSENT if bandwidth is None else format_rate(bandwidth), ""),
            (ABSENT if share is None else format_percent(share), DIM),
            self._streak(key),
            (age(None if done is None else now - done), ""),
            (ABSENT if planned is None else f"in {age(planned - now)}", ""),
        ]

    def _streak(self, key: tuple[str, str]) -> Segment:
        """How many results in a row were too slow, and how many too low in bandwidth."""
        slow, low = self._slow.get(key), self._low.get(key)
        if slow is None and low is None:
            return ABSENT, ""
        parts = [f"{streak:g} {word}" for streak, word in ((slow, "slow"), (low, "low")) if streak]
        return (", ".join(parts), BAD) if parts else ("0", "")


def pair_lines(series: Series, thresholds: Thresholds, width: int) -> Iterator[Line]:
    """The pairs that carry too little of what is expected, the slowest first."""
    least = thresholds.probe_bandwidth_utilization_low_ratio
    keys = ("src", "dst", "backend")
    rates = series.by("pair_bandwidth_bytes_per_second", *keys)
    expected = series.by("pair_expected_bandwidth_bytes_per_second", *keys)
    shares = {pair: rate / expected[pair] for pair, rate in rates.items() if expected.get(pair)}
    slow = sorted((share, pair) for pair, share in shares.items() if share < least)
    if not rates:
        yield from section("Pairs", "no matrix is young enough")
        return
    told = f"{len(slow)} of {len(shares)} below {format_percent(least)} of what is expected"
    yield from section("Pairs", told if shares else f"{len(rates)} measured, with nothing to hold them against")
    for share, pair in slow[:_MOST_PAIRS]:
        ends = " to ".join(f"{'rank' if pair[2] == 'gloo' else 'GPU'}{one}" for one in pair[:2])
        rate = f"{format_rate(rates[pair])}, {format_percent(share)} of {format_rate(expected[pair])}"
        yield from folded([(f"{ends}: ", BAD), (rate, "")], width, 2)
    if len(slow) > _MOST_PAIRS:
        yield [(f"and {len(slow) - _MOST_PAIRS} more: commwatch heatmap", "")]
