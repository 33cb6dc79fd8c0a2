"""The reference marks one by one, and what a step of a profile's model takes on what was measured; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.estimate.step import Span, span
from commwatch.diagnosis.hardware_marks import all_reduce_check, hardware_marks, why_no_all_reduce
from commwatch.diagnosis.marks.profiles import (
    CALL_BYTES,
    WAITING_MOST,
    Asked,
    Profile,
    Prospect,
    prospect_of,
)
from commwatch.diagnosis.marks.results import (
    ALWAYS,
    all_reduces,
    gpu_name,
    memory_sizes,
    results_over_all,
    size_of,
    utilization_of,
)
from commwatch.diagnosis.marks.table import HEALTHY_SHARE
from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.units import format_count, format_gigabytes, format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from commwatch.diagnosis.known import Known

_NEXT = "Take another node, or look at fewer GPUs and other strategies with commwatch estimate."


def profile_checks(known: Known) -> Iterable[Check]:
    """The marks, and those of each profile; what nobody asked for is worth knowing, and no fault."""
    for check in checks_of(known.facts, known.asked):
        is_asked = known.asked.profile is not None or check.verdict != "failed"
        yield check if is_asked else msgspec.structs.replace(check, verdict="notice")


def checks_of(facts: Facts, asked: Asked, since: float = ALWAYS) -> Iterator[Check]:
    """The same of what is exposed.

    Args:
        facts: what is exposed.
        asked: which profiles.
        since: older results are left out, seconds since 1970.
    """
    yield from hardware_marks(facts, since)
    for profile in asked.profiles:
        if profile is asked.profile:
            yield _memory(profile, facts)
        if profile.all_reduce is not None:
            check = all_reduce_check(profile.all_reduce, f"{profile.name}: all_reduce bus bandwidth", facts, since)
            # What was asked for has to be met, whatever keeps this hardware from it.
            unmet = check.verdict == "published mark" and profile is asked.profile
            yield msgspec.structs.replace(check, verdict="failed", next_step=_NEXT) if unmet else check
        yield _step(profile, facts, asked, since)


def memory_of(profile: Profile) -> str:
    """How the check of its memory is called."""
    return f"{profile.name}: memory of all GPUs"


def _memory(profile: Profile, facts: Facts) -> Check:
    """Whether the GPUs can hold the model at all."""
    sizes = memory_sizes(facts)
    fits = sizes is not None and sum(sizes) >= profile.weight_bytes
    required = f"at least {format_gigabytes(profile.weight_bytes)}"
    source = f"commwatch: {format_count(profile.parameters)} parameters in bf16, nothing else"
    what, measured = memory_of(profile), "" if sizes is None else format_gigabytes(sum(sizes))
    if sizes is None:
        detail = "how much memory these GPUs have is not known"
        return Check("profile", what, "not measured", required=required, source=source, detail=detail)
    if fits:
        return Check("profile", what, "passed", "", measured, required, source)
    return Check("profile", what, "failed", "", measured, required, source, next_step=_NEXT)


def rates_of(facts: Facts, since: float, operation: str = "all_reduce") -> Span | None:
    """Slowest and fastest bus bandwidth of a collective over all GPUs; None without one.

    Of several sizes the one counts that is nearest to what a step sends at once.
    """
    found = results_over_all(facts, operation, since)
    if not found:
        return None
    size = min((size_of(probe) for probe, _ in found), key=lambda size: abs(math.log(max(1, size) / CALL_BYTES)))
    rates = [rate for probe, rate in found if rate and size_of(probe) == size]
    return span(*rates) if rates else None


def prospect(profile: Profile, facts: Facts, asked: Asked, since: float = ALWAYS) -> Prospect | None:
    """What a step takes here; None where nothing was measured or what a GPU computes is not known."""
    rates = rates_of(facts, since)
    if rates is None:
        return None
    exchange = rates_of(facts, since, "all_to_all")
    return prospect_of(profile, gpu_name(facts), len(facts.derived(gpus_of)), rates, asked.alone_seconds, exchange)


def _step(profile: Profile, facts: Facts, asked: Asked, since: float) -> Check:
    expected = prospect(profile, facts, asked, since)
    if expected is None:
        verdict, measured, detail = _no_prospect(facts, since)
    else:
        verdict, measured = (
            _of_waiting(expected, must=profile is asked.profile),
            f"{expected.waiting} of {expected.step.step_seconds.words(format_seconds)}",
        )
        detail = f"{expected.words}, computing {expected.basis}"
        if verdict != "passed":
            detail += f"; {fault_words(facts, since)}"
    return Check(
        "profile", f"{profile.name}: share of a step for which GPUs wait", verdict, "", measured,
        f"at most {format_percent(WAITING_MOST)}",
        f"commwatch: {profile.job}; {profile.model}; what goes between nodes is not in it", detail,
        _NEXT if verdict == "failed" else "",
    )  # fmt: skip


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
