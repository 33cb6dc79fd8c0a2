"""The check among four nodes in network namespaces: each case of a connection names its cause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch.cluster.check import check
from commwatch.cluster.environment import DEFAULT_PORT, Place
from commwatch.cluster.member import Progress, Run
from commwatch.cluster.messages import Verdict
from commwatch.cluster.node_report import report_of_verdict
from commwatch.cluster.store import Deadlines
from support.namespaces import Nodes

pytestmark = pytest.mark.namespaces

COUNT = 4
NAMES = tuple(f"node{node}" for node in range(COUNT))
KEY = b"the key of this run"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four nodes that are as they should be.

    A first run of one member, alone: msgspec must not learn a type in several threads at once, as no process of a user
    does. It ends with a segmentation fault.
    """
    asyncio.run(check(Run(Place("members", 0, 1, "127.0.0.1", DEFAULT_PORT), KEY, {}), Progress(print)))
    with Nodes(COUNT, tmp_path_factory.mktemp("nodes")).made() as made:
        yield made


@pytest.fixture(autouse=True)
def usual(nodes: Nodes) -> Iterator[None]:
    """Names as they should be, after each test."""
    yield
    nodes.hosts = {node: nodes.usual_hosts() for node in range(COUNT)}


def checked(
    nodes: Nodes, variables: dict[int, dict[str, str]] | None = None, size: int = COUNT, join: float = 20.0,
    procs: dict[int, Path] | None = None,
) -> Verdict:  # fmt: skip
    """What member 0 says; a node has its own /proc where one is given."""

    async def member(node: int) -> Verdict:
        place = Place("members", node, size, "node0", DEFAULT_PORT, NAMES[:size])
        procfs = (procs or {}).get(node, nodes.folder / "proc")
        (procfs / "net").mkdir(parents=True, exist_ok=True)
        deadlines = Deadlines(step=1.0, join=join)
        run = Run(place, KEY, (variables or {}).get(node, {}), Path("/nowhere"), procfs, deadlines=deadlines)
        return await check(run, Progress(lambda text: None))

    found = nodes.run(member, range(size))
    return found[0]


def causes(verdict: Verdict) -> list[tuple[str, str, str, str, str]]:
    return [(one.cause, one.who, one.whom, one.port, one.direction) for one in verdict.failures if not one.minor]


def test_nodes_that_fit_together_are_fine(nodes: Nodes) -> None:
    """All pairs, three ports, both directions."""
    verdict = checked(nodes)

    assert verdict.failures == ()
    assert verdict.outcome == "fine"
    assert [one.address for one in verdict.members] == [nodes.address(node) for node in range(COUNT)]
    assert {one.interface for one in verdict.members} == {"eth0"}
    assert verdict.paths == COUNT * (COUNT - 1) * 3


EPHEMERAL = ("ipproto", "tcp", "dport", "60999")


@pytest.mark.parametrize(
    ("node", "rule", "named", "cure"),
    [
        # A port that its firewall drops, seen by all others; nccl #388, trl #4737.
        (2, ("blackhole", "iif", "eth0", *EPHEMERAL), ("filtered", "node2", "node0, node1, node3", "60999", "in"),
         "iptables -I INPUT -p tcp -s 10.77.0.0/24 --dport 32768:60999 -j ACCEPT"),
        # "No route to host" for one port among open ones is a firewall too.
        (2, ("unreachable", "iif", "eth0", *EPHEMERAL), ("filtered", "node2", "node0, node1, node3", "60999", "in"),
         "INPUT -p tcp -s 10.77.0.0/24"),
        # Nothing out: all of its targets are reached by others.
        (3, ("prohibit", "iif", "lo", *EPHEMERAL), ("filtered", "node3", "node0, node1, node2", "60999", "out"),
         "OUTPUT -p tcp -d 10.77.0.0/24"),
        # A missing route: what the other end sees of it, silence, is no second cause.
        (1, ("unreachable", "to", "10.77.0.4"), ("no_route", "node1", "node3", "32768-60999", "out"),
         "ip route get 10.77.0.4"),
    ],
    ids=("drops", "rejects", "lets nothing out", "lacks a route"),
)  # fmt: skip
def test_a_rule_of_the_kernel_is_named_on_its_node_with_the_line_that_cures_it(
    nodes: Nodes, node: int, rule: tuple[str, ...], named: tuple[str, str, str, str, str], cure: str
) -> None:
    """What the node hands to its daemon is that cause; no other node has one."""
    with nodes.rule(node, *rule):
        verdict = checked(nodes)

    assert causes(verdict) == [named]
    assert cure in verdict.failures[0].cure
    said = {one.rank: report_of_verdict(verdict, one.rank, 0.0) for one in verdict.members}
    assert {rank: one.causes for rank, one in said.items() if one.causes} == {node: (named[0],)}
    assert named[4] in {one.direction for one in said[node].unreachable}


