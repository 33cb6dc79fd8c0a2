"""commwatch diagnose --flight-recorder and flight-recorder convert, over files and over live processes."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest

from commwatch.__main__ import main
from commwatch.jobs.flight_recorder import worker_server
from commwatch.jobs.flight_recorder.dump import parse
from commwatch.jobs.flight_recorder.worker_server import NoServer, Unresponsive, ask, rank_and_socket
from support.flight_recorder import BEGIN, GLOO, call, dump, pickled, place


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def test_the_verdict_is_printed_with_its_rank_and_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("diagnose", "--flight-recorder", str(place(tmp_path, "missing")))
    code, text = said(capsys, *names)
    assert code == 1
    assert text.startswith(
        "Verdict: did not arrive\n  rank 3 did not call all_reduce 6 of group 0 (default_pg), in which"
    )
    assert "next: Find out what these ranks do" in text
    assert "train.py" not in text
    assert "/opt/job/train.py:26" in said(capsys, *names, "--frames")[1]


def test_json_holds_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "diagnose", "--flight-recorder", str(place(tmp_path, "mismatch")), "--json")
    (verdict,) = json.loads(text)["verdicts"]
    assert (code, verdict["kind"], verdict["ranks"], verdict["sequence_number"]) == (1, "metadata_mismatch", [2], 6)


def test_dumps_in_which_nothing_waits_are_ok_and_none_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank_0").write_bytes(pickled(dump([])))
    assert said(capsys, "diagnose", "--flight-recorder", str(tmp_path))[0] == 0
    (tmp_path / "rank_0").write_bytes(b"\x80\x02cos\nsystem\n.")
    code, text = said(capsys, "diagnose", "--flight-recorder", str(tmp_path))
    assert code == 3
    assert "rank_0 left out: opcode 0x63, which no dump has, at byte 2." in text


def _unreadable(folder: Path) -> None:
    (folder / "rank_1").write_bytes(b"none")


def _link(folder: Path) -> None:
    (folder / "rank_1").symlink_to("rank_0")


def _contradicting(folder: Path) -> None:
    for name, operation in (("a_rank_1", "all_reduce"), ("b_rank_1", "barrier")):
        (folder / name).write_bytes(pickled(dump([call(operation, 1)])))


def _of_another_group(folder: Path) -> None:
    calls = [call("barrier", 1), call("barrier", 2, done=False)]
    (folder / "rank_1").write_bytes(pickled(dump(calls, {"0": [0, 1, 2, 3, 4]})))


def _of_an_earlier_run(folder: Path) -> None:
    (folder / "rank_1").write_bytes(pickled(dump([call("barrier", 1, at=BEGIN - 900)])))


@pytest.mark.parametrize(
    ("change", "code"),
    [(_unreadable, 3), (_link, 3), (_contradicting, 3), (_of_another_group, 3), (_of_an_earlier_run, 0)],
)
def test_it_is_not_ok_where_a_dump_could_not_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], code: int
) -> None:
    """Its rank may wait. What an earlier run left is no dump of this one."""
    (tmp_path / "rank_0").write_bytes(pickled(dump([call("barrier", 1)])))
    change(tmp_path)
    found, text = said(capsys, "diagnose", "--flight-recorder", str(tmp_path))
    words = {0: "OK: no operation waits", 3: "Unknown: not all dumps can be used and compared"}
    assert (found, text.startswith(words[code])) == (code, True)
    assert "note: " in text
    _, answer = said(capsys, "diagnose", "--flight-recorder", str(tmp_path), "--json")
    assert json.loads(answer)["is_complete"] is (code == 0)


def test_a_verdict_is_one_whatever_else_could_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _unreadable(place(tmp_path, "missing"))
    assert said(capsys, "diagnose", "--flight-recorder", str(tmp_path))[0] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--flight-recorder", "/nowhere/rank_0"), "No such file or directory; name dumps, a folder"),
        (("--frames",), "--frames: for --flight-recorder only"),
        (("--flight-recorder", "x", "--log", "y"), "do not go together"),
        (("--flight-recorder", "4194304999"), "4194304999 left out: it does not exist"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "diagnose", *arguments)
    assert code in (2, 3)
    assert problem in text


def test_a_name_that_moves_the_cursor_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "\x1b[2Jrank_1").write_bytes(b"no dump")
    assert "\x1b" not in said(capsys, "diagnose", "--flight-recorder", str(tmp_path))[1]


def test_a_converted_dump_holds_what_the_pickle_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = GLOO / "missing/rank_3", tmp_path / "rank_3.json"
    assert said(capsys, "flight-recorder", "convert", str(source), str(target))[0] == 0
    assert parse(target.read_bytes()) == msgspec.structs.replace(parse(source.read_bytes()), rank=3)
    assert target.stat().st_mode & 0o777 == 0o600
    code, text = said(capsys, "flight-recorder", "convert", str(GLOO / "../test_command.py"), str(tmp_path / "x.json"))
    assert (code, "neither a pickle of torch nor JSON; expected a dump" in text) == (2, True)


# --- live processes ---


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def worker(folder: Path, answers: dict[str, tuple[int, bytes]], hangs: threading.Event | None = None) -> Iterator[Path]:
    """A worker server like torch's, in this process, and its place in a process table."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if hangs is not None:
                hangs.wait(30)
            status, body = answers.get(self.path.removeprefix("/handler/"), (404, b"not found"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """It has no terminal."""

    process = folder / str(os.getpid())
    process.mkdir()
    (process / "root").symlink_to("/")
    (process / "cwd").symlink_to(folder)
    (process / "environ").write_bytes(b"RANK=3\0TORCH_WORKER_SERVER_SOCKET=worker.sock\0SECRET=x\0")
    with _Server(str(folder / "worker.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield folder
        finally:
            server.shutdown()
            thread.join()


def test_a_live_process_is_asked_for_each_of_its_recorders(tmp_path: Path) -> None:
    body = (GLOO / "rank_3.json").read_bytes()
    with worker(tmp_path, {"fr_trace_json": (200, body), "dump_nccl_trace_json": (200, b"{}")}) as procfs:
        rank, path = rank_and_socket(os.getpid(), procfs)
        assert (rank, list(ask(os.getpid(), path))) == (3, [b"{}", body])


def test_another_process_at_the_socket_is_asked_nothing(tmp_path: Path) -> None:
    with worker(tmp_path, {}) as procfs:
        _, path = rank_and_socket(os.getpid(), procfs)
        with pytest.raises(NoServer, match="listens there, not 1; nothing is asked"):
            list(ask(1, path))


def test_a_socket_without_its_server_makes_no_process_unresponsive(tmp_path: Path) -> None:
    """The file is there when an earlier process with this path has ended."""
    with socket.socket(socket.AF_UNIX) as earlier:
        earlier.bind(str(tmp_path / "worker.sock"))
    with pytest.raises(NoServer, match="nothing listens there"):
        list(ask(os.getpid(), tmp_path / "worker.sock"))


def test_a_process_that_does_not_answer_is_unresponsive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_server, "SECONDS", 0.05)
    goes_on = threading.Event()
    with worker(tmp_path, {}, goes_on) as procfs:
        _, path = rank_and_socket(os.getpid(), procfs)
        with pytest.raises(Unresponsive, match="no answer within"):
            list(ask(os.getpid(), path))
        goes_on.set()


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (b"RANK=1\0", "without TORCH_WORKER_SERVER_SOCKET"),
        (b"TORCH_WORKER_SERVER_SOCKET=/s\0RANK=-1\0", "without RANK"),
    ],
)
def test_a_process_that_cannot_be_asked_says_why(tmp_path: Path, environment: bytes, problem: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/environ").write_bytes(environment)
    (tmp_path / "7/cwd").symlink_to("/")
    with pytest.raises(NoServer, match=problem):
        rank_and_socket(7, tmp_path)
