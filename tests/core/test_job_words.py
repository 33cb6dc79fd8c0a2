"""What a job wrote and answered is evidence on it: of this job, no older than its last payload, and no verdict."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.config.settings import Config, Jobs
from commwatch.findings.finding import Component
from commwatch.findings.job_evidence import with_job_evidence
from commwatch.jobs.evidence import JobEvidence, JobRank, SuspectedJob
from commwatch.jobs.flight_recorder.report import JobVerdict
from commwatch.jobs.flight_recorder.source import FlightRecorderSource
from commwatch.jobs.flight_recorder.verdict import CLOCKS_SECONDS, Verdict
from commwatch.jobs.inspector.report import InspectorReport, ProcessReport
from commwatch.jobs.logs.source import LOOK_SECONDS, NcclLogsSource
from commwatch.jobs.ras import RasWord, Trouble
from commwatch.jobs.settings.audit import audit_processes
from commwatch.jobs.settings.facts import NodeFacts
from commwatch.jobs.settings.records import AuditRecord, JobProcess
from commwatch.node.run import Outcome
from commwatch.readings import LogErrors
from commwatch.service.api import Answers
from commwatch.workers.one_shot import Answer
from support.core import block, collected, collector
from support.fed_daemon import FedDaemon
from support.findings import finding
from support.flight_recorder import call, dump, pickled
from support.processes import ProcessTable
from support.stuck_node import COMPUTES, PIDS, SLOTS, Node

USER, OTHER = 1001, 1002
EPOCH = 1_800_000_000.0
"""When the monotonic clock was 0, seconds since 1970."""
VERDICT = Verdict(
    "did_not_arrive", True, (3,), (0, 1, 2), "0 (default_pg)", "all_reduce", 1042, 0.0,
    "rank 3 did not call all_reduce 1042 of group 0 (default_pg), in which ranks 0-2 wait.",
)  # fmt: skip
DETAIL = VERDICT.detail[:-1]
UNKNOWN = ", of this user; whether of this job is not known"
RETRY = LogErrors("ib_retry", True, 1, "/log/job.log", "NCCL WARN NET/IB : Got completion", "mlx5_0", log="l")
GIVEN_UP = "An RDMA transfer was given up, because the other end never answered"


def timeout(rank: int | None, call: str = "ALLREDUCE 1042", log: str = "l") -> LogErrors:
    return LogErrors("timeout", True, 1, "/log/job.log", "Watchdog caught", rank=rank, call=call, log=log)


class Story:
    """A node with a job that has been stuck for 120 s; what it wrote and answered is put beside it.

    Args:
        two: there are two jobs, each on two GPUs.
    """

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch, *, two: bool = False, ras: bool = True) -> None:
        self.daemon = FedDaemon(folder, patched, Config(jobs=Jobs(ras=ras)))
        self.engine = engine = self.daemon.engine
        self.node = node = Node(folder / "procfs", store=engine.store, tracker=engine.pipeline.stuck_jobs)
        if two:
            node.store.jobs = {pid: PIDS[place // 2 * 2] for place, pid in enumerate(PIDS)}
        node.read(620)
        self.payload = node.now
        """Monotonic seconds."""
        node.stops(120)
        self.word = RasWord("agree", ranks=4, communicators=1)
        if engine.job_ras is not None:
            engine.job_ras._ask = self._ask

    async def _ask(self, *_: Any, **__: Any) -> Answer:
        return Answer(0, msgspec.json.encode(self.word).decode())

    def ask_ras(self) -> None:
        assert self.engine.job_ras is not None
        self.daemon.clock.now = self.node.now
        asyncio.run(self.engine.job_ras.run())

    def take(self, name: str, audit: Any) -> None:
        """A run of a collector that found this."""
        found = replace(collected({}), audit=msgspec.json.encode(audit))
        self.engine.pipeline.on_batch(Outcome(collector(name), found, time=self.node.now))

    def judged(
        self, taken: float = 30.0, since: float = 0.0, *, owner: int = USER, series: str = "a", **changes: Any
    ) -> JobVerdict:
        """A verdict on dumps; both times in seconds after the last payload."""
        at = EPOCH + self.payload
        return JobVerdict(owner, series, at + taken, msgspec.structs.replace(VERDICT, since=at + since, **changes))

    def dump(self, *verdicts: JobVerdict) -> None:
        self.take("flight_recorder", verdicts)

    def audit(self, *series: str, logs: Sequence[Sequence[str]] = ((),) * len(PIDS)) -> None:
        """The audit knows where the dumps of each process are, and its logs; empty where it does not."""
        places = tuple(
            JobProcess(pid, rank, one, tuple(own))
            for rank, (pid, one, own) in enumerate(zip(PIDS, series or [""] * len(PIDS), logs, strict=True))
        )
        jobs = self.node.store.jobs
        self.take("nccl_settings", AuditRecord(processes=places))
        self.node.store.jobs = jobs

    def log(self, *errors: LogErrors, at: float = 30.0) -> None:
        """Errors are read in logs this number of seconds after the last payload."""
        found = replace(collected({}), log_errors=list(errors))
        self.engine.pipeline.on_batch(Outcome(collector("nccl_logs"), found, time=self.payload + at))

    def inspect(self, *reports: ProcessReport) -> None:
        for index, slot in enumerate(SLOTS):
            info = ("commwatch_gpu_info", (str(index), slot, f"GPU-{index}", "", "", ""))
            links = ("commwatch_nvlink_links", (str(index), slot))
            self.node.store.put("nvml_identity", slot, block({info: 1, links: 18}, 0.0), 1e9)
        self.node.store.put("nccl_inspector", "", block({("commwatch_nccl_inspector_files", ()): 1}, 0.0), 1e9)
        self.engine.pipeline.on_batch(Outcome(collector("nvml_processes"), collected({}), 1.0))
        self.take("nccl_inspector", InspectorReport(reports))

    def evidence(self) -> dict[str, tuple[JobEvidence, ...]]:
        self.daemon.clock.now = self.node.now
        return self.engine._job_words.words(EPOCH + self.node.now)

    def said(self, gpu: int = 0) -> list[str]:
        return [one.words for one in self.evidence()[SLOTS[gpu]]]


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(tmp_path / "daemon", monkeypatch)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(tmp_path / "daemon", monkeypatch, two=True)


def test_one_story_of_all_sources(story: Story) -> None:
    """Who did not arrive, on which GPU, in which operation; in the order of trust."""
    story.inspect(ProcessReport(PIDS[2], True, owner=USER, newest_age=95.0))
    story.audit("a", "a", "a", "a", logs=[["l"]] * 4)
    story.dump(story.judged())
    story.log(replace(RETRY, category="remote"), at=10.0)
    story.log(RETRY)
    story.log(*(timeout(rank) for rank in range(3)), at=100.0)
    story.log(replace(RETRY, category="other"), at=110.0)
    story.word = RasWord("differ", 4, 1, troubles=(Trouble(4, missing=(3,), behind=(1,), operation="all_reduce"),),
                         behind_pids=(PIDS[1],))  # fmt: skip
    story.ask_ras()
    evidence = story.evidence()[SLOTS[0]]
    assert [one.words for one in evidence] == [
        f"Flight Recorder (dump 10:57:30 UTC): {DETAIL}; rank 3 is on GPU3",
        "Inspector: newest record 95 s ago",
        f"job log (read 10:58:40 UTC): {GIVEN_UP} (mlx5_0); ranks 0-2 timed out in ALLREDUCE 1042",
        "RAS: rank 3 of 4 does not answer; rank 1 of 4 has launched fewer all_reduce than the others "
        "(on this node: GPU1)",
    ]
    assert [one.parts for one in evidence] == [(SLOTS[3],), (), ("mlx5_0",), (SLOTS[1],)]
    assert [one.since for one in evidence] == [EPOCH + story.payload, None, EPOCH + story.payload + 30, None]


def test_from_the_dumps_and_environments_to_the_words(story: Story, tmp_path: Path) -> None:
    """The job is in a container, which has the folder at another path; a second job's dumps lie beside its own."""
    container, folder = tmp_path / "container", tmp_path / "container/dumps"
    folder.mkdir(parents=True)
    source, now = FlightRecorderSource([str(folder)], lambda: EPOCH), EPOCH + story.payload
    source.collect("flight_recorder")
    for name, late in (("mine", 3), ("other", 1)):
        for rank in range(4):
            calls = [call("all_reduce", one, at=now - 9 + one, done=one < 9) for one in range(1, 10 - (rank == late))]
            (folder / f"{name}_rank_{rank}").write_bytes(pickled(dump(calls)))
            os.utime(folder / f"{name}_rank_{rank}", (now + 60, now + 60))
    source.collect("flight_recorder")
    audit = source.collect("flight_recorder").audit
    assert audit is not None
    table = ProcessTable(story.node.procfs)
    for rank, pid in enumerate(PIDS):
        table.add(pid, {"TORCH_FR_DUMP_TEMP_FILE": "/dumps/mine_rank_"}, rank=rank)
        (table.root / f"{pid}/root").rmdir()
        (table.root / f"{pid}/root").symlink_to(container)
        story.node.user[pid] = os.geteuid()
    story.node.write()
    story.take("nccl_settings", audit_processes(PIDS, NodeFacts(), table.root))
    story.take("flight_recorder", msgspec.Raw(audit))
    assert story.said() == [
        "Flight Recorder (dump 10:58:00 UTC): rank 3 did not call all_reduce 9 of group 0 (default_pg), in which "
        "ranks 0-2 wait; rank 3 is on GPU3"
    ]


