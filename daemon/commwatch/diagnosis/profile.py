"""The reference marks one by one, and what a step of a profile's model takes on what was measured; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from commwatch.diagnosis.bandwidth import why_unmeasured
from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.estimate.step import (
    ASSUMED_MFU,
    STRATEGIES,
    Fabric,
    Layout,
    Span,
    Step,
    estimate_step,
    operations,
    span,
)
from commwatch.diagnosis.marks.floors import MACHINES, MACHINES_SOURCE, Machine
from commwatch.diagnosis.marks.measures import bandwidths, measures_of
from commwatch.diagnosis.marks.memory import PURPOSES, Need, fitting, least_gpus, needs, training_of
from commwatch.diagnosis.marks.profiles import (
    WAITING_MOST,
    Asked,
    Profile,
)
from commwatch.diagnosis.marks.results import (
    ALWAYS,
    all_reduce_probes,
    all_reduces,
    collectives,
    copies,
    gpu_name,
    is_firm,
    is_since,
    memory_sizes,
    nvlink_version,
    pair_rates,
    path_to_host,
    path_under_switch,
    probes_of,
    ranks_of,
    results_over_all,
    size_of,
    utilization_of,
)
from commwatch.diagnosis.marks.table import (
    COLLECTIVE_LATENCY,
    HEALTHY_SHARE,
    INFINIBAND_HDR,
    NVLINK,
    PCIE_GEN4_X16,
    UTILIZATION,
    Mark,
    judge_rate,
)
from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.node.gpu_models import gpu_model, is_model
from commwatch.units import format_bytes, format_count, format_memory, format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import RdmaPort

if TYPE_CHECKING:
    from commwatch.diagnosis.known import Known

_CALL_BYTES = 25 * 2**20
"""Bytes that DDP sums at once by default (bucket_cap_mb); an all_reduce of activations here is of 32 MiB."""
_GEN4_X16 = (4, 16)
_NVLINK_VERSIONS = ("3.0", "4.0")
_HDR_BYTES_PER_SECOND = 25e9
_HDR_LANES = 4

_NEXT_PCIE = (
    "Look at width and generation of the link (commwatch topology). If one is low, drain the node; once it is free, "
    "power cycle it; if that does not help, call the vendor (PCIe card: reseat it first)."
)
_NEXT_MARK = "Look at the findings and at the branches above: they name the part."
SITE_FLOOR = "floor of this site: "
"""Prefix of the checks of a site's own floors, which apply whatever the profile."""
_OF_A_MODEL = "a model says what is expected, which never fails alone"
_NEXT_MEMORY = "Take GPUs with more memory, or more of them: commwatch estimate gives what each holds."
_NEXT_PROFILE = "Take another node, or look at fewer GPUs and other strategies with commwatch estimate."


def profile_checks(known: Known) -> Iterable[Check]:
    """The marks, and those of each profile; a failure of a profile that was not requested is only a notice."""
    for check in checks_of(known.facts, known.asked):
        is_asked = known.asked.profile is not None or check.what.startswith(SITE_FLOOR) or check.verdict != "failed"
        yield check if is_asked else msgspec.structs.replace(check, verdict="notice")


def checks_of(facts: Facts, asked: Asked, since: float = ALWAYS) -> Iterator[Check]:
    """The same of what is exposed.

    Args:
        since: older results are left out, seconds since 1970.
    """
    yield from _hardware_marks(facts, since)
    yield from _published_floors(facts, since)
    yield from _site_floors(facts, asked, since)
    for profile in asked.profiles:
        if profile is asked.profile:
            yield _memory(profile, facts, asked)
        if profile.all_reduce is not None:
            check = all_reduce_check(profile.all_reduce, f"{profile.name}: all_reduce bus bandwidth", facts, since)
            # A requested profile has to be met, whatever keeps this hardware from it.
            unmet = check.verdict == "published mark" and profile is asked.profile
            yield msgspec.structs.replace(check, verdict="failed", next_step=_NEXT_PROFILE) if unmet else check
        if asked.purpose != "inference":
            yield _step(profile, facts, asked, since)


def memory_of(profile: Profile) -> str:
    """How the check of its memory is called."""
    return f"{profile.name}: memory of all GPUs"


