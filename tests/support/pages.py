"""Snapshots for tests of what is made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from http import HTTPStatus

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as _parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as _parse_text

from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.http_server import Request
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.node_collector import Format, NodeCollector
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

_OTHER_GPUS = re.compile(r'(gpu|peer)="[1-9]"')


def block_of(values: Mapping[Series, Value]) -> Block:
    """A block of these series, taken at monotonic time 0."""
    return Block(Layout(values), list(values.values()), 0.0)


def snapshot_of(*values: Mapping[Series, Value]) -> Snapshot:
    """A snapshot with a block for each mapping."""
    return Snapshot([block_of(one) for one in values])


def histogram_values(
    family: str, labels: tuple[str, ...], buckets: Mapping[str, int], total: float
) -> dict[Series, Value]:
    """The series of one histogram; the last bucket holds all observations."""
    values: dict[Series, Value] = {(f"{family}_bucket", (*labels, bound)): count for bound, count in buckets.items()}
    values[f"{family}_count", labels] = max(buckets.values())
    values[f"{family}_sum", labels] = total
    return values


def whole_catalogue() -> dict[Series, Value]:
    """One series or histogram of every metric of the catalogue."""
    values: dict[Series, Value] = {}
    for metric in CATALOGUE.values():
        labels = tuple(f"{label}-1" for label in metric.labels)
        if metric.type == "histogram":
            values |= histogram_values(metric.name, labels, {"0.001": 1, "0.01": 3, "+Inf": 4}, 0.05)
        else:
            values[metric.name, labels] = 1
    return values


def families_of(page: str, page_format: Format) -> list[Metric]:
    """What prometheus_client's parser of the format reads."""
    if page_format is Format.TEXT:
        return list(_parse_text(page))
    return list(_parse_openmetrics(page))  # type: ignore[no-untyped-call]  # prometheus_client gives it no types


def lines_of(block: Block, family: str) -> str:
    """The lines of a family on the page of a block, without the header."""
    snapshot = Snapshot([block])
    text = NodeCollector(lambda: snapshot).text(snapshot, Format.TEXT, {family})
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def asked(page: MetricsPage, page_format: Format = Format.TEXT, encoding: str = "", query: str = "") -> bytes:
    """The answer to a client that takes a format and an encoding."""
    headers = {"accept": page_format.content_type, "accept-encoding": encoding}
    answer = page.answer(Request("/metrics", headers, query))
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, page_format.content_type)
    assert (("Content-Encoding", "gzip") in answer.headers) == bool(encoding)
    return answer.body


def page_of(snapshot: Snapshot, page_format: Format = Format.TEXT, *, gzip: bool = False) -> bytes:
    """The page of a snapshot, and of this process."""
    return asked(MetricsPage(lambda: snapshot), page_format, "gzip" if gzip else "")


def first_gpu_lines(snapshot: Snapshot, families: Collection[str] = CATALOGUE) -> str:
    """The samples on the page of a node, those of the first GPU only: the others look alike."""
    return "".join(
        line
        for line in page_of(snapshot).decode().splitlines(keepends=True)
        if line.startswith("commwatch_")
        and family_of(line.partition(" ")[0].partition("{")[0]).name in families
        and not _OTHER_GPUS.search(line)
    )


def samples(lines: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each series with its number: neither the order of the lines nor the way to write a number counts."""
    read = [one for family in families_of(lines, Format.TEXT) for one in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in read}
    assert len(found) == len(read), "a series stands twice on the page"
    return found
