"""commwatch diagnose with a real daemon and real rank processes over a simulated node."""

from __future__ import annotations

import tarfile
from html import unescape
from pathlib import Path

import msgspec

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.document import Diagnosis
from commwatch.findings.finding import Cause, Finding
from support.daemon import command, running

CONFIG = """
probes:
  start_delay: 1h
  definitions:
    pairs: {interval: 15m}
    all_reduce: null
    all_gather: null
    reduce_scatter: null
    broadcast: null
    all_to_all: null
    host_copies: null
    scaling: null
"""
SLOW_SWITCH = "- {fault: slow_switch, device: 0000:21:00.0, bandwidth: 0.4, traffic: peer, at: 0s}\n"
PAIRS = "bandwidth of pairs, 16 MiB"


def checks_of(document: Diagnosis, branch: str) -> dict[str, Check]:
    """The checks of a branch by what they are of."""
    return {check.what: check for check in document.checks if check.branch == branch}


def told_of(document: Diagnosis) -> list[Finding | Cause]:
    """All findings, and their causes."""
    causes = [cause for finding in document.findings for cause in finding.causes]
    return [*document.findings, *causes]


def test_a_full_scan_measures_and_finds_what_the_daemon_did_not_know(tmp_path: Path) -> None:
    """Quick, it asks to measure and recommends no GPUs; full, the pair under one switch, three times in a row.

    Nothing of it is added to what the daemon knows.
    """
    faults, config = tmp_path / "faults.yaml", tmp_path / "commwatch.yaml"
    faults.write_text(SLOW_SWITCH)
    config.write_text(CONFIG)
    node = ("--simulate", "rtx3090x4", "--simulate.faults", str(faults), "--config.file", str(config))
    with running(tmp_path, *node) as daemon:
        own = (*node, "--path.state", str(daemon.state))

        report, bundle = tmp_path / "node.html", tmp_path / "node.tar.gz"
        files = ("--report", str(report), "--bundle", str(bundle))
        quick = msgspec.json.decode(command("diagnose", "--json", *files, *own).stdout, type=Diagnosis)

        assert quick.verdict.line in unescape(report.read_text())
        with tarfile.open(bundle) as archive:
            assert {"MANIFEST.json", "topology.txt"} < {name.rpartition("/")[2] for name in archive.getnames()}
        assert quick.scan == "quick"
        [pairs] = checks_of(quick, "pattern").values()
        assert (pairs.verdict, pairs.next_step) == ("not measured", "commwatch diagnose --full-scan measures it.")
        assert not any("CUDA_VISIBLE_DEVICES" in check.detail + check.next_step for check in quick.checks)
        assert checks_of(quick, "stress") == {}

        said = command("diagnose", "--full-scan", "--gpus", "0,1,2", "--json", *own, timeout=150)
        full = msgspec.json.decode(said.stdout, type=Diagnosis)

        assert (said.returncode, full.scan, full.verdict.word) == (1, "full", "Warning")
        assert "pairs again: done" in said.stderr
        pairs = checks_of(full, "pattern")[PAIRS]
        assert (pairs.verdict, pairs.where) == ("failed", "GPU0-GPU1")
        told = [(one.code, one.component.name, one.detail) for one in told_of(full)]
        assert ("pair_nearer_slower", "GPU0-GPU1", "Seen by this scan, 3 times in a row.") in told
        assert full.matrix is not None
        assert [end.label for end in full.matrix.endpoints] == ["0", "1", "2"]
        # The daemon saves every minute what it knows: nothing.
        kept = [msgspec.json.decode(file.read_bytes()) for file in daemon.state.glob("*/probe-*.json")]
        assert not any(one["last"] or one["matrices"] for one in kept)


def test_without_a_daemon_the_node_is_read_measured_and_judged(tmp_path: Path) -> None:
    """The same fault as one screen, with a line for each probe, and as a score; no record is kept."""
    faults, config, state = tmp_path / "faults.yaml", tmp_path / "commwatch.yaml", tmp_path / "state"
    faults.write_text(SLOW_SWITCH)
    config.write_text(CONFIG)
    node = ("--simulate", "rtx3090x4", "--simulate.faults", str(faults), "--config.file", str(config))
    own = (*node, "--path.state", str(state))

    scan = command("diagnose", "--full-scan", *own, timeout=300)
    score = command("score", *own, timeout=300)

    lines = scan.stdout.splitlines()
    assert scan.returncode == 1
    assert score.returncode in (0, 1)
    assert lines[1].startswith("Warning: Slow pairs point at a part: 0000:21:00.0")
    assert len(lines) <= 24
    assert [line.partition(":")[0] for line in scan.stderr.splitlines()] == [
        "No daemon runs here", "pairs", "pairs again", "pairs again",
    ]  # fmt: skip
    assert "Communication score: 0." in score.stdout
    assert "balance" in score.stdout
    assert not list(state.rglob("*.json"))
