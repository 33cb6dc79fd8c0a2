"""The reference marks one by one, and what a step of a profile's model takes on what was measured; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.estimate.model.quantities import Span
from commwatch.diagnosis.hardware_marks import all_reduce_check, hardware_marks, why_no_all_reduce
from commwatch.diagnosis.marks.mark import HEALTHY_SHARE
from commwatch.diagnosis.marks.profiles import (
    CALL_BYTES,
    WAITING_MOST,
    Asked,
    Profile,
    Prospect,
    prospect_of,
)
from commwatch.diagnosis.marks.results import ALWAYS, all_reduces, gpu_name, size_of, utilization_of
from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.units import format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from commwatch.diagnosis.known import Known


def profile_checks(known: Known) -> Iterable[Check]:
    """The marks, and those of each profile that is asked for."""
    return checks_of(known.facts, known.asked)


def checks_of(facts: Facts, asked: Asked, since: float = ALWAYS) -> Iterator[Check]:
    """The same of what is exposed.

    Args:
        facts: what is exposed.
        asked: which profiles.
        since: older results are left out, seconds since 1970.
    """
    yield from hardware_marks(facts, since)
    for profile in asked.profiles:
        yield all_reduce_check(profile.all_reduce, f"{profile.name}: all_reduce bus bandwidth", facts, since)
        yield _step(profile, facts, asked, since)


def rates_of(facts: Facts, since: float) -> Span | None:
    """Slowest and fastest bus bandwidth of the all_reduces over all GPUs; None without one.

    Of several sizes the one counts that is nearest to what a step sends at once.
    """
    found = all_reduces(facts, since)
    if not found:
        return None
    size = min((size_of(probe) for probe, _ in found), key=lambda size: abs(math.log(max(1, size) / CALL_BYTES)))
    rates = [rate for probe, rate in found if rate and size_of(probe) == size]
    return Span(min(rates), max(rates)) if rates else None


def prospect(profile: Profile, facts: Facts, asked: Asked, since: float = ALWAYS) -> Prospect | None:
    """What a step takes here; None where nothing was measured or what a GPU computes is not known."""
    rates = rates_of(facts, since)
    if rates is None:
        return None
    return prospect_of(profile, gpu_name(facts), len(facts.derived(gpus_of)), rates, asked.alone_seconds)


def _step(profile: Profile, facts: Facts, asked: Asked, since: float) -> Check:
    expected = prospect(profile, facts, asked, since)
    if expected is None:
        verdict, measured, detail = _no_prospect(facts, since)
    else:
        verdict, measured = (
            _of_waiting(expected, must=profile.name == asked.profile),
            f"{expected.waiting} of {expected.step.step_seconds.words(format_seconds)}",
        )
        detail = f"{expected.words}, computing {expected.basis}"
        if verdict != "passed":
            detail += f"; {fault_words(facts, since)}"
    return Check(
        branch="profile",
        what=f"{profile.name}: share of a step for which GPUs wait",
        measured=measured,
        required=f"at most {format_percent(WAITING_MOST)}",
        verdict=verdict,
        source=f"commwatch: {profile.job}",
        detail=detail,
        next_step="Look at fewer GPUs and other strategies with commwatch estimate." if verdict == "failed" else "",
    )


def _of_waiting(expected: Prospect, *, must: bool) -> CheckVerdict:
    """A range on both sides of the limit says neither, and a profile that nobody asked for is no fault."""
    waiting = expected.step.waiting_ratio
    if waiting.high <= WAITING_MOST:
        return "passed"
    return "failed" if must and waiting.low > WAITING_MOST else "notice"


def _no_prospect(facts: Facts, since: float) -> tuple[CheckVerdict, str, str]:
    if len(facts.derived(gpus_of)) == 1:
        return "does not apply", "", "one GPU has nobody to talk to"
    if rates_of(facts, since) is None:
        return "not measured", "", why_no_all_reduce(facts)
    return "not measured", "", f"what {gpu_name(facts) or 'these GPUs'} compute is not known; --step-time says it"


def fault_words(facts: Facts, since: float = ALWAYS) -> str:
    """Whether the GPUs reach each other more slowly than they should, or as fast as such hardware can."""
    found = all_reduces(facts, since)
    if not found or utilization_of(found[0][0]) is None:
        return "what this hardware should give is not known"
    worst, bandwidth = min(found, key=lambda one: 1.0 if (share := utilization_of(one[0])) is None else share)
    rate, share = format_rate(bandwidth), utilization_of(worst) or 0.0
    expected = format_rate(worst.expected_bandwidth_bytes_per_second or 0.0)
    if share < HEALTHY_SHARE:
        return (
            f"all_reduce gives {rate}, {format_percent(share)} of the {expected} expected here: slower than this "
            "hardware should be"
        )
    return f"all_reduce gives {rate}, as such hardware does ({expected} expected): unfit by design, not by a fault"
