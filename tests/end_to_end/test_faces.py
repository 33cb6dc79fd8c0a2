"""One fault, one name and one word: findings, page, top, diagnosis and healthcheck say the same of the same part."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest

from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Component, Evidence, Finding
from commwatch.findings.verdict import Word
from commwatch.service.page import describe
from commwatch.views.node_page.page import render_node_page
from commwatch_exporters.node.model import Node
from commwatch_exporters.state_words import GPU_STATES
from support.dashboards import models
from support.drill_faces import DRILLS, codes_of, faces_agree, played
from support.findings import finding as finding_of
from support.html_pages import Page, check
from support.simulated_daemon import SimulatedDaemon, rehearsed

KNOWN = 2
"""Minutes after which each part has been read; the fault begins then."""
SEEN = 5
"""Minutes after which it is a finding."""

NVLINK_DOWN = "fault: nvlink_down, gpu: 6, link: 3"


@contextmanager
def struck(
    fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch, preset: str = "a100x4"
) -> Iterator[SimulatedDaemon]:
    """A node a few minutes after a fault began."""
    with rehearsed(preset, folder, monkeypatch, f"- {{{fault}, at: {KNOWN}m}}\n") as daemon:
        daemon.until(SEEN)
        yield daemon


def found(daemon: SimulatedDaemon, code: str) -> Finding:
    [finding] = [one for one in daemon.verdict.findings if one.code == code]
    return finding


def told_by(daemon: SimulatedDaemon) -> FindingsDocument:
    """What /api/v1/findings gives."""
    return daemon.verdict.document(
        {"version": "1.2.3", "time": time.time(), "simulated": None, "maintenance": daemon.engine.store.maintenance}
    )


def page_of(daemon: SimulatedDaemon) -> Page:
    snapshot = daemon.snapshot()
    return check(render_node_page(Node(snapshot), describe(daemon.answers, snapshot), "/metrics"))


def printed(daemon: SimulatedDaemon, *arguments: str) -> str:
    """What a command prints, in one line."""
    return " ".join(daemon.command(*arguments)[1].split())


def one_verdict(daemon: SimulatedDaemon, word: Word, named: str = "") -> str:
    """The line of the verdict, which all faces say after this word; a diagnosis that is OK counts its checks.

    Args:
        daemon: that they ask.
        word: of the verdict.
        named: what those that list findings name besides.
    """
    verdict = told_by(daemon).verdict
    assert verdict is not None
    assert verdict.word == word
    page = page_of(daemon).texts
    assert page.index(word) < page.index(verdict.line)
    for face in ("top --once", "diagnose", "score", "healthcheck"):
        text = " ".join(daemon.command(*face.split(), simulated=False)[1].split())
        line = "" if (face, word) == ("diagnose", "OK") else verdict.line
        assert f"{word}: {line}" in text, face
        assert face == "score" or named in text, face
        others = [other for other in get_args(Word) if other != word and f"{other}: " in text]
        assert others == [], face
    return verdict.line


OF_EACH_FAMILY = (
    "nvlink_down_gpu_to_gpu", "pcie_width_without_nvlink", "gpu_reset_required", "driver_calls_fail",
    "slow_probe_bandwidth", "slow_pair", "ethernet_down", "rdma_symbol_errors", "nccl_setting",
    "narrow_slot_beside_slow_probe", "first_day_pcie_width",
)  # fmt: skip
"""Of the catalogue; the others: ``make proof``."""


@pytest.mark.parametrize("name", OF_EACH_FAMILY)
def test_all_faces_say_the_same_of_a_drill(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part, severity and words of each finding, and the verdict: API, page, top, diagnosis and healthcheck."""
    with played(DRILLS[name], tmp_path, monkeypatch) as daemon:
        assert set(DRILLS[name].codes) <= codes_of(daemon)
        faces_agree(daemon)


