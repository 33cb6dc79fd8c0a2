"""State of one probe over time: its counts, its streaks, its baseline, and the metrics that show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, get_args

from commwatch.config.settings import Probe
from commwatch.config.thresholds import Thresholds
from commwatch.probes.gate.budget import Occupied, recent
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, StepOutcome
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import Collective, FailureReason, SkipReason
from commwatch.probes.results.bus_bandwidth import hidden_of
from commwatch.probes.results.counts import CycleCounts, LatencyHistogram
from commwatch.probes.results.course import Baseline, Course, held_to, spike_limit
from commwatch.probes.results.expected import Expected, expected_latency, latency_mark
from commwatch.probes.results.history import Conditions, GpuName, LastResult, ProbeHistory, SlowestRank
from commwatch.probes.results.level import LearnedRate, Level, first_level
from commwatch.probes.results.rates import (
    Rate,
    balance_of_ranks,
    copies_of,
    course_of,
    leading,
    name_of,
    rates_of,
    scaling_of,
)
from commwatch.probes.results.streak import Streak, is_current
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch_exporters.snapshot import Value

if TYPE_CHECKING:
    from commwatch.node.topology.reach import GpuPaths

Reading: TypeAlias = tuple[str, tuple[str, ...], Value]
"""Metric, label values and number; None for what is not known."""

LATENCY = "latency"
"""Course of the small collective; every other course is of a bandwidth."""

_COLLECTIVES = frozenset(get_args(Collective))
"""The measures that have a latency."""

_SAME_SIZE_RATIO = 0.01
"""By which the size of a call may differ with the number of ranks."""

LEARNING_RESULTS = 6
"""Good latencies up to which a frequent probe runs more often: with fewer the limit of a spike is far away."""


class LatencyCourse(NamedTuple):
    """Latencies under equal conditions, seconds, as they are drawn."""

    latest: tuple[float, ...]
    """Oldest first."""
    usual: float | None
    """Median of the baseline; None while there is none."""
    limit: float | None
    """Above it a latency is a spike; None without a baseline and an absolute limit."""

    @property
    def words(self) -> str:
        """The description of the picture."""
        latest, limit = self.latest, self.limit
        words = f"last {len(latest)} latencies: {format_seconds(min(latest))} to {format_seconds(max(latest))}"
        if limit is None:
            return words
        return f"{words}, {sum(one > limit for one in latest) or 'none'} above the limit"

    @property
    def usual_words(self) -> str:
        """``18.2 µs, limit 27.3 µs``; empty if neither is known."""
        usual = [] if self.usual is None else [format_seconds(self.usual)]
        return ", ".join(usual + ([] if self.limit is None else [f"limit {format_seconds(self.limit)}"]))


class ProbeRecord:
    """One probe; takes the outcome of each cycle and gives the metrics. No I/O, and time is handed in.

    For pairs it has the state of each cycle as such: counts, set-up, completion and conditions.
    """

    def __init__(
        self, plan: CyclePlan, probe: Probe, limits: Thresholds, history: ProbeHistory | None = None
    ) -> None:  # fmt: skip
        self.history = history or ProbeHistory(plan.backend)
        self.suspicious = False
        """Whether the last cycle failed, was slow or low, or made a step, so that the probe should run again soon."""
        self._probe = probe
        self._limits = limits
        self._histogram = LatencyHistogram()
        self._counts = CycleCounts()
        self._spikes = 0
        self.adopt_plan(plan)

    def adopt_plan(self, plan: CyclePlan) -> None:
        """Take the plan of the next cycle: GPUs come and go, and the backend is settled by the first outcome only."""
        self._plan = plan
        if self.history.last_completion_at is None and not self._counts.attempts:
            self.history.backend = plan.backend

    def _is_current(self, taken_at: float | None, now: float) -> bool:
        return is_current(taken_at, self._probe.interval, now)

    def _current(self, now: float) -> LastResult | None:
        last = self.history.last
        return last if last is not None and self._is_current(last.finished_at, now) else None

    @property
    def other_backend(self) -> str:
        """Backend of the results under this name where the plan has another one: then it must not run; else empty."""
        return self.history.backend if self.history.backend != self._plan.backend else ""

    @property
    def is_learning(self) -> bool:
        """Whether there are few good latencies yet, although this probe can have them."""
        good = self.history.courses.get(LATENCY, Course()).good
        return self._has_latency and not self._plan.shares_gpus and len(good) < LEARNING_RESULTS

    def take(self, result: CycleResult, now: float, prospect: Prospect | None = None) -> None:
        """Take in the outcome of a cycle.

        Args:
            now: seconds since 1970.
            prospect: the cycle as it was planned; None where no more than its plan is known.
        """
        gpu_seconds = self._counts.take(result, self._plan.gpus)
        if result.occupied_seconds:
            self.history.occupied = [*recent(self.history.occupied, now), Occupied(now, gpu_seconds)]
        if isinstance(result, Measured):
            self._measured(result, prospect or Prospect(self._plan), now)
        elif isinstance(result, Failed):
            self._failed(result.reason, now)

    def book_as_search(self) -> None:
        """The cycle whose outcome was taken in last ran out of turn: it counts for the share of the search."""
        *before, last = self.history.occupied
        self.history.occupied = [*before, Occupied(last.ended_at, last.gpu_seconds, search=True)]

    @property
    def is_bad_in_a_row(self) -> bool:
        """Whether as many results in a row are bad as raise an alert: worth the search for the part at fault."""
        history, limits = self.history, self._limits
        return (
            history.bandwidth_streak.count >= limits.probe_low_bandwidth_streak
            or history.latency_streak.count >= limits.probe_latency_spike_streak
            or (bool(self.losses) and history.backend != "gloo")
            or history.short_streak.count >= limits.probe_low_bandwidth_streak
        )

    def skip(self, reason: SkipReason) -> None:
        """Count a cycle that did not start; streaks are unchanged, as after a cycle that yields."""
        self._counts.skip(reason)

    def _failed(self, reason: FailureReason, now: float) -> None:
        self.suspicious = True
        if reason == "measure_timeout" and self._has_latency:
            self._count_latency(now, spike=True)

    @property
    def _has_latency(self) -> bool:
        return self._plan.measure in _COLLECTIVES

    def _count_latency(self, now: float, *, spike: bool) -> None:
        self.suspicious |= spike
        self._spikes += spike
        self.history.latency_streak = self._streak_after(self.history.latency_streak, now, bad=spike)
        self.history.latency_judged_at = now

    def _streak_after(self, streak: Streak, now: float, *, bad: bool) -> Streak:
        return streak.after(now, self._limits.probe_streak_gap_max_seconds, bad=bad)

    def _measured(self, result: Measured, prospect: Prospect, now: float) -> None:
        self.history.last_completion_at = result.finished_at
        self.suspicious = False
        if self._plan.shares_gpus:
            return  # what arrived was exact; the times are those of the GPU's time slices
        gpus, subject = prospect.names, self._subject(prospect.gpu_model)
        self._compare_only_like(self._conditions(result, gpus))
        rates = rates_of(result, self._with_learned(prospect.expected, subject))
        small = result.first("latency") if self._has_latency else None
        latency = None if small is None else small.slowest_seconds
        self.history.last = self._last_result(result, latency, rates, gpus)
        self.history.latency_mark = None if small is None else self._mark(small, prospect.paths)
        self.history.expected_latency = None if small is None else expected_latency(small.step, prospect.paths)
        well = [self._judge_level(rate, course_of(rate.step, gpus), now, subject) for rate in rates]
        if latency is not None:
            firm = [one for one in rates if one.expected is not None and one.expected.is_firm]
            low = any(self._is_low(one.utilization) for one in firm)
            self._judge_latency(latency, now, well=not low and not self.losses)
        self._judge_bandwidth(self.history.last, now)
        if all(well):
            self._learn(self.history.last, now, subject)

    def _last_result(
        self, result: Measured, latency: float | None, rates: Sequence[Rate], gpus: Sequence[GpuName]
    ) -> LastResult:
        head = leading(self._plan.measure, rates)
        balance = balance_of_ranks(result)
        slowest = None if balance is None else balance.slowest
        scaling = scaling_of(self._plan.bandwidth_bytes, rates) if self._plan.measure == "scaling" else ()
        hidden = hidden_of({one.step.operation: one.slowest_seconds for one in result.outcomes})
        return LastResult(
            finished_at=result.finished_at,
            setup_seconds=result.setup_seconds,
            latency_seconds=latency,
            bus_bandwidth=None if head is None else head.bus_bandwidth,
            algorithm_bandwidth=None if head is None else head.algorithm_bandwidth,
            expected=None if head is None else head.expected,
            balance=None if balance is None else balance.ratio,
            slowest=None if slowest is None else SlowestRank(slowest, name_of(slowest, gpus).pci_bus_id),
            scaling=scaling,
            hidden_ratio=None if hidden is None else hidden.hidden_ratio,
            copies=copies_of(rates, gpus),
            torch_version=result.torch_version,
        )

    def _mark(self, small: StepOutcome, paths: GpuPaths | None) -> float | None:
        """Seconds above which a small call is slow on this path; gloo measures processes of the host, and has none."""
        if self._plan.backend == "gloo":
            return None
        factor, most = self._limits.probe_latency_mark_factor, self._limits.probe_latency_mark_max_seconds
        return latency_mark(small.step, paths, factor=factor, most=most)

    @property
    def _absolute_limit(self) -> float | None:
        """Seconds above which a latency is a spike by the configuration, else by published results while there is no
        baseline, else by the mark of the path."""
        absolute: float | None = self._probe.latency_limit
        if absolute is None and self._baseline() is None:
            absolute = self._published_limit
        return self.history.latency_mark if absolute is None else absolute

    @property
    def _latency_limit(self) -> float | None:
        return spike_limit(self._baseline(), self._absolute_limit, self._limits)

    def _judge_level(self, rate: Rate, name: str, now: float, subject: str) -> bool:
        """Hold a bandwidth against the node's own level; whether it is neither lost nor low."""
        key, rule = f"{subject} {name}", self._limits
        level = self.history.levels.get(key)
        if level is not None:
            in_a_row = self.history.bandwidth_streak.count + 1 >= rule.probe_low_bandwidth_streak
            level = level.after(rate.seconds, now, rule, low=in_a_row and self._is_low(rate.utilization))
            self.suspicious |= level.is_settling and level.bad < rule.probe_loss_streak
        well = not self._is_low(rate.utilization) and (level is None or not level.bad)
        self._follow(name, rate.seconds, good=well, now=now)
        course = self.history.courses[name]
        if level is not None:
            level = level.following(course, rule)
        elif well:
            level = first_level(name, course, rate.bus_bandwidth, rule)
        if level is not None:
            self.history.levels = {**self.history.levels, key: level}
        return well

    @property
    def losses(self) -> tuple[Level, ...]:
        """The open losses, the worst first; for a name with two numbers of GPUs the worse one.

        Losses of an operation or size that is no longer configured are left out: nothing measures them.
        """
        lost: dict[str, Level] = {}
        for key, level in self.history.levels.items():
            is_worst = level.name not in lost or level.lost_share > lost[level.name].lost_share
            if level.is_open and is_worst and self._measures(key, level):
                lost[level.name] = level
        return tuple(sorted(lost.values(), key=lambda one: -one.lost_share))

    @property
    def _unmeasured_losses(self) -> int:
        return sum(level.is_lost and not self._measures(key, level) for key, level in self.history.levels.items())

    def _measures(self, key: str, level: Level) -> bool:
        """Whether the plan is for the operation and size of a level, whatever the number of GPUs is now."""
        planned = self._plan.bandwidth_bytes
        if not planned or self.other_backend:  # what would be planned is not known now
            return True
        words = key.removesuffix(f" {level.name}").split(" ")
        measure, size = words[0], words[-1]
        # A size is rounded up to whole elements for each rank. Of a damaged state the key may be anything.
        is_near = size.isdecimal() and abs(float(size) - planned) <= _SAME_SIZE_RATIO * planned
        return measure == self._plan.measure and is_near

    def loss_sentences(self) -> list[str]:
        """The open losses with both numbers, for the operator."""
        return [
            f"probe {self._plan.probe}: {one.name} gives {format_rate(one.low_bus_bandwidth)}, "
            f"before {format_rate(one.bus_bandwidth)}"
            for one in self.losses
        ]

    def accept(self) -> list[str]:
        """Accept the lost levels from now on, and a latency that is too high as the usual one.

        Returns:
            The given up levels, in sentences.
        """
        history, given_up = self.history, self.loss_sentences()
        for key, level in history.levels.items():
            if level.is_lost:
                history.levels = {**history.levels, key: level.accepted()}
                history.courses = {one: of for one, of in history.courses.items() if one != level.name}
                subject = key.removesuffix(f" {level.name}")
                history.learned = {one: rate for one, rate in history.learned.items() if one != subject}
        last = history.last
        if history.latency_streak.count >= self._limits.probe_latency_spike_streak and last is not None:
            if last.latency_seconds is not None:
                small = format_seconds(last.latency_seconds)
                given_up.append(f"probe {self._plan.probe}: a small call takes {small}")
            history.latency_accepted = True
            history.courses = {one: of for one, of in history.courses.items() if one != LATENCY}
            history.latency_streak = Streak()
        return given_up

    @property
    def _published_limit(self) -> float | None:
        """Seconds above which a latency is slow by published results; the operator's own limit takes precedence."""
        expected, is_set = self.history.expected_latency, self._probe.latency_limit is not None
        if expected is None or expected.source != "reference" or is_set or self.history.latency_accepted:
            return None
        return self._limits.probe_latency_published_factor * expected.seconds

    @property
    def _model_limit(self) -> float | None:
        """The same by a model, which may be wrong for a machine: what is above it may be usual here."""
        expected = self.history.expected_latency
        if expected is None or expected.source != "model" or self._probe.latency_limit is not None:
            return None
        return self._limits.probe_latency_model_factor * expected.seconds

    def _judge_latency(self, latency: float, now: float, *, well: bool) -> None:
        """Judge a small call.

        Args:
            latency: seconds.
            now: seconds since 1970.
            well: whether no loss is open, and no bandwidth low by what is not a model: a model that does not fit this
                machine must not keep its latency from being judged.
        """
        self._histogram.observe(latency)
        published, model, limit = self._published_limit, self._model_limit, self._latency_limit
        spike = limit is not None and latency > limit
        is_fast = published is None or latency <= published
        self._follow(LATENCY, latency, good=well and is_fast and not spike, now=now)
        above = model is not None and latency > model
        self.history.above_model_streak = self._streak_after(self.history.above_model_streak, now, bad=above)
        self._count_latency(now, spike=spike)

    def _judge_bandwidth(self, last: LastResult, now: float) -> None:
        """Whether a bandwidth is low, and whether it is short of the share of its expectation that healthy nodes reach;
        a learned one has a level."""
        history, limits, share, expected = self.history, self._limits, last.utilization, last.expected
        low = self._is_low(share)
        history.bandwidth_streak = self._streak_after(history.bandwidth_streak, now, bad=low)
        short = share is not None and share < limits.probe_bandwidth_short_ratio
        short = short and expected is not None and expected.source != "learned"
        history.short_streak = self._streak_after(history.short_streak, now, bad=short)
        few = short and history.short_streak.count < limits.probe_low_bandwidth_streak
        self.suspicious |= low or (few and expected is not None and expected.is_firm)

    def _subject(self, gpu_model: str) -> str:
        """Key of a learned value: other operations, GPUs, ranks or sizes are learned separately."""
        return f"{self._plan.measure} {gpu_model} x{self._plan.ranks} {self._plan.bandwidth_bytes}"

    def _with_learned(self, expected: Mapping[int, Expected], subject: str) -> Mapping[int, Expected]:
        """For a collective, the learned expectation in place of a model's."""
        learned = self.history.learned.get(subject)
        if learned is None or learned.settled is None:
            return expected
        own = Expected(learned.settled, "learned", "90th percentile of the first good day of this node")
        return {place: own if one.source == "model" else one for place, one in expected.items()}

    def _learn(self, last: LastResult, now: float, subject: str) -> None:
        """Learn from a good result of a collective for which there is a model only: it keeps out what is broken."""
        if not self._has_latency or last.bus_bandwidth is None or self._is_low(last.utilization):
            return
        if last.expected is not None and last.expected.source == "model":
            known = self.history.learned.get(subject, LearnedRate(now))
            self.history.learned = {**self.history.learned, subject: known.after(last.bus_bandwidth, now)}

    def _is_low(self, utilization: float | None) -> bool:
        return utilization is not None and utilization < self._limits.probe_bandwidth_utilization_low_ratio

    def _follow(self, name: str, seconds: float, *, good: bool, now: float) -> None:
        """Take a time into its course; the result that completes a step is suspicious, those after it are not."""
        rule, before = self._limits, self.history.courses.get(name, Course())
        after = before.after(seconds, good=good, now=now, rule=rule)
        ratios = [1.0 if ratio is None else ratio for ratio in (before.step_ratio(rule), after.step_ratio(rule))]
        self.suspicious |= ratios[0] < rule.probe_step_min_factor <= ratios[1]
        self.history.courses = {**self.history.courses, name: after}

    def _compare_only_like(self, conditions: Conditions) -> None:
        """Start again where a result was taken under other conditions than those before."""
        history = self.history
        if conditions != history.conditions:
            history.conditions = conditions
            history.courses = {}
            history.latency_streak = Streak()
            history.bandwidth_streak = Streak()
            history.short_streak = Streak()
            history.above_model_streak = Streak()

    def _conditions(self, result: Measured | None = None, gpus: Sequence[GpuName] = ()) -> Conditions:
        plan = self._plan
        return Conditions(
            measure=plan.measure,
            latency_bytes=plan.latency_bytes,
            bandwidth_bytes=plan.bandwidth_bytes,
            ranks=plan.ranks,
            nccl_version="" if result is None else result.nccl_version,
            torch_version=result.torch_version if result is not None and plan.backend == "gloo" else "",
            settings="" if result is None else result.nccl.settings_digest,
            slots=tuple(gpu.pci_bus_id for gpu in gpus),
        )

    def latency_course(self) -> LatencyCourse | None:
        """The last latencies, good and bad, with their baseline; None before the first one."""
        course = self.history.courses.get(LATENCY)
        if course is None or not course.latest or not self._has_latency:
            return None
        baseline = self._baseline()
        usual = None if baseline is None else baseline.median
        return LatencyCourse(course.latest, usual, self._latency_limit)

    def _baseline(self) -> Baseline | None:
        """The reference that latencies are compared with; one result that agrees with a model is enough."""
        rule, course, model = self._limits, self.history.courses.get(LATENCY, Course()), self._model_limit
        is_proven = model is not None and bool(course.good) and course.good[0] <= model
        return held_to(course.baseline(rule, is_proven=is_proven), course.reference, rule.probe_drift_max_factor)

    def words(self, now: float) -> str:
        """The last result in a line; empty without a current one.

        Args:
            now: seconds since 1970.
        """
        last = self._current(now)
        if last is None:
            return ""
        parts = [] if last.latency_seconds is None else [f"latency {format_seconds(last.latency_seconds)}"]
        if last.scaling:
            parts += [f"{one.ranks} GPUs {format_rate(one.bus_bandwidth)}" for one in last.scaling]
        elif last.copies:
            slowest = min(last.copies, key=lambda one: one.bytes_per_second)
            way = slowest.direction.replace("_", " ")
            parts.append(f"slowest GPU {slowest.gpu.gpu} {way}: {format_rate(slowest.bytes_per_second)}")
        elif last.bus_bandwidth is not None:
            parts.append(f"bus bandwidth {format_rate(last.bus_bandwidth)}")
        if last.expected is not None and last.utilization is not None:
            of = f"{format_rate(last.expected.bytes_per_second)} ({last.expected.source})"
            parts.append(f"{format_percent(last.utilization)} of {of}")
        return ", ".join(parts)

    def readings(self, now: float) -> list[Reading]:
        """Metric, label values and number of all series of this probe; None for what is not known or too old.

        The series are the same each time, but for those that name a rank, a GPU or conditions: they are those of the
        last result, and absent with it.
        """
        labels = (self._plan.probe, self.history.backend)
        current = self._current(now)
        values = self._counts.values() | self._values(current)
        values["last_completion_timestamp_seconds"] = self.history.last_completion_at
        if self._has_latency:
            values |= self._latency_values(current, now)
        series: list[Reading] = [(f"commwatch_probe_{name}", labels, value) for name, value in values.items()]
        if self._has_latency:
            series += [(f"commwatch_probe_latency_seconds{suffix}", (*labels, *extra), value)
                       for suffix, extra, value in self._histogram.series()]  # fmt: skip
        series += [
            (f"commwatch_probe_{name}", (*labels, reason), count)
            for name, reason, count in self._counts.reasons(self.history.backend)
        ]
        series += [] if current is None else _named(labels, current)
        expected = self.history.expected_latency
        if current is not None and expected is not None:
            series.append(("commwatch_probe_expected_latency_seconds", (*labels, expected.source), expected.seconds))
        if self._has_latency:
            series.append(("commwatch_probe_latency_judged_info", (*labels, self._judged_by(current)), 1))
        series.append(("commwatch_probe_info", (*labels, *self._info()), 1))
        return [*series, *_lost(labels, self.losses)]

    def _values(self, last: LastResult | None) -> dict[str, Value]:
        """Of the last result, or absent."""
        values: dict[str, Value] = {"setup_seconds": None if last is None else last.setup_seconds}
        if self._plan.measure == "pairs":
            return values
        rule, courses = self._limits, self.history.courses
        bandwidths = [course for name, course in courses.items() if name != LATENCY and last is not None]
        judged = last is not None and last.utilization is not None
        if self._plan.measure == "training":
            values["hidden_ratio"] = None if last is None else last.hidden_ratio
        return values | {
            "last_bus_bandwidth_bytes_per_second": None if last is None else last.bus_bandwidth,
            "last_algorithm_bandwidth_bytes_per_second": None if last is None else last.algorithm_bandwidth,
            "expected_bandwidth_bytes_per_second": (
                last.expected.bytes_per_second if last is not None and last.expected is not None else None
            ),
            "bandwidth_utilization_ratio": None if last is None else last.utilization,
            "low_bandwidth_streak": self.history.bandwidth_streak.count if judged else None,
            "short_bandwidth_streak": self.history.short_streak.count if judged else None,
            "losses": len(self.losses) if self.history.levels else None,
            "unmeasured_losses": self._unmeasured_losses or None,
            "bandwidth_drift_ratio": _worst(course.drift_ratio(rule) for course in bandwidths),
            "bandwidth_step_ratio": _worst(course.step_ratio(rule) for course in bandwidths),
            "bandwidth_swing_ratio": _worst(course.swing_ratio(rule) for course in bandwidths),
            "rank_balance_ratio": None if last is None else last.balance,
        }

    def _latency_values(self, last: LastResult | None, now: float) -> dict[str, Value]:
        history, rule = self.history, self._limits
        baseline, course = self._baseline(), history.courses.get(LATENCY, Course())
        judged = self._is_current(history.latency_judged_at, now)
        limit = self._latency_limit
        by_some_rule = limit is not None or history.latency_streak.count
        is_first = course.baseline(rule) is None  # a single result is compared with others, and not with itself
        return {
            "latency_limit_seconds": None if last is None else limit,
            "latency_spikes_total": self._spikes,
            "latency_spike_streak": history.latency_streak.count if judged and by_some_rule else None,
            "latency_above_model_streak": history.above_model_streak.count if judged and last is not None else None,
            "last_latency_seconds": None if last is None else last.latency_seconds,
            "baseline_latency_seconds": None if last is None or baseline is None or is_first else baseline.median,
            "latency_drift_ratio": None if last is None else course.drift_ratio(rule),
            "latency_step_ratio": None if last is None else course.step_ratio(rule),
            "latency_swing_ratio": None if last is None else course.swing_ratio(rule),
        }

    def _judged_by(self, last: LastResult | None) -> str:
        """The reference for the latency, or the reason why there is none: a label of ``probe_latency_judged_info``."""
        baseline = self._baseline()
        if last is None:
            return "no_result"
        if baseline is not None:
            return "baseline" if baseline.width == 1.0 else "first_results"
        if self._published_limit is not None:
            return "published"
        return "too_few_results" if self._absolute_limit is None else "mark"

    @property
    def _expected_source(self) -> str:
        last = self.history.last
        return last.expected.source if last is not None and last.expected is not None else "none"

    def _info(self) -> tuple[str, ...]:
        """Under what conditions the last result was taken; before the first one, what is planned."""
        known, last = self.history.conditions or self._conditions(), self.history.last
        torch_version = "" if last is None else last.torch_version
        sizes = (str(known.latency_bytes), str(known.bandwidth_bytes), str(known.ranks))
        return (known.measure, *sizes, known.nccl_version, torch_version, known.settings, self._expected_source)


