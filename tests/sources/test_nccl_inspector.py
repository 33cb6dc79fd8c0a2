"""NCCL Inspector's files: what is summed, when a share is known, who waits for whom, and files that mean harm.

The lines have the form of NCCL's source (``inspector_json.cc``, ``inspector_prom.cc``); none is of a real job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from commwatch.jobs.inspector.report import InspectorReport, ProcessReport
from commwatch.jobs.inspector.source import InspectorSource
from commwatch.node.run import Outcome
from commwatch.readings import Batch
from commwatch_exporters.snapshot import Value
from support.core import block, collected, collector
from support.fed_daemon import FedDaemon

STEP = 10.0
FOUND = 60.0
"""After this time a new file is found."""
UUID = "GPU-8c2fa1b0-0000-4000-8000-0123456789ab"
OPERATIONS, SECONDS, BANDWIDTH, REFUSED, DROPPED, PROXY, FIELDS, SKIPPED = (
    f"nccl_inspector_{name}"
    for name in (
        "operations_total", "operation_seconds_total", "bus_bandwidth_bytes_per_second", "refused_lines_total",
        "dropped_records_total", "proxy_seconds_total", "unknown_fields_total", "skipped_bytes_total",
    )
)  # fmt: skip
ALL_REDUCE = ("all_reduce", "16MiB", "within")


def operation(number: int, exec_us: Any = 500_000, **fields: Any) -> dict[str, Any]:
    """A finished collective."""
    return {
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 2 << 20, "coll_exec_time_us": exec_us,
            "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 200.0, "coll_busbw_gbs": 400.0, **fields,
        }
    }  # fmt: skip


class Node:
    """A folder of Inspector's files and a source over it; the clocks stand until they are moved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.began = os.stat(folder).st_mtime - self.now
        self.step = 0.0
        """Seconds by which the job's clock was stepped."""
        self.cpu = 0.0
        self.cost = 0.0
        """CPU seconds that pass between two questions for them."""
        self.source = InspectorSource(
            [str(folder)], "gpu7.example.org", lambda: self.began + self.now, lambda: self.now, self._cpu
        )
        self.source.open(lambda device: None, frozenset(), None)
        self.run()

    def _cpu(self) -> float:
        self.cpu += self.cost
        return self.cpu

    def dump(
        self, *records: dict[str, Any], version: str = "v4.3", rank: int = 0, nodes: int = 1, dropped: int = 0,
        pid: int | None = None,
    ) -> str:  # fmt: skip
        """The lines of one dump, as a version writes them now."""
        pid = 4000 + rank if pid is None else pid
        context = {
            "header": {"id": "0x7f8c", "comm_name": "unknown", "rank": rank, "n_ranks": 8, "nnodes": nodes},
            "metadata": {
                "inspector_output_format_version": version, "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": int((self.began + self.now + self.step) * 1e6), "hostname": "gpu7", "pid": pid,
            },
        }  # fmt: skip
        names = {"coll": "coll_perf", "p2p": "p2p_perf", "proxy": "proxy_trace"}
        stats = {f"{kind}_records": sum(name in one for one in records) for kind, name in names.items()}
        lines: list[dict[str, Any]] = []
        if version != "v4.0":
            lines.append({**context, "dump_stats": {**stats, "coll_dropped_since_last_dump": dropped}})
        lines += records if version in ("v4.3", "v4.4") else ({**context, **one} for one in records)
        return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines)

    def write(self, text: str, rank: int = 0) -> None:
        name = self.folder / f"gpu7-pid{4000 + rank}.log"
        with name.open("a") as file:
            file.write(text)
        os.utime(name, (self.began + self.now,) * 2)

    def run(self, seconds: float = STEP) -> Batch:
        """One run after some seconds."""
        self.now += seconds
        self.batch = self.source.collect("nccl_inspector")
        (readings,) = self.batch.readings
        self.values = {
            (metric.removeprefix("commwatch_"), *labels): value
            for (metric, labels), value in zip(readings.series, readings.values, strict=True)
        }
        return self.batch

    def reports(self) -> dict[int, ProcessReport]:
        """By process, of the last run."""
        record = msgspec.json.decode(self.batch.audit or b"", type=InspectorReport)
        return {one.pid: one for one in record.processes}

    def play(self, dumps: int = 24, **options: Any) -> ProcessReport:
        """Dumps of a rank that is in NCCL for half of its time, one in each run; returns its last report."""
        for number in range(10 * self.plays, 10 * self.plays + 10 * dumps, 10):
            self.write(self.dump(*(operation(number + one) for one in range(10)), **options))
            self.run()
        self.plays += dumps
        return self.reports()[4000]

    plays = 0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("version", ["v4.0", "v4.1", "v4.2", "v4.3", "v4.4"])