def test_metrics_name_the_ranks_of_a_certain_verdict_on_this_job(story: Story) -> None:
    """The first four, at its lowest GPU; an operation that torch does not have is another one."""
    ranks = tuple(range(3, 9))
    for own, changes, found in (
        ("a", {}, {("3", "did_not_arrive", "all_reduce"): 1042}),
        ("a", {"ranks": ranks}, {(str(one), "did_not_arrive", "all_reduce"): 1042 for one in ranks[:4]}),
        ("a", {"operation": "evil\n", "sequence_number": None}, {("3", "did_not_arrive", "other"): 0}),
        ("a", {"operation": "recv", "sequence_number": None}, {("3", "did_not_arrive", "recv"): 0}),
        ("a", {"is_certain": False}, {}),
        ("", {}, {}),
    ):
        story.audit(own, own, own, own)
        story.dump(story.judged(**changes))
        story.evidence()
        shown = [(labels, value) for one in story.node.store.group("job_words").values()
                 for (_, labels), value in zip(one.layout.series, one.values, strict=True)]  # fmt: skip
        assert dict(shown) == {("0", SLOTS[0], *labels): value for labels, value in found.items()}


def test_a_job_that_works_has_no_evidence(story: Story) -> None:
    """And none is kept of an earlier suspicion."""
    story.dump(story.judged())
    story.node.gpus, story.node.nvlink = [COMPUTES] * 4, 0.3
    story.node.read(20)
    assert story.evidence() == {}


