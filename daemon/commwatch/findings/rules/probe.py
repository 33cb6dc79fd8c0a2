"""Probes: slow, low, uneven or failing, and those that get no chance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, EvidenceUnit, Match
from commwatch.findings.rules.components import probe_of
from commwatch.findings.rules.gpu_ways import WAYS, all_parts, ways_of
from commwatch.findings.rules.pairs import MEASURED_AFTER, pairs_are_well, suspected_parts
from commwatch.findings.rules.probe_codes import PROBE_CODES
from commwatch.findings.rules.rule_set import DAY, HOUR, Rule, RuleSet
from commwatch_exporters.node.model import HostCopy, Probe, ProbeLoss, SlowestRank
from commwatch_exporters.node.parts import Column

Reasons: TypeAlias = dict[str, float]
"""How often, by reason."""

MISSED_CHANCES = frozenset(
    {"budget", "previous_stuck", "probe_running", "backend_changed", "scheduler_unknown", "gpu_unknown",
     "gpu_memory_used", "compute_mode", "foreign_pid_namespace"}
)  # fmt: skip
"""Reasons of skips that are not caused by a job or by a user who reserved the node."""
DISTURBED = frozenset({"process_appeared", "scheduler_busy", "gpu_unknown"})
"""Reasons of cycles that began on a free node and had to yield."""
_LOOPBACK = frozenset({"lo"})
"""The interface of gloo's probes, which use no part of the GPUs."""
FIRM = frozenset({"configured", "reference"})
"""Sources of an expectation that suffice for a ticket by themselves."""
_GROUNDS = {
    "configured": "expected by the configuration",
    "reference": "expected by published results",
    "learned": "expected by the first good day of this node",
    "model": "expected by a model of the topology, which may be wrong for this machine",
}
"""Basis of an expectation, by its source."""


_PAIRS_ARE_WELL = "no pair was slow since then: if an equal node gives the same, set expected_bandwidth to it"


