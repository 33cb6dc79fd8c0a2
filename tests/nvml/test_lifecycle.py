"""A driver that is reloaded, GPUs that come, go or change their handle while the source is open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from commwatch.readings import SourceUnavailable
from commwatch.sources.nvml.source import NvmlSource
from nvml.harness import Opened
from nvml.library import INVALID_ARGUMENT, hopper

Driver: TypeAlias = "Callable[..., Opened]"
A, B, C = "0000:17:00.0", "0000:18:00.0", "0000:19:00.0"
COLLECTORS = ("identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie", "events", "p2p")
UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_MISMATCH = 1, 9, 18


def devices(opened: Opened, collector: str) -> dict[str, str]:
    """Address by index of the GPUs that a run gave readings of."""
    readings = opened.collect(collector).readings
    return {one.series[0][1][0]: one.device for one in readings if one.device}


def test_a_gpu_that_was_added_is_read_from_the_next_look_on(driver: Driver) -> None:
    """The number of GPUs is asked for with the identity; indexes that moved are right at once."""
    first, second = hopper(), hopper()
    opened = driver(first, second).open()
    added = hopper()
    added.pci_bus_id = b"00000000:19:00.0"
    opened.library.gpus[:] = [added, first, second]

    assert devices(opened, "identity") == {"0": C, "1": A, "2": B}
    assert devices(opened, "nvlink") == {"0": C, "1": A, "2": B}
    assert opened.source.aliases == {"index:0": C, "index:1": A, "index:2": B}
    assert opened.library.opened == 1


def test_a_gpu_that_was_removed_leaves_no_series(driver: Driver) -> None:
    """The rest moves up, and what it tells goes by its new index."""
    first, second = hopper(), hopper()
    opened = driver(first, second).open()
    opened.library.gpus[:] = [second]

    batch = opened.collect("identity")

    assert {labels for reading in batch.readings for _, labels in reading.series if A in labels} == set()
    assert devices(opened, "pcie") == {"0": B}
    assert batch.absences == []


def test_a_suspect_alone_is_not_mistaken_for_its_neighbour(driver: Driver) -> None:
    """A process for one GPU touches no other when the indexes have moved."""
    first, second = hopper(), hopper()
    opened = driver(first, second).open(only=frozenset({"index:1", B}))
    assert devices(opened, "pcie") == {"1": B}
    opened.library.gpus[:] = [first, hopper(), second]
    opened.library.gpus[1].pci_bus_id = b"00000000:19:00.0"

    assert devices(opened, "identity") == {}


@pytest.mark.parametrize("code", [INVALID_ARGUMENT, 6, 28])
def test_a_handle_that_is_dead_is_no_gpu_without_counters(driver: Driver, code: int) -> None:
    """Every call refuses it, as a GPU refuses what it does not have; the others go on, and so does it when it can."""
    gone, other = hopper(), hopper()
    opened = driver(gone, other).open()
    gone.code = code

    batch = opened.collect("identity")

    assert [(one.device, one.reason) for one in batch.absences] == [(A, "not_found")]
    assert devices(opened, "nvlink") == {"1": B}
    assert [one.reason for one in opened.collect("nvlink").absences] == ["not_found"]
    gone.code = 0
    assert devices(opened, "identity") == {"0": A, "1": B}
    assert opened.collect("nvlink").absences == []


def test_a_handle_of_another_gpu_is_given_up(driver: Driver) -> None:
    """Its numbers would go by the wrong address."""
    changed = hopper()
    opened = driver(changed).open()
    changed.pci_bus_id = b"00000000:19:00.0"

    (absence,) = opened.collect("identity").absences

    assert (absence.device, absence.reason) == (A, "not_found")
    assert C in absence.detail


def _newer_version(text: Any, size: object) -> int:
    text.value = b"999.1"
    return 0


@pytest.mark.parametrize(
    "collector", ["identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie", "events", "p2p"]
)
@pytest.mark.parametrize(
    ("code", "reason"),
    [(UNINITIALIZED, "no_driver"), (DRIVER_NOT_LOADED, "no_driver"), (LIBRARY_MISMATCH, "library_mismatch")],
)
def test_a_driver_that_is_unloaded_is_unavailable_in_every_collector(
    driver: Driver, collector: str, code: int, reason: str
) -> None:
    """No other GPU is asked, and the report ends. It is read again, by another version, once it is opened again."""
    gpu = hopper()
    opened = driver(gpu, hopper()).open()
    gpu.code = opened.library.peer_code = code
    opened.library.waiting.append(code)

    with pytest.raises(SourceUnavailable) as caught:
        opened.collect(collector)
    assert caught.value.reason == reason
    assert opened.reports[-1] == ""
    opened.source.close()
    gpu.code = opened.library.peer_code = 0
    opened.library.waiting.clear()
    opened.library.replace("nvmlSystemGetDriverVersion", _newer_version)
    opened.open()

    versions = {key[1] for key in opened.read("identity") if key[0] == "software_info"}
    assert versions == {"999.1"}
    assert opened.collect(collector).absences == []


def test_a_library_that_does_not_fit_the_module_says_what_to_do(driver: Driver) -> None:
    """It does not pass by itself."""
    opened = driver(hopper())
    opened.library.init_code = LIBRARY_MISMATCH

    with pytest.raises(SourceUnavailable, match="reload the module or restart the node") as raised:
        opened.open()

    assert raised.value.reason == "library_mismatch"


def test_a_count_that_fails_changes_nothing(driver: Driver) -> None:
    """Unknown is not another number."""
    opened = driver(hopper()).open()
    opened.library.count_code = 999

    assert devices(opened, "identity") == {"0": A}


def test_a_library_that_was_replaced_is_let_go(driver: Driver, tmp_path: Path) -> None:
    """An upgrade removes the file that is still mapped; one that is there as before, or other files, change nothing."""
    opened = driver(hopper())
    maps = tmp_path / "maps"
    opened.source = NvmlSource(own_maps=maps)
    opened.open()
    line = "7f00-7f01 r-xp 00000000 08:01 42 /usr/lib/x86_64-linux-gnu/{}\n"
    kept = line.format("libnvidia-ml.so.580.95.05") + line.format("libc.so.6 (deleted)")

    maps.write_text(kept)
    assert opened.collect("identity").absences == []

    maps.write_text(kept + line.format("libnvidia-ml.so.580.95.05 (deleted)"))
    with pytest.raises(SourceUnavailable, match="replaced beneath us") as caught:
        opened.collect("identity")
    assert caught.value.reason == "library_mismatch"
