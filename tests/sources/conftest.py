"""Sources of these tests are closed when a test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.sources import close_sources


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    close_sources()
