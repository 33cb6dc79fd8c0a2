"""The node's page in a real browser: four widths, healthy and in trouble, light and dark, with and without scripts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest

from commwatch.views.node_page.page import render_node_page
from commwatch_exporters.http_server import HttpServer, Request, Response
from commwatch_exporters.node.model import Node
from support.browser import Browser, chromium
from support.http import serving
from support.node_pages import hgx, status

pytestmark = [pytest.mark.chromium, pytest.mark.xdist_group("chromium")]

WIDTHS = (360, 768, 1280, 1440)
HTML = "text/html; charset=utf-8"

OVERFLOWING = """[...document.querySelectorAll('body *')].filter(one => {
  if (one.closest('.wide') || one.closest('.unseen') || one.closest('svg')) return false;
  return one.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map(one => one.outerHTML.slice(0, 80))"""
"""Elements beyond the right edge, but for those in a part that scrolls by itself."""

SCROLLED = """[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth + 1)
  .map(one => one.getAttribute('aria-labelledby'))"""
"""Tables that are wider than their place."""

FAINT = """(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = one => {
    for (; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const one = node.parentElement;
    if (!node.data.trim() || one.closest('title, desc, .unseen')) continue;
    const style = getComputedStyle(one);
    const svg = one.ownerSVGElement;
    const ink = light(parse(svg ? style.fill : style.color));
    const grounds = svg ? [...svg.querySelectorAll('.box')].map(box => parse(getComputedStyle(box).fill)) : [];
    for (const under of [ground(one), ...grounds].map(light)) {
      const ratio = (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05);
      if (ratio < 4.5) found.push(`${node.data.trim()}: ${ratio.toFixed(2)}`);
    }
  }
  return found;
})()"""
"""Texts with a contrast below 4.5; one of the picture is held against every box, wherever it stands."""

SMALL = """[...document.querySelectorAll('svg text')].filter(one => one.getBoundingClientRect().height > 0)
  .map(one => parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a).sort((a, b) => a - b)[0]"""
"""Height of the smallest letters of the picture, pixels."""


class _Site(HttpServer):
    """The pages of a healthy and of a faulty board, and one that loads itself again after a second."""

    def __init__(self) -> None:
        pages = {
            "/healthy": render_node_page(Node(hgx()), status(), "/metrics", refreshes=False),
            "/faulty": render_node_page(Node(hgx(faulty=True)), status(faulty=True), "/metrics", refreshes=False),
            "/quick": render_node_page(Node(hgx()), status(), "/metrics").replace('content="10"', 'content="1"'),
        }
        super().__init__({path: partial(_answer, text) for path, text in pages.items()})


def _answer(text: str, _: Request) -> Response:
    return Response(HTTPStatus.OK, text.encode(), HTML)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Address of the pages, from our own server with its headers."""
    port: list[int] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(_Site()) as found:
            port.append(found)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.mark.parametrize("node", ["healthy", "faulty"])
def test_the_page_fits_every_screen(window: Browser, site: str, node: str) -> None:
    """At four widths, light and dark: nothing overflows, every text is dark or light enough and not too small."""
    window.events.clear()
    window.visit(f"{site}/{node}")
    for width in WIDTHS:
        for dark in (False, True):
            window.show(width, dark=dark)

            assert window.value("document.documentElement.scrollWidth") == width, (width, dark)
            assert window.value(OVERFLOWING) == [], (width, dark)
            assert "closed" not in window.value(SCROLLED), (width, dark)
            assert window.value(SCROLLED) == [] or width < 1280, (width, dark)
            assert window.value(FAINT) == [], (width, dark)
            assert window.value(SMALL) >= 8.5, (width, dark)
            assert window.value("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    assert window.complaints() == []
    assert window.requests() == [f"{site}/{node}"]


def test_the_reader_keeps_the_place(window: Browser, site: str) -> None:
    """The page loads itself again, with scripts off too, and stands where it stood."""
    window.show(768, 600)
    window.ask("Emulation.setScriptExecutionDisabled", value=True)
    window.events.clear()
    window.visit(f"{site}/quick")
    window.value("scrollTo(0, 700)")
    window.until(lambda event: event["method"] == "Page.loadEventFired")
    window.ask("Emulation.setScriptExecutionDisabled", value=False)

    assert window.requests()[:2] == [f"{site}/quick"] * 2
    assert window.value("scrollY") == 700
    assert window.complaints() == []
    window.visit("about:blank")


def test_the_page_is_read_without_a_screen(window: Browser, site: str) -> None:
    """Landmarks, named tables with row and column heads, and a picture in words, on a phone too."""
    for width in (360, 1440):
        window.show(width)
        window.visit(f"{site}/faulty")
        nodes = window.ask("Accessibility.getFullAXTree")["nodes"]
        names: dict[str, list[str]] = {}
        for node in nodes:
            if not node["ignored"]:
                names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
        tables = {"Closed in the last day", "Probes", "Collectors", "GPUs", "RDMA ports", "Network interfaces",
                  "Pairs of GPUs"}  # fmt: skip

        assert {"banner", "navigation", "main", "contentinfo"} <= set(names)
        assert set(names["table"]) == tables
        assert "Collector" in names["columnheader"]
        assert "Usual latency, limit" in names["columnheader"] or width == 360  # there it stands beside each cell
        assert {"GPU3", "all_reduce nccl"} <= set(names["rowheader"])
        assert any(name.startswith("8 GPUs, 8 adapter ports, 4 NVSwitches.") for name in names["image"])


def test_the_keyboard_reaches_every_link(window: Browser, site: str) -> None:
    """Tab goes from link to link and into the tables that scroll, and each shows that it is there."""
    window.show(1440)
    window.visit(f"{site}/healthy")
    here = "document.activeElement"
    reached = []
    for _ in range(40):
        window.press("Tab", 9)
        if window.value(f"{here} === document.body"):
            break
        name = window.value(f"{here}.getAttribute('href') || {here}.getAttribute('aria-labelledby')")
        reached.append(name)
        assert window.value(f"getComputedStyle({here}).outlineStyle") == "solid", name

    assert reached[:2] == ["/metrics", "/healthz"]
    assert reached[-1] == "/"
    assert {"pairs", "probes", "gpus", "collectors"} <= set(reached)


def test_pictures_are_drawn(window: Browser, site: str, tmp_path: Path) -> None:
    """The picture and the matrix have their size, and no box lies on another."""
    window.show(360)
    window.visit(f"{site}/faulty")
    boxes = window.value(
        "[...document.querySelectorAll('svg .box')].map(one => one.getBoundingClientRect())"
        ".map(one => [one.left, one.top, one.right, one.bottom])"
    )
    (tmp_path / "phone.png").write_bytes(window.picture())

    assert len(boxes) == 8 + 8 + 4
    for place, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[place + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    assert (tmp_path / "phone.png").read_bytes().startswith(b"\x89PNG")
