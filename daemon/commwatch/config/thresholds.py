"""The numbers that decide what is degraded: reads alerts/thresholds.yaml and a file of the user's own above it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import yaml

from commwatch.config.assets import asset
from commwatch.errors import ConfigError
from commwatch.footprint import sha256_hex

Unit: TypeAlias = Literal["ratio", "factor", "seconds", "results", "count"]

_WHOLE_UNITS = frozenset({"results", "count"})
_ENTRY_KEYS = frozenset({"value", "unit", "origin"})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds in force; meaning, unit and origin of each stand in ``alerts/thresholds.yaml``."""

    probe_latency_spike_mad_factor: float
    probe_latency_spike_median_factor: float
    probe_latency_spike_streak: int
    probe_baseline_results_min: int
    probe_streak_gap_max_seconds: float
    probe_bandwidth_utilization_low_ratio: float
    probe_low_bandwidth_streak: int
    probe_drift_max_factor: float
    probe_step_results: int
    probe_step_min_factor: float
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
    rdma_port_down_for_seconds: float
    network_sustained_for_seconds: float
    port_at_limit_ratio: float
    ethernet_bit_error_ratio_max: float
    ethernet_link_downs_per_hour: int
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
    data_stale_seconds: float
    data_stale_intervals: float
    worker_restarts_per_hour: int
    daemon_down_for_seconds: float
    textfile_stale_seconds: float
    last_seen_window_seconds: float
    fleet_fault_nodes_ratio: float
    fleet_fault_nodes_min: int
    peer_bandwidth_low_ratio: float
    peer_latency_high_factor: float
    peer_nodes_min: int
    peer_slow_for_seconds: float
    version_skew_for_seconds: float
    thresholds_differ_for_seconds: float
    maintenance_tail_seconds: float
    maintenance_long_seconds: float

    @property
    def digest(self) -> str:
        """The first 12 hex digits of the SHA-256 of all values; equal values give equal digests, whatever the file."""
        canonical = json.dumps({key: float(value) for key, value in asdict(self).items()}, sort_keys=True)
        return sha256_hex(canonical.encode())[:12]


@dataclass(frozen=True, slots=True)
class Threshold:
    """One entry of a thresholds file."""

    value: float
    unit: Unit
    origin: str


def shipped_thresholds() -> dict[str, Threshold]:
    """The entries of the shipped file, in its order.

    Raises:
        ConfigError: the shipped file is damaged or does not fit this version.
    """
    path = asset("alerts/thresholds.yaml")
    entries = _read(path, known={})
    names = {one.name for one in fields(Thresholds)}
    if names != entries.keys():
        differing = ", ".join(sorted(names ^ entries.keys()))
        raise ConfigError(str(path), None, differing, "the file and this version of commwatch do not fit together")
    return entries


def load_thresholds(override: Path | None) -> Thresholds:
    """The shipped thresholds, with those of the user's own file in their place.

    Args:
        override: a file of the shipped file's form that names only what it changes, each ``KEY: {value: NUMBER}``.

    Raises:
        ConfigError: a file cannot be read, names an unknown key, or holds a value of the wrong type or range.
    """
    entries = shipped_thresholds()
    if override is not None:
        entries |= _read(override, known=entries)
    # Whole numbers were read as such, by unit.
    return Thresholds(**{key: entry.value for key, entry in entries.items()})  # type: ignore[arg-type]


def _read(path: Path, known: Mapping[str, Threshold]) -> dict[str, Threshold]:
    """Read one file; where ``known`` is given, no other key is allowed, and unit and origin may be left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), None, "", f"cannot be read: {error}") from error
    return parse_thresholds(text, str(path), known)


def parse_thresholds(text: str, file: str, known: Mapping[str, Threshold]) -> dict[str, Threshold]:
    """The entries of a thresholds file.

    Args:
        text: YAML.
        file: what error messages call it.
        known: the only keys allowed, with their units; empty for the shipped file, where unit and origin are needed.

    Raises:
        ConfigError: with the line and the key.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(file, line, "", f"not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(file, None, "", f"not YAML: {error}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(file, root.start_mark.line + 1, "", "expected a mapping of thresholds")
    entries: dict[str, Threshold] = {}
    for key_node, entry_node in root.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in entries:
            raise ConfigError(file, line, key, "stands here twice")
        if known and key not in known:
            raise ConfigError(file, line, key, "no such threshold; alerts/thresholds.yaml has them all")
        entries[key] = _entry(entry_node, file, key, known.get(key))
    return entries


def _entry(node: yaml.Node, file: str, key: str, shipped: Threshold | None) -> Threshold:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(file, line, key, "expected {value: NUMBER}")
    nodes: dict[str, yaml.Node] = {str(name.value): value for name, value in node.value}
    if unknown := sorted(nodes.keys() - _ENTRY_KEYS):
        raise ConfigError(file, line, key, f"unknown {', '.join(unknown)}; expected value, unit, origin")
    if "value" not in nodes:
        raise ConfigError(file, line, key, "value is missing")
    unit = _unit(nodes.get("unit"), file, line, key, shipped)
    origin_node = nodes.get("origin")
    origin = str(origin_node.value) if origin_node is not None else file
    if shipped is None and origin_node is None:
        raise ConfigError(file, line, key, "origin is missing")
    return Threshold(_value(nodes["value"], file, key, unit), unit, origin)


def _unit(node: yaml.Node | None, file: str, line: int, key: str, shipped: Threshold | None) -> Unit:
    if node is None and shipped is not None:
        return shipped.unit
    written = str(node.value) if node is not None else ""
    allowed = get_args(Unit) if shipped is None else (shipped.unit,)
    for unit in get_args(Unit):
        if written == unit and unit in allowed:
            return unit  # type: ignore[no-any-return]  # get_args of the alias gives its own members
    raise ConfigError(file, line, key, f"unit is {written or 'missing'}; expected {' or '.join(allowed)}")


def _value(node: yaml.Node, file: str, key: str, unit: Unit) -> float:
    line = node.start_mark.line + 1
    value = yaml.safe_load(yaml.serialize(node))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(file, line, key, f"expected a number, got {value!r}")
    if value <= 0:
        raise ConfigError(file, line, key, f"expected more than 0, got {value}")
    if unit == "ratio" and value > 1:
        raise ConfigError(file, line, key, f"expected a ratio of at most 1, got {value}")
    if unit in _WHOLE_UNITS:
        if value != int(value):
            raise ConfigError(file, line, key, f"expected a whole number of {unit}, got {value}")
        return int(value)
    return value