def _memory(profile: Profile, facts: Facts, asked: Asked) -> Check:
    """Whether the GPUs can hold what the job does with the model."""
    what, purpose = memory_of(profile), asked.purpose
    trainable = None if purpose == "inference" else training_of(profile, purpose).trainable
    trained = "" if trainable is None else f", {format_count(trainable)} of them trained"
    source = f"commwatch: {format_count(profile.parameters)} parameters{trained}, bf16, {profile.tokens} tokens a GPU"
    sizes, gpus = memory_sizes(facts), len(facts.derived(gpus_of))
    if sizes is None:
        detail = "how much memory these GPUs have is not known"
        return Check("profile", what, "not measured", source=source, detail=detail)
    need = fitting(profile, purpose, gpus, min(sizes))
    least = need or [*needs(profile, purpose, gpus)][-1]
    required = f"at least {format_memory(gpus * least.gpu_bytes)} for {PURPOSES[purpose]}"
    measured = format_memory(gpus * min(sizes))
    if need is not None:
        own = "" if need.strategy in (profile.strategy, "tp") else _not_with(profile)
        return Check("profile", what, "passed", "", measured, required, source, f"{need.words}{own}")
    detail = _too_little(profile, asked, least, gpus, min(sizes))
    return Check("profile", what, "failed", "", measured, required, source, detail, _NEXT_MEMORY)


def _not_with(profile: Profile) -> str:
    return f"; {STRATEGIES[profile.strategy].label} does not fit"


def _too_little(profile: Profile, asked: Asked, need: Need, gpus: int, gpu_bytes: float) -> str:
    """``weights fit, training does not: 3.78 TB of 684 GB; inference, or at least 48 GPUs``."""
    others = [one for one in PURPOSES if one != asked.purpose and fitting(profile, one, gpus, gpu_bytes) is not None]
    name = PURPOSES[asked.purpose]
    if asked.purpose == "inference":
        lacking = "inference does not fit:"
    elif "inference" in others:
        lacking = f"weights fit, {name} does not:"
    else:
        lacking = f"neither {name} nor inference fits: {name} takes"
    sizes = f"{format_memory(gpus * need.gpu_bytes)} of {format_memory(gpus * gpu_bytes)}"
    least = least_gpus(profile, asked.purpose, gpus, gpu_bytes)
    more = "GPUs with more memory" if least is None else f"at least {least:,} GPUs like these"
    # A use that requires more than the job's is no alternative.
    smaller = [PURPOSES[one] for one in others if (asked.purpose, one) != ("lora", "training")]
    return f"{lacking} {sizes}; {', '.join([*smaller, f'or {more}' if smaller else more])}"


def _held(profile: Profile, facts: Facts, asked: Asked) -> Need | None:
    """The memory of each GPU for the first strategy that fits; None if none fits, or if the GPUs' memory is not
    known."""
    sizes, gpus = memory_sizes(facts), len(facts.derived(gpus_of))
    return None if sizes is None else fitting(profile, asked.purpose, gpus, min(sizes))


def rates_of(facts: Facts, since: float, operation: str = "all_reduce") -> Span | None:
    """Slowest and fastest bus bandwidth of a collective over all GPUs; None without one.

    Of several sizes the one counts that is nearest to what a step sends at once.
    """
    found = results_over_all(facts, operation, since)
    if not found:
        return None
    size = min((size_of(probe) for probe, _ in found), key=lambda size: abs(math.log(max(1, size) / _CALL_BYTES)))
    rates = [rate for probe, rate in found if rate and size_of(probe) == size]
    return span(*rates) if rates else None


class Prospect(NamedTuple):
    """The expected step of a profile on a node."""

    step: Step
    alone_seconds: float | None
    """Seconds for which a GPU that has the micro-batch for itself computes; None if one cannot hold the job."""
    basis: str
    """The source of that time."""
    is_split_more: bool
    """Whether another strategy replaces the profile's, because that does not fit."""

    @property
    def words(self) -> str:
        """``a step of 30 s to 30.1 s over 8 GPUs, 100 ms on one alone``."""
        step, layout = self.step.step_seconds.words(format_seconds), self.step.layout
        instead = f" with {layout.label}" if self.is_split_more else ""
        alone = "" if self.alone_seconds is None else f", {format_seconds(self.alone_seconds)} on one alone"
        return f"a step of {step} over {layout.gpus_per_node} GPUs{instead}{alone}"

    @property
    def waiting(self) -> str:
        """``83 to 98 %``."""
        low, high = (format_percent(one) for one in (self.step.waiting_ratio.low, self.step.waiting_ratio.high))
        return high if low == high else f"{low.removesuffix(' %')} to {high}"


