"""Puts the node's page together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from commwatch.config.settings import RUNBOOKS, STILL_PATH
from commwatch.views.node_page.between_nodes import between_nodes_table, last_check
from commwatch.views.node_page.drawing import picture
from commwatch.views.node_page.fabric import fabric_of
from commwatch.views.node_page.headline import closed_table, findings_section, sign_of, verdict_card
from commwatch.views.node_page.markup import GLYPHS, text
from commwatch.views.node_page.matrix import pairs_section
from commwatch.views.node_page.records import Fact, Status
from commwatch.views.node_page.running import collector_table, probe_table
from commwatch.views.node_page.style import STYLE
from commwatch.views.node_page.tables import events_table, gpu_table, interface_table, rdma_table
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Snapshot

REFRESH_SECONDS: Final = 10
"""The rules are evaluated as often."""


class NodePage:
    """The page of a node in its two forms, by path."""

    def __init__(self, snapshot: Callable[[], Snapshot], status: Callable[[], Status], telemetry_path: str) -> None:
        self._node = Node()
        self._snapshot = snapshot
        self._status = status
        self._telemetry_path = telemetry_path

    def pages(self) -> dict[str, Callable[[], bytes]]:
        """The functions that make the HTML, by path."""
        return {"/": partial(self._html, refreshes=True), STILL_PATH: partial(self._html, refreshes=False)}

    def _html(self, *, refreshes: bool) -> bytes:
        self._node.show(self._snapshot())
        page = render_node_page(self._node, self._status(), self._telemetry_path, refreshes=refreshes)
        return page.encode("utf-8", "replace")


def render_node_page(node: Node, status: Status, telemetry_path: str, *, refreshes: bool = True) -> str:
    """The page as HTML.

    Args:
        refreshes: whether the browser is to load it again by itself.
    """
    word = status.verdict.word
    name = text(status.name or "this node")
    again = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' if refreshes else ""
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta name="viewport" content="width=device-width,initial-scale=1">{again}',
            f"<title>{sign_of(word)} {name}: {text(word)} – commwatch</title><style>{STYLE}</style></head><body>",
            f'<header><h1>{name}</h1><p class="dim">commwatch {text(status.version)}</p>',
            f"{_links(telemetry_path)}</header><main>",
            _notices(node, status),
            verdict_card(status),
            _facts(status.facts),
            '<div class="columns">',
            findings_section(status.findings, status.time, status.documentation),
            closed_table(status.closed),
            events_table(node),
            f'<div class="two">{picture(fabric_of(node, status.marks))}',
            f"{pairs_section(status.pairs, status.pairs_probe)}</div>",
            probe_table(status.probes),
            between_nodes_table(node),
            last_check(node),
            gpu_table(node),
            f'<div class="two"><div>{rdma_table(node, status.marks)}'
            f"{interface_table(node, status.marks)}</div>"
            f"{collector_table(status.collectors)}</div>",
            f"</div></main>{_footer(status, refreshes)}</body></html>\n",
        ]
    )


def _links(telemetry_path: str) -> str:
    return (
        f'<nav aria-label="Endpoint"><a href="{text(telemetry_path)}">Metrics</a> <a href="/healthz">Health</a> '
        '<a href="/readyz">Ready</a> <a href="/api/v1/findings">Findings</a> <a href="/api/v1/probes">Probes</a> '
        '<a href="/api/v1/snapshot">Snapshot</a> '
        f'<a href="{RUNBOOKS}">Runbooks</a></nav>'
    )


def _notices(node: Node, status: Status) -> str:
    notices = list(status.notices)
    if node.daemon.simulated == 1:
        which = f" {status.simulated}" if status.simulated else ""
        notices.insert(0, f"Simulated node{which}: no value on this page comes from hardware.")
    return "".join([f'<p class="notice">{text(notice)}</p>' for notice in notices])


def _facts(facts: Sequence[Fact]) -> str:
    """Facts about this node; values short of the expected are marked."""
    if not facts:
        return ""
    rows = "".join([f"<div><dt>{text(one.term)}</dt>{_fact_words(one)}</div>" for one in facts])
    return f'<dl class="facts">{rows}</dl>'


def _fact_words(fact: Fact) -> str:
    if not fact.is_short:
        return f"<dd>{text(fact.words)}</dd>"
    return f'<dd class="bad">{text(fact.words)} <span aria-hidden="true">{GLYPHS["bad"]}</span></dd>'


def _footer(status: Status, refreshes: bool) -> str:
    documentation = (
        f'<a href="{text(status.documentation)}/using/node-page.md">Documentation</a>'
        if status.documentation
        else "Documentation: docs/using/node-page.md of commwatch"
    )
    again = (
        f'Reloads every {REFRESH_SECONDS} s. <a href="{STILL_PATH}">Pause</a>'
        if refreshes
        else f'Paused. <a href="/">Reload every {REFRESH_SECONDS} s</a>'
    )
    return f"<footer><p>{again}</p><p>{documentation}</p></footer>"
