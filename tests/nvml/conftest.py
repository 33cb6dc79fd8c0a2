"""Fixtures for tests of the NVML source."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from commwatch.sources.nvml.source import NvmlSource
from nvml.harness import Opened
from nvml.library import FakeGpu, Library, install


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Opened]]:
    """Makes a source over a library with the GPUs given; closed at the end."""
    made: list[Opened] = []

    def make(*gpus: FakeGpu, opt_in: frozenset[str] = frozenset(), kind: type[NvmlSource] = NvmlSource) -> Opened:
        for number, gpu in enumerate(gpus):
            gpu.pci_bus_id = f"00000000:{0x17 + number:02X}:00.0".encode()
        library = Library(list(gpus))
        install(monkeypatch, library)
        made.append(Opened(library, opt_in, kind))
        return made[-1]

    yield make
    for one in made:
        one.source.close()
        assert one.library.opened == 0
        assert one.library.samples == 0
