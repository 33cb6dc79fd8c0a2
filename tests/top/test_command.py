"""The command line of commwatch top: one page, the documents, which daemon, and what is wrong use."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from commwatch.__main__ import main
from commwatch.views.top import daemon as local
from top.documents import made
from top.session import answering
from top.test_remote import serving, url

SAID = made(("gpu_state", ("0", "0000:17:00.0"), 0.0))


@pytest.fixture
def state(tmp_path: Path) -> str:
    """Of a machine on which a daemon may run."""
    return f"--path.state={tmp_path / 'state'}"


@pytest.mark.parametrize("arguments", [("--once",), ()])
def test_one_plain_page_goes_into_a_pipe(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """With --once, and without, where nobody could press a key; no escape sequence in it."""
    with answering(tmp_path / "state", SAID):
        assert main(["top", state, *arguments]) == 0

    out = capsys.readouterr().out
    assert out.startswith(f"commwatch top  {socket.gethostname()}")
    assert re.search(r"^0    ok", out, re.MULTILINE)
    assert "\x1b" not in out


def test_json_gives_the_documents(state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All three, as the API has them."""
    with answering(tmp_path / "state", SAID):
        assert main(["top", state, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    schemas = {name: document["schema"] for name, document in found.items()}
    assert schemas == {
        "findings": "commwatch-findings/1", "probes": "commwatch-probes/1", "snapshot": "commwatch-snapshot/1",
    }  # fmt: skip


def test_another_node_is_asked_over_http(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its address stands at the top."""
    with serving() as server:
        assert main(["top", state, "--once", "--url", url(server)]) == 0

    assert capsys.readouterr().out.startswith(f"commwatch top  localhost:{server.server_address[1]} ")


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_no_daemon_ends_with_4(state: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For a script there is nothing to wait for."""
    assert main(["top", state, option]) == 4
    assert "no commwatch daemon runs with the state directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--user", "ops"), "--user is for the endpoint that --url names"),
        (("--ca-file", "ca.pem"), "--ca-file is for the endpoint that --url names"),
        (("--url", "http://node7", "--user", "ops:secret"), "--user: a name without a colon"),
        (("--url", "http://node7", "--user", "ops"), "--user needs --password-file where no one can be asked"),
        (("--url", "node7"), "expected http://HOST:PORT"),
    ],
)
def test_wrong_use_ends_with_2(
    state: str,
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In one line that says what would be right."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["top", state, "--once", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_an_interval_that_would_burden_the_daemon_is_refused(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a second is the least."""
    with pytest.raises(SystemExit):
        main(["top", state, "--interval", "100ms"])

    assert "expected at least 500ms, got '100ms'" in capsys.readouterr().err


def test_who_may_not_use_the_socket_is_given_the_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ordinary user has a state directory of his own, in which no daemon runs."""
    monkeypatch.setattr(local, "state_path", lambda config: tmp_path / "nothing")
    with serving() as server:
        ours = f"--web.listen-address=:{server.server_address[1]}"
        assert main(["top", ours, "--once"]) == 0
        assert re.search(r"^0    ok", capsys.readouterr().out, re.MULTILINE)

        # Who names a state directory means that one.
        assert main(["top", ours, f"--path.state={tmp_path}", "--once"]) == 4
    assert main(["top", ours, "--once"]) == 4
    assert "no commwatch daemon runs with the state directory" in capsys.readouterr().err
