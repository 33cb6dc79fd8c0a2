"""Whether a job of a profile may start here, from results that are young enough; pure."""

from __future__ import annotations

from collections.abc import Sequence

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.marks.profiles import WAITING_MOST, Asked, Profile
from commwatch.diagnosis.marks.results import all_reduce_probes, all_reduces, memory_sizes, ranks_of
from commwatch.diagnosis.profile import checks_of, fault_words, memory_of, prospect
from commwatch.findings.facts import Facts
from commwatch.findings.health import Preflight
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.findings.verdict import FUTURE_SECONDS
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import Probe


def preflight(facts: Facts, asked: Asked, now: float, max_age: float) -> tuple[Preflight, tuple[Check, ...]]:
    """The answer, and the checks behind it.

    Args:
        asked: the profile that has to be met, and what the job does.
        now: seconds since 1970.
        max_age: seconds beyond which a result is too old for the job that is to start.

    Raises:
        ValueError: no profile is asked for.
    """
    profile, since = asked.profile, now - max_age
    if profile is None:
        raise ValueError("a preflight is that of a profile")
    count = len(facts.derived(gpus_of))
    if count == 0:
        return Preflight("Unknown", f"{profile.name}: no GPU is known"), ()
    checks, current = tuple(checks_of(facts, asked, since)), all_reduces(facts, since)
    if ahead := _seconds_ahead([probe for probe, _ in current], now):
        reason = f"{profile.name}: the last all_reduce result is {format_seconds(ahead)} ahead of the clock"
        return Preflight("Unknown", reason), checks
    if failed := [one for one in checks if one.verdict == "failed"]:
        return Preflight("Warning", _refusal(profile, failed, facts, asked, since)), checks
    if memory_sizes(facts) is None:
        return Preflight("Unknown", f"{profile.name}: how much memory these GPUs have is not known"), checks
    if count == 1:
        return Preflight("OK", f"{profile.name}: one GPU has nobody to talk to on this node"), checks
    if not current:
        return Preflight("Unknown", f"{profile.name}: {_why_not(facts, count, now, max_age)}"), checks
    return _answer(profile, *current[0], checks, facts, asked, now, since), checks


def _answer(
    profile: Profile, probe: Probe, rate: float, checks: Sequence[Check], facts: Facts, asked: Asked, now: float,
    since: float,
) -> Preflight:  # fmt: skip
    age = format_seconds(max(0.0, now - (probe.last_completion_timestamp_seconds or now)))
    said = f"all_reduce gave {format_rate(rate)} {age} ago"
    expected = prospect(profile, facts, asked, since)
    if expected is not None:
        wait = f"GPUs wait {expected.waiting} of it"
        return Preflight("OK", f"{profile.name}: {expected.words}; {wait}; {said}")
    if profile.all_reduce is not None and rate >= profile.all_reduce.figure:
        return Preflight("OK", f"{profile.name}: {said}, {profile.all_reduce.required} are required")
    if asked.purpose == "inference":
        return Preflight("OK", f"{profile.name}: {said}; nothing is required of it for inference")
    step = next(one for one in checks if one.what.startswith(f"{profile.name}: share of a step"))
    return Preflight("Unknown", f"{profile.name}: {said}, but {step.detail}")


def _refusal(profile: Profile, failed: Sequence[Check], facts: Facts, asked: Asked, since: float) -> str:
    """The reasons for a refusal: memory, the step to expect, and the shortfalls; no step if the GPUs cannot hold the
    model."""
    memory = [one for one in failed if one.what == memory_of(profile)]
    expected = prospect(profile, facts, asked, since)
    words = [one.detail for one in memory]
    if expected is not None:
        words.append(expected.words)
    step = [one for one in failed if one.what.startswith(f"{profile.name}: share of a step")]
    if step and expected is not None:
        allowed = format_percent(WAITING_MOST)
        words.append(f"GPUs wait {expected.waiting} of it, at most {allowed} is allowed; {fault_words(facts, since)}")
    for one in failed:
        if one not in step and one not in memory:
            where = f" of {one.where}" if one.where else ""
            words.append(f"{one.what.removeprefix(f'{profile.name}: ')}{where} is {one.measured}, not {one.required}")
    return f"{profile.name}: {'; '.join(words)}"


def _why_not(facts: Facts, count: int, now: float, max_age: float) -> str:
    """How old the newest all_reduce over all GPUs is."""
    of = [probe for probe in all_reduce_probes(facts) if ranks_of(probe) == count]
    times = [time for probe in of if (time := probe.last_completion_timestamp_seconds) is not None]
    if not of:
        return f"no probe measures all_reduce over all {count} GPUs"
    if not times:
        return "all_reduce has no result yet"
    age = now - max(times)
    limit = f"more than {format_seconds(max_age)}" if age > max_age else "which the daemon no longer counts"
    return f"the last all_reduce result is {format_seconds(max(0.0, age))} old, {limit}"


def _seconds_ahead(current: Sequence[Probe], now: float) -> float:
    """By how much the newest result is ahead of the clock; 0 where it is not."""
    ahead = max(((one.last_completion_timestamp_seconds or now) - now for one in current), default=0.0)
    return ahead if ahead > FUTURE_SECONDS else 0.0
