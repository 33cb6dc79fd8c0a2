"""Why the ranks of a job wait, by the dumps of its ranks: real ones of gloo, and built ones in NCCL's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from commwatch.jobs.flight_recorder.dump import parse
from commwatch.jobs.flight_recorder.pickle_walk import NoDump
from commwatch.jobs.flight_recorder.recording import condense
from commwatch.jobs.flight_recorder.verdict import RankDump, judge
from support.flight_recorder import BEGIN, GLOO, TAKEN, call, dump, judged
from support.passes import in_one_pass

REDUCE, WAITS = call("all_reduce", 1), call("all_reduce", 2, done=False)
ARRIVED = dump([REDUCE, WAITS])
BEHIND = dump([REDUCE])
WORLD = {"0": [0, 1, 2, 3]}
TENSOR, BOTH = WORLD | {"1": [0, 1]}, WORLD | {"1": [0, 1], "2": [0, 1]}
LATER = {"time_created_ns": int((BEGIN + 9) * 1e9)}
ISSUED_AS_ONE = [call("_all_gather_base", 1, done=False), call("_all_gather_base", 1, done=False)]
HALVES = {"input_dtypes": ["Half"], "output_dtypes": ["Half"]}


def _sub(number: int, group: str = "1", **more: Any) -> dict[str, Any]:
    return call("all_reduce", number, group=group, **more)


@in_one_pass(
    "case, kind, ranks",
    [("missing", "did_not_arrive", (3,)), ("mismatch", "metadata_mismatch", (2,)), ("deadlock", "deadlock", (0, 1))],
)
def test_real_dumps_of_gloo_are_judged_by_what_their_job_did(case: str, kind: str, ranks: tuple[int, ...]) -> None:
    """Two of its ranks sent and received, which ``pg_status`` counts: by it two more ranks would be behind."""
    dumps = [
        RankDump(rank, f"rank {rank}", 1.9e9, condense(parse((GLOO / case / f"rank_{rank}").read_bytes())))
        for rank in range(4)
    ]
    (verdict,) = judge(dumps).verdicts
    assert (verdict.kind, verdict.ranks, verdict.is_certain) == (kind, ranks, True)
    assert any("/opt/job/train.py" in frame for frame in verdict.frames["3"])


def test_json_of_a_recorder_says_what_its_pickle_does() -> None:
    for rank in (0, 3):
        read, pickled = (
            parse((GLOO / f"rank_{rank}.json").read_bytes()),
            parse((GLOO / f"missing/rank_{rank}").read_bytes()),
        )
        told = [condense(one).groups for one in (read, pickled)]
        assert [[step.number for step in group.steps] for group in told[0]] == [
            [step.number for step in group.steps] for group in told[1]
        ]


CASES: dict[str, tuple[dict[Any, dict[str, Any]], tuple[tuple[str, tuple[int, ...], bool], ...]]] = {
    "nothing waits": (dict.fromkeys(range(4), BEHIND), ()),
    "one rank is behind": ({0: ARRIVED, 1: ARRIVED, 2: ARRIVED, 3: BEHIND}, (("did_not_arrive", (3,), True),)),
    "one is behind, one has left no dump": ({0: ARRIVED, 1: ARRIVED, 3: BEHIND}, (("did_not_arrive", (3,), True),)),
    "all arrived": (dict.fromkeys(range(4), ARRIVED), (("data_path", (), True),)),
    "all arrived, one without a dump": ({0: ARRIVED, 1: ARRIVED, 2: ARRIVED}, (("missing_dump", (3,), False),)),
    "a root that is through": (
        {0: dump([REDUCE, call("broadcast", 2), call("all_gather", 3, done=False)])}
        | dict.fromkeys((1, 2, 3), dump([REDUCE, call("broadcast", 2, done=False)])),
        (("data_path", (), True),),
    ),
    "another operation": (
        {0: ARRIVED, 1: ARRIVED, 2: dump([REDUCE, call("broadcast", 2, done=False)]), 3: ARRIVED},
        (("metadata_mismatch", (2,), True),),
    ),
    "two and two": (
        dict.fromkeys((0, 1), ARRIVED) | dict.fromkeys((2, 3), dump([REDUCE, call("broadcast", 2, done=False)])),
        (("metadata_mismatch", (), True),),
    ),
    "another size": (
        {0: ARRIVED, 1: dump([REDUCE, call("all_reduce", 2, size=4, done=False)]), 2: ARRIVED, 3: ARRIVED},
        (("metadata_mismatch", (1,), True),),
    ),
    "another type": (
        {0: ARRIVED, 2: ARRIVED, 3: ARRIVED, 1: dump([REDUCE, WAITS | HALVES])},
        (("metadata_mismatch", (1,), True),),
    ),
    "sizes that may differ": (
        {rank: dump([REDUCE, call("all_to_all", 2, size=rank + 1, done=False)]) for rank in range(4)},
        (("data_path", (), True),),
    ),
    "an operation of a later torch": (
        {0: ARRIVED, 1: ARRIVED, 2: ARRIVED, 3: dump([REDUCE, call("all_reduce_in_space", 2, done=False)])},
        (("data_path", (), True),),
    ),
    "groups in different orders": (
        {
            0: dump([_sub(1), _sub(2, done=False)], TENSOR),
            1: dump([_sub(1), WAITS | {"collective_seq_id": 1}], TENSOR),
            **dict.fromkeys((2, 3), dump([WAITS | {"collective_seq_id": 1}])),
        },
        (("deadlock", (0, 1), True),),
    ),
    "groups in different orders, all arrived": (
        {
            0: dump([_sub(1, done=False), _sub(1, "2", done=False)], BOTH),
            1: dump([_sub(1, "2", done=False), _sub(1, done=False)], BOTH),
            2: dump([], WORLD),
            3: dump([], WORLD),
        },
        (("deadlock", (), False),),
    ),
    "a chain: who holds up the first one is named": (
        {
            0: dump([_sub(1, done=False)], TENSOR),  # in group 1, which waits for rank 1
            1: dump([], TENSOR),
            2: dump([call("all_reduce", 1, done=False)]),
            3: dump([call("all_reduce", 1, done=False)]),
        },
        (("did_not_arrive", (1,), True),),
    ),
    "a send without its receiver": (
        {
            0: dump([call("send 0->1", 1, done=False)]),
            **dict.fromkeys((1, 2, 3), dump([])),
        },
        (("did_not_arrive", (1,), True),),
    ),
    "a receive whose sender is there": (
        {
            0: dump([call("send 0->1", 1, done=False)]),
            1: dump([call("recv 1<-0", 1, done=False)]),
            **dict.fromkeys((2, 3), BEHIND),
        },
        (("data_path", (), True),),
    ),
    "calls that were issued as one have the state of their bracket": (
        dict.fromkeys(range(4), dump([*ISSUED_AS_ONE, call("coalesced", 1), call("all_reduce", 2)])),
        (),
    ),
    "a rank that never called the group": (
        {0: ARRIVED, 1: ARRIVED, 2: ARRIVED, 3: dump([])}, (("did_not_arrive", (3,), True),),
    ),
    "a ring that has dropped the group may have held the call": (
        {0: ARRIVED, 1: ARRIVED, 2: ARRIVED, 3: dump([_sub(1, at=BEGIN + 3)], TENSOR | {"1": [2, 3]}, first=5000)},
        (("missing_dump", (3,), False),),
    ),
    "only calls that are not over were written": (
        dict.fromkeys((0, 1, 2), dump([WAITS], first=7)) | {3: dump([], pg_status={"0": {}})},
        (("missing_dump", (3,), False),),
    ),
    "no durations: what is retired is over": (
        {rank: dump([call("nccl2:all_reduce", 1, state="scheduled")]) for rank in range(4)}, (),
    ),
    "no durations, one behind": (
        dict.fromkeys(
            (0, 1, 2),
            dump([call("ncclx:all_reduce", n, state="scheduled", retired=n == 1) for n in (1, 2)]),
        )
        | {3: dump([call("ncclx:all_reduce", 1, state="scheduled")])},
        (("did_not_arrive", (3,), True),),
    ),
    "retired and not completed where others were: given up": (
        dict.fromkeys((0, 1, 2), dump([REDUCE, WAITS | {"retired": True}])) | {3: BEHIND},
        (("did_not_arrive", (3,), True),),
    ),
    "torchcomms: one count of all calls of a rank": (
        {
            0: dump(
                [call("ncclx:send", 5), call("ncclx:all_reduce", 6), call("ncclx:all_reduce", 7, done=False)],
                pg_status={},
            ),
            **dict.fromkeys(
                (1, 2), dump([call("ncclx:all_reduce", 1), call("ncclx:all_reduce", 2, done=False)], pg_status={})
            ),
            3: dump([call("ncclx:all_reduce", 1)], pg_status={}),
        },
        (("did_not_arrive", (3,), True),),
    ),
    "a recorder for each backend": (
        {
            (0, "nccl2"): ARRIVED, (0, "gloo"): dump([call("gloo:barrier", 1, group="5")], {"5": [0, 1, 2, 3]}),
            1: ARRIVED, 2: ARRIVED, 3: BEHIND,
        },
        (("did_not_arrive", (3,), True),),
    ),
    "two dumps of one rank: the later one counts": (
        {(3, "old"): BEHIND, (3, "new"): ARRIVED, 0: ARRIVED, 1: ARRIVED, 2: ARRIVED}, (("data_path", (), True),),
    ),
    "two dumps of one rank that disagree": (
        {(3, "a"): BEHIND, (3, "b"): dump([call("broadcast", 1)]), 0: ARRIVED, 1: ARRIVED, 2: ARRIVED},
        (("missing_dump", (3,), False),),
    ),
    "a dump of an earlier run": (
        {0: ARRIVED, 1: ARRIVED, 2: ARRIVED, 3: dump([call("all_reduce", 1, at=BEGIN - 4000)])},
        (("missing_dump", (3,), False),),
    ),
    "a rank that the job does not have": (
        {0: ARRIVED, 1: ARRIVED, 2: ARRIVED, 3: ARRIVED, 9: BEHIND}, (("data_path", (), True),),
    ),
    "groups of one name that share no rank": (
        {
            0: dump([_sub(1, done=False)], {"1": [0, 1]}), 1: dump([], {"1": [0, 1]}),
            2: dump([_sub(9)], {"1": [2, 3]}), 3: dump([_sub(9)], {"1": [2, 3]}),
        },
        (("did_not_arrive", (1,), True),),
    ),
    "a group that was made again counts from 1": (
        dict.fromkeys((0, 1, 2), dump([call("all_reduce", 7), WAITS | {"collective_seq_id": 1, "pg_id": 4} | LATER]))
        | {3: dump([call("all_reduce", 7)])},
        (("missing_dump", (3,), False),),
    ),
}  # fmt: skip


@in_one_pass("name", CASES)
def test_a_verdict_follows_from_the_calls_of_all_ranks(name: str) -> None:
    dumps, expected = CASES[name]
    found = judged(dumps)
    assert tuple((one.kind, one.ranks, one.is_certain) for one in found.verdicts) == expected, found


def test_a_wait_of_a_moment_is_no_hang() -> None:
    dumps: dict[Any, dict[str, Any]] = {0: ARRIVED, 1: ARRIVED, 2: ARRIVED, 3: BEHIND}
    found = judged(dumps, taken=BEGIN + 2 + 9.9)
    assert not found.verdicts
    assert "no hang yet" in found.notes[0]
    assert judged(dumps, taken=BEGIN + 2 + 10.1).verdicts


def test_a_live_rank_that_does_not_answer_is_named() -> None:
    arrived = condense(parse(json.dumps(ARRIVED).encode()))
    found = judge([RankDump(rank, "", TAKEN, arrived) for rank in (0, 1, 2)], {3: "no answer within 10 s"})
    assert [(one.kind, one.ranks) for one in found.verdicts] == [("unresponsive", (3,))]


@in_one_pass(
    "calls, problem",
    [
        ([call("all_reduce", 1), call("all_reduce", 3)], "call 3 follows call 1"),
        ([call("all_reduce", 2), call("all_reduce", 1)], "call 1 follows call 2"),
        ([call("all_reduce", 1), call("all_reduce", 2), call("all_reduce", 2)], "call 2 is there twice"),
        ([call("all_reduce", 1), call("all_reduce", 2, at=BEGIN - 60)], "older than the one before"),
        ([call("all_reduce", 1), call("all_reduce", 2, process_group=("7", ""))], "two names"),
        ([call("all_reduce", 1, is_p2p=True)], "both a all_reduce and a send"),
        ([call("no operation", 1)], "is no operation"),
        ([call("\x1b[31mnccl:x", 1)], "is no operation"),
        (
            [call("all_reduce", 1, frames=[{"name": "broadcast", "filename": "x/distributed_c10d.py", "line": 1}])],
            "made it",
        ),
    ],
)
def test_a_dump_that_contradicts_itself_is_left_out(calls: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(NoDump, match=problem):
        condense(parse(json.dumps(dump(calls)).encode()))
