"""What a run says of a node: from the store by way of its member to the daemon, and what that exports of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.__main__ import main
from commwatch.cluster.between_nodes import BetweenNodes
from commwatch.cluster.locate import locate
from commwatch.cluster.messages import MOST_RAILS, Unreachable
from commwatch.cluster.node_findings import findings_of
from commwatch.cluster.node_record import NodeHistory, NodeRecord, NotTaken
from commwatch.cluster.node_report import (
    CAUSES,
    CHECK_OPERATION,
    OPERATION,
    CheckReport,
    Ended,
    NetworkRates,
    NodeReport,
    RailResult,
    Suspicion,
    skip_of,
)
from commwatch.cluster.run_file import SCHEMA, Measured, Member, Run
from commwatch.config.settings import Cluster, Config, Duration, Paths
from commwatch.config.thresholds import load_thresholds
from commwatch.errors import CommwatchError
from commwatch.node.starvation import Starvation
from commwatch.node.store import Store
from commwatch.service.engine import Engine
from commwatch.service.instruments import Instruments
from commwatch.state.client import hand_to_daemon
from commwatch.state.control import ControlServer
from commwatch.state.directory import SOCKET_NAME, StateDirectory
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.listen import Peer
from commwatch_exporters.node.model import (
    ClusterCheck,
    ClusterConnections,
    ClusterRail,
    ClusterSuspect,
    Node,
)
from support.core import PlannedJobs, in_loop
from support.daemon import environment
from support.passes import in_one_pass

NOW = 1_790_000_000.0
DAY = 86_400.0
SLOW = Suspicion(kind="nic", element="mlx5_1", fault="bandwidth", direction="out", ratio=0.5)
OWN = Peer(os.getpid(), os.getuid(), os.getgid())
STRANGER = Peer(1, 4242, 4242)


def rail(number: int = 0, **others: Any) -> RailResult:
    known: dict[str, Any] = {"sent": 50e9, "received": 49e9, "sent_ratio": 1.0, "received_ratio": 0.98, "latency": 3e-6}
    return RailResult(rail=number, device=f"mlx5_{number}", **{**known, "good": 3, **others})


def report(number: int = 1, at: float = NOW, **others: Any) -> NodeReport:
    known: dict[str, Any] = {
        "outcome": "completed", "engine": "slurm", "backend": "nccl", "nodes": 4, "seconds": 20.0, "leaf": "leaf1",
        "block": "spine0", "nccl_version": "2.27.7", "settings": "0badcafe",
        "leaf_source": "slurm", "rails": (rail(),), "occupied_seconds": 12.0,
        "network": NetworkRates(usual=50e9, low=48e9, high=51e9),
    }  # fmt: skip
    return NodeReport(run=f"{number:032x}", finished_at=at, **{**known, **others})


# --- what the store says of each node ---


def run_of_four(slow: int = 3) -> Run:
    """Four nodes in a leaf with two rails; one sends half on rail 1."""
    members = tuple(Member(f"node{place}", "leaf1") for place in range(4))
    pairs = [(number, a, b) for number, (a, b) in enumerate((a, b) for a in range(4) for b in range(a))]
    return Run(
        schema=SCHEMA,
        members=members,
        measured=tuple(
            Measured(1 + number // 2, a, b, of, forward=5e8 if of and a == slow else 1e9,
                     backward=5e8 if of and b == slow else 1e9, latency=1e-5)
            for number, a, b in pairs for of in (0, 1)
        ),
    )  # fmt: skip


def test_each_node_has_its_own_rails_and_is_not_told_of_others() -> None:
    """Node3 sends half on rail 1: it alone has the suspicion, by the name of its own device."""
    run = run_of_four()
    devices = [("eth0", f"eth{1 + place}") for place in range(4)]

    found = findings_of(run, locate(run), devices)

    assert found.suspicions == {
        3: (Suspicion(kind="nic", element="eth4", fault="bandwidth", direction="out", ratio=0.5),)
    }
    assert [one.device for one in found.rails[3]] == ["eth0", "eth4"]
    slow, well = found.rails[3][1], found.rails[0][1]
    assert (slow.sent, slow.received, slow.sent_ratio, slow.received_ratio) == (5e8, 1e9, 0.5, 1.0)
    assert (slow.good, slow.slow, slow.failed) == (0, 3, 0)
    assert (well.sent, well.received, well.good, well.slow) == (1e9, 1e9, 2, 1)
    assert "node" not in msgspec.json.encode(found.rails).decode()


def test_a_leaf_is_suspected_by_its_nodes_and_the_network_by_all() -> None:
    """The element is the leaf's name, and no node's."""
    run = run_of_four(slow=-1)
    expected = msgspec.structs.replace(run, expected=2e9)

    found = findings_of(expected, locate(expected), [("eth0", "eth1")] * 4)

    assert {one.element for of in found.suspicions.values() for one in of} == {"network"}
    assert sorted(found.suspicions) == [0, 1, 2, 3]


def test_a_pair_that_failed_counts_as_failed() -> None:
    """It has no bandwidth, and the outcome says so."""
    run = run_of_four(slow=-1)
    failed = tuple(
        msgspec.structs.replace(one, forward=None, backward=None, latency=None, failed="filtered")
        if 0 in (one.first, one.second) and one.rail == 0 else one
        for one in run.measured
    )  # fmt: skip
    run = msgspec.structs.replace(run, measured=failed)

    found = findings_of(run, locate(run), [("eth0", "eth1")] * 4)

    assert (found.rails[0][0].failed, found.rails[0][0].good, found.rails[0][0].sent) == (3, 0, None)
    (suspicion,) = found.suspicions[0]
    assert (suspicion.kind, suspicion.element, suspicion.fault, suspicion.ratio) == ("nic", "eth0", "failed", None)


def test_the_largest_report_goes_through_the_socket() -> None:
    """64 rails and all suspicions fit the 64 KiB of a request, and of the store's message."""
    device = "m" * 64
    large = report(
        rails=tuple(msgspec.structs.replace(rail(number), device=device) for number in range(MOST_RAILS)),
        suspicions=(msgspec.structs.replace(SLOW, element=device),) * 32,
    )  # fmt: skip

    assert len(msgspec.json.encode(Ended(exit_code=0, report=large))) < 2**15