def prospect(profile: Profile, facts: Facts, asked: Asked, since: float = ALWAYS) -> Prospect | None:
    """The expected step here, with the first strategy that fits.

    None if nothing was measured, a GPU's computing time is not known, the GPUs cannot hold the job, or it trains
    nothing.
    """
    rates, gpu, gpus = rates_of(facts, since), gpu_name(facts), len(facts.derived(gpus_of))
    model, training, sizes = gpu_model(gpu), training_of(profile, asked.purpose), memory_sizes(facts)
    held = _held(profile, facts, asked)
    if rates is None or asked.purpose == "inference" or (held is None and sizes is not None):
        return None
    if asked.alone_seconds is not None:
        seconds, basis = asked.alone_seconds, "given"
    elif model is not None:
        active = profile.active_parameters
        work = operations(active, min(active, training.trained), recomputes=False) * profile.tokens
        seconds = work / (ASSUMED_MFU * model.flops_per_second)
        peak = f"{model.flops_per_second / 1e12:g} TFLOP/s ({model.source})"
        basis = f"assumed: {format_percent(ASSUMED_MFU)} of {peak}"
    else:
        return None
    fits_one = sizes is not None and fitting(profile, asked.purpose, 1, min(sizes)) is not None
    fabric = Fabric({gpus: rates}, all_to_all=rates_of(facts, since, "all_to_all"))
    strategy = profile.strategy if held is None else held.strategy
    step = estimate_step(replace(training, compute=span(seconds)), Layout(strategy, gpus), fabric)
    if step is None:
        return None
    alone = seconds if fits_one or asked.alone_seconds is not None else None
    return Prospect(step, alone, basis, strategy != profile.strategy)


def _step(profile: Profile, facts: Facts, asked: Asked, since: float) -> Check:
    expected = prospect(profile, facts, asked, since)
    if expected is None:
        verdict, measured, detail = _no_prospect(profile, facts, asked, since)
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
        _NEXT_PROFILE if verdict == "failed" else "",
    )  # fmt: skip


def _of_waiting(expected: Prospect, *, must: bool) -> CheckVerdict:
    """A range on both sides of the limit gives no verdict, and a profile that was not requested never fails."""
    waiting = expected.step.waiting_ratio
    if waiting.high <= WAITING_MOST:
        return "passed"
    return "failed" if must and waiting.low > WAITING_MOST else "notice"


def _no_prospect(profile: Profile, facts: Facts, asked: Asked, since: float) -> tuple[CheckVerdict, str, str]:
    if len(facts.derived(gpus_of)) == 1:
        return "does not apply", "", "one GPU has nobody to talk to"
    if memory_sizes(facts) is not None and _held(profile, facts, asked) is None:
        return "does not apply", "", f"these GPUs cannot hold the model for {PURPOSES[asked.purpose]}"
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


# --- the reference marks that are about hardware, one by one ---


def _hardware_marks(facts: Facts, since: float) -> Iterator[Check]:
    """All of them but those of a model.

    Args:
        since: older results are left out, seconds since 1970.
    """
    yield _utilization(facts, since)
    yield from _pcie(facts, since)
    yield _nvlink(facts, since)
    yield _latency(facts, since)
    yield _infiniband(facts)


def _mark_check(
    mark: Mark, what: str, verdict: CheckVerdict, *, measured: str = "", where: str = "", detail: str = ""
) -> Check:  # fmt: skip
    step = "" if verdict != "failed" else _NEXT_PCIE if mark is PCIE_GEN4_X16 else _NEXT_MARK
    return Check("profile", what, verdict, where, measured, mark.required, mark.origin, detail, step)


class _Share(NamedTuple):
    share: float
    where: str
    is_firm: bool


