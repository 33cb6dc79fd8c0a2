"""The logs of jobs: what counts once, what is old, whose lines they are, and files that mean harm."""

from __future__ import annotations

import errno
import itertools
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.jobs.logs import source
from commwatch.jobs.logs.categories import SIDES
from commwatch.jobs.logs.files import MOST_NAMES
from commwatch.jobs.logs.source import LOOK_SECONDS, SET_UP_SECONDS, NcclLogsSource
from commwatch.readings import Batch
from commwatch_exporters.snapshot import Layout, Value
from support.examples import examples
from support.fed_daemon import FedDaemon
from support.logs import LogFolder
from support.sources import refuse

RETRY = (
    "gpu7:41:77 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> "
    "with error 12, opcode 0, len 0, vendor err 129\n"
)
CUDA = "[rank1]: RuntimeError: CUDA error: unspecified launch failure\n"
INFO = "{host}:41:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"


def test_a_machine_on_which_each_line_takes_long_reads_all_of_them_in_the_end(tmp_path: Path) -> None:
    """A run ends after a quarter of a second, and none without a line."""
    node = LogFolder(tmp_path)
    node.start()
    node.run()
    node.write(RETRY * 5)
    seconds = itertools.count(100.0, 0.13)
    slow = NcclLogsSource(
        [f"{tmp_path}/*.log"], (), node.resume, host="gpu7", clock=lambda: node.began, monotonic=lambda: next(seconds)
    )
    slow.open(lambda device: None, frozenset(), None)

    counted = [sum(one.count for one in slow.collect("nccl_logs").log_errors) for _ in range(12)]
    assert sum(counted) == 5


Step: TypeAlias = Callable[[LogFolder], object]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("", 4),  # no pipe, nothing hidden, nothing that rotation has packed, and a link's file once
        ("*.log", 1), ("nccl.%h.%p", 1), ("nccl.*.[0-9]*", 2), ("link.log", 1), ("missing.log", 0), ("pipe", 0),
        ("a.%%h", 0),
    ],
)  # fmt: skip
def test_names_stand_for_the_files_of_this_host(tmp_path: Path, name: str, count: int) -> None:
    """As NCCL writes them, by the first part of the host's name; each file once."""
    for file in ("a.log", "a.log.1", "a.log.2.gz", ".hidden", "nccl.gpu7.12", "nccl.gpu8.13"):
        (tmp_path / file).write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "below").mkdir()
    (tmp_path / "link.log").symlink_to("a.log")
    (tmp_path / "broken.log").symlink_to("nothing")
    node = LogFolder(tmp_path)
    node.start(name)

    (readings,) = node.run().readings
    assert (readings.series[0][0], readings.values[0]) == ("commwatch_nccl_log_files", count)


@pytest.fixture
def node(tmp_path: Path) -> LogFolder:
    one = LogFolder(tmp_path)
    one.write(RETRY)
    one.start()
    assert one.count() == {}
    return one


def value(batch: Batch, metric: str) -> Value:
    (reading,) = batch.readings
    return dict(zip(Layout(reading.series).series, reading.values, strict=True))[f"commwatch_{metric}", ()]


def test_what_was_found_names_file_and_line(node: LogFolder) -> None:
    """The first of each kind, with the number of all."""
    node.write(RETRY + RETRY)
    (one,) = node.run().log_errors

    assert (one.category, one.certain, one.count, one.file) == ("ib_retry", True, 2, f"{node.folder}/job.log")
    assert one.text.startswith("transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion")


@pytest.mark.parametrize(("last", "hca"), [("mlx5_3", "mlx5_3"), ("mlx5_3/x", ""), ("", "")])
def test_an_error_of_a_completion_names_the_adapter(node: LogFolder, last: str, hca: str) -> None:
    """The last word of the line; a word that only looks like one is none."""
    node.write(f"{RETRY[:-1]} hca {last}\n")
    (one,) = node.run().log_errors

    assert (one.category, one.hca) == ("ib_retry", hca)


TIMEOUT = "[rank{}]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, ...\n"


