"""The choice of format and compression from what a client says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commwatch_exporters.metrics_page import accepts_gzip, choose_format
from commwatch_exporters.node_collector import Format
from support.passes import in_one_pass

TEXT, OPENMETRICS = Format.TEXT, Format.OPENMETRICS


@in_one_pass(
    "accept, chosen",
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        ("text/plain;version=0.0.4;q=0.5", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPENMETRICS),
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
        ("application/openmetrics-text,text/plain", OPENMETRICS),
        ("application/openmetrics-text;version=9.9.9;escaping=dots", OPENMETRICS),
        ("application/openmetrics-text;version=one", TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        (";;;,,,=;q=,/", TEXT),
        ('application/openmetrics-text;version="1.0.0"', TEXT),
        ("application/openmetrics-text;version=" + "9" * 5000 + ".x", TEXT),
    ],
)
def test_format(accept: str, chosen: Format) -> None:
    """OpenMetrics 1.0.0 where it is named, without the escaping that a client asks for; else text 0.0.4."""
    assert chosen is choose_format(accept)


@in_one_pass(
    "accept_encoding, taken",
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, br", False),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("br, gzip ; q=0.0", False),
        ("*", False),
        ("identity;q=0.5, gzip", True),
        ("gzip;q=0.05", True),
        ("x-gzip", False),
    ],
)
def test_gzip(accept_encoding: str, taken: bool) -> None:
    """Only where the client names it and does not refuse it."""
    assert taken is accepts_gzip(accept_encoding)


@given(st.text() | st.text(';,=q01. */"').map(lambda text: f"application/openmetrics-text{text}"))
def test_any_header_gives_an_answer(header: str) -> None:
    """No header raises."""
    assert choose_format(header) in Format
    assert accepts_gzip(header) in (True, False)


def test_the_content_types_are_those_of_the_formats() -> None:
    """No version and no escaping of a client comes back."""
    assert TEXT.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert OPENMETRICS.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
