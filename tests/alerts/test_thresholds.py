"""The thresholds: shipped ones, a user's own above them, and clear errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from commwatch.config.thresholds import Thresholds, load_thresholds, shipped_thresholds
from commwatch.errors import ConfigError
from commwatch.generate.alert_rules import templates

ROOT = Path(__file__).parents[2]


@pytest.fixture
def override(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a thresholds file of the user's own."""

    def write(text: str) -> Path:
        path = tmp_path / "thresholds.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_shipped_thresholds_are_the_documented_ones() -> None:
    """The numbers that users are promised stand in the shipped file, each with its origin."""
    thresholds = load_thresholds(None)

    assert thresholds.probe_latency_spike_streak == 3
    assert thresholds.probe_latency_spike_mad_factor == 6
    assert thresholds.probe_latency_spike_median_factor == 1.5
    assert thresholds.probe_bandwidth_utilization_low_ratio == 0.60
    assert thresholds.probe_low_bandwidth_streak == 3
    assert thresholds.probe_error_rate_rise_ratio == 0.05
    assert all(entry.origin for entry in shipped_thresholds().values())


def test_every_threshold_is_used() -> None:
    """No threshold stands in the file without a rule or a line of the daemon that reads it."""
    users = [path for path in (ROOT / "daemon").rglob("*.py") if path.name != "thresholds.py"]
    text = "\n".join([*(path.read_text(encoding="utf-8") for path in users), *templates().values()])

    # In a template, read from the record, or by its name in a table of limits.
    uses = ("@{}", ".{}", '"{}"')

    unused = [one.name for one in fields(Thresholds) if not any(use.format(one.name) in text for use in uses)]

    assert unused == []


def test_an_override_replaces_only_what_it_names(override: Callable[[str], Path]) -> None:
    """The rest keeps its shipped value, and the digest changes."""
    shipped = load_thresholds(None)
    own = load_thresholds(override("probe_low_bandwidth_streak: {value: 5}\n"))

    assert own.probe_low_bandwidth_streak == 5
    assert own.probe_latency_spike_streak == shipped.probe_latency_spike_streak
    assert own.digest != shipped.digest


def test_the_digest_depends_on_values_alone(override: Callable[[str], Path]) -> None:
    """An override that writes a shipped value in another way has the shipped digest."""
    same = load_thresholds(override("# own\nprobe_latency_spike_streak: {value: 3.0, origin: 2026-11-01}\n"))

    assert same.digest == load_thresholds(None).digest
    assert same.digest.isalnum()
    assert len(same.digest) == 12


def test_an_empty_override_changes_nothing(override: Callable[[str], Path]) -> None:
    """A file of comments is the shipped thresholds."""
    assert load_thresholds(override("# nothing yet\n")) == load_thresholds(None)


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("\nlatency_max: {value: 3}\n", 2, "latency_max", "no such threshold"),
        ("data_stale_seconds: 3\n", 1, "data_stale_seconds", "expected settings as KEY: VALUE"),
        ("data_stale_seconds: {unit: seconds}\n", 1, "data_stale_seconds.value", "is missing"),
        ("data_stale_seconds: {value: 3, limit: 2}\n", 1, "data_stale_seconds.limit", "unknown key"),
        ("data_stale_seconds: {value: 3, unit: ms}\n", 1, "data_stale_seconds.unit", "'ms' is not possible"),
        ("data_stale_seconds: {value: 3, unit: ratio}\n", 1, "data_stale_seconds.unit", "expected seconds"),
        ("data_stale_seconds:\n  value: long\n", 2, "data_stale_seconds.value", "expected a number"),
        ("data_stale_seconds: {value: true}\n", 1, "data_stale_seconds.value", "expected a number"),
        ("data_stale_seconds: {value: .nan}\n", 1, "data_stale_seconds.value", "expected a number"),
        ("data_stale_seconds: {value: 0}\n", 1, "data_stale_seconds.value", "more than 0"),
        ("nvlink_in_use_ratio: {value: 1.01}\n", 1, "nvlink_in_use_ratio.value", "at most 1"),
        ("probe_low_bandwidth_streak: {value: 2.5}\n", 1, "probe_low_bandwidth_streak.value", "whole number"),
        (
            "nvlink_in_use_ratio: {value: 1}\nnvlink_in_use_ratio: {value: 1}\n",
            2,
            "nvlink_in_use_ratio",
            "already set in line 1",
        ),
        ("- 3\n", 1, "", "expected settings as KEY: VALUE"),
        ("a: [\n", 2, "", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_refused(
    override: Callable[[str], Path], text: str, line: int, key: str, problem: str
) -> None:
    """The error names file, line and key."""
    path = override(text)

    with pytest.raises(ConfigError, match=problem) as caught:
        load_thresholds(path)

    assert (caught.value.file, caught.value.line, caught.value.key) == (str(path), line, key)


def test_a_missing_override_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_thresholds(tmp_path / "none.yaml")
