"""What rules read: increases of what moved and is still exposed, and events that nobody exposed before."""

from __future__ import annotations

from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch_exporters.node.model import Gpu, Node
from commwatch_exporters.snapshot import Block, Layout, Snapshot
from support.facts import NOW

XIDS = "commwatch_gpu_xid_events_total"
SXIDS = "commwatch_nvswitch_sxid_events_total"
XID_119 = ("0", "0000:17:00.0", "119")


def history() -> CounterHistory:
    return CounterHistory({XIDS: 3600.0, SXIDS: 3600.0}, {XIDS, SXIDS})


def facts(known: CounterHistory, *labels: tuple[str, ...]) -> Facts:
    layout = Layout((XIDS, one) for one in labels)
    return Facts(Node(Snapshot([Block(layout, [1] * len(labels), 0.0)])), known, NOW)


def test_a_kind_of_event_that_comes_for_the_first_time_counts() -> None:
    """Nobody exposed an Xid 119 before there was one: the first is an increase all the same."""
    known = history()
    known.take(XIDS, ("0", "0000:17:00.0", "79"), 0.0, NOW - 10.0)
    known.take(XIDS, XID_119, 1.0, NOW - 5.0)

    assert [(gpu.address, xid, rise) for gpu, xid, rise in facts(known, XID_119).rises_keyed(Gpu.xids, 3600.0)] == [
        ("0000:17:00.0", "119", 1.0)
    ]


def test_events_found_at_the_first_look_are_old() -> None:
    """Totals go on over a restart of the daemon; what they show at first has happened before."""
    known = history()
    known.take(XIDS, XID_119, 7.0, NOW)
    known.take(SXIDS, ("0000:05:00.0", "20034"), 3.0, NOW)

    assert list(facts(known, XID_119).rises_keyed(Gpu.xids, 3600.0)) == []
    assert known.increase(SXIDS, ("0000:05:00.0", "20034"), NOW, 3600.0) == 0.0


def test_an_increase_of_what_is_not_exposed_any_more_is_not_told() -> None:
    known = history()
    known.take(XIDS, XID_119, 1.0, NOW - 10.0)
    known.take(XIDS, XID_119, 2.0, NOW)

    assert len(list(facts(known, XID_119).rises_keyed(Gpu.xids, 3600.0))) == 1
    assert list(facts(known).rises_keyed(Gpu.xids, 3600.0)) == []


def test_what_is_derived_is_made_once() -> None:
    """However many rules ask for it, also by way of another function."""
    made = []

    def xids(some: Facts) -> int:
        made.append("xids")
        return len(list(some.each_keyed(Gpu.xids)))

    def twice(some: Facts) -> int:
        return 2 * some.derived(xids)

    found = facts(history(), XID_119)

    assert [found.derived(make) for make in (xids, twice, twice, xids)] == [1, 2, 2, 1]
    assert made == ["xids"]