def test_large_packets_that_are_lost_name_the_node_of_the_small_mtu(nodes: Nodes) -> None:
    """One byte passes; the port of the bridge takes 1500 bytes only, and the node sends 9000."""
    for node in range(COUNT):
        nodes.ip(node, "link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1")
        nodes.of_bridge("link", "set", f"port{node}", "mtu", "1500" if node == 2 else "9000")
    nodes.of_bridge("link", "set", "bridge", "mtu", "9000")
    try:
        verdict = checked(nodes)
    finally:
        for node in range(COUNT):
            nodes.ip(node, "link", "set", "eth0", "mtu", "1500", "gso_max_segs", "65535")

    assert causes(verdict) == [("mtu", "node2", "node0, node1, node3", "", "")]
    assert verdict.failures[0].cure == "ip link set dev eth0 mtu 1500"


def test_a_name_that_leads_to_the_node_itself_is_named_on_it(nodes: Nodes) -> None:
    """Debian's 127.0.1.1: gloo would give that address to the others; aws-do-eks #69, Paddle #37951."""
    nodes.hosts[1] = nodes.usual_hosts().replace("10.77.0.2 node1", "127.0.1.1 node1")

    verdict = checked(nodes)

    assert causes(verdict) == [("name", "node1", "", "", "")]
    assert "127.0.1.1" in verdict.failures[0].detail
    assert "10.77.0.2 node1" in verdict.failures[0].cure


def test_a_name_that_some_node_does_not_know_is_named_with_who_lacks_it(nodes: Nodes) -> None:
    """Two of four do not know node3."""
    for node in (0, 2):
        nodes.hosts[node] = nodes.usual_hosts().replace("10.77.0.4 node3\n", "")

    verdict = checked(nodes)

    assert causes(verdict) == [("name", "node0, node2", "node3", "", "")]
    assert verdict.failures[0].cure == "echo '10.77.0.4 node3' >> /etc/hosts"


def test_an_interface_that_leads_nowhere_is_named_with_the_right_one(nodes: Nodes) -> None:
    """By a variable that this node alone has, or by NCCL's own choice of the first one; nccl #286, uccl PR #1034."""
    nodes.ip(1, "link", "add", "eth9", "type", "veth", "peer", "name", "nobody")
    nodes.ip(1, "link", "set", "nobody", "up")
    nodes.ip(1, "address", "add", "169.254.3.1/16", "dev", "eth9")
    nodes.ip(1, "link", "set", "eth9", "up")
    try:
        verdict = checked(nodes, {1: {"NCCL_SOCKET_IFNAME": "eth9"}})
    finally:
        nodes.ip(1, "link", "delete", "eth9")

    wrong, setting = verdict.failures
    assert (wrong.cause, wrong.who, wrong.cure) == (
        "wrong_interface", "node1", "export NCCL_SOCKET_IFNAME==eth0 GLOO_SOCKET_IFNAME=eth0",
    )  # fmt: skip
    assert (setting.cause, setting.who) == ("version", "node1")
    assert "NCCL_SOCKET_IFNAME is eth9" in setting.detail


