"""The alert rules: rendered, complete, on metrics that exist, and judged by promtool and amtool."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch.__main__ import main
from commwatch.config.assets import asset
from commwatch.config.thresholds import load_thresholds
from commwatch.generate import alert_rules
from commwatch.generate.documents import documents
from commwatch.jobs.settings.records import HARMS
from commwatch_exporters.catalogue import family_of
from support.passes import in_one_pass
from support.promtool_cases import alerts_of, document, duration_ms, judge_cases, promtool, shipped_groups
from support.promtool_situations import lacking_situations

ALERTS = asset("alerts")
RULE_FILES = sorted((ALERTS / "rules").glob("*.yaml"))
RULES: list[dict[str, Any]] = [rule for group in shipped_groups() for rule in group["rules"]]
LIST = Path(__file__).parents[2] / "docs" / "reference" / "alerts.md"
ALERT_RULES = alerts_of(shipped_groups())
ABOUT_A_NODE = alert_rules.shipped_alerts()
RECORDED_BY = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}

CASES = ("fires", "silent just below", "silent when idle", "silent on absent data", "silent on a failed scrape",
         "silent in maintenance", "resolves")  # fmt: skip
OTHER_CASES = {
    ("CommwatchDaemonAbsent", "silent on absent data"): "fires when the job has no target",
    ("CommwatchMaintenanceLong", "silent in maintenance"): "fires",
    **{("CommwatchWatchdog", case): "fires" for case in CASES},
}
"""Where an alert's own purpose is the opposite of a case, the case that stands in its place."""

OF_WHAT_IT_COUNTS = "{{ $labels.severity }}"
"""Severity of the fleet's alert: that of the alert which is on many nodes."""

SEVERITIES = {
    "critical": {
        "SourceUnread", "GpuNotListed", "GpuRecoveryNeeded", "XidFatal",
        "PartsNeverSeen", "DriverUnusable", "GpuLost", "GpuNotAnswering", "NvlinkDown", "PcieWidthDropped",
        "DaemonAbsent",
        "FabricUnhealthy", "FabricNotJoined", "XidFabric", "SxidFatal", "PcieFatal",
        "RdmaPortDown", "AdapterFailed", "RdmaPortFlapping",
        "ProbeWrongResult", "LeafFailing",
    },
    OF_WHAT_IT_COUNTS: {"FaultOnManyNodes", "FaultOnMoreNodes"},
    "warning": {
        "JobHung", "ProbeLatencyStreak", "ProbeBandwidthLow", "ProbeBandwidthLost", "ProbeBandwidthShort",
        "ProbeErrorRateRise", "DaemonDown", "CollectorFailing", "DataStale", "DeviceUnread",
        "TextfileStale", "GpuRecoveryOther", "GpuSlowedDown", "FabricDegraded", "FabricMisconfigured",
        "FabricServiceDown",
        "NvlinkP2pRefused", "XidGpu", "XidNonfatal", "SxidWarning", "NvlinkReduced", "NvlinkBelowSiblings",
        "C2cDown", "NvlinkRecovering", "NvlinkRecoveriesRising", "NvlinkReplays", "NvlinkPacketErrors",
        "NvlinkRemoteErrors", "NvlinkBitErrors", "PcieGenerationLow", "PcieDeviceDegraded", "PcieReplays",
        "PcieRetrained", "PcieNonfatal", "PcieCorrected", "RdmaPortMissing", "RdmaPortNotSetUp", "RdmaPortSlow",
        "AdapterTroubled",
        "RdmaErrors", "RdmaPacketsRefused", "RdmaCounterSaturated", "RdmaRetransmitting", "RdmaDropping",
        "EthernetDown", "EthernetFlapping", "EthernetSlow", "EthernetErrors", "EthernetModuleFault",
        "EthernetPauseStorm", "PortsNeverSeen", "ProbeFailing", "PartSuspect", "PairSlow", "NcclErrors",
        "AdapterWithoutDriver",
        "JobHeldUp", "JobStuck", "NcclSettingHarmful", "NcclTransportFallback", "StaticAsymmetry", "GpuBelowProduct",
        "RailSlowBetweenNodes", "NodeSlowBetweenNodes", "LeafSlow", "PeersUnreachable", "DriverOrNcclDiffers",
        "WorkerStuck", "WorkerRestarting", "ConfigReloadFailing", "RuleFailing",
        "InventoryBelowPeers", "ProbeBandwidthBelowPeers", "ProbeLatencyAbovePeers", "SoftwareFaultOnManyNodes",
    },
    "info": {
        "NvlinkUtilizationLow", "PcieUtilizationLow", "MaintenanceLong",
        "KernelLogLost", "AdapterNoted", "LinkFlapped", "NvlinkRecovered", "RdmaCongested", "PortAtLimit",
        "EthernetDropping", "EthernetPaused", "ProbeStep", "ProbeSwing", "ProbeDrift", "ProbeStarved",
        "ProbeBelowModel", "PairNearerSlower", "ClusterProbeStale", "ProfileDiffers",
        "ScoreLow", "ClockStepped", "SoftwareVersionsDiffer", "ThresholdsDiffer", "Watchdog",
    },
}  # fmt: skip