def test_why_a_node_was_not_free_is_one_of_the_reasons_of_the_gate() -> None:
    """Another text is no label."""
    assert skip_of("gpu_busy: GPU0 has 2 processes") == "gpu_busy"
    assert skip_of("probes over gloo, most over tcp: --backend says which") == ""


# --- what the daemon makes of it ---


class Daemon:
    """The part of a daemon that takes reports, at a time that a test sets."""

    def __init__(self, path: Path, users: tuple[str, ...] = ()) -> None:
        self.now = NOW + 1
        self.state = StateDirectory(path)
        self.settings = Cluster(users=users)
        self.restart()

    def restart(self) -> None:
        self.store = Store(frozenset(), frozenset())
        self.part = BetweenNodes(self.settings, self.state, self.store, lambda: self.now)
        self.part.refresh()

    def take(self, document: bytes | NodeReport | CheckReport, peer: Peer = OWN, *, of_check: bool = False) -> None:
        content = document if isinstance(document, bytes) else msgspec.json.encode(document)
        take = self.part.take_check if of_check or isinstance(document, CheckReport) else self.part.take
        asyncio.run(take(content, peer))

    @property
    def node(self) -> Node:
        self.part.refresh()
        return Node(self.store.snapshot())

    def numbers(self, metric: str) -> dict[tuple[str, ...], float]:
        """What the node exports of a metric, by the values of its labels."""
        self.part.refresh()
        samples = self.store.snapshot().samples(f"commwatch_cluster_{metric}")
        return {tuple(labels.values()): value for labels, value in samples}

    def exported(self) -> set[str]:
        """Names of the metrics that have a number."""
        self.part.refresh()
        snapshot = self.store.snapshot()
        return {name for name in CATALOGUE if any(True for _ in snapshot.samples(name))}


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def test_nothing_is_exported_before_the_first_report(daemon: Daemon) -> None:
    """A node without a cluster has no such series."""
    assert daemon.exported() == set()


