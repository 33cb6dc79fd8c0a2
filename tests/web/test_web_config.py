"""The web configuration file: what is taken, what is refused, and in which words."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from commwatch.config.web import WebConfig, read_web_config
from commwatch.errors import ConfigError
from commwatch_exporters.tls_context import make_context
from support.certificates import Authority
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.openssl

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"  # of "fakepassword", from exporter-toolkit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the configurations of this module name."""
    made = tmp_path_factory.mktemp("web")
    authority = Authority(made)
    authority.issue("node")
    authority.issue("other")
    (made / "open.key").write_bytes((made / "node.key").read_bytes())
    (made / "open.key").chmod(0o644)
    (made / "empty.pem").write_text("nothing\n")
    return made


def read(folder: Path, text: str) -> WebConfig:
    """Read a text as if it were the file."""
    file = folder / "web.yml"
    file.write_text(text)
    file.chmod(0o640)
    return read_web_config(file)


PAIR = "tls_server_config:\n  cert_file: node.pem\n  key_file: node.key\n"
CLIENTS = f"{PAIR}  client_ca_file: authority.pem\n  client_auth_type: RequireAndVerifyClientCert\n"


def test_everything_that_can_be_set(folder: Path) -> None:
    """A file that uses what is offered of each section is taken, without a note."""
    config = read(
        folder,
        f"{CLIENTS}  client_allowed_sans: [prometheus, '0:0::1']\n"
        "  min_version: TLS12\n  max_version: TLS12\n"
        "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n"
        "  prefer_server_cipher_suites: false\n  curve_preferences: [CurveP384]\n"
        "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    Content-Security-Policy:\n"
        f"basic_auth_users:\n  alice: {HASH}\n"
        "rate_limit: {interval: 100ms, burst: 20}\n",
    )
    assert config.tls is not None
    context = make_context(config.tls)

    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert not context.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert [one["name"] for one in context.get_ciphers() if one["protocol"] == "TLSv1.2"] == [
        "ECDHE-ECDSA-AES128-GCM-SHA256"
    ]
    assert config.allowed_names == {"prometheus", "::1"}
    assert config.headers == {"X-Frame-Options": "deny", "Content-Security-Policy": ""}
    assert config.users == {b"alice": HASH.encode()}
    assert config.rate_limit == (0.1, 20)
    assert config.notes == ()
    assert [one.name for one in config.files] == ["web.yml", "node.pem", "node.key", "authority.pem"]


def test_the_defaults(folder: Path) -> None:
    """TLS from 1.2 on without client certificates; sections without anything in them ask for nothing."""
    tls = read(folder, PAIR).tls
    empty = read(folder, "tls_server_config:\nhttp_server_config:\nbasic_auth_users:\nrate_limit: {interval: 0}\n")

    assert tls is not None
    context = make_context(tls)
    assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_NONE)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert (empty.tls, empty.users, empty.headers, empty.rate_limit) == (None, {}, {}, None)


def test_certificates_in_the_file_itself(folder: Path) -> None:
    """What a file could hold may stand in the configuration, as PEM."""
    parts = {"cert": "node.pem", "key": "node.key", "client_ca": "authority.pem"}
    lines = [f"  {name}: |\n" + "".join(f"    {line}\n" for line in (folder / file).read_text().splitlines())
             for name, file in parts.items()]  # fmt: skip
    config = read(folder, "tls_server_config:\n" + "".join(lines) + "  client_auth_type: VerifyClientCertIfGiven\n")

    assert config.tls is not None
    assert make_context(config.tls).verify_mode == ssl.CERT_OPTIONAL
    assert [one.name for one in config.files] == ["web.yml"]