def test_errors_are_kept_apart_by_log_rank_and_call(node: LogFolder) -> None:
    """Of very many only by what they name, then by category: none is lost."""
    node.write(TIMEOUT.format(3), "other.log")
    node.write(TIMEOUT.format(3) + TIMEOUT.format(4))
    found = node.run().log_errors
    status = (node.folder / "other.log").stat()
    assert {(one.log == f"{status.st_dev:x}:{status.st_ino:x}", one.rank, one.call) for one in found} == {
        (True, 3, "ALLREDUCE 7"), (False, 3, "ALLREDUCE 7"), (False, 4, "ALLREDUCE 7"),
    }  # fmt: skip
    node.write("".join(map(TIMEOUT.format, range(300))))
    found = node.run().log_errors
    assert sum(one.count for one in found) == 300
    assert [sum(map(bool, names)) for names in ([one.log for one in found], [one.call for one in found])] == [128, 257]
    assert len(found) == 257


UNFINISHED_SECONDS = 30.0
"""After which a line without an end is taken for one."""
LONGEST_LINE = 64 * 1024
OWN = f'{{"time": "2026-01-01T10:00:00Z", "logger": "commwatch.job_logs", "text": "{RETRY.strip()}"}}'
ESCAPED = '{"log": "' + OWN.replace('"', '\\"') + '"}'
CONSOLE = f"2026-01-01T10:00:00Z [warning  ] trouble in the logs of jobs [commwatch.job_logs] text={RETRY.strip()}"


def rewritten(text: str) -> Step:
    """The job truncates its log, as NCCL does with the file that NCCL_DEBUG_FILE names."""
    return lambda node: node.write(text, mode="w")


def also(text: str, name: str) -> Step:
    """Another log is written."""
    return lambda node: node.write(text, name)


def restart(*names: str, hosts: tuple[str, ...] = ()) -> Step:
    """A new process of the source."""
    return lambda node: node.start(*names, hosts=hosts)


def rename(node: LogFolder) -> None:
    (node.folder / "job.log").rename(node.folder / "job.old")


NOTHING: dict[str, int] = {}
ONE = {"ib_retry": 1}
BOTH = {"cuda": 1, "ib_retry": 1}
COUNTED: dict[str, list[Step | str | dict[str, int] | tuple[float, dict[str, int]]]] = {
    "what stands in a file at first sight is old, what is added counts once":
        [RETRY + INFO.format(host="gpu7") + RETRY + CUDA, {"ib_retry": 2, "cuda": 1}, NOTHING],
    "a file that comes later counts from its beginning": [also(RETRY, "next.log"), ONE],
    "our own log quotes jobs and is none, also as a container runtime or a terminal has it":
        [f"{OWN}\n{ESCAPED}\n{CONSOLE}\n", NOTHING, RETRY, ONE],
    "a new process goes on where the last one was, with what and which files came meanwhile":
        [RETRY, ONE, CUDA, also(RETRY, "born-meanwhile.log"), restart(), BOTH, NOTHING],
    "files of a name that was not configured before are old":
        [also(RETRY, "other.txt"), restart("*.log", "*.txt"), NOTHING, also(RETRY, "other.txt"), ONE],
    "rotation by renaming loses nothing": [RETRY, rename, CUDA, (5, BOTH), NOTHING],
    "a log that is rewritten is read from its beginning": [rewritten(INFO.format(host="gpu7") * 3 + RETRY), ONE],
    "a line that is never ended is taken after a while, and what comes behind it is no line":
        [CUDA.strip(), (1, NOTHING), (UNFINISHED_SECONDS - 1, NOTHING), (1, {"cuda": 1}),
         f" and {RETRY.strip()}\r{CUDA}", (1, {"cuda": 1})],
    "a line that still grows is waited for":
        [RETRY[:40], (1, NOTHING), RETRY[40:60], (UNFINISHED_SECONDS, NOTHING), RETRY[60:], (1, ONE),
         (UNFINISHED_SECONDS, NOTHING)],
    **{f"the beginning of a line of {length} bytes is looked at once, and the line after it is read":
           [f"{RETRY.strip()} {'x' * length} {CUDA}{CUDA}", BOTH] for length in (LONGEST_LINE, 40 * LONGEST_LINE)},
    "carriage returns end lines too, as of a progress bar":
        [RETRY.replace("\n", "\r") + "1%\r2%\r" + CUDA.replace("\n", "\r"), (1, BOTH)],
    "a new log beside an empty one is no copy of it": [also("", "empty.log"), NOTHING, also(RETRY, "next.log"), ONE],
    "another process begins again in a file of other content, though it is as long":
        [RETRY, ONE, rewritten(CUDA + RETRY.replace("129", "130")), restart(), BOTH],
    "of a log of several hosts only own lines count": [
        INFO.format(host="gpu6") + INFO.format(host="gpu7") + RETRY + RETRY.replace("gpu7", "gpu6") + CUDA, ONE],
    "a log of one host counts whatever it is called, as in a container":
        [INFO.format(host="job-0-worker-3") + RETRY.replace("gpu7", "job-0-worker-3") + CUDA, BOTH],
    "hosts can be named, then lines of others never count": [
        restart(hosts=("gpu7.*", "pod-*")), RETRY.replace("gpu7", "gpu8") + RETRY.replace("gpu7", "pod-4") + RETRY,
        {"ib_retry": 2}],
}  # fmt: skip
"""What is written or done, and the lines that a run counts then; with the seconds before it where they matter."""


