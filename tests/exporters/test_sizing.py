"""The arithmetic behind docs/engineering/sizing.md: pages of the profiles, a line through two measurements."""

from __future__ import annotations

import zlib

import pytest
from benchmarks.sizing import Page, fleet_rows, line_through, pages

from commwatch.config.metric_profile import unexported
from commwatch.config.settings import Metrics
from commwatch_exporters.catalogue import CATALOGUE, OPT_IN
from commwatch_exporters.page_parts import Part, join_gzip
from commwatch_exporters.prometheus import Format, render
from support.pages import snapshot_of, whole_catalogue


def test_each_profile_has_what_the_daemon_would_leave_on_its_page() -> None:
    """From one page with everything: its series, its bytes, and the families of the smaller ones."""
    whole = render(snapshot_of(whole_catalogue()), Format.TEXT)
    found = pages(whole.decode())

    assert found["all"].plain_bytes == len(whole)
    assert found["all"].series == sum(not line.startswith(b"#") for line in whole.splitlines())
    for profile, left_out in (("standard", OPT_IN), ("core", unexported(Metrics(profile="core")) | OPT_IN)):
        values = {series: value for series, value in whole_catalogue().items() if series[0] not in left_out}
        kept = sum(name not in left_out for name in CATALOGUE)
        assert 0 < kept < len(CATALOGUE)
        smaller = render(snapshot_of(values), Format.TEXT)
        assert abs(found[profile].plain_bytes - len(smaller)) < 100  # the process was read at another time


def test_a_compressed_page_is_as_large_as_the_daemon_makes_it() -> None:
    """Family by family, and readable."""
    text = 'commwatch_gpu_state{gpu="0",pci_bus_id="a"} 0\ncommwatch_gpu_busy{gpu="0",pci_bus_id="a"} 1\n'
    parts = [Part(line.encode()) for line in text.splitlines(keepends=True)]

    assert pages(text)["all"].gzip_bytes == len(join_gzip(parts))
    assert zlib.decompress(join_gzip(parts), 31).decode() == text


def test_memory_is_on_the_line_through_what_was_measured() -> None:
    """Two points give the base and what each series takes; a fleet between them is between them."""
    few = {"memory_mebibytes": 300.0, "head_series": 50_000.0}
    many = {"memory_mebibytes": 1300.0, "head_series": 250_000.0}
    base, each = line_through(few, many)

    assert base == pytest.approx(50 * 2**20)
    assert each == pytest.approx(5 * 2**20 / 1000)
    rows = list(fleet_rows({"node": {"core": Page(1_000, 100_000, 15_000)}}, (base, each)))
    assert rows[2] == "| node | core | 100 | 100,000 | 6,667 | 0.10 MB/s | 0.5 GiB |"
