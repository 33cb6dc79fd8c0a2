"""collect[] and exclude[]: a part of the page, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from commwatch_exporters.catalogue import SECTIONS
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.node_collector import Format
from commwatch_exporters.web import Endpoint
from support.http import Answer, ask, serving
from support.pages import asked, families_of, snapshot_of, whole_catalogue
from support.passes import in_one_pass

DOCUMENT = Path(__file__).parents[2] / "docs" / "using" / "endpoint.md"
SNAPSHOT = snapshot_of(whole_catalogue())
NAMES = {title.lower().replace(" ", "_"): {metric.name for metric in rows} for title, rows in SECTIONS.items()}
GROUPS = (*NAMES, "process")


def scraped(*queries: str) -> list[Answer]:
    """What the endpoint answers to each query on one port."""

    async def ask_all() -> list[Answer]:
        endpoint = Endpoint(metrics=MetricsPage(lambda: SNAPSHOT))
        async with serving(endpoint) as port:
            return [await ask(port, f"/metrics{query}") for query in queries]

    return asyncio.run(ask_all())


def shown(answer: Answer) -> set[str]:
    """The families of a page but those of the process."""
    assert answer.status == 200, answer.body
    families = families_of(answer.body.decode(), Format.TEXT)
    names = {line.split()[2] for line in answer.body.decode().splitlines() if line.startswith("# TYPE ")}
    assert len(families) == len(names)
    return {name for name in names if not name.startswith("process_")}


def test_a_page_has_the_groups_that_are_asked_for() -> None:
    """As they are spelled, or with the brackets as %5B and %5D, as Prometheus sends them."""
    plain, coded, rest = scraped(
        "?collect[]=nvlink&collect[]=pcie", "?collect%5B%5D=nvlink", "?exclude[]=pairs&exclude%5B%5D=process"
    )

    assert shown(plain) == NAMES["nvlink"] | NAMES["pcie"]
    assert shown(coded) == NAMES["nvlink"]
    assert shown(rest) == set().union(*NAMES.values()) - NAMES["pairs"]
    assert b"\nprocess_cpu" not in plain.body + coded.body + rest.body


def test_the_process_is_a_group() -> None:
    """Alone it has no family of the catalogue."""
    (page,) = scraped("?collect[]=process")

    assert shown(page) == set()
    assert b"\nprocess_cpu_seconds_total" in page.body


def test_other_parameters_have_no_effect() -> None:
    """As of node_exporter: the page is the whole one."""
    whole, queried = scraped("", "?debug=true&collect=gpu")

    assert shown(whole) == shown(queried) == set().union(*NAMES.values())
    assert b"\nprocess_cpu_seconds_total" in queried.body


@in_one_pass(
    "query, says",
    [
        ("collect[]=nvlnk", "no group 'nvlnk'; there are gpu, nvlink, "),
        ("collect[]=", "no group ''; there are gpu, nvlink, "),
        ("collect[]=a%0D%0AX-Y:1", r"no group 'a\r\nX-Y:1'; there are "),
        ("exclude[]=gpu&collect[]=pcie", "collect[] and exclude[] do not go together"),
        ("&".join(["collect[]=gpu"] * 65), "more than 64 fields in the query"),
    ],
)
def test_a_query_that_names_no_page_is_400_in_one_line(query: str, says: str) -> None:
    """The line says why, and what there is."""
    (answer,) = scraped(f"?{query}")

    assert answer.status == 400
    assert answer.body.decode().startswith(says)
    assert answer.body.count(b"\n") == 1


def test_all_groups_together_are_the_whole_page() -> None:
    """No family is in none."""
    query = "&".join(f"collect[]={name}" for name in GROUPS)

    whole, together = scraped("", f"?{query}")

    # Not byte for byte: the process may be read again between the two.
    assert shown(together) == shown(whole)
    assert b"\nprocess_cpu_seconds_total" in together.body


def test_nothing_is_kept_of_a_part() -> None:
    """Whatever clients ask for, the daemon's memory holds the whole pages only."""

    page = MetricsPage(lambda: SNAPSHOT)

    for name in GROUPS:
        assert asked(page, encoding="gzip", query=f"collect[]={name}")

    assert page._bodies == {}


def test_the_document_names_every_group() -> None:
    """docs/using/endpoint.md has them as the endpoint has them."""
    (answer,) = scraped("?collect[]=none")
    listed = DOCUMENT.read_text(encoding="utf-8").partition("The groups are")[2].partition(".\n")[0]

    assert answer.body.decode().endswith(f"; there are {', '.join(GROUPS)}\n")
    assert [word for word in GROUPS if f"`{word}`" not in listed] == []