def test_a_job_that_is_not_read_any_more_has_no_evidence(story: Story) -> None:
    """Whether it is still stuck is not known; the metric goes too."""
    story.audit("a", "a", "a", "a")
    story.dump(story.judged())
    assert len(story.said()) == 1
    story.node.gpus, story.node.nvlink = [(None, None)] * 4, 0.3
    story.node.read(130)
    assert story.evidence() == {}
    assert not story.node.store.group("job_words")


# --- place ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda story: story.dump(story.judged(owner=OTHER)), []),
        (lambda story: story.node.user.update({PIDS[1]: OTHER}), []),
        (lambda story: story.node.state.update(dict.fromkeys(PIDS, "")), []),
        (lambda story: story.node.state.update({PIDS[3]: ""}), [UNKNOWN]),
        (lambda story: None, [UNKNOWN]),
        (lambda story: story.audit("", "", "", ""), [UNKNOWN]),
        (lambda story: story.audit("", "", "", "a"), [""]),
        (lambda story: story.audit("", "", "", "b"), []),
        (lambda story: story.audit("a", "b", "c", "d"), [""]),
        (lambda story: (story.audit("a", "b", "c", "d"), story.node.store.jobs.clear()), []),
        (lambda story: story.dump(story.judged(), story.judged(series="b")), []),
        (lambda story: story.dump(story.judged(), story.judged(kind="deadlock")), [UNKNOWN]),
        (lambda story: story.dump(story.judged(is_certain=False)), [UNKNOWN]),
    ],
    ids=["another user's dumps", "processes of two users", "all have ended", "one has ended", "environments not read",
         "default names", "own dumps by one rank", "other dumps by one rank", "a name for each rank",
         "a name for each rank, launchers not known", "dumps of two jobs of this user", "several verdicts",
         "not certain"],
)  # fmt: skip
def test_dumps_count_for_the_job_that_wrote_them(
    story: Story, change: Callable[[Story], Any], words: list[str]
) -> None:
    """Where that is not known, those of its user do if he has one job here and one in the folders, with these words."""
    story.dump(story.judged())
    change(story)
    story.node.write()
    said = story.said()
    doubt = "" if story.engine.pipeline.flight_recorder.latest[0].verdict.is_certain else " (not certain)"
    assert [one.partition("; rank")[0] for one in said] == [
        f"Flight Recorder (dump 10:57:30 UTC{one}): {DETAIL}{doubt}" for one in words
    ]