def test_a_port_that_is_taken_names_its_owner_and_the_check_goes_on(nodes: Nodes) -> None:
    """The store takes the next port; pytorch #58431."""
    import socket

    taken: list[socket.socket] = []

    async def take(node: int) -> None:
        taken.append(socket.create_server(("0.0.0.0", DEFAULT_PORT)))

    nodes.run(take, range(1))
    try:
        verdict = checked(nodes)
    finally:
        taken[0].close()

    assert causes(verdict) == [("busy_port", "node0", "", "29500", "in")]
    assert "ss -ltnp" in verdict.failures[0].cure


def test_a_meeting_port_that_is_filtered_for_one_names_it_and_the_check_goes_on(nodes: Nodes) -> None:
    """Only node3 does not get there; the store's own port is the same for all, so it says so itself."""
    with nodes.rule(0, "blackhole", "iif", "eth0", "from", nodes.address(3), "ipproto", "tcp", "dport", "29500-29503"):
        verdict = checked(nodes, join=1.0)

    assert [one.name for one in verdict.members if one.state == "absent"] == ["node3"]
    assert verdict.outcome == "named"
    said = str(nodes.errors[3])
    assert said.startswith("filtered: node0 <- node3, port 29500 (in): no answer from the meeting place; on node0: ")


def test_a_meeting_place_where_nobody_is_refuses(nodes: Nodes) -> None:
    """Member 0 never came: each of the others says it, and the run ends."""

    async def member(node: int) -> Verdict:
        place = Place("members", node, 2, "node0", DEFAULT_PORT, NAMES[:2])
        run = Run(place, KEY, {}, Path("/nowhere"), nodes.folder / "proc", deadlines=Deadlines(step=1.0, join=0.2))
        return await check(run, Progress(lambda text: None))

    with pytest.raises(Exception, match=r"refused: node0 <- node1, port 29500 \(in\)"):
        nodes.run(member, range(1, 2))


def test_the_node_that_differs_is_named_before_anything_is_measured(nodes: Nodes, tmp_path: Path) -> None:
    """Another driver, another NCCL as its loader would find it, a setting of its own, seven of eight GPUs.

    Nccl #286, the mismatch of multi-node fine-tuning, aicr #1858.
    """
    for node in range(COUNT):
        driver = tmp_path / f"proc{node}/driver/nvidia"
        for gpu in range(7 if node == 3 else 8):
            (driver / f"gpus/0000:{gpu}1:00.0").mkdir(parents=True)
            (driver / f"gpus/0000:{gpu}1:00.0/information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\n")
        version = "550.54.15" if node == 1 else "570.86.15"
        (driver / "version").write_text(
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release\n"
        )
    variables = {node: {"LD_PRELOAD": f"/opt/libnccl.so.2.{19 if node == 2 else 27}.3"} for node in range(COUNT)}
    variables[0] |= {"NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "INFO"}

    verdict = checked(nodes, variables, procs={node: tmp_path / f"proc{node}" for node in range(COUNT)})

    assert [(one.cause, one.who, one.detail, one.cure) for one in verdict.failures] == [
        ("version", "node2", "NCCL is 2.19.3, on 3 others 2.27.3", "pip install nvidia-nccl-cu12==2.27.3"),
        ("version", "node1", "driver is 550.54.15, on 3 others 570.86.15", ""),
        ("version", "node0", "NCCL_IB_HCA is mlx5_0, on 3 others not set", "unset NCCL_IB_HCA"),
        ("parts", "node3", "GPUs is 7 x NVIDIA H100 80GB HBM3, on 3 others 8 x NVIDIA H100 80GB HBM3", ""),
    ]


def test_a_member_that_never_comes_keeps_nobody(nodes: Nodes) -> None:
    """It is absent; the others are checked among themselves."""

    async def member(node: int) -> Verdict:
        place = Place("members", node, 3, "node0", DEFAULT_PORT, NAMES[:3])
        run = Run(place, KEY, {}, Path("/nowhere"), nodes.folder / "proc", deadlines=Deadlines(step=1.0, join=0.5))
        return await check(run, Progress(lambda text: None))

    verdict = nodes.run(member, range(2))[0]

    assert [one.state for one in verdict.members] == ["checked", "checked", "absent"]
    assert (verdict.outcome, verdict.failures) == ("named", ())