NO_NODE = {"CommwatchDaemonAbsent", "CommwatchSoftwareVersionsDiffer", "CommwatchWatchdog"}
"""Alerts about no node on which there could be a job."""
A_JOB_RUNS = {
    "CommwatchJobHeldUp",
    "CommwatchJobHung",
    "CommwatchJobStuck",
    "CommwatchNcclSettingHarmful",
}
"""Alerts about a job that runs: they say which it is, not whether one is there."""

YES_OR_NO = {
    "CommwatchAdapterWithoutDriver",
    "CommwatchC2cDown",
    "CommwatchCollectorFailing",
    "CommwatchConfigReloadFailing",
    "CommwatchDaemonDown",
    "CommwatchDriverUnusable",
    "CommwatchEthernetDown",
    "CommwatchFabricDegraded",
    "CommwatchGpuNotAnswering",
    "CommwatchGpuNotListed",
    "CommwatchSourceUnread",
    "CommwatchGpuSlowedDown",
    "CommwatchMaintenanceLong",
    "CommwatchPairNearerSlower",
    "CommwatchPcieDeviceDegraded",
    "CommwatchRdmaCounterSaturated",
    "CommwatchRdmaPortMissing",
    "CommwatchThresholdsDiffer",
    "CommwatchWatchdog",
}
"""Alerts on what either is or is not: a value would say nothing."""

EVENT_TICKETS = {
    "CommwatchAdapterNoted", "CommwatchAdapterTroubled", "CommwatchSxidWarning", "CommwatchXidGpu",
    "CommwatchXidNonfatal",
}  # fmt: skip
"""Tickets for what happens in a moment: they hold for as long as pages do."""

_NEW_SERIES = re.compile(
    r"(commwatch_\w+_total)\{[^}]*\} > 0\s+and on \([\w, ]+\)\s+\(\s*count_over_time\(\1\{[^}]*\}\[\w+\]\)"
    r"\s+< ignoring \([\w, ]+\) group_left \(\)\s+count_over_time\(commwatch_simulated\{[^}]*\}\[\w+\]\)\s*\)"
    r"\s+unless last_over_time\(\1\{[^}]*\}\[6h\] offset \w+\)"
)
"""A counter that was not there before its first event: it has fewer samples than the daemon, and was not known."""
_KEPT_COUNTERS = frozenset({
    "probe:commwatch_probe_attempts:last", "probe:commwatch_probe_failures:sum",
    "probe:commwatch_probe_missed_chances:sum",
})  # fmt: skip
"""Recorded series that are counters themselves: one sample a minute for long windows."""
_FEW_SERIES = frozenset({"commwatch_simulated"})
"""Read over hours although they are scraped: one series a node."""


