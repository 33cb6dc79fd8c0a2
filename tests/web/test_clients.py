"""Whose share of the endpoint a connection takes."""

from __future__ import annotations

import pytest

from commwatch_exporters.shares import client_of


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("192.0.2.7", 4711), "192.0.2.7"),
        (("::ffff:192.0.2.7", 4711, 0, 0), "192.0.2.7"),
        (("::1", 4711, 0, 0), "::/64"),
        (("2001:db8:1:2:3:4:5:6", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:3::1", 4711, 0, 0), "2001:db8:1:3::/64"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::/64"),
        ("", ""),
        ("/run/other.sock", ""),
        (b"\0name", ""),
        (None, ""),
    ],
)
def test_the_client_behind_an_address(peer: object, client: str) -> None:
    """An IPv4 address, mapped or not; the /64 of an IPv6 address; of a unix socket the address says nothing."""
    assert client_of(peer) == client
