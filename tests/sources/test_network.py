"""Network interfaces read from trees as the kernel lays them out."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config import settings
from commwatch.readings import Batch, DeviceReadings, SourceUnavailable
from commwatch.sources.base import Source
from commwatch_exporters.snapshot import Layout, Value
from support.examples import examples
from support.passes import in_one_pass
from support.sources import source_of

FILES: Mapping[str, str] = {
    "type": "1",
    "statistics/tx_bytes": "18446744073709551615",
    "statistics/rx_bytes": "2000",
    "statistics/tx_packets": "31",
    "statistics/rx_packets": "32",
    "statistics/tx_errors": "3",
    "statistics/rx_errors": "4",
    "statistics/tx_dropped": "5",
    "statistics/rx_dropped": "6",
    "statistics/rx_crc_errors": "61",
    "statistics/rx_missed_errors": "62",
    "carrier_changes": "7",
    "carrier_down_count": "3",
    "carrier": "1",
    "speed": "400000",
    "mtu": "9000",
}


def add_interface(
    sysfs: Path, name: str, device: str = "", driver: str = "mlx5_core", changes: Mapping[str, str | bytes | None] = {}
) -> Path:
    """Make an interface; ``device`` is its path below /sys/devices, empty for a virtual interface.

    ``changes`` replaces the contents of files; None leaves a file out.
    """
    home = sysfs / "devices" / (device or "virtual") / "net" / name
    home.mkdir(parents=True)
    if device:
        (home / "device").symlink_to("../..")
        (sysfs / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        link = sysfs / "devices" / device / "driver"
        if not link.is_symlink():
            link.symlink_to(sysfs / "bus/pci/drivers" / driver)
    for file, text in {**FILES, **changes}.items():
        if text is not None:
            (home / file).parent.mkdir(exist_ok=True)
            (home / file).write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
    listing = sysfs / "class/net"
    listing.mkdir(parents=True, exist_ok=True)
    (listing / name).symlink_to(os.path.relpath(home, listing))
    return home


def opened(sysfs: Path, choice: settings.NetworkSection = settings.NetworkSection()) -> Source:  # noqa: B008 - frozen
    return source_of("network", sysfs, settings=settings.Sources(network=choice))


def reading_of(batch: Batch, device: str) -> DeviceReadings:
    return next(reading for reading in batch.readings if reading.device == device)


def value(batch: Batch, device: str, metric: str) -> Value:
    reading = reading_of(batch, device)
    return dict(zip(reading.series, reading.values, strict=True))[f"commwatch_ethernet_{metric}", (device,)]


def states(batch: Batch) -> dict[str, Value]:
    reading = reading_of(batch, "")
    return {labels[1]: number for (_, labels), number in zip(reading.series, reading.values, strict=True)}


def devices(batch: Batch) -> list[str]:
    return [reading.device for reading in batch.readings if reading.device]


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


def test_all_series_are_of_the_catalogue(tmp_path: Path) -> None:
    """Every series has a name and labels that the catalogue knows."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")

    batch = opened(tmp_path).collect("network")

    for reading in batch.readings:
        assert len(Layout(reading.series).prefixes) == len(reading.values)


def test_series_stay_while_numbers_change(tmp_path: Path) -> None:
    """Two runs give the same series, and the second sees the new numbers."""
    home = add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")
    source = opened(tmp_path)
    first = source.collect("network")
    (home / "statistics/rx_bytes").write_text("2500\n")

    second = source.collect("network")

    assert [one.series == other.series for one, other in zip(first.readings, second.readings, strict=True)] == [
        True
    ] * 2
    assert value(second, "eth0", "receive_bytes_total") == 2500


def test_a_virtual_adapter_counts_as_physical(tmp_path: Path) -> None:
    """An interface on virtio is read, with the address of the PCI function below it."""
    add_interface(tmp_path, "eth0", "pci0000:00/0000:00:03.0/virtio2", "virtio_net", changes={"speed": "-1"})

    batch = opened(tmp_path).collect("network")

    assert ("commwatch_ethernet_info", ("eth0", "0000:00:03.0", "virtio_net", "")) in reading_of(batch, "eth0").series
    assert value(batch, "eth0", "speed_bytes_per_second") is None
    assert batch.absences == []


@pytest.mark.parametrize("text", ["-1", "0", "4294967295"])
def test_an_unknown_speed_is_absent(tmp_path: Path, text: str) -> None:
    """The spellings of an unknown speed give no number, and no error."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0", changes={"speed": text})

    batch = opened(tmp_path).collect("network")

    assert value(batch, "eth0", "speed_bytes_per_second") is None
    assert batch.absences == []


def test_the_speed_of_a_link_that_is_down_is_absent(tmp_path: Path) -> None:
    """A driver that goes on giving the last speed is not believed."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0", changes={"carrier": "0"})

    batch = opened(tmp_path).collect("network")

    assert value(batch, "eth0", "carrier") == 0
    assert value(batch, "eth0", "speed_bytes_per_second") is None


