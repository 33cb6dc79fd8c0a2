"""The runbooks as pages of the node: one for each alert, and their list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from commwatch.config.assets import asset
from commwatch.config.settings import RUNBOOKS
from commwatch.views.node_page.markup import text
from commwatch.views.node_page.style import DARK, LIGHT

_STYLE: Final = (
    f":root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    "body{margin:0 auto;max-width:50rem;padding:1rem;background:var(--bg);color:var(--fg);"
    'font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}'
    "a{color:var(--link)}pre{background:var(--card);padding:.6rem .8rem;overflow-x:auto}"
    "code{background:var(--card)}th,td{text-align:left;padding:.2rem .8rem;border:1px solid var(--line)}"
)


def runbook_pages() -> dict[str, Callable[[], bytes]]:
    """The functions that make the HTML, by path."""
    paths = sorted(asset("alerts/runbooks").glob("*.md"))
    return {RUNBOOKS: partial(_list, paths), **{f"{RUNBOOKS}{path.name}": partial(_runbook, path) for path in paths}}


def _list(paths: list[Path]) -> bytes:
    entries = "".join([f'<li><a href="{RUNBOOKS}{path.name}">{text(path.stem)}</a></li>' for path in paths])
    return _page("Runbooks", f"<h1>Runbooks</h1><ul>{entries}</ul>")


def _runbook(path: Path) -> bytes:
    # Imported only here: most daemons are never asked for a runbook, and the parser takes memory.
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    return _page(path.stem, markdown.render(path.read_text(encoding="utf-8")))


def _page(title: str, body: str) -> bytes:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)} – commwatch</title><style>{_STYLE}</style></head><body>"
        f'<p><a href="/">This node</a> · <a href="{RUNBOOKS}">Runbooks</a></p>{body}</body></html>\n'
    ).encode()