def _utilization(facts: Facts, since: float) -> Check:
    what = "share of the expected bandwidth, the lowest of all probes"
    shares = list(_shares(facts, since))
    if not shares:
        detail = why_unmeasured(probes_of(facts), facts.now)
        return _mark_check(UTILIZATION, what, "not measured", detail=detail)
    firm = [one for one in shares if one.is_firm and one.share < HEALTHY_SHARE]
    worst = min(firm or shares)
    verdict: CheckVerdict = "passed" if worst.share >= HEALTHY_SHARE else "failed" if firm else "notice"
    detail = "" if verdict != "notice" else _OF_A_MODEL
    return _mark_check(
        UTILIZATION, what, verdict, measured=format_percent(worst.share), where=worst.where, detail=detail
    )


def _shares(facts: Facts, since: float) -> Iterator[_Share]:
    for probe in collectives(facts):
        share = utilization_of(probe)
        if share is not None and is_since(probe, since):
            yield _Share(share, probe.name, is_firm(probe))
    for probe, found in copies(facts):
        for copy, rate in found:
            expected = copy.expected_bandwidth_bytes_per_second
            if expected and is_since(probe, since):
                where = f"GPU{copy.gpu_index} {copy.direction.replace('_', ' ')}"
                yield _Share(rate / expected, where, is_firm(probe))


class _Sum(NamedTuple):
    """A rate of a path, or that of both its directions together."""

    rate: float
    expected: float | None
    where: str


def _pcie(facts: Facts, since: float) -> Iterator[Check]:
    what = "PCIe gen 4 x16, GPU and host, both ways added"
    paths = {gpu: path_to_host(facts, address) for gpu, address in facts.derived(gpus_of).items()}
    if not paths:
        yield _mark_check(PCIE_GEN4_X16, what, "not measured", detail="no GPU is known")
    elif _GEN4_X16 not in paths.values():
        known = sorted({f"gen {path[0]} x{path[1]}" for path in paths.values() if path is not None})
        verdict: CheckVerdict = "does not apply" if known and None not in paths.values() else "not measured"
        detail = f"the links to the host are PCIe {', '.join(known)}" if known else "no PCIe link is known"
        yield _mark_check(PCIE_GEN4_X16, what, verdict, detail=detail)
    else:
        copied, note = list(_copied(facts, paths, since)), "each way was measured alone"
        yield _worst_of(PCIE_GEN4_X16, what, copied, facts, "host_copies", note)
    if pairs := list(_exchanged(facts)):
        current = [one for one in pairs if _is_fresh(facts, "pairs", since)]
        what = "PCIe gen 4 x16, two GPUs under one switch, both ways at once"
        yield _worst_of(PCIE_GEN4_X16, what, current, facts, "pairs")


def _worst_of(mark: Mark, what: str, found: list[_Sum], facts: Facts, measure: str, note: str = "") -> Check:
    """The worst of several rates beside a mark; ``measure`` is what the probe measures that gives them."""
    if not found:
        of = probes_of(facts, measure)
        return _mark_check(mark, what, "not measured", detail=why_unmeasured(of, facts.now))
    order = ("failed", "published mark", "passed")
    judged = [(judge_rate(mark, one.rate, one.expected), one) for one in found]
    (verdict, detail), worst = min(judged, key=lambda one: (order.index(one[0][0]), one[1].rate))
    words = "; ".join(filter(None, (note, detail)))
    return _mark_check(mark, what, verdict, measured=format_rate(worst.rate), where=worst.where, detail=words)


def _is_fresh(facts: Facts, measure: str, since: float) -> bool:
    return any(is_since(one, since) for one in probes_of(facts, measure))


def _copied(facts: Facts, paths: dict[str, tuple[int, int] | None], since: float) -> Iterator[_Sum]:
    for probe, found in copies(facts):
        for gpu, path in paths.items():
            own = [(copy, rate) for copy, rate in found if copy.gpu_index == gpu]
            if path == _GEN4_X16 and len(own) == 2 and is_since(probe, since):
                expected = _sum(copy.expected_bandwidth_bytes_per_second for copy, _ in own)
                yield _Sum(sum(rate for _, rate in own), expected, f"GPU{gpu}")


