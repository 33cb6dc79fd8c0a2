"""Files that are no dumps, or mean harm: refused, quickly and in little memory, and no rank is named by them."""

from __future__ import annotations

import os
import pickle
import pickletools
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.jobs.flight_recorder import files, reading
from commwatch.jobs.flight_recorder.dump import parse
from commwatch.jobs.flight_recorder.files import find_files, rank_of
from commwatch.jobs.flight_recorder.pickle_walk import NoDump, walk
from commwatch.jobs.flight_recorder.reading import read_dumps, read_file
from commwatch.jobs.flight_recorder.recording import condense
from commwatch.jobs.flight_recorder.verdict import RankDump, judge
from support.examples import examples
from support.flight_recorder import GLOO, TAKEN, call, dump, pickled
from support.passes import in_one_pass

HEAD = b"\x80\x02"
RANK_0 = (GLOO / "missing/rank_0").read_bytes()
ZOO = {
    "GLOBAL and REDUCE": HEAD + b"cos\nsystem\n(X\x04\x00\x00\x00truetR.",
    "INST": HEAD + b"(X\x04\x00\x00\x00truei os\nsystem\n.",
    "OBJ": HEAD + b"(cos\nsystem\nX\x04\x00\x00\x00trueo.",
    "EXT1": HEAD + b"\x82\x01.",
    "PERSID": HEAD + b"Pfile\n.",
    "BINPERSID": HEAD + b"NQ.",
    "BUILD": HEAD + b"}}b.",
    "NEWOBJ": HEAD + b"N)\x81.",
    "STACK_GLOBAL": b"\x80\x04X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93.",
    "FRAME": HEAD + b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "BYTEARRAY8": HEAD + b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "LONG4": HEAD + b"\x8b\xff\xff\xff\x7f.",
    "a memo of 2^32": HEAD + b"Nr\xff\xff\xff\xff.",
    "a memo of 2^27": HEAD + b"]r\x00\x00\x00\x08.",
    "lists within each other": HEAD + b"]" * 200_000 + b"a" * 199_999 + b".",
    "open marks": HEAD + b"(" * 100 + b".",
    "pushes without end": HEAD + b"N" * 200_000,
    "a list of itself": HEAD + b"]q\x00h\x00a.",
    "a dictionary of itself": HEAD + b"}q\x00X\x01\x00\x00\x00ah\x00s.",
    "a dictionary that grows after it was used twice": HEAD
    + b"}(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.4X\x01\x00\x00\x00a}q\x00X\x01\x00\x00\x00bK\x01s"
    + b"X\x01\x00\x00\x00ch\x00X\x01\x00\x00\x00dh\x00X\x01\x00\x00\x00eK\x01su.",
    "a list that is used twice": HEAD + b"]]q\x00N" + b"ah\x00" * 2 + b"e.",
    "a text of 4 GB": HEAD + b"X\xff\xff\xff\xff.",
    "a text that is no UTF-8": HEAD + b"X\x02\x00\x00\x00\xc3\x28.",
    "two ends": HEAD + b"N..",
    "two values": HEAD + b"NN.",
    "an end without a value": HEAD + b".",
    "a key that is no text": HEAD + b"}NNs.",
    "no pickle": b"GET / HTTP/1.1\r\n\r\n",
    "nothing": b"",
    "JSON of lists": b"[" * 100_000,
    "JSON of another thing": b'{"version": 2, "entries": {}}',
    "JSON with more": b'{"version": "2.10"} {"version": "2.10"}',
    "a later major version": pickled(dump([], version="3.0")),
    "too many calls": pickled(dump([]) | {"entries": [[]] * 50_001}),
}


def test_a_text_that_calls_share_is_not_multiplied() -> None:
    """A pickle names it once for all of them, and needs no more space for it."""
    frame = {"name": "n" * 2**16, "filename": "/" + "f" * 60_000 + "/train.py", "line": 7}
    calls = [call("all_reduce", number, done=False, frames=[frame] * 16) for number in range(1, 30)]
    (group,) = condense(parse(pickled(dump(calls)))).groups
    assert sum(len(one) for step in group.steps for one in step.frames) < 29 * 16 * 600
    assert group.steps[0].frames[0].endswith("/train.py:7")


def test_ranks_that_many_groups_share_are_refused_where_they_are_too_many() -> None:
    config = {"name": "", "desc": "", "ranks": str(list(range(10_000)))}
    for groups, is_refused in ((50, False), (100, True)):
        value = dump([]) | {"pg_config": {str(one): config for one in range(1, groups + 1)}}
        with pytest.raises(NoDump, match="more ranks than a job") if is_refused else nullcontext():
            assert len(condense(parse(pickled(value))).groups) == groups


@pytest.mark.parametrize("encode", [pickled, msgspec.json.encode])
def test_a_group_of_many_ranks_is_read(encode: Callable[[Any], bytes]) -> None:
    """Its list has 118 kB; the limit is 1 MiB, which is more ranks than any job has."""
    waits = condense(parse(encode(dump([call("barrier", 1, done=False)], {"0": list(range(20_000))}))))
    (found,) = judge([RankDump(0, "", TAKEN, waits)]).verdicts
    assert (found.kind, found.ranks[-1]) == ("missing_dump", 19_999)
    with pytest.raises(NoDump, match=r"a text of|not of the form"):
        parse(encode(dump([], {"0": list(range(150_000))})))


@in_one_pass("name", ZOO)
def test_what_is_no_dump_is_refused(name: str) -> None:
    with pytest.raises(NoDump):
        parse(ZOO[name])


def test_a_good_dump_has_the_value_that_an_unpickler_gives_it() -> None:
    for path in GLOO.glob("*/rank_*"):
        data = path.read_bytes()
        assert walk(data) == pickle.loads(data)  # noqa: S301 - our own file


