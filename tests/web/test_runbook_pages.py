"""The runbooks over HTTP: one page for each alert, their list, and nothing else of the file system."""

from __future__ import annotations

import asyncio

from commwatch.config.assets import asset
from commwatch.views.node_page.runbooks import runbook_pages
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.web import Endpoint
from support.html_pages import Page
from support.http import Answer, ask, serving

PATHS = [f"/runbooks/{path.name}" for path in sorted(asset("alerts/runbooks").glob("*.md"))]
HTML = "text/html; charset=utf-8"


def answers(*requests: tuple[str, str]) -> list[Answer]:
    """Of an endpoint with the runbooks, to requests with a method and a path."""
    endpoint = Endpoint(
        metrics=MetricsPage(lambda: Snapshot(())), pages=runbook_pages()
    )  # fmt: skip

    async def send() -> list[Answer]:
        async with serving(endpoint) as port:
            return [await ask(port, path, method=method) for method, path in requests]

    return asyncio.run(send())


def links(page: Page) -> list[str | None]:
    """Their targets."""
    return [names["href"] for tag, names in page.elements if tag == "a"]


def test_each_alert_has_a_page_and_the_list_leads_to_it() -> None:
    """HTML with the alert's name as heading; its links lead to pages of the node."""
    listed, *found = answers(("GET", "/runbooks/"), *(("GET", path) for path in PATHS))

    assert (listed.status, listed.headers["content-type"]) == (200, HTML)
    assert links(Page(listed.body.decode())) == ["/", "/runbooks/", *PATHS]
    for path, answer in zip(PATHS, found, strict=True):
        page = Page(answer.body.decode())
        assert (answer.status, answer.headers["content-type"]) == (200, HTML), path
        assert page.headings[0] == (1, path.removeprefix("/runbooks/").removesuffix(".md"))
        assert links(page) == ["/", "/runbooks/"], path


def test_nothing_else_lies_there() -> None:
    """An unknown name is not found, and a path is neither decoded nor joined to a folder."""
    elsewhere = [
        "/runbooks", "/runbooks/Unknown.md", "/runbooks/CommwatchNvlinkDown", "/runbooks/commwatchnvlinkdown.md",
        "/runbooks/../thresholds.yaml", "/runbooks/../../../../etc/passwd", "/runbooks/%2e%2e/thresholds.yaml",
        "/runbooks/..%2fthresholds.yaml", "/runbooks//etc/passwd", "/runbooks/./CommwatchNvlinkDown.md",
        "/runbooks/CommwatchNvlinkDown.md/", "/runbooks/CommwatchNvlinkDown.md%00",
    ]  # fmt: skip

    assert {path: answer.status for path, answer in zip(elsewhere, answers(*(("GET", path) for path in elsewhere)),
                                                        strict=True)} == dict.fromkeys(elsewhere, 404)  # fmt: skip


def test_methods() -> None:
    """HEAD has the headers of GET and no body; whatever would change something is refused."""
    whole, head, post = answers(*((method, PATHS[0]) for method in ("GET", "HEAD", "POST")))

    assert (head.status, head.body) == (200, b"")
    assert head.headers == {**whole.headers, "date": head.headers["date"]}
    assert (post.status, post.headers["allow"]) == (405, "GET, HEAD")
