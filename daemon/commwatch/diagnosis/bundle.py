"""The bundle for a vendor: what the daemon knows and has kept, without secrets, with a manifest of all that is in."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, BinaryIO, Final, Literal, TypeAlias

import msgspec
import yaml

from commwatch.config.settings import Config, encode_quantity
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.identity import Identity
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.report import report
from commwatch.diagnosis.text import diagnosis_lines
from commwatch.lines import plain
from commwatch.probes.results.pair_record import load_matrices
from commwatch.state.directory import state_path

MANIFEST = "MANIFEST.json"
NEVER_TAKEN = (
    "the environment of any process, and the values of settings in it",
    "the command line or the name of a process on a GPU",
    "texts of job logs and the hosts in them: only what happened, when, and how often",
    "the kernel log but for lines of GPUs, PCIe and network adapters that the kernel itself wrote",
    "passwords within addresses, and values that are named as passwords, tokens or keys",
)
_LONGEST_HOST = 64
_DAEMON = "the daemon"


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Within the bundle: ``system/os-release.txt``."""
    source: str
    """Where it comes from, for a reader: ``nvidia-smi -q``, ``the daemon``."""
    text: str
    note: str = ""
    """A note for the reader: an exit code, or that it was cut."""


class LeftOut(msgspec.Struct, frozen=True):
    """A piece that is missing from a bundle, with the reason."""

    name: str
    source: str
    reason: str


Found: TypeAlias = Piece | LeftOut
"""The result of a collector."""


class ManifestFile(msgspec.Struct, frozen=True):
    name: str
    source: str
    bytes: int
    sha256: str
    secrets_removed: int
    """Number of removed texts that looked like a secret."""
    note: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first file of the bundle."""

    schema: Literal["commwatch-bundle/1"] = "commwatch-bundle/1"
    made_at: str
    version: str
    """Of commwatch."""
    host: str
    simulated: str | None
    """The simulated node; None for a real one."""
    files: tuple[ManifestFile, ...]
    left_out: tuple[LeftOut, ...]
    never_taken: tuple[str, ...] = NEVER_TAKEN


def write_bundle(
    stream: BinaryIO, pieces: Iterable[Piece], left_out: Sequence[LeftOut],
    *, host: str, version: str, simulated: str | None, now: float,
) -> Manifest:  # fmt: skip
    """Write a gzipped tar archive with one folder in it.

    Args:
        now: seconds since 1970.
    """
    made_at = datetime.fromtimestamp(now, timezone.utc)
    files: list[tuple[ManifestFile, bytes]] = [_file(piece) for piece in pieces]
    manifest = Manifest(
        made_at=made_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        version=version,
        host=host,
        simulated=simulated,
        files=tuple(entry for entry, _ in files),
        left_out=tuple(LeftOut(one.name, one.source, without_secrets(one.reason)[0]) for one in left_out),
    )
    name = f"commwatch-{_safe(host) or 'node'}-{made_at.strftime('%Y%m%dT%H%M%SZ')}"
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, content in (
            (MANIFEST, as_json(manifest).encode()),
            *((entry.name, content) for entry, content in files),
        ):
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size, member.mtime, member.mode = len(content), int(now), 0o644
            archive.addfile(member, io.BytesIO(content))
    return manifest


def _file(piece: Piece) -> tuple[ManifestFile, bytes]:
    text, removed = without_secrets(piece.text)
    content = text.encode("utf-8", "backslashreplace")
    digest = hashlib.sha256(content).hexdigest()
    return ManifestFile(piece.name, piece.source, len(content), digest, removed, piece.note), content


def _safe(host: str) -> str:
    """A host name as part of a path."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", host)[:_LONGEST_HOST].strip(".")


# --- what comes from the daemon, and from what it has kept ---


