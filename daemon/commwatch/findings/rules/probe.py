"""Probes: slow, low, uneven or failing, and those that get no chance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, EvidenceUnit, Sighting
from commwatch.findings.rules.components import probe_of
from commwatch.findings.rules.gpu_ways import WAYS, all_parts, ways_of
from commwatch.findings.rules.probe_codes import PROBE_CODES
from commwatch.findings.rules.rule_set import DAY, HOUR, Rule, RuleSet

ProbeKey: TypeAlias = tuple[str, str]
"""Probe and backend."""
Reasons: TypeAlias = dict[str, float]
"""How often, by reason."""

_ATTEMPTS = "commwatch_probe_attempts_total"
_FAILURES = "commwatch_probe_failures_total"
_SKIPS = "commwatch_probe_skips_total"
_YIELDS = "commwatch_probe_yields_total"
_COMPLETED = "commwatch_probe_last_completion_timestamp_seconds"
_SPIKES = "commwatch_probe_latency_spike_streak"
_LOW = "commwatch_probe_low_bandwidth_streak"
_UTILIZATION = "commwatch_probe_bandwidth_utilization_ratio"
_BALANCE = "commwatch_probe_rank_balance_ratio"
_SLOWEST = "commwatch_probe_slowest_rank_info"
_INFO = "commwatch_probe_info"
_LATENCY = "commwatch_probe_last_latency_seconds"
_LATENCY_BASELINE = "commwatch_probe_baseline_latency_seconds"
_BANDWIDTH = "commwatch_probe_last_bus_bandwidth_bytes_per_second"
_BANDWIDTH_EXPECTED = "commwatch_probe_expected_bandwidth_bytes_per_second"
_COPIES = "commwatch_probe_copy_bandwidth_bytes_per_second"
_COPIES_EXPECTED = "commwatch_probe_copy_expected_bandwidth_bytes_per_second"

MISSED_CHANCES = frozenset(
    {"budget", "previous_stuck", "probe_running", "backend_changed", "scheduler_unknown", "gpu_unknown",
     "foreign_pid_namespace"}
)  # fmt: skip
"""Reasons of skips for which no job is to blame, and nobody who wanted the node for himself."""
DISTURBED = frozenset({"process_appeared", "scheduler_busy", "gpu_unknown"})
"""Reasons of cycles that began on a free node and had to give way."""
_LOOPBACK = frozenset({"lo"})
"""What gloo's probes use: nothing of the GPUs."""


