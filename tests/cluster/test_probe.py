"""A probe with its ranks: among nodes in namespaces, and as commands that are ended while they measure."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from commwatch.__main__ import main
from commwatch.cluster import store
from commwatch.cluster.environment import BrokenRun, Place
from commwatch.cluster.locate import SLOW_SHARE, locate
from commwatch.cluster.member import Progress, Run
from commwatch.cluster.messages import Choice, Interface, RailOffer, RailReport, Verdict
from commwatch.cluster.node_report import NodeReport, skip_of
from commwatch.cluster.probe_store import ProbedMember, ProbeResult, Wanted
from commwatch.cluster.probing import Asked, Take, _report, probe
from commwatch.cluster.rails import Network, chosen_backend, gpus_out_of_reach, rails_of, read_network
from commwatch.cluster.run_file import SCHEMA, Member
from commwatch.cluster.run_file import Measured as RailMeasured
from commwatch.cluster.run_file import Run as SavedRun
from commwatch.commands.cluster_members import Handed
from commwatch.commands.cluster_probe import probe_lines
from commwatch.commands.cluster_scan import scan_lines
from commwatch.config.settings import Config, Paths, Simulation
from commwatch.jobs.settings.facts import RdmaPort
from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.model import Gpu, Nic, PciDevice, PcieLink, PciRole, Topology, VirtualFunction
from commwatch.probes.cycle.environment import rank_environment
from commwatch.probes.cycle.lock import ProbeLock
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.plan import Deadlines, Measured, NcclNotes, StepOutcome
from commwatch.probes.rank_plan import Backend, Meeting
from commwatch.probes.workload import plan_between
from support.daemon import environment
from support.infiniband import add_device, add_port
from support.namespaces import Nodes
from support.passes import in_one_pass
from support.probed_nodes import probed
from support.waiting import until

COUNT = 4
ITS_JOB = (
    *("--parameters", "1.5B", "--strategy", "zero3", "--nodes", "2", "--gpus-per-node", "2", "--gpu", "A10"),
    *("--micro-batches", "2", "--step-time", "1.03s", "--intra-node", "20GB/s"),
)
KEY = b"the key of this run"
PORT = 29600 + os.getpid() % 4000
ON_LOOPBACK = ("--members", "localhost,b", "--host", "127.0.0.1", "--interface", "lo", "--port", str(PORT))
Output = pytest.CaptureFixture[str]
NO_JOB: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four nodes that send at 1 Gbit/s."""
    with Nodes(COUNT, tmp_path_factory.mktemp("nodes")).made() as made:
        for node in range(COUNT):
            made.shape(node, "1gbit")
        yield made


@pytest.mark.namespaces
def test_a_slow_transmitter_is_named_with_its_direction(nodes: Nodes) -> None:
    """Half the rate on what node3 sends; what it receives is as fast as elsewhere."""
    nodes.shape(3, "500mbit")
    try:
        result = probed(nodes)
    finally:
        nodes.shape(3, "1gbit")

    (named,) = result.verdict.named
    assert (named.kind, named.fault, named.elements, named.direction) == ("nic", "bandwidth", ("node3",), "out")
    assert named.ratio == pytest.approx(0.5, abs=0.1)
    assert [one.state for one in result.members] == ["probed"] * COUNT
    assert result.exit_code == 1
    assert any(line.startswith("NIC of node3 on rail 0 is slow, sending: ") for line in probe_lines(result))
    assert all(one.latency is not None for one in result.run.measured)


@pytest.mark.namespaces
def test_two_nodes_that_are_slower_than_a_node_inside_have_their_network_for_a_bottleneck(
    nodes: Nodes, capsys: Output
) -> None:
    """DeepSpeed issue 5770 at a tenth: 0.928 and 0.874 Gbit/s; with ten times what was measured, one node wins."""
    nodes.shape(0, "928mbit")
    nodes.shape(1, "874mbit")
    try:
        result = probed(nodes, Asked(backend="tcp", wanted=Wanted(rounds=2, inside=2e9)), size=2)
    finally:
        nodes.shape(0, "1gbit")
        nodes.shape(1, "1gbit")

    lines = list(probe_lines(result))
    assert result.exit_code == 0
    assert lines[2].startswith("no part is slow, the network is the bottleneck: a node sends ")
    assert "--network 0." in lines[3]
    whole = result.verdict.whole
    assert whole is not None
    network = [f"{80e-9 * rate:.3g}Gbit/s" for rate in (whole.low, whole.high)]
    assert main(["estimate", *ITS_JOB, "--network", *network, "--path.state", str(nodes.folder / "none")]) == 0
    assert "slower than one node" in " ".join(capsys.readouterr().out.split())
    first = result.run.measured[0]
    # A direction never carries more than it is shaped to; on a busy machine less, as the sender waits for a processor.
    for rate, shaped in ((first.forward, 0.928e9 / 8), (first.backward, 0.874e9 / 8)):
        assert rate is not None
        assert 0.6 < rate / shaped < 1.1


