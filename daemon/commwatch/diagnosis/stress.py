"""The stress branch: whether bandwidth holds under sustained load, and what the node showed meanwhile; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import OWN_FAILURES, Known, Rise, Stress, why_not
from commwatch.probes.plan import Failed
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import Gpu, Node, NvLink, PcieDevice
from commwatch_exporters.node.parts import AnyColumn, Part

_LIMITED = Gpu.performance_limited_seconds
_LIMITED_MIN_SECONDS = 0.1
"""Less than this is the driver's own rounding."""
LINK_RETRAINED: Mapping[AnyColumn, str] = {
    NvLink.recovery_errors: "NVLink recoveries",
    NvLink.recoveries: "NVLink recoveries",
    Gpu.pcie_replay_rollovers: "PCIe retrainings",
}
"""Counters of which one more under load is a fault: a link that had to be trained again."""
SENT_AGAIN: Mapping[AnyColumn, str] = {
    NvLink.replay_errors: "NVLink replays",
    Gpu.pcie_replays: "PCIe replays",
    PcieDevice.aer_errors: "PCIe errors (AER)",
}
"""Counters of what was repaired: worth knowing."""
_NEXT_RETRAINED = (
    "Drain the node; once it is free, reset the GPU (NVLink) or power cycle the node (PCIe); if the link "
    "retrains again, call the vendor (PCIe card or NVLink bridge: reseat it first)."
)
_WORDS = {**LINK_RETRAINED, **SENT_AGAIN}
_POLICIES: Mapping[str, str] = {
    "power": "power limit", "thermal": "heat", "sync_boost": "sync boost", "board_limit": "limit of the board",
    "reliability": "reliability",
}  # fmt: skip
_MOST_TOLD = 4
_check = partial(Check, "stress")


def rises_between(before: Node, after: Node) -> tuple[Rise, ...]:
    """The counters of links and clocks that rose from one moment to a later one.

    A counter that was not there before, or reads lower than before, says nothing.
    """
    found = []
    for column in (*_WORDS, _LIMITED):
        earlier = {(part, key): value for part, key, value in before.each_keyed(column)}
        for part, key, value in after.each_keyed(column):
            rise = value - earlier.get((part, key), value)
            if rise > (_LIMITED_MIN_SECONDS if column == _LIMITED else 0):
                found.append(Rise(column, _where(part), key, rise))
    return tuple(found)


def _where(part: Part) -> str:
    match part:
        case NvLink():
            return f"GPU{part.index} link {part.number}"
        case Gpu():
            return f"GPU{part.index}"
        case _:
            return ", ".join(part.identity)


# --- the checks ---


def stress(known: Known) -> Iterator[Check]:
    """Nothing in a quick diagnosis; a full one without a stress run reports that it is missing."""
    run = known.stress
    if run is None:
        if known.scanned:
            detail = "commwatch diagnose --full-scan --stress 30s measures it"
            yield _check("bandwidth under sustained load", "not measured", detail=detail)
        return
    yield _bandwidth(run, known.thresholds.stress_bandwidth_fall_max_ratio)
    if run.answer.rows:
        yield _clocks(run)
        yield _links(run)


def _bandwidth(run: Stress, most: float) -> Check:
    result = run.answer.result
    rates = [row.bus_bandwidth_bytes_per_second or 0.0 for row in run.answer.rows]
    what = f"bandwidth under load, {format_seconds(run.seconds)}"
    if run.answer.has_no_place_here:
        return _check(what, "does not apply", detail=why_not(result))
    if isinstance(result, Failed) and result.reason not in OWN_FAILURES:
        return _check(
            what, "failed", "", f"failed: {result.reason}", "a result", detail=result.detail,
            next_step="A load that ends in an error is a fault: look at the GPU and the links of the rank named.",
        )  # fmt: skip
    if not rates:
        return _check(what, "not measured", detail=why_not(result))
    row = run.answer.rows[0]
    what = f"{row.operation} bus bandwidth under load, {format_bytes(row.size_bytes)}, {format_seconds(run.seconds)}"
    first, last = thirds(rates)
    falls = last < (1 - most) * first
    return _check(
        what, "failed" if falls else "passed", "",
        f"first third {format_rate(first)}, last third {format_rate(last)} ({format_percent(last / first)}), lowest "
        f"{format_rate(min(rates))}",
        f"the last third at least {format_percent(1 - most)} of the first", "stress_bandwidth_fall_max_ratio",
        _when(rates, (1 - most) * first, run.seconds) if falls else "",
        "Look at what held the clocks meanwhile: cooling, power limits and the supply of the node; then "
        "stress it again." if falls else "",
    )  # fmt: skip


def thirds(rates: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and the last third of a run."""
    size = max(1, len(rates) // 3)
    return median(rates[:size]), median(rates[-size:])


def _when(rates: Sequence[float], mark: float, seconds: float) -> str:
    """After how long the bandwidth stayed below a mark for good."""
    place = len(rates)
    while place and rates[place - 1] < mark:
        place -= 1
    if place == len(rates):
        return "It went up and down, and was well again in the end."
    return f"It fell for good after {format_seconds(seconds * place / len(rates))}."


def _clocks(run: Stress) -> Check:
    """The reasons that limited the GPUs' clocks while the load ran."""
    limited = [one for one in run.rises or () if one.column == _LIMITED]
    found = [f"{where}: {', '.join(reasons)}" for where, reasons in sorted(run.held.items())]
    found += [
        f"{one.where} held for {format_seconds(one.by)} by {_POLICIES.get(one.what, one.what)}" for one in limited
    ]
    found += [f"{where}: below its generation" for where in run.slow_links]
    what = "clocks and PCIe generation under load"
    if not found and not run.samples:
        return _check(what, "not measured", detail="the daemon was not asked while the load ran: it was too short")
    return _check(
        what, "failed" if run.held or run.slow_links else "notice" if limited else "passed", "",
        _short(found) or "nothing held them back", "nothing that slows communication down", "",
        "A power limit alone is how many healthy GPUs work." if limited and not run.held else "",
        "Look at cooling, power supply and power limits: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER."
        if run.held else "",
    )  # fmt: skip


def _links(run: Stress) -> Check:
    """Errors and events of the links while the load ran."""
    what = "errors of the links under load"
    if run.rises is None:
        reason = "the daemon did not answer before the run, or not after it"
        return _check(what, "not measured", detail=reason)
    retrained = [one for one in run.rises if one.column in LINK_RETRAINED]
    repaired = [one for one in run.rises if one.column in SENT_AGAIN]
    found = [f"{one.where}: {one.by:g} {_WORDS[one.column]}" for one in (*retrained, *repaired)]
    return _check(
        what, "failed" if retrained else "notice" if repaired else "passed", "", _short(found) or "none", "none", "",
        "What the daemon counted meanwhile; it reads these every 10 s." if found else "",
        _NEXT_RETRAINED if retrained else "",
    )  # fmt: skip


def _short(found: Sequence[str]) -> str:
    more = f"; and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return f"{'; '.join(found[:_MOST_TOLD])}{more}"