def document_pieces(known: Known, document: Diagnosis, identity: Identity, config: Config) -> Iterator[Piece]:
    """The pieces that need no further reading of the machine."""
    low_ratio = known.thresholds.probe_bandwidth_utilization_low_ratio
    text = "\n".join(plain(line) for line in diagnosis_lines(document, every=True))
    yield Piece(name="diagnosis.txt", source="commwatch diagnose --all", text=f"{text}\n")
    yield Piece(name="diagnosis.json", source="commwatch diagnose --json", text=as_json(document))
    yield Piece(name="report.html", source="commwatch diagnose --report", text=report(document, identity, low_ratio))
    yield Piece(name="versions.json", source=_DAEMON, text=as_json(identity))
    yield Piece(name="findings.json", source=_DAEMON, text=as_json(known.findings))
    yield Piece(name="score.json", source=_DAEMON, text=as_json(known.score))
    yield Piece(name="snapshot.json", source=f"{_DAEMON}: every series", text=as_json(known.snapshot))
    if known.settings is not None:
        text = as_json(known.settings)
        yield Piece(name="settings.json", source=f"{_DAEMON}: NCCL settings of jobs by name, without values", text=text)
    limits = {"digest": known.thresholds.digest, **asdict(known.thresholds)}
    yield Piece(name="thresholds.json", source="alerts/thresholds.yaml and the file above it", text=as_json(limits))
    settings = settings_without_secrets(msgspec.to_builtins(config, enc_hook=encode_quantity))
    yield Piece(
        name="configuration.yaml",
        source="the settings in force for this command: file, environment and flags together",
        text=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
    )


def matrix_pieces(config: Config) -> Iterator[Found]:
    """The last pair matrices that the daemon has kept, however old."""
    matrices = load_matrices(state_path(config))
    source = "the state directory: the last pair matrices, oldest first"
    if matrices:
        yield Piece(name="pairs.json", source=source, text=as_json(matrices))
    else:
        yield LeftOut("pairs.json", source, "no pairs were measured")


def as_json(value: Any) -> str:
    """A document as a file of the bundle has it."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=encode_quantity)).decode() + "\n"


# --- secrets: addresses with a password, keys and tokens by their names ---

LEFT_OUT: Final = "(left out)"

_SECRET: Final = r"(?:passw(?:or)?d|passphrase|secret|token|api_?key|private_?key|credential|psk|webhook)"  # noqa: S105 - names only
_SECRET_NAME: Final = re.compile(_SECRET, re.IGNORECASE)
_NAME: Final = rf"{_SECRET}[\w.-]{{0,64}}"
"""The name of a secret from its key word on, of bounded length: a text without blanks is not searched from each
position."""
_VALUE: Final = r"""(?:"[^"\\\n]*"|'[^'\\\n]*'|\\"[^"\\\n]*\\"|[^\s"'\\,;}\]]+)"""

_PATTERNS: Final = (
    # https://user:password@host
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^/\s\"'\\@]{1,512}@"), rf"\1{LEFT_OUT}@"),
    # "api_key": "..." of JSON
    (re.compile(rf"({_NAME}\"\s*:\s*)\"(?:[^\"\\]|\\.)*\"", re.IGNORECASE), rf'\1"{LEFT_OUT}"'),
    # API_KEY=... and api_key: ..., quoted or not, also within a text of JSON, where quotes are escaped
    (re.compile(rf"({_NAME}\s*[=:]\s*)(?!\(left out\)){_VALUE}", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    (re.compile(r"(\bauthorization\s*[=:]\s*)[^\r\n\"\\]+", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    (re.compile(r"(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), LEFT_OUT),
)


def without_secrets(text: str) -> tuple[str, int]:
    """A text without substrings that look like a secret, and their number."""
    count = 0
    for pattern, instead in _PATTERNS:
        text, found = pattern.subn(instead, text)
        count += found
    return text, count


def settings_without_secrets(value: Any, name: str = "") -> Any:
    """Plain settings without the values of keys that are called as secrets are; their structure stays."""
    if isinstance(value, dict):
        return {key: settings_without_secrets(one, str(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [settings_without_secrets(one, name) for one in value]
    return LEFT_OUT if value and isinstance(value, str) and _SECRET_NAME.search(name) else value
