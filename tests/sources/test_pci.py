"""PCIe devices read from trees as the kernel lays them out."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.readings import Batch
from commwatch.sources.base import Source
from commwatch_exporters.snapshot import Layout, Value
from support.examples import examples
from support.passes import in_one_pass
from support.pci import BRIDGE, GPU, LINK, NIC, add_device, infos, opened
from support.sources import failures, refuse, source_of, states


def values(batch: Batch, device: str) -> list[Value]:
    """Current generation and width, greatest generation and width, info."""
    return list(next(reading.values for reading in batch.readings if reading.device == device))


def test_a_gpu_directly_under_its_root_port(tmp_path: Path) -> None:
    """A GPU in a slot of the processor has its root port as parent, and other devices are left out."""
    add_device(tmp_path, "pci0000:00/0000:00:01.0", BRIDGE, LINK)
    add_device(tmp_path, "pci0000:00/0000:00:01.0/0000:01:00.0", GPU, LINK, {"class": "0x030000", "numa_node": "-1"})
    add_device(tmp_path, "pci0000:00/0000:00:01.0/0000:01:00.1", {"class": "0x040300", "vendor": "0x10de"})
    add_device(tmp_path, "pci0000:00/0000:00:02.0", {"class": "0x030000", "vendor": "0x8086"})
    add_device(tmp_path, "pci0000:00/0000:00:1d.0", BRIDGE, LINK)

    batch = opened(tmp_path).collect("pci")

    assert infos(batch) == {
        "0000:00:01.0": ("root_port", "pci0000:00", "0"),
        "0000:01:00.0": ("gpu", "0000:00:01.0", ""),
    }
    assert values(batch, "0000:01:00.0") == [5, 16, 5, 16, 1]


def test_a_flat_virtual_machine(tmp_path: Path) -> None:
    """Devices on the root bus have the host bridge as parent; without link files there are no link values."""
    add_device(tmp_path, "pci0000:00/0000:00:03.0", {"class": "0x020000", "vendor": "0x1af4", "device": "0x1041"})
    add_device(tmp_path, "pci0000:00/0000:00:05.0", GPU, {"numa_node": "-1"})

    batch = opened(tmp_path).collect("pci")

    assert infos(batch) == {"0000:00:03.0": ("nic", "pci0000:00", ""), "0000:00:05.0": ("gpu", "pci0000:00", "")}
    assert values(batch, "0000:00:05.0") == [None, None, None, None, 1]
    assert batch.absences == []


MLX, VFIO = "mlx5_core", "vfio-pci"
UNBOUND = "commwatch_pcie_adapter_unbound"


@pytest.mark.parametrize(
    ("drivers", "override", "named"),
    [
        pytest.param(["", MLX], None, ["0000:18:00.0"], id="its driver serves a like one"),
        pytest.param(["", MLX], "(null)", ["0000:18:00.0"], id="no other driver is named"),
        pytest.param(["", "", MLX], None, ["0000:18:00.0", "0000:19:00.0"], id="two of three"),
        pytest.param([MLX, MLX], None, [], id="both have one"),
        pytest.param([VFIO, MLX], None, [], id="a virtual machine has it"),
        pytest.param(["", MLX], VFIO, [], id="a virtual machine is to get it"),
        pytest.param(["", VFIO], None, [], id="the other one is a virtual machine's"),
        pytest.param(["", "igb_uio"], None, [], id="the other one is a program's"),
        pytest.param(["", ""], None, [], id="the driver is not loaded"),
        pytest.param([""], None, [], id="it has no like one"),
    ],
)
def test_an_adapter_without_a_driver_is_named_where_a_like_one_has_it(
    drivers: list[str], override: str | None, named: list[str], tmp_path: Path
) -> None:
    """A container or a virtual machine that was given an adapter leaves a driver at it."""
    for place, driver in enumerate(drivers, 18):
        home = add_device(tmp_path, f"pci0000:17/0000:{place}:00.0", NIC, LINK)
        if driver:
            (home / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        elif override is not None:
            (home / "driver_override").write_text(f"{override}\n")
    add_device(tmp_path, "pci0000:17/0000:30:00.0", NIC, LINK, {"device": "0x1017"})  # another model

    def seen(source: Source) -> list[str]:
        series = [one for reading in source.collect("pci").readings for one in reading.series]
        return [labels[0] for name, labels in series if name == UNBOUND]

    source = opened(tmp_path)
    assert seen(source) == named
    for address in named:  # it is started after all
        (tmp_path / f"devices/pci0000:17/{address}/driver").symlink_to(f"../../../bus/pci/drivers/{MLX}")
    assert seen(source) == []


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    """A virtual function has no link of its own beside its physical function."""
    add_device(tmp_path, "pci0000:17/0000:18:00.0", NIC, LINK)
    add_device(tmp_path, "pci0000:17/0000:18:00.1", NIC, LINK)
    (tmp_path / "devices/pci0000:17/0000:18:00.1/physfn").symlink_to("../0000:18:00.0")

    assert list(infos(opened(tmp_path).collect("pci"))) == ["0000:18:00.0"]


def test_a_run_reads_the_link_of_its_time(tmp_path: Path) -> None:
    """Current speed and width follow the files; the series stay the same and are of the catalogue."""
    home = add_device(tmp_path, "pci0000:00/0000:01:00.0", GPU, LINK)
    source = opened(tmp_path)
    first = source.collect("pci")
    (home / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    (home / "current_link_width").write_text("8\n")

    second = source.collect("pci")

    assert values(second, "0000:01:00.0") == [1, 8, 5, 16, 1]
    assert second.readings[0].series == first.readings[0].series
    assert len(Layout(second.readings[0].series).prefixes) == 5


def test_devices_come_and_go(tmp_path: Path) -> None:
    """The tree is read again when the list of devices changes."""
    add_device(tmp_path, "pci0000:00/0000:01:00.0", GPU, LINK)
    source = opened(tmp_path)
    add_device(tmp_path, "pci0000:00/0000:02:00.0", GPU, LINK)
    (tmp_path / "bus/pci/devices/0000:01:00.0").unlink()

    assert list(infos(source.collect("pci"))) == ["0000:02:00.0"]


def test_a_device_off_its_bus_has_no_link_values(tmp_path: Path) -> None:
    """What the kernel gives for a device that does not answer is absent."""
    gone = {"current_link_speed": "Unknown", "current_link_width": "63"}
    home = add_device(tmp_path, "pci0000:00/0000:01:00.0", GPU, LINK, gone)
    source = opened(tmp_path)

    assert values(source.collect("pci"), "0000:01:00.0") == [None, None, 5, 16, 1]
    (home / "current_link_width").unlink()
    assert values(source.collect("pci"), "0000:01:00.0") == [None, None, 5, 16, 1]


def test_a_device_that_came_back_has_its_maxima_again(tmp_path: Path) -> None:
    """What a device can do is read again every minute: of one that was off its bus nothing could be read."""
    home = add_device(tmp_path, "pci0000:00/0000:01:00.0", GPU, LINK, {"max_link_speed": "Unknown"})
    now = 0.0
    source = source_of("pci", tmp_path, monotonic=lambda: now)
    series = source.collect("pci").readings[0].series
    (home / "max_link_speed").write_text("32.0 GT/s PCIe\n")

    now = 59.9
    assert values(source.collect("pci"), "0000:01:00.0") == [5, 16, None, 16, 1]
    now = 60.0
    assert values(source.collect("pci"), "0000:01:00.0") == [5, 16, 5, 16, 1]
    assert source.collect("pci").readings[0].series == series


def test_a_device_that_moved_has_another_parent(tmp_path: Path) -> None:
    """A device under the same address in another place, or another device there, is seen within a minute."""
    add_device(tmp_path, "pci0000:00/0000:00:01.0", BRIDGE, LINK)
    add_device(tmp_path, "pci0000:00/0000:00:02.0", BRIDGE, LINK)
    add_device(tmp_path, "pci0000:00/0000:00:01.0/0000:01:00.0", GPU, LINK)
    now = 0.0
    source = source_of("pci", tmp_path, monotonic=lambda: now)
    entry = tmp_path / "bus/pci/devices/0000:01:00.0"
    entry.unlink()
    add_device(tmp_path, "pci0000:00/0000:00:02.0/0000:01:00.0", NIC, LINK)

    now = 60.0
    assert infos(source.collect("pci")) == {
        "0000:00:02.0": ("root_port", "pci0000:00", "0"),
        "0000:01:00.0": ("nic", "0000:00:02.0", "0"),
    }


def test_what_no_device_has_is_not_supported(tmp_path: Path) -> None:
    """A file that one device has is supported, also where it has no value now; one that none has is not."""
    add_device(tmp_path, "pci0000:00/0000:01:00.0", GPU, {"current_link_width": "63", "max_link_width": "16"})
    add_device(tmp_path, "pci0000:00/0000:02:00.0", GPU, {"current_link_speed": "Unknown"})

    assert states(opened(tmp_path).collect("pci")) == {
        "current_link_speed": 0, "current_link_width": 0, "max_link_speed": 1, "max_link_width": 0,
    }  # fmt: skip


def test_files_that_cannot_be_read_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused file is absent with its reason; a device whose class was not read is looked at again."""
    add_device(tmp_path, "pci0000:00/0000:01:00.0", GPU, LINK)
    home = add_device(tmp_path, "pci0000:00/0000:02:00.0", {"vendor": "0x10de"}, LINK)
    source = opened(tmp_path)
    refuse(monkeypatch, {"0000:01:00.0/current_link_speed": errno.EACCES})
    batch = source.collect("pci")

    assert values(batch, "0000:01:00.0") == [None, 16, 5, 16, 1]
    assert failures(batch) == [("0000:02:00.0", "not_found"), ("0000:01:00.0", "no_permission")]
    (home / "class").write_text("0x030200\n")
    assert list(infos(source.collect("pci"))) == ["0000:01:00.0", "0000:02:00.0"]


