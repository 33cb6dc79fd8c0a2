"""What happened first: lines with and without times, of one log or of several, put together by the minute."""

from __future__ import annotations

from typing import get_args

import pytest

from commwatch.jobs.logs.categories import CATEGORIES, SIDES, Category
from commwatch.jobs.logs.event import LogEvent, event_in_line, time_of
from commwatch.jobs.logs.story import Chapter, LoggedEvent, chapters_of
from support.passes import in_one_pass

NOON = 1_772_452_800.0
"""2026-03-02 12:00:00."""


def told(
    category: Category, time: float | None = None, *, waited: float | None = None, line: int = 1, rank: str = "",
    certain: bool = True, before: float | None = None,
) -> LoggedEvent:  # fmt: skip
    at = None if time is None else NOON + time
    event = LogEvent(category, certain, f"{category} {line}", "", rank, None, None, at, waited)
    return LoggedEvent(event, "job.log", line, None if before is None else NOON + before)


def blamed(chapters: list[Chapter]) -> list[str]:
    return [chapter.culprit.event.category for chapter in chapters]


@in_one_pass(
    "line, time",
    [
        ("[2026-03-02 12:00:01] node1:41:77 [1] init.cc:1 NCCL WARN x", NOON + 1),
        ("2026-03-02T12:00:01.250Z stderr F node1:41:77 [1] init.cc:1 NCCL WARN x", NOON + 1.25),
        ("2026-03-02 12:00:01,500 - trainer - ERROR - KeyError: 'x'", NOON + 1.5),
        ("  time      : 2026-03-02_12:00:02", NOON + 2),
        ("[rank0]:[E302 12:00:01.061000000 ProcessGroupNCCL.cpp:683] x", NOON + 1.061),
        ("[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] x", 1_796_582_652.715298746),
        ("[E ProcessGroupNCCL.cpp:828] [Rank 1] x", None),
        ("[2026-13-41 25:00:01] x", None),
        ("", None),
    ],
)
def test_a_line_says_when_it_was_written(line: str, time: float | None) -> None:
    """In the forms of NCCL, torch, Python and container runtimes; torch names no year."""
    assert time_of(line, 2026) == (None if time is None else pytest.approx(time))


def test_an_event_holds_all_that_its_line_says() -> None:
    """Who, where, when, and for how long a call had waited."""
    line = (
        "[rank5]:[E302 12:10:00.5 ProcessGroupNCCL.cpp:683] [Rank 5] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=78, OpType=BROADCAST, Timeout(ms)=600000) ran for 600096 milliseconds before timing out."
    )
    event = event_in_line(line, 2026)
    assert event is not None
    assert (event.category, event.rank, event.waited, event.time) == ("timeout", "5", 600.096, NOON + 600.5)

    event = event_in_line("node1:41:77 [2] init.cc:9 (f) NCCL WARN Duplicate GPU detected : rank 1 and rank 0", 2026)
    assert event is not None
    assert (event.category, event.host, event.pid, event.device, event.time) == ("dup_gpu", "node1", 41, 2, None)
    assert event.text == "init.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0"
    assert event_in_line("step 1 loss 2.0", 2026) is None


def test_an_error_of_a_completion_names_the_adapter() -> None:
    """The last word of the line; a word that only looks like one is none."""
    line = "n1:4:7 [3] a.cc:315 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<33092> with status=12 opcode=0 hca "

    assert [event.hca for name in ("mlx5_3", "mlx5_3/x", "") if (event := event_in_line(line + name, 2026))] == [
        "mlx5_3", "", "",
    ]  # fmt: skip


def test_what_is_a_minute_apart_is_told_apart() -> None:
    """The first incident comes first, whatever the order of the lines."""
    chapters = chapters_of([[told("cuda", 300)], [told("socket", 0), told("ib_retry", 59)]])

    assert blamed(chapters) == ["ib_retry", "cuda"]
    assert chapters[0].events[0].event.category == "socket"
    assert blamed(chapters_of([[told("socket", 0), told("cuda", 60)]])) == ["socket", "cuda"]


def test_a_call_that_gave_up_began_to_wait_long_before() -> None:
    """So what happened when it began is why, though its own line comes ten minutes later."""
    waiting = [told("timeout", 600 + rank, waited=600.0, rank=str(rank)) for rank in (0, 1, 2)]
    (chapter,) = chapters_of([[told("crash", 5), *waiting, told("teardown", 605)]])

    assert chapter.culprit.event.category == "crash"
    assert chapter.counts == {"crash": 1, "timeout": 3, "teardown": 1}
    assert chapter.ranks("timeout") == ("0", "1", "2")