def test_operations_are_summed_and_the_share_follows_from_them(node: Node, version: str) -> None:
    """In every version that is known, and in a later minor one; 10 operations of 0.5 s in each 10 s are one half."""
    report = node.play(version=version)

    assert node.values[(OPERATIONS, *ALL_REDUCE)] == 240
    assert node.values[(SECONDS, *ALL_REDUCE)] == pytest.approx(120)
    assert node.values[(BANDWIDTH, *ALL_REDUCE, "lowest")] == 400e9
    assert report.share == pytest.approx(0.5)
    assert report.newest_age == 0
    assert report.is_here
    assert not [value for (name, *_), value in node.values.items() if name in (REFUSED, SKIPPED, FIELDS) and value]
    for _ in range(100):
        node.run()
    assert node.reports()[4000].share is None  # it is of a time long ago
    assert node.reports()[4000].newest_age == pytest.approx(1000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no json\n", "form"),
        ('{"dump_stats"\n', "form"),
        ("[1]\n", "value"),
        ("{}\n", "form"),
        (json.dumps(operation(1)) + "\n", "context"),
        ("{" * 3000 + "\n", "form"),
        ('{"x":"' + "y" * 10_000_000 + '"}\n', "form"),
    ],
)
def test_a_line_that_is_none_is_counted_and_makes_the_share_unknown(node: Node, text: str, why: str) -> None:
    """Lines of 10 MB among them; what follows is read."""
    assert node.play(9).share == pytest.approx(0.5)
    node.write(text)
    node.run()
    assert node.values[REFUSED, why] == 1
    assert node.play(9).share is None
    assert node.play(9).share == pytest.approx(0.5)
    assert node.values[(OPERATIONS, *ALL_REDUCE)] == 270


@pytest.mark.parametrize("value", ["NaN", "-1", "1e999", "86400000001000", '"5"', "null", "[]"])
def test_a_number_out_of_range_is_refused(node: Node, value: str) -> None:
    """It takes nothing with it but its own line."""
    text = node.dump(operation(1, exec_us="@"), operation(2))
    node.write(text.replace('"@"', value))
    node.run(FOUND)

    assert (node.values[REFUSED, "form"], node.values[REFUSED, "value"]) in ((1, 0), (0, 1))
    assert node.values[(OPERATIONS, *ALL_REDUCE)] == 1


@pytest.mark.parametrize("version", ["v4.0", "v4.1", "v4.3"])
def test_a_share_is_absent_where_records_were_dropped(node: Node, version: str) -> None:
    """By the number of them where the version has one, and by a gap in the numbers where it has none."""
    node.play(9, version=version)
    node.plays += version == "v4.0"  # ten numbers are missing
    assert node.play(8, version=version, dropped=3).share is None
    if version != "v4.0":
        assert node.values[DROPPED, "collective"] == 24
    assert node.play(18, version=version).share == pytest.approx(0.5)


@pytest.mark.parametrize("step", [-7200.0, -30.0, 3600.0])
def test_a_step_of_the_clock_makes_no_share(node: Node, step: float) -> None:
    """The window begins again; the age goes by the time that passes here."""
    node.play(9)
    node.step = step
    report = node.play(5)
    assert (report.share, report.newest_age) == (None, 0)
    assert node.play(12).share == pytest.approx(0.5)


@pytest.mark.parametrize(("version", "named"), [("v5.0", "v5.0"), ("v3.9", "v3.9"), ("newest", "newest"), ("", "none")])
def test_another_major_version_is_refused_by_name(node: Node, version: str, named: str) -> None:
    """None of its lines counts."""
    node.write(node.dump(operation(1), version=version))
    (absence,) = node.run(FOUND).absences

    assert absence.detail == f"Inspector writes format {named!r}; v4.0 to v4.3 are read"
    assert node.values[REFUSED, "version"] == 2
    assert not [one for one in node.values if one[0] == OPERATIONS]
    assert node.run(600).absences == []  # nobody writes it any more