def test_a_report_is_exported_by_rail_and_direction(daemon: Daemon) -> None:
    """With what it was held against, how many partners were good, and how the run was made."""
    daemon.take(report(rails=(rail(slow=1), rail(1, sent=25e9, sent_ratio=0.5)), suspicions=(SLOW,)))

    node = daemon.node
    one = node.part(ClusterRail, "1")
    assert one.bandwidth_bytes_per_second == {"sent": 25e9, "received": 49e9}
    assert one.peer_ratio == {"sent": 0.5, "received": 0.98}
    assert one.latency_seconds == 3e-6
    assert node.part(ClusterRail, "0").pairs == {"good": 3, "slow": 1, "failed": 0}
    assert [(part.kind, part.element, part.symptom, runs) for part, runs in node.each(ClusterSuspect.runs)] == [
        ("nic", "mlx5_1", "bandwidth", 1)
    ]
    assert daemon.numbers("info") == {("leaf1", "spine0", "slurm", "slurm", "nccl", "2.27.7", "0badcafe"): 1}
    sizes = [daemon.numbers(name) for name in ("run_nodes", "run_duration_seconds", "gpu_occupied_seconds_total")]
    assert sizes == [{(): 4}, {(): 20.0}, {(): 12.0}]
    assert daemon.numbers("runs_total")[("completed",)] == 1


def test_series_are_bounded_by_the_rails(daemon: Daemon) -> None:
    """Eight for each rail, and about two dozen for the node."""
    counts = []
    for number, rails in enumerate((1, 8)):
        daemon.now = NOW + number * 100 + 1
        daemon.take(report(number, at=NOW + number * 100, rails=tuple(rail(one) for one in range(rails))))
        snapshot = daemon.store.snapshot()
        counts.append(sum(1 for name in CATALOGUE for _ in snapshot.samples(name)))
    assert counts[1] - counts[0] == 7 * 8
    assert counts[0] < 25


def test_a_part_is_suspect_in_so_many_runs_in_a_row(daemon: Daemon) -> None:
    """A good run ends the row; a run out of which the node stayed does not."""
    rows = []
    for number, named in enumerate(((SLOW,), (SLOW,), None, (SLOW,), (), (SLOW,))):
        at = NOW + number * DAY
        daemon.now = at + 1
        if named is None:
            daemon.take(report(number, at, outcome="busy", skip="gpu_busy", rails=()))
        else:
            daemon.take(report(number, at, suspicions=named))
        rows.append([runs for _, runs in daemon.node.each(ClusterSuspect.runs)])

    assert rows == [[1], [2], [2], [3], [], [1]]
    assert daemon.numbers("skips_total") == {("gpu_busy",): 1}
    assert daemon.numbers("runs_total")[("busy",)] == 1


def test_a_result_ages_and_a_row_with_it(daemon: Daemon) -> None:
    """After three intervals the result is absent; when the last one was remains, and the counts."""
    daemon.take(report(suspicions=(SLOW,)))
    daemon.now = NOW + 3 * DAY
    assert "commwatch_cluster_rail_peer_ratio" in daemon.exported()

    daemon.now = NOW + 3 * DAY + 1
    assert {name for name in daemon.exported() if not name.endswith("_total")} == {
        "commwatch_cluster_last_completion_timestamp_seconds"
    }
    daemon.take(report(2, at=daemon.now, suspicions=(SLOW,)))
    assert [runs for _, runs in daemon.node.each(ClusterSuspect.runs)] == [1]


