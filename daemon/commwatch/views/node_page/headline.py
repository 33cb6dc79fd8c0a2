"""The top of the page: the verdict on communication, the findings, and the next steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from commwatch.config.settings import RUNBOOKS
from commwatch.findings.api_documents import ClosedRecord
from commwatch.findings.finding import Cause, Finding, by_lead, evidence_line, job_words
from commwatch.findings.score.records import Score
from commwatch.units import utc
from commwatch.views.node_page.markup import ABSENT, cell, duration, level_of, section, table, tag, text, wrapped
from commwatch.views.node_page.records import Status

_MOST_FINDINGS = 20
_MOST_CLOSED = 5
_MOST_CAUSES = 3
_MOST_LOSSES = 3
_LOSS_SHOWN_FROM = 0.005
_MOST_PLACES = 3
_LEVELS: Final = {"OK": "good", "Warning": "warn", "Critical": "bad"}
"""By word of the verdict; any other word has no text."""
_SIGNS: Final = {"good": "✓", "warn": "!", "bad": "✕"}


def sign_of(word: str) -> str:
    return _SIGNS.get(_LEVELS.get(word, ""), "–")


def verdict_card(status: Status) -> str:
    """State and score."""
    word, line = status.verdict.word, status.verdict.line
    return section(
        "verdict",
        '<span class="unseen">Verdict</span>',
        f'<div class="verdict {_LEVELS.get(word, "plain")}"><p class="state">'
        f'<span class="sign" aria-hidden="true">{sign_of(word)}</span>'
        f"<span><strong>{text(word)}</strong> <span>{text(line)}</span>{_places(status.findings)}</span></p>"
        f"{_score(status.score)}</div>",
    )


def _places(findings: Sequence[Finding]) -> str:
    """The components to check, most severe first: the component to blame, if it is known.

    Empty for a single component, which the verdict's line names already.
    """
    parts = [(one.causes[0] if one.causes else one).component for one in findings if level_of(one.severity) != "info"]
    places = list(dict.fromkeys(part.words.partition(" (")[0] for part in parts))
    if len(places) < 2:
        return ""
    left = len(places) - _MOST_PLACES
    more = f" and {left} more" if left > 0 else ""
    return f'<span class="places">{text(", ".join(places[:_MOST_PLACES]))}{more}</span>'


def _score(score: Score | None) -> str:
    if score is None:
        return ""
    shown = "not measured" if score.ratio is None else f"{score.ratio:.2f}"
    parts = "".join([_score_part(part.name, part.ratio) for part in score.parts])
    lost_to = [one for one in score.losses if one.lost >= _LOSS_SHOWN_FROM][:_MOST_LOSSES]
    losses = "".join([f"<li>{text(f'{one.heading}: {one.subject}, {one.words}')}</li>" for one in lost_to])
    lost = f'<p class="lost">Score reduced by</p><ul class="lost">{losses}</ul>' if losses else ""
    return (
        f'<div class="score"><p><span>Communication score</span> <strong>{shown}</strong></p>'
        f"<dl>{parts}</dl>{lost}</div>"
    )


def _score_part(name: str, ratio: float | None) -> str:
    shown = ABSENT if ratio is None else f"{ratio:.2f}"
    filled = 100 * (ratio or 0)
    return (
        f"<div><dt>{text(name)}</dt><dd>{shown}"
        f'<span class="bar" aria-hidden="true"><i style="width:{filled:.0f}%"></i></span></dd></div>'
    )


def findings_section(findings: Sequence[Finding], time: float, documentation: str) -> str:
    """The findings with their next steps, most severe first; empty if there are none."""
    if not findings:
        return ""
    groups = by_lead(findings)
    articles = "".join([_finding(group, time, documentation) for group in groups[:_MOST_FINDINGS]])
    left = sum(map(len, groups[_MOST_FINDINGS:]))
    more = f'<p class="dim">and {left} more, at <a href="/api/v1/findings">/api/v1/findings</a></p>' if left > 0 else ""
    return section("findings", "Findings", articles + more)


def closed_table(closed: Sequence[ClosedRecord]) -> str:
    """The findings that closed in the last day, with both times; empty if there are none."""
    if not closed:
        return ""
    rows = [
        [
            wrapped(f"{one.severity}: {one.title}{f' ({one.note})' if one.note else ''}"),
            wrapped(one.component.words),
            cell(utc(one.since)),
            cell(utc(one.until)),
        ]
        for one in closed[:_MOST_CLOSED]
    ]
    if left := len(closed[_MOST_CLOSED:]):
        rows.append([cell(f"and {left} more, at /api/v1/findings"), cell(""), cell(""), cell("")])
    return table("closed", "Closed in the last day", ("Finding", "Part", "Opened", "Closed"), rows, "", stacks=True)


def _finding(group: Sequence[Finding], time: float, documentation: str) -> str:
    """A finding, or a cause with all the findings that it explains."""
    finding, lead = group[0], group[0].lead
    level = level_of(finding.severity)
    explained = [one for one in group if one.lead is not one]
    others = {one.key: one.words for member in group for one in member.causes if one.key != lead.key}
    because = _listed("Other likely causes" if explained else "Likely causes", list(others.values()))
    effect = _listed("Likely explains", [f"{_titled(one)} ({one.component.words})" for one in explained])
    told = _listed("From the job", job_words(group))
    step = f'<p class="next"><b>Next</b> {text(lead.next_step)}</p>' if lead.next_step else ""
    evidence = evidence_line(lead)
    proof = f"<p>{text(evidence)}</p>" if evidence else ""
    about = f' · <a href="{RUNBOOKS}{text(lead.alert)}.md">runbook</a>' if lead.alert else ""
    if documentation:
        address = f"{text(documentation)}/reference/findings/README.md#{text(lead.code)}"
        about += f' · <a href="{address}">about {text(lead.code)}</a>'
    age = max(0.0, time - (finding.since if lead.since is None else lead.since))
    return (
        f'<article class="{level}"><div><h3>{tag(level, finding.severity)} {text(_titled(lead))}</h3>'
        f'<p class="where">{text(lead.component.words)} · for {duration(age)}{about}</p>'
        f"{proof}{told}{effect}{because}</div>{step}</article>"
    )


def _listed(heading: str, entries: Sequence[str]) -> str:
    """At most three entries below a heading; one stands beside it."""
    left = len(entries) - _MOST_CAUSES
    shown = [*entries[:_MOST_CAUSES], *([f"and {left} more"] if left > 0 else [])]
    if len(shown) == 1:
        return f"<p>{heading}: {text(shown[0])}</p>"
    items = "".join([f"<li>{text(one)}</li>" for one in shown])
    return f"<p>{heading}</p><ul>{items}</ul>" if items else ""


def _titled(said: Finding | Cause) -> str:
    return said.title + (f": {said.detail}" if said.detail else "")