def test_fields_of_a_later_minor_version_are_counted(node: Node) -> None:
    """At the top of a line and one level below; those that are known are read."""
    node.write(node.dump({**operation(1, graph_captured=True), "extra": 1}, version="v4.4"))
    node.run(FOUND)
    assert node.values[(FIELDS,)] == 2
    assert node.values[(OPERATIONS, *ALL_REDUCE)] == 1


def test_more_records_than_a_dump_announced_belong_to_none(node: Node) -> None:
    """Another writer may have put its lines between."""
    node.write(node.dump(operation(1)) + json.dumps(operation(2)) + "\n")
    node.run(FOUND)
    assert (node.values[(OPERATIONS, *ALL_REDUCE)], node.values[REFUSED, "context"]) == (1, 1)


def test_half_a_line_waits_for_its_end(node: Node) -> None:
    """Wherever it was cut."""
    text = node.dump(operation(1), operation(2))
    for start in range(0, len(text), 97):
        node.write(text[start : start + 97])
        node.run(FOUND if not start else 1)
    assert (node.values[(OPERATIONS, *ALL_REDUCE)], node.values[(REFUSED, "form")]) == (2, 0)


def test_what_comes_too_fast_is_passed_over(node: Node) -> None:
    """The next run begins where this one has ended; no share is given meanwhile."""
    node.play(9)
    node.cost = 1.0
    assert node.play(8).share is None
    assert (node.values[(SKIPPED,)] or 0) > 0
    node.cost = 0.0
    assert node.play(18).share == pytest.approx(0.5)
    assert node.values[(OPERATIONS, *ALL_REDUCE)] == 270


def test_what_stood_in_a_file_before_does_not_count(tmp_path: Path) -> None:
    """But says when its process communicated last. A file that is rewritten is read from its beginning."""
    before = Node(tmp_path)
    before.write(before.dump(operation(1)))
    node = Node(tmp_path)
    node.now, node.began = before.now + 50, before.began
    node.run()
    assert node.reports()[4000].newest_age == pytest.approx(60, abs=1)
    assert node.reports()[4000].is_here
    os.utime(tmp_path / "gpu7-pid4000.log", (-1e10, -1e10))
    assert Node(tmp_path).reports()[4000].newest_age == pytest.approx(1e9)
    assert not [one for one in node.values if one[0] == OPERATIONS]
    node.write(node.dump(operation(2)))
    node.run()
    assert node.values[(OPERATIONS, *ALL_REDUCE)] == 1
    (tmp_path / "gpu7-pid4000.log").write_text(node.dump(operation(3), rank=0))
    node.run()
    assert node.values[(OPERATIONS, *ALL_REDUCE)] == 2


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "sparse"])
def test_what_is_no_file_of_inspector_is_left_alone(node: Node, kind: str) -> None:
    """A link, a pipe, a folder are not opened; of a sparse file of a terabyte hardly anything is read."""
    place = node.folder / "gpu7-pid4000.log"
    if kind == "link":
        place.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.touch()
        os.truncate(place, 1 << 40)
    node.run(FOUND)
    node.run()

    assert node.values[("nccl_inspector_files",)] == (kind == "sparse")
    assert not [one for one in node.values if one[0] == OPERATIONS]


