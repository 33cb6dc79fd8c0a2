"""What happened first: lines with and without times, of one log or of several, put together by the minute."""

from __future__ import annotations

from typing import get_args

import pytest

from commwatch.jobs.logs.categories import CATEGORIES, SIDES, Category
from support.logs import answer_to, causes
from support.passes import in_one_pass

NOON = 1_772_452_800.0
"""2026-03-02 12:00:00."""
ROOT_CAUSE = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-02_12:00:02\n"
SAYS = {
    "cuda": "Cuda failure 719 'unspecified launch failure'",
    "socket": "Call to recv from 10.0.0.7<46311> failed : Connection reset by peer",
    "ib_retry": "NET/IB: Got completion from peer 10.2.0.5<5> with status=12 opcode=129 len=524288 vendor err 129",
    "oom": "Cuda failure 2 'out of memory'",
    "shm": "Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes",
    "teardown": "Call to send to 10.0.0.7<46311> failed : Broken pipe",
}


def at(seconds: float, form: str) -> str:
    """A time after noon, in a form of ``divmod`` by the minute."""
    hours, rest = divmod(int(seconds), 3600)
    return form.format(12 + hours, *divmod(rest, 60))


def told(category: str, time: float | None = None) -> str:
    """A line of NCCL, or of the program for a crash, at this number of seconds after noon."""
    if category == "crash":
        return at(time or 0, "2026-03-02 {:02}:{:02}:{:02} Fatal Python error: Segmentation fault\n")
    stamp = "" if time is None else at(time, "[2026-03-02 {:02}:{:02}:{:02}] ")
    return f"{stamp}node1:41:77 [1] a.cc:1 NCCL WARN {SAYS[category]}\n"


def gave_up(time: float | None = None, rank: int = 0, work: str = "SeqNum=7, OpType=X", group: str = "[") -> str:
    """A call of a rank that had waited for ten minutes."""
    stamp = "" if time is None else at(time, "2026-03-02 {:02}:{:02}:{:02} ")
    return (
        f"{stamp}[rank{rank}]:[E a.cpp:683] {group}Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL({work}, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
    )


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("[2026-03-02 12:00:01] node1:41:77 [1] init.cc:1 NCCL WARN x", NOON + 1),
        ("2026-03-02T12:00:01.250Z stderr F node1:41:77 [1] init.cc:1 NCCL WARN x", NOON + 1.25),
        ("2026-03-02 12:00:01,500 - trainer - ERROR - KeyError: 'x'", NOON + 1.5),
        (f"{ROOT_CAUSE}  host      : n3\n  exitcode  : -9 (pid: 14750)\n", NOON + 2),
        ("of 2026-03-02 00:00:00\n[rank0]:[E302 12:00:01.061000000 a.cpp:683] KeyError: 'x'", NOON + 1.061),
        ("of 2026-03-02 00:00:00\n[rank0]:[E1206 18:44:12.715298746 a.cpp:607] KeyError: 'x'", 1_796_582_652.715298746),
        ("[E a.cpp:828] [Rank 1] KeyError: 'x'", None),
        ("[2026-13-41 25:00:01] KeyError: 'x'", None),
    ],
)
def test_a_line_says_when_it_was_written(line: str, time: float | None) -> None:
    """In the forms of NCCL, torch, Python and container runtimes; torch names no year."""
    (incident,) = answer_to(line).incidents

    assert incident.began == (None if time is None else pytest.approx(time, abs=1e-6))


@pytest.mark.parametrize(
    "before",
    [
        "2026-03-02T12:00:00.123456789Z stderr F ",
        "2026-03-02T12:00:00.123456789+01:00 stdout F ",
        "2026-03-02T12:00:00.123456789Z ",
        "[pod/train-0/worker] 2026-03-02T12:00:00.123456789Z ",
        "[pod/train-0/worker] ",
    ],
)
@pytest.mark.parametrize("end", ["KeyError: 'x'", "[rank1]: KeyError: 'x'", "Bus error", "Segmentation fault"])
def test_what_a_container_writes_before_a_line_hides_no_end(before: str, end: str) -> None:
    """In the log of a pod, and by kubectl logs: a process that ended is why its peer lost the connection."""
    lost = "node1:41:77 [1] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4> with status=12"
    (plain,) = answer_to(f"{end}\n{lost}\n").incidents
    (one,) = answer_to(f"{before}{end}\n{before}{lost}\n").incidents

    assert (one.category, one.text) == (plain.category, plain.text)
    assert one.category == "crash"


