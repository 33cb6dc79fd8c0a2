"""NVLinks to the same place are compared once a minute, and the one that falls furthest behind is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from commwatch.readings import Absence
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, collected
from support.fed_daemon import FedDaemon

GPU = ("0", SLOTS[0])
MINUTE = 60.0
LINKS = "0123"
SWITCHES = dict.fromkeys(LINKS, "switch")


class Links:
    """Four links of a GPU that lead to the same switches, minute by minute."""

    def __init__(self, node: FedDaemon) -> None:
        self.node = node
        self._bytes = [0.0] * 4
        self.states: list[Value] = [1, 1, 1, 1]
        self.lead(SWITCHES)

    def lead(self, far_ends: Mapping[str, str]) -> None:
        """Have the driver report where the links lead: to the switches, or to the address of a GPU."""
        ends = {link: (end, "") if end == "switch" else ("gpu", end) for link, end in far_ends.items()}
        infos: dict[Series, Value] = {
            ("commwatch_nvlink_info", (*GPU, link, "4.0", *ends.get(link, ("", "")), "")): 1 for link in LINKS
        }
        self.node.feed("nvml_identity", {GPU[1]: infos})

    def step(self, *rates: float | None, seconds: float = MINUTE) -> tuple[Value, ...]:
        """The shares after a time in which the links sent at these rates, bytes per second; None: not read at its end.

        The slowest link, its rate, and the median of its siblings.
        """
        self.node.clock.now += seconds
        self._bytes = [count + (rate or 0.0) * seconds for count, rate in zip(self._bytes, rates, strict=True)]
        shown = [None if rate is None else count for count, rate in zip(self._bytes, rates, strict=True)]
        values: dict[Series, Value] = {
            (f"commwatch_nvlink_{name}", (*GPU, link)): value
            for name, of_links in (
                ("link_state", self.states), ("transmit_bytes_total", shown), ("receive_bytes_total", self._bytes)
            )
            for link, value in zip(LINKS, of_links, strict=True)
        }  # fmt: skip
        self.node.feed("nvml_nvlink", {GPU[1]: values})
        return self.told("transmit")

    def told(self, direction: str) -> tuple[Value, ...]:
        names = ("slowest_link", "slowest_link_bytes_per_second", "sibling_bytes_per_second")
        return tuple(self.node.value(f"nvlink_{name}", *GPU, direction) for name in names)


NOTHING = (None, None, None)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Links:
    links = Links(FedDaemon(tmp_path, monkeypatch))
    assert links.step(0, 0, 0, 0) == NOTHING
    return links


def test_the_link_that_falls_furthest_behind_is_told(links: Links) -> None:
    """With what it carried and the median of the others, in each direction."""
    assert links.step(100.0, 40.0, 90.0, 110.0) == (1, 40.0, 100.0)
    assert links.told("receive") == (1, 40.0, 100.0)


def test_a_minute_must_be_over(links: Links) -> None:
    """Over a second traffic is uneven on healthy links too; the next minute begins where the last one ended."""
    assert links.step(100.0, 40.0, 100.0, 100.0, seconds=MINUTE - 1.0) == NOTHING
    assert links.step(100.0, 40.0, 100.0, 100.0, seconds=1.0) == (1, 40.0, 100.0)
    assert links.step(100.0, 100.0, 0.0, 100.0, seconds=MINUTE / 2) == (1, 40.0, 100.0)
    assert links.step(100.0, 100.0, 100.0, 100.0, seconds=MINUTE / 2) == (2, 50.0, 100.0)


@pytest.mark.parametrize(
    ("far_ends", "rates", "told"),
    [
        ({"0": SLOTS[1], "1": SLOTS[1], "2": SLOTS[1], "3": "0000:19:00.0"}, (100.0, 100.0, 50.0, 0.0), (2, 50, 100)),
        ({}, (100.0, 0.0, 100.0, 100.0), NOTHING),
        ({"0": "switch", "1": "switch"}, (100.0, 0.0, 100.0, 100.0), NOTHING),
    ],
    ids=["another end", "ends unknown", "one sibling"],
)
def test_only_links_to_the_same_place_are_compared(
    links: Links, far_ends: Mapping[str, str], rates: Sequence[float], told: Sequence[Value]
) -> None:
    """A neighbour that gets nothing has no slow link, and with one sibling it is not known which is at fault."""
    links.lead(far_ends)

    assert links.step(*rates) == told


def test_without_an_identity_nothing_is_compared(links: Links) -> None:
    """Then no one knows where the links lead."""
    links.node.engine.store.drop("nvml_identity", GPU[1])

    assert links.step(100.0, 0.0, 100.0, 100.0) == NOTHING


def test_a_link_that_is_down_is_no_sibling(links: Links) -> None:
    """That it carries nothing is another finding; one that came up within the minute has no minute yet."""
    links.states[1] = 0

    assert links.step(100.0, 0.0, 90.0, 100.0) == (2, 90.0, 100.0)
    links.states[1] = 1
    assert links.step(100.0, 10.0, 90.0, 100.0) == (2, 90.0, 100.0)
    assert links.step(100.0, 10.0, 90.0, 100.0) == (1, 10.0, 100.0)


def test_without_the_rate_of_one_nothing_is_said(links: Links) -> None:
    """What was not read is not 0; the other direction was read."""
    assert links.step(100.0, None, 100.0, 50.0) == NOTHING
    assert links.told("receive") == (1, 0.0, 100.0)


def test_a_gap_says_nothing_of_the_time_in_it(links: Links) -> None:
    """The comparison begins again."""
    assert links.step(100.0, 0.0, 100.0, 100.0, seconds=2 * MINUTE + 1.0) == NOTHING
    assert links.step(100.0, 40.0, 100.0, 100.0) == (1, 40.0, 100.0)


def test_what_is_told_is_no_older_than_the_next_minute(links: Links) -> None:
    """And the runs of the collector that may be missed."""
    links.step(100.0, 40.0, 100.0, 100.0)
    lifetime = links.node.engine.collection.collectors["nvml_nvlink"].lifetime
    for seconds, told in ((MINUTE + lifetime - 0.1, 1), (0.2, None)):
        links.node.clock.now += seconds
        links.node.engine.store.expire(links.node.clock.now)
        assert links.told("transmit")[0] == told


def test_what_is_not_read_any_more_is_not_told(links: Links) -> None:
    """As of a GPU that is lost."""
    links.step(100.0, 40.0, 100.0, 100.0)
    links.node.engine.store.drop("nvml_nvlink", GPU[1])
    links.node.feed("nvml_nvlink", collected({}, Absence(GPU[1], "lost", "")))

    assert links.told("transmit") == NOTHING
