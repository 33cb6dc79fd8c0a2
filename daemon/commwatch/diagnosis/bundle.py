"""The bundle for a vendor: the pieces that were collected, without secrets, with a manifest of what is in and not."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import BinaryIO, Literal, TypeAlias

import msgspec

from commwatch.diagnosis.secret_texts import without_secrets

MANIFEST = "MANIFEST.json"
NEVER_TAKEN = (
    "the environment of any process, and the values of settings in it",
    "the command line or the name of a process on a GPU",
    "texts of job logs and the hosts in them: only what happened, when, and how often",
    "the kernel log but for lines of GPUs, PCIe and network adapters that the kernel itself wrote",
    "passwords within addresses, and values that are named as passwords, tokens or keys",
)
_LONGEST_HOST = 64


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the bundle."""

    name: str
    """Within the bundle: ``system/os-release.txt``."""
    source: str
    """Where it comes from, for a reader: ``nvidia-smi -q``, ``the daemon``."""
    text: str
    note: str = ""
    """What the reader should know: an exit code, that it was cut."""


class LeftOut(msgspec.Struct, frozen=True):
    """What a bundle should have and has not."""

    name: str
    source: str
    reason: str


Found: TypeAlias = Piece | LeftOut
"""What a collector gives."""


class ManifestFile(msgspec.Struct, frozen=True):
    """A file as the manifest lists it."""

    name: str
    source: str
    bytes: int
    sha256: str
    secrets_removed: int
    """Places that looked like a secret."""
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
        stream: where to.
        pieces: the files.
        left_out: what is missing and why.
        host: name of the node.
        version: of commwatch.
        simulated: the simulated node.
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
        for path, content in ((MANIFEST, _json(manifest)), *((entry.name, content) for entry, content in files)):
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size, member.mtime, member.mode = len(content), int(now), 0o644
            archive.addfile(member, io.BytesIO(content))
    return manifest


def _file(piece: Piece) -> tuple[ManifestFile, bytes]:
    text, removed = without_secrets(piece.text)
    content = text.encode("utf-8", "backslashreplace")
    digest = hashlib.sha256(content).hexdigest()
    return ManifestFile(piece.name, piece.source, len(content), digest, removed, piece.note), content


def _json(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"


def _safe(host: str) -> str:
    """A host name as part of a path."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", host)[:_LONGEST_HOST].strip(".")
