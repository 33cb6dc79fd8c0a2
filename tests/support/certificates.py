"""Certificates for tests, made by the openssl program and thrown away with their folder."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.waiting import PATIENCE_SECONDS

_PLACE = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[extensions]
basicConstraints = critical, CA:{is_authority}
subjectAltName = {names}
"""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: Path
    key: Path


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr


class Authority:
    """Signs certificates.

    Args:
        folder: Where all files go.
        name: Its own.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._signs_with: Pair | None = None
        self.pair = self._make(name, "DNS:authority", is_authority=True)
        self._signs_with = self.pair

    @property
    def file(self) -> Path:
        """Its own certificate."""
        return self.pair.certificate

    def issue(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
        """A certificate with alternative names, in files called by a name; one of that name before is replaced."""
        return self._make(name, names, is_authority=False)

    def _make(self, name: str, names: str, *, is_authority: bool) -> Pair:
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        config = self._folder / f"{name}.cnf"
        config.write_text(_PLACE.format(name=name, names=names, is_authority=str(is_authority).upper()))
        signed_by = () if self._signs_with is None else (
            "-CA", str(self._signs_with.certificate), "-CAkey", str(self._signs_with.key)
        )  # fmt: skip
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-config", str(config), "-extensions", "extensions", *signed_by,
            "-keyout", str(pair.key), "-out", str(pair.certificate),
        )  # fmt: skip
        pair.key.chmod(0o600)
        return pair