def _exchanged(facts: Facts) -> Iterator[_Sum]:
    gpus = facts.derived(gpus_of)
    pairs = {(pair.source, pair.target): pair for pair, _ in pair_rates(facts)}
    for (source, target), pair in pairs.items():
        back = pairs.get((target, source))
        if back is None or int(source) > int(target):
            continue
        rate = _sum(one.both_ways_bandwidth_bytes_per_second for one in (pair, back))
        if rate is not None and path_under_switch(facts, gpus[source], gpus[target]) == _GEN4_X16:
            expected = _sum(one.expected_bandwidth_bytes_per_second for one in (pair, back))
            yield _Sum(rate, expected, f"GPU{source}-GPU{target}")


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def _nvlink(facts: Facts, since: float) -> Check:
    what = "all_reduce over NVLink 3.0 or 4.0"
    version = nvlink_version(facts)
    if version not in _NVLINK_VERSIONS:
        detail = f"the GPUs are joined by NVLink {version}" if version else "no NVLinks join all GPUs of the node"
        return _mark_check(NVLINK, what, "does not apply", detail=detail)
    return all_reduce_check(NVLINK, what, facts, since)


def _latency(facts: Facts, since: float) -> Check:
    what = "latency of all_reduce over all GPUs"
    if len(facts.derived(gpus_of)) == 1:
        return _mark_check(COLLECTIVE_LATENCY, what, "does not apply", detail="one GPU has nobody to talk to")
    found = [one.last_latency_seconds for one, _ in results_over_all(facts, "all_reduce", since)]
    latency = max((one for one in found if one is not None), default=None)
    if latency is None:
        return _mark_check(COLLECTIVE_LATENCY, what, "not measured", detail=why_no_all_reduce(facts))
    verdict: CheckVerdict = "passed" if latency <= COLLECTIVE_LATENCY.figure else "failed"
    return _mark_check(COLLECTIVE_LATENCY, what, verdict, measured=format_seconds(latency))


def _infiniband(facts: Facts) -> Check:
    what = "RDMA latency over InfiniBand HDR"
    ports = [
        f"{port.device} port {port.number}"
        for port, rate in facts.each(RdmaPort.speed_bytes_per_second)
        if rate == _HDR_BYTES_PER_SECOND and port.link_layer == "InfiniBand"
        and port.width_lanes in (None, _HDR_LANES)
    ]  # fmt: skip
    if not ports:
        return _mark_check(INFINIBAND_HDR, what, "does not apply", detail="no InfiniBand HDR port is up")
    detail = "it takes a second node: commwatch cluster probe measures it with ib_write_lat of perftest"
    return _mark_check(INFINIBAND_HDR, what, "not measured", where=ports[0] if len(ports) == 1 else "", detail=detail)


# --- the floors of machine types, and those of the site ---


def _published_floors(facts: Facts, since: float) -> Iterator[Check]:
    """The floors of the provider of such a machine; nothing if no provider has published any.

    The all_reduce has to reach the floor where it is measured with messages of half the size or more. With smaller ones
    hardware gives less, and copies and pairs are measured by other programs there: they fail by ``judge_rate`` alone.
    """
    gpu, count = gpu_name(facts), len(facts.derived(gpus_of))
    machine = next((one for one in MACHINES if is_model(gpu, one.gpu) and one.gpus == count), None)
    if machine is None or not nvlink_version(facts):
        return
    size = format_memory(machine.all_reduce_bytes)
    mark = _floor_mark(machine, "all_reduce bus bandwidth", size, "the GPUs of one node", machine.all_reduce)
    check = all_reduce_check(mark, f"{machine.name}: all_reduce bus bandwidth", facts, since)
    found = all_reduces(facts, since)
    if found and size_of(found[0][0]) >= machine.all_reduce_bytes / 2 and check.verdict == "published mark":
        check = msgspec.structs.replace(check, verdict="failed", next_step=_NEXT_MARK)
    yield check
    generation, lanes = machine.pcie
    path = f"PCIe gen {generation} x{lanes} to the host"
    mark = _floor_mark(machine, "copies between GPU and host", "large messages", path, machine.copy)
    gpus = facts.derived(gpus_of)
    own = [
        _Sum(rate, copy.expected_bandwidth_bytes_per_second, f"GPU{copy.gpu_index}")
        for probe, rates in copies(facts)
        for copy, rate in rates
        if is_since(probe, since) and path_to_host(facts, gpus.get(copy.gpu_index, "")) == machine.pcie
    ]
    yield _worst_of(mark, f"{machine.name}: copies between GPU and host", own, facts, "host_copies")
    if machine.pair is not None:
        mark = _floor_mark(machine, "GPU to GPU", "large messages", "NVLink", machine.pair)
        rates = pair_rates(facts) if _is_fresh(facts, "pairs", since) else []
        pairs = [
            _Sum(rate, pair.expected_bandwidth_bytes_per_second, f"GPU{pair.source} to GPU{pair.target}")
            for pair, rate in rates
        ]
        check = _worst_of(mark, f"{machine.name}: GPU to GPU", pairs, facts, "pairs")
        if check.verdict == "failed" and not any(map(is_firm, probes_of(facts, "pairs"))):
            detail = f"{check.detail}; {_OF_A_MODEL}"
            check = msgspec.structs.replace(check, verdict="notice", detail=detail, next_step="")
        yield check
    yield from _rdma_floor(machine, facts)


