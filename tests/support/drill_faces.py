"""Plays a drill of the catalogue on a simulated node at stepped time, and asks every face what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from commwatch.diagnosis.document import Diagnosis
from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Cause, Finding
from commwatch.service.page import describe
from commwatch.views.node_page.page import render_node_page
from commwatch_exporters.node.model import Node
from commwatch_rehearsal.drill.catalogue import load_drills
from commwatch_rehearsal.drill.drill import Drill
from support.html_pages import check
from support.simulated_daemon import SimulatedDaemon, rehearsed

KNOWN = 120.0
"""Seconds after which each part has been read; a fault that is not of the first day begins then."""
_TAKES_PROCESSES = frozenset({"driver_hang", "rank_crash", "driver_unusable"})
"""Faults that take readers or ranks in processes of their own."""
_LEFT_OUT = frozenset({"nvlink_flaps"})
"""What is counted at 1 Hz alone."""

DRILLS = {
    drill.name: drill
    for drill in load_drills().values()
    if drill.codes
    and drill.nodes == 1
    and not (drill.stopped or drill.between_nodes or drill.checked or drill.log)
    and not _TAKES_PROCESSES & {one["fault"] for one in drill.faults}
    and drill.name not in _LEFT_OUT
}
"""The drills of which the daemon of one node has a finding, by name."""


@contextmanager
def played(drill: Drill, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDaemon]:
    """A node on which the findings of a drill are open, or the time is over that the drill allows."""
    begins = 0.0 if drill.first_day else max(KNOWN, drill.settles)
    faults = [*((one, begins) for one in drill.faults), *((one, 0.0) for one in drill.under)]
    text = "".join(
        "- {" + ", ".join(f"{key}: '{value}'" for key, value in (entry | {"at": f"{at}s"}).items()) + "}\n"
        for entry, at in faults
    )
    with rehearsed(drill.preset, folder, monkeypatch, text) as daemon:
        has_job = any(one["fault"] == "job" for one in (*drill.faults, *drill.under))
        pass_time = daemon.until_with_peaks if has_job else daemon.until
        pass_time(begins / 60)
        while daemon.time < begins + KNOWN + drill.limit and not set(drill.codes) <= codes_of(daemon):
            pass_time((daemon.time + 30) / 60)
            if drill.probes:
                daemon.probe(*drill.probes)
        yield daemon


def codes_of(daemon: SimulatedDaemon) -> set[str]:
    """Of all findings that are open, and of their causes."""
    found = daemon.verdict.findings
    return {one.code for one in found} | {cause.code for one in found for cause in one.causes}


def faces_agree(daemon: SimulatedDaemon) -> FindingsDocument:
    """Asserts that page, top, diagnosis and healthcheck say what the API says; returns that."""
    told = msgspec.json.decode(msgspec.json.encode(daemon.answers.findings()), type=FindingsDocument)
    verdict = told.verdict
    assert verdict is not None
    snapshot = daemon.snapshot()
    page = check(render_node_page(Node(snapshot), describe(daemon.answers, snapshot), "/metrics"))
    text = {"page": _line(" ".join(page.texts))}
    for face in ("top --once", "healthcheck"):
        text[face] = _line(daemon.command(*face.split(), simulated=False)[1])
    diagnosis = msgspec.json.decode(daemon.command("diagnose", "--json", simulated=False)[1], type=Diagnosis)

    assert page.texts.index(verdict.word) < page.texts.index(verdict.line)
    assert f"{verdict.word}: {verdict.line}" in text["top --once"]
    assert f"{verdict.word}: {verdict.line}" in text["healthcheck"]
    assert diagnosis.verdict == verdict
    known = {(one.code, one.component.identity): one for one in told.findings}
    assert {(one.code, one.component.identity) for one in diagnosis.findings} == known.keys()
    for one in diagnosis.findings:
        said = known[one.code, one.component.identity]
        assert _words_of(one) == _words_of(said)
        part = said.component.component.words
        assert f"{said.title}: {part}" in text["top --once"]
        assert said.title in text["page"]
        assert part in text["page"]
    titles = {one.title for one in told.findings} | {cause.title for one in told.findings for cause in one.causes}
    for row in diagnosis.checks:
        is_said = any(title in row.detail for title in titles) or row.branch == "settings"
        assert row.verdict != "failed" or is_said, row
    records: list[Finding | Cause] = [*told.findings, *(cause for one in told.findings for cause in one.causes)]
    for record in records:
        if record.severity != "info" and CODES[record.code].quantities:
            failed = [row for row in diagnosis.checks if row.verdict == "failed"]
            by = [record.title in row.detail or row.branch == record.component.kind + "s" for row in failed]
            assert any(by), f"no check fails by {record.words}"
    return told


def _words_of(one: Finding) -> Finding:
    """All but the moment at which it was seen last, and what a command learns by itself of the processes of a job."""
    return msgspec.structs.replace(one, last_seen=None, seen_seconds=0.0, causes=(), also_seen=(), job_evidence=())


def _line(text: str) -> str:
    return " ".join(text.split())
