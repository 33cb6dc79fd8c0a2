"""Puts the node's page together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from commwatch_exporters.node.model import Node
from commwatch_exporters.node_page.between_nodes import between_nodes_table, last_check
from commwatch_exporters.node_page.drawing import draw
from commwatch_exporters.node_page.fabric import Adapter, Fabric, Gpu, fabric_of
from commwatch_exporters.node_page.headline import closed_table, findings_section, sign_of, verdict_card
from commwatch_exporters.node_page.markup import GLYPHS, section, text
from commwatch_exporters.node_page.matrix import pairs_section
from commwatch_exporters.node_page.records import STILL_PATH, Fact, Status
from commwatch_exporters.node_page.running import collector_table, probe_table
from commwatch_exporters.node_page.style import STYLE
from commwatch_exporters.node_page.tables import events_table, gpu_table, interface_table, rdma_table

REFRESH_SECONDS: Final = 10
"""The rules look as often."""
_MOST_NAMED = 4


def render_node_page(node: Node, status: Status, telemetry_path: str, *, refreshes: bool = True) -> str:
    """The page as HTML.

    Args:
        node: at this moment.
        status: what the daemon says beside it.
        telemetry_path: where the metrics are.
        refreshes: whether the browser is to load it again by itself.
    """
    fabric = fabric_of(node, status.marks)
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
            findings_section(status.findings, status.documentation),
            closed_table(status.closed),
            events_table(node),
            f'<div class="two">{_picture(fabric)}{pairs_section(status.pairs, status.pairs_probe)}</div>',
            probe_table(status.probes),
            between_nodes_table(node),
            last_check(node),
            gpu_table(node),
            f'<div class="two"><div>{rdma_table(node, status.marks)}'
            f"{interface_table(node, status.marks)}</div>"
            f"{collector_table(status.collectors)}</div>",
            f"</main>{_footer(status, refreshes)}</body></html>\n",
        ]
    )


def _links(telemetry_path: str) -> str:
    return (
        f'<nav aria-label="Endpoint"><a href="{text(telemetry_path)}">Metrics</a> <a href="/healthz">Health</a> '
        '<a href="/readyz">Ready</a> <a href="/api/v1/findings">Findings</a> <a href="/api/v1/probes">Probes</a> '
        '<a href="/api/v1/snapshot">Snapshot</a></nav>'
    )


def _notices(node: Node, status: Status) -> str:
    notices = list(status.notices)
    if node.daemon.simulated == 1:
        which = f" {status.simulated}" if status.simulated else ""
        notices.insert(0, f"Simulated node{which}: no value on this page comes from hardware.")
    return "".join([f'<p class="notice">{text(notice)}</p>' for notice in notices])


def _facts(facts: Sequence[Fact]) -> str:
    """What this node is; what is short of the expected is marked."""
    if not facts:
        return ""
    rows = "".join([f"<div><dt>{text(one.term)}</dt>{_fact_words(one)}</div>" for one in facts])
    return f'<dl class="facts">{rows}</dl>'


def _fact_words(fact: Fact) -> str:
    if not fact.is_short:
        return f"<dd>{text(fact.words)}</dd>"
    return f'<dd class="bad">{text(fact.words)} <span aria-hidden="true">{GLYPHS["bad"]}</span></dd>'


def _picture(fabric: Fabric) -> str:
    if not fabric.branches:
        return section(
            "picture", "GPUs and links", '<p class="dim">Neither a GPU nor an adapter is read at present.</p>'
        )
    words = picture_words(fabric)
    return section(
        "picture",
        "GPUs and links",
        f"<figure><figcaption>{text(words)}</figcaption>{draw(fabric, words)}</figure>{_legend(fabric)}",
    )


def picture_words(fabric: Fabric) -> str:
    """The picture in sentences."""
    gpus, adapters = fabric.gpus, fabric.adapters
    counts = [_count(len(gpus), "GPU"), _count(len(adapters), "adapter port")]
    if any(switch.address for switch in fabric.switches):
        counts.append(_count(len(fabric.switches), "NVSwitch", "es"))
    words = f"{', '.join(one for one in counts if one)}. "
    if fabric.left_out:
        words += f"{_count(fabric.left_out, 'adapter port')} more, in the table below. "
    links = [(gpu, link) for gpu in gpus for link in gpu.links]
    wanted = [link for _, link in links if link.level != "off"]
    if wanted:
        up = sum(gpu.links_up for gpu in gpus)
        unread = sum(link.level == "unknown" for link in wanted)
        words += f"{up} of {len(wanted)} NVLinks are up{f', {unread} are not read' if unread else ''}. "
    elif links:
        words += "No NVLink is in use. "
    devices: list[Gpu | Adapter] = [*gpus, *adapters]
    wrong = [f"{one.name}: {one.words}" for one in devices if one.level in ("bad", "warn")]
    wrong += _wrong_links(gpus)
    wrong += [f"NVSwitch {one.address}: {one.words}" for one in fabric.switches if one.level in ("bad", "warn")]
    wrong += [f"PCIe of {one.name}: below its best" for one in devices if one.pcie_level in ("bad", "warn")]
    return f"{words}{'. '.join(wrong)}{'.' if wrong else ''}".strip()


def _wrong_links(gpus: Sequence[Gpu]) -> list[str]:
    found = []
    for gpu in gpus:
        wrong = [link for link in gpu.links if link.level in ("bad", "warn")]
        found += [f"{gpu.name} link {link.number}: {link.words}" for link in wrong[:_MOST_NAMED]]
        if len(wrong) > _MOST_NAMED:
            found.append(f"{gpu.name}: {len(wrong) - _MOST_NAMED} links more")
    return found


def _count(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{plural if number > 1 else ''}" if number else ""


def _legend(fabric: Fabric) -> str:
    """What the lines and signs mean."""
    rows = [("pcie good", "PCIe"), ("cpu", "through the CPU")]
    use = "<li>↑ sends, ↓ receives, in % of what it can</li>"
    if any(gpu.links for gpu in fabric.gpus):
        rows = [("nv u0", "NVLink, idle"), ("nv u3", "in use: the heavier, the more"), ("nv bad", "✕ down"),
                ("nv warn", "! with errors"), ("nv off", "not in use"), *rows]  # fmt: skip
    items = "".join(
        [
            f'<li><svg viewBox="0 0 26 8" aria-hidden="true"><g class="{kind}"><path class="{kind.split()[-1]}" '
            f'd="M0 4H26"/></g></svg>{words}</li>'
            for kind, words in rows
        ]
    )
    return f'<ul class="legend">{items}{use}</ul>'


def _footer(status: Status, refreshes: bool) -> str:
    documentation = (
        f'<a href="{text(status.documentation)}/using/node-page.md">Documentation</a>'
        if status.documentation
        else "Documentation: docs/using/node-page.md of commwatch"
    )
    again = (
        f'Loads itself again every {REFRESH_SECONDS} s. <a href="{STILL_PATH}">Stop that</a>'
        if refreshes
        else f'Stands still. <a href="/">Load again every {REFRESH_SECONDS} s</a>'
    )
    return f"<footer><p>{again}</p><p>{documentation}</p></footer>"