@in_one_pass(
    "text, line, key, problem",
    [
        ("basic_auth_user:\n", 1, "basic_auth_user", "unknown key; did you mean basic_auth_users?"),
        ("tls_server_config:\n  cert_fil: x\n", 2, "tls_server_config.cert_fil", "did you mean cert_file?"),
        ("tls_server_config:\n  key_file: node.key\n", 1, "tls_server_config.cert_file", "is missing"),
        ("tls_server_config:\n  min_version: TLS13\n", 1, "tls_server_config.cert_file", "is missing"),
        ("tls_server_config:\n  cert_file: node.pem\n", 1, "tls_server_config.key_file", "is missing"),
        (f"{PAIR}  cert: x\n", 2, "tls_server_config.cert_file", "is set, and so is cert; keep one"),
        (
            "tls_server_config:\n  cert_file: gone.pem\n  key_file: node.key\n",
            2, "tls_server_config.cert_file", "gone.pem cannot be read: No such file or directory",
        ),
        (
            "tls_server_config:\n  cert_file: empty.pem\n  key_file: node.key\n",
            2, "tls_server_config.cert_file", "holds no certificate in PEM form",
        ),
        (
            "tls_server_config:\n  cert_file: node.pem\n  key_file: node.pem\n",
            3, "tls_server_config.key_file", "every user can read",
        ),
        (
            "tls_server_config:\n  cert_file: node.pem\n  key_file: other.key\n",
            3, "tls_server_config.key_file", "does not belong to the certificate",
        ),
        (
            "tls_server_config:\n  cert_file: node.pem\n  key_file: open.key\n",
            3, "tls_server_config.key_file", "(mode 0644); chmod 0640",
        ),
        (f"{PAIR}  client_ca_file: authority.pem\n", 4, "tls_server_config.client_ca_file", "has no effect without"),
        (
            f"{PAIR}  client_auth_type: RequireAndVerifyClientCert\n",
            4, "tls_server_config.client_auth_type", "needs client_ca_file",
        ),
        (
            f"{PAIR}  client_auth_type: RequireAnyClientCert\n",
            4, "tls_server_config.client_auth_type", "takes any certificate, whoever signed it, and is not offered",
        ),
        (f"{PAIR}  client_auth_type: Always\n", 4, "tls_server_config.client_auth_type", "possible: NoClientCert"),
        (
            f"{CLIENTS}  client_ca: x\n", 4, "tls_server_config.client_ca_file", "is set, and so is client_ca; keep one"
        ),
        (f"{CLIENTS}  client_allowed_sans: []\n", 6, "tls_server_config.client_allowed_sans", "nobody could come in"),
        (f"{PAIR}  client_allowed_sans: [a]\n", 4, "tls_server_config.client_allowed_sans", "needs client_auth_type"),
        (f"{PAIR}  min_version: TLS10\n", 4, "tls_server_config.min_version", "broken and not offered"),
        (f"{PAIR}  min_version: TLS14\n", 4, "tls_server_config.min_version", "'TLS14' is not possible"),
        (
            f"{PAIR}  min_version: TLS13\n  max_version: TLS12\n",
            4, "tls_server_config.min_version", "is above max_version, TLS12",
        ),
        (
            f"{PAIR}  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA25]\n",
            4, "tls_server_config.cipher_suites[0]", "did you mean TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256?",
        ),
        (
            f"{PAIR}  cipher_suites: [TLS_AES_128_GCM_SHA256]\n",
            4, "tls_server_config.cipher_suites", "names no suite of TLS 1.2; add one, or set min_version: TLS13",
        ),
        (f"{PAIR}  curve_preferences: [P256]\n", 4, "tls_server_config.curve_preferences[0]", "mean CurveP256?"),
        (
            f"{PAIR}  curve_preferences: [X25519, CurveP256]\n",
            4, "tls_server_config.curve_preferences", "names several, and Python's TLS takes one",
        ),
        ("http_server_config: {headers: {X-Hat: red}}\n", 1, "http_server_config.headers.X-Hat", "not possible"),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: maybe\n",
            3, "http_server_config.headers.X-Frame-Options", "'maybe' is not possible; possible: deny, sameorigin",
        ),
        (
            'http_server_config:\n  headers:\n    X-XSS-Protection: "1\\r\\nX-Hat: red"\n',
            3, "http_server_config.headers.X-XSS-Protection", "expected one line of plain ASCII",
        ),
        ("basic_auth_users: {alice: secret}\n", 1, "basic_auth_users.alice", "is no bcrypt hash"),
        (f"basic_auth_users: {{'a:b': {HASH}}}\n", 1, "basic_auth_users.a:b", "holds no colon"),
        (f"basic_auth_users: {{alice: {HASH.replace('$10$', '$18$')}}}\n", 1, "basic_auth_users.alice", "has cost 18"),
        (f"basic_auth_users: {{alice: {HASH[:28]}z{HASH[29:]}}}\n", 1, "basic_auth_users.alice", "salt cannot be read"),
        ("rate_limit: {interval: 1s}\n", 1, "rate_limit.burst", "must be at least 1"),
        ("rate_limit:\n  interval: 5\n  burst: 1\n", 2, "rate_limit.interval", "expected a duration with a unit"),
        ("", None, "", "is empty"),
    ],
)  # fmt: skip
def test_mistakes(folder: Path, text: str, line: int | None, key: str, problem: str) -> None:
    """The error names file, line and key, and says what would be right; it shows no secret."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    error = caught.value

    assert (error.file, error.line, error.key) == (str(folder / "web.yml"), line, key)
    assert problem in error.problem
    assert "\n" not in str(error)
    assert HASH[30:] not in str(error)
    assert ": secret" not in str(error)


@in_one_pass(
    "text, note",
    [
        ("http_server_config: {http2: true}\n", ":1: http_server_config.http2: HTTP/2 is not offered"),
        (
            f"{PAIR}  cipher_suites: [TLS_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n",
            ":4: tls_server_config.cipher_suites[0]: TLS_AES_256_GCM_SHA384 belongs to TLS 1.3",
        ),
        (
            f"{PAIR}  min_version: TLS13\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n",
            ":5: tls_server_config.cipher_suites: has no effect: min_version is TLS13",
        ),
        ("rate_limit: {burst: 5}\n", ":1: rate_limit.burst: has no effect without an interval"),
    ],
)
def test_what_has_no_effect(folder: Path, text: str, note: str) -> None:
    """It is taken, and said in one line."""
    (found,) = read(folder, text).notes

    assert found.startswith(f"{folder / 'web.yml'}{note}")


@pytest.mark.parametrize("text", [f"basic_auth_users: {{alice: {HASH}}}\n"])
def test_a_file_with_secrets_that_all_can_read(folder: Path, text: str) -> None:
    """It is refused, with the command that would help."""
    file = folder / "web.yml"
    file.write_text(text)
    file.chmod(0o644)

    with pytest.raises(ConfigError, match=r"every user can read .*\(mode 0644\); chmod 0640"):
        read_web_config(file)


def test_an_encrypted_key(folder: Path) -> None:
    """Nobody is asked for the pass phrase; the error says what to do."""
    subprocess.run(
        ["openssl", "pkey", "-in", "node.key", "-aes128", "-passout", "pass:test", "-out", "node.key.encrypted"],
        cwd=folder, check=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    (folder / "node.key.encrypted").chmod(0o600)

    with pytest.raises(ConfigError, match="is encrypted, and a daemon has nobody to ask"):
        read(folder, "tls_server_config:\n  cert_file: node.pem\n  key_file: node.key.encrypted\n")


def test_a_bundle_of_authorities_with_their_names(folder: Path) -> None:
    """Comments beside the certificates may be in any language."""
    authority = folder / "authority.pem"
    authority.write_text(f"# Főtanúsítvány\n{authority.read_text()}", encoding="utf-8")
    tls = read(folder, CLIENTS).tls

    assert tls is not None
    assert len(make_context(tls).get_ca_certs()) == 1


def test_a_key_that_goes_while_it_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps of whoever replaces it: the key is named, and the file tried again later."""
    for name in ("node.pem", "node.key"):  # of its own: the others need theirs
        shutil.copy2(folder / name, tmp_path)
    monkeypatch.setattr(
        "commwatch.config.web_file.look_of", lambda path: path.with_suffix(".key").unlink(missing_ok=True)
    )

    with pytest.raises(ConfigError, match=r"tls_server_config.key_file: .*node.key cannot be read: No such file"):
        read(tmp_path, PAIR)