def test_a_node_of_which_nothing_is_read_is_unknown_and_then_critical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls on all GPUs fail: no face says OK after 30 s, and all name the driver after 90 s."""
    faults = "".join(f"- {{fault: gpu_calls_fail, gpu: {gpu}, at: {KNOWN}m}}\n" for gpu in range(4))
    with rehearsed("a100x4", tmp_path, monkeypatch, faults) as daemon:
        daemon.until(KNOWN - 0.5)
        daemon.until(KNOWN + 0.5, step=5.0)
        unknown = one_verdict(daemon, "Unknown")
        daemon.until(KNOWN + 1.5, step=5.0)
        critical = one_verdict(daemon, "Critical")

    assert unknown.startswith("nvml gave no reading for ")
    assert "Unknown Error (NVML code 999)" in unknown
    assert critical == "Every call to the NVIDIA driver fails: NVIDIA driver"


@pytest.mark.parametrize(
    ("fault", "at", "expected"),
    [
        ("gpu_calls_fail, gpu: 3", 1.0, "GPU does not answer: GPU3 (0000:c1:00.0)"),
        ("gpu_calls_fail, gpu: 3", 0.0, "GPU does not answer: GPU3 (0000:c1:00.0)"),
        ("gpu_calls_fail, gpu: 3, error: no_permission", 1.0, None),
        ("gpu_calls_fail, gpu: 3, share: 0.125", 1.0, None),
    ],
)
def test_a_gpu_that_fails_every_call_does_not_answer_for_any_face(
    fault: str, at: float, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its address within 25 s, for Slurm a drain, and until the fault ends; not where a part of the calls fails."""
    faults = f"- {{fault: {fault}, at: {at}m, for: 60s}}\n"
    with rehearsed("a100x4", tmp_path, monkeypatch, faults) as daemon:
        daemon.until(max(0.0, at - 0.1))
        daemon.until(at + 25 / 60, step=5.0)
        found_now = [one.component.words for one in daemon.verdict.findings if one.code == "gpu_not_answering"]
        if expected is None:
            assert found_now == []
            return
        line = one_verdict(daemon, "Critical")
        code, _ = daemon.command("healthcheck", "--slurm", simulated=False)
        daemon.until(at + 2.2, step=10.0)
        left = [one.code for one in daemon.verdict.findings if one.severity != "info"]

    assert line == expected
    assert code == 1
    assert left == []


def test_a_gpu_that_did_not_start_is_named_by_all_faces_from_the_first_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its address within a minute, with the reason of the kernel log; one that vfio-pci holds is none."""
    with rehearsed("h100x8ndr", tmp_path, monkeypatch, "- {fault: gpu_not_started, gpu: 2, at: 0s}\n") as daemon:
        daemon.until(1.0, step=10.0)
        line = one_verdict(daemon, "Critical")
        evidence = [(fact.what, fact.value) for fact in found(daemon, "gpu_not_listed").evidence]

    assert line == "GPU is not listed by the driver: 0000:3a:00.0"
    assert ("kernel log since the boot", "RmInitAdapter failed (0x24:0x72:1568)") in evidence


def test_all_faces_say_one_verdict_on_a_slow_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a third of the bandwidth from its first day: a warning after three results, and a score that needs work."""
    with rehearsed(
        "h100x8ndr", tmp_path, monkeypatch, "- {fault: slow_switch, nvswitch: 0, bandwidth: 0.33, at: 0s}\n"
    ) as daemon:
        daemon.until(KNOWN)
        for _ in range(3):
            daemon.probe("all_reduce")
            daemon.until(daemon.time / 60 + 1)
        line = one_verdict(daemon, "Warning")
        score = printed(daemon, "score")

    assert line.startswith("Bandwidth is far below what is expected: probe all_reduce")
    assert "needs work" in score