def test_an_incident_holds_all_that_its_line_says() -> None:
    """Who, where, when, and for how long a call had waited."""
    (one,) = answer_to(gave_up(600.5, 5)).incidents
    assert (one.category, one.ranks, one.began) == ("timeout", ("5",), NOON)

    (one,) = answer_to("node1:41:77 [2] init.cc:9 (f) NCCL WARN Duplicate GPU detected : rank 1 and rank 0").incidents
    assert (one.category, one.hosts, one.began) == ("dup_gpu", ("node1",), None)
    assert one.text == "init.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0"


def test_what_is_a_minute_apart_is_told_apart() -> None:
    """The first incident comes first, whatever the order of the lines."""
    assert causes(told("cuda", 300), told("socket", 0) + told("ib_retry", 59)) == ["ib_retry", "cuda"]
    assert causes(told("socket", 0) + told("cuda", 60)) == ["socket", "cuda"]


def test_a_call_that_gave_up_began_to_wait_long_before() -> None:
    """So what happened when it began is why, though its own line comes ten minutes later."""
    waiting = "".join(gave_up(600 + rank, rank) for rank in (0, 1, 2))
    (incident,) = answer_to(told("crash", 5) + waiting + told("teardown", 605)).incidents

    assert incident.category == "crash"
    assert incident.counts == {"crash": 1, "timeout": 3, "teardown": 1}


@pytest.mark.parametrize(
    ("logs", "blamed"),
    [
        # What came while calls were waiting may be why: a rank that worked on for five minutes before it crashed.
        ([gave_up(600), told("crash", 300)], ["crash"]),
        ([gave_up(600), told("crash", 700)], ["timeout", "crash"]),
        # Connections that break after the time-out are no cause: the watchdog ends the process, its peers see that.
        ([gave_up(600) + told("ib_retry", 601)], ["timeout"]),
        ([told("ib_retry", 599) + gave_up(600)], ["ib_retry"]),
        ([told("oom", 1) + gave_up(600) + told("socket", 601)], ["oom"]),
        # Lines without a time stay where they stand, with the time before them or the first one after.
        ([told("oom") + gave_up(600) + told("teardown")], ["oom"]),
        (["12:00 2026-03-02 12:00:00\n" + told("cuda") + "2026-03-02 12:08:00\n" + told("socket")], ["cuda", "socket"]),
        # Without any time all is one incident in the order given.
        ([gave_up() + told("teardown"), told("shm")], ["shm"]),
        ([], []), (["", ""], []),
        # The line that names the cause is shown, and not the status before it.
        (["ncclUnhandledCudaError: Call to CUDA function failed.\n" + told("cuda")], ["cuda"]),
    ],
)  # fmt: skip
def test_what_happened_first_is_blamed(logs: list[str], blamed: list[str]) -> None:
    incidents = answer_to(*logs).incidents

    assert [one.category for one in incidents] == blamed
    assert "Call to CUDA function" not in "".join(one.text for one in incidents)


@pytest.mark.parametrize(
    ("one", "other", "group", "blamed"),
    [
        (
            (0, "SeqNum=7, OpType=BROADCAST"),
            (1, "SeqNum=7, OpType=ALLREDUCE"),
            "[PG ID 1 PG GUID 1 ",
            ("mismatch", True),
        ),
        ((0, "SeqNum=7, OpType=BROADCAST"), (1, "SeqNum=7, OpType=ALLREDUCE"), "[", ("mismatch", False)),
        (
            (0, "SeqNum=7, OpType=BROADCAST"),
            (1, "SeqNum=8, OpType=ALLREDUCE"),
            "[PG ID 1 PG GUID 1 ",
            ("timeout", True),
        ),
        (
            (0, "SeqNum=7, OpType=BROADCAST"),
            (0, "SeqNum=7, OpType=ALLREDUCE"),
            "[PG ID 1 PG GUID 1 ",
            ("timeout", True),
        ),
        (
            (0, "SeqNum=7, OpType=BROADCAST"),
            (1, "SeqNum=7, OpType=BROADCAST"),
            "[PG ID 1 PG GUID 1 ",
            ("timeout", True),
        ),
        (
            (0, "SeqNum=7, OpType=BROADCAST"),
            (1, "SeqNum=7, OpType=ALLREDUCE"),
            "[PG ID 0 PG GUID 0(default_pg) Rank 7] Process group watchdog thread terminated with exception: [",
            ("mismatch", True),
        ),
        (
            (0, "SeqNum=7, OpType=SEND"),
            (1, "SeqNum=7, OpType=RECV"),
            "[PG ID 1 PG GUID 1 ",
            ("timeout", True),
        ),
    ],
    ids=[
        "one number",
        "group not known",
        "other numbers",
        "one rank",
        "the same call",
        "the end of a rank",
        "two ends",
    ],
)
def test_different_calls_under_one_number_are_a_mismatch(
    one: tuple[int, str], other: tuple[int, str], group: str, blamed: tuple[str, bool]
) -> None:
    """BROADCAST of one rank against ALLREDUCE of another; certain only where both name the same process group."""
    (incident,) = answer_to("".join(gave_up(None, rank, work, group) for rank, work in (one, other))).incidents

    assert (incident.category, incident.certain) == blamed


