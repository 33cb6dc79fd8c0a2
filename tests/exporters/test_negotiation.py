"""The choice of format and compression from what a client says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch_exporters.negotiation import accepts_gzip, choose_format
from commwatch_exporters.prometheus import Format

TEXT, OPENMETRICS = Format.TEXT, Format.OPENMETRICS


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        ("text/plain;version=0.0.4;q=0.5", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"', OPENMETRICS),
        # Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPENMETRICS,
        ),
        # Prometheus 3
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPENMETRICS,
        ),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.7", TEXT),
        ("text/plain,application/openmetrics-text", TEXT),
        ("application/openmetrics-text,text/plain", OPENMETRICS),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=2", TEXT),
        ("application/openmetrics-text;q=nan", TEXT),
        ("application/openmetrics-text;q=0.5;q=x", TEXT),
        ("application/openmetrics-text;version=9.9.9", TEXT),
        ("application/openmetrics-text;version=one", TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        (";;;,,,=;q=,/", TEXT),
        ("application/openmetrics-text," + "x" * 2000, TEXT),
    ],
)
def test_format(accept: str, chosen: Format) -> None:
    """The best format that we have; text 0.0.4 for whatever is not understood."""
    assert chosen is choose_format(accept)


@pytest.mark.parametrize(
    ("accept_encoding", "taken"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, br", False),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("*", True),
        ("*;q=0", False),
        ("identity, gzip;q=0.5", False),
        ("identity;q=0.5, gzip", True),
        ("gzip;q=yes", False),
        ("x-gzip", False),
    ],
)
def test_gzip(accept_encoding: str, taken: bool) -> None:
    """Only where the client takes it and does not prefer plain."""
    assert taken is accepts_gzip(accept_encoding)


@given(st.text() | st.text(';,=q01. */"').map(lambda text: f"application/openmetrics-text{text}"))
def test_any_header_gives_an_answer(header: str) -> None:
    """No header raises."""
    assert choose_format(header) in Format
    assert accepts_gzip(header) in (True, False)


@pytest.mark.parametrize("unit", [",", ";", ";q=", "a;b=c,", " "])
def test_a_huge_header_costs_nothing(unit: str) -> None:
    """16 KiB of any shape are left unread."""
    assert choose_format(unit * (16384 // len(unit)) + ",application/openmetrics-text;version=1.0.0") is Format.TEXT