@in_one_pass(
    "text",
    [
        "basic_auth_users: alice:{}\n",
        "basic_auth_users: [{}]\n",
        "basic_auth_users:\n  alice: [{}]\n",
        "basic_auth_users:\n  alice: '{}\n",
        "basic_auth_users:\n  alice: {}x\n",
        "basic_auth_users:\n  alice: !!int {}\n",
        "basic_auth_users:\n  alice: !!timestamp {}\n",
        "basic_auth_users:\n  alice: *{}\n",
        "basic_auth_users:\n  alice: !{}\n",
        "basic_auth_users:\n  alice: !{}!x y\n",
        "basic_auth_users:\n  alice: !!bool {}\n",
        "basic_auth_users:\n  alice: '\\{}\n",
        "basic_auth_users:\n  alice: %{}\n",
        "alice: {}\n",
        "{}\n",
        "tls_server_config: {}\n",
        "tls_server_config:\n  cert_file: node.pem\n  key:\n    - {}\n",
        "tls_server_config:\n  cert_file: node.pem\n  key: {}\n",
        "tls_server_config:\n  cert_file: node.pem\n  key: |\n    -----BEGIN PRIVATE KEY-----\n  {}\n",
    ],
)
def test_an_error_shows_no_secret(folder: Path, text: str) -> None:
    """Whatever is wrong with a password's hash or a key: the error says where, and not what was there."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text.replace("{}", "SeCrEt0000"))

    assert "SeCrEt" not in str(caught.value)