def test_a_value_that_the_kernel_refuses_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The carrier of an interface that is switched off reads EINVAL: supported, absent, and no error."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")
    refuse(monkeypatch, "carrier", 22)

    batch = opened(tmp_path).collect("network")

    assert value(batch, "eth0", "carrier") is None
    assert states(batch)["carrier"] == 0
    assert batch.absences == []


@pytest.mark.parametrize(
    ("error", "reason"), [(errno.EACCES, "no_permission"), (errno.EPERM, "no_permission"), (errno.ENODEV, "not_found"),
                          (errno.ENXIO, "not_found"), (errno.EBUSY, "not_ready"), (errno.EIO, "unreadable")]
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, reason: str
) -> None:
    """A refused file is absent with its reason, and the other values stay."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")
    refuse(monkeypatch, "speed", error)

    batch = opened(tmp_path).collect("network")

    assert [(absence.device, absence.reason) for absence in batch.absences] == [("eth0", reason)]
    assert value(batch, "eth0", "speed_bytes_per_second") is None
    assert value(batch, "eth0", "carrier") == 1


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> None:
    """Let the kernel answer with an error for files of one name."""
    real_open = os.open

    def open_or_refuse(path: str, flags: int) -> int:
        if path.endswith(f"/{name}"):
            raise OSError(error, os.strerror(error))
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", open_or_refuse)


def test_a_counter_that_no_interface_has_is_unsupported(tmp_path: Path) -> None:
    """A counter that this kernel lacks is absent and said to be unsupported; one interface that has it is enough."""
    add_interface(
        tmp_path, "eth0", "pci0000:17/0000:18:00.0", changes={"carrier_changes": None, "statistics/tx_errors": None}
    )
    add_interface(tmp_path, "eth1", "pci0000:17/0000:18:00.1", changes={"carrier_changes": None})

    batch = opened(tmp_path).collect("network")

    assert value(batch, "eth0", "carrier_changes_total") is None
    assert states(batch)["carrier_changes"] == 1
    assert states(batch)["tx_errors"] == 0
    assert batch.absences == []


def test_virtual_interfaces_are_left_out(tmp_path: Path) -> None:
    """Loopback, bridges, functions beside their port, their representors and what is no Ethernet are left out."""
    add_interface(tmp_path, "lo", changes={"type": "772"})
    add_interface(tmp_path, "docker0")
    add_interface(tmp_path, "ib0", "pci0000:17/0000:18:00.0", changes={"type": "32"})
    add_interface(tmp_path, "eth0v0", "pci0000:17/0000:18:00.2")
    (tmp_path / "devices/pci0000:17/0000:18:00.2/physfn").symlink_to("../0000:18:00.0")
    add_interface(tmp_path, "eth0s4", "pci0000:17/0000:18:00.0/mlx5_core.sf.4")
    for name, port in (("rep0", "pf0vf3"), ("rep1", "c1pf0sf88")):
        add_interface(tmp_path, name, "pci0000:17/0000:19:00.0", changes={"phys_port_name": port})
    add_interface(tmp_path, "eth0", "pci0000:17/0000:19:00.0", changes={"phys_port_name": "p0"})
    (tmp_path / "class/net/bonding_masters").write_text("bond0\n")

    assert devices(opened(tmp_path).collect("network")) == ["eth0"]
    everything = ["docker0", "eth0", "eth0s4", "eth0v0", "ib0", "lo", "rep0", "rep1"]
    assert devices(opened(tmp_path, settings.NetworkSection(physical_only=False)).collect("network")) == everything


def test_patterns_add_and_remove_interfaces(tmp_path: Path) -> None:
    """Included interfaces are read whatever they are; what is excluded never is."""
    add_interface(tmp_path, "bond0")
    add_interface(tmp_path, "bond1")
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")
    add_interface(tmp_path, "eth1", "pci0000:17/0000:19:00.0")

    source = opened(tmp_path, settings.NetworkSection(include=("bond?",), exclude=("*1",)))

    assert devices(source.collect("network")) == ["bond0", "eth0"]


def test_interfaces_come_and_go(tmp_path: Path) -> None:
    """Each run reads the interfaces of its time; a new driver makes new series."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")
    source = opened(tmp_path)
    source.collect("network")
    add_interface(tmp_path, "eth1", "pci0000:17/0000:19:00.0")
    (tmp_path / "class/net/eth0").unlink()

    assert devices(source.collect("network")) == ["eth1"]
    driver = tmp_path / "devices/pci0000:17/0000:19:00.0/driver"
    driver.unlink()
    driver.symlink_to("/sys/bus/pci/drivers/vfio-pci")
    batch = source.collect("network")
    assert ("commwatch_ethernet_info", ("eth1", "0000:19:00.0", "vfio-pci", "")) in reading_of(batch, "eth1").series


