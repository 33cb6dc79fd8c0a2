"""commwatch diagnose --full-scan and --stress over a rehearsed daemon: free, taken by a job, and scanned in part."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.document import Diagnosis
from support.simulated_daemon import SimulatedDaemon, rehearsed

JOB = "- {fault: job, at: 20m}\n"


def scanned(daemon: SimulatedDaemon, *options: str) -> tuple[int, Diagnosis]:
    """Exit code and answer of a full scan."""
    code, output = daemon.command("diagnose", "--full-scan", "--json", *options)
    return code, msgspec.json.decode(output, type=Diagnosis)


def only(document: Diagnosis, branch: str, what: str) -> Check:
    """The one check of a branch whose quantity begins so."""
    [check] = [one for one in document.checks if one.branch == branch and one.what.startswith(what)]
    return check


def test_a_scan_of_a_free_node_and_of_one_with_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free, all is measured, some GPUs or all, and load too; with a job nothing is, and each row says why."""
    with rehearsed("rtx3090x4", tmp_path, monkeypatch, JOB) as daemon:
        daemon.until(12, step=120.0)
        code, free = scanned(daemon, "--stress", "30s")
        _, part = scanned(daemon, "--gpus", "0,1")
        daemon.until(21, step=120.0)
        _, taken = scanned(daemon, "--stress", "30s")

    assert (code, free.verdict.word) == (0, "OK")
    assert only(free, "pattern", "bandwidth of pairs").verdict == "passed"
    load = only(free, "stress", "all_reduce bus bandwidth under load, 256 MiB, 30 s")
    assert (load.verdict, "(100 %)" in load.measured) == ("passed", True)
    assert only(free, "stress", "errors of the links under load").verdict == "passed"

    assert part.matrix is not None
    assert [end.label for end in part.matrix.endpoints] == ["0", "1"]
    assert only(part, "stress", "bandwidth under sustained load").verdict == "not measured"

    skipped = only(taken, "pattern", "fresh probe")
    assert (skipped.verdict, skipped.detail.startswith("Skipped: gpu_busy: ")) == ("not measured", True)
    assert {"all_reduce", "pairs", "host_copies"} < set(skipped.where.split(", "))
    assert only(taken, "pattern", "bandwidth of pairs").verdict == "not measured"
    load = only(taken, "stress", "bandwidth under load")
    assert (load.verdict, load.detail.startswith("Skipped: gpu_busy: ")) == ("not measured", True)


@pytest.mark.parametrize("preset", ["h100x8ndr", "a100x4", "a10x2", "h200x1"])
def test_a_healthy_node_fails_nothing(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no branch, over NVLink by switches and directly, over the CPU, and alone."""
    with rehearsed(preset, tmp_path, monkeypatch) as daemon:
        daemon.until(12, step=120.0)
        code, document = scanned(daemon, "--stress", "30s")

    assert [check for check in document.checks if check.verdict == "failed"] == []
    assert (code, document.verdict.word) == (0, "OK")
    alone = only(document, "stress", "bandwidth under load" if preset == "h200x1" else "all_reduce").verdict
    assert alone == ("does not apply" if preset == "h200x1" else "passed")
