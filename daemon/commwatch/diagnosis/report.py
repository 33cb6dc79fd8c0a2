"""A diagnosis as one HTML page for a ticket: no script, nothing from elsewhere, every text escaped; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from commwatch.diagnosis.check import Branch, Check
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.identity import Identity
from commwatch.diagnosis.table import (
    BRANCH_NAMES,
    KINDS,
    TableRow,
    age_of,
    also_seen,
    branch_rows,
    counted,
    facts_of,
    finding_groups,
    notes_of,
    place_of,
)  # fmt: skip
from commwatch.findings.api_documents import ClosedRecord
from commwatch.findings.causes import STOPPED
from commwatch.findings.finding import Cause, Finding, format_evidence
from commwatch.findings.score.records import Score
from commwatch.lines import printable
from commwatch.node.topology.pair_matrix import Quantity
from commwatch.units import format_percent, utc
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.heatmap.svg import matrix_svg
from commwatch.views.node_page.style import DARK, LIGHT

_MOST_FINDINGS = 50
_MOST_PARTS = 32
_MOST_CHECKS = 600
"""Of the list of all checks; eight GPUs with all their links and pairs have some 300."""
_MOST_LOSSES = 20


def report(document: Diagnosis, identity: Identity, low_ratio: float) -> str:
    """The page.

    Args:
        low_ratio: a bandwidth below this share of the expected one is marked.
    """
    return "".join(_page(document, identity, low_ratio))


def _page(document: Diagnosis, identity: Identity, low_ratio: float) -> Iterator[str]:
    title = f"{document.verdict.word}: {identity.host or 'this node'}, {utc(document.time)}"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    # Whatever a name might smuggle in: nothing of it is loaded or run.
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    simulated = "" if document.simulated is None else " (simulated)"
    yield f"<title>{_text(title)}{simulated}</title><style>{_STYLE}</style></head><body>"
    if document.simulated is not None:
        yield f'<p class="notice simulated">Simulated node {_text(document.simulated)}: none of this is real.</p>'
    if document.maintenance is not None:
        yield f'<p class="notice">The daemon is paused ({_text(document.maintenance)}): nothing new is read.</p>'
    yield from _head(document, identity)
    yield "<main>"
    yield from _findings(document)
    yield from _closed(document.closed)
    yield from _pairs(document, low_ratio)
    yield from _checks(document.checks)
    yield from _score(document.score)
    yield from _node(identity)
    yield "</main><footer>Made by commwatch "
    yield f"{_text(document.version)} with <code>commwatch diagnose --report</code>. Times are UTC.</footer>"
    yield "</body></html>\n"


def _head(document: Diagnosis, identity: Identity) -> Iterator[str]:
    word = document.verdict.word
    scan = "what the daemon knew" if document.scan == "quick" else "probes run for it"
    models = _models(identity)
    yield f"<header><h1>Communication of {_text(identity.host or 'this node')}</h1>"
    facts = "; ".join(filter(None, (models, f"diagnosed {utc(document.time)} from {scan}")))
    yield f'<p class="dim">{_text(facts)}</p></header>'
    yield f'<p class="verdict {KINDS[word]}"><strong>{word}:</strong> '
    yield f"{_text(document.verdict.line)}</p>"


def _models(identity: Identity) -> str:
    models = [gpu.model for gpu in identity.gpus if gpu.model]
    return ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models))


# --- findings ---


def _findings(document: Diagnosis) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    if not document.findings:
        looked = "the rules have not run yet" if document.looked_at is None else "none"
        yield f'<p class="dim">{looked}</p>'
    groups = finding_groups(document.findings)
    for group in groups[:_MOST_FINDINGS]:
        yield from _finding(group, document.time)
    if left := sum(map(len, groups[_MOST_FINDINGS:])):
        yield f"<p>and {left} more</p>"


def _finding(group: Sequence[Finding], now: float) -> Iterator[str]:
    """One finding, or several that differ in nothing but their part."""
    finding = group[0]
    kind = KINDS.get(finding.severity, "plain")
    yield f'<article class="{kind}"><h3><span class="tag">{_text(finding.severity)}</span> {_text(finding.title)}: '
    yield f"{_text(place_of(group))}</h3>"
    if len(group) == 1:
        yield f'<p class="dim">{_since(finding, now)}</p>{_paragraph(finding.detail)}'
        yield _list((*map(format_evidence, finding.evidence), *(one.words for one in finding.job_evidence)))
    else:
        yield "<ul>"
        for one in group[:_MOST_PARTS]:
            yield f"<li>{_text(one.component.words)}: {_text(facts_of(one))} "
            yield f'<span class="dim">({_since(one, now)})</span></li>'
        yield "</ul>"
        if left := len(group[_MOST_PARTS:]):
            yield f"<p>and {left} more</p>"
    if finding.causes:
        first = "earliest" if finding.code in STOPPED else "likeliest"
        order = f", the {first} first" if len(finding.causes) > 1 else ""
        yield f"<p>Likely because of{order}:</p><ol>"
        yield "".join(map(_cause, finding.causes))
        yield "</ol>"
    if finding.also_seen:
        yield f"<p>Also seen: {_text(also_seen(finding))}</p>"
    yield f'<p class="next"><strong>Next:</strong> {_text(finding.lead.next_step)}</p></article>'


def _closed(closed: Sequence[ClosedRecord]) -> Iterator[str]:
    if not closed:
        return
    yield '<h3>Closed in the last day</h3><table class="stacked"><thead><tr><th scope="col">Finding</th>'
    yield '<th scope="col">Where</th><th scope="col">Opened</th><th scope="col">Closed</th></tr></thead>'
    for one in closed:
        note = f" ({one.note})" if one.note else ""
        yield f"<tr><td>{_text(one.severity)}: {_text(one.title + note)}</td>"
        yield f"<td>{_text(one.component.words)}</td>"
        yield f'<td data-label="opened">{utc(one.since)}</td><td data-label="closed">{utc(one.until)}</td></tr>'
    yield "</table>"


def _since(finding: Finding, now: float) -> str:
    return f"since {utc(finding.since)} ({age_of(finding, now)})"


def _cause(cause: Cause) -> str:
    evidence = _list(format_evidence(fact) for fact in cause.evidence)
    reason = f'<span class="dim">({_text(cause.reason)})</span>'
    return f"<li>{_text(cause.words)} {reason}{_paragraph(cause.detail)}{evidence}</li>"


# --- pairs, checks, score, node ---


def _pairs(document: Diagnosis, low_ratio: float) -> Iterator[str]:
    matrix = document.matrix
    if matrix is None or len(matrix.endpoints) < 2:
        return
    yield "<h2>Pairs of GPUs</h2>"
    yield '<div class="pairs">'
    quantities: tuple[Quantity, ...] = ("bandwidth", "latency")
    for quantity in quantities:
        if matrix.values(quantity):
            view = view_of(matrix, quantity, relative=False, low_ratio=low_ratio)
            yield f"<div>{matrix_svg(view)}</div>"
    yield "</div>"


def _checks(checks: Sequence[Check]) -> Iterator[str]:
    if not checks:
        return
    yield f"<h2>Checks</h2><p>{_text(counted(checks))}</p>"
    branches = list(branch_rows(checks))
    yield from _check_table(branches)
    if any(len(row.checks) > 1 for _, rows in branches for row in rows):
        every = list(branch_rows(checks[:_MOST_CHECKS], every=True))
        yield f"<details><summary>Each of the {len(checks)} checks by itself</summary>"
        yield from _check_table(every, notes=False)
        if left := len(checks) - _MOST_CHECKS:
            yield f"<p>and {left} more</p>" if left > 0 else ""
        yield "</details>"


def _check_table(branches: Iterable[tuple[Branch, list[TableRow]]], *, notes: bool = True) -> Iterator[str]:
    headings = ("Verdict", "What", "Where", "Measured", "Required")
    yield '<div class="framed"><table class="checks stacked"><thead><tr>'
    yield "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    yield "</tr></thead>"
    for branch, rows in branches:
        said: dict[int, list[str]] = {}
        for row, note in notes_of(rows) if notes else ():
            said.setdefault(id(row), []).append(note)
        name = BRANCH_NAMES[branch]
        yield f'<tbody class="branch"><tr><th colspan="5" scope="rowgroup">{name}</th></tr>'
        for row in rows:
            yield f'<tr><td class="verdictcell {KINDS.get(row.verdict, "plain")}">{row.verdict}</td>'
            details = "".join(f'<br><span class="dim">{_text(note)}</span>' for note in said.get(id(row), ()))
            yield f"<td>{_text(row.what)}{details}</td><td>{_text(row.where)}</td>"
            yield _labelled("measured", row.measured) + _labelled("required", row.required) + "</tr>"
        yield "</tbody>"
    yield "</table></div>"


def _labelled(label: str, text: str) -> str:
    """A cell that says what it is where the headings are not shown; an empty one is not shown there."""
    return f'<td data-label="{label}">{_text(text)}</td>' if text else "<td></td>"


def _score(score: Score) -> Iterator[str]:
    yield "<h2>Communication score</h2>"
    yield f"<p>{'not measured' if score.ratio is None else f'<strong>{score.ratio:.2f}</strong>, {score.word}'}</p>"
    yield '<table><thead><tr><th scope="col">Part</th><th scope="col">Share</th><th scope="col">Value</th></tr></thead>'
    for part in score.parts:
        if part.ratio is None:
            missing = f"not measured; it takes {_text(part.missing)}"
            yield f'<tr><td>{part.name}</td><td colspan="2" class="dim">{missing}</td></tr>'
        else:
            bar = f'<span class="bar"><span style="width:{100 * part.ratio:.0f}%"></span></span>'
            yield f"<tr><td>{part.name}</td><td>{format_percent(part.weight)}</td><td>{bar} {part.ratio:.2f}</td></tr>"
    yield "</table>"
    lost = [loss for loss in score.losses if loss.lost >= 0.0005][:_MOST_LOSSES]
    if lost:
        yield '<h3>Score reduced by</h3><table class="stacked"><thead><tr><th scope="col">Points</th>'
        yield '<th scope="col">Part</th><th scope="col">Where</th><th scope="col">What</th></tr></thead>'
        for loss in lost:
            yield f'<tr><td data-label="points">{loss.lost:.3f}</td><td data-label="part">{loss.part}</td>'
            yield f"<td>{_text(loss.subject)}</td><td>{_text(loss.words)}</td></tr>"
        yield "</table>"


def _node(identity: Identity) -> Iterator[str]:
    yield "<h2>The node</h2><dl>"
    facts = {"host": identity.host, **identity.software}
    facts |= {f"firmware of {device}": version for device, version in identity.firmware.items()}
    yield "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in facts.items() if text)
    yield "</dl>"
    if not identity.gpus:
        yield '<p class="dim">No GPU is known.</p>'
        return
    yield '<div class="framed"><table class="stacked"><thead><tr><th scope="col">GPU</th><th scope="col">State</th>'
    yield '<th scope="col">Slot</th><th scope="col">Model</th><th scope="col">UUID</th><th scope="col">Serial</th></tr>'
    yield "</thead>"
    for gpu in identity.gpus:
        kind = "" if gpu.state in ("ok", "") else ' class="verdictcell bad"'
        yield f'<tr><td data-label="GPU">{_text(gpu.index)}</td><td{kind}>{_text(gpu.state)}</td>'
        yield f"<td>{_text(gpu.slot)}</td><td>{_text(gpu.model)}</td>"
        yield f"{_labelled('UUID', gpu.uuid)}{_labelled('serial', gpu.serial)}</tr>"
    yield "</table></div>"


# --- texts ---


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>" if text else ""


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _text(text: str) -> str:
    """A text for the page: escaped, and without characters that would change the direction of other text."""
    return escape(printable(text))


# --- how it looks: light and dark, on a phone, and printed; the colours are those of the node's page ---

_MORE_LIGHT = "--warn:#8a5a00;--warnbg:#fff4ce;--badbg:#ffebe9;--goodbg:#e6f4ea"
_MORE_DARK = "--warn:#e3b341;--warnbg:#33280b;--badbg:#3a1618;--goodbg:#12281a"

_STYLE = (
    f":root{{{LIGHT};{_MORE_LIGHT}}}@media screen and (prefers-color-scheme:dark){{:root{{{DARK};{_MORE_DARK}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.25rem;margin:0}
h2{font-size:1.1rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.3rem 0}
.dim{color:var(--dim)}
.notice{background:var(--note);color:var(--notefg);border-radius:6px;padding:.6rem .8rem;margin:0 0 1rem;
font-weight:600}
.simulated{background:var(--fg);color:var(--bg)}
.verdict{border-left:6px solid var(--side);background:var(--ground);border-radius:6px;padding:.8rem 1rem;margin:1rem 0;
font-size:1.1rem}
.verdict strong{color:var(--side)}
.good{--side:var(--good);--ground:var(--goodbg)}
.warn{--side:var(--warn);--ground:var(--warnbg)}
.bad{--side:var(--bad);--ground:var(--badbg)}
.plain{--side:var(--dim);--ground:var(--card)}
.tag{display:inline-block;color:var(--side);background:var(--ground);border:1px solid var(--side);border-radius:4px;
padding:0 .4rem;font-size:.8rem;font-weight:600;white-space:nowrap}
article{border:1px solid var(--line);border-left:4px solid var(--side);border-radius:6px;padding:.7rem 1rem;
margin:.7rem 0;break-inside:avoid}
article h3{margin:0}
article ul,article ol{margin:.3rem 0;padding-left:1.4rem}
.next{margin-top:.5rem;padding-top:.5rem;border-top:1px solid var(--line)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0}
dt{color:var(--dim)}
dd{margin:0}
table{overflow-wrap:break-word;border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.35rem .6rem;text-align:left;vertical-align:top}
thead th{background:var(--card);font-weight:600;color:var(--dim);font-size:.85rem}
tbody tr+tr td,tbody tr+tr th{border-top:1px solid var(--line)}
tbody.branch th{font-weight:600;padding-top:.8rem}
.number{text-align:right}
.verdictcell{color:var(--side);font-weight:600;white-space:nowrap}
.checks th:nth-child(2){width:31%}
.checks th:nth-child(3){width:18%}
.checks th:nth-child(n+4){width:20%}
.framed{border:1px solid var(--line);border-radius:6px;overflow-x:auto}
.pairs{display:flex;flex-wrap:wrap;gap:.5rem 2rem}
.pairs div{flex:1 1 27rem;min-width:0;overflow-x:auto}
.pairs svg{max-width:100%;height:auto}
.bar{display:inline-block;width:6rem;height:.6rem;border-radius:3px;background:var(--line);vertical-align:middle}
.bar span{display:block;height:100%;border-radius:3px;background:var(--link)}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--link)}
footer{margin:2.5rem 0 1rem;padding-top:.6rem;border-top:1px solid var(--line);font-size:.85rem;color:var(--dim)}
@media (max-width:40rem){
body{padding:.7rem}
.stacked thead{display:none}
.stacked tr,.stacked td,.stacked th{display:block;border:0!important}
.stacked tr{padding:.4rem 0;border-top:1px solid var(--line)!important}
.stacked td,.stacked th{padding:.05rem .6rem;text-align:left}
.stacked td[data-label]::before{content:attr(data-label) ": ";color:var(--dim)}
.stacked td:empty{display:none}
}
@media print{
body{max-width:none;padding:0;font-size:10pt}
.bar,.bar span,.tag,.verdict,.notice{-webkit-print-color-adjust:exact;print-color-adjust:exact}
h2,h3{break-after:avoid}
tr,svg{break-inside:avoid}
summary{display:none}
}
"""
)
