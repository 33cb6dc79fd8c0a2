"""Watched folders of dumps: which are read, when they are judged, and what is counted."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from commwatch.config.settings import FlightRecorderSection
from commwatch.jobs.flight_recorder import files, source
from commwatch.jobs.flight_recorder.files import find_all, series_of
from commwatch.jobs.flight_recorder.report import COLLECTOR, JobVerdicts
from commwatch.jobs.flight_recorder.source import NEW_SECONDS, FlightRecorderSource
from commwatch.readings import Batch
from support.flight_recorder import dump, pickled, place


class Folder:
    """A folder that a source watches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1.9e9
        (folder / "new").mkdir()
        self.source = FlightRecorderSource([str(folder), "/nowhere"], clock=lambda: self.now)

    def put(self, case: str, name: str = "trace_rank_") -> None:
        self.now += 1
        for path in place(self.folder / "new", case, self.now).iterdir():
            path.rename(self.folder / f"{name}{path.name[-1]}")

    def run(self) -> Batch:
        return self.source.collect(COLLECTOR)

    def verdicts(self) -> list[tuple[str, list[int]]] | None:
        batch = self.run()
        if batch.audit is None:
            return None
        return [(one["verdict"]["kind"], one["verdict"]["ranks"]) for one in msgspec.json.decode(batch.audit)]


def values(batch: Batch) -> dict[str, object]:
    (readings,) = batch.readings
    return {
        " ".join((name, *labels)): value for (name, labels), value in zip(readings.series, readings.values, strict=True)
    }


