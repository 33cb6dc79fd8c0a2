"""What holds for each source that reads devices from files: whom it touches, what stays, and an empty node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from commwatch.readings import SourceUnavailable
from commwatch.sources.base import Source
from commwatch.sources.ethtool.abi import StatisticsCalls
from commwatch_exporters.snapshot import Layout
from sources.ethtool_kernel import Kernel
from support import infiniband, pci
from support.interfaces import add_interface
from support.sources import devices, source_of


def _add_interface(sysfs: Path, place: int) -> str:
    add_interface(sysfs, f"eth{place}", f"pci0000:17/0000:1{place}:00.0")
    return f"eth{place}"


def _add_port(sysfs: Path, place: int) -> str:
    infiniband.add_port(infiniband.add_device(sysfs, f"mlx5_{place}", f"0000:1{place}:00.0"))
    return f"mlx5_{place}:1"


def _add_gpu(sysfs: Path, place: int) -> str:
    pci.add_device(sysfs, f"pci0000:00/0000:0{place}:00.0", pci.GPU, pci.LINK)
    return f"0000:0{place}:00.0"


ADD: dict[str, Callable[[Path, int], str]] = {
    "network": _add_interface, "ethtool": _add_interface, "rdma": _add_port, "pci": _add_gpu
}  # fmt: skip
"""Adds a device and gives its name."""
FOLDERS = {"network": "class/net", "ethtool": "class/net", "rdma": "class/infiniband", "pci": "bus/pci/devices"}


@pytest.fixture(params=ADD)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(
    name: str, sysfs: Path, reported: list[str], leave_out: Iterable[str] = (), only: Iterable[str] | None = None
) -> Source:
    kernel = Kernel(**{f"eth{place}": {"rx_bytes_phy": 1} for place in range(3)})
    make = (lambda: StatisticsCalls(kernel)) if name == "ethtool" else None
    return source_of(name, sysfs, stand_in=make, report=reported.append, leave_out=leave_out, only=only)


def test_devices_are_reported_before_they_are_touched(name: str, tmp_path: Path) -> None:
    """Each in turn, and the end as empty; a suspect is left alone, or all but it."""
    first, second, third = [ADD[name](tmp_path, place) for place in range(3)]
    reported: list[str] = []
    source = opened(name, tmp_path, reported, leave_out={second})
    assert second not in reported
    reported.clear()

    assert devices(source.collect(name)) == [first, third]
    assert reported == [first, third, ""]
    source.close()
    source.close()
    source.open(reported.append, frozenset(), frozenset({second}))
    assert devices(source.collect(name)) == [second]
    assert devices(opened(name, tmp_path, reported, only={third}).collect(name)) == [third]


def test_series_are_of_the_catalogue_and_stay(name: str, tmp_path: Path) -> None:
    """So that they travel once."""
    ADD[name](tmp_path, 0)
    source = opened(name, tmp_path, [])

    first, second = source.collect(name), source.collect(name)

    assert [len(Layout(one.series).prefixes) for one in first.readings] == [len(one.values) for one in first.readings]
    assert [one.series for one in second.readings] == [one.series for one in first.readings]
    assert first.absences == []


def test_a_node_without_the_kind_is_not_one_without_devices(name: str, tmp_path: Path) -> None:
    """Without the folder the source is unavailable; an empty one is an answer."""
    with pytest.raises(SourceUnavailable) as caught:
        opened(name, tmp_path, [])
    assert caught.value.reason == "not_found"

    (tmp_path / FOLDERS[name]).mkdir(parents=True)
    batch = opened(name, tmp_path, []).collect(name)
    assert [(one.device, one.series) for one in batch.readings] == [("", ())] * (name in ("network", "rdma"))
    assert batch.absences == []