@pytest.mark.parametrize("verbose", [False, True])
def test_the_last_one_to_arrive_is_found(node: Node, verbose: bool) -> None:
    """By the shortest time in the kernel, and by the start where records have one; the others wait for it."""
    start = int(node.began * 1e6)
    for run in range(30):
        for rank in range(4):
            late = 3000 if rank == 2 else 0
            trace = {"event_trace_ts": {"kernel_events": [{"channel_id": 0, "kernel_start_ts": start + late}]}}
            records = (
                operation(8 * (10 * run + one), 5000 if verbose else 5000 - late, **(trace if verbose else {}))
                for one in range(10)
            )
            node.write(node.dump(*records, rank=rank), rank)
        node.run()

    waits = {pid: (one.waits_seconds, one.last_ratio) for pid, one in node.reports().items()}
    assert waits.pop(4002) == (0, 1)
    assert [wait for wait, _ in waits.values()] == pytest.approx([0.003] * 3)
    assert {last for _, last in waits.values()} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_a_file_of_another_user_says_nothing_of_when_a_process_arrives(node: Node) -> None:
    """Whatever process and communicator it names."""
    for run in range(30):
        numbers = [8 * (10 * run + one) for one in range(10)]
        for rank, (pid, exec_us) in enumerate([(4000, 5000), (4001, 5000), (4000, 10), (4009, 10)]):
            node.write(node.dump(*(operation(one, exec_us) for one in numbers), rank=rank, pid=pid), rank)
            os.chown(node.folder / f"gpu7-pid{4000 + rank}.log", 1001 + rank // 2, -1)
        node.run()

    record = msgspec.json.decode(node.batch.audit or b"", type=InspectorReport)
    found = {(one.owner, one.pid): (one.waits_seconds, one.last_ratio) for one in record.processes}
    assert found == {(1001, 4000): (0, 0), (1001, 4001): (0, 0), (1002, 4000): (0, 0), (1002, 4009): (0, 0)}


def test_network_steps_are_summed_by_what_they_wait_for(node: Node) -> None:
    """Of v4.3; a time that goes back or has not come counts for nothing."""
    send = {"send_gpu_wait_ts": 100, "send_peer_wait_ts": 400, "send_wait_ts": 350, "proxy_step_stop_ts": 950}
    receive = {"recv_wait_ts": 100, "recv_flush_wait_ts": 0, "recv_gpu_wait_ts": 300, "proxy_step_stop_ts": 500}
    steps = [
        {"proxy_trace": {"record_type": "proxy_step", "direction": way, "event_trace_ts": times}}
        for way, times in (("send", send), ("recv", receive), ("sideways", send))
    ]
    node.write(node.dump(*steps))
    node.run(FOUND)
    found = {key[1:]: value for key, value in node.values.items() if key[0] == PROXY}
    assert found == {("send", "gpu"): 300e-6, ("send", "network"): 600e-6, ("recv", "gpu"): 200e-6}


PAGE = (
    'nccl_bus_bandwidth_gbs{{version="v5.1",slurm_job_id="7",node="gpu7",gpu="GPU0",comm_name="DP \\"0\\"",'
    'n_nodes="{nodes}",nranks="4",collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"}} {value}\n'
    'nccl_collectives_dropped_total{{version="v5.1",slurm_job_id="7",node="gpu7",gpu="GPU0"}} {dropped}\n'
)


def test_a_prometheus_file_is_read_as_it_is_now(node: Node) -> None:
    """Of one that is half written the whole lines count; the file names the GPU."""
    place = node.folder / f"nccl_inspector_metrics_{UUID}.prom"

    def write(text: str) -> None:
        place.write_text(text)
        os.utime(place, (node.began + node.now,) * 2)
        node.run(FOUND)

    page = PAGE.format(nodes=2, value="300", dropped=5)
    write(page)
    assert node.values[BANDWIDTH, "all_reduce", "4GiB", "between", "lowest"] == 300e9
    assert node.values[DROPPED, "collective"] == 0  # before it was found
    write(PAGE.format(nodes=2, value="250", dropped=9))
    assert node.values[BANDWIDTH, "all_reduce", "4GiB", "between", "median"] == 250e9
    assert node.values[DROPPED, "collective"] == 4
    for end in range(0, len(page), 7):
        write(page[:end])
        assert node.values[REFUSED, "form"] == 0
    for bad in ("nan", "-1", "inf", "much"):
        write(PAGE.format(nodes=2, value=bad, dropped=9))
        assert not [one for one in node.values if one[0] == BANDWIDTH]
    assert node.values[REFUSED, "form"] == 4
    write(page.replace("v5.1", "v6.0"))
    assert [one.detail for one in node.batch.absences] == ["Inspector writes .prom version 'v6.0'; v5 is read"]
    (report,) = msgspec.json.decode(node.batch.audit or b"", type=InspectorReport).processes
    assert (report.uuid, report.newest_age) == (UUID, 60)


# --- by GPU ---

SLOTS = tuple(f"0000:{17 + index}:00.0" for index in range(3))


class Gpus:
    """Three GPUs with a process each, the first two of one job; the user of each has its number.

    Args:
        folder: an empty one.
        inner: by process its id in its container.
    """

    def __init__(
        self, folder: Path, patched: pytest.MonkeyPatch, inner: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.daemon = FedDaemon(folder, patched)
        procfs = folder / "procfs"
        for pid in (100, 101, 102):
            (procfs / str(pid)).mkdir()
            (procfs / str(pid) / "status").write_text(
                f"Name:\tx\nUid:\t{pid}\t0\t0\t0\nNSpid:\t{pid}\t{inner.get(pid, pid)}\nCpus_allowed:\t1\n"
            )
        self.store = self.daemon.engine.store
        self.store.occupants = {slot: (100 + index,) for index, slot in enumerate(SLOTS)}
        self.store.jobs = {100: 100, 101: 100}
        for index, slot in enumerate(SLOTS):
            info = ("commwatch_gpu_info", (str(index), slot, f"GPU-{index}", "", "", ""))
            self.store.put("nvml_identity", slot, block({info: 1}, 0.0), 1e9)
        self.store.put("nccl_inspector", "", block({("commwatch_nccl_inspector_files", ()): 1}, 0.0), 1e9)

    def take(self, *reports: ProcessReport) -> dict[tuple[str, str], Value]:
        """The metrics after some reports, by name and GPU."""
        result = replace(collected({}), audit=msgspec.json.encode(InspectorReport(reports)))
        for name, found in (("nvml_processes", collected({})), ("nccl_inspector", result)):
            self.daemon.engine.pipeline.on_batch(Outcome(collector(name), found, 1.0))
        shown = self.store.get("job_inspector", "")
        series = zip(shown.layout.series, shown.values, strict=True) if shown else ()
        return {(metric.removeprefix("commwatch_job_"), labels[0]): value for (metric, labels), value in series}


def test_a_report_is_shown_at_its_gpu_and_the_age_at_the_lowest_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that no launcher names is its process alone. Processes of other hosts have nothing to do with ours, and the
    file of a user says nothing of another user's process."""
    shown = Gpus(tmp_path, monkeypatch).take(
        ProcessReport(100, True, owner=100, newest_age=50, share=0.25),
        ProcessReport(101, True, owner=101, newest_age=20, waits_seconds=0.001, last_ratio=0.5),
        ProcessReport(102, False, owner=102, newest_age=5, share=0.75),
        ProcessReport(102, True, owner=100, newest_age=4, last_ratio=1.0),
        ProcessReport(uuid="GPU-2", owner=102, newest_age=7),
        ProcessReport(uuid="GPU-2", owner=100, newest_age=3),
        ProcessReport(uuid="GPU-9", owner=100, newest_age=1),
    )
    assert shown == {
        ("communication_ratio", "0"): 0.25, ("arrival_wait_seconds", "1"): 0.001, ("last_arrival_ratio", "1"): 0.5,
        ("last_communication_seconds", "0"): 20, ("last_communication_seconds", "2"): 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("inner", "found"), [({101: 7}, {"0"}), ({101: 7, 102: 7}, {"0"}), ({102: 7}, set()), ({}, set())]
)
def test_a_process_in_a_container_is_found_by_its_id_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: dict[int, int], found: set[str]
) -> None:
    """Where it is of the user who owns the file; the age is shown at the lowest GPU of its job."""
    shown = Gpus(tmp_path, monkeypatch, inner).take(ProcessReport(7, False, owner=101, newest_age=3))
    assert {gpu for _, gpu in shown} == found


def test_what_one_process_does_on_several_gpus_is_not_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age is known all the same; with a report that is none nothing is shown of the earlier one's."""
    gpus = Gpus(tmp_path, monkeypatch)
    gpus.store.occupants = dict.fromkeys(SLOTS, (100,))
    assert gpus.take(ProcessReport(100, True, owner=100, newest_age=-3)) == {}
    assert gpus.take(ProcessReport(100, True, owner=100, newest_age=3, share=0.5)) == {
        ("last_communication_seconds", "0"): 3
    }
