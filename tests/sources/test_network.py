"""Network interfaces read from trees as the kernel lays them out."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import NetworkSection, Sources
from commwatch.readings import Batch
from commwatch_exporters.snapshot import Value
from support.examples import examples
from support.interfaces import FILES, SLOT, add_interface, bind
from support.passes import in_one_pass
from support.sources import devices, failures, reading_of, refuse, source_of, states

opened = partial(source_of, "network")
EVERYTHING = Sources(network=NetworkSection(physical_only=False))


def value(batch: Batch, device: str, metric: str) -> Value:
    reading = reading_of(batch, device)
    return dict(zip(reading.series, reading.values, strict=True))[f"commwatch_ethernet_{metric}", (device,)]


def test_an_interface_is_read_completely(tmp_path: Path) -> None:
    """Each metric has the number of its file, the speed in bytes per second."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:17:01.0/0000:18:00.0")

    batch = opened(tmp_path).collect("network")

    reading = reading_of(batch, "eth0")
    assert dict(zip(reading.series, reading.values, strict=True)) == {
        ("commwatch_ethernet_transmit_bytes_total", ("eth0",)): 2**64 - 1,
        ("commwatch_ethernet_receive_bytes_total", ("eth0",)): 2000,
        ("commwatch_ethernet_transmit_packets_total", ("eth0",)): 31,
        ("commwatch_ethernet_receive_packets_total", ("eth0",)): 32,
        ("commwatch_ethernet_transmit_errors_total", ("eth0",)): 3,
        ("commwatch_ethernet_receive_errors_total", ("eth0",)): 4,
        ("commwatch_ethernet_transmit_drops_total", ("eth0",)): 5,
        ("commwatch_ethernet_receive_drops_total", ("eth0",)): 6,
        ("commwatch_ethernet_receive_crc_errors_total", ("eth0",)): 61,
        ("commwatch_ethernet_receive_missed_total", ("eth0",)): 62,
        ("commwatch_ethernet_carrier_changes_total", ("eth0",)): 7,
        ("commwatch_ethernet_carrier_downs_total", ("eth0",)): 3,
        ("commwatch_ethernet_carrier", ("eth0",)): 1,
        ("commwatch_ethernet_speed_bytes_per_second", ("eth0",)): 50_000_000_000,
        ("commwatch_ethernet_mtu_bytes", ("eth0",)): 9000,
        ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "")): 1,
    }
    assert set(states(batch).values()) == {0}
    assert batch.absences == []


def test_a_value_that_the_kernel_refuses_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The carrier of an interface that is switched off reads EINVAL: supported, absent, and no error."""
    add_interface(tmp_path, "eth0")
    refuse(monkeypatch, {"/carrier": errno.EINVAL})

    batch = opened(tmp_path).collect("network")

    assert value(batch, "eth0", "carrier") is None
    assert states(batch)["carrier"] == 0
    assert batch.absences == []


@pytest.mark.parametrize(
    ("device", "changes"),
    [
        ("pci0000:00/0000:18:00.0/virtio2", {"speed": "-1"}),
        (SLOT, {"speed": "0"}),
        (SLOT, {"speed": "4294967295"}),
        (SLOT, {"carrier": "0"}),
    ],
    ids=["a virtual adapter", "0", "-1 of 32 bits", "a link that is down"],
)
def test_an_unknown_speed_is_absent(tmp_path: Path, device: str, changes: dict[str, str]) -> None:
    """No number and no error, in each spelling; what a driver goes on giving of a link that is down is not believed."""
    add_interface(tmp_path, "eth0", device, changes=changes)

    batch = opened(tmp_path).collect("network")

    assert value(batch, "eth0", "speed_bytes_per_second") is None
    assert ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "")) in reading_of(batch, "eth0").series
    assert batch.absences == []


@pytest.mark.parametrize(
    ("error", "reason"), [(errno.EACCES, "no_permission"), (errno.EPERM, "no_permission"), (errno.ENODEV, "not_found"),
                          (errno.ENXIO, "not_found"), (errno.EBUSY, "not_ready"), (errno.EIO, "unreadable")]
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, reason: str
) -> None:
    """A refused file is absent with its reason, and the other values stay."""
    add_interface(tmp_path, "eth0")
    refuse(monkeypatch, {"/speed": error})

    batch = opened(tmp_path).collect("network")

    assert failures(batch) == [("eth0", reason)]
    assert value(batch, "eth0", "speed_bytes_per_second") is None
    assert value(batch, "eth0", "carrier") == 1


def test_a_counter_that_no_interface_has_is_unsupported(tmp_path: Path) -> None:
    """A counter that this kernel lacks is absent and said to be unsupported; one interface that has it is enough."""
    add_interface(tmp_path, "eth0", changes={"carrier_changes": None, "statistics/tx_errors": None})
    add_interface(tmp_path, "eth1", "pci0000:17/0000:18:00.1", changes={"carrier_changes": None})

    batch = opened(tmp_path).collect("network")

    assert value(batch, "eth0", "carrier_changes_total") is None
    assert states(batch)["carrier_changes"] == 1
    assert states(batch)["tx_errors"] == 0
    assert batch.absences == []


def test_virtual_interfaces_are_left_out(tmp_path: Path) -> None:
    """Loopback, bridges, functions beside their port, their representors and what is no Ethernet are left out."""
    add_interface(tmp_path, "lo", "", changes={"type": "772"})
    add_interface(tmp_path, "docker0", "")
    add_interface(tmp_path, "ib0", changes={"type": "32"})
    add_interface(tmp_path, "eth0v0", "pci0000:17/0000:18:00.2")
    (tmp_path / "devices/pci0000:17/0000:18:00.2/physfn").symlink_to("../0000:18:00.0")
    add_interface(tmp_path, "eth0s4", "pci0000:17/0000:18:00.0/mlx5_core.sf.4")
    for name, port in (("rep0", "pf0vf3"), ("rep1", "c1pf0sf88")):
        add_interface(tmp_path, name, "pci0000:17/0000:19:00.0", changes={"phys_port_name": port})
    add_interface(tmp_path, "eth0", "pci0000:17/0000:19:00.0", changes={"phys_port_name": "p0"})
    (tmp_path / "class/net/bonding_masters").write_text("bond0\n")

    assert devices(opened(tmp_path).collect("network")) == ["eth0"]
    everything = ["docker0", "eth0", "eth0s4", "eth0v0", "ib0", "lo", "rep0", "rep1"]
    assert devices(opened(tmp_path, settings=EVERYTHING).collect("network")) == everything


def test_patterns_add_and_remove_interfaces(tmp_path: Path) -> None:
    """Included interfaces are read whatever they are; what is excluded never is."""
    add_interface(tmp_path, "bond0", "")
    add_interface(tmp_path, "bond1", "")
    add_interface(tmp_path, "eth0")
    add_interface(tmp_path, "eth1", "pci0000:17/0000:19:00.0")

    source = opened(tmp_path, settings=Sources(network=NetworkSection(include=("bond?",), exclude=("*1",))))

    assert devices(source.collect("network")) == ["bond0", "eth0"]


def test_interfaces_come_and_go(tmp_path: Path) -> None:
    """Each run reads the interfaces of its time; a new driver makes new series."""
    add_interface(tmp_path, "eth0")
    source = opened(tmp_path)
    source.collect("network")
    add_interface(tmp_path, "eth1", "pci0000:17/0000:19:00.0")
    (tmp_path / "class/net/eth0").unlink()

    assert devices(source.collect("network")) == ["eth1"]
    bind(tmp_path, "vfio-pci", "pci0000:17/0000:19:00.0")
    batch = source.collect("network")
    assert ("commwatch_ethernet_info", ("eth1", "0000:19:00.0", "vfio-pci", "")) in reading_of(batch, "eth1").series


def test_an_interface_that_vanishes_while_it_is_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interface that goes away between listing and reading is absent, with that reason."""
    add_interface(tmp_path, "eth0")
    source = opened(tmp_path)
    source.collect("network")
    for name in FILES:
        (tmp_path / "class/net/eth0" / name).unlink()

    batch = source.collect("network")

    assert [(one.device, one.series) for one in batch.readings] == [("", ())]
    assert failures(batch) == [("eth0", "not_found")]


