"""Commands as root before a daemon that has been taken over, and in a state directory that its user has prepared."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.__main__ import main
from commwatch.config.exit_codes import meanings_of
from commwatch.errors import CommwatchError, ExitCode
from commwatch.findings.api_documents import JobsDocument, SettingsDocument
from commwatch.jobs.evidence import JobRank, SuspectedJob
from commwatch.jobs.settings.records import AuditRecord
from commwatch.state import client
from commwatch.state.client import DaemonAbsent, ask_daemon
from commwatch.state.control import _short_path
from commwatch.state.directory import SOCKET_NAME
from core.test_score_command import answer as score_answer
from health.reports import answering, asked_by, document, said
from support.state_files import SPECIAL_FILES, special_file
from support.waiting import PATIENCE_SECONDS
from top.documents import made

Answer = Callable[[str], Iterable[bytes]]
"""The pieces of the answer to an operation; an empty one: nothing until the other side leaves."""

MOST_BYTES = 2**24
"""Of an answer that a command reads."""
COMMANDS = (
    "score", "score --json", "inventory", "inventory --json", "inventory accept", "top --once", "top --json",
    "diagnose", "diagnose --json", "healthcheck", "healthcheck --json", "healthcheck --slurm",
    "healthcheck --require 7b", "pause", "pause --json", "resume",
)  # fmt: skip
"""Every command that asks the daemon. ``cluster`` and ``check-config`` ask it beside much else."""
A_FEW = ("score", "healthcheck", "healthcheck --slurm", "inventory accept")
"""Enough where the exchange itself fails, which is the same for all: ``REFUSED`` has what each does then."""
DIRTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b\r\nroot#\x00\t\U000e0041"
"""A window's title, a cleared screen, another colour, text that runs backwards, what is not seen, a second line."""
_WORDS = frozenset({"schema", "severity", "role", "word", "type", "because", "name"})
"""Keys whose values are of a closed list, and names of metrics: with another one nothing would be shown."""


def told() -> dict[str, Any]:
    """What an honest daemon answers, by operation."""
    shown = made(("gpu_state", ("0", "0000:17:00.0"), 0.0))
    about = {"version": "1", "time": time.time(), "simulated": None, "maintenance": "rest"}
    findings = document("probe_bandwidth_low", cause="nvlink_down", maintenance="rest")
    verdict = {"word": "Critical", "line": "it is broken", "because": None}
    counts = {"expected": 2, "present": 1, "source": "learned", "learning_seconds": 5}
    answers = {
        "findings": findings | {"verdict": verdict},
        "probes": shown.probes, "snapshot": shown.snapshot,
        "score": score_answer(simulated="h100x8", maintenance="rest") | {"verdict": verdict},
        "jobs": JobsDocument(**about, jobs=(SuspectedJob(90.0, (JobRank(0, "0000:17:00.0", 1, True, 9.0),)),)),  # type: ignore[arg-type]
        "settings": SettingsDocument(**about, audited_at=time.time(), audit=AuditRecord()),  # type: ignore[arg-type]
        "inventory": {"kinds": {"gpu": counts}, "missing": ["GPU1 is missing"], "given_up": ["GPU1"]},
        "inventory-accept": {"kinds": {"gpu": counts}, "missing": ["GPU1 is missing"], "given_up": ["GPU1"]},
        "maintenance": {"daemon": True, "paused": "maintenance", "released": False, "held": {"7": ["/dev/nvidia0"]}},
    }  # fmt: skip
    return {name: json.loads(msgspec.json.encode(one)) for name, one in answers.items()}


def changed(value: Any, change: Callable[[Any], Any], key: str = "") -> Any:
    """A document whose values are changed, those of closed lists excepted."""
    if isinstance(value, dict):
        return {name: changed(one, change, name) for name, one in value.items()}
    if isinstance(value, list):
        return [changed(one, change) for one in value]
    return value if key in _WORDS else change(value)


def saying(change: Callable[[Any], Any]) -> Answer:
    """An answer that is right but for this change to all of it."""
    return lambda operation: [json.dumps(change(told()[operation]), ensure_ascii=False).encode()]


def once(content: bytes) -> Answer:
    """These bytes, and the end."""
    return lambda operation: [content]