@in_one_pass(
    "text, generation",
    [
        (b"2.5 GT/s PCIe\n", 1), (b"5.0 GT/s PCIe\n", 2), (b"8 GT/s\n", 3), (b"16.0 GT/s PCIe\n", 4),
        (b"32 GT/s\n", 5), (b"64.0 GT/s PCIe\n", 6), (b"Unknown\n", None), (b"Unknown speed\n", None),
        (b"12 GT/s\n", None), (b"32.0.1\n", None), (b"", None), (b"\xff", None),
    ],
)  # fmt: skip
def test_speeds_are_generations(tmp_path_factory: pytest.TempPathFactory, text: bytes, generation: int | None) -> None:
    """The leading number gives the generation, in the words of old and new kernels."""
    sysfs = tmp_path_factory.mktemp("sys")
    add_device(sysfs, "pci0000:00/0000:01:00.0", GPU, LINK, {"current_link_speed": text})

    assert values(opened(sysfs).collect("pci"), "0000:01:00.0") == [generation, 16, 5, 16, 1]


@pytest.mark.parametrize(
    ("text", "lanes"), [(b"16\n", 16), (b"1\n", 1), (b"0\n", None), (b"255\n", None), (b"63\n", None), (b"x\n", None)]
)
def test_widths_are_those_of_pcie(tmp_path: Path, text: bytes, lanes: int | None) -> None:
    """Unknown widths are absent, in each spelling of the kernel."""
    add_device(tmp_path, "pci0000:00/0000:01:00.0", GPU, LINK, {"current_link_width": text})

    assert values(opened(tmp_path).collect("pci"), "0000:01:00.0") == [5, lanes, 5, 16, 1]


@examples(50, one_fixture=True)
@given(st.dictionaries(st.sampled_from([*GPU, *LINK]), st.binary(max_size=60)))
def test_hostile_bytes_are_absent(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> None:
    """Whatever the files hold, link values are those that PCIe has, and labels can be encoded."""
    sysfs = tmp_path_factory.mktemp("sys")
    add_device(sysfs, "pci0000:00/0000:01:00.0", GPU, LINK, contents)

    for reading in opened(sysfs).collect("pci").readings:
        least = 1 if reading.device else 0
        assert all(number is None or number >= least for number in reading.values)
        assert "".join(Layout(reading.series).prefixes).encode()