@examples(50, one_fixture=True)
@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.binary(max_size=60)))
def test_hostile_bytes_are_absent(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> None:
    """Whatever the files hold, a value is a number from its own file or absent with a reason."""
    sysfs = tmp_path_factory.mktemp("sys")
    add_interface(sysfs, "eth0", changes=contents)

    batch = opened(sysfs, settings=EVERYTHING).collect("network")

    numbers = reading_of(batch, "eth0").values
    assert all(number is None or (isinstance(number, int) and number >= 0) for number in numbers)
    assert {absence.reason for absence in batch.absences} <= {"unreadable"}


@in_one_pass("text", [b"", b"\n", b"1_000", b"0x10", b"1.5", b"+1", b"\xff", b"1" * 21, b"12 34", b"- 1"])
def test_other_text_is_no_number(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """A text that is not a plain decimal integer is not read as one."""
    sysfs = tmp_path_factory.mktemp("sys")
    add_interface(sysfs, "eth0", changes={"statistics/rx_errors": text})

    assert value(opened(sysfs).collect("network"), "eth0", "receive_errors_total") is None


def test_a_name_that_is_no_text_becomes_a_label(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 become escapes."""
    add_interface(tmp_path, os.fsdecode(b"eth\xff0"))

    assert devices(opened(tmp_path).collect("network")) == ["eth\\xff0"]


def test_an_interface_whose_device_leads_nowhere_has_no_address(tmp_path: Path) -> None:
    """A loop of links, or a device that is gone."""
    home = add_interface(tmp_path, "eth0", "")
    (home / "device").symlink_to("device")

    batch = opened(tmp_path, settings=EVERYTHING).collect("network")

    assert ("commwatch_ethernet_info", ("eth0", "", "", "")) in reading_of(batch, "eth0").series


def test_the_bond_of_an_interface_is_told_and_follows_a_change(tmp_path: Path) -> None:
    """A port of a bond names it; taken out of the bond it names none."""
    home = add_interface(tmp_path, "eth0")
    bond = add_interface(tmp_path, "bond0", "")
    (home / "master").symlink_to(os.path.relpath(bond, home))
    (bond / "bonding").mkdir()
    source = opened(tmp_path)

    bonded = reading_of(source.collect("network"), "eth0").series
    again = reading_of(source.collect("network"), "eth0").series
    (home / "master").unlink()
    free = reading_of(source.collect("network"), "eth0").series

    assert ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "bond0")) in bonded
    assert ("commwatch_ethernet_bonded", ("eth0",)) in bonded
    assert again is bonded
    assert ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "")) in free
    assert ("commwatch_ethernet_bonded", ("eth0",)) not in free


def test_a_port_of_a_bridge_is_in_no_bond(tmp_path: Path) -> None:
    """Its bridge is named all the same."""
    home = add_interface(tmp_path, "eth0")
    (home / "master").symlink_to(os.path.relpath(add_interface(tmp_path, "br0", ""), home))

    series = reading_of(opened(tmp_path).collect("network"), "eth0").series

    assert ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "br0")) in series
    assert ("commwatch_ethernet_bonded", ("eth0",)) not in series