def _rdma_floor(machine: Machine, facts: Facts) -> Iterator[Check]:
    ports = [rate for port, rate in facts.each(RdmaPort.speed_bytes_per_second) if port.link_layer == "InfiniBand"]
    if machine.rdma is not None and machine.adapter in ports:
        path = f"InfiniBand of {8 * machine.adapter / 1e9:g} Gbit/s between GPUs of two nodes"
        mark = _floor_mark(machine, "RDMA writes with GPUDirect", "large messages", path, machine.rdma)
        detail = "it takes a second node: ib_write_bw --use_cuda of perftest measures it"
        yield _mark_check(mark, f"{machine.name}: RDMA writes between GPUs", "not measured", detail=detail)


def _floor_mark(machine: Machine, quantity: str, size: str, path: str, figure: float) -> Mark:
    return Mark(
        name=machine.name, quantity=quantity, direction="one direction", size=size, path=path, figure=figure,
        unit="bytes_per_second", source=MACHINES_SOURCE,
    )  # fmt: skip


def _site_floors(facts: Facts, asked: Asked, since: float) -> Iterator[Check]:
    """The site's floors for such machines."""
    if asked.floors is None:
        return
    gpu, count = gpu_name(facts), len(facts.derived(gpus_of))
    own, rates = asked.floors.of(gpu, count), bandwidths(measures_of(facts, since))
    if not own:
        detail = f"the file has none for {count} x {gpu or 'GPUs of several models'}"
        yield Check("profile", f"{SITE_FLOOR}any", "does not apply", source=asked.floors.file, detail=detail)
    for floor in own:
        rate = rates.get(floor.measure)
        verdict: CheckVerdict = "not measured" if rate is None else "passed" if rate >= floor.at_least else "failed"
        yield Check(
            "profile", f"{SITE_FLOOR}{floor.measure}", verdict, "", "" if rate is None else format_rate(rate),
            f"at least {format_rate(floor.at_least)}", "; ".join(filter(None, (asked.floors.file, floor.origin))),
            "no result is young enough" if rate is None else "", _NEXT_MARK if verdict == "failed" else "",
        )  # fmt: skip


def all_reduce_check(mark: Mark, what: str, facts: Facts, since: float) -> Check:
    """The all_reduce over all GPUs of the node against a mark.

    Args:
        mark: in bytes per second.
    """
    count = len(facts.derived(gpus_of))
    if count == 1:
        return _mark_check(mark, what, "does not apply", detail="one GPU has nobody to talk to")
    found = all_reduces(facts, since)
    if not found:
        return _mark_check(mark, what, "not measured", detail=why_no_all_reduce(facts))
    largest, rate = found[0]
    what += f", {format_bytes(size_of(largest))}, {count} GPUs"
    verdict, detail = judge_rate(mark, rate, largest.expected_bandwidth_bytes_per_second, gpu_name(facts))
    return _mark_check(mark, what, verdict, measured=format_rate(rate), detail=detail)


def why_no_all_reduce(facts: Facts) -> str:
    """Why there is no current one over all GPUs of the node."""
    count = len(facts.derived(gpus_of))
    if count == 0:
        return "no GPU is known"
    of = all_reduce_probes(facts)
    if of and all(ranks_of(one) != count for one in of):
        return f"no all_reduce is measured over all {count} GPUs"
    return why_unmeasured(of, facts.now)
