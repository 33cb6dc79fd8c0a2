"""The store: what is current, what has grown old, and when a new snapshot is made."""

from __future__ import annotations

from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout
from support.pages import lines_of
from support.passes import in_one_pass

CARRIER = "commwatch_ethernet_carrier"
LAYOUT = Layout([(CARRIER, ("eth0",))])
NEVER = float("inf")


def carrier(value: int | None, layout: Layout = LAYOUT) -> Block:
    return Block(layout, [value], 0.0)


@in_one_pass("now, is_current", [(99.9, True), (100.0, True), (100.1, False)])
def test_a_block_is_current_until_its_time(now: float, is_current: bool) -> None:
    """At its end a block still counts, just after it is gone, from the snapshot too."""
    store = Store()
    store.put("network", "eth0", carrier(1), 100.0)
    store.snapshot()

    store.expire(now)

    assert (store.get("network", "eth0") is not None) is is_current
    assert ("eth0" in store.group("network")) is is_current
    assert store.snapshot().value(CARRIER, "eth0") == (1 if is_current else None)


def test_expiry_spares_what_is_younger() -> None:
    """Each block has its own time, also within a group."""
    store = Store()
    store.put("network", "eth0", carrier(1), 100.0)
    store.put("network", "eth1", carrier(1, Layout([(CARRIER, ("eth1",))])), 200.0)
    store.put("pci", "eth0", carrier(1, Layout([(CARRIER, ("eth2",))])), 100.0)

    store.expire(150.0)

    assert list(store.group("network")) == ["eth1"]
    assert store.group("pci") == {}


def test_a_value_that_was_not_read_is_not_taken_from_before() -> None:
    """The last reading does not stand in for a reading that failed."""
    store = Store()
    store.put("network", "eth0", carrier(1), NEVER)

    store.put("network", "eth0", carrier(None), NEVER)

    assert lines_of(store.snapshot().blocks[0], CARRIER) == ""


def test_the_snapshot_is_the_same_object_until_something_changes() -> None:
    """Scrapes between two samples share one rendering; expiry and drops of nothing change nothing."""
    store = Store()
    store.put("network", "eth0", carrier(1), 100.0)
    first = store.snapshot()

    store.drop("network", "eth9")
    store.drop("pci", "eth0")
    store.drop_group("pci")
    store.expire(50.0)

    assert store.snapshot() is first


def test_each_change_makes_a_new_snapshot_and_leaves_the_old_one() -> None:
    """A snapshot that a scrape holds does not change beneath it."""
    store = Store()
    store.put("network", "eth0", carrier(1), 100.0)
    seen = [store.snapshot()]

    store.put("network", "eth0", carrier(0), 100.0)
    seen.append(store.snapshot())
    store.drop("network", "eth0")
    seen.append(store.snapshot())
    store.put("network", "eth0", carrier(1), 100.0)
    seen.append(store.snapshot())
    store.drop_group("network")
    seen.append(store.snapshot())
    store.put("network", "eth0", carrier(0), 100.0)
    seen.append(store.snapshot())
    store.expire(101.0)
    seen.append(store.snapshot())

    assert [one.value(CARRIER, "eth0") for one in seen] == [1, 0, None, 1, None, 0, None]
    assert len(set(map(id, seen))) == len(seen)


def test_a_group_is_a_copy() -> None:
    """Whoever drops devices while going through a group does no harm."""
    store = Store()
    store.put("network", "eth0", carrier(1), NEVER)

    for device in store.group("network"):
        store.drop("network", device)

    assert store.group("network") == {}
    assert store.get("network", "eth0") is None


def test_what_names_the_same_series_anew_keeps_the_layout() -> None:
    """A layout made again for the same series is that of before: the page is not laid out again."""
    store = Store()
    store.put("network", "eth0", carrier(1), NEVER)

    store.put("network", "eth0", carrier(1, Layout([(CARRIER, ("eth0",))])), NEVER)

    assert store.snapshot().blocks[0].layout is LAYOUT


def test_what_is_put_later_may_expire_earlier() -> None:
    """Each block goes at its own time, in whatever order they came."""
    store = Store()
    store.put("network", "eth0", carrier(1), 100.0)
    store.expire(50.0)
    store.put("network", "eth1", carrier(1, Layout([(CARRIER, ("eth1",))])), 60.0)

    store.expire(61.0)
    assert set(store.group("network")) == {"eth0"}

    store.expire(101.0)
    assert store.group("network") == {}


def test_the_store_knows_which_groups_have_a_metric_and_which_collectors_they_depend_on() -> None:
    """A collector's group depends on itself, another on those declared; a metric that was dropped stays known."""
    store = Store()
    assert store.holders(CARRIER) == frozenset()
    store.put("network", "eth0", carrier(1), NEVER)
    store.drop("network", "eth0")
    store.declare("use", ["network", "rdma"], silent=["commwatch_silent"], holds=["commwatch_held"])

    assert (store.collectors("network"), store.collectors("use")) == (("network",), ("network", "rdma"))
    assert store.holders(CARRIER) == {"network"}
    assert store.holders("commwatch_silent") == store.holders("commwatch_held") == {"use"}
    assert store.silent == {"commwatch_silent"}
