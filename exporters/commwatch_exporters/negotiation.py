"""The format of the page, from Accept, and whether it is compressed, from Accept-Encoding; nonsense never fails."""

from __future__ import annotations

import enum
import re

from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

_GZIP_REFUSED = re.compile(r"\bgzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)


class Format(enum.Enum):
    """A format of the page, as prometheus_client writes it."""

    TEXT = choose_encoder("")
    OPENMETRICS = choose_encoder("application/openmetrics-text")

    @property
    def content_type(self) -> str:
        """With the version."""
        return self.value[1]

    def encode(self, families: Collector) -> bytes:
        """The page of some families."""
        return self.value[0](families)


def choose_format(accept: str) -> Format:
    """OpenMetrics where the client names it, else text; never a version or an escaping that we do not write."""
    try:
        _, content_type = choose_encoder(accept)
    except TypeError:  # a version that is no number
        return Format.TEXT
    return Format.OPENMETRICS if content_type.startswith("application/openmetrics-text") else Format.TEXT


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client takes gzip; the library does not know that it may refuse it with ``q=0``."""
    return gzip_accepted(accept_encoding) and not _GZIP_REFUSED.search(accept_encoding)
