"""What comes over sockets, pipes and files that grow, and what the kernel shows."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, Final, cast

import msgspec
from benchmarks.fuzz import ROOT
from benchmarks.fuzz.target import Check, Target

from commwatch.cluster import store as cluster_store
from commwatch.cluster.between_nodes import BetweenNodes
from commwatch.cluster.channel import MAGIC
from commwatch.cluster.messages import Contact, Join, Prober, RailReport, Ready, Report, Unreachable, has_addresses
from commwatch.cluster.node_report import (
    CHECK_OPERATION,
    OPERATION,
    CheckReport,
    NetworkRates,
    NodeReport,
    RailResult,
    Suspicion,
)
from commwatch.cluster.verdict import judge
from commwatch.commands import diagnose_log
from commwatch.config.settings import Cluster, NetworkSection
from commwatch.errors import CommwatchError
from commwatch.jobs.logs.categories import SIDES
from commwatch.jobs.logs.source import LOOK_SECONDS, NcclLogsSource
from commwatch.lines import plain, printable
from commwatch.node.run import Collected
from commwatch.node.store import Store
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.document import document
from commwatch.node.topology.dot import dot
from commwatch.node.topology.nvlink import DriverFacts
from commwatch.node.topology.sysfs import read_sysfs
from commwatch.node.topology.text import topology_lines
from commwatch.probes.cycle.process import RankProcess
from commwatch.probes.rank_plan import ErrorEvent, GateEvent, RankResult, ResultEvent
from commwatch.readings import Batch, SourceUnavailable
from commwatch.sources.base import Source
from commwatch.sources.kernel_log import KernelLogSource
from commwatch.sources.kernel_log_lines import details
from commwatch.sources.network import NetworkSource
from commwatch.sources.pci.source import PciSource
from commwatch.sources.rdma.source import RdmaSource
from commwatch.sources.services import ServicesSource
from commwatch.state.client import ask_daemon
from commwatch.state.control import ControlServer
from commwatch.state.directory import StateDirectory
from commwatch.workers.reader import ReaderSettings
from commwatch.workers.wire import Order, ProgressMark, WireBatch, WireReadings, WorkerPlan, frame
from commwatch.workers.worker import Worker
from commwatch_exporters.http_server import HttpServer
from commwatch_exporters.listen import Peer
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.node_collector import Format, NodeCollector
from commwatch_exporters.snapshot import Block, Layout, Snapshot
from commwatch_exporters.web import Endpoint
from commwatch_rehearsal.simulation.node import SimulatedNode
from support.pages import snapshot_of

# --- HTTP ---


class _Wire(asyncio.Transport):
    """Takes what a connection writes."""

    def __init__(self, extra: dict[str, Any] | None = None) -> None:
        super().__init__(extra)
        self.sent = b""
        self._is_closing = False
        self.transport = self
        """As that of a ``StreamWriter``."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def write_eof(self) -> None:
        """What was sent is the whole."""

    def pause_reading(self) -> None:
        """All is there."""

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes everything."""

    async def drain(self) -> None:
        """The kernel has taken it."""

    async def wait_closed(self) -> None:
        """It is."""


async def _talk(server: HttpServer, data: bytes, size: int, peer: Peer | None = None) -> bytes:
    """What a server says to a client that sends some bytes, so many at a time, and then ends its side."""
    loop = asyncio.get_running_loop()
    theirs, ours = socket.socketpair()
    with theirs:
        for one in (theirs, ours):
            one.setblocking(False)
        connection = server.take_in(ours, "fuzz", peer)
        with suppress(OSError):  # refused in the middle
            for begin in range(0, len(data), size):
                await loop.sock_sendall(theirs, data[begin : begin + size])
                await asyncio.sleep(0)
            theirs.shutdown(socket.SHUT_WR)
        sent = b""
        with suppress(ConnectionResetError):
            while part := await loop.sock_recv(theirs, 2**16):
                sent += part
    await asyncio.wait([connection.task])
    return sent


@contextmanager
def _http(folder: Path) -> Iterator[Check]:
    """A request head, in pieces as long as its first byte says."""
    failures: list[Exception] = []

    class Failing(Endpoint):
        def failed(self, where: str, error: Exception) -> None:
            failures.append(error)

    loop = asyncio.new_event_loop()
    endpoint = Failing(
        metrics=MetricsPage(lambda: snapshot_of({("commwatch_simulated", ()): 1})),
        pages={"/": lambda: b"<!doctype html>\n"},
        documents={"/api/v1/snapshot": lambda: b"{}\n"},
    )

    def check(data: bytes) -> None:
        if not data:
            return
        sent = loop.run_until_complete(_talk(endpoint, data[1:], data[0] or 4096))
        if failures:
            raise failures.pop()
        assert not endpoint.connections, "a connection is left"
        _assert_answers(sent)

    try:
        yield check
    finally:
        loop.close()


def _assert_answers(sent: bytes) -> None:
    """Each is whole, and says how long it is."""
    while sent:
        head, end, rest = sent.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), "no answer"
        assert end, "half an answer"
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
        assert len(lengths) == 1, "not one length"
        length = int(lengths[0].rpartition(b" ")[2])
        # The answer to HEAD has a length and no body.
        sent = rest if rest[:9] == b"HTTP/1.1 " else rest[length:]


_REQUESTS: Final = (
    b"\x00GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: application/openmetrics-text;version=1.0.0,*/*;q=0.5\r\n"
    b"Accept-Encoding: gzip, br;q=0\r\n\r\n",
    b"\x07HEAD / HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n",
    b"\x00GET http://node/api/v1/snapshot?x=%00 HTTP/1.0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x01POST /readyz HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"\x40GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)
_HTTP: Final = (
    b"GET ", b"HEAD ", b"PUT ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/2.0\r\n", b"Host: x\r\n", b"\r\n\r\n",
    b"Content-Length: 0\r\n", b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"Accept: ", b"Accept-Encoding: ",
    b";q=", b"*/*", b"gzip", b"text/plain;version=0.0.4", b"application/openmetrics-text", b"Authorization: Basic ",
    b"/metrics", b"/", b"Range: bytes=0-", b"If-None-Match: *", b"\n", b"\r\n ", b"\n\n",
)  # fmt: skip

# --- logs of jobs ---


@contextmanager
def _nccl_log(folder: Path) -> Iterator[Check]:
    """A log that somebody shows to ``diagnose --log``."""
    file = folder / "job.log"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        answer = diagnose_log.answer_from([str(file)])
        msgspec.json.encode(answer)
        "\n".join(plain(line) for line in diagnose_log.log_lines(answer)).encode()

    yield check


@contextmanager
def _nccl_tail(folder: Path) -> Iterator[Check]:
    """A log that grows while the daemon reads it, in pieces, with a new process in between."""

    def check(data: bytes) -> None:
        file, now, resume = folder / "job.log", 0.0, b""
        file.write_bytes(b"")
        began = os.stat(file).st_mtime

        def begin() -> NcclLogsSource:
            one = NcclLogsSource([f"{folder}/*.log"], (), resume, "gpu7", lambda: began + now, lambda: now)
            one.open(lambda device: None, frozenset(), None)
            return one

        source = begin()
        size = max(1, len(data) // 3)
        for place, start in enumerate(range(0, len(data), size)):
            with file.open("ab") as log:
                log.write(data[start : start + size])
            now += LOOK_SECONDS
            batch = source.collect("nccl_logs")
            assert {one.category for one in batch.log_errors} <= SIDES.keys()
            msgspec.msgpack.encode(batch.log_errors)
            resume = batch.resume or resume
            if place == 1:
                source.close()
                source = begin()
        source.close()

    yield check


def _logs() -> Sequence[bytes]:
    folders = ("tests/analysis/nccl_log_corpus", "tests/analysis/nccl_log_threads")
    whole = [file.read_bytes() for folder in folders for file in sorted((ROOT / folder).glob("*.log"))]
    return [one[begin : begin + 2048] for one in whole for begin in range(0, len(one), 2048)]


_LOG: Final = (
    b"NCCL WARN ", b"NCCL INFO ", b"gpu7:41:77 [0] ", b"[rank1]: ", b"2026-01-01T10:05:00 ", b"Last error:\n",
    b"Timeout(ms)=600000", b"WorkNCCL(SeqNum=12, OpType=ALLREDUCE", b"CUDA error: ", b"transport/net_ib.cc:1296 ",
    b"Got completion from peer 10.2.0.5<33092> with error 12", b"NCCL version 2.27.7+cuda12.9", b"\r", b"\n",
    b" raised the following exception", b"Segmentation fault", b"Signal 9 (SIGKILL)",
)  # fmt: skip

# --- the kernel ---


@contextmanager
def _kernel_log(folder: Path) -> Iterator[Check]:
    """Records, one a line."""
    boot = folder / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("0b1c2d3e-0000-4000-8000-000000000000\n")

    class Log:
        def __init__(self) -> None:
            self.records: list[bytes] = []

        def read(self) -> bytes | None:
            return self.records.pop() if self.records else None

        def close(self) -> None:
            """Nothing is open."""

    def check(data: bytes) -> None:
        log = Log()
        source = KernelLogSource(lambda: log, folder, True, lambda: 1.7e9, lambda: 1000.0)
        source.open(lambda device: None, frozenset(), None)
        log.records = [line + b"\n" for line in data.split(b"\n")] + [data]
        for event in source.collect("kernel_log").events:
            assert len(event.text) <= 1024
            assert 0 <= event.time <= 1.7e9
            details(event.kind, event.text)
            msgspec.msgpack.encode(event)

    yield check


def _records() -> Sequence[bytes]:
    lines = (ROOT / "tests/sources/corpus/kernel_log.txt").read_bytes().splitlines()
    texts = [line.partition(b" | ")[2] for line in lines if b" | " in line]
    return [b"4,%d,%d,-;%s" % (place, 1000 * place, text) for place, text in enumerate(texts)]


_KERNEL: Final = (
    b"NVRM: Xid (PCI:0000:17:00): 79, ", b"SXid (PCI:0000:01:00.0): 12028, ", b"nvidia-nvswitch0: ", b"\\x0a",
    b"\\xff", b",caller=T1;", b"Severity 1 ", b"Data {", b"Fatal, Link 3 ", b"XC0 i0 Link 4 (0x00000001",
    b"pid=1, name=x, ", b"fallen off the bus", b"GPU-I:01",
)  # fmt: skip


def _sources(sysfs: Path, procfs: Path) -> Iterator[Source]:
    yield PciSource(sysfs)
    yield RdmaSource(sysfs)
    yield NetworkSource(sysfs, NetworkSection())
    yield ServicesSource(sysfs, procfs)


@contextmanager
def _sysfs(folder: Path) -> Iterator[Check]:
    """The first two bytes say which file of a small node; the rest is what stands in it."""
    node = folder / "node.yaml"
    node.write_text(
        "like: h100x8\ngpus: 2\nnics: [{speed: 400, interface: eth0, rdma: mlx5_0}, {speed: 400, rdma: mlx5_1}]\n"
    )
    simulated = SimulatedNode(str(node), None, 1e9, lambda: 1e9 + 100)
    sysfs, procfs = folder / "sysfs", folder / "procfs"
    simulated.write_sysfs(sysfs, ())
    simulated.write_procfs(procfs)
    files = sorted(one for root in (sysfs, procfs) for one in root.rglob("*") if one.is_file() and not one.is_symlink())

    def check(data: bytes) -> None:
        file = files[int.from_bytes(data[:2], "big") % len(files)]
        before = file.read_bytes()
        file.write_bytes(data[2:])
        try:
            for source in _sources(sysfs, procfs):
                with suppress(SourceUnavailable):
                    source.open(lambda device: None, frozenset(), None)
                    for collector in source.collectors:
                        _assert_fit(source.collect(collector))
                source.close()
            topology = build_topology(read_sysfs(sysfs, procfs), DriverFacts())
            msgspec.json.encode(document(topology, simulated=True))
            dot(topology).encode()
            "\n".join(plain(line) for line in topology_lines(topology)).encode()
        finally:
            file.write_bytes(before)

    yield check


def _assert_fit(batch: Batch) -> None:
    """What was read can be sent and exposed."""
    msgspec.msgpack.encode([(one.device, one.series, list(one.values)) for one in batch.readings])
    _page_of([Block(Layout(one.series), one.values, one.time) for one in batch.readings])


def _page_of(blocks: Sequence[Block]) -> bytes:
    snapshot = Snapshot(blocks)
    return NodeCollector(lambda: snapshot).text(snapshot, Format.TEXT).encode()


def _attributes() -> Sequence[bytes]:
    texts = (b"32.0 GT/s PCIe\n", b"16\n", b"0x15b3\n", b"4: ACTIVE\n", b"400 Gb/sec (4X NDR)\n", b"up\n", b"12345\n",
             b"-1\n", b"0-15,32-47\n", b"processor : 0\nvendor_id : GenuineIntel\nmodel name : Xeon\n\n")  # fmt: skip
    return [place.to_bytes(2, "big") + text for place in range(0, 400, 13) for text in texts]


# --- what processes say to each other ---


@contextmanager
def _control(folder: Path) -> Iterator[Check]:
    """A document that is handed to the daemon's control socket, and the same bytes as its answer to a command.

    The first byte says who takes the document.
    """
    loop = asyncio.new_event_loop()

    def give() -> dict[str, Any]:
        return {"x": 1}

    state = StateDirectory(folder / "state")
    state.open()
    part = BetweenNodes(Cluster(), state, Store())
    server = ControlServer(folder, {"inventory": give}, {OPERATION: part.take, CHECK_OPERATION: part.take_check})
    path = folder / "control.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    answers: list[bytes] = []

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answers.pop())

    thread = threading.Thread(target=answer, name="a daemon of a play", daemon=True)
    thread.start()

    me = Peer(os.getpid(), os.geteuid(), os.getegid())

    def check(data: bytes) -> None:
        operation, document = (OPERATION, CHECK_OPERATION)[data[:1] == b"\x01"], data[1:]
        head = f"POST /api/v1/{operation} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(document)}\r\n\r\n"
        sent = loop.run_until_complete(_talk(server, head.encode() + document, 2**16, me))
        assert isinstance(msgspec.json.decode(sent.partition(b"\r\n\r\n")[2]), dict)
        answers.append(data)
        with suppress(CommwatchError):
            ask_daemon(folder, "inventory")

    try:
        yield check
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        state.close()


def _control_seeds() -> list[bytes]:
    rail = RailResult(rail=0, device="mlx5_0", sent=5e10, received=4e10, sent_ratio=0.9, latency=2e-6, good=2, slow=1)
    suspicion = Suspicion(kind="nic", element="mlx5_0", fault="bandwidth", direction="out", ratio=0.4)
    report = NodeReport(run="0" * 32, finished_at=time.time(), outcome="completed", backend="nccl", nodes=4,
                        rails=(rail,), suspicions=(suspicion,),
                        network=NetworkRates(usual=5e10, low=4e10, high=6e10))  # fmt: skip
    check = CheckReport(run="1" * 32, finished_at=time.time(), outcome="completed", causes=("mtu",),
                        unreachable=(Unreachable(port_kind="ephemeral", direction="in", peers=3),))  # fmt: skip
    handed, checked = b"\x00" + msgspec.json.encode(report), b"\x01" + msgspec.json.encode(check)
    return [b'"maintenance"\n', b'{"error": "x"}\n', b'{"paused": null}', handed, checked]


class _Process:
    """The process of a worker that is not there."""

    pid = 0


@contextmanager
def _frames(folder: Path) -> Iterator[Check]:
    """What a worker sends; after its head, which a split may fall on."""
    loop = asyncio.new_event_loop()

    async def receive(data: bytes) -> None:
        taken: list[Collected] = []
        process = cast("Popen[bytes]", _Process())
        settings = ReaderSettings(WorkerPlan("", ()), 60.0, 60.0)
        worker = Worker(process, ProgressMark.create(), settings, taken.append, lambda collector: None)
        wire = _Wire()
        worker._transport = wire
        for collector in ("nvml_pcie", "nvml_nvlink"):
            worker.order(Order(collector, 1.0, now=True))
        stream = frame(data[1:]) + (data[1:] if data[:1] > b"\x80" else b"")
        size = (data[0] if data else 0) or 4096
        for begin in range(0, len(stream), size):
            piece = stream[begin : begin + size]
            if wire.is_closing():
                break
            worker.get_buffer(-1)[: len(piece)] = piece
            worker.buffer_updated(len(piece))
        worker.connection_lost(None)
        assert worker.over.done(), "somebody waits forever"
        for one in taken:
            _page_of(list(one.blocks.values()))

    def check(data: bytes) -> None:
        loop.run_until_complete(receive(data))

    try:
        yield check
    finally:
        loop.close()


def _batches() -> Sequence[bytes]:
    series = (("commwatch_gpu_busy", ("0", "0000:17:00.0")),)
    readings = [WireReadings("0000:17:00.0", 1.0, series, [1.0])]
    batches = (
        WireBatch("nvml_pcie", readings, [], [], None, {"index:0": "0000:17:00.0"}, 1.0, 0.1),
        WireBatch("nvml_nvlink", readings, [], [], ("unreadable", "no"), {}, 1.0, 0.1),
        WireBatch("nvml_pcie", [], [], [], None, {}, 1.0, 0.1, {"0000:17:00.0": (1, 2)}, [], b"{}", b"{}"),
    )
    return [b"\0" + msgspec.msgpack.encode(one) for one in (*batches, Order("nvml_pcie", 1.0, now=True))]


@contextmanager
def _rank(folder: Path) -> Iterator[Check]:
    """The lines that a rank of a probe writes."""

    def check(data: bytes) -> None:
        rank = RankProcess(0, cast("Popen[bytes]", _Process()), folder, -1)
        for line in data.split(b"\n"):
            rank._take(line)
        if rank.result is not None:
            msgspec.json.encode(rank.result)

    yield check


def _rank_events() -> Sequence[bytes]:
    result = RankResult(timings=((1e-3, 2e-3), ()))
    events = (GateEvent(1), ResultEvent(result), ErrorEvent("nccl_error", "x"))
    return [*map(msgspec.json.encode, events), b'{"type": "gate", "gate": 0}\n{"type": "phase", "phase": "measure"}']


# --- members of a cluster ---

_MESSAGES: Final = msgspec.json.Decoder(Join | Report | Ready)
_KEY: Final = b"the key of this run"
_CONTACT: Final = Contact(rank=0, name="node0", token="0" * 16, addresses=("10.0.0.1",), ports=(4000,), low=1, high=9)


@contextmanager
def _store(folder: Path) -> Iterator[Check]:
    """What reaches the store's port: bytes of anybody; and, sealed with the key, what a member says."""
    loop = asyncio.new_event_loop()

    async def connect(data: bytes) -> None:
        store = cluster_store.Store(_KEY, 2, "check")
        reader, wire = asyncio.StreamReader(limit=2**16), _Wire()
        reader.feed_data(data)
        reader.feed_eof()
        await store._arrive(reader, cast(asyncio.StreamWriter, _Writer(wire)))
        assert wire.sent.startswith(MAGIC)
        assert not store.members

    def check(data: bytes) -> None:
        loop.run_until_complete(connect(data))
        with suppress(ValueError, RecursionError):  # as its channel does
            _take(_MESSAGES.decode(data))

    try:
        yield check
    finally:
        loop.close()


