"""The page of a snapshot, judged by the parsers that read it."""

from __future__ import annotations

import logging
import math
import subprocess
import zlib
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from commwatch_exporters import node_collector
from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.metrics_page import OWN_SECONDS, MetricsPage
from commwatch_exporters.node_collector import Format, NodeCollector
from commwatch_exporters.snapshot import Block, Series, Snapshot, Value
from support.pages import asked, block_of, families_of, histogram_values, page_of, snapshot_of, whole_catalogue
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS

FORMATS = pytest.mark.parametrize("page_format", Format)

STATE = "commwatch_gpu_state"
GPU_0 = (STATE, ("0", "0000:17:00.0"))
_FAMILIES = NodeCollector(lambda: Snapshot([])).describe()
DESCRIBED = dict(zip(CATALOGUE, (family.name for family in _FAMILIES), strict=True))
"""Names of the families by those of the catalogue."""

GPU_1 = (STATE, ("1", "0000:27:00.0"))


def read(page: bytes, page_format: Format) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a reader of the page takes from it, without the metrics of the process."""
    samples = [one for family in families_of(page.decode(), page_format) for one in family.samples]
    ours = [one for one in samples if not one.name.startswith("process_")]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in ours}

    assert len(ours) == len(found), "a series stands twice on the page"
    return found


def expected(values: Mapping[Series, Value]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a reader should take from a page of these values."""
    return {
        (name, frozenset(zip((*family_of(name).labels, "le"), labels, strict=False))): value
        for (name, labels), value in values.items()
        if value is not None
    }


@FORMATS
def test_every_metric_of_the_catalogue_is_read_back(page_format: Format) -> None:
    """Each family arrives with its type, help and values."""
    values = whole_catalogue()

    page = page_of(snapshot_of(values), page_format)
    families = {family.name: family for family in families_of(page.decode(), page_format)}

    assert expected(values) == read(page, page_format)
    for metric in CATALOGUE.values():
        if page_format is Format.OPENMETRICS:
            family = families[DESCRIBED[metric.name]]
            assert metric.type == family.type
            assert metric.unit == family.unit
        else:
            family = families[metric.name.removesuffix("_total") if metric.type == "counter" else metric.name]
            assert ("gauge" if metric.type == "info" else metric.type) == family.type
        assert metric.text == family.documentation


@FORMATS
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4, unique=True),
    number=st.floats() | st.integers(min_value=-(2**63), max_value=2**64),
)
def test_any_label_value_and_number_are_read_back(page_format: Format, texts: list[str], number: float) -> None:
    """Backslash, quote, line feed and all of Unicode in a label value, and every number, survive the page."""
    values: dict[Series, Value] = {(STATE, (text, text[::-1])): number for text in texts}

    found = read(page_of(snapshot_of(values), page_format), page_format)

    assert expected(values).keys() == found.keys()
    assert all(value == number or (math.isnan(value) and math.isnan(number)) for value in found.values())


@FORMATS
def test_histograms_of_two_probes_are_read_back(page_format: Format) -> None:
    """Buckets, count and sum of each probe stay together, as OpenMetrics demands."""
    family = "commwatch_probe_latency_seconds"
    values = histogram_values(family, ("small", "nccl"), {"1e-05": 0, "0.001": 2, "1.0": 3, "+Inf": 4}, 1.5)
    values |= histogram_values(family, ("pair", "gloo"), {"1e-05": 1, "0.001": 1, "1.0": 1, "+Inf": 1}, 2e-6)

    assert expected(values) == read(page_of(snapshot_of(values), page_format), page_format)


@FORMATS
def test_what_was_not_read_is_absent(page_format: Format) -> None:
    """None gives no series, and a family without a series gives no header."""
    page = page_of(snapshot_of({GPU_0: None, ("commwatch_simulated", ()): 0}), page_format)

    assert STATE.encode() not in page
    assert {("commwatch_simulated", frozenset())} == read(page, page_format).keys()


@FORMATS
def test_families_stand_in_the_order_of_the_catalogue(page_format: Format) -> None:
    """The order of the blocks does not matter, and no family is split by them."""
    last: dict[Series, Value] = {("commwatch_simulated", ()): 0, GPU_1: 2}
    page = page_of(snapshot_of(last, {GPU_0: 0}), page_format).decode()

    headers = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE commwatch_")]
    assert headers == [STATE, "commwatch_simulated"]


def test_openmetrics_names_do_not_clash() -> None:
    """No two families have one name once the suffixes are off, nor does a name end with a series' suffix."""
    names = list(DESCRIBED.values())

    assert len(names) == len(set(names))
    assert [name for name in names if name.endswith(("_total", "_info", "_created", "_bucket", "_count", "_sum"))] == []


@pytest.mark.parametrize("encoding", ["", "gzip"])
@FORMATS
def test_scrapes_between_two_samples_share_one_rendering(page_format: Format, encoding: str) -> None:
    """A new sample is shown at once."""
    clock, now = [0.0], [snapshot_of({GPU_0: 0})]
    page = MetricsPage(lambda: now[0], monotonic=lambda: clock[0])

    def scrape() -> bytes:
        return asked(page, page_format, encoding)

    first = scrape()
    clock[0] = OWN_SECONDS / 2
    assert scrape() is first
    now[0] = snapshot_of({GPU_0: 1})
    second = scrape()
    assert second is not first
    assert scrape() is second
    clock[0] += OWN_SECONDS
    assert scrape() is not second