def test_an_interface_that_vanishes_while_it_is_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interface that goes away between listing and reading is absent, with that reason."""
    add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")
    source = opened(tmp_path)
    source.collect("network")
    for name in FILES:
        (tmp_path / "class/net/eth0" / name).unlink()

    batch = source.collect("network")

    assert [(one.device, one.series) for one in batch.readings] == [("", ())]
    assert [(absence.device, absence.reason) for absence in batch.absences] == [("eth0", "not_found")]


def test_devices_are_reported_before_they_are_touched(tmp_path: Path) -> None:
    """Each interface is reported in turn and the end as empty; those left out are not touched."""
    for number in range(3):
        add_interface(tmp_path, f"eth{number}", f"pci0000:17/0000:{18 + number}:00.0")
    reported: list[str] = []
    source = source_of("network", tmp_path, report=reported.append, leave_out={"eth1"})

    batch = source.collect("network")

    assert (reported, devices(batch)) == (["eth0", "eth2", ""], ["eth0", "eth2"])
    source.open(reported.append, frozenset(), frozenset({"eth1"}))
    assert devices(source.collect("network")) == ["eth1"]
    source.close()


def test_without_interfaces_in_sysfs_the_source_is_unavailable(tmp_path: Path) -> None:
    """A node without /sys/class/net has no such source; an empty folder is an answer, and names no counter."""
    with pytest.raises(SourceUnavailable, match="not_found"):
        opened(tmp_path)

    (tmp_path / "class/net").mkdir(parents=True)
    batch = opened(tmp_path).collect("network")
    assert [(one.device, one.series) for one in batch.readings] == [("", ())]
    assert batch.absences == []


@examples(50, one_fixture=True)
@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.binary(max_size=60)))
def test_hostile_bytes_are_absent(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> None:
    """Whatever the files hold, a value is a number from its own file or absent with a reason."""
    sysfs = tmp_path_factory.mktemp("sys")
    add_interface(sysfs, "eth0", "pci0000:17/0000:18:00.0", changes=contents)

    batch = opened(sysfs, settings.NetworkSection(physical_only=False)).collect("network")

    numbers = reading_of(batch, "eth0").values
    assert all(number is None or (isinstance(number, int) and number >= 0) for number in numbers)
    assert {absence.reason for absence in batch.absences} <= {"unreadable"}


@in_one_pass("text", [b"", b"\n", b"1_000", b"0x10", b"1.5", b"+1", b"\xff", b"1" * 21, b"12 34", b"- 1"])
def test_other_text_is_no_number(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """A text that is not a plain decimal integer is not read as one."""
    sysfs = tmp_path_factory.mktemp("sys")
    add_interface(sysfs, "eth0", "pci0000:17/0000:18:00.0", changes={"statistics/rx_errors": text})

    assert value(opened(sysfs).collect("network"), "eth0", "receive_errors_total") is None


def test_a_name_that_is_no_text_becomes_a_label(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 become escapes."""
    add_interface(tmp_path, os.fsdecode(b"eth\xff0"), "pci0000:17/0000:18:00.0")

    assert devices(opened(tmp_path).collect("network")) == ["eth\\xff0"]


def test_an_interface_whose_device_leads_nowhere_has_no_address(tmp_path: Path) -> None:
    """A loop of links, or a device that is gone."""
    home = add_interface(tmp_path, "eth0")
    (home / "device").symlink_to("device")

    batch = opened(tmp_path, settings.NetworkSection(physical_only=False)).collect("network")

    assert ("commwatch_ethernet_info", ("eth0", "", "", "")) in reading_of(batch, "eth0").series


def test_the_bond_of_an_interface_is_told_and_follows_a_change(tmp_path: Path) -> None:
    """A port of a bond names it; taken out of the bond it names none."""
    home = add_interface(tmp_path, "eth0", "pci0000:17/0000:18:00.0")
    bond = add_interface(tmp_path, "bond0")
    (home / "master").symlink_to(os.path.relpath(bond, home))
    source = opened(tmp_path)

    bonded = reading_of(source.collect("network"), "eth0").series
    again = reading_of(source.collect("network"), "eth0").series
    (home / "master").unlink()
    free = reading_of(source.collect("network"), "eth0").series

    assert ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "bond0")) in bonded
    assert again is bonded
    assert ("commwatch_ethernet_info", ("eth0", "0000:18:00.0", "mlx5_core", "")) in free