@pytest.mark.parametrize("steps", COUNTED.values(), ids=COUNTED)
def test_each_line_counts_once(node: LogFolder, steps: list[Any]) -> None:
    """Whatever becomes of the log that was there at first."""
    for step in steps:
        if callable(step):
            step(node)
        elif isinstance(step, str):
            node.write(step)
        else:
            seconds, counted = step if isinstance(step, tuple) else (LOOK_SECONDS, step)
            assert node.count(seconds) == counted


def info(*messages: str, host: str = "gpu7") -> str:
    """Lines of NCCL at the level INFO."""
    return "".join(f"{host}:41:77 [0] NCCL INFO {one}\n" for one in messages)


STARTED = "ncclCommInitRank comm 0x55d0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x3f2a - Init COMPLETE"
OVER_TCP = ("Using network Socket", "Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0", STARTED)
NO_LIBRARY = "Failed to open libibverbs.so[.1]"
NO_DEVICE = "NET/IB : No device found."
SHOWN: dict[str, tuple[str, ...]] = {
    "ib_disabled": ("NCCL_IB_DISABLE set by environment to 1.", *OVER_TCP),
    "net_socket": ("NCCL_NET set by environment to Socket", *OVER_TCP),
    "libibverbs_missing": (NO_LIBRARY, *OVER_TCP),
    "adapter_not_opened": ("NET/IB : Unable to open device mlx5_0", *OVER_TCP),
    "hca_list": ("NCCL_IB_HCA set to mlx5_9", NO_DEVICE, *OVER_TCP),
    "adapter_missing": ("NCCL_IB_GID_INDEX set by environment to 3.", NO_DEVICE, *OVER_TCP),
    "unexplained": OVER_TCP,
    "provider_tcp": ("NET/OFI Selected provider is tcp, fabric is 10.0.0.0/24 (found 2 nics)",
                     "Using network AWS Libfabric", "Channel 00/0 : 7[7] -> 8[0] [send] via NET/AWS Libfabric/0",
                     STARTED),
    "gpudirect_off": ("Using network IB", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", STARTED),
    "nvls_lost": ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of memory'. "
                  "Proceeding without NVLS support.", STARTED.replace("16", "8")),
    "p2p_disabled": ("NCCL_P2P_DISABLE set by environment to 1", STARTED.replace("16", "8")),
}  # fmt: skip
"""By kind of fallback: what shows it."""
LIBRARY = ["libibverbs_missing"]
TCP = info(NO_LIBRARY, *OVER_TCP)
NEXT = TCP.replace(":41:", ":42:")
FALLBACK_STEPS: dict[str, list[Step | str | list[str] | float]] = {
    **{f"{kind} is counted once, when two runs have shown it": [info(*lines), [], [kind], [], INFO.format(host="gpu7"),
                                                                []] for kind, lines in SHOWN.items()},
    "what stands in a file at first sight is old": [also(TCP, "old.txt"), restart("*.log", "*.txt"), [], []],
    "a job on one node is well": [TCP.replace("8[0]", "3[3]").replace("16", "8"), [], []],
    "a job over RDMA is well": [info(NO_LIBRARY, "Using network IB", STARTED), [], []],
    "an adapter that nothing asks for is missed where the node has one":
        [info(NO_DEVICE, *OVER_TCP), [], ["adapter_missing"]],
    "a job that is still being set up is waited for":
        [info(NO_LIBRARY, *OVER_TCP[:-1]), [], [], info(STARTED), [], LIBRARY],
    "half of what an adapter writes decides nothing":
        [info(*SHOWN["gpudirect_off"]), [], info("NET/IB : GPU Direct RDMA Enabled for HCA 1 'mlx5_1'"), [], []],
    "a job that writes its log from its beginning is another one":
        [TCP, [], LIBRARY, rewritten(f"\n{TCP}"), [], LIBRARY],
    "so are other processes ten minutes later": [
        TCP, [], LIBRARY, NEXT, [], [], SET_UP_SECONDS, NEXT.replace(":42:", ":43:"), [], LIBRARY],
    "and not what else the same ones set up": [TCP, [], LIBRARY, SET_UP_SECONDS, info(*OVER_TCP), [], []],
    "nor after a restart": [TCP, [], LIBRARY, restart(), SET_UP_SECONDS, info(*OVER_TCP), [], []],
    "after which other processes are another job all the same":
        [TCP, [], LIBRARY, restart(), info(STARTED), [], SET_UP_SECONDS, NEXT, [], LIBRARY],
    "as is a log that was written from its beginning meanwhile":
        [TCP, [], LIBRARY, restart(), rewritten(f"\n{TCP}"), [], LIBRARY],
    "of a log of several hosts only own lines count":
        [TCP.replace("gpu7", "gpu6") + info("Using network IB", STARTED), [], [], SET_UP_SECONDS,
         NEXT.replace("gpu7", "gpu6") + NEXT.replace(NO_LIBRARY, NO_DEVICE), [], ["adapter_missing"]],
    "hosts can be named, then lines of others never count": [restart(hosts=("gpu6",)), TCP, [], []],
}  # fmt: skip
"""What is written or done, the seconds that pass, and the kinds that a run reports then."""