def test_a_restart_forgets_nothing(daemon: Daemon) -> None:
    """Neither the result, nor the row, nor which runs are known."""
    daemon.take(report(suspicions=(SLOW,)))
    before = daemon.exported()
    daemon.restart()

    assert daemon.exported() == before
    with pytest.raises(NotTaken, match=r"replayed: run 0+1 is known"):
        daemon.take(report(suspicions=(SLOW,)))
    daemon.now += 60
    daemon.take(report(2, at=daemon.now, suspicions=(SLOW,)))
    assert [runs for _, runs in daemon.node.each(ClusterSuspect.runs)] == [2]


def test_a_report_that_could_not_be_saved_is_saved_later(tmp_path: Path) -> None:
    """A full disk is reported at once; with the daemon's next round of saving the report is kept."""
    file = tmp_path / "cluster.json"
    state = StateDirectory(tmp_path)
    config = Config(paths=Paths(procfs=str(tmp_path), sysfs=str(tmp_path)))
    engine = Engine(
        config, load_thresholds(None), state, None, Instruments(), PlannedJobs(), Starvation(Path("/nonexistent"))
    )
    asyncio.run(engine.save())
    assert not file.exists()  # nothing is known yet
    file.mkdir()  # nothing can be written under this name
    with capture_logs() as events:
        late = report(at=time.time())
        asyncio.run(engine.between_nodes.take(msgspec.json.encode(late), OWN))
        asyncio.run(engine.save())
    errors = [event["event"] for event in events if event["log_level"] == "error"]
    assert errors == ["what is known of runs between nodes cannot be saved; it is tried again later",
                      "something cannot be saved; it is tried again later"]  # fmt: skip

    file.rmdir()
    asyncio.run(engine.save())
    saved = state.load("cluster", NodeHistory)
    assert saved is not None
    assert saved.last == late


def test_a_report_that_comes_during_a_reload_counts_under_the_new_configuration(daemon: Daemon) -> None:
    """The earlier engine takes it while the new one, which has read its state already, reads the node."""
    with pytest.raises(NotTaken):
        daemon.take(b"{}")
    earlier = daemon.part
    daemon.restart()
    daemon.part.take_over(earlier)
    asyncio.run(earlier.take(msgspec.json.encode(report()), OWN))

    assert daemon.numbers("refused_reports_total") == {("malformed",): 1}
    assert daemon.numbers("last_completion_timestamp_seconds") == {(): report().finished_at}


# --- what checks say ---


def check(number: int = 1, at: float = NOW, **others: Any) -> CheckReport:
    return CheckReport(run=f"{number:032x}", finished_at=at, **{"outcome": "completed", **others})


UNREACHED = (Unreachable(port_kind="ephemeral", direction="in", peers=3),)


def test_a_check_is_exported_by_cause_and_direction_and_names_no_peer(daemon: Daemon) -> None:
    """All causes and ways are there, so that a cured one falls to 0."""
    daemon.take(check(causes=("filtered",), unreachable=UNREACHED))

    node = daemon.node
    failed = node.part(ClusterCheck).failed
    assert set(failed) == set(CAUSES)
    assert {cause for cause, checks in failed.items() if checks} == {"filtered"}
    peers = {(way.port_kind, way.direction): peers for way, peers in node.each(ClusterConnections.unreachable_peers)}
    assert peers == {("ephemeral", "in"): 3, ("ephemeral", "out"): 0, ("rendezvous", "in"): 0, ("rendezvous", "out"): 0}
    assert node.part(ClusterCheck).last_timestamp_seconds == NOW
    assert daemon.numbers("runs_total") == {}