def test_what_came_while_calls_were_waiting_may_be_why() -> None:
    """A rank that worked on for five minutes before it crashed."""
    waiting = [told("timeout", 600, waited=600.0)]

    assert blamed(chapters_of([waiting, [told("crash", 300)]])) == ["crash"]
    assert blamed(chapters_of([waiting, [told("crash", 700)]])) == ["timeout", "crash"]


def test_connections_that_break_after_the_time_out_are_no_cause() -> None:
    """The watchdog ends the process; its peers see that."""
    waiting = [told("timeout", 600, waited=600.0)]

    assert blamed(chapters_of([[*waiting, told("ib_retry", 601)]])) == ["timeout"]
    assert blamed(chapters_of([[told("ib_retry", 599), *waiting]])) == ["ib_retry"]
    assert blamed(chapters_of([[told("oom", 1), *waiting, told("socket", 601)]])) == ["oom"]


def test_lines_without_a_time_stay_where_they_stand() -> None:
    """They belong to the time before them, or to the first one after."""
    chapters = chapters_of([[told("oom"), told("timeout", 600, waited=600.0), told("teardown")]])

    assert blamed(chapters) == ["oom"]
    assert [one.event.category for one in chapters[0].events] == ["oom", "timeout", "teardown"]
    assert chapters[0].culprit.event.time is None


def test_a_time_of_a_line_before_tells_two_things_apart() -> None:
    """The line itself has none, but its place is known."""
    assert blamed(chapters_of([[told("cuda", before=0), told("socket", before=500)]])) == ["cuda", "socket"]


def test_without_any_time_all_is_one_chapter_in_the_order_given() -> None:
    """Nothing is made up: only times chapters_of things apart."""
    (chapter,) = chapters_of([[told("timeout"), told("teardown")], [told("shm", line=7)]])

    assert chapter.culprit.line == 7
    assert chapters_of([]) == []
    assert chapters_of([[], []]) == []


def test_the_line_that_names_the_cause_is_shown() -> None:
    """Not the status before it."""
    (chapter,) = chapters_of([[told("cuda", 0, certain=False, line=1), told("cuda", 1, line=2)]])

    assert chapter.culprit.line == 2


def test_every_category_has_words() -> None:
    """What happened is a sentence, and so is what to do."""
    assert set(CATEGORIES) == set(SIDES) == set(get_args(Category))
    for _, happened, next_step in CATEGORIES.values():
        assert happened.endswith(".")
        assert next_step.endswith(".")


def gave_up(rank: int, number: int, call: str, group: str) -> LoggedEvent:
    line = f"{group}Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={call})"
    event = event_in_line(line, 2026)
    assert event is not None
    return LoggedEvent(event, "job.log", rank + 1)


@pytest.mark.parametrize(("group", "certain"), [("[PG ID 1 PG GUID 1 ", True), ("[", False)])
def test_different_calls_under_one_number_are_a_mismatch(group: str, certain: bool) -> None:
    """BROADCAST of one rank against ALLREDUCE of another; certain only where both name the same process group."""
    (chapter,) = chapters_of([[gave_up(0, 7, "BROADCAST", group), gave_up(1, 7, "ALLREDUCE", group)]])

    assert (chapter.culprit.event.category, chapter.culprit.event.certain) == ("mismatch", certain)


def test_calls_of_other_numbers_groups_or_of_one_rank_are_no_mismatch() -> None:
    """Each process group counts its own calls."""
    for other in (
        gave_up(1, 8, "ALLREDUCE", "[PG ID 1 PG GUID 1 "),
        gave_up(1, 7, "ALLREDUCE", "[PG ID 2 PG GUID 2 "),
        gave_up(0, 7, "ALLREDUCE", "[PG ID 1 PG GUID 1 "),
        gave_up(1, 7, "BROADCAST", "[PG ID 1 PG GUID 1 "),
    ):
        (chapter,) = chapters_of([[gave_up(0, 7, "BROADCAST", "[PG ID 1 PG GUID 1 "), other]])
        assert chapter.culprit.event.category == "timeout"


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
        ("Root Cause:\n  host      : n3\n  exitcode  : -9 (pid: 14750)", "n3"),
        ("The client socket has timed out after 60000ms while trying to connect to (localhost, 29500).", ""),
        ("CUDA error: an illegal memory access in f(uint16_t) at a.cpp:12", ""),
    ],
)
def test_who_a_text_names_is_read(line: str, named: str) -> None:
    """The other end of a connection, or where a process ended; this host itself is nobody."""
    event = event_in_line(line, 2026)

    assert event is not None
    assert event.named == named