@pytest.mark.parametrize(
    ("series", "users", "found"),
    [
        (("a", "a", "b", "b"), (USER, USER), [[""], []]),
        (("b", "b", "a", "a"), (USER, USER), [[], [""]]),
        (("", "", "a", "a"), (USER, USER), [[], [""]]),
        (("a", "a", "a", "a"), (USER, USER), [[], []]),
        (("", "", "", ""), (USER, USER), [[], []]),
        (("", "", "", ""), (USER, OTHER), [[UNKNOWN], []]),
    ],
    ids=["first", "second", "one known", "both write there", "neither known", "two users"],
)
def test_two_jobs_of_one_user_are_not_mixed(
    two: Story, series: tuple[str, ...], users: tuple[int, int], found: list[list[str]]
) -> None:
    two.node.user = {pid: users[place // 2] for place, pid in enumerate(PIDS)}
    two.node.write()
    two.audit(*series)
    two.dump(two.judged())
    said = [[one.partition("): ")[0] for one in two.said(gpu)] for gpu in (0, 2)]
    assert said == [[f"Flight Recorder (dump 10:57:30 UTC{one}" for one in words] for words in found]


def test_the_records_and_answers_of_another_job_are_not_used(two: Story) -> None:
    two.inspect(ProcessReport(PIDS[3], True, owner=USER, newest_age=95.0))
    two.ask_ras()
    two.word = RasWord("differ", 2, 1, died=1)
    two.ask_ras()
    alike = "RAS shows no difference between the ranks, as it does in a hang of all alike"
    differs = "RAS: 1 processes died while it was asked"
    assert sorted([two.said(0), two.said(2)]) == sorted([[alike], ["Inspector: newest record 95 s ago", differs]])


# --- time ---


@pytest.mark.parametrize(
    ("taken", "since", "counts"),
    [
        (30.0, 0.0, True), (0.0, -CLOCKS_SECONDS, True), (120.0, 5.0, True),
        (-1.0, -20.0, False),  # written while data still moved
        (30.0, -CLOCKS_SECONDS - 1, False),  # of an earlier hang; its files were written again
        (120.0 + CLOCKS_SECONDS + 1, 0.0, False), (8e9, 0.0, False),  # a time that has not come
    ],
)  # fmt: skip
def test_a_dump_counts_only_if_it_is_of_this_pause(story: Story, taken: float, since: float, counts: bool) -> None:
    story.audit("a", "a", "a", "a")
    story.dump(story.judged(taken, since))
    assert bool(story.said()) is counts


@pytest.mark.parametrize(("age", "later", "words"), [
    (0.0, 0.0, ["Inspector: newest record 1 s ago"]), (120.0, 0.0, ["Inspector: newest record 2 min ago"]),
    (121.0, 0.0, []), (95.0, 10.0, ["Inspector: newest record 105 s ago"]),
])  # fmt: skip
def test_a_record_from_before_the_last_payload_says_nothing(
    story: Story, age: float, later: float, words: list[str]
) -> None:
    """One that is younger shows that operations still end, and the suspicion stays."""
    story.inspect(ProcessReport(PIDS[0], True, owner=USER, newest_age=age))
    story.node.stops(later)
    assert story.said() == words


def test_an_answer_of_ras_from_an_earlier_pause_does_not_count(story: Story) -> None:
    story.ask_ras()
    assert len(story.said()) == 1
    story.node.gpus, story.node.nvlink = [COMPUTES] * 4, 0.3
    story.node.read(620)
    story.node.stops(300)
    assert story.said() == []


@pytest.mark.parametrize("outcome", ["young", "no_answer", "cut", "other_job", "setting_up", "unreachable", "silent"])
def test_that_ras_was_not_asked_or_is_another_jobs_is_no_evidence(story: Story, outcome: Any) -> None:
    story.word = RasWord(outcome)
    story.ask_ras()
    assert story.said() == []


def test_without_ras_nothing_is_said_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Story(tmp_path, monkeypatch, ras=False).evidence() == {SLOTS[0]: ()}


# --- logs ---


def test_from_the_logs_and_environments_to_the_words(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is in a container, where NCCL writes a file for each process; its output goes into a file of the node."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node1.example")
    container, output = tmp_path / "container", tmp_path / "output.log"
    (container / "logs").mkdir(parents=True)
    output.touch()
    names = [str(output), f"{container}/logs/%h.%p.log"]
    source = NcclLogsSource(names, host="node1", monotonic=lambda: story.node.now)
    source.collect("nccl_logs")
    story.node.now += LOOK_SECONDS
    table = ProcessTable(story.node.procfs)
    for rank, pid in enumerate(PIDS):
        table.add(pid, {"NCCL_DEBUG_FILE": "/logs/%h.%p.log"}, rank=rank)
        (table.root / f"{pid}/root").rmdir()
        (table.root / f"{pid}/root").symlink_to(container)
        (table.root / f"{pid}/status").write_text(f"Uid:\t0\t0\t0\t0\nNSpid:\t{pid}\t{pid - 100}\n")
        (table.root / f"{pid}/fd").mkdir()
        (table.root / f"{pid}/fd/2").symlink_to(output)
        (container / f"logs/node1.{pid - 100}.log").write_text(
            "node1:2:77 [1] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4800> with "
            "status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_0\n"
            if rank == 1
            else "NCCL version 2.28.9\n"
        )
    output.write_text("".join(
        f"[rank{rank}]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1042, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600056 milliseconds before timing out.\n"
        for rank in (0, 1, 2)
    ))  # fmt: skip
    (container / "logs/node1.7.log").write_text("node1:7:7 [0] NCCL WARN Cuda failure 'out of memory'\n")  # another's
    story.take("nccl_settings", audit_processes(PIDS, NodeFacts(), table.root))
    story.log(*source.collect("nccl_logs").log_errors)
    assert story.said() == [f"job log (read 10:57:30 UTC): {GIVEN_UP} (mlx5_0); ranks 0-2 timed out in ALLREDUCE 1042"]


@pytest.mark.parametrize("name", ["/dev/stderr", "/proc/self/fd/2", "stderr", "/logs/none.log"])
def test_a_name_that_leads_to_no_file_of_a_process_is_no_log(name: str, story: Story, tmp_path: Path) -> None:
    """Of what a reader would open under that name, too."""
    table = ProcessTable(story.node.procfs)
    table.add(PIDS[0], {"NCCL_DEBUG_FILE": name}, rank=0)
    (table.root / f"{PIDS[0]}/root").rmdir()
    (table.root / f"{PIDS[0]}/root").symlink_to("/")
    processes = audit_processes(PIDS[:1], NodeFacts(), table.root).processes
    assert processes == (JobProcess(PIDS[0], 0),)


@pytest.mark.parametrize(
    ("logs", "launched", "says"),
    [
        (["l", "l", "l", "l"], True, True), (["", "", "", "l"], True, True), (["a", "b", "c", "l"], True, True),
        (["l", "l", "l", "l"], False, True), (["a", "b", "c", "l"], False, False), (["", "", "", ""], True, False),
        (["other"] * 4, True, False),
    ],
    ids=["one log", "of one rank", "one each", "one, launchers not known", "one each, launchers not known",
         "not known", "another log"],
)  # fmt: skip
def test_a_log_counts_for_the_job_that_writes_it(story: Story, logs: list[str], launched: bool, says: bool) -> None:
    story.audit(logs=[[one] if one else [] for one in logs])
    if not launched:
        story.node.store.jobs = {}
    story.log(RETRY)
    assert bool(story.said()) is says


@pytest.mark.parametrize(("logs", "says"), [("llxx", [True, False]), ("xxll", [False, True]), ("llll", [False, False])])
def test_the_log_of_another_job_is_not_used(two: Story, logs: str, says: list[bool]) -> None:
    """Nor one that two jobs write into."""
    two.audit(logs=[[one] for one in logs])
    two.log(RETRY)
    assert [bool(two.said(gpu)) for gpu in (0, 2)] == says


@pytest.mark.parametrize(("at", "says"), [(-1.0, False), (0.0, True), (120.0, True)])
def test_a_line_that_was_read_before_the_last_payload_says_nothing(story: Story, at: float, says: bool) -> None:
    story.audit(logs=[["l"]] * 4)
    story.log(RETRY, at=at)
    assert bool(story.said()) is says


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ([replace(RETRY, hca="mlx5_9")], GIVEN_UP),
        ([replace(RETRY, hca="")], GIVEN_UP),
        ([timeout(None), timeout(3, ""), replace(timeout(0), certain=False)], ""),
        ([replace(RETRY, category="remote"), replace(RETRY, category="other"), replace(RETRY, category="later")], ""),
        ([timeout(0), timeout(1, "SEND 7")], "rank 0 timed out in ALLREDUCE 1042; rank 1 timed out in SEND 7"),
        ([timeout(0, "\x1b[2J\n" + "x" * 200)], "rank 0 timed out in ?[2J?" + "x" * 200),
        ([replace(RETRY, category="crash", hca=""), RETRY], "A process of the job ended by itself; all others lost it"),
        ([replace(RETRY, category="version", text="CUDA driver version is insufficient for CUDA runtime", hca="")],
         "The NVIDIA driver of the node is older than the CUDA that the program was built with"),
        ([replace(RETRY, category="usage", text="bind: Address already in use", hca="")],
         "The port at which a process should listen is taken"),
        ([replace(RETRY, category="crash", text="ActorUnavailableError: The actor 1 is unavailable", hca="")], ""),
    ],
    ids=["a device of another node", "no device", "not who waited, or not certain", "symptoms and unknown", "two calls",
         "hostile", "what ended first", "a line that says more than its category", "likewise",
         "a line that names no cause"],
)  # fmt: skip
def test_a_log_names_causes_devices_of_this_node_and_ranks_that_waited(
    story: Story, errors: list[LogErrors], words: str
) -> None:
    story.audit(logs=[["l"]] * 4)
    story.log(*errors)
    story.log(errors[0], at=60.0)
    assert story.said() == ([f"job log (read 10:58:00 UTC): {words}"] if words else [])


