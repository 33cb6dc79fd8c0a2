"""The arithmetic behind docs/engineering/sizing.md: pages of the profiles, and what many nodes bring."""

from __future__ import annotations

import pytest
from benchmarks.sizing import Page, bytes_of_each, fleet_rows, pages

from commwatch.config.metric_profile import unexported
from commwatch.config.settings import Metrics
from commwatch_exporters.catalogue import CATALOGUE, OPT_IN
from support.pages import page_of, snapshot_of, whole_catalogue


def test_each_profile_has_what_the_daemon_would_leave_on_its_page() -> None:
    """From one page with everything: its series, its bytes, and the families of the smaller ones."""
    whole = page_of(snapshot_of(whole_catalogue()))
    found = pages(whole.decode())

    assert found["all"].plain_bytes == len(whole)
    assert found["all"].series == sum(not line.startswith(b"#") for line in whole.splitlines())
    for profile, left_out in (("standard", OPT_IN), ("core", unexported(Metrics(profile="core")) | OPT_IN)):
        values = {series: value for series, value in whole_catalogue().items() if series[0] not in left_out}
        kept = sum(name not in left_out for name in CATALOGUE)
        assert 0 < kept < len(CATALOGUE)
        smaller = page_of(snapshot_of(values))
        assert abs(found[profile].plain_bytes - len(smaller)) < 100  # the process was read at another time


def test_a_compressed_page_is_as_large_as_the_daemon_makes_it() -> None:
    """One gzip member of the whole page."""
    snapshot = snapshot_of(whole_catalogue())

    found = pages(page_of(snapshot).decode())

    assert abs(found["all"].gzip_bytes - len(page_of(snapshot, gzip=True))) < 100  # as above


def test_fleets_are_what_one_node_brings_so_many_times() -> None:
    """Samples each 15 s; memory by what each series took where it was measured."""
    each = bytes_of_each({"nodes": 100.0, "series_per_node": 1_000.0, "memory_mebibytes": 500.0})
    rows = list(fleet_rows({"node": {"core": Page(1_000, 100_000, 15_000)}}, each))

    assert each == pytest.approx(5 * 2**20 / 1000)
    assert rows[2] == "| node | core | 100k / 500k / 2.0M | 7k / 33k / 133k | 0.1 / 0.5 / 2.0 | 0.5 / 2.4 / 9.8 |"
