"""Who this is, the verdict, the score, the findings with their next steps, and the collectors that are late; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.finding import SEVERITIES, Finding, by_lead, evidence_line, job_words
from commwatch.findings.score.records import word_of
from commwatch.findings.verdict import Word, verdict_of
from commwatch.lines import HEADING, Line, Segment, folded
from commwatch.units import time_of_day
from commwatch.views.top.frame import View
from commwatch.views.top.table import BAD, DIM, DOUBTFUL, GOOD, STYLE_OF_SEVERITY, age, section, table
from commwatch_exporters.node.model import Collector, Driver, Gpu, Node, Worker

_WORD_STYLES: dict[Word, str] = {"OK": GOOD, "Warning": DOUBTFUL, "Critical": BAD, "Unknown": DOUBTFUL}
_INDENT = 10
_PARTS = ("bandwidth", "latency", "balance", "stability")

_LATE_INTERVALS = 3.0
_LATE_SECONDS = 10.0
"""A collector is late if its last success is older than these intervals plus these seconds: the daemon drops its values
then."""


def title_lines(view: View, width: int, now: float) -> Iterator[Line]:
    """The lines that stay in place while the body scrolls: source, time, and whether the daemon answers."""
    moment = time_of_day(now)
    name = f"commwatch top  {view.source}"
    yield [(name.ljust(width - len(moment) - 1) + " ", HEADING), (moment, "")]
    if view.documents is not None and (simulated := view.documents.findings.simulated) is not None:
        yield [(f"SIMULATED NODE {simulated}: no value here comes from hardware", DOUBTFUL)]
    if view.trouble:
        since = f"NO ANSWER for {age(view.trouble_seconds)}: "
        yield from folded([(since, BAD), (view.trouble, "")], width, 2)
        what = "asking again" if view.documents is None else "asking again; below is the last answer"
        yield [(f"  {what}", "")]


def node_lines(
    node: Node, findings: FindingsDocument, thresholds: Thresholds, width: int, now: float
) -> Iterator[Line]:
    """The node's identity, its verdict and its score."""
    yield from folded([(_identity(node, findings.version), DIM)], width, 2)
    verdict = verdict_of(findings, now)
    yield from folded([(f"{verdict.word}: ", _WORD_STYLES[verdict.word]), (verdict.line, "")], width, 2)
    yield from folded([(_score(node, thresholds), "")], width, 2)


def _identity(node: Node, version: str) -> str:
    models = Counter(gpu.name for gpu, _ in node.each(Gpu.info))
    parts = [f"{number} x {name}" for name, number in models.items()] or ["no GPU is read"]
    parts += [f"driver {driver.driver_version}" for driver, _ in node.each(Driver.info)]
    return ", ".join([*parts, f"commwatch {version}"])


def _score(node: Node, thresholds: Thresholds) -> str:
    ratio = node.daemon.communication_score_ratio
    word = word_of(ratio, thresholds.score_excellent_ratio, thresholds.score_good_ratio)
    if ratio is None:
        return f"score: {word}"
    parts = node.daemon.communication_score_components
    measured = ", ".join(f"{name} {parts[name]:.2f}" for name in _PARTS if name in parts)
    return f"score {ratio:.2f}, {word}: {measured}"


def finding_lines(document: FindingsDocument, width: int, now: float) -> Iterator[Line]:
    """The open findings, most severe first, each with since when, and where someone has to act, what to do."""
    counts = Counter(finding.severity for finding in document.findings)
    listed = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    looked = "not looked yet" if document.looked_at is None else f"looked {age(now - document.looked_at)} ago"
    yield from section("Findings", f"{listed or 'none'}; {looked}")
    if document.failing_rules:
        yield from folded([(f"rules that fail: {', '.join(document.failing_rules)}", BAD)], width, 2)
    for group in by_lead(document.findings):
        yield from _finding(group, width, now)


def _finding(group: Sequence[Finding], width: int, now: float) -> Iterator[Line]:
    """A finding, or a cause with all the findings that it explains."""
    finding, lead = group[0], group[0].lead
    causes = {one.key: one for member in group for one in member.causes if one.key != lead.key}
    detail = f" ({lead.detail})" if lead.detail else ""
    began = finding.since if lead.since is None else lead.since
    what = f"{lead.title}: {lead.component.component.words}{detail}, for {age(now - began)}"
    yield from folded(
        [(f"{finding.severity:<{_INDENT}}", STYLE_OF_SEVERITY[finding.severity]), (what, "")], width, _INDENT
    )
    is_listed = finding.severity == "info"
    yield from _below("evidence: ", "" if is_listed else evidence_line(lead), width)
    for words in job_words(group):
        yield from _below("from the job: ", words, width)
    if is_listed:
        return
    for explained in group:
        if explained.lead is not explained:
            yield from _below("explains: ", f"{explained.title}: {explained.component.component.words}", width)
    for cause in list(causes.values())[:2]:
        yield from _below("likely cause: ", f"{cause.title}: {cause.component.component.words}", width)
    yield from _below("next: ", lead.next_step, width)


def _below(label: str, text: str, width: int) -> Iterator[Line]:
    if text:
        yield from folded([(" " * _INDENT + label, DIM), (text, "")], width, _INDENT + 2)


def collector_lines(node: Node, width: int, now: float) -> Iterator[Line]:
    """How many are in time, and a row for each that is not."""
    collectors = list(node.each(Collector.success))
    rows: list[list[Segment]] = []
    for collector, succeeded in collectors:
        done, interval = collector.last_success_timestamp_seconds, collector.interval_seconds or 0.0
        late = done is None or now - done > _LATE_INTERVALS * interval + _LATE_SECONDS
        if succeeded and not late:
            continue
        state = "late" if succeeded else "fails"
        since = "never" if done is None else f"{age(now - done)} ago"
        rows.append([(collector.name, ""), (state, BAD), (since, ""), (f"every {age(interval)}", "")])
    yield from section("Collectors", f"{len(collectors) - len(rows)} of {len(collectors)} in time")
    if rows:
        yield from table(("Collector", "State", "All was read", "Runs"), rows, width)
    for worker, stuck in node.each(Worker.stuck):
        if stuck:
            yield [(f"worker {worker.name}: {stuck:g} of its processes hang in the kernel and are left alone", BAD)]
