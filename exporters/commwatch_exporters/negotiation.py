"""Chooses the format of the page from Accept and its compression from Accept-Encoding; nonsense never fails."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from commwatch_exporters.prometheus import Format

_Preference: TypeAlias = "tuple[str, Mapping[str, str], float]"

_LONGEST_HEADER = 1024  # characters; Prometheus 3 sends 250
_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")

_VERSIONS = {
    ("text/plain", "0.0.4"): Format.TEXT,
    ("text/plain", ""): Format.TEXT,
    ("text/*", ""): Format.TEXT,
    ("*/*", ""): Format.TEXT,
    ("application/openmetrics-text", "1.0.0"): Format.OPENMETRICS,
    ("application/openmetrics-text", ""): Format.OPENMETRICS,
}


def choose_format(accept: str) -> Format:
    """The format of highest quality that we have, the first named among equals; text 0.0.4 where there is none."""
    best, best_quality = Format.TEXT, 0.0
    for media_range, parameters, quality in _preferences(accept):
        offered = _VERSIONS.get((media_range, parameters.get("version", "")))
        if offered is not None and quality > best_quality:
            best, best_quality = offered, quality
    return best


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client takes gzip and does not prefer the plain page."""
    qualities = {coding: quality for coding, _, quality in _preferences(accept_encoding)}
    gzip_quality = qualities.get("gzip", qualities.get("*", 0.0))
    return gzip_quality > 0 and gzip_quality >= qualities.get("identity", 0.0)


def _preferences(header: str) -> Sequence[_Preference]:
    """Each item of a header with its parameters and quality; an item with a bad quality is left out (RFC 9110 12.4)."""
    return _parsed(header) if len(header) <= _LONGEST_HEADER else ()


@lru_cache(maxsize=16)  # a scraper says the same each time; of clients that do not, little is kept
def _parsed(header: str) -> Sequence[_Preference]:
    preferences = []
    for item in header.lower().split(","):
        name, *pairs = [piece.strip() for piece in item.split(";")]
        parameters = {
            key.strip(): value.strip().strip('"') for key, _, value in (pair.partition("=") for pair in pairs)
        }
        quality = parameters.pop("q", "1")
        if name and _QUALITY.fullmatch(quality):
            preferences.append((name, parameters, float(quality)))
    return preferences
