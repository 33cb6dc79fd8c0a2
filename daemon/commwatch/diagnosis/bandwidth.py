"""Measured bandwidths against their expectations: collectives, pairs by their path, copies to the host; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.marks.results import (
    collectives,
    copies,
    operation_of,
    pair_class,
    pair_rates,
    probes_of,
    ranks_of,
    size_of,
)
from commwatch.diagnosis.marks.table import HEALTHY_SHARE
from commwatch.findings.finding import Component
from commwatch.findings.rules.gpu_ways import gpus_of, ways_of
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import Probe

if TYPE_CHECKING:
    from commwatch.diagnosis.known import Known

_LOW = "probe_bandwidth_utilization_low_ratio"
_SOURCES = {
    "configured": "expected_bandwidth in the configuration",
    "reference": "published results",
    "learned": "the first good day of this node",
    "model": "model",
}

_check = partial(Check, "bandwidth")
_ALONE = "one GPU has nobody to talk to"
_NO_PROBE = "no probe measures it"
_FULL_SCAN = "commwatch diagnose --full-scan measures it now"


def bandwidth_checks(known: Known) -> Iterable[Check]:
    """Each measured collective, class of pairs and direction of copies."""
    of_collectives = (_collective(known, probe) for probe in collectives(known.facts))
    for check in (*of_collectives, *_pairs(known), *_copies(known)):
        helps = check.verdict == "not measured" and check.detail != _NO_PROBE and not known.scanned
        yield msgspec.structs.replace(check, detail=f"{check.detail}; {_FULL_SCAN}") if helps else check


class _Measured(NamedTuple):
    """One value of several of a kind."""

    where: str
    bandwidth: float
    expected: float | None


def _collective(known: Known, probe: Probe) -> Check:
    operation, ranks = operation_of(probe), ranks_of(probe)
    what = f"{operation} bus bandwidth, {format_bytes(size_of(probe))}, {ranks} GPUs"
    if probe.name != operation:
        what += f" ({probe.name})"
    if ranks < 2:
        one = f"{operation} bus bandwidth"
        return _check(one, "does not apply", detail=_ALONE)
    rate = probe.last_bus_bandwidth_bytes_per_second
    if rate is None:
        return _unmeasured(what, [probe], known.facts.now)
    measured = _Measured("", rate, probe.expected_bandwidth_bytes_per_second)
    return _judged(known, what, probe, [measured], "")


def _pairs(known: Known) -> Iterator[Check]:
    facts = known.facts
    found = [probe for probe in probes_of(facts) if probe.collective == "pairs"]
    if len(facts.derived(gpus_of)) < 2:
        if found:
            yield _check("GPU to GPU", "does not apply", detail=_ALONE)
        return
    rates = pair_rates(facts)
    if not rates:
        yield _unmeasured("GPU to GPU", found, facts.now)
        return
    # Without its probe a pair has no size and no source: what a model says, then.
    probe = found[0] if found else facts.node.part(Probe, "pairs", "")
    size = f", {format_bytes(size_of(probe))}" if size_of(probe) else ""
    gpus, ways = facts.derived(gpus_of), facts.derived(ways_of)
    by_class: dict[str, list[_Measured]] = {}
    parts: dict[str, set[str]] = {}
    suspects = [one.record.component.component for one in known.matched if one.record.code == "part_suspect"]
    for pair, rate in rates:
        measured = _Measured(f"GPU{pair.source} to GPU{pair.target}", rate, pair.expected_bandwidth_bytes_per_second)
        ends = gpus[pair.source], gpus[pair.target]
        name = pair_class(ways, *ends)
        by_class.setdefault(name, []).append(measured)
        between = Component("pair", "-".join(ends), parts=ways.pair(*ends))
        of_class = parts.setdefault(name, {"node"})
        of_class.update((between.identity, f"pair/{'-'.join(ends[::-1])}"))
        of_class.update(suspect.identity for suspect in suspects if suspect.shares_part(between))
    for name, own in by_class.items():
        what = f"GPU to GPU over {name}, one way{size}"
        yield _judged(known, what, probe, own, "pairs", tuple(parts[name]))


def _copies(known: Known) -> Iterator[Check]:
    facts = known.facts
    for probe, found in copies(facts):
        if not found:
            yield _unmeasured("copies between GPU and host", [probe], facts.now)
        for direction in ("host_to_device", "device_to_host"):
            own = [
                _Measured(f"GPU{copy.gpu_index}", rate, copy.expected_bandwidth_bytes_per_second)
                for copy, rate in found
                if copy.direction == direction
            ]
            if own:
                what = f"copy {direction.replace('_', ' ')}, {format_bytes(size_of(probe))}"
                yield _judged(known, what, probe, own, "GPUs")


def _judged(
    known: Known, what: str, probe: Probe, measured: Sequence[_Measured], many: str, parts: Sequence[str] = ()
) -> Check:
    """The measurement furthest below its expectation represents all."""
    least = known.thresholds.probe_bandwidth_utilization_low_ratio
    rates = [one.bandwidth for one in measured]
    words = format_rate(rates[0])
    if len(measured) > 1:
        words = f"{_span(min(rates), max(rates))}, {len(measured)} {many}"
    shares = [(one.bandwidth / one.expected, one.expected, one) for one in measured if one.expected]
    if not shares:
        return _check(what, "notice", "", words, detail="what it should be is not known")
    share, expected, worst = min(shares, key=lambda one: one[0])
    low = sum(one[0] < least for one in shares)
    verdict: CheckVerdict = "passed" if share >= HEALTHY_SHARE else "notice"
    detail = f"{format_percent(share)} of what is expected"
    if verdict == "notice":
        detail += f"; healthy systems give {format_percent(HEALTHY_SHARE)} and more"
    if low and len(measured) > 1:
        detail = f"{low} of {len(measured)} {many} are low, {worst.where} at {format_rate(worst.bandwidth)}; {detail}"
    check = _check(
        what, verdict, worst.where if verdict == "notice" else "", words,
        f"at least {format_rate(least * expected)} ({format_percent(least)} of {format_rate(expected)})",
        f"{_SOURCES.get(probe.expected_source, 'not known')}; {_LOW}", detail,
    )  # fmt: skip
    return check if verdict == "passed" else judged(check, known.matched, "bandwidth", [f"probe/{probe.name}", *parts])


def _unmeasured(what: str, of: Sequence[Probe], now: float) -> Check:
    return _check(what, "not measured", detail=why_unmeasured(of, now))


def why_unmeasured(of: Sequence[Probe], now: float) -> str:
    """Why there is no current result of some probes.

    Args:
        of: probes that could have given it.
        now: seconds since 1970.
    """
    if not of:
        return _NO_PROBE
    times = [time for one in of if (time := one.last_completion_timestamp_seconds) is not None]
    if not times:
        return "there is no result yet"
    return f"the last result is {format_seconds(max(0.0, now - max(times)))} old and no longer counts"


def _span(low: float, high: float) -> str:
    first, last = format_rate(low), format_rate(high)
    return first if first == last else f"{first} to {last}"
