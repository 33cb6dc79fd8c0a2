"""The verdict from what members report: who is named, as what, with which cure; pure."""

from __future__ import annotations

from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from commwatch.cluster.environment import partners
from commwatch.cluster.interfaces import gloo_choice, nccl_choice, parse_if_inet6
from commwatch.cluster.messages import Choice, Contact, Facts, Failure, Interface, Outcome, Report, Result, Verdict
from commwatch.cluster.node_report import report_of_unreached, report_of_verdict
from commwatch.cluster.verdict import judge
from commwatch.lines import printable
from support.passes import in_one_pass

PORTS = (41000, 32768, 60999)
Bad = dict[tuple[int, int], Result]


def eth(rank: int, name: str = "eth0", mtu: int = 1500) -> Interface:
    return Interface(name=name, address=f"10.0.{rank // 250}.{rank % 250 + 1}", prefix=16, mtu=mtu)


def facts(rank: int, **more: object) -> Facts:
    own = eth(rank)
    usual = {
        "versions": {"NCCL": "2.27.7", "driver": "570.86", "kernel": "6.8"}, "settings": {},
        "parts": {"GPUs": "8 x H100"},
        "interfaces": (own,), "nccl": Choice(interface="eth0", address=own.address),
        "gloo": Choice(interface="eth0", address=own.address), "own_name": f"node{rank}",
        "own_addresses": (own.address,),
    }  # fmt: skip
    return Facts(**{**usual, **more})  # type: ignore[arg-type]


def verdict(count: int, bad: Bad | None = None, changed: dict[int, dict[str, object]] | None = None,
            size: int | None = None, clocks: dict[int, float] | None = None, ports: int = 3) -> Verdict:  # fmt: skip
    """Of members that are as they should be, except for these tries and facts."""
    ranks = list(range(count))
    contacts = {
        rank: Contact(rank=rank, name=f"node{rank}", token="0" * 16, addresses=(eth(rank).address,), ports=PORTS,
                      low=32768, high=60999)
        for rank in ranks
    }  # fmt: skip
    reports = {}
    for rank in ranks:
        outcomes = [
            Outcome(whom=other, address=eth(other).address, port=port,
                    result=(bad or {}).get((rank, other), "open") if place < ports else "open")
            for other in partners(rank, ranks) for place, port in enumerate(PORTS)
        ]  # fmt: skip
        reports[rank] = Report(
            facts=facts(rank, **(changed or {}).get(rank, {})), outcomes=tuple(outcomes),
            clock_seconds=(clocks or {}).get(rank, 0.0),
        )  # fmt: skip
    return judge(contacts, reports, count if size is None else size)


def named(found: Verdict) -> list[tuple[str, str, str, str]]:
    return [(one.cause, one.who, one.whom, one.direction) for one in found.failures]


@in_one_pass(
    "count, bad, expected",
    [
        (2, {(0, 1): "filtered"}, [("filtered", "node1", "node0", "in")]),
        (2, {(0, 1): "refused"}, [("refused", "node1", "node0", "in")]),
        (2, {(0, 1): "no_route"}, [("no_route", "node0", "node1", "out")]),
        (2, {(0, 1): "no_route", (1, 0): "filtered"}, [("no_route", "node0", "node1", "out")]),
        (2, {(0, 1): "mtu", (1, 0): "mtu"}, [("mtu", "node0", "node1", "in"), ("mtu", "node1", "node0", "in")]),
        (4, {(0, 3): "refused", (1, 3): "refused", (2, 3): "refused"},
         [("refused", "node3", "node0, node1, node2", "in")]),
        (4, {(3, 0): "filtered", (3, 1): "filtered", (3, 2): "filtered"},
         [("filtered", "node3", "node0, node1, node2", "out")]),
        (4, {(0, 2): "filtered", (1, 2): "filtered"}, [("filtered", "node2", "node0, node1", "in")]),
        (4, {(0, 3): "no_route", (1, 3): "no_route", (2, 3): "no_route"},
         [("no_route", "node0, node1, node2", "node3", "out")]),
        (4, {(2, 0): "no_route", (2, 1): "no_route", (2, 3): "no_route"},
         [("no_route", "node2", "node0, node1, node3", "out")]),
        (3, {(0, 2): "stranger"}, [("name", "node2", "node0", "in")]),
        (3, {(a, b): "filtered" for a in range(3) for b in range(3) if a != b},
         [("filtered", f"node{a}", ", ".join(f"node{b}" for b in range(3) if b != a), "in") for a in range(3)]),
    ],
)  # fmt: skip
def test_what_has_an_end_in_common_is_one_line_on_that_node(
    count: int, bad: Bad, expected: list[tuple[str, str, str, str]]
) -> None:
    """Incoming before outgoing: a firewall usually keeps out."""
    found = verdict(count, bad)

    assert named(found) == expected
    assert found.outcome == "named"
    for failure in found.failures:
        assert failure.cure
        assert "\n" not in failure.line