def test_a_node_fails_so_many_checks_in_a_row(daemon: Daemon) -> None:
    """A check without the cause ends the row; one that did not get to the meeting place has looked at nothing else."""
    rows = []
    unreached: dict[str, Any] = {"outcome": "unreached", "causes": ("name",)}
    said: dict[str, Any]
    for number, said in enumerate(({"causes": ("mtu",)}, {"causes": ("mtu",)}, unreached, unreached, {})):
        at = NOW + number * DAY
        daemon.now = at + 1
        daemon.take(check(number, at, **said))
        failed = daemon.node.part(ClusterCheck).failed
        rows.append((failed["mtu"], failed["name"]))

    assert rows == [(1, 0), (2, 0), (2, 1), (2, 2), (0, 0)]


def test_a_check_ages_and_its_row_with_it(daemon: Daemon) -> None:
    """After three intervals only its time is left; it survives a restart until then."""
    daemon.take(check(causes=("filtered",)))
    daemon.restart()
    daemon.now = NOW + 3 * DAY
    assert "commwatch_cluster_check_failed" in daemon.exported()

    daemon.now = NOW + 3 * DAY + 1
    assert daemon.exported() == {"commwatch_cluster_last_check_timestamp_seconds"}
    daemon.take(check(2, at=daemon.now, causes=("filtered",)))
    assert daemon.node.part(ClusterCheck).failed["filtered"] == 1


def _doubled(document: NodeReport | CheckReport, name: str, times: int) -> bytes:
    """A report as no daemon and no store makes it: each entry of a list is there several times."""
    found = msgspec.to_builtins(document)
    return msgspec.json.encode({**found, name: [*found[name]] * times})


REFUSED_CHECKS: dict[str, tuple[bytes, Peer, str]] = {
    "a check of another user": (msgspec.json.encode(check()), STRANGER, "stranger"),
    "a cause of its own": (msgspec.json.encode(check(causes=("mtu",))).replace(b'"mtu"', b'"evil"'), OWN, "malformed"),
    "a note": (msgspec.json.encode(check(causes=("mtu",))).replace(b'"mtu"', b'"clock"'), OWN, "malformed"),
    "a way of its own": (
        msgspec.json.encode(check(unreachable=UNREACHED)).replace(b'"in"', b'"up"'), OWN, "malformed"
    ),
    "a peer": (msgspec.json.encode(check(unreachable=UNREACHED)).replace(b'"peers":3', b'"peers":"node7"'), OWN,
               "malformed"),
    "too many peers": (msgspec.json.encode(check(unreachable=UNREACHED)).replace(b'"peers":3', b'"peers":1024'), OWN,
                       "malformed"),
    "too many ways": (_doubled(check(unreachable=UNREACHED), "unreachable", 5), OWN, "malformed"),
    "one way twice": (_doubled(check(unreachable=UNREACHED), "unreachable", 2), OWN, "malformed"),
    "one cause twice": (_doubled(check(causes=("mtu",)), "causes", 2), OWN, "malformed"),
    "a report of a run": (msgspec.json.encode(report()), OWN, "malformed"),
    "a check an hour old": (msgspec.json.encode(check(at=NOW - 3600)), OWN, "stale"),
}  # fmt: skip


REFUSED: dict[str, tuple[bytes | NodeReport, Peer, str]] = {
    "another user": (report(), STRANGER, "stranger"),
    "another user's nonsense": (b"{", STRANGER, "stranger"),
    "an empty object": (b"{}", OWN, "malformed"),
    "nested without end": (b"[[" * 30_000, OWN, "malformed"),
    "no text": (b"\xff\xfe", OWN, "malformed"),
    "another key": (msgspec.json.encode(report()).replace(b'"nodes":4', b'"nodes":4,"peer":"node7"'), OWN, "malformed"),
    "no word": (msgspec.json.encode(report()).replace(b'"device":"mlx5_0"', b'"device":"a b"'), OWN, "malformed"),
    "too fast": (msgspec.json.encode(report()).replace(b"50000000000.0", b"1e300"), OWN, "malformed"),
    "too many rails": (report(rails=tuple(rail(number) for number in range(MOST_RAILS + 1))), OWN, "malformed"),
    "too many suspicions": (report(suspicions=(SLOW,) * 33), OWN, "malformed"),
    "one rail twice": (_doubled(report(), "rails", 2), OWN, "malformed"),
    "an hour old": (report(at=NOW - 3600), OWN, "stale"),
    "an hour ahead": (report(at=NOW + 3600), OWN, "stale"),
}


