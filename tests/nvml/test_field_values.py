"""Fields are read in place, and every entry says for itself whether it holds a value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvml.harness import Opened
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
    blackwell,
    install,
    packed,
)  # fmt: skip
from support.examples import examples

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
FIELDS = {
    169: "recoveries", 173: "correctable_errors", 174: "naks_received", 175: "receiver_errors", 176: "bad_tlps",
    177: "naks_sent", 178: "bad_dllps", 179: "nonfatal_errors", 180: "fatal_errors", 181: "unsupported_requests",
    182: "lcrc_errors", 183: "lane_errors",
}  # fmt: skip
"""Counters of PCIe that come in one call."""
_RANGES = {
    DOUBLE: st.floats(-1e30, 1e30), UINT: st.integers(0, 2**32 - 2), ULONG: st.integers(0, 2**64 - 2),
    ULONGLONG: st.integers(0, 2**64 - 2), LONGLONG: st.integers(0, 2**63 - 1), INT: st.integers(0, 2**31 - 1),
    USHORT: st.integers(0, 2**16 - 1),
}  # fmt: skip
_NUMBERS = st.sampled_from(sorted(FORMS)).flatmap(lambda kind: st.tuples(st.just(kind), _RANGES[kind]))


def of_fields(**changes: Any) -> FakeGpu:
    """A GPU whose fields hold their own number."""
    return FakeGpu(fields={(field, 0): packed(UINT, field) for field in FIELDS}, **changes)


def counters(opened: Opened, gpu: int = 0) -> dict[int, Any]:
    """The values of the fields."""
    labels, read = (str(gpu), f"0000:{0x17 + gpu:02x}:00.0"), opened.read("pcie")
    return {field: read.get((f"pcie_{name}_total", *labels)) for field, name in FIELDS.items()}


@examples(50)
@given(st.lists(_NUMBERS, min_size=len(FIELDS), max_size=len(FIELDS)))
def test_every_value_type_is_read_from_its_member_of_the_union(numbers: list[tuple[int, float]]) -> None:
    """Whatever types a driver mixes, and whatever the unused bytes hold, the numbers come back."""
    answers: dict[tuple[int, int], tuple[int, bytes] | int] = {
        (field, 0): packed(*number) for field, number in zip(FIELDS, numbers, strict=True)
    }
    with pytest.MonkeyPatch.context() as patch:
        library = Library([FakeGpu(fields=answers)])
        library.gpus[0].pci_bus_id = b"00000000:17:00.0"
        install(patch, library)
        opened = Opened(library, frozenset()).open()
        assert list(counters(opened).values()) == [number for _, number in numbers]
        opened.source.close()


@pytest.mark.parametrize(
    "answer",
    [
        packed(ULONGLONG, 2**64 - 1), packed(ULONG, 2**64 - 1), packed(UINT, 2**32 - 1), packed(INT, -1),
        packed(LONGLONG, -1), packed(DOUBLE, float("nan")), packed(DOUBLE, float("inf")), (9, bytes(8)), UNKNOWN, 2, 3,
    ],
)  # fmt: skip
def test_no_sentinel_becomes_a_number(driver: Driver, answer: Any) -> None:
    """Not-available values, unknown types and failed entries are absent; the entries beside them are not."""
    gpu = of_fields()
    opened = driver(gpu).open()
    gpu.fields[174, 0] = answer

    assert counters(opened) == {**{field: field for field in FIELDS}, 174: None}


def test_an_entry_that_the_driver_leaves_alone_is_not_the_last_value(driver: Driver) -> None:
    """The array is reused, its values are not."""
    opened = driver(of_fields()).open()
    assert counters(opened) == {field: field for field in FIELDS}
    opened.library.replace("nvmlDeviceGetFieldValues", lambda *arguments: 0)

    assert set(counters(opened).values()) == {None}
    assert [one.reason for one in opened.collect("pcie").absences] == ["unreadable"]


def test_gpus_that_answer_differently_have_their_own_numbers(driver: Driver) -> None:
    """By their own types and failures, in whatever order they are read."""
    gpus = [of_fields() for _ in range(5)]
    opened = driver(*gpus).open()
    absent = packed(UINT, 2**32 - 1)
    answers: list[tuple[int, bytes] | int] = [
        packed(UINT, 5),
        packed(ULONGLONG, 2**40),
        packed(DOUBLE, 0.5),
        UNKNOWN,
        absent,
    ]
    for gpu, answer in zip(gpus, answers, strict=True):
        gpu.fields[174, 0] = answer

    for _ in range(2):
        assert [counters(opened, gpu)[174] for gpu in range(5)] == [5, 2**40, 0.5, None, None]
        assert [counters(opened, gpu)[173] for gpu in range(5)] == [173] * 5
        assert [one.device for one in opened.collect("pcie").absences] == ["0000:1a:00.0"]


def test_a_bit_error_ratio_is_mantissa_and_exponent(driver: Driver) -> None:
    """The value is m × 10⁻ᵉ, whatever the bits above them hold; from exponent 238 on nothing is measured."""
    gpu = blackwell(1)
    gpu.fields[293, 0] = packed(ULONGLONG, 1 << 8 | 6)
    opened = driver(gpu).open()
    for mantissa, exponent, rest in product((0, 1, 7, 15), (0, 1, 6, 15, 237, 238, 254, 255), (0, 2**20 - 1)):
        gpu.fields[293, 0] = packed(ULONGLONG, rest << 12 | mantissa << 8 | exponent)

        ratio = opened.read("nvlink_errors")[("nvlink_raw_bit_error_ratio", *A, "0")]

        expected = mantissa / 10**exponent if exponent < 238 else 0
        assert ratio == pytest.approx(expected, rel=1e-12, abs=0)