# --- as commands ---


def started(tmp_path: Path, rank: int, *arguments: str, command: str = "probe") -> subprocess.Popen[str]:
    """One of two members on the loopback."""
    return subprocess.Popen(
        [sys.executable, "-m", "commwatch", "cluster", command, *ON_LOOPBACK, "--rank", str(rank),
         "--path.state", str(tmp_path / f"state{rank}"), *arguments],
        env={**environment(), "COMMWATCH_CLUSTER_KEY": KEY.decode(), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ranks_of(tmp_path: Path) -> list[int]:
    """Rank processes of the members, and their guards, by the folder that each has for its home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={tmp_path}/commwatch-probe-" in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def member(
    tmp_path: Path, rank: int, asked: Asked, preset: str = "", take: Take = print, job: Mapping[str, str] = NO_JOB
) -> ProbeResult | int:
    """One of two members on the loopback, in this process."""
    place = Place("slurm", rank, 2, "127.0.0.1", PORT, ("a", "b"))
    variables = {"SLURM_TOPOLOGY_ADDR": f"spine.leaf0.gpu0{rank}", **job}
    begun = Run(place, KEY, variables, interface="lo", deadlines=store.Deadlines(join=20.0))
    config = Config(paths=Paths(state=str(tmp_path / f"state{rank}")), simulation=Simulation(preset=preset))
    return await probe(begun, asked, config, Progress(lambda text: None), take)


def test_two_simulated_nodes_are_measured_and_saved_and_the_run_can_be_judged_again(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one by the command; nothing is left behind.

    The report of the second one has the conditions of its ranks: NCCL as they loaded it, what the launcher has above
    the leaf, and no digest where no setting was found.
    """
    file, reports = tmp_path / "run.json", list[NodeReport]()
    monkeypatch.setenv("COMMWATCH_CLUSTER_KEY", KEY.decode())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    second = member(tmp_path, 1, Asked(backend="simulated", ignore_scheduler=True), "h200x1", reports.append)
    with ThreadPoolExecutor(1) as beside:
        code = beside.submit(asyncio.run, second)
        own = [*ON_LOOPBACK, "--rank", "0", "--path.state", str(tmp_path / "state0"), "--simulate", "h200x1"]
        assert main(["cluster", "probe", *own, "--json", "--rounds", "1", "--report", str(file)]) == 0
        assert code.result() == 0

    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["backend"], answer["named"]) == ("commwatch-cluster-verdict/1", "simulated", [])
    assert [one["state"] for one in answer["members"]] == ["probed", "probed"]
    assert answer["occupied_seconds"] > 0
    assert answer["daemon"] == "no_daemon"
    [one] = reports
    assert (one.outcome, one.leaf, one.block, one.settings) == ("completed", "leaf0", "spine", "")
    assert one.nccl_version == "simulated"
    assert main(["cluster", "locate", str(file)]) == 0
    assert "NVIDIA H200" in capsys.readouterr().out
    assert ranks_of(tmp_path) == []
    assert not list(tmp_path.glob("commwatch-probe-*"))


def test_a_scan_is_a_check_a_probe_and_what_each_node_says_in_one_report(tmp_path: Path) -> None:
    """All members end with its code: the interface that was given leads to no other node."""
    members = [
        started(tmp_path, rank, "--backend", "tcp", "--rounds", "1", "--json", command="scan") for rank in (0, 1)
    ]
    (printed, said), _ = (one.communicate(timeout=120) for one in members)

    assert [one.returncode for one in members] == [1, 1], said
    answer = json.loads(printed)
    assert answer["schema"] == "commwatch-cluster-scan/1"
    assert {one["cause"] for one in answer["check"]["failures"]} >= {"wrong_interface"}
    assert (answer["probe"]["backend"], answer["probe"]["nodes"]) == ("tcp", 2)
    assert all(one["diagnosis"].startswith("Unknown: no commwatch daemon") for one in answer["probe"]["members"])


def test_the_report_of_a_scan_lists_the_nodes_that_are_not_well() -> None:
    """Beside the latency that a collective may take."""
    measured = (RailMeasured(1, 0, 1, 0, 1e9, 1e9, latency=0.02), RailMeasured(2, 0, 1, 0, 1e9, 1e9, latency=0.01))
    run = SavedRun(SCHEMA, (Member("a"), Member("b")), measured)
    members = (
        ProbedMember(rank=0, name="a", state="probed", diagnosis="OK: no findings"),
        ProbedMember(rank=1, name="b", state="probed", diagnosis="Critical: GPU3 fell off the bus"),
    )
    result = ProbeResult(backend="tcp", members=members, run=run, verdict=locate(run), occupied_seconds=0.0)
    checked = Verdict(outcome="fine", members=(), failures=())

    lines = [line.strip() for line in scan_lines(checked, result, Handed("no_daemon", "no daemon here"))]

    assert lines[0] == "connections:"
    assert "latency between nodes: 15 ms usual, 20 ms at most; a collective should take at most 15 ms: missed" in lines
    assert lines[-3:] == [
        "1 of 2 are well by their own diagnosis",
        "b: Critical: GPU3 fell off the bus",
        "no daemon here",
    ]
    assert result.exit_code == 1


def test_a_member_that_is_ended_leaves_no_rank_and_the_other_one_ends(tmp_path: Path) -> None:
    """The other one has too few nodes then. That a member which is killed leaves none is a proof."""
    second = started(tmp_path, 1)
    try:
        with ThreadPoolExecutor(1) as beside:
            first = beside.submit(asyncio.run, member(tmp_path, 0, Asked(backend="tcp")))
            until(lambda: len(ranks_of(tmp_path)) >= 2)  # of the second one: a rank and its guard
            second.terminate()
            _, said = second.communicate(timeout=60)
            result = first.result()
    finally:
        second.kill()
        second.wait()
    until(lambda: ranks_of(tmp_path) == [])
    assert (second.returncode, said.splitlines()[-1]) == (5, "commwatch: cluster: ended by SIGTERM")
    assert isinstance(result, ProbeResult)
    assert result.exit_code == 3
    assert any(line.startswith("lost: b: came, and left") for line in probe_lines(result))


async def two_members(tmp_path: Path) -> tuple[ProbeResult | int, ProbeResult | int]:
    first, second = (member(tmp_path, rank, Asked(backend="tcp")) for rank in (0, 1))
    return await asyncio.gather(first, second)


def test_a_node_whose_probe_lock_is_taken_stays_out(tmp_path: Path) -> None:
    """By the daemon, say; the run has too few nodes then."""
    (tmp_path / "state1").mkdir()
    lock = ProbeLock(tmp_path / "state1/probe.lock")
    assert lock.acquire()
    result, code = asyncio.run(two_members(tmp_path))
    lock.release()

    assert isinstance(result, ProbeResult)
    assert (result.exit_code, code) == (3, 3)
    assert any(line.startswith("busy: b: did not measure, as the node was not free; b: probe_running: ")
               for line in probe_lines(result))  # fmt: skip


@pytest.mark.parametrize(("job", "are_held"), [({"SLURM_JOB_ID": "7"}, False), (NO_JOB, True)])
def test_the_hold_of_its_own_prolog_keeps_no_node_out(tmp_path: Path, job: Mapping[str, str], are_held: bool) -> None:
    """The prolog of every job ends probes and lets none begin for 10 min; the run is that job."""

    async def both() -> list[ProbeResult | int]:
        asked = Asked(backend="simulated")
        return await asyncio.gather(*(member(tmp_path, rank, asked, "h200x1", job=job) for rank in (0, 1)))

    for rank in (0, 1):
        folder = tmp_path / f"state{rank}/simulated-h200x1"
        folder.mkdir(parents=True)
        HoldFile(folder).hold(600.0, time.time())

    result, _ = asyncio.run(both())

    assert isinstance(result, ProbeResult)
    assert [one.detail.startswith("yielded: the node is held") for one in result.members] == [are_held, are_held]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "mpi"], "unknown backend 'mpi'; known: auto, nccl, gloo, tcp, simulated"),
        (["--backend", "simulated"], "a simulated node has backend simulated"),
        (["--rails", "eth77", "--backend", "tcp"], "no rail 'eth77' on this node; there are: "),
        (["--interface", "nix0"], "no interface 'nix0'"),
        (["--groups", "/nowhere/leaves"], "/nowhere/leaves: No such file"),
    ],
)
def test_what_cannot_begin_is_one_line(
    arguments: list[str], words: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the exit code of a broken run."""
    monkeypatch.setenv("COMMWATCH_CLUSTER_KEY", KEY.decode())

    assert main(["cluster", "probe", "--members", "a,b", "--rank", "0", *arguments]) == 5

    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert words in said.err


# --- rails ---

LIMITS = Deadlines(start=1.0, rendezvous=1.0, setup=1.0, measure=1.0)
ETH0 = Interface(name="eth0", address="10.0.0.1", prefix=24)
GPUS = [ProbeGpu(index, f"GPU-{index}", f"0000:{index}1:00.0", "H100") for index in range(2)]
ADAPTERS = {f"mlx5_{number}": RdmaPort(f"mlx5_{number}", 1, True, "InfiniBand", 400.0) for number in range(4)}
NETWORK = Network((ETH0,), Choice(interface="eth0", address="10.0.0.1"), ADAPTERS)


def test_with_nccl_each_adapter_is_a_rail_with_a_gpu_of_its_own() -> None:
    """As many as there are GPUs; the ranks meet at the interface that NCCL would take."""
    rails = rails_of(NETWORK, "nccl", (), GPUS, Topology())

    assert [(one.adapter, one.interface, one.gpu) for one in rails] == [
        ("mlx5_0", "eth0", "GPU-0"), ("mlx5_1", "eth0", "GPU-1"),
    ]  # fmt: skip
    assert rails[0].offer == RailOffer(name="mlx5_0", address="10.0.0.1", rate=50e9, link_layer="InfiniBand")


def tree(switch_of_gpu: Sequence[int], switch_of_adapter: Mapping[int, int], number: int = 16) -> Topology:
    """Eight GPUs and a number of adapters below PCIe switches; the other adapters are at root ports of their own."""
    devices: dict[str, PciDevice] = {}

    def bridge(address: str, role: PciRole, parent: str) -> str:
        devices[address] = PciDevice(address, role, parent, 0, "", PcieLink())
        return address

    def below(switch: int | None, address: str, role: PciRole) -> str:
        root = bridge(f"root of {address if switch is None else switch}", "root_port", f"pci{switch or address}")
        if switch is not None:
            root = bridge(f"switch {switch}", "switch_upstream", root)
        return bridge(address, role, bridge(f"port of {address}", "switch_downstream", root))

    gpus = (Gpu(below(switch_of_gpu[one.index], one.pci_bus_id, "gpu"), one.index) for one in EIGHT_GPUS)
    nics = (
        Nic(below(switch_of_adapter.get(one), f"nic {one}", "nic"), one, (f"mlx5_{one}",), ()) for one in range(number)
    )
    return Topology(tuple(gpus), tuple(nics), devices=devices)


EIGHT_GPUS = [ProbeGpu(index, f"GPU-{index}", f"0000:{index}1:00.0", "H100") for index in range(8)]
BOARDS = {
    # Storage and management are mlx5_4, 5, 10 and 11 (rapidsai/ucx-py issue 749).
    "DGX A100": tree((0, 0, 1, 1, 2, 2, 3, 3), {0: 0, 1: 0, 2: 1, 3: 1, 6: 2, 7: 2, 8: 3, 9: 3}),
    # Storage and management are mlx5_1, 2, 7 and 8 (DGX H100 user guide, table 6).
    "DGX H100": tree(range(8), {0: 0, 3: 1, 4: 2, 5: 3, 6: 4, 9: 5, 10: 6, 11: 7}),
    "cards with two ports": tree(range(8), {one: one // 2 for one in range(16)}),
    # One beside a GPU, and one with no GPU beside it.
    "two adapters": tree(range(8), {0: 1, **dict.fromkeys(range(1, 16), 8)}),
    # Two behind a switch of their own, and one at a root port.
    "one adapter": tree(range(8), {0: 3}, 1),
    "adapters beside no GPU": tree(range(8), {0: 8, 1: 9}),
}


@in_one_pass(
    "board, active, gpu_of",
    [
        ("DGX A100", range(12), {0: 0, 1: 1, 2: 2, 3: 3, 6: 4, 7: 5, 8: 6, 9: 7}),
        ("DGX H100", range(12), {0: 0, 3: 1, 4: 2, 5: 3, 6: 4, 9: 5, 10: 6, 11: 7}),
        # Two ports for storage are up, and the cable of one GPU is out.
        ("DGX H100", (0, 1, 3, 4, 6, 7, 9, 10, 11), {0: 0, 3: 1, 4: 2, 6: 4, 9: 5, 10: 6, 11: 7}),
        ("cards with two ports", range(16), {2 * gpu: gpu for gpu in range(8)}),
        ("two adapters", (0, 1), {0: 1, 1: 0}),
        ("adapters beside no GPU", (0, 1, 2), {0: 0, 1: 1, 2: 2}),
        ("one adapter", (0,), {0: 3}),
    ],
)
def test_rails_are_the_adapters_beside_the_gpus(board: str, active: Iterable[int], gpu_of: dict[int, int]) -> None:
    """In the order of their names, each with its GPU; ports for storage and management and second ports are none."""
    names = sorted(f"mlx5_{number}" for number in active)
    adapters = {name: RdmaPort(name, 1, True, "InfiniBand", 200.0) for name in names}

    rails = rails_of(NETWORK._replace(adapters=adapters), "nccl", (), EIGHT_GPUS, BOARDS[board])

    wanted = {f"mlx5_{adapter}": f"GPU-{gpu}" for adapter, gpu in gpu_of.items()}
    assert [(one.adapter, one.gpu) for one in rails] == sorted(wanted.items())


def test_the_rail_of_a_pod_is_the_function_that_it_has() -> None:
    """It goes to the GPU beside the adapter, of which the pod has no RDMA device; an Ethernet adapter is none."""
    board = tree(range(8), {0: 0, 3: 3})
    nics = (
        replace(board.nics[0], rdma_devices=()),
        replace(board.nics[3], rdma_devices=(), virtual_functions=(VirtualFunction("", ("mlx5_8",), ()),)),
    )
    network = NETWORK._replace(adapters={"mlx5_8": RdmaPort("mlx5_8", 1, True, "Ethernet", 400.0)})

    rails = rails_of(network, "nccl", (), EIGHT_GPUS, replace(board, nics=nics))

    assert [(one.adapter, one.gpu) for one in rails] == [("mlx5_8", "GPU-3")]


def result_of(end: int, transports: dict[str, int]) -> Measured:
    """A cycle of one end: 10 µs on the source's clock, 1 s for the bytes that arrive."""
    meeting = Meeting(end=1 if end else 0, address="10.0.0.1", port=1, own_address="10.0.0.1", interface="eth0", key="")
    plan = plan_between(meeting, backend="nccl", device="GPU-0", deadlines=LIMITS, timed_seconds=0.1)
    seconds = {"latency": 1e-5, "bandwidth": 1.0}
    return Measured(
        finished_at=0.0, occupied_seconds=1.0, setup_seconds=1.0, nccl=NcclNotes(transports=transports),
        outcomes=tuple(
            StepOutcome(step=step, seconds=(seconds[step.purpose] if end in step.clocks else None,))
            for step in plan.steps
        ),
    )  # fmt: skip


@in_one_pass("end", [0, 1])
def test_an_end_reports_its_clock_what_arrived_and_the_transport_of_its_rail(end: int) -> None:
    """The one that most channels take, as NCCL's own log names it."""
    report = _report(end, result_of(end, {"NET/Socket": 3, "SHM": 1}))

    assert report == RailReport(latency=1e-5, received=64 * 2**20, transport="NET/Socket")


@in_one_pass("gbit", [200, 400, 800])
def test_a_message_is_large_enough_for_the_rate_of_the_line(gbit: int) -> None:
    """NCCL carries 95 % of it, and takes 30 µs to start a message between nodes: 22 µs by its own constants."""
    meeting = Meeting(end=1, address="a", port=1, own_address="a", interface="eth0", key="")
    plan = plan_between(meeting, backend="nccl", device="GPU-0", deadlines=LIMITS, timed_seconds=0.1)
    line = gbit * 1e9 / 8

    seconds = 30e-6 + plan.bandwidth_bytes / (0.95 * line)

    assert plan.bandwidth_bytes / seconds > SLOW_SHARE * line


def test_ranks_of_a_rail_are_pinned_to_it() -> None:
    """To its adapter, and to the interface on which they meet; nothing goes by another one."""
    meeting = Meeting(end=1, address="a", port=1, own_address="a", interface="eth0", adapter="mlx5_3", key="")
    plan = plan_between(meeting, backend="nccl", device="GPU-3", deadlines=LIMITS, timed_seconds=0.1)

    environment = rank_environment(plan, 0, Path("/nowhere"), {})

    wanted = {
        "NCCL_IB_HCA": "=mlx5_3", "NCCL_SOCKET_IFNAME": "=eth0", "NCCL_CROSS_NIC": "0", "NCCL_PXN_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-3",
    }  # fmt: skip
    assert wanted.items() <= environment.items()
    assert "NCCL_HOSTID" not in environment
    gloo = plan_between(meeting, backend="gloo", device="", deadlines=LIMITS, timed_seconds=0.1)
    assert rank_environment(gloo, 0, Path("/nowhere"), {})["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize(
    ("exclude", "adapters"), [((), {"mlx5_0", "mlx5_1"}), (("mlx5_1",), {"mlx5_0"}), (("0000:18:*",), {"mlx5_1"})]
)
def test_an_adapter_that_the_configuration_leaves_out_is_no_rail(
    tmp_path: Path, exclude: tuple[str, ...], adapters: set[str]
) -> None:
    """Such as one that manages NVSwitches; nor is one that carries Ethernet packets alone."""
    for number, address in enumerate(("0000:18:00.0", "0000:19:00.0", "0000:1a:00.0")):
        port = add_port(add_device(tmp_path, f"mlx5_{number}", address), attributes={"link_layer": "Ethernet"})
        (port / "gids").mkdir()
        if number < 2:
            (port / "gids/0").write_text("fe80:0000:0000:0000:0202:c9ff:fe00:0001\n")

    assert read_network(tmp_path, Path("/proc"), {}, "", exclude).adapters.keys() == adapters


def test_without_gpus_the_interface_is_the_rail() -> None:
    """Adapters carry no sockets."""
    assert [one.offer.name for one in rails_of(NETWORK, "tcp", (), [], Topology())] == ["eth0"]
    with pytest.raises(BrokenRun, match="no rail 'mlx5_0'"):
        rails_of(NETWORK, "tcp", ("mlx5_0",), [], Topology())


@in_one_pass(
    "asked, simulated, gpus, backend",
    [("auto", False, 0, "tcp"), ("auto", True, 8, "simulated"), ("gloo", False, 8, "gloo"), ("tcp", False, 8, "tcp")],
)
def test_backend_is_what_was_asked_or_what_the_node_can(asked: str, simulated: bool, gpus: int, backend: str) -> None:
    """NCCL wants GPUs and torch."""
    assert chosen_backend(asked, simulated=simulated, gpus=gpus) == backend


@in_one_pass(
    "asked, backend, seen, on_bus, is_left_out",
    [
        ("auto", "tcp", 0, 8, True),
        ("auto", "tcp", 0, 0, False),
        ("tcp", "tcp", 0, 8, False),
        ("auto", "tcp", 8, 8, False),  # torch is missing
        ("auto", "nccl", 4, 8, False),
    ],
)
def test_a_job_without_the_gpus_of_its_node_does_not_measure_the_interface_instead(
    asked: str, backend: Backend, seen: int, on_bus: int, is_left_out: bool
) -> None:
    """As a step of Slurm whose job has the node for itself and asked for no GPU."""
    why = gpus_out_of_reach(asked, backend, seen=seen, on_bus=on_bus)

    assert bool(why) is is_left_out
    assert not why or (skip_of(why) == "no_gpu_backend" and "--gpus-per-node=8" in why)