def test_errors_of_an_hour_ago_are_not_where_those_of_now_begin(story: Story) -> None:
    """A kind begins again after a minute without a line of it."""
    story.audit(logs=[["l"]] * 4)
    for at in (-3600.0, 10.0, 69.0, 129.0):
        story.log(RETRY, at=at)
        story.evidence()
    [evidence] = story.evidence()[SLOTS[0]]
    assert evidence.since == EPOCH + story.payload + 129.0


# --- what a job writes is hostile ---


def test_the_texts_of_a_dump_are_cut_and_printable(story: Story) -> None:
    """And nothing of the program is in them."""
    story.audit("a", "a", "a", "a")
    name = "\x1b[2J\u202e\n<b>" + "x" * 100_000
    frames = {"0": ("train /home/someone/secret.py:3",)}
    story.dump(story.judged(group=name, detail=f"rank 3 did not call {name}.", frames=frames, ranks=tuple(range(5000))))
    assert b"secret" not in msgspec.json.encode(story.engine.pipeline.flight_recorder.latest)
    (words,) = story.said()
    assert words.isprintable()
    assert len(words) < 800


# --- the findings ---


def _evidence(source: str) -> JobEvidence:
    return JobEvidence(source, f"word of {source}")


def test_evidence_goes_to_the_finding_on_its_job_in_the_order_of_trust() -> None:
    """Of no kind of word does a finding end or get less severe."""
    here, there = (Component("process", slot, f"job from GPU{number} on") for number, slot in enumerate(SLOTS[:2]))
    findings = [finding("job_stuck", here), finding("job_silent", there), finding("nvlink_down", here)]
    daemon = {SLOTS[0]: tuple(map(_evidence, ("ras", "flight_recorder", "of a later version")))}
    first = list(with_job_evidence(findings, daemon))
    both = list(with_job_evidence(first, {SLOTS[0]: (_evidence("proc"),), SLOTS[1]: (_evidence("inspector"),)}))
    assert [[known.source for known in one.job_evidence] for one in both] == [
        ["proc", "flight_recorder", "ras", "of a later version"], ["inspector"], [],
    ]  # fmt: skip
    assert [msgspec.structs.replace(one, job_evidence=()) for one in both] == findings


