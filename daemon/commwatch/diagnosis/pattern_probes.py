"""The pattern branch over sizes: small messages against large ones, by what is exposed of each probe; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import Known
from commwatch.findings.facts import Facts
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds

FULL_SCAN = "commwatch diagnose --full-scan measures it."
"""The only advice where nothing was measured."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
"""The measures that have a small message beside a large one."""

SLOWER_THAN_BEFORE = ("latency_step_ratio", "bandwidth_step_ratio")
"""Times of the last few results over those just before."""
SLOWER_THAN_FIRST = ("latency_drift_ratio", "bandwidth_drift_ratio")
"""Times of the latest good results over the first ones."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What the daemon exposes of one probe now; None for what is absent."""

    labels: Mapping[str, str]
    """Those of ``commwatch_probe_info``."""
    values: Mapping[str, float]
    """By the metric's name without ``commwatch_probe_``."""

    @property
    def name(self) -> str:
        """Of the probe."""
        return self.labels["probe"]

    def get(self, metric: str) -> float | None:
        """One number; None where it is absent."""
        return self.values.get(metric)

    def over(self, metric: str, usual: str) -> float | None:
        """One number over another; None where one of them is absent."""
        value, base = self.get(metric), self.get(usual)
        return value / base if value is not None and base else None


_METRICS = (
    "last_latency_seconds",
    "baseline_latency_seconds",
    "latency_spike_streak",
    "low_bandwidth_streak",
    "last_bus_bandwidth_bytes_per_second",
    "bandwidth_utilization_ratio",
    *SLOWER_THAN_BEFORE,
    *SLOWER_THAN_FIRST,
)


def readings_of(facts: Facts) -> list[Readings]:
    """All probes but those of gloo, which tests the host alone."""
    by_probe: dict[tuple[str, str], dict[str, float]] = {}
    for metric in _METRICS:
        for labels, value in facts.series(f"commwatch_probe_{metric}"):
            by_probe.setdefault((labels["probe"], labels["backend"]), {})[metric] = value
    return [
        Readings(labels, by_probe.get((labels["probe"], labels["backend"]), {}))
        for labels, _ in facts.series("commwatch_probe_info")
        if labels["backend"] != "gloo"
    ]


def sizes(known: Known) -> Iterator[Check]:
    """Whether small messages, large ones or both are slow; probes that are well stand in one line."""
    probes = [one for one in readings_of(known.facts) if one.labels["collective"] in COLLECTIVES]
    told = [one for one in probes if one.get("last_latency_seconds") is not None]
    judged = [(one, _small(one, known.thresholds), _large(one, known.thresholds)) for one in told]
    for verdicts in dict.fromkeys((small.verdict, large.verdict) for _, small, large in judged):
        if verdicts != ("passed", "passed"):
            alike = [one for one in judged if (one[1].verdict, one[2].verdict) == verdicts]
            yield _by_size(max(alike, key=_badness), [one.name for one, _, _ in alike])
    well = [one for one, small, large in judged if small.verdict == large.verdict == "passed"]
    if well:
        yield _all_well(well, known.thresholds)
    if unmeasured := [one.name for one in probes if one not in told]:
        yield Check(
            branch="pattern",
            what="small messages against large ones",
            where=", ".join(unmeasured),
            verdict="not measured",
            detail=f"No result is current; {FULL_SCAN}",
            next_step=FULL_SCAN,
        )


@dataclass(frozen=True, slots=True)
class _Side:
    """What is said of one size."""

    verdict: CheckVerdict
    words: str
    reasons: tuple[str, ...] = ()


def _small(one: Readings, thresholds: Thresholds) -> _Side:
    seconds = one.get("last_latency_seconds") or 0.0
    ratio = one.over("last_latency_seconds", "baseline_latency_seconds")
    words = f"{format_bytes(float(one.labels['latency_bytes']))} {format_seconds(seconds)}"
    if ratio is not None:
        words += f" ({ratio:.2f} times the usual)"
    streak, step = one.get("latency_spike_streak") or 0, one.get("latency_step_ratio") or 0.0
    reasons = []
    if streak:
        reasons.append(f"{streak:.0f} in a row above the usual latency")
    elif ratio is not None and ratio >= thresholds.probe_latency_spike_median_factor:
        reasons.append("the last result alone is above the usual latency")
    if step >= thresholds.probe_step_min_factor:
        reasons.append(f"small messages take {step:.2f} times as long as in the results before")
    sure = streak >= thresholds.probe_latency_spike_streak or step >= thresholds.probe_step_min_factor
    return _Side("failed" if sure else "notice" if reasons else "passed", words, tuple(reasons))