@pytest.mark.parametrize("steps", FALLBACK_STEPS.values(), ids=FALLBACK_STEPS)
def test_a_job_that_leaves_a_faster_transport_is_counted_once(node: LogFolder, steps: list[Any]) -> None:
    """By what it left it, and not as an error."""
    for step in steps:
        if callable(step):
            step(node)
        elif isinstance(step, str):
            node.write(step)
        elif isinstance(step, float):
            node.now += step
        else:
            assert [one.fallback for one in node.run().log_errors] == step


def test_each_kind_of_fallback_is_shown_by_some_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is only a row of the page."""
    daemon = FedDaemon(tmp_path, monkeypatch)
    daemon.feed("nccl_logs")

    assert {(kind,) for kind in SHOWN} == daemon.series("nccl_log_transport_fallbacks_total").keys()


def test_a_file_that_was_moved_here_is_old(node: LogFolder) -> None:
    """It was last written before anyone could have seen it here."""
    elsewhere = node.folder / "elsewhere"
    elsewhere.write_text(RETRY)
    os.utime(elsewhere, (node.began - 3600, node.began - 3600))
    elsewhere.rename(node.folder / "moved.log")

    assert node.count() == {}


def test_rotation_by_copy_counts_nothing_twice(tmp_path: Path) -> None:
    """The copy has another identity; what it holds was read, but for its last lines."""
    node = LogFolder(tmp_path)
    node.start("job.log*")
    node.run()
    node.write(RETRY)
    assert node.count() == {"ib_retry": 1}
    node.write(RETRY)
    (tmp_path / "job.log.1").write_bytes((tmp_path / "job.log").read_bytes())
    node.write("", mode="w")

    assert node.count() == {"ib_retry": 1}
    assert node.count() == {}


@pytest.mark.parametrize(("there", "counted"), [(RETRY, {"cuda": 1}), (RETRY.strip(), {}), ("", {"cuda": 1})])
def test_a_file_is_read_from_behind_what_was_there(tmp_path: Path, there: str, counted: dict[str, int]) -> None:
    """The rest of a line that was begun before is old too."""
    node = LogFolder(tmp_path)
    node.write(there)
    node.start()
    node.run()
    node.write(CUDA)

    assert node.count() == counted


def test_far_behind_only_the_last_part_is_read(node: LogFolder) -> None:
    """The result says how much was passed over; the file has a hole, so it takes no room."""
    node.write(RETRY)
    caught_up, hole, cut_through = 1 << 20, 65 << 20, CUDA.strip() * 40
    with (node.folder / "job.log").open("r+b") as file:
        file.truncate(hole)
    node.write(cut_through + "\n" * (caught_up - len(cut_through) // 2 - len(RETRY)) + RETRY)
    batch = node.run()

    assert [one.category for one in batch.log_errors] == ["ib_retry"]
    skipped = hole + len(cut_through) // 2 - len(RETRY)
    assert value(batch, "nccl_log_skipped_bytes_total") == skipped
    assert value(node.run(), "nccl_log_skipped_bytes_total") == skipped


def test_a_file_that_was_put_in_the_place_of_another_counts_once(
    node: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the old one was not kept open, so that its name leads to the new one."""
    monkeypatch.setattr(source, "MOST_OPEN", 0)
    node.run()
    (node.folder / "job.log").rename(node.folder / "job.old")
    node.write(CUDA)

    assert node.count(1) == {"cuda": 1}
    assert node.count() == {}