def test_among_a_thousand_nodes_one_that_is_shut_off_is_one_line() -> None:
    """By 20 partners, of which four are listed."""
    count, shut = 1024, 700
    bad: Bad = {(rank, shut): "filtered" for rank in range(count)}

    found = verdict(count, bad, {9: {"versions": {"NCCL": "2.26.2", "driver": "570.86", "kernel": "6.8"}}})

    assert [(one.cause, one.who) for one in found.failures] == [("filtered", "node700"), ("version", "node9")]
    assert found.failures[0].whom.endswith("and 15 more")


@in_one_pass(
    "count, changed, expected",
    [
        (3, {1: {"versions": {"NCCL": "2.26.2", "driver": "570.86", "kernel": "6.8"}}},
         [("version", "node1", "NCCL is 2.26.2, on 2 others 2.27.7", False)]),
        (2, {1: {"versions": {"NCCL": "2.26.2", "driver": "570.86", "kernel": "6.8"}}},
         [("version", "node0, node1", "NCCL differs: node0: 2.27.7; node1: 2.26.2", False)]),
        (3, {2: {"versions": {"NCCL": "2.27.7", "driver": "570.86", "kernel": "6.5"}}},
         [("version", "node2", "kernel is 6.5, on 2 others 6.8", True)]),
        (3, {0: {"settings": {"NCCL_IB_DISABLE": "1"}}},
         [("version", "node0", "NCCL_IB_DISABLE is 1, on 2 others not set", False)]),
        (3, {0: {"parts": {"GPUs": "7 x H100"}}},
         [("parts", "node0", "GPUs is 7 x H100, on 2 others 8 x H100", False)]),
        (3, {1: {"interfaces": (eth(1, mtu=9000),)}},
         [("mtu", "node1", "MTU of the interface is 9000, on 2 others 1500", True)]),
        (3, {1: {"own_addresses": (), "gloo": Choice()}},
         [("name", "node1", "its own name node1 does not resolve: gloo does not start", False)]),
        (3, {1: {"own_addresses": ("172.17.0.9",), "gloo": Choice()}},
         [("name", "node1", "its own name node1 resolves to 172.17.0.9, which no interface has", False)]),
        (3, {1: {"own_addresses": ("127.0.1.1",),
                 "gloo": Choice(interface="eth0", address="10.0.0.2", why="GLOO_SOCKET_IFNAME")}},
         [("name", "node1", "its own name node1 resolves to 127.0.1.1: gloo gives others that address", True)]),
        (3, {2: {"nccl": Choice(why="NCCL_SOCKET_IFNAME")}},
         [("wrong_interface", "node2", "NCCL finds no interface: NCCL_SOCKET_IFNAME selects none that is up", False)]),
        (3, {2: {"nccl": Choice(interface="docker0", address="172.17.0.1")}},
         [("wrong_interface", "node2", "NCCL takes docker0 (172.17.0.1), which leads to no other node", False)]),
        (3, {2: {"interfaces": (Interface(name="eno1", address="192.168.1.3", prefix=24), eth(2)),
                 "nccl": Choice(interface="eno1", address="192.168.1.3")}},
         [("wrong_interface", "node2", "NCCL takes eno1 (192.168.1.0/24); the network of all is 10.0.0.0/16", False)]),
    ],
)  # fmt: skip
def test_the_minority_is_named(
    count: int, changed: dict[int, dict[str, object]], expected: list[tuple[str, str, str, bool]]
) -> None:
    """What breaks nothing by itself is a note, and no failure."""
    found = verdict(count, changed=changed)

    assert [(one.cause, one.who, one.detail, one.minor) for one in found.failures] == expected
    assert found.outcome == ("fine" if all(minor for *_, minor in expected) else "named")


def test_nodes_that_are_routed_to_each_other_have_networks_of_their_own() -> None:
    """Each node in its own network is no wrong interface where nothing is shared."""
    changed = {
        rank: {
            "interfaces": (one := Interface(name="eth0", address=f"10.{rank}.0.2", prefix=31, mtu=1500),),
            "nccl": Choice(interface="eth0", address=one.address),
            "gloo": Choice(interface="eth0", address=one.address),
            "own_addresses": (one.address,),
        }
        for rank in range(3)
    }

    assert verdict(3, changed=changed).failures == ()


