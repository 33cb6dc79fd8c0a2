"""The fabric as a GPU sees it: which structure is asked for, what its bits mean, and when they mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch_exporters.snapshot import Value
from nvml.harness import Opened, values_of
from nvml.library import Fabric, FakeGpu, Library, install
from support.examples import examples

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
V2 = (0x02000024,)
TRUE, FALSE = 1, 2
CHECKS = {
    "degraded_bandwidth": 0, "route_recovery": 2, "route_unhealthy": 4, "access_timeout_recovery": 6,
    "partition_not_assigned": 12, "fabric_manager_disconnected": 14,
}  # fmt: skip
"""By name of the fault: the lower of its two bits."""


def _read(driver: Driver, fabric: Fabric | None) -> dict[str, Value]:
    values = driver(FakeGpu(fabric=fabric)).open().read("fabric")
    return {key[3] if key[0] == "fabric_fault" else key[0]: value for key, value in values.items()}


def test_a_healthy_gpu_of_a_fabric(driver: Driver) -> None:
    """A partition that is assigned and a manager that is connected are true and no fault; the others are false."""
    mask = FALSE | FALSE << 2 | FALSE << 4 | FALSE << 6 | 1 << 8 | TRUE << 12 | TRUE << 14

    assert _read(driver, Fabric(mask=mask, summary=1)) == {
        "fabric_state": 3, "fabric_status": 0, "fabric_health": 1, "fabric_incorrect_configuration": 1,
        "degraded_bandwidth": 0, "route_recovery": 0, "route_unhealthy": 0, "access_timeout_recovery": 0,
        "partition_not_assigned": 0, "fabric_manager_disconnected": 0,
    }  # fmt: skip


def test_a_gpu_with_every_fault(driver: Driver) -> None:
    """What should be there is false, what should not is true."""
    mask = TRUE | TRUE << 2 | TRUE << 4 | TRUE << 6 | 5 << 8 | FALSE << 12 | FALSE << 14

    values = _read(driver, Fabric(mask=mask, summary=2))

    assert {values[name] for name in CHECKS} == {1}
    assert values["fabric_incorrect_configuration"] == 5
    assert values["fabric_health"] == 2


def test_a_gpu_that_checks_nothing_has_no_fault_and_no_health(driver: Driver) -> None:
    """The H100 80GB HBM3 gives no verdict: that is neither healthy nor a fault."""
    values = _read(driver, Fabric(mask=0, summary=0))

    assert {name: value for name, value in values.items() if value is not None} == {
        "fabric_state": 3, "fabric_status": 0
    }  # fmt: skip


@pytest.mark.parametrize("state", [0, 1, 2])
def test_the_status_counts_only_once_joining_is_over(driver: Driver, state: int) -> None:
    """Before that its number is left over from nothing."""
    values = _read(driver, Fabric(state=state, status=999))

    assert values["fabric_state"] == state
    assert values["fabric_status"] is None


def test_a_driver_that_does_not_know_the_newest_structure_is_asked_for_the_one_before(driver: Driver) -> None:
    """There is no summary in it; the rest is the same."""
    opened = driver(FakeGpu(fabric=Fabric(mask=TRUE, summary=1, status=3, versions=V2))).open()

    values = opened.read("fabric")

    assert values[("fabric_fault", *A, "degraded_bandwidth")] == 1
    assert values[("fabric_status", *A)] == 3
    assert values[("fabric_health", *A)] is None
    identity = opened.read("identity")
    assert identity["counters_state", "nvml", "gpu_fabric_info_v3"] == 1
    assert identity["counters_state", "nvml", "gpu_fabric_info_v2"] == 0


@pytest.mark.parametrize("fabric", [None, Fabric(versions=())])
def test_a_gpu_without_a_fabric_has_no_series(driver: Driver, fabric: Fabric | None) -> None:
    """Neither is an unknown structure a failure."""
    opened = driver(FakeGpu(fabric=fabric)).open()

    batch = opened.collect("fabric")

    assert batch.readings == []
    assert batch.absences == []
    assert opened.read("identity")["counters_state", "nvml", "gpu_fabric_info_v2"] == 1


def test_a_library_without_the_function_has_no_fabric(driver: Driver) -> None:
    """As before R550."""
    opened = driver(FakeGpu(fabric=Fabric()))
    opened.library.replace("nvmlDeviceGetGpuFabricInfoV", None)

    batch = opened.open().collect("fabric")

    assert (batch.readings, batch.absences) == ([], [])


@pytest.mark.parametrize(
    ("cluster", "label"),
    [(bytes(16), ""), (bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f")],
)
def test_cluster_and_clique_are_labels(driver: Driver, cluster: bytes, label: str) -> None:
    """A UUID of zeros is no cluster."""
    values = driver(FakeGpu(fabric=Fabric(cluster=cluster))).open().read("identity")

    assert values[("fabric_info", *A, label, "7")] == 1


def test_a_gpu_that_has_not_joined_has_no_place_yet(driver: Driver) -> None:
    """Its cluster and clique mean nothing until then."""
    values = driver(FakeGpu(fabric=Fabric(state=2))).open().read("identity")

    assert not [key for key in values if key[0] == "fabric_info"]


def test_a_failing_call_is_an_absence(driver: Driver) -> None:
    """Whatever was healthy before is absent then."""
    gpu = FakeGpu(fabric=Fabric(mask=FALSE))
    opened = driver(gpu).open()
    gpu.codes["nvmlDeviceGetGpuFabricInfoV"] = 999

    batch = opened.collect("fabric")

    assert set(values_of(batch).values()) == {None}
    assert [one.reason for one in batch.absences] == ["unreadable"]


@examples(50)
@given(mask=st.integers(0, 2**32 - 1), state=st.integers(0, 2**32 - 1), summary=st.integers(0, 255))
def test_no_mask_is_too_strange(mask: int, state: int, summary: int) -> None:
    """Every check is 0, 1 or absent, whatever bits a driver sets."""
    with pytest.MonkeyPatch.context() as patch:
        library = Library([FakeGpu(fabric=Fabric(mask=mask, state=state, summary=summary))])
        install(patch, library)
        opened = Opened(library, frozenset()).open()
        values = {key[3]: value for key, value in opened.read("fabric").items() if key[0] == "fabric_fault"}
        opened.source.close()

    assert set(values) <= set(CHECKS)
    assert set(values.values()) <= {0, 1, None}
    for name, shift in CHECKS.items():
        assert (values.get(name) is None) == (mask >> shift & 3 in (0, 3))