def _large(one: Readings, thresholds: Thresholds) -> _Side:
    rate, share = one.get("last_bus_bandwidth_bytes_per_second"), one.get("bandwidth_utilization_ratio")
    words = f"{format_bytes(float(one.labels['bandwidth_bytes']))} {'-' if rate is None else format_rate(rate)}"
    source = one.labels["expected_source"]
    if share is not None:
        words += f" ({format_percent(share)} of what is {'expected' if source != 'model' else 'modelled'})"
    streak, step = one.get("low_bandwidth_streak") or 0, one.get("bandwidth_step_ratio") or 0.0
    reasons = []
    if share is not None and share < thresholds.probe_bandwidth_utilization_low_ratio:
        reasons.append(
            f"below {format_percent(thresholds.probe_bandwidth_utilization_low_ratio)} of what "
            + ("a model says" if source == "model" else f"is {source}")
            + (f", {streak:.0f} in a row" if streak > 1 else "")
        )
    if step >= thresholds.probe_step_min_factor:
        reasons.append(f"large messages take {step:.2f} times as long as in the results before")
    sure = streak >= thresholds.probe_low_bandwidth_streak or step >= thresholds.probe_step_min_factor
    return _Side("failed" if sure else "notice" if reasons else "passed", words, tuple(reasons))


def _badness(judged: tuple[Readings, _Side, _Side]) -> float:
    """How many times as long it takes as it should, by the worse side, as far as that is known."""
    one, small, large = judged
    share = one.get("bandwidth_utilization_ratio")
    slower = one.over("last_latency_seconds", "baseline_latency_seconds") if small.verdict != "passed" else None
    lower = 1 / share if share and large.verdict != "passed" else None
    return max((ratio for ratio in (slower, lower) if ratio is not None), default=0.0)


def _by_size(worst: tuple[Readings, _Side, _Side], names: Sequence[str]) -> Check:
    """Probes that show the same, with the numbers of the worst of them."""
    one, small, large = worst
    if small.verdict == "passed":
        which, step = "a problem of bandwidth: small messages are well", (
            "Look at links and paths: lanes, generation, recoveries, the slow pair."
        )  # fmt: skip
    elif large.verdict == "passed":
        which, step = (
            "a problem of latency: large messages are well",
            (
                "Look at the host: CPU frequency and power saving, other load, NUMA placement, retransmissions; links "
                "that are only narrow slow large messages."
            ),
        )
    else:
        which, step = (
            "small and large messages are slow",
            ("Look at what both cross: one GPU, one link that errs and sends again, or clocks that are held down."),
        )
    verdicts = {small.verdict, large.verdict}
    return Check(
        branch="pattern",
        what="small messages against large ones",
        where=", ".join(names),
        measured=f"{f'{one.name}: ' if len(names) > 1 else ''}{small.words}; {large.words}",
        required="neither slower than usual or expected",
        verdict="failed" if "failed" in verdicts else "notice",
        source="probe_latency_spike_median_factor, probe_bandwidth_utilization_low_ratio, probe_step_min_factor",
        detail=f"{which[0].upper()}{which[1:]}: {'; '.join((*small.reasons, *large.reasons))}.",
        next_step=step,
    )


def _all_well(well: Sequence[Readings], thresholds: Thresholds) -> Check:
    # What is known of every one of them, else nothing is said: a baseline takes twenty results.
    ratios = [one.over("last_latency_seconds", "baseline_latency_seconds") for one in well]
    shares = [one.get("bandwidth_utilization_ratio") for one in well]
    parts = []
    if known_ratios := [ratio for ratio in ratios if ratio is not None]:
        parts.append(f"latency at most {max(known_ratios):.2f} times the usual")
    if known_shares := [share for share in shares if share is not None]:
        parts.append(f"bandwidth at least {format_percent(min(known_shares))} of what is expected")
    missing = [one.name for one, ratio in zip(well, ratios, strict=True) if ratio is None]
    return Check(
        branch="pattern",
        what="small messages against large ones",
        where=", ".join(one.name for one in well),
        measured="; ".join(parts),
        required=f"below {thresholds.probe_latency_spike_median_factor:g} times; "
        f"at least {format_percent(thresholds.probe_bandwidth_utilization_low_ratio)}",
        # Without either mark nothing was held against anything.
        verdict="passed" if parts else "not measured",
        source="probe_latency_spike_median_factor, probe_bandwidth_utilization_low_ratio",
        detail=f"No usual latency is known yet of {', '.join(missing)}: too few good results." if missing else "",
    )