def test_a_file_that_cannot_be_read_stops_no_other(node: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said which, and why; the rest is read."""
    node.write(RETRY, "secret.log")
    node.write(RETRY)
    refuse(monkeypatch, {"secret.log": errno.EACCES})
    batch = node.run()

    assert [one.category for one in batch.log_errors] == ["ib_retry"]
    (absence,) = batch.absences
    assert (absence.device, absence.reason) == ("", "no_permission")
    assert absence.detail == f"{node.folder}/secret.log: Permission denied"


def test_a_file_that_vanishes_is_no_failure(node: LogFolder) -> None:
    """Jobs clean up after themselves."""
    node.write(RETRY)
    (node.folder / "job.log").unlink()
    batch = node.run(1)

    assert [one.category for one in batch.log_errors] == ["ib_retry"]
    assert batch.absences == []
    assert value(batch, "nccl_log_files") == 0


def test_the_number_of_files_is_told_and_bounded(node: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ones that were written last; one that is let go and written again is not read twice."""
    monkeypatch.setattr(source, "MOST_FILES", 3)
    for number in range(5):
        node.write(RETRY, f"{number}.log")
        when = node.began - 10 + number
        os.utime(node.folder / f"{number}.log", (when, when))
    os.utime(node.folder / "job.log", (node.began - 99, node.began - 99))
    batch = node.run()

    assert value(batch, "nccl_log_files") == 3
    assert sum(one.count for one in batch.log_errors) == 3
    node.write(CUDA)
    assert node.count() == {"cuda": 1}


@pytest.mark.parametrize("name", ["", "*.log"])
def test_more_names_than_are_read_are_told(node: LogFolder, name: str) -> None:
    """The logs of running jobs may be among the others."""
    node.start(name)
    for number in range(MOST_NAMES - 1):
        node.write("", f"{number}.log")
    assert node.run().absences == []
    node.write("", "one more.log")
    (absence,) = node.run().absences

    assert "more than 4,096 names, of which not all are read" in absence.detail


def test_a_run_ends_in_time_and_the_next_one_goes_on(node: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file full of errors takes several runs; every line counts once, and other files have their turn."""
    ticks = iter(range(10**9))
    base = node.now

    def busy() -> float:
        return base + LOOK_SECONDS + next(ticks) * source.BUSY_SECONDS / 50

    node.write(RETRY * 400)
    node.write(CUDA, "small.log")
    monkeypatch.setattr(node.source, "_monotonic", busy)
    counts, runs = Counter[str](), 0
    while sum(counts.values()) < 401 and runs < 100:
        runs += 1
        for one in node.source.collect("nccl_logs").log_errors:
            counts[one.category] += one.count

    assert counts == {"ib_retry": 400, "cuda": 1}
    assert 8 < runs < 60


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_the_many_logs_of_one_user_delay_no_other_s(node: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's is followed, though more were written later, and read by the second run."""
    monkeypatch.setattr(source, "MOST_FILES", 20)
    ticks = iter(range(10**9))
    base = node.now
    monkeypatch.setattr(
        node.source, "_monotonic", lambda: base + LOOK_SECONDS + next(ticks) * source.BUSY_SECONDS / 50
    )  # fmt: skip
    node.write(CUDA, "other.log")
    os.utime(node.folder / "other.log", (node.began, node.began))
    for number in range(30):
        node.write(RETRY * 100, f"{number}.log")
        os.chown(node.folder / f"{number}.log", 1000, -1)

    batches = [node.source.collect("nccl_logs") for _ in range(2)]
    assert {one.category for batch in batches for one in batch.log_errors} == {"ib_retry", "cuda"}


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 300_000, b"NCCL WARN " * 30_000, os.urandom(300_000), b"\r" * 300_000, b"NCCL WARN x\xff\n" * 300],
    ids=["zeros", "marks", "noise", "returns", "not_text"],
)
def test_hostile_files_do_no_harm(node: LogFolder, data: bytes) -> None:
    """Nothing is raised, what is counted is of the list, and the next line is read."""
    with (node.folder / "job.log").open("ab") as file:
        file.write(data)
    for _ in range(10):
        assert set(node.count()) <= set(SIDES)
    node.write("\n" + CUDA)
    assert node.count() == {"cuda": 1}


