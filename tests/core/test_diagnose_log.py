"""commwatch diagnose --log: what logs say happened first, as text and as JSON, whatever the files hold."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest

from commwatch.commands.diagnose_log import answer_from, run_log
from commwatch.errors import UsageError

TIMEOUT = (
    "[rank{rank}]:[E302 12:10:01.061 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=78, OpType=BROADCAST, Timeout(ms)=600000) ran for 600096 milliseconds before timing "
    "out.\n"
)
JOB = (
    "NCCL version 2.27.3+cuda12.9\n"
    "node7:41:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    "step 1 loss 2.31\r step 2 loss 2.30\n"
    "[2026-03-02 12:00:01] node7:43:79 [2] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer "
    "10.2.0.5<33092> with status=12 opcode=129 len=524288 vendor err 129\n"
    + "".join(TIMEOUT.format(rank=rank) for rank in (0, 1, 3))
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "job.log"
    file.write_text(JOB, newline="")
    return file


def printed(capsys: pytest.CaptureFixture[str], *names: object) -> tuple[int, str]:
    code = run_log([str(name) for name in names], as_json=False)
    return code, capsys.readouterr().out


def test_what_is_put_in_the_place_of_a_log_is_not_opened(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes the logs of a job may put a pipe or a device there, after it was looked at."""

    answer_from([str(log)])  # all is imported now
    real = os.path.realpath

    def swapped(path: str) -> str:
        log.unlink()
        log.symlink_to("/dev/null")
        return real(path)

    monkeypatch.setattr(os.path, "realpath", swapped)
    with pytest.raises(UsageError, match="no regular file"):
        answer_from([str(log)])


def test_the_first_cause_is_said_in_plain_words(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When, what, where it stands, what came of it, and what to do."""
    code, out = printed(capsys, log)

    assert code == 1
    assert out.splitlines() == [
        "1 log, 7 lines, 4 of them of trouble",
        "",
        "What happened first, 2026-03-02 12:00:01: An RDMA transfer was given up, because the other end never "
        "answered.",
        f"  {log}:4, host node7, names 10.2.0.5",
        "    transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<33092> with status=12 "
        "opcode=129 len=524288 vendor err 129",
        "  lines beside ib_retry (1): timeout 3",
        "  side: network",
        "  next: Look whether the peer had ended before; if not, at cable, switch and route between the two, on RoCE "
        "also at GID index, MTU and flow control.",
    ]


def test_json_has_the_same(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under a schema with a version."""
    assert run_log([str(log)], as_json=True) == 1
    answer = json.loads(capsys.readouterr().out)

    assert answer["schema"] == "commwatch-log/1"
    assert answer["logs"] == [{"name": str(log), "lines": 7, "told": 4, "is_cut": False}]
    (incident,) = answer["incidents"]
    assert (incident["category"], incident["side"], incident["line"], incident["certain"]) == (
        "ib_retry", "network", 4, True,
    )  # fmt: skip
    assert incident["counts"] == {"ib_retry": 1, "timeout": 3}


@pytest.mark.parametrize(
    ("text", "line", "beside", "asks"),
    [
        (
            "NCCL version 2.21.5+cuda12.8\nfree(): corrupted unsorted chunks\n[n1:63] *** Process received signal ***\n"
            "[n1:63] Signal: Aborted (6)\n",
            3, (2,), True,
        ),
        ("nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n", 1, (), False),
        (
            "[rank1]: cannot read the shard\n[rank1]: Traceback (most recent call last):\n"
            "[rank1]: x.StoreError: key missing\n[rank0]: Traceback (most recent call last):\n"
            "[rank0]: y.FeedError: no batch\n",
            3, (1,), True,
        ),
        (
            "n1:1:2 [0] a.cc:1 NCCL WARN A thing that nobody knows\nunhandled thing failed here\n",
            1, (), False,
        ),
        ("worker 3 failed to start\nn1:1:2 [0] a.cc:1 NCCL WARN A thing that nobody knows\n", 2, (1,), False),
    ],
)  # fmt: skip
def test_an_answer_without_a_cause_names_the_lines_that_may_say_more(
    log: Path, capsys: pytest.CaptureFixture[str], text: str, line: int, beside: tuple[int, ...], asks: bool
) -> None:
    """The first of trouble, NCCL's first warning and the last exception; and how NCCL says more, if it is silent."""
    log.write_text(text)
    _, out = printed(capsys, log)
    incident = answer_from([str(log)]).incidents[0]

    assert (incident.line, tuple(one.line for one in incident.beside)) == (line, beside)
    assert all(f"  see also {log}:{number}\n" in out for number in beside)
    assert ("NCCL_DEBUG=WARN" in incident.next_step) is asks
    assert ("Rank 1 wrote the first line" in incident.next_step) is ("[rank0]" in text)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            "tool: child 7 failed\nmkdir: cannot create directory '/run/x': Permission denied\ntool failed\n",
            2,
            "rights",
        ),
        ("worker failed\nfailed to generate spec: lstat /run/x/nvidiactl: no such file or directory\n", 2, "mounted"),
        ("[rank0]: x.PinError: cannot allocate memory for 4 pages\n", 1, "ulimit -l"),
        ("DistNetworkError: The server did not start.\nname: EADDRINUSE, failed to bind\n", 2, "ss -ltnp"),
        ("write failed: No space left on device\n", 1, "df -h"),
        ("libfoo: error: version 3 of the module does not match the kernel\n", 1, "one release"),
        ("select.c: error: no atomics on this transport: Unsupported operation\n", 1, "switch it off"),
        ("tool: error: invalid thing\n", 1, "before this line"),
        ("[rank0]: KeyError: 'labels'\nopen failed: no such file or directory\n", 1, "traceback"),
        # The program went on after that line, which is then not why it ended.
        (
            "ERROR: checkpoint latest not found, starting from scratch\nsrun: error: n1: task 0: Exited with code 1\n",
            2,
            "before this line",
        ),
        (
            "[ERROR] apex not installed, falling back to torch\nsrun: error: n1: task 0: Exited with code 1\n",
            2,
            "before this line",
        ),
        ("ERROR wandb: service not found; retrying offline\nException: something odd\n", 2, "traceback above"),
    ],
)
def test_general_words_count_where_no_line_names_a_cause(log: Path, text: str, line: int, words: str) -> None:
    """Their line is shown, and a step that its words prove to be one."""
    log.write_text(text)
    incident = answer_from([str(log)]).incidents[0]

    assert incident.line == line
    assert words in incident.next_step
    assert incident.certain == (words in {"ss -ltnp", "df -h", "traceback"})  # of the others a line has the words alone