def test_a_clock_that_is_off_is_a_note_on_its_node() -> None:
    """Member 0 too, though all are measured against it."""
    assert [(one.cause, one.who) for one in verdict(3, clocks={2: -5.0}).failures] == [("clock", "node2")]
    found = verdict(3, clocks={1: 5.0, 2: 5.0})
    assert [(one.who, one.detail) for one in found.failures] == [("node0", "its clock is 5.0 s behind the others")]
    assert found.outcome == "fine"


def test_a_port_of_several_that_is_shut_is_named_alone() -> None:
    """Here the first one, which the kernel chose; an open port of the same address proves the route."""
    one, both = (verdict(2, {(0, 1): "filtered"}, ports=count).failures[0].line for count in (1, 2))

    assert one == (
        "filtered: node1 <- node0, port 41000 (in): no answer; on node1: iptables -I INPUT -p tcp -s 10.0.0.0/16 "
        "--dport 32768:60999 -j ACCEPT"
    )
    assert both.startswith("filtered: node1 <- node0, ports 32768, 41000 (in): ")
    assert named(verdict(2, {(0, 1): "no_route"}, ports=1)) == [("filtered", "node1", "node0", "in")]


def test_too_few_members_are_no_verdict() -> None:
    """One of two says nothing about the network; two of three do, with who is absent."""
    assert verdict(1, size=2).outcome == "too_few"
    found = verdict(2, size=3)
    assert (found.outcome, [one.state for one in found.members]) == ("named", ["checked", "checked", "absent"])


def said_of(found: Verdict, rank: int) -> tuple[tuple[str, ...], dict[tuple[str, str], int]]:
    """Causes and peers of the report of a member."""
    report = report_of_verdict(found, rank, 0.0)
    return report.causes, {(one.port_kind, one.direction): one.peers for one in report.unreachable}


def test_a_member_hands_on_what_is_to_be_cured_on_it_and_how_many_it_does_not_reach() -> None:
    """The firewall of node3 is that of node3; what the others do not reach is no failure of theirs."""
    found = verdict(4, {(0, 3): "filtered", (1, 3): "filtered", (2, 3): "filtered"})

    assert said_of(found, 3) == (("filtered",), {("ephemeral", "in"): 3})
    assert said_of(found, 0) == ((), {("ephemeral", "out"): 1})


def test_of_many_nodes_each_hands_on_its_own_failure() -> None:
    """Also those that the line does not name any more; a note is no failure."""
    other: dict[int, dict[str, object]] = {
        rank: {"versions": {"NCCL": "2.19.3", "driver": "570.86", "kernel": "6.8"}} for rank in range(7)
    }
    found = verdict(20, changed={**other, 9: {"versions": {"NCCL": "2.27.7", "driver": "570.86", "kernel": "5.15"}}})

    (line, _) = found.failures
    assert line.who == "node0, node1, node2, node3 and 3 more"
    assert [rank for rank in range(20) if said_of(found, rank)[0]] == list(range(7))
    assert said_of(found, 6) == (("version",), {})


def test_a_member_that_did_not_get_to_the_meeting_place_is_blamed_only_for_its_own() -> None:
    """A firewall on member 0 is not to be cured on it; its own name server is."""
    firewall = Failure(cause="filtered", who="node0", whom="node2", ranks=(0,))
    name = Failure(cause="name", who="node2", whom="node0", ranks=(2,))
    one, other = (report_of_unreached(failure, 2, 0.0) for failure in (firewall, name))

    assert (one.outcome, one.causes, other.causes) == ("unreached", (), ("name",))
    assert [(way.port_kind, way.direction, way.peers) for way in one.unreachable] == [("rendezvous", "out", 1)]
    taken = Failure(cause="busy_port", who="node0", ranks=(0,))
    assert report_of_unreached(taken, 0, 0.0).unreachable == ()
    version = report_of_unreached(Failure(cause="version", who="node2", whom="node0", ranks=(2,)), 2, 0.0)
    assert (version.outcome, version.causes, version.unreachable) == ("unreached", ("version",), ())