def test_what_is_kept_of_a_log_is_bounded(node: LogFolder) -> None:
    """A job can name any number of hosts, processes and networks, in lines as long as it likes."""
    end = "\U0001f600" + "y" * 900 + "\n"
    lines = (
        "gpu7:{0}:77 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/K{0}/0 {1}",
        ":{0}:1 [0] NCCL \n",
        "h{0}-" + "z" * 200 + ":1:1 [0] NCCL INFO Using network {0}\n",
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for line in lines:
        node.write("".join(line.format(number, end) for number in range(100_000, 102_000)) + info("x"))
        node.run()
        node.run()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 200_000  # of 512 logs 100 MB


def test_what_to_go_on_from_is_told_when_it_changes(node: LogFolder) -> None:
    """And now and then, because of the time in it; it holds nothing of what the logs say."""
    assert node.run(1).resume is None
    node.write(RETRY)
    told = node.run(1).resume
    assert told is not None
    [[offset, *_]] = msgspec.json.decode(told)["files"].values()
    assert offset == 2 * len(RETRY)
    assert node.run(1).resume is None
    assert node.run(source.TELL_SECONDS).resume is not None


@pytest.mark.parametrize(("written", "counted"), [("", {}), (RETRY.replace("129", "130") * 2, {"ib_retry": 2})])
def test_a_copy_of_a_log_that_was_cut_counts_for_nothing(
    written: str, counted: dict[str, int], tmp_path: Path
) -> None:  # fmt: skip
    """Between two searches for new files, too: the log that was cut has forgotten how far it was read by then. Where it
    has grown to its size again, the size does not show the cut, and what was read before is known of the copy."""
    node = LogFolder(tmp_path)
    node.start("*.log*")
    node.run()
    node.write(RETRY * 2)
    assert node.count() == {"ib_retry": 2}
    (tmp_path / "job.log.1").write_text(RETRY * 2)
    node.write(written, mode="w")

    assert node.count(1) == counted
    assert node.count() == {}


WRITES = st.tuples(st.sampled_from(("append", "begin", "new", "rename", "copy", "restart", "run")), st.integers(1, 3))


@examples(60)
@given(st.lists(WRITES, max_size=25))
def test_whatever_happens_to_logs_each_line_counts_once(steps: list[tuple[str, int]]) -> None:
    """Lines in pieces, new logs, both kinds of rotation, and new processes, in any order."""
    with TemporaryDirectory() as folder:
        node = LogFolder(Path(folder))
        node.start("*.log*")
        counted, written, number = sum(node.count().values()), 0, 0
        for step, times in steps:
            log = node.folder / f"{number}.log"
            if step == "append":
                node.write(RETRY * times, log.name)
                written += times
            elif step == "begin":
                node.write(RETRY[:40], log.name)
                counted += sum(node.count(1).values())
                node.write(RETRY[40:], log.name)
                written += 1
            elif step == "new":
                number += 1
            elif step == "rename" and log.exists():
                log.rename(log.with_name(f"{log.name}.{number}"))
                number += 1
            elif step == "copy" and log.exists():
                # What is written between the last run and the copy is read from the copy.
                log.with_name(f"{log.name}-{number}").write_bytes(log.read_bytes())
                log.write_bytes(b"")
                counted += sum(node.count(1).values())
                number += 1
            elif step == "restart":
                node.start("*.log*")
            elif step == "run":
                counted += sum(node.count(times).values())
        counted += sum(node.count().values())
        node.source.close()

        assert counted == written


@pytest.mark.parametrize("readable", [True, False])
def test_a_file_whose_name_is_no_text_can_be_told_of(
    node: LogFolder, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """A user may give it any bytes: what is told of it travels to the daemon, or no process would get past it."""
    node.start()
    node.run()
    (node.folder / os.fsdecode(b"job\xff.log")).write_text(RETRY)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", f"{node.folder}/job\udcff.log")

    if not readable:
        monkeypatch.setattr("commwatch.jobs.logs.source.LogTail.read", refused)
    batch = node.run()

    assert [one.file for one in batch.log_errors] == [f"{node.folder}/job\\xff.log"] * readable
    msgspec.msgpack.encode([batch.log_errors, batch.absences])
