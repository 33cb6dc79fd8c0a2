"""The command line of commwatch top: one page, the documents, which daemon, and what is wrong use."""

from __future__ import annotations

import argparse
import json
import re
import socket
from pathlib import Path

import pytest

from commwatch.commands import top
from commwatch.config.settings import Config, Paths, Web
from commwatch.errors import CommwatchError
from commwatch.state.client import DaemonAbsent
from commwatch.views.top import daemon as local
from top.documents import made
from top.session import answering
from top.test_remote import serving, url

SAID = made(("gpu_state", ("0", "0000:17:00.0"), 0.0))


def run(config: Config, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    top.run.add_to(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["top", *arguments])
    return int(args.run(args, config))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A machine whose state directory may have a daemon."""
    return Config(paths=Paths(state=str(tmp_path / "state")))


@pytest.mark.parametrize("arguments", [("--once",), ()])
def test_one_plain_page_goes_into_a_pipe(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """With --once, and without, where nobody could press a key; no escape sequence in it."""
    with answering(tmp_path / "state", SAID):
        assert run(config, *arguments) == 0

    out = capsys.readouterr().out
    assert out.startswith(f"commwatch top  {socket.gethostname()}")
    assert re.search(r"^0    ok", out, re.MULTILINE)
    assert "\x1b" not in out


def test_json_gives_the_documents(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All three, as the API has them."""
    with answering(tmp_path / "state", SAID):
        assert run(config, "--json") == 0

    found = json.loads(capsys.readouterr().out)
    schemas = {name: document["schema"] for name, document in found.items()}
    assert schemas == {
        "findings": "commwatch-findings/1", "probes": "commwatch-probes/1", "snapshot": "commwatch-snapshot/1",
    }  # fmt: skip


def test_another_node_is_asked_over_http(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Its address stands at the top."""
    with serving() as server:
        assert run(config, "--once", "--url", url(server)) == 0

    assert capsys.readouterr().out.startswith(f"commwatch top  localhost:{server.server_address[1]} ")


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_no_daemon_ends_with_4(config: Config, option: str) -> None:
    """For a script there is nothing to wait for."""
    with pytest.raises(DaemonAbsent, match="no commwatch daemon runs with the state directory") as caught:
        run(config, option)

    assert caught.value.exit_code == 4


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
    config: Config, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line that says what would be right."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(CommwatchError, match=said) as caught:
        run(config, "--once", *arguments)

    assert caught.value.exit_code == 2


def test_an_interval_that_would_burden_the_daemon_is_refused(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a second is the least."""
    with pytest.raises(SystemExit):
        run(config, "--interval", "100ms")

    assert "expected at least 500ms, got '100ms'" in capsys.readouterr().err


def test_who_may_not_use_the_socket_is_given_the_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ordinary user has a state directory of his own, in which no daemon runs."""
    monkeypatch.setattr(local, "state_path", lambda config: tmp_path / "nothing")
    with serving() as server:
        ours = Config(web=Web(listen_addresses=(f":{server.server_address[1]}",)))
        assert run(ours, "--once") == 0
        assert re.search(r"^0    ok", capsys.readouterr().out, re.MULTILINE)

        # Who names a state directory means that one.
        with pytest.raises(DaemonAbsent):
            run(Config(web=ours.web, paths=Paths(state=str(tmp_path))), "--once")
    with pytest.raises(DaemonAbsent, match="no commwatch daemon runs with the state directory"):
        run(ours, "--once")