ADDRESSES = st.sampled_from(["10.0.0.1", "127.0.1.1", "fe80::1", "2001:db8::2", "0.0.0.0", "169.254.1.1"])
CHOICES = st.builds(Choice, interface=st.sampled_from(["", "eth0", "lo"]), address=ADDRESSES)
FACTS = st.builds(
    Facts,
    versions=st.dictionaries(st.sampled_from(["NCCL", "kernel", ""]), st.text(max_size=4)),
    settings=st.dictionaries(st.sampled_from(["NCCL_X", "-x"]), st.text(max_size=4)),
    parts=st.just({}),
    interfaces=st.lists(
        st.builds(Interface, name=st.sampled_from(["eth0", "lo"]), address=ADDRESSES, prefix=st.integers(0, 32),
                  mtu=st.integers(-1, 2**40)), max_size=2,
    ).map(tuple),
    nccl=CHOICES, gloo=CHOICES, own_name=st.just("n"), own_addresses=st.lists(ADDRESSES, max_size=2).map(tuple),
)  # fmt: skip
OUTCOMES = st.builds(
    Outcome, whom=st.integers(0, 3), result=st.sampled_from(get_args(Result)),
    kind=st.sampled_from(["rendezvous", "ephemeral", ""]), address=st.text(max_size=3), port=st.integers(0, 65535),
    detail=st.text(max_size=3),
)  # fmt: skip
REPORTS = st.builds(
    Report, facts=FACTS, outcomes=st.lists(OUTCOMES, max_size=2).map(tuple), clock_seconds=st.floats(allow_nan=False),
)  # fmt: skip
CONTACTS = st.builds(
    Contact, rank=st.just(0), name=st.just("n"), token=st.just("0" * 16), low=st.integers(0, 65535),
    addresses=st.lists(ADDRESSES, max_size=2).map(tuple), ports=st.lists(st.integers(0, 65535), max_size=3).map(tuple),
    high=st.integers(0, 65535),
)  # fmt: skip


@settings(max_examples=15)
@given(st.lists(st.tuples(CONTACTS, REPORTS), min_size=2, max_size=3))
def test_whatever_a_member_reports_there_is_a_verdict_of_single_lines(members: list[tuple[Contact, Report]]) -> None:
    """One that lies spoils its own lines only."""
    found = judge(
        {rank: contact for rank, (contact, _) in enumerate(members)},
        {rank: report for rank, (_, report) in enumerate(members)},
        len(members),
    )

    assert all(len(printable(one.line).splitlines()) == 1 for one in found.failures)


LO = Interface(name="lo", address="127.0.0.1", prefix=8)
DOCKER = Interface(name="docker0", address="172.17.0.1", prefix=16)
IB = Interface(name="ib0", address="10.9.0.1", prefix=16)


@in_one_pass(
    "interfaces, variables, expected",
    [
        ((LO, DOCKER, eth(0)), {}, "eth0"),
        ((LO, eth(0), IB), {}, "ib0"),
        ((LO, DOCKER), {}, "docker0"),
        ((LO,), {}, "lo"),
        ((), {}, ""),
        ((LO, eth(0), IB), {"NCCL_SOCKET_IFNAME": "eth"}, "eth0"),
        ((LO, eth(0), IB), {"NCCL_SOCKET_IFNAME": "^ib"}, "lo"),
        ((LO, eth(0)), {"NCCL_SOCKET_IFNAME": "=eth"}, ""),
        ((LO, eth(0)), {"NCCL_SOCKET_FAMILY": "AF_INET6"}, ""),
    ],
)
def test_nccl_takes_the_interface_that_its_rules_say(
    interfaces: tuple[Interface, ...], variables: dict[str, str], expected: str
) -> None:
    """ib first, then neither lo nor docker; a list that excludes lets lo in again."""
    assert nccl_choice(interfaces, variables).interface == expected


def test_gloo_takes_the_address_of_the_own_name() -> None:
    """Or the interface that it is told."""
    assert gloo_choice((LO, eth(0)), {}, ("10.0.0.1",)).interface == "eth0"
    assert gloo_choice((LO, eth(0)), {}, ("127.0.1.1",)) == Choice(interface="lo", address="127.0.1.1")
    assert gloo_choice((LO, eth(0)), {"GLOO_SOCKET_IFNAME": "lo"}, ("10.0.0.1",)).why == "GLOO_SOCKET_IFNAME"
    assert gloo_choice((LO, eth(0)), {}, ()) == Choice()


def test_addresses_of_ipv6_are_read_as_the_kernel_lists_them() -> None:
    """What is no line of it is passed over."""
    text = "fe80000000000000025056fffec00008 03 40 20 80    eth0\n00000000000000000000000000000001 01 80 10 80 lo\nx\n"

    assert [(one.name, one.address, one.prefix) for one in parse_if_inet6(text)] == [
        ("eth0", "fe80::250:56ff:fec0:8", 64), ("lo", "::1", 128),
    ]  # fmt: skip