def test_dumps_are_judged_once_when_they_have_stood_for_a_run(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.verdicts() is None
    folder.put("missing")
    assert [folder.verdicts() for _ in range(3)] == [None, [("did_not_arrive", [3])], None]
    counted = values(folder.run())
    assert counted["commwatch_flight_recorder_dumps"] == 4
    assert counted["commwatch_flight_recorder_verdicts_total did_not_arrive"] == 1
    folder.put("deadlock")
    assert [folder.verdicts() for _ in range(2)] == [None, [("deadlock", [0, 1])]]
    assert values(folder.run())["commwatch_flight_recorder_verdicts_total did_not_arrive"] == 1


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_step_of_the_clock_hides_no_dump(tmp_path: Path, step: float) -> None:
    """Neither one that was written before it, nor one after it; none is judged twice."""
    folder = Folder(tmp_path)
    folder.run()
    folder.put("missing")
    folder.now += step
    assert [folder.verdicts() for _ in range(3)] == [None, [("did_not_arrive", [3])], None]
    folder.put("deadlock")
    assert [folder.verdicts() for _ in range(3)] == [None, [("deadlock", [0, 1])], None]


def test_a_dump_that_is_still_written_holds_the_verdict_back(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.run()
    folder.put("missing")
    (tmp_path / "trace_rank_3").write_bytes(b"\x80\x02")
    folder.run()
    folder.put("missing")
    assert folder.verdicts() is None
    assert folder.verdicts() == [("did_not_arrive", [3])]


def test_two_jobs_of_one_user_are_judged_each_by_itself(tmp_path: Path) -> None:
    """Together the dumps of a rank would contradict each other. One that is still written holds its own job back."""
    folder = Folder(tmp_path)
    folder.run()
    folder.put("missing", "first_rank_")
    folder.put("deadlock", "second_rank_")
    (tmp_path / "third_rank_0").write_bytes(b"\x80\x02")
    folder.run()
    (tmp_path / "third_rank_0").write_bytes(b"\x80\x02N")
    batch = folder.run()
    assert batch.audit is not None
    told, here = msgspec.json.decode(batch.audit, type=JobVerdicts), (tmp_path.stat().st_dev, tmp_path.stat().st_ino)
    assert [(one.verdict.kind, one.verdict.ranks, one.series, one.taken) for one in told] == [
        ("deadlock", (0, 1), series_of(here, "second_rank_7"), folder.now),
        ("did_not_arrive", (3,), series_of(here, "first_rank_0"), folder.now - 1),
    ]
    assert {one.owner for one in told} == {os.geteuid()}
    counted = values(folder.run())
    assert counted["commwatch_flight_recorder_verdicts_total metadata_mismatch"] == 0


def test_only_the_rank_may_differ_in_the_names_of_one_job() -> None:
    names = ("trace_rank_3", "trace_rank_12", "x_rank_3", "rank_3", "rank_3.json", "trace_3")
    assert len({series_of((1, 2), one) for one in names}) == len(names) - 1
    assert series_of((1, 2), "rank_3") != series_of((1, 3), "rank_3")


def test_a_time_that_no_file_has_costs_no_verdict(tmp_path: Path) -> None:
    """The owner of a file sets it."""
    folder = Folder(tmp_path)
    folder.run()
    folder.put("missing")
    for path in tmp_path.glob("trace*"):
        os.utime(path, (0, 1e12))
    folder.run()
    batch = folder.run()
    assert batch.audit is not None
    assert [one.verdict.ranks for one in msgspec.json.decode(batch.audit, type=JobVerdicts)] == [(3,)]


def test_what_lay_there_long_before_the_first_run_is_not_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("missing")
    folder.now += NEW_SECONDS + 100
    assert [folder.verdicts() for _ in range(3)] == [None] * 3
    folder.put("missing")
    assert [folder.verdicts() for _ in range(2)] == [None, [("did_not_arrive", [3])]]


def test_a_file_that_is_no_dump_is_counted_and_costs_no_other(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.run()
    folder.put("missing")
    (tmp_path / "rank_9").write_bytes(b"\x80\x02cos\nsystem\n.")
    with (tmp_path / "rank_8").open("wb") as sparse:
        sparse.truncate(2**40)
    os.mkfifo(tmp_path / "rank_7")
    folder.run()
    assert folder.verdicts() == [("did_not_arrive", [3])]
    assert values(folder.run())["commwatch_flight_recorder_unread_dumps"] == 1


def test_a_path_begins_at_the_root() -> None:
    with pytest.raises(ValueError, match="'dumps' does not begin with /; name folders from the root"):
        FlightRecorderSection(paths=("dumps",))


def test_a_file_that_goes_while_its_folder_is_listed_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with os.scandir(place(tmp_path, "missing")) as listed:
        gone = next(listed).path
    lstat = os.lstat

    def without(path: str) -> os.stat_result:
        if path == gone:
            raise FileNotFoundError(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", without)
    assert len(find_all([str(tmp_path)])[0]) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
@pytest.mark.parametrize("others", [3, 4, 9])
def test_the_dumps_of_another_user_hide_none(tmp_path: Path, others: int) -> None:
    """However many there are, and whatever they say of the same ranks: each user's are judged by themselves."""
    folder = Folder(tmp_path)
    folder.run()
    folder.put("deadlock")
    for path in tmp_path.glob("trace*"):
        path.rename(tmp_path / f"other_{path.name}")
    for number in range(4, others):
        (tmp_path / f"rank_{number}").write_bytes(b"none")
    (tmp_path / "other_trace_rank_3").unlink() if others < 4 else None
    for path in tmp_path.glob("*rank*"):
        os.chown(path, 1001, -1)
    folder.put("missing")
    folder.run()
    runs = [folder.verdicts() or () for _ in range(3)]  # a run that takes long leaves a user to the next one
    assert ("did_not_arrive", [3]) in [one for run in runs for one in run]


def test_the_dumps_of_an_older_job_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, so that the rest names no rank for want of the others; they count as unread, and stay so."""
    folder = Folder(tmp_path)
    folder.run()
    folder.put("missing", "first_rank_")
    assert [folder.verdicts() for _ in range(2)] == [None, [("did_not_arrive", [3])]]
    folder.put("deadlock", "second_rank_")
    monkeypatch.setattr(source, "MOST_MEMORY", 30_000)
    assert [folder.verdicts() for _ in range(3)] == [None, [("deadlock", [0, 1])], None]
    counted = values(folder.run())
    assert counted["commwatch_flight_recorder_dumps"] == 4
    assert counted["commwatch_flight_recorder_unread_dumps"] == 4


def test_the_dumps_of_one_job_have_a_bound_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files can take much memory: here each lists 10,000 ranks of its own. What was read first stays."""
    monkeypatch.setattr(source, "MOST_MEMORY", 2**20)
    folder = Folder(tmp_path)
    folder.run()
    for number in range(10):
        ranks = list(range(number, number + 10_000))
        (tmp_path / f"trace_rank_{number}").write_bytes(pickled(dump([], {"0": ranks})))
    for _ in range(4):
        found = values(folder.run())
        assert found["commwatch_flight_recorder_dumps"] in (0, 1, 2)
    assert found["commwatch_flight_recorder_unread_dumps"] == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_the_many_files_of_a_user_push_out_none_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is that of each user, and the files are read in turn."""
    monkeypatch.setattr(files, "MOST_FILES", 6)
    monkeypatch.setattr(source, "BUSY_SECONDS", 0.0)
    folder = Folder(tmp_path)
    folder.run()
    folder.put("missing")
    for number in range(100):
        path = tmp_path / f"other_{number}"
        path.write_bytes(b"none")
        os.utime(path, (folder.now + 10, folder.now + 10))
        os.chown(path, 1001, -1)
    found, notes = find_all([str(tmp_path)])
    assert len(found) == 6 + 4
    assert notes == ["94 older files are left out: 6 of a user are read at most."]
    for _ in range(8):
        folder.run()
    assert folder.verdicts() == [("did_not_arrive", [3])]