@in_one_pass("what", [*REFUSED, *REFUSED_CHECKS])
def test_what_does_not_count_exports_no_value(what: str, tmp_path: Path) -> None:
    """Who hands it in is told why, the log says it, and it is counted by its reason; it makes no label."""
    of_check = what in REFUSED_CHECKS
    daemon, (document, peer, reason) = Daemon(tmp_path), {**REFUSED, **REFUSED_CHECKS}[what]
    with capture_logs() as events, pytest.raises(NotTaken) as told:
        daemon.take(document, peer, of_check=of_check)

    assert str(told.value).startswith(f"{reason}: ")
    assert [event["event"] for event in events] == ["a report of a run between nodes was not taken"]
    assert daemon.exported() == {"commwatch_cluster_refused_reports_total"}
    assert daemon.numbers("refused_reports_total") == {(reason,): 1}


@pytest.mark.parametrize("made", [report, check])
def test_a_report_counts_once_and_a_later_one_after_it(daemon: Daemon, made: Callable[..., Any]) -> None:
    """What was refused before leaves nothing behind; a replay and an earlier run do not count."""
    with pytest.raises(NotTaken):
        daemon.take(b"{}")
    daemon.take(made())
    for again, words in ((made(), "replayed"), (made(2, at=NOW - 10), "stale: a later run is known")):
        with capture_logs(), pytest.raises(NotTaken, match=words):
            daemon.take(again)
    daemon.take(made(3, at=NOW + 0.5))


@pytest.mark.parametrize("users", [("4242",), ("nobody", "4242"), ("no-such-user", "nobody")])
def test_users_may_be_named_or_numbered(tmp_path: Path, users: tuple[str, ...]) -> None:
    """One that does not exist does no harm."""
    uid = 4242 if "4242" in users else 65534
    daemon = Daemon(tmp_path, users)
    daemon.take(report(), Peer(1, uid, uid))
    with pytest.raises(NotTaken, match="stranger: user 4343 may not"):
        daemon.take(report(2), Peer(1, 4343, 4343))


def test_a_clock_that_was_ahead_blocks_no_later_run() -> None:
    """What was taken in the future counts as nothing that is later."""
    record = NodeRecord(DAY)
    record.take(report(1, at=NOW + 50), NOW)
    record.take(report(2, at=NOW + 1), NOW + 2)
    assert record.current(NOW + 2) == report(2, at=NOW + 1)


# --- through the socket ---


class Served:
    """A daemon's control socket for reports, in a folder that everybody may enter."""

    def __init__(self, folder: Path) -> None:
        self.daemon = Daemon(folder)
        self.peers: list[Peer] = []
        documents = {OPERATION: self._take, CHECK_OPERATION: self.daemon.part.take_check}
        self.server = ControlServer(folder, {}, documents)

    async def _take(self, document: bytes, peer: Peer) -> msgspec.Struct:
        self.peers.append(peer)
        return await self.daemon.part.take(document, peer)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own, which is closed to others."""
    path = Path(tempfile.mkdtemp(prefix="commwatch-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_report_is_handed_over_with_the_kernels_word_on_who_does_it(folder: Path) -> None:
    """Taken once; the second time it is refused, and the daemon's words reach the member."""

    async def body() -> None:
        served = Served(folder)
        await served.server.listen()
        try:
            answer = await asyncio.to_thread(hand_to_daemon, folder, OPERATION, report())
            assert answer == {"taken": True}
            with pytest.raises(CommwatchError, match=r"the daemon says: replayed: run 0+1 is known"):
                await asyncio.to_thread(hand_to_daemon, folder, OPERATION, report())
            with pytest.raises(CommwatchError, match="unknown operation dance; known: cluster-report, cluster-check"):
                await asyncio.to_thread(hand_to_daemon, folder, "dance", report())
        finally:
            await served.server.stop()
        assert served.peers == [OWN, OWN]

    in_loop(body)


