"""The catalogue of drills, held against the faults, the nodes, the findings and the rules."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml

from commwatch.errors import ConfigError
from commwatch.generate.alert_rules import shipped_alerts
from commwatch_rehearsal.drill.catalogue import UnknownDrill, choose, load_drills, without_alert
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.node import check_of, fault_file, report_of
from commwatch_rehearsal.drill.rehearsal import ALWAYS
from commwatch_rehearsal.simulation.faults.kinds import FAMILIES
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.presets import PRESETS
from support.passes import in_one_pass

DRILLS = load_drills()
IDS = list(DRILLS)


@in_one_pass("drill", DRILLS.values())
def test_the_node_takes_the_faults_of_each_drill(drill: Drill) -> None:
    """While they last and after their end, beside what holds all the time."""
    now = time.time()
    count = sum(int(one.get("times", "1")) for one in (*drill.faults, *drill.under))
    for until in (None, now + 60):
        text = fault_file(drill.faults, now, until, drill.under).decode()
        faults = parse_faults(text, "faults.yaml", PRESETS[drill.preset], now - 100, now)
        assert len(faults) == count
        assert drill.stopped or faults or drill.between_nodes or drill.checked or drill.log
    assert report_of(drill.between_nodes, now).suspicions or not drill.between_nodes
    assert check_of(drill.checked, now).causes == drill.checked


def test_a_fault_that_has_ended_stays_in_the_file_with_its_end() -> None:
    """An entry that is taken out has never happened: its counters would fall."""
    entry = {"fault": "nvlink_crc", "gpu": "0", "link": "2", "rate": "200/s"}
    (fault,) = parse_faults(
        fault_file([entry], 1_000_060.0, 1_000_090.5).decode(), "f", PRESETS["h100x8"], 1_000_000.0, 1_000_100.0
    )
    assert [fault.start, fault.end] == pytest.approx([60, 90.5])


@in_one_pass("drill", DRILLS.values())
def test_a_drill_that_pages_names_its_finding(drill: Drill) -> None:
    """But where the daemon is gone, several nodes have the fault, or a job uses the node, which is no finding."""
    without_finding = {"CommwatchNvlinkUtilizationLow", "CommwatchPcieUtilizationLow", "CommwatchPortAtLimit"}
    if not drill.is_silent and not drill.stopped and drill.nodes == 1 and not without_finding & set(drill.alerts):
        assert drill.codes


def test_the_catalogue_covers_all_families_and_presets() -> None:
    """At least 40 faults that page, among them of every family and on every preset."""
    paging = [drill for drill in DRILLS.values() if not drill.is_silent]
    assert len(paging) >= 40
    assert {drill.preset for drill in paging} == set(PRESETS)
    assert {drill.family for drill in paging} >= set(FAMILIES)


def test_every_alert_of_the_catalogue_has_a_rule() -> None:
    """Expected or allowed; what always fires is left to no drill."""
    alerts = set(shipped_alerts())
    assert {name for drill in DRILLS.values() for name in without_alert(drill, alerts)} == set()
    assert {name for drill in DRILLS.values() for name in drill.also} <= alerts
    assert alerts >= ALWAYS


def test_an_alert_that_no_drill_expects_has_its_reason_in_the_documentation() -> None:
    """docs/using/drill.md names each of them and no other: a new alert wants a drill, or a reason."""
    page = (Path(__file__).parents[2] / "docs/using/drill.md").read_text()
    named = [name for line in page.splitlines() for name in re.findall(r"`(Commwatch\w+)`", line.partition(" | ")[0])]
    expected = {name for drill in DRILLS.values() for name in drill.alerts}
    assert sorted(named) == sorted(set(shipped_alerts()) - expected)


def test_two_drills_of_an_alert_that_looks_back_an_hour_are_the_most() -> None:
    """A third node with the same alert is a fault of the fleet, and none of the earlier ones would be over."""
    long = [name for drill in DRILLS.values() for name in drill.alerts if drill.lasts > 1200]
    assert max(map(long.count, long)) <= 2


def test_names_and_patterns_choose_drills_in_the_order_of_the_catalogue() -> None:
    """Twice the same is once; nothing named is all."""
    chosen = [drill.name for drill in choose(DRILLS, ["sxid_*", "gpu_lost", "gpu_lost"])]
    assert chosen == ["gpu_lost", "sxid_fatal", "sxid_of_no_known_number", "sxid_warning"]
    assert len(choose(DRILLS, [])) == len(DRILLS)


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    """Wrong use: exit code 2."""
    with pytest.raises(UnknownDrill, match="did you mean nvlink_down") as caught:
        choose(DRILLS, ["nvlink_dwn"])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"preset": "h100x8", "alert": "A"}, "alert"),
        ({"alerts": []}, "preset"),
        ({"preset": "h100x8", "within": "3 parsecs"}, "within"),
    ],
)
def test_a_row_with_an_unknown_key_a_missing_one_or_a_wrong_time_is_refused(
    row: dict[str, object], key: str, tmp_path: Path
) -> None:
    """With file, line and key, so that a slip of the pen does not become a drill that shows nothing."""
    (tmp_path / "drills.yaml").write_text(yaml.safe_dump({"GPU": {"one": row}}))

    with pytest.raises(ConfigError, match=rf"drills.yaml:\d: GPU\.one\.{key}: "):
        load_drills(tmp_path / "drills.yaml")
