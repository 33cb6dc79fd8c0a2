"""A prepared array of field values is read in place, and every entry says for itself whether it holds a value."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.sources.nvml.field_values import FieldBatch, batch_of
from commwatch.sources.nvml.fields import COUNTERS
from commwatch.sources.nvml.fields.nvlink import bit_error_ratio
from commwatch.sources.nvml.fields.row import FieldCounter
from commwatch.sources.nvml.source import TOGETHER
from nvml.library import (
    DOUBLE,
    FORMS,
    INT,
    LONGLONG,
    UINT,
    ULONG,
    ULONGLONG,
    UNKNOWN,
    USHORT,
    FakeGpu,
    Library,
    install,
    packed,
)  # fmt: skip

_RANGES = {
    DOUBLE: st.floats(-1e30, 1e30), UINT: st.integers(0, 2**32 - 2), ULONG: st.integers(0, 2**64 - 2),
    ULONGLONG: st.integers(0, 2**64 - 2), LONGLONG: st.integers(0, 2**63 - 1), INT: st.integers(0, 2**31 - 1),
    USHORT: st.integers(0, 2**16 - 1),
}  # fmt: skip
_NUMBERS = st.sampled_from(sorted(FORMS)).flatmap(lambda kind: st.tuples(st.just(kind), _RANGES[kind]))


def _handle(library: Library, index: int = 0) -> Any:  # the binding has no types
    handle = pynvml.c_nvmlDevice_t()
    library.functions["nvmlDeviceGetHandleByIndex_v2"](ctypes.c_uint(index), ctypes.byref(handle))
    return handle


@given(st.lists(_NUMBERS, min_size=1, max_size=40))
def test_every_value_type_is_read_from_its_member_of_the_union(numbers: list[tuple[int, float]]) -> None:
    """Whatever types a driver mixes, and whatever the unused bytes hold, the numbers come back."""
    library = Library([FakeGpu(fields={(place, 0): packed(*number) for place, number in enumerate(numbers)})])
    batch = FieldBatch([(place, 0, 1) for place in range(len(numbers))])
    with pytest.MonkeyPatch.context() as patch:
        install(patch, library)
        assert [number for _, number in numbers] == batch.read(_handle(library))


@pytest.mark.parametrize(
    "answer",
    [
        packed(ULONGLONG, 2**64 - 1), packed(ULONG, 2**64 - 1), packed(UINT, 2**32 - 1), packed(INT, -1),
        packed(LONGLONG, -1), packed(DOUBLE, float("nan")), packed(DOUBLE, float("inf")), (9, bytes(8)), UNKNOWN, 2, 3,
    ],
)  # fmt: skip
def test_no_sentinel_becomes_a_number(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Not-available values, unknown types and failed entries are absent; the entry beside them is not."""
    library = Library([FakeGpu(fields={(1, 0): answer, (2, 0): packed(UINT, 5)})])
    install(monkeypatch, library)

    assert FieldBatch([(1, 0, 3), (2, 0, 3)]).read(_handle(library)) == [None, 15]


def test_an_entry_that_the_driver_leaves_alone_is_not_the_last_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The array is reused, its values are not."""
    library = Library([FakeGpu(fields={(1, 0): packed(UINT, 5)})])
    install(monkeypatch, library)
    batch, handle = FieldBatch([(1, 0, 1)]), _handle(library)
    assert batch.read(handle) == [5]
    library.functions["nvmlDeviceGetFieldValues"] = lambda *arguments: 0
    install(monkeypatch, library)

    assert batch.read(handle) == [None]
    assert batch.failures() == {UNKNOWN: "nvmlDeviceGetFieldValues field 1 scope 0"}


def test_one_array_serves_gpus_that_answer_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its own numbers, by its own types and failures, in whatever order they are read."""
    absent = packed(UINT, 2**32 - 1)
    answers: list[Any] = [packed(UINT, 5), packed(ULONGLONG, 2**40), packed(DOUBLE, 0.5), UNKNOWN, absent]
    library = Library([FakeGpu(fields={(1, 0): answer, (2, 0): packed(UINT, 7)}) for answer in answers])
    install(monkeypatch, library)
    batch = batch_of(((1, 0, 2), (2, 0, 1)))
    handles = [_handle(library, index) for index in range(len(answers))]

    for _ in range(2):
        read = [(batch.read(handle), bool(batch.failures())) for handle in handles]
        assert [one for (one, _), _ in read] == [10, 2**41, 1.0, None, None]
        assert [failed for _, failed in read] == [False, False, False, True, False]
    assert batch_of(((1, 0, 2), (2, 0, 1))) is batch


def test_what_is_read_of_all_gpus_at_once_has_no_array() -> None:
    """The array is for one GPU after another."""
    assert not [row for row in COUNTERS if isinstance(row, FieldCounter) and row.collector in TOGETHER]


def test_a_call_that_fails_as_a_whole_gives_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the entries are not looked at, whatever they hold."""
    gpu = FakeGpu(fields={(1, 0): packed(UINT, 5)})
    library = Library([gpu])
    install(monkeypatch, library)
    batch, handle = FieldBatch([(1, 0, 1)]), _handle(library)
    batch.read(handle)
    gpu.code = 1

    assert batch.read(handle) == [None]
    assert list(batch.codes) == [1]


def test_the_binding_reads_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of an entry is the binding's: both ways of reading agree."""
    fields = {(number, link): packed(ULONGLONG, 100 * number + link) for number in (138, 139) for link in range(3)}
    library = Library([FakeGpu(fields=dict(fields))])
    install(monkeypatch, library)
    handle, wanted = _handle(library), list(fields)

    assert ctypes.sizeof(pynvml.c_nvmlFieldValue_t) == 40
    theirs = [entry.value.ullVal for entry in pynvml.nvmlDeviceGetFieldValues(handle, wanted)]
    assert theirs == FieldBatch([(*one, 1) for one in wanted]).read(handle)


@given(mantissa=st.integers(0, 15), exponent=st.integers(0, 237), rest=st.integers(0, 2**20))
def test_a_bit_error_ratio_is_mantissa_and_exponent(mantissa: int, exponent: int, rest: int) -> None:
    """The value is m × 10⁻ᵉ, whatever the bits above them hold."""
    ratio = bit_error_ratio(rest << 12 | mantissa << 8 | exponent)

    assert ratio == pytest.approx(mantissa / 10**exponent, rel=1e-12, abs=0)


@given(mantissa=st.integers(0, 15), exponent=st.integers(238, 255))
def test_the_sentinel_and_the_floor_of_a_bit_error_ratio_are_zero(mantissa: int, exponent: int) -> None:
    """Mantissa 15 with exponent 255 means zero, and nothing is measured from exponent 238 on."""
    assert bit_error_ratio(mantissa << 8 | exponent) == 0