def test_an_outdated_rule_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check fails on a changed, a missing and a superfluous file, and names each."""
    assert main(["rules", "--output", str(tmp_path)]) == 0
    (tmp_path / "node.yaml").write_text("groups: []\n", encoding="utf-8")
    (tmp_path / "probe.yaml").unlink()
    (tmp_path / "old.yaml").write_text((tmp_path / "gpu.yaml").read_text("utf-8"), encoding="utf-8")

    assert main(["rules", "--check", "--output", str(tmp_path)]) == 1

    named = re.findall(r"(\w+\.yaml) is not current", capsys.readouterr().err)
    assert named == ["node.yaml", "old.yaml", "probe.yaml"]


def test_rules_of_others_in_the_folder_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only files of this command are replaced and removed; one of others with the name of ours is an error."""
    others = {name: tmp_path / name for name in ("site.yaml", "gpu.yaml")}
    others["site.yaml"].write_text("groups: []\n", encoding="utf-8")
    (tmp_path / "old.yaml").write_text("# Rendered by `commwatch rules` of an older version\n", encoding="utf-8")

    assert main(["rules", "--output", str(tmp_path)]) == 0
    assert others["site.yaml"].read_text(encoding="utf-8") == "groups: []\n"
    assert not (tmp_path / "old.yaml").exists()

    others["gpu.yaml"].write_text("", encoding="utf-8")  # the disk was full
    assert main(["rules", "--output", str(tmp_path)]) == 0
    assert others["gpu.yaml"].read_text(encoding="utf-8")

    others["gpu.yaml"].write_text("groups: []\n", encoding="utf-8")
    assert main(["rules", "--output", str(tmp_path)]) == 2
    assert others["gpu.yaml"].read_text(encoding="utf-8") == "groups: []\n"
    assert "gpu.yaml is not from this command" in capsys.readouterr().err


def test_own_thresholds_job_and_addresses_reach_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's threshold, job and addresses stand in the rendered expressions and annotations."""
    own = tmp_path / "own.yaml"
    own.write_text("probe_low_bandwidth_streak: {value: 5}\n", encoding="utf-8")

    code = main([
        "rules",
        "--thresholds", str(own), "--output", str(tmp_path / "out"),
        "--job", "fabric", "--runbook-url", "https://wiki.test/", "--dashboards", "https://panels.test",
    ])  # fmt: skip

    text = (tmp_path / "out" / "probe.yaml").read_text(encoding="utf-8")
    assert code == 0
    assert 'last_over_time(commwatch_probe_low_bandwidth_streak{job="fabric"}[2m]) >= 5' in text
    assert "https://wiki.test/CommwatchProbeBandwidthLow.md" in text
    assert "https://panels.test/d/" in text
    assert 'job="commwatch"' not in text
    assert capsys.readouterr().err == ""


def test_links_that_nobody_can_open_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped addresses are those of this machine; the line names the options that set others."""
    assert main(["rules", "--output", str(tmp_path), "--dashboards", "https://panels.test"]) == 0

    (line,) = capsys.readouterr().err.splitlines()
    assert "localhost" in line
    assert "--runbook-url" in line
    assert "--dashboards" not in line


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("instance", "link"),
    [
        ("node7:28029", "http://node7:28029/runbooks/CommwatchNvlinkDown.md"),
        ("node7:9999", "http://node7:9999/runbooks/CommwatchNvlinkDown.md"),
        ("node7.example", "http://node7.example:28029/runbooks/CommwatchNvlinkDown.md"),
        ("10.0.0.7", "http://10.0.0.7:28029/runbooks/CommwatchNvlinkDown.md"),
        ("[fd00::7]:28029", "http://[fd00::7]:28029/runbooks/CommwatchNvlinkDown.md"),
    ],
)
def test_the_link_to_a_runbook_has_a_port(tmp_path: Path, instance: str, link: str) -> None:
    """That of the label ``instance``; of a name alone, which relabelling gives, that of the daemon's default."""
    annotations = {"runbook_url": ALERT_RULES["CommwatchNvlinkDown"]["annotations"]["runbook_url"]}
    rule = {"alert": "A", "expr": "up", "annotations": annotations}
    rules, case = tmp_path / "rules.json", tmp_path / "case.json"
    rules.write_text(json.dumps({"groups": [{"name": "g", "rules": [rule]}]}), encoding="utf-8")
    expected = {"exp_labels": {"instance": instance}, "exp_annotations": {"runbook_url": link}}
    test = {
        "input_series": [{"series": f'up{{instance="{instance}"}}', "values": "1"}],
        "alert_rule_test": [{"eval_time": "0", "alertname": "A", "exp_alerts": [expected]}],
    }
    case.write_text(json.dumps({"rule_files": [str(rules)], "tests": [test]}), encoding="utf-8")

    result = promtool("test", "rules", case)

    assert result.returncode == 0, result.stdout