def test_a_dump_that_is_cut_anywhere_is_refused() -> None:
    for end in range(0, len(RANK_0), 11):
        with pytest.raises(NoDump):
            parse(RANK_0[:end])


def test_a_flipped_byte_names_no_rank_that_is_not_at_fault() -> None:
    """Every thirteenth byte of a rank that waits; ``benchmarks.flight_recorder`` flips every bit of all."""
    others = [
        RankDump(rank, "", 1.9e9, condense(parse((GLOO / f"missing/rank_{rank}").read_bytes()))) for rank in (1, 2, 3)
    ]
    for place in range(0, len(RANK_0), 13):
        data = bytearray(RANK_0)
        data[place] ^= 1 << place % 8
        try:
            dumps = [*others, RankDump(0, "", 1.9e9, condense(parse(bytes(data))))]
        except NoDump:
            dumps = others
        named = {rank for one in judge(dumps).verdicts for rank in one.ranks}
        assert named <= {0, 3}, place
        assert not any(0 in one.ranks for one in judge(dumps).verdicts if one.kind != "missing_dump"), place


OPCODES = [one for one in pickletools.opcodes if one.arg is None or one.arg.n > 0]


@given(st.lists(st.tuples(st.sampled_from(OPCODES), st.binary(min_size=8, max_size=8)), max_size=40))
@examples(60)
def test_any_opcodes_end_in_a_value_or_in_a_refusal(steps: list[tuple[pickletools.OpcodeInfo, bytes]]) -> None:
    body = b"".join(
        one.code.encode("latin-1") + (data[: one.arg.n] if one.arg is not None else b"") for one, data in steps
    )
    with suppress(NoDump):
        walk(HEAD + body)


@given(st.binary(max_size=200))
@examples(200)
def test_any_bytes_end_in_a_dump_or_in_a_refusal(data: bytes) -> None:
    for head in (HEAD, b"{", b""):
        with suppress(NoDump):
            parse(head + data)


@in_one_pass(
    "name, rank",
    [
        ("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_12_nccl2", 12), ("rank7.json", 7), ("trace_5", 5),
        ("rank_3.pickle", 3), ("job.log", None), ("rank_9999999", None), ("rank", None),
    ],
)  # fmt: skip
def test_the_rank_stands_in_the_name(name: str, rank: int | None) -> None:
    assert rank_of(f"/x/{name}") == rank


def test_only_regular_files_of_one_owner_and_of_a_size_are_read(tmp_path: Path) -> None:
    for rank in range(4):
        shutil.copy(GLOO / f"missing/rank_{rank}", tmp_path / f"trace_rank_{rank}")
    os.mkfifo(tmp_path / "trace_rank_4")
    (tmp_path / "trace_rank_5").symlink_to("/etc/passwd")
    with (tmp_path / "trace_rank_6").open("wb") as sparse:
        sparse.truncate(2**40)
    (tmp_path / "trace_rank_7").write_bytes(RANK_0[:700])
    shutil.copy(GLOO / "missing/rank_0", tmp_path / "trace_rank_8")
    os.chown(tmp_path / "trace_rank_8", 12345, 12345)
    found, notes = find_files([str(tmp_path)])
    dumps, left_out = read_dumps(found)
    assert sorted(one.rank for one in dumps) == [0, 1, 2, 3]
    told = "\n".join([*notes, *left_out])
    for part in ("rank_4 is left out: it is no", "rank_5 is left out: it is a link", "rank_6 is left out: it has 1,099",
                 "rank_7 left out: cut off", "rank_8 left out: user 0 owns"):  # fmt: skip
        assert part in told


def test_of_ten_thousand_files_those_that_were_written_last_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 50)
    for number in range(1000):
        (tmp_path / f"rank_{number}").touch()
        os.utime(tmp_path / f"rank_{number}", (number, number))
    found, notes = find_files([str(tmp_path)])
    assert [rank_of(one.path) for one in found] == list(range(999, 949, -1))
    assert "950 older files" in notes[0]


@pytest.mark.parametrize("name", ["", "rank_*"])
def test_of_any_number_of_files_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In a folder of all, anyone can make them; also where a pattern leads there."""
    monkeypatch.setattr(files, "MOST_NAMES", 50)
    for number in range(100):
        (tmp_path / f"rank_{number}").touch()

    assert len(find_files([str(tmp_path / name)])[0]) == 50


def test_a_file_that_is_rewritten_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(RANK_0)
    real = files.file_of

    def rewritten(name: str, status: os.stat_result) -> files.DumpFile:
        path.write_bytes(RANK_0 + b" ")
        return real(name, status)

    monkeypatch.setattr(reading, "file_of", rewritten)
    with pytest.raises(NoDump, match="it is being written"):
        read_file(str(path))


def test_one_file_that_is_too_much_for_the_child_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ends at its limit of time; another one goes on behind this file."""
    monkeypatch.setattr(reading, "MOST_SECONDS", -1.0)
    for rank in (0, 1):
        shutil.copy(GLOO / f"missing/rank_{rank}", tmp_path / f"rank_{rank}")
    _, left_out = read_dumps(find_files([str(tmp_path)])[0])
    assert left_out == [f"{tmp_path}/rank_0, {tmp_path}/rank_1 left out: reading it takes more than 10 s or 512 MiB."]


def test_dumps_of_two_owners_in_equal_number_are_not_guessed(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}").write_bytes(pickled(dump([call("all_reduce", 1)])))
    os.chown(tmp_path / "rank_1", 12345, 12345)
    found, notes = find_files([str(tmp_path)])
    assert not found
    assert "own 1 files each" in notes[0]