@in_one_pass("number", ["ID 2 PG ", ""])
def test_each_process_group_counts_its_own_calls(number: str) -> None:
    """Each process counts its own groups: the second group of one rank is another than that of the next."""
    lines = (gave_up(None, rank, f"SeqNum=7, OpType={work}", f"[PG {number}GUID {group} ")
             for rank, work, group in ((0, "BROADCAST", 1), (1, "ALLREDUCE", 2)))  # fmt: skip

    assert causes("".join(lines)) == ["timeout"]


@in_one_pass(
    "group, ranks",
    [
        ("[PG ID 2 PG GUID 9(tp) ", ("4", "6", "7")), ("[PG ID 2 PG GUID 9 ", ("4", "6", "7")),
        ("[PG 3 ", ("4", "6", "7")), ("[PG ID 0 PG GUID 0(default_pg) ", ("0", "2", "3", "4", "6", "7")),
        ("[PG 0 ", ("0", "2", "3", "4", "6", "7")), ("[PG GUID 9(tp) ", ("4", "6", "7")),
        ("[PG GUID 0(default_pg) ", ("0", "2", "3", "4", "6", "7")),
    ],
)  # fmt: skip
def test_a_rank_within_a_group_is_no_rank_of_the_job(group: str, ranks: tuple[str, ...]) -> None:
    """As torch writes it last: where the process of rank 6 ends, the third of a group of four."""
    ends = "".join(
        gave_up(None, rank, group=group).replace(f"[rank{rank}]:[E a.cpp:683] ", "  what():  ") for rank in (0, 2, 3)
    )
    (incident,) = answer_to("".join(gave_up(None, rank) for rank in (4, 6, 7)) + ends).incidents

    assert incident.ranks == ranks


def test_the_group_of_a_call_is_known_by_any_line_of_its_rank() -> None:
    """torch names it where a process ends, after it said which call gave up."""
    calls = ((0, "BROADCAST", 1), (1, "ALLREDUCE", 2))
    first = [gave_up(None, rank, f"SeqNum=7, OpType={work}") for rank, work, _ in calls]
    ends = [
        gave_up(None, rank, f"SeqNum=7, OpType={work}", f"[PG ID 2 PG GUID {group} ") for rank, work, group in calls
    ]

    assert causes("".join(first)) == ["mismatch"]
    assert causes("".join(first + ends)) == ["timeout"]


def test_every_category_has_words() -> None:
    """What happened is a sentence, and so is what to do."""
    assert set(CATEGORIES) == set(SIDES) == set(get_args(Category))
    for _, happened, next_step in CATEGORIES.values():
        assert happened.endswith(".")
        assert next_step.endswith(".")


@in_one_pass(
    "line, named",
    [
        (
            "n1:4:7 [0] a.cc:1 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<332> with status=12 opcode=1",
            "10.2.0.5",
        ),
        ("n1:4:7 [0] a.cc:1 NCCL WARN socketProgress: Connection closed by remote peer node2<42830>", "node2"),
        ("n1:4:7 [0] a.cc:1 NCCL WARN Connect to 10.8.1.112<21724> failed : Connection refused", "10.8.1.112"),
        ("x [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [18.25.6.31]:28048", "18.25.6.31"),
        (
            "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (n9, 29500).",
            "n9",
        ),
        ("mpirun noticed that process rank 1 with PID 2 on node n7 exited on signal 9 (Killed).", "n7"),
        (f"{ROOT_CAUSE}  host      : n3\n  exitcode  : -9 (pid: 14750)\n", "n3"),
        ("The client socket has timed out after 60000ms while trying to connect to (localhost, 29500).", ""),
        ("CUDA error: an illegal memory access in f(uint16_t) at a.cpp:12", ""),
    ],
)
def test_who_a_text_names_is_read(line: str, named: str) -> None:
    """The other end of a connection, or where a process ended; this host itself is nobody."""
    (incident,) = answer_to(line).incidents

    assert incident.named == ((named,) if named else ())