@contextmanager
def serving(served: Served) -> Iterator[None]:
    """The socket of a daemon on a loop of its own, beside a command in this thread."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(served.server.listen())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(served.server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_command_hands_over_what_keeps_it_from_the_meeting_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member whose meeting place no name server knows, to the daemon of its node: what that does not take is said.

    On each node, not on that of member 0 alone; here the second daemon's clock is a day ahead. The exit code is as
    without a daemon.
    """
    monkeypatch.setenv("COMMWATCH_CLUSTER_KEY", "the key of this run")
    command = [
        "cluster", "check", "--members", "a,nowhere.invalid", "--rank", "1", "--host", "nowhere.invalid",
        "--join-window", "100ms", "--path.state", str(folder),
    ]  # fmt: skip
    served = Served(folder)
    with serving(served), capture_logs():
        served.daemon.now = time.time()
        assert main(command) == 1
        taken = capsys.readouterr()
        served.daemon.now = time.time() + DAY
        assert main(command) == 1
        refused = capsys.readouterr()

    assert (taken.out, len(taken.err.splitlines())) == ("", 1)
    [line] = [line for line in refused.err.splitlines() if "daemon" in line]
    assert "did not take the result: the daemon says: stale" in line
    served.daemon.now = time.time()
    node = served.daemon.node
    assert {cause for cause, checks in node.part(ClusterCheck).failed.items() if checks} == {"name"}
    [(way, _)] = [one for one in node.each(ClusterConnections.unreachable_peers) if one[1]]
    assert (way.port_kind, way.direction) == ("rendezvous", "out")


def test_a_report_that_is_too_long_is_not_read(folder: Path) -> None:
    """More than 64 KiB: said, and no value is exported."""

    async def body() -> None:
        served = Served(folder)
        await served.server.listen()
        try:
            large = report(rails=tuple(rail(number) for number in range(2000)))
            with pytest.raises(CommwatchError, match="the daemon says: a request has at most 65536 bytes"):
                await asyncio.to_thread(hand_to_daemon, folder, OPERATION, large)
        finally:
            await served.server.stop()
        assert served.peers == []
        assert served.daemon.exported() == set()

    in_loop(body)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_told_that_its_results_do_not_count(folder: Path) -> None:
    """By the kernel's word, whatever it says itself; here it may even reach the socket."""
    program = (
        "import os, sys\nfrom pathlib import Path\nimport msgspec\nfrom commwatch.state.client import hand_to_daemon\n"
        "os.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
        "hand_to_daemon(Path(sys.argv[1]), 'cluster-report', msgspec.json.decode(sys.stdin.buffer.read()))"
    )

    async def body() -> None:
        served = Served(folder)
        await served.server.listen()
        (folder / SOCKET_NAME).chmod(0o666)
        try:
            done = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", program, str(folder)], input=msgspec.json.encode(report()),
                capture_output=True, env=environment(), timeout=60,
            )  # fmt: skip
        finally:
            await served.server.stop()
        assert "stranger: user 65534 may not hand in results" in done.stderr.decode()
        assert [peer.uid for peer in served.peers] == [65534]
        assert served.daemon.exported() == {"commwatch_cluster_refused_reports_total"}

    in_loop(body)


def test_the_interval_has_a_lower_bound() -> None:
    """A run a second would leave no time for jobs."""
    with pytest.raises(ValueError, match="interval must be at least 60s"):
        Cluster(interval=Duration(1))
