"""commwatch drill: the catalogue, wrong use, what is left out, and the reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commwatch import __main__
from commwatch.config.settings import Duration
from commwatch_rehearsal.drill.catalogue import load_drills
from commwatch_rehearsal.drill.command import left_out
from commwatch_rehearsal.drill.course import Outcome
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.pace import FAST, SHIPPED
from commwatch_rehearsal.drill.report import catalogue_rows, document, intervals, is_passed, markdown, rows
from support.passes import in_one_pass

OUTCOME = Outcome(
    name="nvlink_down",
    family="NVLink",
    preset="h100x8",
    faults=("nvlink_down (gpu 3, link 5)",),
    detection="A",
    expected=("CommwatchNvlinkDown",),
    received=("CommwatchNvlinkDown", "CommwatchXidFabric"),
    unexpected=(),
    findings=("nvlink_down", "xid_fabric"),
    seconds_to_firing=30.2,
    seconds_to_first_page=35.4,
    first_page="CommwatchNvlinkDown",
    seconds_allowed=60.0,
    seconds_to_page=35.4,
    seconds_to_resolved=640.0,
    resolved=True,
    passed=True,
    problems=(),
)
BAD = replace(OUTCOME, name="gpu_lost", family="GPU", passed=False, resolved=None, problems=("no page of A", "late"))


def test_the_catalogue_is_listed_without_starting_anything(capsys: pytest.CaptureFixture[str]) -> None:
    """As a table and as JSON: each drill with its node, its fault and its alerts."""
    assert __main__.main(["drill", "--list", "gpu_lost"]) == 0
    assert "gpu_lost (gpu 6)" in capsys.readouterr().out
    assert __main__.main(["drill", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["drills"]
    assert [one["name"] for one in listed] == list(load_drills())
    assert all(one["without_alert"] == [] for one in listed)


def test_the_catalogue_of_a_recording_has_what_it_can_play_and_says_why_not_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The node is the recording."""
    node = str(Path(__file__).parents[1] / "recordings" / "a10x2.cwrec")
    assert __main__.main(["drill", "--list", "--node", node, "--json", "ethernet_down", "gpu_lost", "sxid_fatal"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["preset"]) for one in listed["drills"]] == [("ethernet_down", node)]
    assert listed["left_out"] == {
        "gpu_lost": "its alerts are known for NVLinks as of h100x8 alone",
        "sxid_fatal": "sxid: this node has no NVSwitch",
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--alertmanager", "http://localhost:9093"], "--i-will-page"),
        (["--i-will-page"], "for a given --alertmanager"),
        (["--receiver", "localhost:1"], "for a given --alertmanager"),
        (["--targets", "a.json"], "for a given --prometheus"),
        (["--prometheus", "http://localhost:9090"], "--prometheus needs --alertmanager"),
        (["--report", "/nonexistent/detection.md"], "there is no folder /nonexistent"),
        (["nvlink_dwn"], "did you mean nvlink_down"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and what is wrong; above all, no Alertmanager is used unasked."""
    assert __main__.main(["drill", *arguments]) == 2
    assert problem in capsys.readouterr().err


@in_one_pass(
    "option",
    [["--within", "soon"], ["--nodes", "0"], ["--nodes", "x"], ["--receiver", "9095"], ["--receiver", "a:70000"]],
)
def test_a_wrong_value_is_refused(option: list[str]) -> None:
    """Exit code 2 of the command line's parser."""
    with pytest.raises(SystemExit) as caught:
        __main__.main(["drill", *option])
    assert caught.value.code == 2


def test_a_drill_without_its_alert_or_without_a_fast_form_is_left_out_with_its_reason() -> None:
    """And stays marked in the list."""
    old = Drill(
        name="a", family="GPU", preset="h100x8", faults=({"fault": "gpu_lost", "gpu": "1"},), alerts=("CommwatchA",)
    )
    slow = Drill(name="b", family="GPU", preset="h100x8", faults=old.faults, why_slow="it is slow")
    assert left_out([old, slow], SHIPPED, {}) == {"a": "no alert yet: CommwatchA"}
    assert left_out([old, slow], FAST, {"CommwatchA": 0.0}) == {"b": "not in the fast form: it is slow"}
    (row, _) = catalogue_rows([old, slow], [])
    assert row == ("a", "h100x8", "gpu_lost (gpu 1)", "A (no alert yet: A)", "A")


def test_the_table_has_times_and_the_verdict_and_the_json_all_there_is() -> None:
    """A drill that did not pass shows why, and what was not waited for is no resolve."""
    good, bad = rows([OUTCOME, BAD])
    assert good == (
        "nvlink_down (h100x8)", "NvlinkDown", "NvlinkDown, XidFabric", "30 s", "35 s", "35 s", "640 s", "passed",
    )  # fmt: skip
    assert bad[-2:] == ("-", "no page of A; late")
    written = document([OUTCOME, BAD], {"x": "why"}, {"CommwatchB"}, SHIPPED, 12.34)
    assert (written["passed"], written["intervals"], written["stray_alerts"]) == (False, "shipped", ["CommwatchB"])
    assert written["drills"][0]["seconds_to_first_page"] == 35.4
    assert (written["drills"][0]["seconds_allowed"], written["drills"][0]["first_page"]) == (60, "CommwatchNvlinkDown")


def test_the_table_shows_the_page_that_kept_the_limit() -> None:
    """By another sign of the fault, whose name it gives, a minute before all that was expected was reported."""
    late = replace(OUTCOME, seconds_to_first_page=27.1, first_page="CommwatchXidFabric", seconds_to_page=87.0)
    (row,) = rows([late])
    assert row[3:6] == ("30 s", "27 s (XidFabric)", "87 s")
    assert "| 27 of 60 s (XidFabric); all 87 s | 640 s |" in markdown([late], {}, (), SHIPPED, "")


def test_a_run_says_which_intervals_were_used() -> None:
    """Those that are shipped, the fast ones, with the waits of whose Alertmanager, or those of a given Prometheus."""
    assert intervals(SHIPPED).startswith("shipped intervals")
    assert intervals(FAST).endswith("keep_firing_for a 60th)")
    assert intervals(replace(FAST, paging_factor=1)).endswith("the waits of the given Alertmanager as they are)")
    assert intervals(replace(SHIPPED, is_given=True)) == "the intervals of the given Prometheus"


def test_an_alert_of_no_drill_fails_the_run() -> None:
    """Also where every drill has passed."""
    assert is_passed([OUTCOME], ())
    assert not is_passed([OUTCOME], {"CommwatchB"})
    assert not is_passed([OUTCOME, BAD], ())


def test_the_page_of_detection_goes_by_family() -> None:
    """Which intervals were used, each drill in one row, what failed, what pages nobody, and what was not played."""
    silent = replace(OUTCOME, name="mig_enabled", expected=(), received=(), seconds_allowed=None)
    text = markdown([OUTCOME, BAD, silent], {"x": "no alert yet: CommwatchX"}, (), SHIPPED, "Prometheus 2.42.0")
    assert "2 of 3 drills passed with shipped intervals (scrape and evaluation every 15 s), Prometheus 2.42.0." in text
    headings = ("## Failed", "| **NVLink** |", "| **GPU** |", "## Faults that page nobody", "## Not played")
    assert sorted(headings, key=text.index) == list(headings)
    (row,) = [line for line in text.splitlines() if line.startswith("| `nvlink_down`")]
    assert row.endswith("<br>`h100x8` | NvlinkDown; also XidFabric | 35 of 60 s | 640 s |")
    assert "\n- `gpu_lost`: no page of A; late\n" in text
    assert text.partition("## Faults that page nobody")[2].count("- `mig_enabled`<br>`h100x8`\n") == 1


def test_times_of_a_drill_are_those_of_its_class_unless_it_says_otherwise() -> None:
    """60 s for A, 5 min for B; for C three probes, and a minute for scrape, evaluation and notification."""
    drill = Drill(name="a", family="", preset="h100x8")
    assert (drill.limit, drill.is_silent) == (60, True)
    assert Drill(name="a", family="", preset="h100x8", detection="B").limit == 300
    assert Drill(name="a", family="", preset="h100x8", detection="C").limit == 3 * SHIPPED.probe_seconds + 60
    assert Drill(name="a", family="", preset="h100x8", within=Duration(7)).limit == 7
