"""The slowest NVLink of each GPU stands in the store while its links are read and it is known where they lead."""

from __future__ import annotations

from commwatch.node.link_shares import LINK_SHARES, Shares
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from support.core import SLOTS, ScriptedReader, collected, collector

GPU = ("0", SLOTS[0])
LINKS = ("0", "1", "2")
METRIC = "commwatch_nvlink_slowest_link"
LAYOUT = Layout(
    (name, (*GPU, link))
    for name in ("commwatch_nvlink_link_state", "commwatch_nvlink_transmit_bytes_total")
    for link in LINKS
)
COLLECTOR = collector("nvml_nvlink", ScriptedReader(), interval=1.0)


def read(shares: Shares, store: Store, time: float, *counts: float) -> Value:
    """Which link is told to be the slowest after a reading of their byte counters."""
    block = Block(LAYOUT, [1] * len(LINKS) + list(counts), time)
    store.put("nvml_nvlink", GPU[1], block, time + 3.0)
    shares.on_batch(Outcome(COLLECTOR, collected({GPU[1]: block})))
    return store.snapshot().value(METRIC, *GPU, "transmit")


def identify(store: Store, far_end: tuple[str, str]) -> None:
    """What the identity says of where the links lead: kind and address."""
    infos: list[Series] = [("commwatch_nvlink_info", (*GPU, link, "4.0", *far_end, "")) for link in LINKS]
    store.put("nvml_identity", GPU[1], Block(Layout(infos), [1] * len(infos), 0.0), float("inf"))


def test_the_slowest_link_is_told_until_the_next_minute_is_over() -> None:
    """It is no older than that, and goes with the readings of the GPU."""
    store = Store()
    shares = Shares(store)
    identify(store, ("switch", ""))

    assert read(shares, store, 100.0, 0.0, 0.0, 0.0) is None
    assert read(shares, store, 160.0, 6000.0, 600.0, 6000.0) == 1
    assert read(shares, store, 200.0, 6000.0, 9000.0, 6000.0) == 1
    store.expire(160.0 + 60.0 + COLLECTOR.lifetime + 0.1)
    assert store.snapshot().value(METRIC, *GPU, "transmit") is None


def test_what_is_not_read_any_more_is_not_told() -> None:
    """As of a GPU that is lost."""
    store = Store()
    shares = Shares(store)
    identify(store, ("gpu", SLOTS[1]))
    read(shares, store, 100.0, 0.0, 0.0, 0.0)
    assert read(shares, store, 160.0, 6000.0, 600.0, 6000.0) == 1

    store.drop("nvml_nvlink", GPU[1])
    shares.on_tick(0.0)

    assert store.group(LINK_SHARES) == {}


def test_links_that_lead_no_one_knows_where_are_not_compared() -> None:
    """Without an identity, and where the driver does not say."""
    store = Store()
    shares = Shares(store)

    read(shares, store, 100.0, 0.0, 0.0, 0.0)
    assert read(shares, store, 160.0, 6000.0, 600.0, 6000.0) is None
    identify(store, ("", ""))
    assert read(shares, store, 220.0, 12000.0, 700.0, 12000.0) is None
