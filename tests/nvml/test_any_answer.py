"""A driver that answers every question with any bytes, as one that is broken or hijacked would."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from commwatch.readings import Batch, SourceUnavailable
from commwatch.sources.nvml.source import NvmlSource
from commwatch_exporters.catalogue import CATALOGUE, OPT_IN
from nvml.library import install

GPUS = 4


class Nonsense:
    """Each function writes random bytes wherever it is given memory, and now and then gives an error.

    But GPUs have handles and addresses: else nothing more would be asked.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            if name == "nvmlDeviceGetCount_v2":
                arguments[0]._obj.value = GPUS
            elif name == "nvmlDeviceGetHandleByIndex_v2":
                handle = ctypes.c_void_p(arguments[0].value + 1)
                ctypes.memmove(arguments[1], ctypes.byref(handle), ctypes.sizeof(handle))
            elif name != "nvmlInitWithFlags":
                for argument in arguments:  # memory is given by reference, or as an array
                    self._fill(getattr(argument, "_obj", argument if isinstance(argument, ctypes.Array) else None))
                if (
                    "RunningProcesses" in name
                ):  # the binding makes room for as many, and the driver's word is all it has
                    arguments[1]._obj.value = self._chance.choice([0, 1, 3, 1000])
                if name.startswith("nvmlDeviceGetPciInfo"):
                    number = (ctypes.cast(arguments[0], ctypes.c_void_p).value or 0) % 256
                    arguments[1]._obj.busId = f"00000000:{number:02X}:00.0".encode()
                elif self._chance.random() < 0.05:
                    return self._chance.choice([3, 7, 10, 999])
            return 0

        return function

    def _fill(self, target: Any) -> None:
        if isinstance(target, (ctypes.Structure, ctypes.Array, ctypes._SimpleCData)):
            size = ctypes.sizeof(target)
            ctypes.memmove(ctypes.addressof(target), self._bytes(size), size)

    def _bytes(self, size: int) -> bytes:
        if self._chance.random() < 0.6:
            return self._chance.randbytes(size)
        return bytes(self._chance.choice([[0], [255], [127], [0, 1, 2, 3], b"\x1b[2J\n"])) * size


@pytest.mark.parametrize("seed", range(20))
def test_any_answer_is_taken(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every collector gives finite numbers under labels that can be written, or says why not."""
    install(monkeypatch, Nonsense(random.Random(seed)))  # noqa: S311  noise, and the same each time
    now = [1000.0]
    source = NvmlSource(lambda: now[0], frozenset(OPT_IN))
    batches: list[Batch] = []
    try:
        source.open(lambda device: None, frozenset(), None)
        for _ in range(3):
            now[0] += 1.0
            for collector in source.collectors:
                try:
                    batches.append(source.collect(collector))
                except SourceUnavailable:
                    continue
    except SourceUnavailable:
        pass
    finally:
        source.close()

    assert len({name for batch in batches for one in batch.readings for name, _ in one.series}) > 30
    for batch in batches:
        for one in batch.readings:
            for (name, labels), value in zip(one.series, one.values, strict=True):
                assert len(labels) == len(CATALOGUE[name].labels)
                "".join(labels).encode()
                assert value is None or math.isfinite(value), (name, value)
        "".join(absence.detail for absence in batch.absences).encode()