def test_bad_thresholds_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong thresholds file and a duration that rules cannot hold are errors, not tracebacks."""
    own = tmp_path / "own.yaml"
    for text, problem in (("nothing: {value: 1}\n", "own.yaml:1"), ("data_stale_seconds: {value: 1.5}\n", "")):
        own.write_text(text, encoding="utf-8")
        code = main(["rules", "--thresholds", str(own), "--output", str(tmp_path / "out")])
        assert code == (2 if problem else 0)
        assert problem in capsys.readouterr().err
    own.write_text("daemon_down_for_seconds: {value: 1.5}\n", encoding="utf-8")

    assert main(["rules", "--thresholds", str(own), "--output", str(tmp_path / "out")]) == 2
    assert "whole seconds" in capsys.readouterr().err


def test_an_unknown_placeholder_is_an_error() -> None:
    """A template cannot name a threshold that does not exist."""
    with pytest.raises(KeyError, match="no_such"):
        alert_rules.render("expr: x > @no_such@", load_thresholds(None), alert_rules.Site())


def test_a_page_has_words_for_each_setting_that_can_be_harmful() -> None:
    """Those that the page about NCCL's settings lists as harmful, and no others."""
    listed = re.findall(r"^- `(\w+)` \([^)]*harmful", asset("docs/using/nccl-settings.md").read_text(), re.MULTILINE)

    assert set(listed) == HARMS.keys()


@in_one_pass("seconds, text", [(15, "15s"), (90, "90s"), (120, "2m"), (3600, "1h"), (7200, "2h"), (604800, "7d")])
def test_durations_are_exact(seconds: float, text: str) -> None:
    """A duration is written in the largest unit that divides it."""
    assert alert_rules.format_duration(seconds) == text


def test_severities_are_the_agreed_ones() -> None:
    """Who is woken by what is decided on purpose."""
    found = {severity: set[str]() for severity in SEVERITIES}
    for name, rule in ALERT_RULES.items():
        found[rule["labels"]["severity"]].add(name.removeprefix("Commwatch"))

    assert found == SEVERITIES


@in_one_pass("name", ALERT_RULES)
def test_an_alert_is_complete(name: str) -> None:
    """Name, labels and annotations are all there, and no label holds a value."""
    rule = ALERT_RULES[name]
    labels, annotations = rule["labels"], rule["annotations"]

    assert name.startswith("Commwatch")
    about_node = ABOUT_A_NODE[name]
    assert labels == {key: labels.get(key) for key in ("severity", "class")} | ({"fault": name} if about_node else {})
    assert labels["class"] in {"A", "B", "C", "D"}
    assert "{{" not in "".join(labels.values()).replace(OF_WHAT_IT_COUNTS, "")
    assert annotations.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
    assert annotations["runbook_url"].endswith(f"/{name}.md")
    assert "First action: " in annotations["description"]
    assert ("$value" in annotations["description"]) == (name not in YES_OR_NO)
    assert ("commwatch_gpu_busy" in annotations["description"]) == (name not in NO_NODE | A_JOB_RUNS)
    assert ("Which job it is" in annotations["description"]) == (name in A_JOB_RUNS)
    # The alerts that the fleet's page counts hold on their own.
    is_held = labels["severity"] == "critical" and name != "CommwatchFaultOnManyNodes"
    assert ("keep_firing_for" in rule) == (is_held or name in EVENT_TICKETS)