def test_the_daemon_puts_the_words_on_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each evaluation of the rules, also at the one before it saves."""
    daemon = FedDaemon(tmp_path, monkeypatch)
    store, labels = daemon.engine.store, ("0", SLOTS[0])
    ranks = (JobRank(0, SLOTS[0], PIDS[0], True),)
    monkeypatch.setattr(daemon.engine.pipeline.stuck_jobs, "suspected", lambda now: (SuspectedJob(400.0, ranks),))
    stuck: dict[Any, Any] = {
        ("commwatch_job_stuck_seconds", labels): 400.0, ("commwatch_job_stuck_first", labels): 0.0
    }  # fmt: skip
    record: dict[Any, Any] = {("commwatch_job_last_communication_seconds", labels): 95.0}
    now = daemon.clock.monotonic()
    store.put("job_stuck", "", block(stuck, now), 1e9)
    store.put("job_inspector", "", block(record, now), 1e9)
    for act in (daemon.engine.look, daemon.save):
        act()
        [found] = [one for one in Answers(daemon.engine).findings().findings if one.code == "job_stuck"]
        assert [one.words for one in found.job_evidence] == ["Inspector: newest record 95 s ago"]
    store.drop("job_inspector", "")
    daemon.engine.look()
    assert [one.job_evidence for one in daemon.engine.verdict.findings if one.code == "job_stuck"] == [()]


def test_a_defect_in_the_words_ends_no_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = FedDaemon(tmp_path, monkeypatch)
    monkeypatch.setattr(daemon.engine._job_words, "words", lambda *_: 1 / 0)
    daemon.engine.look()
    assert daemon.engine.verdict.looked_at is not None