def latency(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes with several latency spikes in a row."""
    for probe, streak in facts.each(Probe.latency_spike_streak):
        least = thresholds.probe_latency_spike_streak
        if streak < least:
            continue
        evidence = (
            Evidence("latency spikes in a row", streak, "", least, "probe_latency_spike_streak"),
            *_number("last latency", probe.last_latency_seconds, "seconds"),
            *_number("usual latency", probe.baseline_latency_seconds, "seconds"),
        )
        since = facts.rising_since(Probe.attempts, probe, streak)
        yield Match("probe_latency_high", _component(facts, probe), evidence, since=since)


def bandwidth(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes with several results in a row below their expectation, whatever its basis."""
    for probe, streak in facts.each(Probe.low_bandwidth_streak):
        least = thresholds.probe_low_bandwidth_streak
        if streak >= least:
            in_a_row = Evidence("low results in a row", streak, "", least, "probe_low_bandwidth_streak")
            since = facts.rising_since(Probe.attempts, probe, streak)
            component = _component_by_pairs(facts, probe, thresholds, since)
            detail = _GROUNDS.get(probe.expected_source, "")
            among_gpus = probe.expected_source == "model" and probe.collective != "host_copies"
            if among_gpus and pairs_are_well(facts, thresholds, since):
                detail = f"{detail}; {_PAIRS_ARE_WELL}"
            evidence = (in_a_row, *_utilization(probe, thresholds))
            yield Match("probe_bandwidth_low", component, evidence, detail, since)


def lost(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes below the node's own level, the worst quantity of each; one that is far below what is expected is low."""
    for probe, count in facts.each(Probe.losses):
        if not count or probe.backend == "gloo" or _is_low(probe, thresholds):  # gloo shares the CPUs with all work
            continue
        losses = [(loss, ratio) for loss, ratio in facts.each(ProbeLoss.ratio) if _is_of(loss, probe)]
        if not losses:
            yield Match("probe_bandwidth_lost", _component(facts, probe), (Evidence("open losses", count),))
            continue
        worst, ratio = max(losses, key=lambda one: one[1])
        evidence = (
            Evidence("share of the own level that is lost", ratio, "ratio", thresholds.probe_loss_ratio,
                     "probe_loss_ratio"),
            *_number("bus bandwidth", worst.bandwidth_bytes_per_second, "bytes_per_second"),
            *_number("own level of bus bandwidth", worst.level_bytes_per_second, "bytes_per_second"),
        )  # fmt: skip
        others = f" and {count - 1:g} more" if count > 1 else ""
        component = _component_of_loss(facts, probe, worst, thresholds)
        since = worst.since_timestamp_seconds
        yield Match("probe_bandwidth_lost", component, evidence, f"of {worst.quantity}{others}", since)


def short(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes that stay short of a configured or published bandwidth, and neither low nor below the own level."""
    for probe, streak in facts.each(Probe.short_bandwidth_streak):
        if not _is_short(probe, streak, thresholds) or probe.expected_source not in FIRM:
            continue
        in_a_row = Evidence("short results in a row", streak, "", thresholds.probe_low_bandwidth_streak,
                            "probe_low_bandwidth_streak")  # fmt: skip
        detail, since = _GROUNDS[probe.expected_source], facts.rising_since(Probe.attempts, probe, streak)
        evidence = (in_a_row, *_share(probe, thresholds.probe_bandwidth_short_ratio, "probe_bandwidth_short_ratio"))
        yield Match("probe_bandwidth_short", _component(facts, probe), evidence, detail, since)


def below_model(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes that give less, or take longer, than a model expects; nothing where something firmer judges them."""
    least = thresholds.probe_low_bandwidth_streak
    found: dict[Probe, list[Evidence]] = {}
    for probe, streak in facts.each(Probe.short_bandwidth_streak):
        if _is_short(probe, streak, thresholds) and probe.expected_source == "model":
            evidence = _share(probe, thresholds.probe_bandwidth_short_ratio, "probe_bandwidth_short_ratio")
            found[probe] = [Evidence("short results in a row", streak, "", least, "probe_low_bandwidth_streak"),
                            *evidence]  # fmt: skip
    for probe, streak in facts.each(Probe.latency_above_model_streak):
        if streak >= least and (probe.latency_spike_streak or 0) < thresholds.probe_latency_spike_streak:
            modelled = probe.expected_latency_seconds.get("model")
            found.setdefault(probe, []).extend((
                Evidence("latencies in a row above the model", streak, "", least, "probe_low_bandwidth_streak"),
                *_number("last latency", probe.last_latency_seconds, "seconds"),
                *_number("latency by the model", modelled, "seconds"),
            ))  # fmt: skip
    for probe, some in found.items():
        yield Match("probe_below_model", _component(facts, probe), tuple(some), _GROUNDS["model"])


def failing(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes that failed several times since their last good result."""
    for probe in _failures(facts, DAY):
        completed = probe.last_completion_timestamp_seconds
        window = DAY if completed is None else min(max(facts.now - completed, 0.0), DAY)
        reasons = _failures(facts, window).get(probe, {})
        failures, least = sum(reasons.values()), thresholds.probe_failure_streak
        if failures >= least:
            evidence = (Evidence("failures since the last result", failures, "", least, "probe_failure_streak"),)
            yield Match("probe_failing", _component(facts, probe), evidence, _named(reasons))


def error_rate(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes of which a larger share of attempts fails than in the window before."""
    # Changes are kept for a day: a longer window is cut to that.
    window = min(thresholds.probe_error_rate_window_seconds, DAY / 2)
    least, fewest = thresholds.probe_error_rate_failures_min, thresholds.probe_error_rate_attempts_min
    grown = {probe: some for probe, some in _failures(facts, window).items() if sum(some.values()) >= least}
    if not grown:
        return
    attempts, attempts_of_both = (
        dict(facts.rises(Probe.attempts, seconds, at_most=True)) for seconds in (window, 2 * window)
    )
    failures_of_both = _failures(facts, 2 * window)
    for probe, reasons in grown.items():
        now, failures = attempts.get(probe, 0.0), sum(reasons.values())
        earlier = attempts_of_both.get(probe, 0.0) - now
        if now < fewest:
            continue
        failed_earlier = sum(failures_of_both[probe].values()) - failures
        # Hardly tried before: as if nothing had failed. So a new node is judged from its first attempts on.
        rate, before = failures / now, failed_earlier / earlier if earlier >= fewest else 0.0
        if rate - before <= thresholds.probe_error_rate_rise_ratio:
            continue
        evidence = (
            Evidence("rise of the share of failures", rate - before, "ratio", thresholds.probe_error_rate_rise_ratio,
                     "probe_error_rate_rise_ratio"),
            Evidence("share of attempts that fail", rate, "ratio"),
            Evidence("failures", failures, "", least, "probe_error_rate_failures_min"),
        )  # fmt: skip
        yield Match("probe_error_rate_rise", _component(facts, probe), evidence, _named(reasons))


def wrong_result(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes in which something arrived that was not sent."""
    for probe, reason, count in facts.rises_keyed(Probe.failures, DAY):
        if reason == "wrong_result":
            evidence = (Evidence("wrong results in the last day", count),)
            yield Match("probe_wrong_result", _component(facts, probe), evidence)


_STEPS = (
    (Probe.latency_step_ratio, "latency, times that of the results before"),
    (Probe.bandwidth_step_ratio, "time of the large operation, times that of the results before"),
)
_SWINGS = (
    (Probe.latency_swing_ratio, "spread of the latency, times that of the results before"),
    (Probe.bandwidth_swing_ratio, "spread of the time of the large operation, times that of the results before"),
)
_DRIFTS = (
    (Probe.latency_drift_ratio, "latency, times that of the first results"),
    (Probe.bandwidth_drift_ratio, "time of the large operation, times that of the first results"),
)


def step(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes of which the last results took longer than those just before."""
    least = thresholds.probe_step_min_factor
    for component, evidence in _beyond(facts, _STEPS, least, "probe_step_min_factor"):
        yield Match("probe_step", component, evidence)


def swing(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes of which the last results differ much more from each other than those just before."""
    least = thresholds.probe_swing_min_factor
    for component, evidence in _beyond(facts, _SWINGS, least, "probe_swing_min_factor"):
        yield Match("probe_swing", component, evidence)


def drift(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes of which the latest good results take longer than the first ones."""
    least = thresholds.probe_drift_max_factor
    for component, evidence in _beyond(facts, _DRIFTS, least, "probe_drift_max_factor"):
        yield Match("probe_drift", component, evidence)


def _beyond(
    facts: Facts, ratios: Iterable[tuple[Column[Probe], str]], least: float, origin: str
) -> Iterable[tuple[Component, tuple[Evidence, ...]]]:
    """By probe: those of some ratios that are not below a factor; latency and bandwidth together."""
    found: dict[Probe, list[Evidence]] = {}
    for column, what in ratios:
        for probe, ratio in facts.each(column):
            if ratio >= least:
                found.setdefault(probe, []).append(Evidence(what, ratio, "ratio", least, origin))
    for probe, some in found.items():
        yield _component(facts, probe), tuple(some)


def imbalance(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes on GPUs in which the ranks are far from even."""
    least = thresholds.probe_balance_low_ratio
    for probe, ratio in facts.each(Probe.rank_balance_ratio):
        if ratio >= least or probe.backend == "gloo":
            continue
        evidence = Evidence("time of the fastest rank over that of the slowest", ratio, "ratio", least,
                            "probe_balance_low_ratio")  # fmt: skip
        slowest = facts.node.part(SlowestRank, *probe.identity)
        detail = f"rank {slowest.rank} ({slowest.address or 'no GPU'}) takes longest" if slowest.rank else ""
        yield Match("probe_imbalance", _component_of_slowest(facts, probe, slowest), (evidence,), detail)


def starved(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Probes without a result for long, a day by default, although several times no job was to blame."""
    after, least = thresholds.probe_starved_after_seconds, thresholds.probe_starved_chances_min
    window = min(after, DAY)
    later = _missed_chances(facts, window - HOUR) if window > HOUR else {}
    for probe, reasons in _missed_chances(facts, window).items():
        completed, missed = probe.last_completion_timestamp_seconds, sum(reasons.values())
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
            is_old = sum(later.get(probe, {}).values()) < missed
        if is_old:
            yield Match("probe_starved", _component(facts, probe), tuple(evidence), _named(reasons))


def _missed_chances(facts: Facts, window: float) -> dict[Probe, Reasons]:
    found: dict[Probe, Reasons] = {}
    for column, reasons in ((Probe.skips, MISSED_CHANCES), (Probe.yields, DISTURBED)):
        for probe, reason, count in facts.rises_keyed(column, window):
            if reason in reasons:
                some = found.setdefault(probe, {})
                some[reason] = some.get(reason, 0.0) + count
    return found


# --- what the rules share ---


_COMPONENT = (Probe.info, *WAYS)
"""Metrics that ``_component`` reads."""
_LOW_COPIES = (HostCopy.bandwidth_bytes_per_second, HostCopy.expected_bandwidth_bytes_per_second)
"""Metrics that ``_component_of_low`` reads besides."""
_RATES = (Probe.last_bus_bandwidth_bytes_per_second, Probe.expected_bandwidth_bytes_per_second)


def _component(facts: Facts, probe: Probe) -> Component:
    """The probe with the parts that it uses."""
    if probe.backend == "gloo":
        return probe_of(probe, _LOOPBACK)
    if probe.collective == "host_copies":
        ways = facts.derived(ways_of)
        return probe_of(probe, frozenset().union(*(ways.to_host(address) for address in ways.gpus.values())))
    return probe_of(probe, facts.derived(all_parts))


def _component_of_low(facts: Facts, probe: Probe, thresholds: Thresholds) -> Component:
    """The same; of copies between GPUs and host with the parts of the low ones alone."""
    addresses = _low_copies(facts, probe, thresholds)
    if not addresses:
        return _component(facts, probe)
    ways = facts.derived(ways_of)
    return probe_of(probe, frozenset().union(*(ways.to_host(address) for address in addresses)))


def _component_by_pairs(facts: Facts, probe: Probe, thresholds: Thresholds, since: float | None) -> Component:
    """The same; of traffic among GPUs with those parts alone that the pairs measured since its first bad result show.

    Nothing else is to blame then: the matrix clears it.
    """
    suspected = frozenset[str]()
    if probe.backend != "gloo" and probe.collective != "host_copies":
        suspected = suspected_parts(facts, thresholds, since)
    return probe_of(probe, suspected) if suspected else _component_of_low(facts, probe, thresholds)


def _component_of_loss(facts: Facts, probe: Probe, loss: ProbeLoss, thresholds: Thresholds) -> Component:
    """The same; of copies between a GPU and the host with the parts of this GPU alone."""
    *_, last = loss.quantity.split(" ")
    if probe.collective != "host_copies" or last not in facts.derived(ways_of).gpus.values():
        return _component_by_pairs(facts, probe, thresholds, loss.since_timestamp_seconds)
    return probe_of(probe, facts.derived(ways_of).to_host(last))


def _is_of(loss: ProbeLoss, probe: Probe) -> bool:
    return (loss.probe, loss.backend) == (probe.name, probe.backend)


def _is_low(probe: Probe, thresholds: Thresholds) -> bool:
    return (probe.low_bandwidth_streak or 0) >= thresholds.probe_low_bandwidth_streak


def _is_short(probe: Probe, streak: float, thresholds: Thresholds) -> bool:
    """Whether a streak is a finding of its own: neither low nor below the own level."""
    return streak >= thresholds.probe_low_bandwidth_streak and not _is_low(probe, thresholds) and not probe.losses


def _component_of_slowest(facts: Facts, probe: Probe, slowest: SlowestRank) -> Component:
    """The same; of copies between GPUs and host with the parts of the slowest GPU alone."""
    if not slowest.address or probe.collective != "host_copies":
        return _component(facts, probe)
    return probe_of(probe, facts.derived(ways_of).to_host(slowest.address))


def _low_copies(facts: Facts, probe: Probe, thresholds: Thresholds) -> tuple[str, ...]:
    """PCI addresses of the GPUs with a copy below the mark."""
    low = thresholds.probe_bandwidth_utilization_low_ratio
    return tuple(
        one.address
        for one, rate in facts.each(HostCopy.bandwidth_bytes_per_second)
        if one.probe == probe.name and rate < low * (one.expected_bandwidth_bytes_per_second or 0.0)
    )


def _number(what: str, value: float | None, unit: EvidenceUnit) -> Iterable[Evidence]:
    """A number as a fact beside others; nothing where it is absent."""
    return () if value is None else (Evidence(what, value, unit),)


def _utilization(probe: Probe, thresholds: Thresholds) -> tuple[Evidence, ...]:
    """The last result as a share of its expectation."""
    least = thresholds.probe_bandwidth_utilization_low_ratio
    return _share(probe, least, "probe_bandwidth_utilization_low_ratio")


def _share(probe: Probe, least: float, origin: str) -> tuple[Evidence, ...]:
    """The same against a threshold."""
    ratio = probe.bandwidth_utilization_ratio
    share = () if ratio is None else (
        Evidence("share of the expected bandwidth", ratio, "ratio", least, origin),
    )  # fmt: skip
    return (
        *share,
        *_number("bus bandwidth", probe.last_bus_bandwidth_bytes_per_second, "bytes_per_second"),
        *_number("expected bus bandwidth", probe.expected_bandwidth_bytes_per_second, "bytes_per_second"),
    )


def _failures(facts: Facts, window: float) -> dict[Probe, Reasons]:
    """Failures by reason."""
    found: dict[Probe, Reasons] = {}
    for probe, reason, count in facts.rises_keyed(Probe.failures, window):
        found.setdefault(probe, {})[reason] = count
    return found


def _named(reasons: Reasons) -> str:
    """``2 × nccl_error, 1 × crashed``: the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count:g} × {reason}" for reason, count in ordered)


PROBE = RuleSet(
    name="Probes",
    codes=PROBE_CODES,
    rules=(
        Rule(
            latency,
            ("probe_latency_high",),
            reads=(Probe.latency_spike_streak,),
            details=(Probe.last_latency_seconds, Probe.baseline_latency_seconds, Probe.attempts, *_COMPONENT),
            thresholds=("probe_latency_spike_streak",),
        ),
        Rule(
            bandwidth,
            ("probe_bandwidth_low",),
            reads=(Probe.low_bandwidth_streak,),
            details=(
                Probe.bandwidth_utilization_ratio,
                Probe.attempts,
                *_RATES,
                *_COMPONENT,
                *_LOW_COPIES,
                *MEASURED_AFTER,
            ),
            thresholds=(
                "probe_low_bandwidth_streak",
                "probe_bandwidth_utilization_low_ratio",
                "suspect_confidence_min",
            ),
        ),
        Rule(
            lost,
            ("probe_bandwidth_lost",),
            reads=(Probe.losses,),
            details=(
                Probe.low_bandwidth_streak,
                ProbeLoss.ratio,
                ProbeLoss.level_bytes_per_second,
                ProbeLoss.bandwidth_bytes_per_second,
                ProbeLoss.since_timestamp_seconds,
                *_COMPONENT,
                *_LOW_COPIES,
                *MEASURED_AFTER,
            ),
            thresholds=(
                "probe_loss_ratio",
                "probe_low_bandwidth_streak",
                "suspect_confidence_min",
                "probe_bandwidth_utilization_low_ratio",
            ),
        ),
        Rule(
            short,
            ("probe_bandwidth_short",),
            reads=(Probe.short_bandwidth_streak, Probe.low_bandwidth_streak, Probe.losses, Probe.info),
            details=(Probe.bandwidth_utilization_ratio, Probe.attempts, *_RATES, *WAYS),
            thresholds=("probe_low_bandwidth_streak", "probe_bandwidth_short_ratio"),
        ),
        Rule(
            below_model,
            ("probe_below_model",),
            reads=(
                Probe.short_bandwidth_streak,
                Probe.low_bandwidth_streak,
                Probe.losses,
                Probe.latency_above_model_streak,
                Probe.latency_spike_streak,
                Probe.info,
            ),
            details=(
                Probe.bandwidth_utilization_ratio,
                Probe.last_latency_seconds,
                Probe.expected_latency_seconds,
                *_RATES,
                *WAYS,
            ),
            thresholds=(
                "probe_low_bandwidth_streak",
                "probe_bandwidth_short_ratio",
                "probe_latency_spike_streak",
            ),
        ),
        Rule(
            failing,
            ("probe_failing",),
            reads=(Probe.failures, Probe.last_completion_timestamp_seconds),
            details=_COMPONENT,
            thresholds=("probe_failure_streak",),
        ),
        Rule(
            error_rate,
            ("probe_error_rate_rise",),
            reads=(Probe.failures, Probe.attempts),
            details=_COMPONENT,
            thresholds=(
                "probe_error_rate_window_seconds",
                "probe_error_rate_rise_ratio",
                "probe_error_rate_failures_min",
                "probe_error_rate_attempts_min",
            ),
        ),
        Rule(wrong_result, ("probe_wrong_result",), reads=(Probe.failures,), details=_COMPONENT),
        Rule(
            step,
            ("probe_step",),
            reads=tuple(column for column, _ in _STEPS),
            details=_COMPONENT,
            thresholds=("probe_step_min_factor",),
        ),
        Rule(
            swing,
            ("probe_swing",),
            reads=tuple(column for column, _ in _SWINGS),
            details=_COMPONENT,
            thresholds=("probe_swing_min_factor",),
        ),
        Rule(
            drift,
            ("probe_drift",),
            reads=tuple(column for column, _ in _DRIFTS),
            details=_COMPONENT,
            thresholds=("probe_drift_max_factor",),
        ),
        Rule(
            imbalance,
            ("probe_imbalance",),
            reads=(Probe.rank_balance_ratio,),
            details=(SlowestRank.info, *_COMPONENT),
            thresholds=("probe_balance_low_ratio",),
        ),
        Rule(
            starved,
            ("probe_starved",),
            reads=(Probe.skips, Probe.yields, Probe.last_completion_timestamp_seconds),
            details=_COMPONENT,
            thresholds=("probe_starved_after_seconds", "probe_starved_chances_min"),
        ),
    ),
    windows=dict.fromkeys((Probe.attempts, Probe.failures, Probe.skips, Probe.yields), DAY),
)
