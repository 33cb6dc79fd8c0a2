"""A node of two GPUs on which every part of the score was measured, and ways to change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from commwatch.findings.finding import Finding
from commwatch.findings.score.records import Part, PartName, Score
from commwatch.findings.score.score import score_of
from support.facts import before, facts_of, shipped

Key: TypeAlias = tuple[str, tuple[str, ...]]
"""Metric without its prefix, and label values."""
Values: TypeAlias = Mapping[Key, float | None]

RING = ("ring", "simulated")
COPIES = ("copies", "simulated")
GPU0, GPU1 = ("0", "0000:17:00.0"), ("1", "0000:18:00.0")
LINK = (*GPU0, "3")
PORT = ("mlx5_0", "1")

UTILIZATION: Key = ("probe_bandwidth_utilization_ratio", RING)
LATENCY: Key = ("probe_last_latency_seconds", RING)
BASELINE: Key = ("probe_baseline_latency_seconds", RING)
SPIKE_STREAK: Key = ("probe_latency_spike_streak", RING)
LATENCY_DRIFT: Key = ("probe_latency_drift_ratio", RING)
LATENCY_STEP: Key = ("probe_latency_step_ratio", RING)
BANDWIDTH_STEP: Key = ("probe_bandwidth_step_ratio", RING)
RANK_BALANCE: Key = ("probe_rank_balance_ratio", RING)
COPY: Key = ("probe_copy_bandwidth_bytes_per_second", (*COPIES, *GPU1, "host_to_device"))
PAIR: Key = ("pair_bandwidth_bytes_per_second", ("0", "1", "simulated"))
SUSPECT: Key = ("suspect_ratio", ("gpu", "GPU1"))

ATTEMPTS: Key = ("probe_attempts_total", RING)
COPY_ATTEMPTS: Key = ("probe_attempts_total", COPIES)
FAILURES: Key = ("probe_failures_total", (*RING, "nccl_error"))
SPIKES: Key = ("probe_latency_spikes_total", RING)
RECOVERIES: Key = ("nvlink_recoveries_total", LINK)
OLD_RECOVERIES: Key = ("nvlink_recovery_errors_total", LINK)
FAILED_RECOVERIES: Key = ("nvlink_recoveries_failed_total", LINK)
JOB_ERRORS: Key = ("nccl_log_errors_total", ("timeout",))
FLAPS: Key = ("rdma_port_flaps_total", PORT)

HEALTHY: dict[Key, float] = {
    UTILIZATION: 1.0,
    ("probe_last_bus_bandwidth_bytes_per_second", RING): 100e9,
    ("probe_expected_bandwidth_bytes_per_second", RING): 100e9,
    LATENCY: 10e-6,
    BASELINE: 10e-6,
    SPIKE_STREAK: 0,
    LATENCY_DRIFT: 1.0,
    LATENCY_STEP: 1.0,
    BANDWIDTH_STEP: 1.0,
    RANK_BALANCE: 1.0,
    ("probe_slowest_rank_info", (*RING, "1", GPU1[1])): 1,
    # The ratio of a probe of copies is that of its worst one, which is not what counts here.
    ("probe_bandwidth_utilization_ratio", COPIES): 0.01,
    ("probe_rank_balance_ratio", COPIES): 0.01,
    **{("probe_copy_bandwidth_bytes_per_second", (*COPIES, *gpu, "host_to_device")): 48e9 for gpu in (GPU0, GPU1)},
    **{
        ("probe_copy_expected_bandwidth_bytes_per_second", (*COPIES, *gpu, "host_to_device")): 48e9
        for gpu in (GPU0, GPU1)
    },
    **{("pair_bandwidth_bytes_per_second", (*ends, "simulated")): 300e9 for ends in (("0", "1"), ("1", "0"))},
    **{("pair_expected_bandwidth_bytes_per_second", (*ends, "simulated")): 300e9 for ends in (("0", "1"), ("1", "0"))},
    ATTEMPTS: 100,
    COPY_ATTEMPTS: 100,
    FAILURES: 100,
    SPIKES: 100,
    RECOVERIES: 100,
    OLD_RECOVERIES: 100,
    FAILED_RECOVERIES: 100,
    FLAPS: 100,
}

RISES: dict[Key, float] = {ATTEMPTS: 20, COPY_ATTEMPTS: 6}
"""By how much the counters rose within the last day; the others stood still."""


def score(
    changes: Values | None = None,
    rises: Mapping[Key, float] | None = None,
    rose_hours_ago: float = 0.0,
    just_now: Mapping[Key, float] | None = None,
    findings: Sequence[Finding] = (),
) -> Score:
    """The score of the healthy node with some numbers changed.

    Args:
        changes: numbers of gauges; None takes the series away.
        rises: of counters; those of the healthy node, where it has others, rose just now.
        rose_hours_ago: when these counters rose.
        just_now: by how much counters rose just now.
        findings: that are open.
    """
    values = {key: value for key, value in {**HEALTHY, **(changes or {})}.items() if value is not None}
    given = dict(rises or {})
    healthy = {key: rise for key, rise in RISES.items() if key not in given} | dict(just_now or {})
    now = _by_metric(values)
    then = before(now, _by_metric(healthy))
    first = before(then, _by_metric(given))
    history = {(rose_hours_ago + 1) * 3600.0: first, rose_hours_ago * 3600.0 + 1: then}
    return score_of(facts_of(now, history), shipped(), findings)


def of_a_job(
    use: Sequence[float], nvlink: Sequence[float] = (), pcie: Sequence[float] = (), first: Sequence[int] = (0, 0)
) -> dict[Key, float]:
    """A job on the two GPUs, or two, with its mean use of GPUs and links in the last ten minutes."""
    loads = {"": use, "nvlink_": nvlink, "pcie_": pcie}
    return {
        **{("gpu_job_first", gpu): one for gpu, one in zip((GPU0, GPU1), first, strict=True)},
        **{
            (f"gpu_job_{kind}recent_use_ratio", gpu): share
            for kind, shares in loads.items()
            for gpu, share in zip((GPU0, GPU1), shares, strict=False)
        },
    }


def only(*keys: Key) -> dict[Key, float | None]:
    """Changes that leave nothing of the healthy node but these series."""
    return {key: None for key in HEALTHY if key not in keys}


def part(found: Score, name: PartName) -> Part:
    """One of the four parts."""
    return next(one for one in found.parts if one.name == name)


def _by_metric(values: Mapping[Key, float]) -> dict[str, dict[tuple[str, ...], float]]:
    numbers: dict[str, dict[tuple[str, ...], float]] = {}
    for (metric, labels), value in values.items():
        numbers.setdefault(f"commwatch_{metric}", {})[labels] = value
    return numbers