@in_one_pass("name", ALERT_RULES)
def test_an_alert_has_its_runbook(name: str) -> None:
    """Each alert has a page with the same five parts, and the documentation lists it."""
    page = (ALERTS / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
    table = LIST.read_text(encoding="utf-8")

    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [
        "Meaning", "Impact", "Diagnosis", "Mitigation", "When to call the vendor",
    ]  # fmt: skip
    assert f"[{name}](../../alerts/runbooks/{name}.md)" in table


def test_a_threshold_of_a_recorded_series_is_listed() -> None:
    """With the value in force, beside those of the alert itself."""
    changed = replace(load_thresholds(None), peer_nodes_min=12)
    (row,) = [
        line
        for line in documents(LIST.parents[2], changed)[LIST].splitlines()
        if "[CommwatchInventoryBelowPeers]" in line
    ]

    assert "`peer_nodes_min` 12" in row
    assert "`peer_fewest_ratio` 0.1" in row


def test_no_runbook_is_left_over() -> None:
    """Runbooks and tests exist for alerts that exist."""
    assert {path.stem for path in (ALERTS / "runbooks").glob("*.md")} == set(ALERT_RULES)
    assert {path.stem for path in (ALERTS / "tests").glob("*.yaml")} == set(ALERT_RULES)


@in_one_pass("name", ALERT_RULES)
def test_an_alert_has_been_tried_in_every_case(name: str) -> None:
    """The promtool tests of each alert hold the cases that make it trustworthy, and each asserts something."""
    tests = document(ALERTS / "tests" / f"{name}.yaml")["tests"]
    for expected in (one for test in tests for check in test.get("alert_rule_test", ()) for one in check["exp_alerts"]):
        has_fault = ABOUT_A_NODE[name] <= (expected["exp_labels"].get("fault") == name)
        assert has_fault, f"the alert of alerts/tests/{name}.yaml has another label `fault`"
    cases = [test["name"].removeprefix(f"{name}: ") for test in tests]
    if cases == [name]:
        assert lacking_situations(tests[0]) == []
        return

    lacking = [case for case in CASES if not any(one.startswith(OTHER_CASES.get((name, case), case)) for one in cases)]

    assert lacking == []
    for test, case in zip(tests, cases, strict=True):
        checks = test.get("alert_rule_test", []) + test.get("promql_expr_test", [])
        fired = [bool(check.get("exp_alerts") or check.get("exp_samples")) for check in checks]
        assert fired
        assert any(fired) != case.startswith("silent"), case


def _metrics_read(expression: str) -> set[str]:
    """Metrics in an expression and in the recorded series that it uses, some of which read themselves."""
    read = [expression]
    names: set[str] = set()
    for one in read:
        more = set(re.findall(r"\b[a-z_]+:\w+:\w+\b", one)) - names
        names |= more
        read += [RECORDED_BY[name] for name in more]
    return {metric for one in read for metric in re.findall(r"(?<![:\w])commwatch_\w+(?![:\w])", one)}


@in_one_pass("name", ALERT_RULES)
def test_the_cases_of_an_alert_leave_out_no_metric(name: str) -> None:
    """Whatever an expression reads is in its cases, so that none of its parts is wrong unseen; simulated nodes too."""
    tests = document(ALERTS / "tests" / f"{name}.yaml")["tests"]
    series = {one["series"].partition("{")[0] for test in tests for one in test.get("input_series", ())}

    assert _metrics_read(ALERT_RULES[name]["expr"]) <= series
    assert ('"simulated": "true"' in json.dumps(tests) or 'simulated=\\"true\\"' in json.dumps(tests)) != (
        name == "CommwatchWatchdog"
    )


def test_rules_use_metrics_of_the_catalogue() -> None:
    """Each name in an expression or a query of an annotation is a metric, a recorded series, or up."""
    for rule in RULES:
        text = " ".join([rule["expr"], *rule.get("annotations", {}).values()])
        text = re.sub(r"https?://\S+", "", text)
        recorded = set(re.findall(r"\b[a-z_]+:\w+:\w+\b", text))
        metrics = set(re.findall(r"(?<![:\w])commwatch_\w+(?![:\w])", text))

        assert recorded <= RECORDED_BY.keys()
        for metric in metrics:
            family_of(metric)


def test_no_counter_is_compared_as_a_level() -> None:
    """A counter, and a series that keeps one, stands only inside increase() or rate(), or where a series is new."""
    counter = re.compile(r"(\w*\(?)(commwatch_\w+_total|" + "|".join(sorted(_KEPT_COUNTERS)) + r")\b")
    for rule in RULES:
        if rule.get("record") not in _KEPT_COUNTERS:
            for before, metric in counter.findall(_NEW_SERIES.sub("", rule["expr"])):
                assert before in {"increase(", "rate("}, metric


def test_windows_of_hours_lie_over_recorded_series() -> None:
    """Each sample of a window costs at each evaluation: 6 h of scrapes are 1,440 for each series of each node.

    Not meant are series that begin with an event: a healthy node has none.
    """
    for rule in RULES:
        text = _NEW_SERIES.sub("", rule["expr"])
        for metric, window in re.findall(r"(?<![:\w])(commwatch_\w+)\{[^}]*\}\[(\w+)\]", text):
            assert duration_ms(window) <= 3_600_000 or metric in _FEW_SERIES, rule["expr"]


@pytest.mark.prometheus
def test_promtool_accepts_the_rules() -> None:
    result = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES)

    assert result.returncode == 0, result.stdout


