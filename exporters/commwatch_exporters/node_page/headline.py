"""What the page says first: how communication is, what is wrong, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from commwatch_exporters.node_page.markup import ABSENT, duration, level_of, section, tag, text
from commwatch_exporters.node_page.records import FindingStatus, ScorePart, ScoreStatus, Status

_MOST_FINDINGS = 20
_MOST_CAUSES = 3
_MOST_LOSSES = 3
_MOST_PLACES = 3
SIGNS: Final = {"good": "✓", "warn": "!", "bad": "✕"}
"""Of the whole node, by level."""


def headline(status: Status, *, has_gpus: bool) -> tuple[str, str, str]:
    """Level, word and sentence of the whole node.

    Args:
        status: what the daemon says.
        has_gpus: whether any GPU is known; without one nothing can be said of communication.
    """
    counts = Counter(level_of(finding.severity) for finding in status.findings)
    said = _counted(counts)
    if status.paused is not None:
        return "plain", "Paused", f"nothing is read or probed; before: {said}"
    if not status.looked:
        return "plain", "Not known yet", "the first look at this node is not over"
    if counts["bad"] or counts["warn"]:
        more = f"; there may be more: {status.doubt}" if status.doubt else ""
        return (*(("bad", "Critical") if counts["bad"] else ("warn", "Needs attention")), f"{said}{more}")
    if status.doubt:
        return "plain", "Not fully known", f"nothing wrong was found, but {status.doubt}"
    if not has_gpus:
        return "plain", "No GPU", "none is known here, so that nothing can be said of communication between them"
    if status.score is not None and status.score.word == "needs work":
        return "warn", "Needs attention", f"no fault is known, but communication scores low; {said}"
    if counts["info"]:
        return "good", "Healthy", f"nothing is wrong; {said}"
    return "good", "Healthy", "nothing is wrong with communication on this node"


def _counted(counts: Counter[str]) -> str:
    words = [
        f"{counts[level]} {word}{'s' if counts[level] > 1 and plural else ''}"
        for level, word, plural in (("bad", "critical", False), ("warn", "warning", True))
        if counts[level]
    ]
    if counts["info"]:
        words.append(f"{counts['info']} worth knowing")
    return ", ".join(words) or "no finding"


def verdict_card(status: Status, said: tuple[str, str, str]) -> str:
    """State and score.

    Args:
        status: what the daemon says.
        said: the headline.
    """
    level, word, sentence = said
    sign = SIGNS.get(level, "–")
    return section(
        "verdict",
        '<span class="unseen">Verdict</span>',
        f'<div class="verdict {level}"><p class="state"><span class="sign" aria-hidden="true">{sign}</span>'
        f"<span><strong>{word}</strong> <span>{text(sentence)}</span>{_places(status.findings)}</span></p>"
        f"{_score(status.score)}</div>",
    )


def _places(findings: Sequence[FindingStatus]) -> str:
    """Where someone must look, most severe first: at the part that is to blame, where one is known."""
    parts = [one.culprit or one.part for one in findings if level_of(one.severity) != "info"]
    places = list(dict.fromkeys(part.partition(" (")[0] for part in parts))
    if not places:
        return ""
    left = len(places) - _MOST_PLACES
    more = f" and {left} more" if left > 0 else ""
    return f'<span class="places">{text(", ".join(places[:_MOST_PLACES]))}{more}</span>'


def _score(score: ScoreStatus | None) -> str:
    if score is None:
        return ""
    shown = "not measured" if score.ratio is None else f"{score.ratio:.2f}"
    parts = "".join([_score_part(part) for part in score.parts])
    losses = "".join([f"<li>{text(loss)}</li>" for loss in score.losses[:_MOST_LOSSES]])
    lost = f'<p class="lost">Points were lost to</p><ul class="lost">{losses}</ul>' if losses else ""
    return (
        f'<div class="score"><p><span>Communication score</span> <strong>{shown}</strong></p>'
        f"<dl>{parts}</dl>{lost}</div>"
    )


def _score_part(part: ScorePart) -> str:
    shown = ABSENT if part.ratio is None else f"{part.ratio:.2f}"
    filled = 100 * (part.ratio or 0)
    return (
        f"<div><dt>{text(part.name)}</dt><dd>{shown}"
        f'<span class="bar" aria-hidden="true"><i style="width:{filled:.0f}%"></i></span></dd></div>'
    )


def findings_section(findings: Sequence[FindingStatus], documentation: str) -> str:
    """What is wrong and what to do next, most severe first; nothing where nothing is."""
    if not findings:
        return ""
    articles = "".join([_finding(one, documentation) for one in findings[:_MOST_FINDINGS]])
    left = len(findings) - _MOST_FINDINGS
    more = f'<p class="dim">and {left} more, at <a href="/api/v1/findings">/api/v1/findings</a></p>' if left > 0 else ""
    return section("findings", "Findings", articles + more)


def _finding(finding: FindingStatus, documentation: str) -> str:
    level = level_of(finding.severity)
    left = len(finding.causes) - _MOST_CAUSES
    causes = [*finding.causes[:_MOST_CAUSES], *([f"and {left} more"] if left > 0 else [])]
    because = f"<ul>{''.join([f'<li>{text(cause)}</li>' for cause in causes])}</ul>" if causes else ""
    heading = "Other likely causes" if finding.effect else "Likely causes"
    because = f"<p>{heading}</p>{because}" if because else ""
    effect = f"<p>Likely explains: {text(finding.effect)}</p>" if finding.effect else ""
    step = f'<p class="next"><b>Next</b> {text(finding.next_step)}</p>' if finding.next_step else ""
    about = ""
    if documentation and finding.code:
        address = f"{text(documentation)}/findings/README.md#{text(finding.code)}"
        about = f' · <a href="{address}">about {text(finding.code)}</a>'
    return (
        f'<article class="{level}"><div><h3>{tag(level, finding.severity)} {text(finding.title)}</h3>'
        f'<p class="where">{text(finding.part)} · for {duration(finding.age_seconds)}{about}</p>'
        f"{effect}{because}</div>{step}</article>"
    )