def endless(first: bytes, again: bytes, every: float = 0.0) -> Answer:
    """The first bytes, and then others without end."""

    def answer(operation: str) -> Iterator[bytes]:
        yield first
        while True:
            time.sleep(every)
            yield again

    return answer


def numbers(number: Any) -> Answer:
    """Each number is this one."""
    return saying(lambda answer: changed(answer, lambda one: number if type(one) in (int, float) else one))


SHOWN = {
    "raw escape sequences": saying(lambda answer: changed(answer, lambda one: DIRTY if isinstance(one, str) else one)),
    "raw keys": saying(lambda answer: answer | {f"{DIRTY}{name}": one for name, one in answer.items()}),
    "an error in escape sequences": saying(lambda answer: {"error": DIRTY}),
    "an error that is none": saying(lambda answer: {"error": [DIRTY, {DIRTY: 1}]}),
    "a text of a million characters": saying(
        lambda answer: changed(answer, lambda one: "x" * 100_000 if isinstance(one, str) else one)
    ),
}
"""What may be shown, in part."""
REFUSED = {
    "nothing": lambda operation: [],
    "an empty object": once(b"{}"),
    "other types": saying(lambda answer: {name: [1] for name in answer}),
    "texts for all": saying(lambda answer: dict.fromkeys(answer, "x")),
    "400 digits": numbers(10**400),
}
"""What is no answer, tried with every command."""
REFUSED_UNSEEN = {
    "no JSON": once(b"<html>\x1b[2J"),
    "no object": once(b'["\x1b[2J"]'),
    "null": once(b"null"),
    "no UTF-8": once(b'{"error": "\xff"}'),
    "half a surrogate pair": once(b'{"error": "\\ud800"}'),
    "a surrogate in UTF-8": once(b'{"error": "\xed\xa0\x80"}'),
    "lists without end": once(b'{"missing":' + b"[" * 100_000),
    "objects without end": once(b'{"a":' * 100_000),
    "beyond a float": once(b'{"missing": 1e400}'),
    "5000 digits": once(b'{"missing": 1' + b"0" * 5000 + b"}"),
    "a million entries": once(b'{"findings": [' + b'"\x1b",' * 10**6 + b"0]}"),
}
"""What is no answer of any operation."""
NO_HTTP = {
    "nothing": lambda operation: [],
    "half a status line": once(b"HTTP/1.1 2"),
    "another protocol": once(b"SSH-2.0-\x1b[2J\r\n"),
    "a status that is none": once(b"HTTP/1.1 \x1b]0;owned\x07 OK\r\n\r\n"),
    "a line without end": endless(b"HTTP/1.1 200 ", b"x" * 2**16),
    "headers without end": endless(b"HTTP/1.1 200 OK\r\n", b"x: \x1b[2J\r\n"),
    "chunks that are none": once(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\x1b[2J\r\n"),
    "less than it says": once(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"error":'),
    "more than there is": once(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n{}"),
    "a redirect": once(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
}
"""What no server says."""
SLOW = {"silence": once(b""), "a byte now and then": endless(b'{"error":"', b"x", every=0.02)}
ENDLESS = {
    "a text without end": endless(b'{"error":"', b"x" * 2**20),
    "blanks without end": endless(b" ", b" " * 2**20),
    "entries without end": endless(b'{"missing":[{}', b",{}" * 2**18),
}
EXTREME = {
    f"every number {number:g}": numbers(number) for number in (-1, 0, 1, 2**63, 1e29, -1e29, 1e-300, 1e308)
}  # fmt: skip


class Hostile:
    """A state directory at whose socket an enemy answers, and root's commands."""

    def __init__(self, state: Path, answer: Answer, *, is_http: bool) -> None:
        self.state = state
        self._head = [said(b"")] if is_http else []
        self.most_sent = 0
        """Bytes of an answer that a command took, with what the kernel keeps for it."""
        self._answer = answer

    def answer(self, connection: socket.socket) -> None:
        """Answer one request."""
        pieces = self._answer(asked_by(connection))
        sent = 0
        with contextlib.suppress(OSError):
            for piece in itertools.chain(self._head, pieces):
                if not piece:
                    connection.recv(1)
                left = memoryview(piece)
                while left:
                    count = connection.send(left)
                    sent += count
                    self.most_sent = max(self.most_sent, sent)
                    left = left[count:]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer, float], Hostile]]:
    """An enemy who answers so; commands wait so many seconds for each answer."""
    for name in ("COMMWATCH_SIMULATE", "COMMWATCH_PATH_STATE", "COMMWATCH_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.ExitStack() as stack:

        def play(answer: Answer, seconds: float = PATIENCE_SECONDS / 4, *, is_http: bool = True) -> Hostile:
            asked = client._asked
            monkeypatch.setattr(
                client,
                "_asked",
                lambda state, method, operation, body, _: asked(state, method, operation, body, seconds),
            )
            one = Hostile(tmp_path / "state", answer, is_http=is_http)
            stack.enter_context(answering(one.state, one.answer))
            return one

        yield play


def run(state: Path, command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and all output of a command; the code is one of its table, and no output moves a cursor."""
    words = command.split()
    code = main([*words, "--path.state", str(state)])
    captured = capsys.readouterr()
    output = captured.out + captured.err
    assert all(line.isprintable() for line in output.split("\n")), ascii(output)
    assert code in meanings_of(words[0])
    if words[0] == "healthcheck" and "--slurm" not in words:
        assert code != ExitCode.OK
    if "--json" in words and captured.out:
        json.loads(captured.out)
    return code, output


def _cases(*tables: Mapping[str, Answer]) -> pytest.MarkDecorator:
    rows = [pytest.param(answer, id=name) for table in tables for name, answer in table.items()]
    return pytest.mark.parametrize("answer", rows)


Play = Callable[..., Hostile]
Output = pytest.CaptureFixture[str]


@_cases(SHOWN, EXTREME)
def test_what_a_hostile_daemon_says_does_nothing_to_the_terminal(hostile: Play, answer: Answer, capsys: Output) -> None:
    """No command ends in a traceback, prints a raw control character, or calls the node healthy."""
    enemy = hostile(answer)
    for command in COMMANDS:
        run(enemy.state, command, capsys)


def says_in_one_line(enemy: Hostile, commands: Iterable[str], capsys: Output) -> None:
    """Each command says what is wrong, has read a bounded number of bytes, and judges nothing."""
    for command in commands:
        code, output = run(enemy.state, command, capsys)
        # resume needs no more than any answer.
        assert command == "resume" or "--json" in command or output.count("\n") == 1
        assert command in ("resume", "healthcheck --slurm") or code != ExitCode.OK
    assert enemy.most_sent < MOST_BYTES + 2**22


@_cases(REFUSED)
def test_what_is_no_answer_is_one_line_of_every_command(hostile: Play, answer: Answer, capsys: Output) -> None:
    """It is JSON, or nothing at all: what it is not, each command finds out by itself."""
    says_in_one_line(hostile(answer), COMMANDS, capsys)


@_cases(REFUSED_UNSEEN, ENDLESS)
def test_what_cannot_be_read_is_one_line(hostile: Play, answer: Answer, capsys: Output) -> None:
    """No command sees any of it."""
    says_in_one_line(hostile(answer), A_FEW, capsys)


@_cases(NO_HTTP)
def test_what_is_no_http_is_one_line(hostile: Play, answer: Answer, capsys: Output) -> None:
    """Likewise, and nobody is asked elsewhere."""
    says_in_one_line(hostile(answer, is_http=False), A_FEW, capsys)


def test_a_daemon_of_the_version_before_is_named(hostile: Play, capsys: Output) -> None:
    """It answers with a line of JSON; after an upgrade the daemon has to be restarted."""
    said = b'{"error":"expected the name of an operation as a JSON string"}\n'
    enemy = hostile(once(said), is_http=False)
    for command in ("score", "inventory", "pause"):
        code, output = run(enemy.state, command, capsys)
        assert code != ExitCode.OK
        assert output.count("\n") == 1
        assert f"the daemon of {enemy.state} is of an older version than this command; restart it" in output


@_cases(SLOW)
def test_nobody_waits_for_a_slow_answer(hostile: Play, answer: Answer, capsys: Output) -> None:
    """The deadline is that of the whole answer."""
    enemy = hostile(answer, 0.1)
    for command in A_FEW:
        _, output = run(enemy.state, command, capsys)
        assert "did not answer within 0.1 s" in output


STATE_FILES = (
    SOCKET_NAME, "maintenance.json", "hold.json", "inventory.json", "probe-pairs.json", "probe-all_reduce.json",
    "cluster.json", "setting-trials.json", "healthcheck.json", "probe.lock", "lock",
)  # fmt: skip
WITHOUT_A_DAEMON = (
    "inventory", "top --once", "diagnose", "healthcheck", "pause", "resume", "yield --wait 0s",
    "yield --end", "heatmap", "estimate --parameters 7B --tokens 4096",
    "estimate --parameters 7B --tokens 4096 --network measured",
)  # fmt: skip


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_no_special_file_in_the_state_directory_holds_up_a_command(tmp_path: Path, kind: str, capsys: Output) -> None:
    """A pipe, a device, a link or a gigabyte of nothing in the place of each file: each command ends by itself."""
    state = tmp_path / "simulated-h100x8"
    state.mkdir()
    target = tmp_path / "elsewhere"
    target.write_text("precious")

    def work() -> None:
        for command in WITHOUT_A_DAEMON:
            with contextlib.ExitStack() as files:
                for name in STATE_FILES:
                    files.enter_context(special_file(state / name, kind, target))
                codes.append((command, main([*command.split(), "--simulate", "h100x8", "--path.state", str(tmp_path)])))

    codes: list[tuple[str, int]] = []
    thread = threading.Thread(target=work, daemon=True)  # which would wait for good
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert [command for command, _ in codes] == list(WITHOUT_A_DAEMON)
    assert all(code in meanings_of(command.split()[0]) for command, code in codes)
    assert dict(codes)["healthcheck"] == 2
    assert target.read_text() == "precious"


class Stranger:
    """Another user, who listens at a control socket."""

    uid = 65_534

    def __init__(self, state: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        with _short_path(state) as path:
            self._listening.bind(path)
        os.seteuid(self.uid)
        try:
            self._listening.listen()
        finally:
            os.seteuid(0)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._listening.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_only_root_and_the_directorys_owner_are_asked(tmp_path: Path) -> None:
    """Whoever else may write the directory can put a socket there, and is not taken for the daemon."""
    with Stranger(tmp_path):
        with pytest.raises(CommwatchError, match="user 65534 listens there, who is neither root nor the owner"):
            ask_daemon(tmp_path, "score", 0.05)
        os.chown(tmp_path, Stranger.uid, -1)
        with pytest.raises(CommwatchError, match=r"did not answer within 0\.05 s"):
            ask_daemon(tmp_path, "score", 0.05)


def test_a_link_to_the_socket_of_another_program_is_not_followed(tmp_path: Path) -> None:
    """Root's question must not reach whatever listens elsewhere."""
    elsewhere, state = tmp_path / "elsewhere", tmp_path / "state"
    elsewhere.mkdir()
    state.mkdir()
    (state / SOCKET_NAME).symlink_to(elsewhere / SOCKET_NAME)
    with answering(elsewhere, lambda connection: None), pytest.raises(DaemonAbsent):
        ask_daemon(state, "score")


@pytest.mark.parametrize("command", ["pause", "resume", "yield --wait 0s", "yield --end", "healthcheck"])
def test_a_link_in_the_place_of_a_simulated_node_leads_nowhere(tmp_path: Path, command: str, capsys: Output) -> None:
    """Whoever may write the state directory cannot have root write or remove a file in another folder."""
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir()
    state.chmod(0o777)
    elsewhere.mkdir()
    (state / "simulated-h100x8").symlink_to(elsewhere)
    files = {elsewhere / name: b"{}" for name in ("maintenance.json", "hold.json", "healthcheck.json")}
    for file, content in files.items():
        file.write_bytes(content)

    code, _ = run(state, f"{command} --simulate h100x8", capsys)

    assert code != ExitCode.OK
    assert {file: file.read_bytes() for file in elsewhere.iterdir()} == files


def test_planted_simulated_nodes_are_not_shown(tmp_path: Path, capsys: Output) -> None:
    """Whoever owns the state directory chooses the names in it."""
    with contextlib.ExitStack() as daemons:
        for name in ("simulated-\x1b[2J", "simulated-x.yaml", f"simulated-{'x' * 99}"):
            daemons.enter_context(answering(tmp_path / name, lambda connection: connection.sendall(b"{}")))
        code, output = run(tmp_path, "top --once", capsys)
    assert code == ExitCode.NO_DAEMON
    assert "none of it is real" not in output