@pytest.mark.prometheus
def test_each_alert_behaves(tmp_path: Path) -> None:
    """Each fires on its fault with its exact words, stays silent otherwise, and resolves."""
    verdicts = judge_cases(sorted((ALERTS / "tests").glob("*.yaml")), tmp_path)

    assert verdicts.keys() == ALERT_RULES.keys()
    assert {name: said for name, said in verdicts.items() if said} == {}


def test_a_title_is_short() -> None:
    """The summary of an alert, which is the title of its page, has at most 80 characters with its part in it."""
    titles = {
        expected["exp_annotations"]["summary"]
        for file in (ALERTS / "tests").glob("*.yaml")
        for test in document(file)["tests"]
        for question in test.get("alert_rule_test", ())
        for expected in question["exp_alerts"]
    }

    assert len(titles) >= len(ALERT_RULES)
    assert {title for title in titles if len(title) > 80} == set()


@pytest.mark.prometheus
def test_the_prometheus_example_is_valid() -> None:
    """promtool accepts the example, its rule files included."""
    result = promtool("check", "config", ALERTS / "prometheus.example.yml")

    assert result.returncode == 0, result.stdout
    assert f"{len(RULE_FILES)} rule files found" in result.stdout


@pytest.mark.prometheus
@pytest.mark.parametrize("operator", [False, True])
def test_all_rules_as_one_document(operator: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a folder they are printed: for Prometheus, or as the object that its operator selects by labels."""
    assert main(["rules", *(["--operator", "release=kube-prometheus-stack"] if operator else [])]) == 0

    printed = yaml.load(capsys.readouterr().out, yaml.CSafeLoader)
    if operator:
        assert (printed["kind"], printed["metadata"]["labels"]) == (
            "PrometheusRule",
            {"release": "kube-prometheus-stack"},
        )
    groups = printed["spec"]["groups"] if operator else printed["groups"]
    by_name = {group["name"]: group for group in groups}
    assert by_name == {group["name"]: group for group in shipped_groups()}
    assert len(by_name) == len(groups)
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": groups}), encoding="utf-8")
    assert promtool("check", "rules", file).returncode == 0


@pytest.mark.parametrize(
    "arguments", [["--check"], ["--operator", "release"], ["--operator", "a=b", "--output", "new"]]
)
def test_rules_with_options_that_do_not_fit(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)

    assert main(["rules", *arguments]) == 2

    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines()), list(tmp_path.iterdir())) == ("", 1, [])