def test_what_the_process_says_of_itself_is_at_most_five_seconds_old() -> None:
    """And no older than the last time at which a series of the node came or went."""
    clock, own = [0.0], CollectorRegistry(auto_describe=True)
    block = block_of({GPU_0: 0})
    now = [Snapshot([block])]
    counter = Counter("commwatch_clock_steps_total", "Steps.", registry=own)
    page = MetricsPage(lambda: now[0], own, lambda: clock[0])

    def steps() -> float:
        return read(asked(page), Format.TEXT)["commwatch_clock_steps_total", frozenset()]

    assert steps() == 0
    counter.inc()
    clock[0], now[0] = OWN_SECONDS - 0.1, Snapshot([Block(block.layout, [1], 1.0)])
    assert steps() == 0
    clock[0] = OWN_SECONDS
    assert steps() == 1
    counter.inc()
    now[0] = snapshot_of({GPU_0: 0, GPU_1: 0})
    assert steps() == 2


def test_the_process_speaks_for_itself() -> None:
    """What its own registry holds is not taken from the snapshot as well."""
    own = CollectorRegistry(auto_describe=True)
    Gauge("commwatch_simulated", "Of the daemon.", registry=own).set(0)

    page = MetricsPage(lambda: snapshot_of({GPU_0: 0, ("commwatch_simulated", ()): 1}), own)

    assert read(asked(page), Format.TEXT) == expected({GPU_0: 0, ("commwatch_simulated", ()): 0})


def test_a_profile_holds_for_what_the_process_says_of_itself() -> None:
    """A family that is left off the page is not taken from its registry either; ``process_*`` stays."""
    own = CollectorRegistry(auto_describe=True)
    Gauge("commwatch_simulated", "Of the daemon.", registry=own)
    Gauge("commwatch_starved", "Of the daemon.", registry=own)
    snapshot = Snapshot(snapshot_of({GPU_0: 0}).blocks, unexported=frozenset({"commwatch_starved"}))

    page = asked(MetricsPage(lambda: snapshot, own))

    assert read(page, Format.TEXT) == expected({GPU_0: 0, ("commwatch_simulated", ()): 0})
    assert b"process_open_fds" in page


@in_one_pass(
    "add, named",
    [
        (lambda registry: registry.register(NodeCollector(lambda: Snapshot([]))), "commwatch_gpu_state"),
        (lambda registry: ProcessCollector(registry=registry), "process_open_fds"),
        (lambda registry: Gauge("commwatch_gpu_busy", "Mine.", registry=registry), "commwatch_gpu_busy"),
    ],
)
def test_a_registry_refuses_what_it_has_already(add: Callable[[CollectorRegistry], object], named: str) -> None:
    """And says which series: with both, a reader would refuse the page."""
    registry = MetricsPage(lambda: Snapshot([])).registry

    with pytest.raises(ValueError, match=named):
        add(registry)


@FORMATS
def test_gzip_holds_the_same_page(page_format: Format) -> None:
    """One complete gzip member."""
    snapshot, reader = snapshot_of(whole_catalogue()), zlib.decompressobj(wbits=31)
    page = MetricsPage(lambda: snapshot, CollectorRegistry())
    plain, compressed = (asked(page, page_format, encoding) for encoding in ("", "gzip"))

    assert plain == reader.decompress(compressed)
    assert reader.eof
    assert reader.unused_data == b""


@FORMATS
def test_each_page_is_that_of_its_snapshot(page_format: Format) -> None:
    """Of one endpoint: values change, series come and go with the same layout or another, a family is left out."""
    layout = block_of({GPU_0: 0, GPU_1: 0}).layout
    rows: list[list[Value]] = [[0, 1], [1, 1], [None, 2], [3, None], [None, None], [4, 4]]
    snapshots = [Snapshot([Block(layout, values, 0.0)]) for values in rows]
    snapshots += [
        Snapshot([Block(layout, [5, 5], 0.0)], unexported=frozenset({STATE})),
        Snapshot([Block(layout, [6, 6], 0.0)], hidden=[STATE]),
        snapshot_of({GPU_1: 7}, {GPU_0: 8}),
        snapshot_of({GPU_0: 9, GPU_1: 10}),
    ]
    served = iter(snapshots)
    page = MetricsPage(lambda: next(served), CollectorRegistry())

    found = [read(asked(page, page_format), page_format) for _ in snapshots]

    values_of = [
        (0, 1),
        (1, 1),
        (None, 2),
        (3, None),
        (None, None),
        (4, 4),
        (None, None),
        (None, None),
        (8, 7),
        (9, 10),
    ]
    assert found == [expected({GPU_0: one, GPU_1: other}) for one, other in values_of]


@FORMATS
def test_a_series_of_two_blocks_stands_once(page_format: Format, caplog: pytest.LogCaptureFixture) -> None:
    """The first value counts and the mistake is logged once; a block that did not read the series does not count."""
    node_collector._report_repeat.cache_clear()
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            page = page_of(snapshot_of({GPU_0: None, GPU_1: 1}, {GPU_0: 3, GPU_1: 4}), page_format)

    assert expected({GPU_0: 3, GPU_1: 1}) == read(page, page_format)
    assert [f"{STATE}: two blocks give the same series; the first one is exposed"] == caplog.messages


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say() -> None:
    """promtool's linter accepts every name, type and help text of the catalogue."""
    page = page_of(snapshot_of(whole_catalogue()))
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=PATIENCE_SECONDS)

    assert (done.returncode, done.stderr.decode()) == (0, "")
