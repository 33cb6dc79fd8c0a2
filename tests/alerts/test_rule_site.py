"""What a site changes in the rules without editing them, and keeps over an upgrade."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commwatch.__main__ import main
from commwatch.config.assets import asset
from commwatch.config.thresholds import load_thresholds
from commwatch.generate import alert_rules
from support.promtool_cases import alerts_of, promtool, read_yaml, shipped_groups

EXAMPLE = asset("alerts/site.example.yml")


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a site's file."""

    def write(text: str) -> Path:
        path = tmp_path / "site.yml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def rendered(folder: Path, *arguments: str | Path) -> dict[str, dict[str, Any]]:
    """Render rules into a folder; the alerts by name."""
    assert main(["rules", *map(str, arguments), "--output", str(folder)]) == 0
    return alerts_of(group for path in folder.glob("*.yaml") for group in read_yaml(path)["groups"])


def test_the_example_is_what_it_says(tmp_path: Path) -> None:
    """Its severity and nodes stand at their alerts, and everything else is as shipped."""
    own = rendered(tmp_path, "--site", EXAMPLE)
    shipped = alerts_of(shipped_groups())

    low = own["CommwatchNvlinkUtilizationLow"]
    assert (low["labels"]["severity"], low["labels"]["class"]) == ("warning", "B")
    assert low["expr"].endswith('last_over_time(up{job="commwatch", partition="training"}[10m])\n')
    assert own["CommwatchProbeBandwidthLow"]["labels"] == shipped["CommwatchProbeBandwidthLow"]["labels"]
    assert own.keys() == shipped.keys()
    for name in own.keys() - {"CommwatchNvlinkUtilizationLow", "CommwatchProbeBandwidthLow"}:
        assert own[name]["expr"].replace(', cluster="example"', "") == shipped[name]["expr"]
        assert own[name]["labels"] == shipped[name]["labels"]


def test_matchers_reach_every_selector(tmp_path: Path) -> None:
    """No series of another cluster is read: what is no recorded series is selected by job and matchers."""
    assert main(["rules", "--site", str(EXAMPLE), "--output", str(tmp_path)]) == 0
    for path in tmp_path.glob("*.yaml"):
        for group in read_yaml(path)["groups"]:
            for rule in group["rules"]:
                expression = re.sub(r"[a-z_]+:\w+:\w+(\{[^}]*\})?", "", rule["expr"])
                bare = re.findall(r'(?<![\w"|])(?:commwatch_\w+|up|ALERTS)(?![\w{|"])', expression)
                assert bare == []
                for selector in re.findall(r"\{[^}]*\}", expression):
                    assert 'job="commwatch", cluster="example"' in selector or "partition" in selector, rule["expr"]


@pytest.mark.prometheus
def test_promtool_accepts_the_rules_of_the_example(tmp_path: Path) -> None:
    """What the changes leave behind is valid."""
    assert main(["rules", "--site", str(EXAMPLE), "--output", str(tmp_path)]) == 0

    result = promtool("check", "rules", "--lint=all", "--lint-fatal", *tmp_path.glob("*.yaml"))

    assert result.returncode == 0, result.stdout


@pytest.mark.prometheus
@pytest.mark.parametrize("chosen", ["flag", "file"])
def test_the_core_set_is_all_pages_and_few_tickets(tmp_path: Path, site: Callable[[str], Path], chosen: str) -> None:
    """About 30 alerts, none of them an info but the watchdog, in rules that promtool accepts."""
    arguments = ["--set", "core"] if chosen == "flag" else ["--site", site("set: core\n")]
    core = rendered(tmp_path / "out", *arguments)
    shipped = alerts_of(shipped_groups())
    pages = {name for name, rule in shipped.items() if rule["labels"]["severity"] == "critical"}

    assert core.keys() == pages | alert_rules.CORE_TICKETS
    assert 25 <= len(core) <= 45
    assert all(core[name] == shipped[name] for name in core)
    result = promtool("check", "rules", *(tmp_path / "out").glob("*.yaml"))
    assert result.returncode == 0, result.stdout


def test_nothing_of_the_core_set_reads_what_it_does_not_record(tmp_path: Path) -> None:
    """Neither its rules nor a dashboard; and each such series is one of the extended set."""
    site, thresholds = alert_rules.Site(), load_thresholds(None)
    assert main(["dashboards", "--output", str(tmp_path)]) == 0
    extended = "".join(alert_rules.render_all(thresholds, site).values())
    shown = (file.read_text(encoding="utf-8") for file in tmp_path.iterdir())
    core = "".join([*alert_rules.render_all(thresholds, site, core=True).values(), *shown])

    for name in alert_rules.EXTENDED_RECORDS:
        assert f"- record: {name}\n" in extended
        assert name not in core