def test_ranks_that_did_not_give_up_are_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of them is what the others waited for."""
    log.write_text("".join(TIMEOUT.format(rank=rank) for rank in (0, 1, 2, 4, 5)))
    _, out = printed(capsys, log)

    assert "  ranks that do not report it: 3\n" in out
    assert "ranks 0, 1, 2, 4, 5" in out


def test_a_time_without_a_year_is_of_the_year_that_another_line_names(log: Path) -> None:
    """A log that was copied has lost the time at which it was written."""
    os.utime(log, (1.9e9, 1.9e9))
    (incident,) = answer_from([str(log)]).incidents

    assert incident.counts == {"ib_retry": 1, "timeout": 3}


def test_several_logs_are_one_story(tmp_path: Path, log: Path) -> None:
    """A folder stands for the logs in it; the cause is in the log of another rank."""
    (tmp_path / "rank2.log").write_text("2026-03-02 12:00:00,100 INFO step 7\n[rank2]: KeyError: 'labels'\n")
    answer = answer_from([str(tmp_path)])

    (incident,) = answer.incidents
    assert (incident.category, incident.file, incident.line) == ("crash", f"{tmp_path}/rank2.log", 2)
    assert incident.ranks == ("2",)
    assert incident.began is None


def test_a_log_without_trouble_is_said_to_be_one(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And where NCCL wrote nothing at all, why that may be."""
    log.write_text("NCCL version 2.27.3+cuda12.9\nstep 1\n")
    assert printed(capsys, log) == (
        0,
        "1 log, 2 lines, 0 of them of trouble\n"
        f"No errors found. {log}:2 shows work; nothing after it speaks of trouble.\n",
    )
    log.write_text("step 1\n")
    code, out = printed(capsys, log)
    assert code == 0
    assert "NCCL_DEBUG=WARN" in out


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("", "unknown"),
        ("Setting up\n", "unknown"),
        ("Epoch 1:   0%|    | 0/500 [00:00<?, ?it/s]\n", "unknown"),
        ("INFO: cannot find the cache\n", "unknown"),
        ("step 1 loss 2.3\nINFO: cannot reach the other end\n", "unknown"),
        ("step 1 loss 2.3\ncannot reach the other end\n", "trouble"),
        ("cannot reach the cache\nINFO: error\nstep 1 loss 2.3\n", "clear"),
        ("cannot reach the cache\n\rstep 1 loss 2.3\r\n", "clear"),
        ("step 1 loss 2.3\nnode7:4:4 [0] NCCL INFO misc/socket.cc:829 -> 3\n", "trouble"),
        ("step 1 loss 2.3\nworker 3 died\nstep 2 loss 2.3\n", "trouble"),
        ("step 1 loss 2.3, timeout=1800, 0 errors, num_failed: 3, errors: 0\n", "clear"),
        ("Job 17 finished\nprocess exited with code 0\n", "clear"),
    ],
)
def test_an_all_clear_needs_a_sign_of_work_with_no_word_of_trouble_after_it(
    log: Path, text: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is neither is unknown: exit code 3."""
    log.write_text(text, newline="")
    answer = answer_from([str(log)])

    assert answer.verdict == verdict
    assert bool(answer.works) == (verdict == "clear" or text.endswith("step 2 loss 2.3\n"))
    code, out = printed(capsys, log)
    assert code == {"clear": 0, "trouble": 1, "unknown": 3}[verdict]
    assert ("No errors found." in out) == (verdict == "clear")
    assert ("Unknown: " in out) == (verdict == "unknown")


@pytest.mark.parametrize(("text", "code"), [("step 1 loss 2.3\n", 3), ("step 1 loss 2.3\nTraining finished\n", 0)])
def test_a_log_that_just_stops_is_clear_only_while_it_may_still_be_written(log: Path, text: str, code: int) -> None:
    """Ten minutes; a job that ended well needs no more."""
    log.write_text(text)
    assert run_log([str(log)], as_json=True) == 0
    os.utime(log, (time.time() - 601,) * 2)
    assert run_log([str(log)], as_json=True) == code


def test_a_job_that_died_without_a_reason_is_not_clear(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The unknown is called unknown; where any line names more, signs of an end are not asked."""
    end = "Traceback (most recent call last):\nsrun: error: n3: task 0: Exited with exit code 1\n"
    log.write_text(end)
    code, out = printed(capsys, log)

    assert code == 1
    assert "nothing here says why" in out
    assert "side: unknown" in out
    log.write_text(end + JOB)
    (incident,) = answer_from([str(log)]).incidents
    assert incident.counts == {"ib_retry": 1, "timeout": 3}


def test_two_versions_of_nccl_are_seen(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are named, and blamed where nothing else is; without trouble they are no error."""
    versions = "NCCL version 2.18.3+cuda12.2\nNCCL version 2.20.5+cuda12.4\n"
    log.write_text(versions + "step 1\n")
    code, out = printed(capsys, log)
    assert code == 0
    assert "versions of NCCL that wrote here: 2.18.3, 2.20.5; all ranks need the same one" in out

    log.write_text(versions + TIMEOUT.format(rank=0))
    (incident,) = answer_from([str(log)]).incidents
    assert (incident.category, incident.side, incident.certain) == ("version", "config", False)
    assert incident.counts == {"version": 2, "timeout": 1}
    log.write_text(versions + JOB)
    assert answer_from([str(log)]).incidents[0].category == "ib_retry"


def test_a_job_on_amd_is_not_sent_to_an_xid(log: Path) -> None:
    """The kernel writes none there."""
    failure = "node7:41:77 [0] {file}:9 NCCL WARN {failure} failure 719 'unspecified launch failure'\n"
    log.write_text(failure.format(file="/src/rccl/hipify/src/enqueue.cc", failure="HIP"))
    (amd,) = answer_from([str(log)]).incidents
    log.write_text(failure.format(file="enqueue.cc", failure="Cuda"))
    (nvidia,) = answer_from([str(log)]).incidents

    assert (amd.category, nvidia.category) == ("cuda", "cuda")
    assert "amdgpu" in amd.next_step
    assert "Xid" not in amd.next_step
    assert "Xid" in nvidia.next_step


def test_the_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As other commands do with a dash."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(JOB.encode())))
    answer = answer_from(["-"])

    assert answer.logs[0].name == "standard input"
    assert answer.incidents[0].category == "ib_retry"

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"step 1 loss 2.3\n")))
    assert answer_from(["-"]).verdict == "unknown", "nothing tells how old it is"


def test_a_time_out_after_which_the_job_worked_is_no_trouble(log: Path) -> None:
    """It was tried again; one at the end of the log, and one that torch gave up for, stay."""
    step, retried = "step 100 loss 2.3\n", "WARNING:root:Retrying request due to timeout, attempt 1\n"
    for text, verdict in (
        (step + retried + step, "clear"),
        (step + retried, "trouble"),
        (retried + "\n" * 70_000 + step, "clear"),
        (step + "[rank0]:[E1 P.cpp:6] [Rank 0] Watchdog caught collective operation timeout: x\n" + step, "trouble"),
    ):
        log.write_text(text)
        assert answer_from([str(log)]).verdict == verdict, text[:200]


def test_a_name_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    """With the name and the reason; exit code 2."""
    with pytest.raises(UsageError) as caught:
        answer_from([str(tmp_path / "missing.log")])
    assert caught.value.exit_code == 2
    assert str(caught.value) == f"{tmp_path}/missing.log: no log of this name; name logs that can be read"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for name in ("pipe", "empty"):
        with pytest.raises(UsageError, match="neither a file nor a folder with files; what a pipe brings is read as -"):
            answer_from([str(tmp_path / name)])


def test_logs_are_named_as_nccl_names_them(tmp_path: Path) -> None:
    """Of any host and process; a folder has those of all."""
    for name in ("nccl.gpu7.12", "nccl.gpu8.13", "100%.log"):
        (tmp_path / name).write_text("x")

    def names(name: str) -> set[str]:
        return {Path(one.name).name for one in answer_from([f"{tmp_path}/{name}"]).logs}

    assert names("nccl.%h.%p") == names("nccl.*") == {"nccl.gpu7.12", "nccl.gpu8.13"}
    assert names("100%%.log") == {"100%.log"}
    assert len(names("")) == 3


def test_a_pipe_no_one_writes_to_does_not_hold_the_command(tmp_path: Path) -> None:
    """Only regular files are logs."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="name logs that can be read"):
        answer_from([str(tmp_path / "pipe")])


def test_a_log_full_of_trouble_is_cut_and_says_so(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened first is among what was read."""
    monkeypatch.setattr("commwatch.jobs.logs.reading.MOST_EVENTS", 100)
    log.write_text(JOB + "node7:41:77 [0] init.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n" * 150)
    answer = answer_from([str(log)])

    assert answer.logs[0].is_cut
    assert answer.logs[0].told == 100
    assert "so much of it is trouble" in printed(capsys, log)[1]


def test_the_logs_of_all_ranks_of_a_large_job_are_read(tmp_path: Path) -> None:
    """The one rank that does not report a time-out is found among a thousand."""
    for rank in set(range(1024)) - {700}:
        (tmp_path / f"rank_{rank}.log").write_text(
            f"[rank{rank}]:[E a.cpp:683] [Rank {rank}] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=7, OpType=X, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
        )
    (tmp_path / "rank_700.log").write_text("step 100 loss 2.3\n")
    (incident,) = answer_from([str(tmp_path)]).incidents

    assert (len(incident.ranks), incident.silent_ranks) == (1023, ("700",))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00" * 2_000_000, b"NCCL WARN " * 200_000, os.urandom(1_000_000), b"\r" * 2_000_000, b"x" * 5_000_000],
    ids=["empty", "zeros", "marks", "noise", "returns", "one_line"],
)
def test_hostile_files_do_no_harm(log: Path, data: bytes) -> None:
    """Nothing is raised, and work is bounded."""
    log.write_bytes(data)
    started = time.process_time()
    answer_from([str(log)])

    assert time.process_time() - started < 20, "a search that runs away takes minutes"


def test_text_of_a_log_moves_no_cursor(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in a line, or in the name of a file, are shown as question marks."""
    log.write_text("node7:41:77 [0] init.cc:1 NCCL WARN Cuda failure \x1b[2J\x07 'unknown error'\n")
    renamed = log.rename(log.with_name("a\x1b[2Jb.log"))
    _, out = printed(capsys, renamed)

    assert "\x1b" not in out
    assert "Cuda failure ?[2J? 'unknown error'" in out


def test_a_name_that_is_no_text_is_json_too(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its bytes are shown as escapes."""
    log.write_text(JOB)
    renamed = log.rename(log.with_name("\udcff.log"))
    run_log([str(renamed)], as_json=True)

    answer = json.loads(capsys.readouterr().out)
    assert answer["logs"][0]["name"] == answer["incidents"][0]["file"] == f"{log.parent}/\\xff.log"


def test_a_long_line_is_looked_at_and_the_next_one_has_its_number(log: Path) -> None:
    """Line numbers are those of an editor."""
    log.write_text("x" * 3_000_000 + "\nstep\n" + JOB, newline="")
    assert answer_from([str(log)]).incidents[0].line == 6
