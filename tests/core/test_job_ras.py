"""NCCL's RAS is asked about a job that is suspected to be stuck: when, by which words, and what its answer is worth.

A stand-in speaks the protocol as NCCL's source has it (``client_support.cc``); no RAS of a real job was ever asked.
"""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.config.settings import Config, Jobs
from commwatch.jobs import ras
from commwatch.jobs.ras import RasWord, ask, ask_about, judge_report
from commwatch.jobs.stuck import GROUP as STUCK
from commwatch.workers.one_shot import Answer, NoAnswer
from support.core import block
from support.fed_daemon import FedDaemon
from support.processes import ProcessTable

PIDS = (101, 102)


def rank(number: int, count: int = 7, error: int = 0, state: int = 0) -> dict[str, Any]:
    """A rank that answers."""
    return {
        "rank": number, "host": "10.0.0.1", "pid": 101 + number, "cuda_dev": number, "nvml_dev": number,
        "status": {"init_state": state, "async_error": error, "finalize_called": False, "destroy_flag": False,
                   "abort_flag": False},
        "collective_counts": {"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": count},
    }  # fmt: skip


def missing(number: int, dead: bool) -> dict[str, Any]:
    """A rank that does not."""
    status = {"unresponsive": not dead, "considered_dead": dead}
    return {"rank": number, "host": "10.0.0.2", "pid": 900, "cuda_dev": 0, "nvml_dev": 0, "status": status}


def communicator(
    ranks: list[Any], gone: list[Any] | None = None, *, size: int = 4, name: str = "0xab"
) -> dict[str, Any]:
    """One communicator."""
    return {"hash": name, "secondary_hash": "0x1:0x2", "size": size, "ranks_count": len(ranks),
            "missing_ranks_count": len(gone or []), "ranks": ranks, "missing_ranks": gone or []}  # fmt: skip