def test_thresholds_lie_beside_the_site_file(tmp_path: Path, site: Callable[[str], Path]) -> None:
    """The digest that the rules carry is that of the file which the daemons read."""
    (tmp_path / "thresholds.yaml").write_text("probe_low_bandwidth_streak: {value: 5}\n")
    own = load_thresholds(tmp_path / "thresholds.yaml")

    alerts = rendered(tmp_path / "out", "--site", site("thresholds: thresholds.yaml\n"))

    assert "[2m]) >= 5" in alerts["CommwatchProbeBandwidthLow"]["expr"]
    assert f'digest: "{own.digest}"' in (tmp_path / "out" / "recording.yaml").read_text()
    assert own.digest != load_thresholds(None).digest


def test_a_flag_goes_before_the_file(tmp_path: Path, site: Callable[[str], Path]) -> None:
    """As everywhere else."""
    alerts = rendered(tmp_path / "out", "--site", site("job: a\nrunbooks: https://a.test/\n"), "--job", "b")

    assert 'job="b"' in alerts["CommwatchDaemonDown"]["expr"]
    assert alerts["CommwatchDaemonDown"]["annotations"]["runbook_url"] == "https://a.test/CommwatchDaemonDown.md"


def test_changes_are_kept_over_an_upgrade(
    tmp_path: Path, site: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """New expressions and new alerts of an upgrade come with the severity and nodes of the site."""
    before = alert_rules.templates()
    after = {name: text.replace("[2m]) >= @probe_low", "[3m]) >= @probe_low") for name, text in before.items()}
    assert after != before
    monkeypatch.setattr(alert_rules, "templates", lambda: after)

    own = site("alerts:\n  CommwatchProbeBandwidthLow: {severity: critical, nodes: 'rack=\"r1\"'}\n")
    rule = rendered(tmp_path / "out", "--site", own)["CommwatchProbeBandwidthLow"]

    assert "[3m]) >= 3" in rule["expr"]
    assert 'up{job="commwatch", rack="r1"}' in rule["expr"]
    assert (rule["labels"]["severity"], rule["keep_firing_for"]) == ("critical", "10m")


def test_a_file_without_changes_keeps_its_text(tmp_path: Path, site: Callable[[str], Path]) -> None:
    """Comments and layout go only where an alert is changed."""
    rendered(tmp_path / "out", "--site", site("alerts:\n  CommwatchNvlinkDown: {severity: info}\n"))

    assert (tmp_path / "out/probe.yaml").read_text() == Path(asset("alerts/rules/probe.yaml")).read_text()


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("\njobs: a\n", 2, "jobs", "unknown key; did you mean job"),
        ("job: 3\n", 1, "job", "expected text; got a whole number"),
        ("job: 'a\"b'\n", 1, "job", "name of one job"),
        ("set: most\n", 1, "set", "possible: core, extended"),
        ("matchers: cluster=a\n", 1, "matchers", "expected matchers such as"),
        ("matchers: ''\n", 1, "matchers", "expected text"),
        ("job: a\njob: b\n", 2, "job", "already set in line 1"),
        ("alerts:\n", 1, "alerts", "expected settings as KEY: VALUE"),
        ("alerts:\n  CommwatchNvlinkDwn: {severity: info}\n", 2, "alerts.CommwatchNvlinkDwn", "did you mean"),
        ("alerts:\n  Down: {severity: info}\n", 2, "alerts.Down", "docs/reference/alerts.md has them all"),
        ("alerts:\n  CommwatchNvlinkDown: info\n", 2, "alerts.CommwatchNvlinkDown", "expected settings as"),
        ("alerts:\n  CommwatchNvlinkDown:\n    level: info\n", 3, "alerts.CommwatchNvlinkDown.level", "unknown key"),
        ("alerts:\n  CommwatchNvlinkDown:\n    severity: page\n", 3, "alerts.CommwatchNvlinkDown.severity", "critical"),
        ("alerts:\n  CommwatchNvlinkDown:\n    nodes: rack\n", 3, "alerts.CommwatchNvlinkDown.nodes", "matchers"),
        ("alerts:\n  CommwatchDaemonAbsent:\n    nodes: a=\"b\"\n", 3, "alerts.CommwatchDaemonAbsent.nodes", "node"),
        ("alerts:\n  CommwatchFaultOnManyNodes:\n    nodes: a=\"b\"\n", 3, "alerts.CommwatchFaultOnManyNodes.nodes",
         "node"),
        ("- a\n", 1, "", "expected settings"),
    ],
)  # fmt: skip
def test_a_wrong_site_file_is_refused(
    tmp_path: Path, site: Callable[[str], Path], capsys: pytest.CaptureFixture[str], text: str, line: int, key: str,
    problem: str,
) -> None:  # fmt: skip
    """One line on standard error that names file, line and key, and exit code 2."""
    path = site(text)

    assert main(["rules", "--site", str(path), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"{path}:{line}: {key}{': ' if key else ''}" in said
    assert problem in said
    assert said.count("\n") == 1


def test_the_shipped_rules_are_not_changed_for_a_site(site: Callable[[str], Path]) -> None:
    """A site's rules go to a folder of its own, where no upgrade replaces them."""
    before = shipped_groups()
    assert main(["rules", "--site", str(site("job: a\n"))]) == 0
    assert shipped_groups() == before
