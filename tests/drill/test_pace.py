"""The shipped rules at a fifteenth of their times."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch.config.settings import Config
from commwatch.config.thresholds import load_thresholds
from commwatch.config.yaml_file import load_config
from commwatch.generate.alert_rules import Site, render_all, templates
from commwatch_rehearsal.drill.catalogue import load_drills
from commwatch_rehearsal.drill.node import node_configuration
from commwatch_rehearsal.drill.pace import (
    FAST,
    SHIPPED,
    collector_intervals,
    parse_promql_duration,
    promql_duration,
    scaled_expression,
    scaled_rules,
    scaled_template,
    thresholds_file,
)
from commwatch_rehearsal.drill.stage import rules_at
from support.passes import in_one_pass
from support.promtool_cases import promtool

RULES = render_all(load_thresholds(None), Site())


@cache
def fast_rules() -> dict[str, str]:
    """Rendered once for all tests."""
    return rules_at(FAST)


def test_windows_steps_and_offsets_are_divided_and_nothing_else() -> None:
    """A range, a subquery with and without a step, and an offset; numbers, labels and thresholds stay."""
    expression = 'rate(a{b="x"}[5m]) > 5 and max_over_time(c[1h30m:1m] offset 15s) == 15 and d[30m:] offset -1h'
    scaled = scaled_expression(expression, 15)
    assert scaled == (
        'rate(a{b="x"}[20000ms]) > 5 and max_over_time(c[360000ms:4000ms] offset 1000ms) == 15 '
        "and d[120000ms:] offset -240000ms"
    )


def test_each_window_of_the_shipped_rules_holds_as_many_samples_in_the_fast_form() -> None:
    """Window by window, in the order in which they stand: the same number of scrapes."""
    for name, text in RULES.items():
        before, after = _read(text), _read(scaled_rules(text, FAST))
        for old, new in zip(_windows(before), _windows(after), strict=True):
            assert new / FAST.interval == pytest.approx(old / SHIPPED.interval, abs=0.001), name


def test_waits_are_divided_and_the_holding_time_more() -> None:
    """A rule that waits a minute waits 4 s, and one that holds for 10 min holds for 10 s."""
    text = "groups: [{name: g, interval: 15s, rules: [{alert: A, expr: up, for: 1m, keep_firing_for: 10m}]}]"
    (group,) = yaml.safe_load(scaled_rules(text, FAST))["groups"]
    assert group["interval"] == "1000ms"
    (rule,) = group["rules"]
    assert (rule["for"], rule["keep_firing_for"]) == ("4000ms", "10000ms")


def test_the_shipped_rules_are_left_as_they_are() -> None:
    """At the shipped intervals a drill decides by the very files of alerts/rules."""
    assert rules_at(SHIPPED) == RULES


@pytest.mark.prometheus
def test_prometheus_takes_the_fast_rules(tmp_path: Path) -> None:
    """promtool finds nothing wrong with any file."""
    for name, text in fast_rules().items():
        (tmp_path / name).write_text(text)
    checked = promtool("check", "rules", *sorted(tmp_path.glob("*.yaml")))
    assert checked.returncode == 0, checked.stdout


def test_times_that_a_template_compares_as_numbers_are_divided_too() -> None:
    """Data are old after 20 s in place of 300 s, wherever a template says so; its durations are left to the rules."""
    template = "time() - a > @data_stale_seconds@ and b[@state_fault_window_seconds:duration@] > @pair_slow_ratio@"
    scaled = scaled_template(template, load_thresholds(None), FAST)
    assert scaled == "time() - a > 20 and b[@state_fault_window_seconds:duration@] > @pair_slow_ratio@"
    assert any("@data_stale_seconds@" in text for text in templates().values())
    (stale,) = (
        rule["expr"]
        for text in fast_rules().values()
        for group in _read(text)["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "CommwatchDataStale"
    )
    assert "> 20\n" in stale


def test_a_fast_node_shows_an_event_for_a_fifteenth_of_its_window(tmp_path: Path) -> None:
    """So that its alert resolves within the drill; the rules know these thresholds for those of the daemons."""
    file = tmp_path / "thresholds.yaml"
    file.write_text(thresholds_file(load_thresholds(None), FAST))
    of_daemon = load_thresholds(file)

    assert of_daemon.event_window_seconds == load_thresholds(None).event_window_seconds / 15
    assert any(of_daemon.digest in text for text in fast_rules().values())
    assert not any(load_thresholds(None).digest in text for text in fast_rules().values())


def test_every_collector_of_a_fast_node_has_a_fifteenth_of_its_interval() -> None:
    """Down to a quarter of a second, as often as the simulated node looks for other faults."""
    intervals = collector_intervals(FAST)
    assert intervals["nvml"]["nvlink_errors_interval"] == "667ms"
    assert intervals["nvml"]["nvlink_interval"] == "250ms"
    assert set(intervals) == set(Config().sources.__struct_fields__)
    assert collector_intervals(SHIPPED) == {}


@pytest.mark.parametrize("pace", [SHIPPED, FAST], ids=lambda pace: str(pace.name))
def test_the_daemon_takes_the_configuration_of_every_drill(tmp_path: Path, pace: object) -> None:
    """No key is unknown and no value out of range."""
    for drill in load_drills().values():
        file = tmp_path / f"{drill.name}.yaml"
        file.write_text(yaml.safe_dump(node_configuration(drill, pace)))  # type: ignore[arg-type]
        config = load_config(file)
        assert config.probes.enabled == bool(drill.probes)


@in_one_pass("text, seconds", [("15s", 15), ("1h30m", 5400), ("500ms", 0.5), ("7d", 604800)])
def test_durations_of_prometheus_are_read_and_written(text: str, seconds: float) -> None:
    """As Prometheus writes them."""
    assert parse_promql_duration(text) == seconds
    assert parse_promql_duration(promql_duration(seconds)) == seconds


@in_one_pass("text", ["", "5", "m", "1.5h", "5 m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """With the text in the message."""
    with pytest.raises(ValueError, match="no duration"):
        parse_promql_duration(text)


def _read(text: str) -> Any:
    """What a file of rules holds, by the parser in C: the one in Python takes ten times as long."""
    return yaml.load(text, yaml.CSafeLoader)


def _windows(document: Any) -> list[float]:
    """All windows, steps, offsets, intervals and waits of rules, in their order."""
    text = _without_annotations(document)
    found = re.findall(r"\[(\w+)(?::(\w+)?)?\]|offset -?(\w+)|(?:interval|for): (\w+)", text)
    return [parse_promql_duration(one) for groups in found for one in groups if one]


def _without_annotations(document: Any) -> str:
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
            rule.pop("keep_firing_for", None)
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper, width=100000))