def test_all_faces_say_one_verdict_in_every_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Healthy, paused, with rules that have not run for long; a fault that was open before is still named."""
    with struck(NVLINK_DOWN, tmp_path, monkeypatch, "h100x8ndr") as daemon:
        findings, daemon.verdict.findings = daemon.verdict.findings, []
        assert one_verdict(daemon, "OK") == "no warning or critical finding"
        daemon.engine.store.maintenance = "upgrade"
        assert one_verdict(daemon, "Unknown") == "the daemon is paused (upgrade)"
        daemon.verdict.findings = findings
        assert "(upgrade); before: NVLink is down" in one_verdict(daemon, "Unknown")
        daemon.engine.store.maintenance = None
        daemon.verdict.looked_at = time.time() - 90
        assert one_verdict(daemon, "Unknown").startswith("the daemon's last look is 90 s old, more than 60 s")
        daemon.verdict.looked_at = None
        assert "has not looked at the node yet" in one_verdict(daemon, "Unknown")


def test_a_critical_finding_caps_the_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One link of 144: the parts lose little, and the score is below good, for the same cause as the verdict."""
    with rehearsed("h100x8ndr", tmp_path, monkeypatch, f"- {{{NVLINK_DOWN}, at: {KNOWN}m}}\n") as daemon:
        daemon.until(KNOWN - 1)
        daemon.probe()
        before = daemon.verdict.score()
        daemon.until(SEEN)
        after, line = daemon.verdict.score(), one_verdict(daemon, "Critical")

    assert before.word == "excellent"
    assert (after.word, after.losses[0].part) == ("needs work", "cap")
    assert line.startswith(f"NVLink is down: {after.losses[0].subject}")


PARTS = (
    Component("gpu", "0000:17:00.0", "GPU0", frozenset({"0000:17:00.0"})),
    Component("nvlink", "0000:17:00.0/3", "GPU0 link 3", frozenset({"0000:17:00.0"})),
    Component("pcie_link", "0000:3b:00.0", "PCIe link of GPU3", frozenset({"0000:3b:00.0"})),
    Component("rdma_port", "mlx5_2/1", "mlx5_2 port 1", frozenset({"mlx5_2/1"})),
    Component("interface", "ens11f0np0", "ens11f0np0", frozenset({"ens11f0np0"})),
    Component("probe", "all_reduce", "probe all_reduce"),
    Component("daemon", "nvml_gpu", "collector nvml_gpu"),
)


def test_all_faces_name_every_finding_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each code at some part: top and diagnosis of all at once, page and healthcheck of each alone."""
    findings = [
        finding_of(code, PARTS[place % len(PARTS)], 0.0, (Evidence("seen", 1),)) for place, code in enumerate(CODES)
    ]
    with rehearsed("h200x1", tmp_path, monkeypatch) as daemon:
        daemon.until(1)
        daemon.verdict.findings = findings
        faces = {face: printed(daemon, *face.split()) for face in ("top --once", "diagnose --all")}
        for finding in findings:
            title, part = CODES[finding.code].title, finding.component.words
            daemon.verdict.findings = [finding]
            page = " ".join(" ".join(page_of(daemon).texts).split())
            verdict = told_by(daemon).verdict

            assert verdict is not None
            assert title in page, finding.code
            assert part in page, finding.code
            assert finding.severity == "info" or f"{title}: {part}" in verdict.line, finding.code
            for face, text in faces.items():
                assert f"{title}: {part}" in text, f"{face}: {finding.code}"


@pytest.mark.parametrize(("fault", "state"), [("gpu_lost", 2), ("gpu_reset_required", 3), ("gpu_missing", 4)])
def test_the_state_of_a_gpu_is_one_word(
    fault: str, state: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the evidence, the page's table, the line of top, the check of the diagnosis, and the dashboards."""
    word = GPU_STATES[state]
    with struck(f"fault: {fault}, gpu: 2", tmp_path, monkeypatch) as daemon:
        finding = found(daemon, fault)
        row = page_of(daemon).tables["GPUs"][1 + 2]
        top, diagnosis = printed(daemon, "top", "--once"), printed(daemon, "diagnose")

    assert [fact.value for fact in finding.evidence] == [word]
    assert [cell.strip() for cell in row[:2]] == ["2", word]
    # The next card has the index of one that is missing: the addresses tell them apart.
    name = f"2 {finding.component.key}" if fault == "gpu_missing" else "2"
    assert f" {name} {word} - " in top
    assert f"GPU state: {word}" in diagnosis
    assert f"{finding.component.words}: {word}" in diagnosis
    assert f'"{state}": {{"text": "{word}", "color": "red"' in json.dumps(models()["commwatch-node"])
