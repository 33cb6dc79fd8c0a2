"""A real daemon behind a web configuration, and the command that checks one."""

from __future__ import annotations

import json
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import bcrypt
import pytest

from commwatch.__main__ import main
from support.certificates import Authority
from support.daemon import Daemon, running
from support.http import authorization
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.openssl

WEB = "tls_server_config: {{cert_file: node.pem, key_file: node.key{}}}\nbasic_auth_users: {{alice: {}}}\n"
OUR_WORD = "right-4711-word"
NOT_USED = "the new web configuration is not used; the old one stays in force"
CLIENTS = ", client_ca_file: authority.pem, client_auth_type: RequireAndVerifyClientCert"


def write(folder: Path, text: str) -> Path:
    """The web configuration of a folder."""
    file = folder / "web.yml"
    file.write_text(text)
    file.chmod(0o640)
    return file


def site(folder: Path, clients: str = "") -> tuple[Path, ssl.SSLContext]:
    """A web configuration with TLS, a user and what it asks of clients, and a client that trusts it."""
    authority = Authority(folder)
    authority.issue("node")
    client = authority.issue("client")
    hashed = bcrypt.hashpw(OUR_WORD.encode(), bcrypt.gensalt(4)).decode()
    trusting = ssl.create_default_context(cafile=str(authority.file))
    trusting.load_cert_chain(client.certificate, client.key)
    return write(folder, WEB.format(clients, hashed)), trusting


def get(daemon: Daemon, trusting: ssl.SSLContext, path: str, word: str = OUR_WORD) -> tuple[int, str]:
    """Status and body of a page over TLS."""
    name, _, value = authorization("alice", word).partition(": ")
    request = urllib.request.Request(f"https://{daemon.address}{path}", headers={name: value})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=trusting) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def top(daemon: Daemon, folder: Path, *certificate: str, word: str = OUR_WORD) -> int:
    """The exit code of ``commwatch top`` on another machine, with a password and perhaps a certificate."""
    password = folder / "password"
    password.write_text(f"{word}\n")
    password.chmod(0o600)
    return main(["top", "--once", "--url", f"https://{daemon.address}", "--ca-file", str(folder / "authority.pem"),
                 *certificate, "--user", "alice", "--password-file", str(password)])  # fmt: skip


def test_a_daemon_with_tls_and_a_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It serves those who have certificate and password, and keeps the doors as they were when a new file is bad."""
    web, trusting = site(tmp_path, CLIENTS)
    with running(tmp_path, "--web.config.file", str(web)) as daemon:
        assert get(daemon, trusting, "/metrics")[0] == 200
        assert get(daemon, trusting, "/metrics", "wrong")[0] == 401
        assert get(daemon, trusting, "/healthz", "wrong") == (200, "ok\n")
        assert get(daemon, trusting, "/readyz", "wrong")[0] == 200
        assert daemon.get("/metrics")[0] == 400

        ours = ("--cert-file", str(tmp_path / "client.pem"), "--key-file", str(tmp_path / "client.key"))
        assert top(daemon, tmp_path, *ours) == 0
        page = capsys.readouterr().out
        assert page.startswith(f"commwatch top  {daemon.address} ")
        assert "no GPU is read" in page
        assert top(daemon, tmp_path, *ours, word="wrong") == 1
        assert "401 Unauthorized: name, password or certificate is not accepted" in capsys.readouterr().err
        assert top(daemon, tmp_path) == 1
        assert "our certificate is not accepted (TLSV13_ALERT_CERTIFICATE_REQUIRED)" in capsys.readouterr().err

        good = web.read_text()
        web.write_text("basic_auth_user: {}\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: "commwatch_config_last_reload_successful 0.0\n" in get(daemon, trusting, "/metrics")[1])
        (event,) = daemon.events(NOT_USED)
        assert f"{web}:1: basic_auth_user: unknown key; did you mean basic_auth_users?" in event["error"]

        write(tmp_path, "rate_limit: {interval: 0}\n")  # no door is opened without a restart
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: len(daemon.events(NOT_USED)) == 2)
        assert daemon.get("/metrics")[0] == 400
        write(tmp_path, good)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: "commwatch_config_last_reload_successful 1.0\n" in get(daemon, trusting, "/metrics")[1])


def test_no_secret_is_shown_or_logged(tmp_path: Path) -> None:
    """At the most talkative level, after guesses, nonsense and a broken file: not password, hash or key, in no form."""
    web, trusting = site(tmp_path)
    good = web.read_text()
    hashed = good.rpartition("alice: ")[2].rstrip("}\n")
    key = (tmp_path / "node.key").read_text().splitlines()[1:-1]
    encoded = authorization("alice", OUR_WORD).rpartition(" ")[2]
    secrets = (OUR_WORD, encoded, hashed, hashed[-31:], *key, "guess-of-mallory", authorization("", "guess-of-mallory"))
    with running(tmp_path, "--web.config.file", str(web), "--log.level", "debug") as daemon:
        pages = [get(daemon, trusting, path)[1] for path in ("/", "/metrics", "/readyz", "/api/v1/snapshot", "/none")]
        pages += [get(daemon, trusting, path, "guess-of-mallory")[1] for path in ("/", f"/{OUR_WORD}?{hashed}")]
        web.write_text(good.replace("alice", "alice: *") + f"{OUR_WORD}: {hashed}\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: daemon.events(NOT_USED))
        daemon.until(lambda: "commwatch_config_last_reload_successful 0.0\n" in get(daemon, trusting, "/metrics")[1])
        pages.append(get(daemon, trusting, "/metrics")[1])
    told = daemon.log_file.read_text() + "".join(pages)

    assert len(told) > 10_000
    assert [secret for secret in secrets if secret in told] == []


def test_check_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is asked of clients is printed, and what has no effect; a mistake ends the command with code 2."""
    web, _ = site(tmp_path)
    with web.open("a") as file:
        file.write("http_server_config: {http2: true}\nrate_limit: {interval: 100ms, burst: 5}\n")
    arguments = ["check-config", "--web.config.file", str(web), "--path.state", str(tmp_path), "--json"]

    assert main(arguments) == 0
    rows = [(row["what"], row["verdict"], row["detail"]) for row in json.loads(capsys.readouterr().out)]
    assert [row for row in rows if row[0].startswith("web")] == [
        ("web configuration", "ok", "TLS, users: 1, 10 requests a second of each client"),
        (
            "web configuration", "no effect",
            f"{web}:3: http_server_config.http2: HTTP/2 is not offered; clients are served over HTTP/1.1",
        ),
    ]  # fmt: skip

    (tmp_path / "node.key").unlink()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"{web}:1: tls_server_config.key_file: {tmp_path / 'node.key'} cannot be read: No such file" in error


@pytest.mark.parametrize(("value", "code"), [("true", 0), ("0", 0), ("maybe", 2)])
def test_the_socket_setting_in_the_environment(
    value: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A switch takes true, false, 1 and 0 from its variable; anything else is named."""
    monkeypatch.setenv("COMMWATCH_WEB_SYSTEMD_SOCKET", value)

    assert main(["check-config", "--path.state", str(tmp_path)]) == code
    assert ("COMMWATCH_WEB_SYSTEMD_SOCKET: web.systemd_socket" in capsys.readouterr().err) == (code == 2)