class _Writer:
    """A stream writer over a transport."""

    def __init__(self, wire: _Wire) -> None:
        self.transport = wire
        self.write, self.drain, self.close, self.wait_closed = wire.write, wire.drain, wire.close, wire.wait_closed

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "10.0.0.9", 4000


def _take(message: Join | Report | Ready) -> None:
    """What the store makes of a message that it took."""
    if isinstance(message, Join):
        has_addresses(message, None)
    elif isinstance(message, Report) and has_addresses(None, message.facts):
        other = msgspec.structs.replace(_CONTACT, rank=1, name="node1", addresses=("10.0.0.2",))
        found = judge({0: _CONTACT, 1: other}, {0: message, 1: message}, 2, ["node0", "node1"])
        msgspec.json.encode(found)
        "\n".join(printable(one.line) for one in found.failures).encode()


def _messages() -> Sequence[bytes]:
    facts = {
        "versions": {"NCCL": "2.27.7"}, "settings": {"NCCL_DEBUG": "WARN"}, "parts": {"GPUs": "8 x H100"},
        "interfaces": [{"name": "eth0", "address": "10.0.0.1", "prefix": 16, "mtu": 1500}],
        "nccl": {"interface": "eth0", "address": "10.0.0.1"}, "gloo": {}, "own_name": "node0",
        "own_addresses": ["10.0.0.1", "fe80::1%eth0"],
    }  # fmt: skip
    outcome = {"whom": 1, "result": "filtered", "address": "10.0.0.2", "port": 4000, "detail": "x"}
    report = {"type": "report", "facts": facts, "outcomes": [outcome], "clock_seconds": 3.0}
    prober = Prober(version="1", backend="tcp", model="H100")
    ready = Ready(ports=(1, 2), turn=3, rails=(RailReport(latency=1e-5, received=1e9),))
    messages: tuple[object, ...] = (report, Join(contact=_CONTACT, size=2, prober=prober), ready)
    return [*map(msgspec.json.encode, messages), bytes(36) + b"{}"]


STREAMS: Final = (
    Target("http", _http, lambda: _REQUESTS, _HTTP),
    Target("nccl_log", _nccl_log, _logs, _LOG),
    Target("nccl_tail", _nccl_tail, _logs, _LOG),
    Target("kernel_log", _kernel_log, _records, _KERNEL),
    Target(
        "sysfs", _sysfs, _attributes, (b"GT/s", b"ACTIVE", b"Gb/sec", b"up", b"0x", b"processor : 0\n"), most_bytes=8192
    ),
    Target("control", _control, _control_seeds, form="json"),
    Target("frames", _frames, _batches, (b"commwatch_gpu_busy", b"index:0"), form="msgpack", head=1),
    Target("rank", _rank, _rank_events, form="json"),
    Target("cluster_store", _store, _messages, (b"10.0.0.1", b"filtered", b"mtu"), form="json"),
)
