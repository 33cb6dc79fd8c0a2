"""The numbers that decide what is degraded: reads alerts/thresholds.yaml and a file of the user's own above it."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from commwatch.config.assets import asset
from commwatch.config.yaml_file import decode, read_shipped, read_yaml
from commwatch.errors import ConfigError

Unit: TypeAlias = Literal["ratio", "factor", "seconds", "results", "count"]

_WHOLE_UNITS = frozenset({"results", "count"})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds in force; ``alerts/thresholds.yaml`` has the meaning, unit and origin of each."""

    probe_latency_spike_mad_factor: float
    probe_latency_spike_median_factor: float
    probe_latency_spike_streak: int
    probe_baseline_results_min: int
    probe_baseline_results_first: int
    probe_latency_published_factor: float
    probe_latency_model_factor: float
    probe_latency_mark_factor: float
    probe_latency_mark_max_seconds: float
    probe_streak_gap_max_seconds: float
    probe_bandwidth_utilization_low_ratio: float
    probe_low_bandwidth_streak: int
    probe_bandwidth_short_ratio: float
    probe_loss_ratio: float
    probe_loss_streak: int
    probe_loss_results_first: int
    probe_loss_mad_factor: float
    probe_drift_max_factor: float
    probe_step_results: int
    probe_step_min_factor: float
    probe_swing_min_factor: float
    probe_swing_calm_ratio: float
    probe_error_rate_rise_ratio: float
    probe_error_rate_window_seconds: float
    probe_error_rate_failures_min: int
    probe_error_rate_attempts_min: int
    probe_failure_streak: int
    probe_balance_low_ratio: float
    probe_starved_after_seconds: float
    probe_starved_chances_min: int
    pairs_slow_share_ratio: float
    suspect_confidence_min: float
    pair_nearer_low_ratio: float
    pair_slow_for_seconds: float
    cluster_suspect_runs: int
    cluster_leaf_failing_ratio: float
    cluster_stale_after_seconds: float
    stress_bandwidth_fall_max_ratio: float
    nccl_log_errors_min: int
    nccl_log_errors_window_seconds: float
    nvlink_utilization_low_ratio: float
    nvlink_recoveries_per_hour: int
    nvlink_recoveries_per_day: int
    nvlink_recoveries_rising_per_day: int
    nvlink_replays_per_hour: int
    nvlink_packet_errors_per_hour: int
    nvlink_crc_errors_per_second: int
    nvlink_bit_error_ratio_max: float
    nvlink_sibling_low_ratio: float
    nvlink_sibling_in_use_ratio: float
    nvlink_in_use_ratio: float
    nvlink_utilization_low_for_seconds: float
    gpu_communicates_ratio: float
    job_use_low_ratio: float
    job_use_even_ratio: float
    job_in_use_ratio: float
    job_links_idle_ratio: float
    job_links_full_ratio: float
    job_link_bound_ratio: float
    job_gpu_silent_ratio: float
    job_peers_carry_ratio: float
    pcie_utilization_low_ratio: float
    pcie_in_use_ratio: float
    pcie_utilization_low_for_seconds: float
    job_stuck_suspected_seconds: float
    job_stuck_seconds: float
    job_stuck_long_seconds: float
    job_stuck_payload_seconds: float
    job_stuck_payload_ratio: float
    job_stuck_other_bytes: float
    job_stuck_busy_ratio: float
    job_stuck_power_range_ratio: float
    job_silent_cpu_ratio: float
    job_over_tcp_seconds: float
    job_over_tcp_ratio: float
    job_over_tcp_bytes: float
    pcie_bit_error_ratio_max: float
    fabric_join_seconds: float
    rdma_symbol_errors_per_hour: int
    rdma_link_recoveries_per_minute: int
    rdma_link_recoveries_per_hour: int
    rdma_packet_errors_per_hour: int
    rdma_slow_restarts_per_second: int
    rdma_sequence_errors_per_second: int
    rdma_ack_timeouts_per_minute: int
    rdma_rnr_retries_per_minute: int
    rdma_retransmitted_share_ratio: float
    rdma_drops_per_minute: int
    rdma_congestion_notifications_per_second: int
    rdma_wait_rise_factor: float
    rdma_remote_events_per_minute: float
    rdma_port_down_for_seconds: float
    rdma_port_not_set_up_for_seconds: float
    network_sustained_for_seconds: float
    port_at_limit_ratio: float
    ethernet_bit_error_ratio_max: float
    link_flaps_per_hour: int
    ethernet_drops_per_second: int
    ethernet_pause_share_ratio: float
    score_excellent_ratio: float
    score_good_ratio: float
    score_even_ratio: float
    score_port_flaps_per_day: int
    state_fault_evaluations_min: int
    state_fault_window_seconds: float
    state_warning_for_seconds: float
    event_window_seconds: float
    critical_keep_firing_seconds: float
    collector_failing_for_seconds: float
    source_unread_for_seconds: float
    device_unread_for_seconds: float
    data_stale_seconds: float
    data_stale_intervals: float
    worker_restarts_per_hour: int
    daemon_down_for_seconds: float
    textfile_stale_seconds: float
    last_seen_window_seconds: float
    fleet_fault_nodes_ratio: float
    fleet_fault_nodes_min: int
    fleet_fault_new_seconds: float
    fleet_fault_settled_seconds: float
    peer_fewest_ratio: float
    peer_bandwidth_low_ratio: float
    peer_latency_high_factor: float
    peer_nodes_min: int
    peer_slow_for_seconds: float
    version_skew_for_seconds: float
    thresholds_differ_for_seconds: float
    maintenance_unscraped_seconds: float
    maintenance_long_seconds: float

    @property
    def digest(self) -> str:
        """The first 12 hex digits of the SHA-256 of all values; equal values give equal digests, whatever the file."""
        canonical = json.dumps({key: float(value) for key, value in asdict(self).items()}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the shipped file."""

    value: int | float
    unit: Unit
    origin: str


class _Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of a user's file."""

    value: int | float
    unit: Unit | None = None
    """As in the shipped file, if the file names it."""
    origin: Any = ""
    """A remark of the site: a text, a date, a number."""


def shipped_thresholds() -> dict[str, Threshold]:
    """The entries of the shipped file, in its order.

    Raises:
        ConfigError: the shipped file is damaged or does not fit this version.
    """
    path = asset("alerts/thresholds.yaml")
    names = {one.name for one in fields(Thresholds)}
    entries = read_shipped(path, dict[str, Threshold])
    if names != entries.keys():
        differing = ", ".join(sorted(names ^ entries.keys()))
        raise ConfigError(str(path), None, differing, "the file and this version of commwatch do not fit together")
    return entries


def load_thresholds(override: str | Path | None) -> Thresholds:
    """The shipped thresholds, with those of the user's own file in their place.

    Args:
        override: a file of the shipped file's form that names only what it changes, each ``KEY: {value: NUMBER}``;
            none where it is empty.

    Raises:
        ConfigError: a file cannot be read, names an unknown key, or holds a value of the wrong type or range.
    """
    shipped = shipped_thresholds()
    values = {key: entry.value for key, entry in shipped.items()}
    if override:
        document = read_yaml(Path(override), may_be_empty=True)
        for key in document.values:
            if key not in shipped:
                raise document.error((key,), "no such threshold; alerts/thresholds.yaml has them all")
        for key, change in decode(document, dict[str, _Change]).items():
            unit = shipped[key].unit
            if change.unit not in (None, unit):
                raise document.error((key, "unit"), f"is {change.unit}; expected {unit}")
            if problem := _problem(change.value, unit):
                raise document.error((key, "value"), f"{problem}, got {change.value}")
            values[key] = change.value
    whole = {key: int(value) for key, value in values.items() if shipped[key].unit in _WHOLE_UNITS}
    return Thresholds(**values | whole)  # type: ignore[arg-type]  # by unit whole numbers


def _problem(value: float, unit: Unit) -> str:
    """The requirement that a value violates; empty if it is valid."""
    if not math.isfinite(value):
        return "expected a number"
    if value <= 0:
        return "expected more than 0"
    if unit == "ratio" and value > 1:
        return "expected a ratio of at most 1"
    if unit in _WHOLE_UNITS and value != int(value):
        return f"expected a whole number of {unit}"
    return ""