def report(*communicators: dict[str, Any]) -> str:
    """The answer to STATUS of 2.29.2 and later."""
    whole = {
        "nccl_version": "2.29.2+cuda13.0", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-11-29 02:00:00", "communicators_count": len(communicators),
        "communicators": communicators, "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }  # fmt: skip
    return json.dumps(whole, indent=2) + "\n"


SOUND = "RAS shows no difference between the ranks, as it does in a hang of all alike"
ALIKE = communicator([rank(one) for one in range(4)])
LATE = communicator([*(rank(one) for one in (0, 2, 3)), rank(1, count=6)])
ZEROES = communicator([], size=0, name="0x0")
_COMMA = '"nvml_dev": 0,\n          "status": {\n            "unresponsive"'
BROKEN = report(communicator([rank(0)], [missing(1, dead=True)])).replace(_COMMA, _COMMA.replace(",", ""))
"""As 2.28.9 writes it: no comma behind ``nvml_dev`` of a missing rank."""
EVENT = (
    '{\n  "timestamp": "2026-11-29 02:00:00",\n  "group": "LIFECYCLE",\n  "event": "PEER_DEAD",\n  "details": ""\n}\n'
)


class StandIn(socketserver.TCPServer):
    """A RAS on a port of its own; it serves a connection only when the one before is closed.

    Args:
        answer: to STATUS; bytes, or what is done with the connection.
        monitor: whether it knows MONITOR.
        events: of MONITOR.
        greeting: what is done with a connection in place of the protocol.
    """

    allow_reuse_address = True

    def __init__(
        self, answer: str | Callable[[Any], None] = "", *, monitor: bool = True, events: str = "",
        greeting: Callable[[Any], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.monitor, self.events, self.greeting = answer, monitor, events, greeting
        self.commands: list[str] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", self.server_address[1])]


class _Handler(socketserver.StreamRequestHandler):
    server: StandIn

    def handle(self) -> None:
        try:
            if self.server.greeting is not None:
                self.server.greeting(self.wfile)
            else:
                self._serve()
        except OSError:
            pass  # the other side has closed

    def _serve(self) -> None:
        for line in self.rfile:
            command = line.decode().strip()
            self.server.commands.append(command)
            word = command.upper()
            if word.startswith("CLIENT PROTOCOL"):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif word.startswith("SET FORMAT") or (word.startswith("MONITOR") and self.server.monitor):
                self.wfile.write(b"OK\n" + (self.server.events.encode() if "MONITOR" in word else b""))
            elif word == "STATUS":
                if callable(self.server.answer):
                    self.server.answer(self.wfile)
                else:
                    self.wfile.write(self.server.answer.encode())
                return
            else:
                self.wfile.write(b"ERROR: Unknown command " + line)


@pytest.fixture
def start() -> Iterator[Callable[..., StandIn]]:
    servers: list[StandIn] = []

    def make(*arguments: Any, **options: Any) -> StandIn:
        servers.append(StandIn(*arguments, **options))
        return servers[-1]

    yield make
    for one in servers:
        one.shutdown()
        one.server_close()


def asked(server: StandIn, seconds: float = 5.0) -> RasWord:
    return ask(server.addresses, PIDS, 0.02, seconds)


@pytest.mark.parametrize(
    ("communicators", "outcome", "words"),
    [
        ([ALIKE], "agree", SOUND),
        ([LATE], "differ", "RAS: rank 1 of 4 has launched fewer all_reduce than the others"),
        ([ALIKE, ZEROES, ZEROES], "agree", SOUND),
        ([ZEROES], "setting_up", "RAS knows no communicator that is set up"),
        ([], "setting_up", "RAS knows no communicator that is set up"),
        (
            [communicator([rank(0), rank(1), rank(2, count=6), rank(3, count=6)])],
            "differ",
            "RAS: the 4 ranks have launched different numbers of all_reduce",
        ),
        ([communicator([rank(0), rank(1), rank(2), rank(3, count=0, state=7)])], "agree", SOUND),  # is set up only now
        (
            [communicator([rank(0), rank(1, error=6), rank(2, error=7)])],
            "differ",
            "RAS: rank 1 of 4 has an asynchronous error",
        ),
        (
            [communicator([rank(0)], [missing(1, dead=True), missing(3, dead=False), missing(2, dead=False)]), LATE],
            "differ",
            "RAS: rank 1 of 4 is taken for dead; ranks 2, 3 of 4 do not answer; "
            "rank 1 of 4 has launched fewer all_reduce than the others",
        ),
        ([communicator([{**rank(0), "pid": 77}])], "other_job", "RAS answered for another job of this user"),
    ],
)  # fmt: skip
def test_a_report_names_those_that_differ(
    start: Callable[..., StandIn], communicators: list[Any], outcome: str, words: str
) -> None:
    """MONITOR comes first, then STATUS once, on one connection, in JSON; nothing else is ever sent."""
    server = start(report(*communicators))
    word = asked(server)

    assert (word.outcome, word.words) == (outcome, words)
    assert server.commands == ["CLIENT PROTOCOL 2", "SET FORMAT json", "MONITOR", "STATUS"]


def test_processes_that_die_while_it_listens_are_counted(start: Callable[..., StandIn]) -> None:
    """And the processes of this node that are behind are known by their ids."""
    word = asked(start(report(LATE), events=EVENT * 3))
    assert (word.died, word.behind_pids) == (3, (102,))
    assert word.words.endswith("than the others; 3 processes died while it was asked")


def test_a_version_that_must_not_be_asked_is_never_asked_for_a_report(start: Callable[..., StandIn]) -> None:
    """2.28.9 does not know MONITOR, whatever the library said; its report with a missing rank is no JSON."""
    server = start(BROKEN, monitor=False)
    assert asked(server).outcome == "too_old"
    assert "STATUS" not in server.commands
    assert asked(start(BROKEN)).outcome == "unreadable"


def _flood(file: Any) -> None:
    for _ in range(1 << 14):
        file.write(b"x" * (1 << 16))  # 1 GiB


def _wait(file: Any) -> None:
    threading.Event().wait(0.5)


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({"greeting": _wait}, "no_answer"),
        ({"greeting": lambda file: file.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")}, "protocol"),
        ({"greeting": lambda file: file.write(b"SSH-2.0-OpenSSH_9.2" * 200)}, "protocol"),
        ({"greeting": _flood}, "protocol"),
        ({"greeting": lambda file: None}, "cut"),
        ({"events": EVENT * 20_000}, "too_large"),
        ({"answer": _flood}, "too_large"),
        ({"answer": _wait}, "no_answer"),
        ({"answer": ""}, "cut"),
        ({"answer": report(ALIKE)[:-40]}, "cut"),
        ({"answer": "[" * 100_000 + "}"}, "unreadable"),
        ({"answer": '{"communicators": [{"hash": "-1", "size": 4}]}'}, "unreadable"),
        ({"answer": '{"communicators": [{"hash": "0xab", "size": -4}]}'}, "unreadable"),
        ({"answer": "NCCL version 2.29.2 compiled with CUDA 13.0 {}"}, "unreadable"),
    ],
)
def test_what_means_harm_is_given_up(
    start: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch, options: Any, outcome: str
) -> None:
    """Nothing, something endless, 1 GiB, another protocol, half a report."""
    monkeypatch.setattr(ras, "MOST_BYTES", 4 << 20)
    assert asked(start(**options), 0.2 if outcome == "no_answer" else 5.0).outcome == outcome


def test_nobody_listens(start: Callable[..., StandIn]) -> None:
    """A port that is closed."""
    server = start()
    server.shutdown()
    server.server_close()
    assert asked(server).outcome == "unreachable"


# --- whether it is asked ---


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """Two ranks of a job of NCCL 2.29.2 that have run for 20 min."""
    root = tmp_path / "daemon/procfs"
    root.mkdir(parents=True)
    table = ProcessTable(root)
    (root / "uptime").write_text("5000.0 0\n")
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/net").symlink_to("net:[1]")
    for number, pid in enumerate(PIDS):
        table.add(pid, rank=number)
        folder = root / str(pid)
        (folder / "maps").write_text("7f00-7f01 r-xp 0 0:0 1 /usr/lib/libnccl.so.2.29.2\n")
        (folder / "stat").write_text(f"{pid} (python) S 1{' 0' * 17} {380_000}{' 0' * 30}")
        (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
        (folder / "ns").mkdir()
        (folder / "ns/net").symlink_to("net:[1]")
    return root


def _set(name: str, value: str) -> Callable[[Path], None]:
    return lambda folder: ProcessTable(folder.parent).add(PIDS[0], {name: value}, rank=0)


def _write(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


def _other_namespace(folder: Path) -> None:
    (folder / "ns/net").unlink()
    (folder / "ns/net").symlink_to("net:[2]")


def _listener(user: int, port: int, name: str = "tcp", state: str = "0A") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder.parent / "net").mkdir()
        zeros = "00000000:00000000 00:00000000 00000000"
        lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"]
        lines += [f"   0: 0100007F:{port:04X} 00000000:0000 {state} {zeros} {one:5} 0 47 1" for one in (0, user)]
        (folder.parent / "net" / name).write_text("\n".join(lines) + "\n")

    return change


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda folder: None, "agree"),
        (_listener(0, 28028), "agree"),
        (_listener(1002, 28028), "other_user"),
        (_listener(1002, 28028, "tcp6"), "other_user"),
        (_listener(1002, 28028, state="01"), "agree"),
        (_listener(1002, 28029), "agree"),
        (_set("NCCL_RAS_ADDR", "127.0.0.2:4000"), "agree"),
        (_set("NCCL_RAS_ADDR", "[::]:4000"), "agree"),
        (_set("NCCL_RAS_ADDR", "10.0.0.1:22"), "address"),
        (_set("NCCL_RAS_ADDR", "files.example.org:80"), "address"),
        (_set("NCCL_RAS_ADDR", "localhost:99999"), "address"),
        (_set("NCCL_RAS_ENABLE", "0"), "off"),
        (_write("maps", "7f00-7f01 r-xp 0 0:0 1 /usr/lib/libnccl.so.2.29.1\n"), "version"),
        (_write("maps", "7f00-7f01 r-xp 0 0:0 1 /usr/lib/libnccl.so\n"), "version"),
        (_write("stat", f"101 (python) S 1{' 0' * 17} 450000{' 0' * 30}"), "young"),
        (_other_namespace, "namespace"),
        (lambda folder: ProcessTable(folder.parent).add(PIDS[0], rank=4), "no_rank_0"),
        (lambda folder: (folder / "environ").write_bytes(b""), "unread"),
    ],
)
def test_it_is_asked_only_where_that_is_known_to_be_safe(
    procfs: Path, change: Callable[[Path], None], outcome: str
) -> None:
    """Where it is not, no connection is made; a job cannot send the daemon to another machine."""
    change(procfs / str(PIDS[0]))
    connections: list[Any] = []

    def asker(addresses: Any, pids: Any) -> RasWord:
        connections.append(addresses)
        return RasWord("agree")

    assert ask_about(procfs, PIDS, asker).outcome == outcome
    assert len(connections) == (outcome == "agree")


@pytest.mark.parametrize("elsewhere", [rank(1, count=6), missing(1, dead=False)])
def test_the_id_of_a_process_on_another_node_names_none_here(elsewhere: dict[str, Any]) -> None:
    late = rank(1, count=6) | {"rank": 5}
    ranks = [*(rank(one) for one in (0, 2, 3)), late]
    other = elsewhere | {"host": "10.0.0.2", "pid": late["pid"]}
    is_missing = "collective_counts" not in other
    both = communicator(ranks if is_missing else [*ranks, other], [other] if is_missing else None)
    assert judge_report(report(communicator(ranks)).encode(), PIDS).behind_pids == (late["pid"],)
    found = judge_report(report(both).encode(), PIDS)
    assert (found.outcome, found.behind_pids) == ("differ", ())


# --- when it is asked ---

LABELS = (("0", "0000:17:00.0"), ("1", "0000:18:00.0"))


class Suspicion:
    """A job on two GPUs, whose words the test gives.

    Args:
        give: None: the process that asks does not end in time.
    """

    def __init__(self, give: RasWord | None, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.give = give
        self.daemon, self.after = (FedDaemon(folder, patched, Config(jobs=Jobs(ras=True))) for _ in range(2))
        self.commands: list[tuple[str, ...]] = []
        self.silent: list[str] = []
        """Addresses that must not be asked, by question."""
        self._begin(self.daemon)
        self.asks = self.asker._ask
        """As the daemon does."""
        self.asker._ask = self._ask

    def _begin(self, daemon: FedDaemon) -> None:
        self.store = daemon.engine.store
        self.store.occupants = {labels[1]: (pid,) for labels, pid in zip(LABELS, PIDS, strict=True)}
        self.store.jobs = dict.fromkeys(PIDS, PIDS[0])
        for labels in LABELS:
            self.store.put("nvml_gpu", labels[1], block({("commwatch_gpu_power_watts", labels): 1}, 0.0), 1e9)
        assert daemon.engine.job_ras is not None
        self.asker = daemon.engine.job_ras

    def reconfigure(self) -> None:
        """Another daemon goes on with a changed configuration."""
        before, ask, self.after.clock.now = self.asker, self._ask, self.daemon.clock.now
        self.daemon = self.after
        self._begin(self.after)
        self.asker.take_over(before)
        self.asker._ask = ask

    async def _ask(self, command: tuple[str, ...], *_: Any, **__: Any) -> Answer:
        self.commands.append(command[-2:])
        self.silent.append(command[-3])
        if self.give is None:
            raise NoAnswer("no answer")
        return Answer(0, msgspec.json.encode(self.give).decode())

    def check(self, stuck: float, seconds: float = 60.0) -> dict[tuple[str, ...], Any]:
        """The metrics after a check, some seconds later, of a job that has been stuck for some time."""
        self.daemon.clock.now += seconds
        now = self.daemon.clock.now
        self.store.put(STUCK, "", block({("commwatch_job_stuck_seconds", LABELS[0]): stuck}, now), 1e9)
        asyncio.run(self.asker.run())
        shown = self.store.get("job_ras", "")
        assert shown is not None
        rows = zip(shown.layout.series, shown.values, strict=True)
        return {(metric.removeprefix("commwatch_"), *labels): value for (metric, labels), value in rows if value}


Suspect = Callable[[RasWord | None], Suspicion]


@pytest.fixture
def suspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suspect:
    return lambda give: Suspicion(give, tmp_path / "daemon", monkeypatch)


def test_a_suspected_job_is_asked_about_once(suspect: Suspect, procfs: Path) -> None:
    """While it is suspected; a new suspicion is another one. The word never takes the suspicion away."""
    job = suspect(RasWord("agree", ranks=2, communicators=1))
    assert job.check(39) == {}
    for _ in range(5):
        assert job.check(70) == {("nccl_ras_queries_total", "agree"): 1}
    assert job.commands == [("101", "102")]
    word = job.asker.word_on(frozenset({102}))
    assert word is not None
    assert word.words == SOUND
    suspicion = job.store.get(STUCK, "")
    assert suspicion is not None
    assert suspicion.values == [70]
    job.check(0)
    assert job.asker.word_on(frozenset(PIDS)) is None
    job.check(70)
    assert len(job.commands) == 2


def test_nothing_is_asked_unless_the_site_has_turned_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is off by default."""
    off, on = (FedDaemon(tmp_path, monkeypatch, config).engine for config in (Config(), Config(jobs=Jobs(ras=True))))
    assert off.job_ras is None
    assert on.job_ras is not None


def test_ranks_are_shown_by_state_and_one_that_is_behind_at_its_gpu(suspect: Suspect) -> None:
    """At the lowest GPU of the job, as its other metrics."""
    job = suspect(judge_report(report(LATE).encode(), PIDS))
    assert job.check(70) == {
        ("nccl_ras_queries_total", "differ"): 1,
        ("job_ras_ranks", *LABELS[0], "behind"): 1,
        ("job_ras_behind", *LABELS[1]): 1,
    }  # fmt: skip


@pytest.mark.parametrize("give", [None, RasWord("cut")])
def test_after_a_cut_connection_there_is_silence_for_an_hour(suspect: Suspect, give: RasWord | None) -> None:
    """For this job, and over a change of the configuration."""
    job = suspect(give)
    job.check(70)
    job.check(0)
    for _ in range(int(3600 / 60) - 2):
        job.check(70)
    assert len(job.commands) == 1
    job.reconfigure()
    job.check(70, 10)
    assert len(job.commands) == 1
    job.check(70, 120)
    assert len(job.commands) == 2


@pytest.mark.parametrize("address", ["127.0.0.1:28028", ""])
def test_the_silence_is_that_of_one_job_and_its_address(suspect: Suspect, address: str) -> None:
    """Another job is asked, but not where the first one was."""
    job = suspect(RasWord("cut", address=address))
    job.check(70)
    job.store.jobs = {PIDS[0]: PIDS[0], PIDS[1]: PIDS[1]}
    job.store.occupants = {labels[1]: (pid + 100,) for labels, pid in zip(LABELS, PIDS, strict=True)}
    job.give = RasWord("agree", ranks=2, communicators=1)
    assert job.check(70) == {("nccl_ras_queries_total", "cut"): 1, ("nccl_ras_queries_total", "agree"): 1}
    assert job.silent == ["", address]


def test_a_job_at_a_silent_address_is_asked_when_the_hour_is_over(suspect: Suspect) -> None:
    """Which address that is, only the process that asks can know."""
    job = suspect(RasWord("no_answer", address="127.0.0.1:28028"))
    job.check(70)
    job.store.occupants = {labels[1]: (pid + 100,) for labels, pid in zip(LABELS, PIDS, strict=True)}
    job.give = RasWord("silent")
    for _ in range(int(3600 / 60) - 2):
        shown = job.check(70)
    assert shown == {("nccl_ras_queries_total", "no_answer"): 1, ("nccl_ras_queries_total", "silent"): 1}
    job.give = RasWord("agree", ranks=2, communicators=1)
    assert job.check(70, 120)["nccl_ras_queries_total", "agree"] == 1
    assert job.silent == ["", "127.0.0.1:28028", ""]


def test_a_silent_address_is_not_asked(procfs: Path) -> None:
    """Neither where it is the default, nor where the job names it."""
    assert ask_about(procfs, PIDS, silent=["127.0.0.1:28028"]).outcome == "silent"
    assert ask_about(procfs, PIDS, lambda *_: RasWord("agree"), silent=["127.0.0.1:1"]).address == "127.0.0.1:28028"
    ProcessTable(procfs).add(PIDS[0], {"NCCL_RAS_ADDR": "localhost:1"}, rank=0)
    assert ask_about(procfs, PIDS, silent=["127.0.0.1:1"]).outcome == "silent"


def test_the_process_that_asks_is_real(suspect: Suspect, start: Callable[..., StandIn], procfs: Path) -> None:
    """From the suspicion over the process to the word, with a server in place of NCCL."""
    server = start(report(LATE))
    ProcessTable(procfs).add(PIDS[0], {"NCCL_RAS_ADDR": f"127.0.0.1:{server.addresses[0][1]}"}, rank=0)
    job = suspect(None)
    job.asker._ask = job.asks
    assert job.check(70)[("job_ras_behind", *LABELS[1])] == 1
    assert server.commands.count("STATUS") == 1