def latency(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes with several latency spikes in a row."""
    for labels, streak in facts.series(_SPIKES):
        least = thresholds.probe_latency_spike_streak
        if streak < least:
            continue
        evidence = (
            Evidence("latency spikes in a row", streak, "", least, "probe_latency_spike_streak"),
            *_numbers(facts, labels, "last latency", _LATENCY, "seconds"),
            *_numbers(facts, labels, "usual latency", _LATENCY_BASELINE, "seconds"),
        )
        yield Sighting("probe_latency_high", _component(facts, labels), evidence)


def bandwidth(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes with several results in a row below what is configured or published."""
    for labels, streak in facts.series(_LOW):
        least = thresholds.probe_low_bandwidth_streak
        if streak >= least:
            in_a_row = Evidence("low results in a row", streak, "", least, "probe_low_bandwidth_streak")
            component = _component_of_low(facts, labels, thresholds)
            yield Sighting("probe_bandwidth_low", component, (in_a_row, *_utilization(facts, labels, thresholds)))


def below_model(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes that reach less of what a model says than they should."""
    for labels, ratio in facts.series(_UTILIZATION):
        low = ratio < thresholds.probe_bandwidth_utilization_low_ratio
        if low and _info(facts, labels, "expected_source") == "model":
            component = _component_of_low(facts, labels, thresholds)
            yield Sighting("probe_below_model", component, _utilization(facts, labels, thresholds))


def failing(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes that failed several times since their last good result."""
    for key in _failures(facts, DAY):
        probe = dict(zip(("probe", "backend"), key, strict=True))
        completed = facts.value(_COMPLETED, **probe)
        window = DAY if completed is None else min(max(facts.now - completed, 0.0), DAY)
        reasons = _failures(facts, window).get(key, {})
        failures, least = sum(reasons.values()), thresholds.probe_failure_streak
        if failures >= least:
            evidence = (Evidence("failures since the last result", failures, "", least, "probe_failure_streak"),)
            yield Sighting("probe_failing", _component(facts, probe), evidence, _named(reasons))


def error_rate(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes of which a larger share of attempts fails than in the window before."""
    # Changes are kept for a day: a longer window is looked at as far as it goes.
    window = min(thresholds.probe_error_rate_window_seconds, DAY / 2)
    least, fewest = thresholds.probe_error_rate_failures_min, thresholds.probe_error_rate_attempts_min
    grown = {labels: some for labels, some in _failures(facts, window).items() if sum(some.values()) >= least}
    if not grown:
        return
    attempts, attempts_of_both = _attempts(facts, window), _attempts(facts, 2 * window)
    failures_of_both = _failures(facts, 2 * window)
    for labels, reasons in grown.items():
        now, failures = attempts.get(labels, 0.0), sum(reasons.values())
        earlier = attempts_of_both.get(labels, 0.0) - now
        if min(now, earlier) < fewest:
            continue
        rate, before = failures / now, (sum(failures_of_both[labels].values()) - failures) / earlier
        if rate - before <= thresholds.probe_error_rate_rise_ratio:
            continue
        evidence = (
            Evidence("rise of the share of failures", rate - before, "ratio", thresholds.probe_error_rate_rise_ratio,
                     "probe_error_rate_rise_ratio"),
            Evidence("share of attempts that fail", rate, "ratio"),
            Evidence("failures", failures, "", least, "probe_error_rate_failures_min"),
        )  # fmt: skip
        probe = dict(zip(("probe", "backend"), labels, strict=True))
        yield Sighting("probe_error_rate_rise", _component(facts, probe), evidence, _named(reasons))


def wrong_result(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes in which something arrived that was not sent."""
    for labels, count in facts.increases(_FAILURES, DAY):
        if labels["reason"] == "wrong_result":
            evidence = (Evidence("wrong results in the last day", count),)
            yield Sighting("probe_wrong_result", _component(facts, labels), evidence)


_STEPS = (
    ("commwatch_probe_latency_step_ratio", "latency, times that of the results before"),
    ("commwatch_probe_bandwidth_step_ratio", "time of the large operation, times that of the results before"),
)
_DRIFTS = (
    ("commwatch_probe_latency_drift_ratio", "latency, times that of the first results"),
    ("commwatch_probe_bandwidth_drift_ratio", "time of the large operation, times that of the first results"),
)


def step(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes of which the last results took longer than those just before."""
    least = thresholds.probe_step_min_factor
    for component, evidence in _slower(facts, _STEPS, least, "probe_step_min_factor"):
        yield Sighting("probe_step", component, evidence)


def drift(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes of which the latest good results take longer than the first ones."""
    least = thresholds.probe_drift_max_factor
    for component, evidence in _slower(facts, _DRIFTS, least, "probe_drift_max_factor"):
        yield Sighting("probe_drift", component, evidence)


def _slower(
    facts: Facts, ratios: Iterable[tuple[str, str]], least: float, origin: str
) -> Iterable[tuple[Component, tuple[Evidence, ...]]]:
    """By probe: those of some ratios of times that are not below a factor; latency and bandwidth together."""
    found: dict[str, tuple[dict[str, str], list[Evidence]]] = {}
    for metric, what in ratios:
        for labels, ratio in facts.series(metric):
            if ratio >= least:
                evidence = Evidence(what, ratio, "ratio", least, origin)
                found.setdefault(labels["probe"], (labels, []))[1].append(evidence)
    for labels, some in found.values():
        yield _component(facts, labels), tuple(some)


def imbalance(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes on GPUs in which the ranks are far from even."""
    least = thresholds.probe_balance_low_ratio
    for labels, ratio in facts.series(_BALANCE):
        if ratio >= least or labels["backend"] == "gloo":
            continue
        evidence = Evidence("time of the fastest rank over that of the slowest", ratio, "ratio", least,
                            "probe_balance_low_ratio")  # fmt: skip
        slowest = _slowest(facts, labels)
        detail = f"rank {slowest['rank']} ({slowest['pci_bus_id'] or 'no GPU'}) takes longest" if slowest else ""
        yield Sighting("probe_imbalance", _component_of_slowest(facts, labels, slowest), (evidence,), detail)


def starved(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Probes without a result for long, a day by default, although several times no job was to blame."""
    after, least = thresholds.probe_starved_after_seconds, thresholds.probe_starved_chances_min
    window = min(after, DAY)
    later = _missed_chances(facts, window - HOUR) if window > HOUR else {}
    for key, reasons in _missed_chances(facts, window).items():
        probe = dict(zip(("probe", "backend"), key, strict=True))
        completed, missed = facts.value(_COMPLETED, **probe), sum(reasons.values())
        if missed < least:
            continue
        what = f"chances missed in the last {window / HOUR:g} h"
        evidence = [Evidence(what, missed, "", least, "probe_starved_chances_min")]
        if completed is not None:
            age = facts.now - completed
            evidence.append(Evidence("age of the last result", age, "seconds", after, "probe_starved_after_seconds"))
            is_old = age >= after
        else:
            # Without any result its age is not known: it is old if a chance was missed as long ago as that.
            is_old = sum(later.get(key, {}).values()) < missed
        if is_old:
            yield Sighting("probe_starved", _component(facts, probe), tuple(evidence), _named(reasons))


def _missed_chances(facts: Facts, window: float) -> dict[ProbeKey, Reasons]:
    found: dict[ProbeKey, Reasons] = {}
    for metric, reasons in ((_SKIPS, MISSED_CHANCES), (_YIELDS, DISTURBED)):
        for labels, count in facts.increases(metric, window):
            if (reason := labels["reason"]) in reasons:
                some = found.setdefault((labels["probe"], labels["backend"]), {})
                some[reason] = some.get(reason, 0.0) + count
    return found


# --- what the rules share ---


_COMPONENT = (_INFO, *WAYS)
"""What ``_component`` reads."""
_LOW_COPIES = (_COPIES, _COPIES_EXPECTED)
"""What ``_component_of_low`` reads beside it."""


def _component(facts: Facts, labels: dict[str, str]) -> Component:
    """The probe with the parts that it uses."""
    if labels["backend"] == "gloo":
        return probe_of(labels, _LOOPBACK)
    if _info(facts, labels, "collective") == "host_copies":
        ways = facts.derived(ways_of)
        return probe_of(labels, frozenset().union(*(ways.to_host(address) for address in ways.gpus.values())))
    return probe_of(labels, facts.derived(all_parts))


def _component_of_low(facts: Facts, labels: dict[str, str], thresholds: Thresholds) -> Component:
    """The same; of copies between GPUs and host with the parts of the low ones alone."""
    addresses = _low_copies(facts, labels, thresholds)
    if not addresses:
        return _component(facts, labels)
    ways = facts.derived(ways_of)
    return probe_of(labels, frozenset().union(*(ways.to_host(address) for address in addresses)))


def _component_of_slowest(facts: Facts, labels: dict[str, str], slowest: dict[str, str] | None) -> Component:
    """The same; of copies between GPUs and host with the parts of the slowest GPU alone."""
    if slowest is None or not slowest["pci_bus_id"] or _info(facts, labels, "collective") != "host_copies":
        return _component(facts, labels)
    return probe_of(labels, facts.derived(ways_of).to_host(slowest["pci_bus_id"]))


def _low_copies(facts: Facts, labels: dict[str, str], thresholds: Thresholds) -> tuple[str, ...]:
    """PCI addresses of the GPUs with a copy below the mark."""
    expected = {tuple(one.values()): rate for one, rate in facts.series(_COPIES_EXPECTED)}
    low = thresholds.probe_bandwidth_utilization_low_ratio
    return tuple(
        one["pci_bus_id"]
        for one, rate in facts.series(_COPIES)
        if one["probe"] == labels["probe"] and rate < low * expected.get(tuple(one.values()), 0.0)
    )


def _info(facts: Facts, labels: dict[str, str], what: str) -> str:
    """A label of what is known of a probe; empty where nothing is."""
    infos = (one for one, _ in facts.series(_INFO) if one["probe"] == labels["probe"])
    return next((one[what] for one in infos), "")


def _slowest(facts: Facts, labels: dict[str, str]) -> dict[str, str] | None:
    infos = (one for one, _ in facts.series(_SLOWEST) if one["probe"] == labels["probe"])
    return next(infos, None)


def _numbers(
    facts: Facts, labels: dict[str, str], what: str, metric: str, unit: EvidenceUnit
) -> Iterable[Evidence]:  # fmt: skip
    """A number of the probe as a fact beside others; nothing where it is absent."""
    value = facts.value(metric, probe=labels["probe"], backend=labels["backend"])
    return () if value is None else (Evidence(what, value, unit),)


def _utilization(facts: Facts, labels: dict[str, str], thresholds: Thresholds) -> tuple[Evidence, ...]:
    """What the last result reached of what is expected."""
    least = thresholds.probe_bandwidth_utilization_low_ratio
    ratio = facts.value(_UTILIZATION, probe=labels["probe"], backend=labels["backend"])
    share = () if ratio is None else (
        Evidence("share of the expected bandwidth", ratio, "ratio", least, "probe_bandwidth_utilization_low_ratio"),
    )  # fmt: skip
    rates = (
        ("bus bandwidth", _BANDWIDTH),
        ("expected bus bandwidth", _BANDWIDTH_EXPECTED),
    )
    return (
        *share,
        *(one for what, metric in rates for one in _numbers(facts, labels, what, metric, "bytes_per_second")),
    )


def _failures(facts: Facts, window: float) -> dict[ProbeKey, Reasons]:
    """By probe and backend: failures by reason."""
    found: dict[ProbeKey, Reasons] = {}
    for labels, count in facts.increases(_FAILURES, window):
        found.setdefault((labels["probe"], labels["backend"]), {})[labels["reason"]] = count
    return found


def _attempts(facts: Facts, window: float) -> dict[ProbeKey, float]:
    attempts = facts.increases(_ATTEMPTS, window, at_most=True)
    return {(labels["probe"], labels["backend"]): count for labels, count in attempts}


def _named(reasons: Reasons) -> str:
    """``nccl_error 2, crashed 1``: the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{reason} {count:g}" for reason, count in ordered)


PROBE = RuleSet(
    name="Probes",
    codes=PROBE_CODES,
    rules=(
        Rule(
            latency,
            ("probe_latency_high",),
            reads=(_SPIKES,),
            details=(_LATENCY, _LATENCY_BASELINE, *_COMPONENT),
            thresholds=("probe_latency_spike_streak",),
        ),
        Rule(
            bandwidth,
            ("probe_bandwidth_low",),
            reads=(_LOW,),
            details=(_UTILIZATION, _BANDWIDTH, _BANDWIDTH_EXPECTED, *_COMPONENT, *_LOW_COPIES),
            thresholds=("probe_low_bandwidth_streak", "probe_bandwidth_utilization_low_ratio"),
        ),
        Rule(
            below_model,
            ("probe_below_model",),
            reads=(_UTILIZATION, _INFO),
            details=(_BANDWIDTH, _BANDWIDTH_EXPECTED, *WAYS, *_LOW_COPIES),
            thresholds=("probe_bandwidth_utilization_low_ratio",),
        ),
        Rule(
            failing,
            ("probe_failing",),
            reads=(_FAILURES, _COMPLETED),
            details=_COMPONENT,
            thresholds=("probe_failure_streak",),
        ),
        Rule(
            error_rate,
            ("probe_error_rate_rise",),
            reads=(_FAILURES, _ATTEMPTS),
            details=_COMPONENT,
            thresholds=(
                "probe_error_rate_window_seconds",
                "probe_error_rate_rise_ratio",
                "probe_error_rate_failures_min",
                "probe_error_rate_attempts_min",
            ),
        ),
        Rule(wrong_result, ("probe_wrong_result",), reads=(_FAILURES,), details=_COMPONENT),
        Rule(
            step,
            ("probe_step",),
            reads=tuple(metric for metric, _ in _STEPS),
            details=_COMPONENT,
            thresholds=("probe_step_min_factor",),
        ),
        Rule(
            drift,
            ("probe_drift",),
            reads=tuple(metric for metric, _ in _DRIFTS),
            details=_COMPONENT,
            thresholds=("probe_drift_max_factor",),
        ),
        Rule(
            imbalance,
            ("probe_imbalance",),
            reads=(_BALANCE,),
            details=(_SLOWEST, *_COMPONENT),
            thresholds=("probe_balance_low_ratio",),
        ),
        Rule(
            starved,
            ("probe_starved",),
            reads=(_SKIPS, _YIELDS, _COMPLETED),
            details=_COMPONENT,
            thresholds=("probe_starved_after_seconds", "probe_starved_chances_min"),
        ),
    ),
    windows=dict.fromkeys((_ATTEMPTS, _FAILURES, _SKIPS, _YIELDS), DAY),
)
