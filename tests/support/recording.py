"""What a daemon exposed over a stretch of time: every page, and what held on all of them."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise

from support.daemon import Daemon

EVERY_SECONDS = 0.1
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@cache
def name_of(series: str) -> str:
    """The metric of a series, without our prefix."""
    return series.partition("{")[0].removeprefix("commwatch_")


@cache
def labels_of(series: str) -> dict[str, str]:
    """The labels of a series."""
    return dict(_LABEL.findall(series))


@dataclass
class Page:
    """One scrape."""

    time: float
    """Monotonic seconds."""
    took: float
    """Seconds that the scrape took."""
    values: dict[str, float]
    """By series, as the page writes it: ``commwatch_gpu_state{gpu="0",pci_bus_id="0000:17:00.0"}``."""
    counters: frozenset[str]
    """Names of the metrics that the page declares as counters, without our prefix."""

    def where(self, metric: str, **labels: str) -> dict[str, float]:
        """The series of a metric, without our prefix, that have these labels among theirs."""
        wanted = labels.items()
        return {one: self.values[one] for one in self._by_name.get(metric, ()) if wanted <= labels_of(one).items()}

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for series in self.values:
            found[name_of(series)].append(series)
        return found

    def value(self, metric: str, **labels: str) -> float | None:
        """The value of the only series of a metric with these labels; None where there is none."""
        found = list(self.where(metric, **labels).values())
        assert len(found) <= 1, f"{len(found)} series of {metric} have {labels}"
        return found[0] if found else None

    def naming(self, text: str) -> set[str]:
        """The metrics that have a series with this text among its labels."""
        return {name_of(series) for series in self.values if text in series}


@dataclass
class Record:
    """Every page of a stretch of time."""

    pages: list[Page] = field(default_factory=list)
    error: Exception | None = None

    @property
    def last(self) -> Page:
        """The page of now."""
        assert self.error is None, self.error
        return self.pages[-1]

    def after(self, number: int) -> list[Page]:
        """The pages but the first so many."""
        assert self.error is None, self.error
        return self.pages[number:]

    def since(self, page: Page) -> list[Page]:
        """A page and all that came after it."""
        return [one for one in self.pages if one.time >= page.time]

    def when(self, holds: Callable[[Page], object], after: Page | None = None) -> Page:
        """The first page on which something held."""
        pages = self.since(after) if after else self.pages
        found = next((page for page in pages if holds(page)), None)
        assert found is not None, f"on none of {len(pages)} pages"
        return found


@contextmanager
def recorded(daemon: Daemon) -> Iterator[Record]:
    """Scrape a daemon ten times a second; ends with the block, or at the first scrape that fails."""
    record, stop = Record([scrape(daemon)]), threading.Event()

    def watch() -> None:
        while not stop.wait(EVERY_SECONDS):
            try:
                record.pages.append(scrape(daemon))
            except Exception as error:
                record.error = error
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield record
    finally:
        stop.set()
        thread.join()
    assert record.error is None, record.error


def scrape(daemon: Daemon) -> Page:
    """The page of now."""
    started = time.monotonic()
    status, text = daemon.get("/metrics")
    took = time.monotonic() - started
    assert status == 200
    assert text.endswith("\n")
    values: dict[str, float] = {}
    counters = set()
    for line in text.splitlines():
        if line.startswith("# TYPE ") and line.endswith(" counter"):
            counters.add(line.split()[2].removeprefix("commwatch_"))
        elif not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            assert series not in values, f"twice on one page: {series}"
            values[series] = float(value)
    return Page(started, took, values, frozenset(counters))


# --- what must hold on every page ---


def assert_no_false_use(pages: list[Page]) -> None:
    """No ratio of use below 0 or above what a link can carry."""
    for page in pages:
        for series, value in page.values.items():
            if "utilization" in series:
                assert 0 <= value <= 1.1, f"{series} {value}"


def assert_whole(before: Page, pages: list[Page], may_go: Callable[[str], bool]) -> None:
    """What was on a page is on all that follow.

    Args:
        before: the page.
        pages: those that follow.
        may_go: whether a series may be absent.
    """
    must_stay = [series for series in before.values if not may_go(series)]
    for page in pages:
        gone = [series for series in must_stay if series not in page.values]
        assert not gone, f"after {page.time - before.time:.1f} s {len(gone)} series are gone: {gone[:5]}"


def assert_growing(pages: list[Page], may_fall: Callable[[str], bool]) -> None:
    """No counter falls from page to page, unless it may: a fall looks like all of it counted at once."""
    for earlier, later in pairwise(pages):
        for series, value in later.values.items():
            if name_of(series) in later.counters and not may_fall(series):
                assert value >= earlier.values.get(series, value), f"{series} fell to {value}"


def longest_rest(pages: list[Page], series: str) -> float:
    """The longest time for which a value was the same, seconds."""
    since, longest = pages[0].time, 0.0
    for earlier, later in pairwise(pages):
        if earlier.values.get(series) != later.values.get(series):
            since = later.time
        longest = max(longest, later.time - since)
    return longest