def _lost(labels: tuple[str, ...], losses: Iterable[Level]) -> Iterable[Reading]:
    """The series of the open losses, by quantity; shown however old the last result is."""
    for level in losses:
        key = (*labels, level.name)
        yield "commwatch_probe_loss_ratio", key, level.lost_share
        yield "commwatch_probe_loss_level_bytes_per_second", key, level.bus_bandwidth
        yield "commwatch_probe_loss_bandwidth_bytes_per_second", key, level.low_bus_bandwidth
        yield "commwatch_probe_loss_since_timestamp_seconds", key, level.since


def _worst(ratios: Iterable[float | None]) -> float | None:
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def _named(labels: tuple[str, ...], last: LastResult) -> Iterable[Reading]:
    """The series of a result that name a rank, a number of ranks or a GPU."""
    if last.slowest is not None:
        slowest = (str(last.slowest.rank), last.slowest.pci_bus_id)
        yield "commwatch_probe_slowest_rank_info", (*labels, *slowest), 1
    for point in last.scaling:
        key = (*labels, str(point.ranks))
        yield "commwatch_probe_scaling_bus_bandwidth_bytes_per_second", key, point.bus_bandwidth
        yield "commwatch_probe_scaling_break_even_seconds", key, point.break_even_seconds
    for copy in last.copies:
        key = (*labels, *copy.gpu, copy.direction)
        yield "commwatch_probe_copy_bandwidth_bytes_per_second", key, copy.bytes_per_second
        yield "commwatch_probe_copy_expected_bandwidth_bytes_per_second", key, copy.expected
