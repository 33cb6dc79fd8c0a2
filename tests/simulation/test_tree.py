"""The sysfs tree of a simulated node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from simulation.harness import Rehearsal

Rehearse = Callable[..., Rehearsal]


def read(path: Path) -> str:
    text = path.read_text(encoding="ascii")
    assert text.endswith("\n")
    return text.strip()


def link_of(root: Path, address: str) -> tuple[str, str, str, str]:
    """Speed and width now, and their maxima, of a PCIe device."""
    device = root / "bus/pci/devices" / address
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    speed, width, max_speed, max_width = (read(device / name) for name in names)
    return speed, width, max_speed, max_width


@pytest.mark.parametrize("name", PRESETS)
def test_every_device_hangs_below_its_bridge(rehearse: Rehearse, root: Path, name: str) -> None:
    """The link of each address resolves into the folder of its parent, down from a host bridge."""
    rehearse(name).node.write_sysfs(root)
    preset = PRESETS[name]

    assert {path.name for path in (root / "bus/pci/devices").iterdir()} == {one.address for one in preset.devices}
    for device in preset.devices:
        folder = (root / "bus/pci/devices" / device.address).resolve()
        assert (folder.name, folder.parent.name) == (device.address, device.parent)
        assert read(folder / "class") == f"0x{device.pci_class:06x}"
        assert read(folder / "vendor") == f"0x{device.vendor_id:04x}"
        assert read(folder / "device") == f"0x{device.device_id:04x}"
        assert read(folder / "numa_node") == str(device.numa_node)
        assert (folder / "driver").resolve().name == device.driver


def test_gpus_and_adapters_share_switches(rehearse: Rehearse, root: Path) -> None:
    """GPUs 0 and 1 and the first adapter of the H100 node are below one switch; GPU 4 is on the other processor."""
    rehearse("h100x8").node.write_sysfs(root)

    def above(address: str) -> Path:
        return (root / "bus/pci/devices" / address).resolve().parents[1]

    assert above("0000:17:00.0") == above("0000:18:00.0") == above("0000:19:00.0")
    assert above("0000:17:00.0") != above("0000:3a:00.0")
    assert read(root / "bus/pci/devices/0000:17:00.0/numa_node") == "0"
    assert read(root / "bus/pci/devices/0000:9a:00.0/numa_node") == "1"


def test_interfaces_have_links_counters_and_devices(rehearse: Rehearse, root: Path) -> None:
    """Two with a carrier and a device, and the loopback without; bytes rise with time."""
    rehearsal = rehearse("h100x8", now=10.0)
    rehearsal.node.write_sysfs(root)
    net = root / "class/net"

    assert sorted(path.name for path in net.iterdir()) == ["ens1np0", "ens2np0", "lo"]
    assert not (net / "lo/device").exists()
    interface = net / "ens1np0"
    assert (interface / "device").resolve().name == "0000:19:00.0"
    assert (interface / "device/net/ens1np0").resolve() == interface.resolve()
    assert [read(interface / name) for name in ("carrier", "carrier_changes", "operstate", "speed")] == [
        "1", "1", "up", "400000",
    ]  # fmt: skip
    before = int(read(interface / "statistics/rx_bytes"))
    rehearsal.now = 20.0
    rehearsal.node.write_sysfs(root)
    assert int(read(interface / "statistics/rx_bytes")) - before == pytest.approx(10 * 8e6, rel=0.06)
    assert read(interface / "statistics/rx_errors") == "0"


def test_only_what_changed_is_written_again(rehearse: Rehearse, root: Path) -> None:
    """Without time passing nothing is; with time only the counters, in place; no draft is left behind."""
    rehearsal = rehearse("h100x8")
    rehearsal.node.write_sysfs(root)

    def states() -> dict[Path, tuple[int, int]]:
        files = (path for path in (root / "devices").rglob("*") if path.is_file() and not path.is_symlink())
        return {path: ((status := path.stat()).st_ino, status.st_mtime_ns) for path in files}

    first = states()
    rehearsal.node.write_sysfs(root)
    assert states() == first
    rehearsal.now += 10
    rehearsal.node.write_sysfs(root)
    changed = {path for path, state in states().items() if first[path] != state}
    assert {path.parent.name for path in changed} == {"statistics"}
    assert {path: inode for path, (inode, _) in states().items()} == {path: inode for path, (inode, _) in first.items()}
    assert sorted(path.name for path in root.iterdir()) == ["bus", "class", "devices"]


def test_a_second_process_finds_the_tree_and_goes_on(tmp_path: Path, root: Path) -> None:
    """Two writers of one tree do not disturb each other."""
    for now in (10.0, 20.0):
        Rehearsal(tmp_path, "a10x2", now=now).node.write_sysfs(root)

    assert link_of(root, "0000:17:00.0")[1] == "16"
    assert int(read(root / "class/net/ens3f0np0/statistics/tx_bytes")) == pytest.approx(20 * 2e6, rel=0.06)


def test_a_shrinking_file_never_shows_a_shorter_number(
    rehearse: Rehearse, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the write and the cut, the new line is whole and the rest stands on a line of its own."""
    rehearsal = rehearse("h100x8ndr", "- {fault: rdma_counter_reset, device: mlx5_0, at: 200s}")
    rehearsal.node.write_sysfs(root)
    seen: list[tuple[bytes, int]] = []
    cut = os.ftruncate

    def look(descriptor: int, length: int) -> None:
        seen.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).read_bytes(), length))
        cut(descriptor, length)

    monkeypatch.setattr(os, "ftruncate", look)
    rehearsal.now = 200.0
    rehearsal.node.write_sysfs(root)

    assert seen
    assert all(text[length - 1 : length] == b"\n" and len(text) > length for text, length in seen)


def test_a_file_that_appears_meanwhile_is_not_replaced(
    rehearse: Rehearse, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that make the same file: the first one wins, and no draft stays."""
    link = os.link

    def late(draft: str, target: str) -> None:
        Path(target).write_text("first\n")
        link(draft, target)

    monkeypatch.setattr(os, "link", late)
    rehearse("a10x2").node.write_sysfs(root)

    files = [file for file in root.rglob("*") if file.is_file() and not file.is_symlink()]
    assert {file.read_text() for file in files} == {"first\n"}


def test_a_narrowed_link_shows_at_both_ends(rehearse: Rehearse, root: Path) -> None:
    """The GPU and the port above it run on 8 lanes of 16; under a job at full speed; the maxima stay."""
    rehearsal = rehearse(
        "h100x8", "- {fault: pcie_width, gpu: 0, lanes: 8, at: 200s, for: 60s}\n- {fault: job, gpu: 0, at: 200s}"
    )
    rehearsal.node.write_sysfs(root)
    idle = ("2.5 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")
    assert [link_of(root, address) for address in ("0000:17:00.0", "0000:16:00.0")] == [idle, idle]

    rehearsal.now = 200.0
    rehearsal.node.write_sysfs(root)
    narrow = ("32.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16")
    assert [link_of(root, address) for address in ("0000:17:00.0", "0000:16:00.0")] == [narrow, narrow]
    assert link_of(root, "0000:18:00.0") == idle
    assert link_of(root, "0000:15:00.0") == ("32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")

    rehearsal.now = 260.0
    rehearsal.node.write_sysfs(root)
    assert link_of(root, "0000:17:00.0")[1] == "16"


def test_a_lost_gpu_reads_as_all_ones(rehearse: Rehearse, root: Path) -> None:
    """As the kernel shows a device that fell off the bus: an unknown speed and 63 lanes."""
    rehearse("h100x8", "- {fault: gpu_lost, gpu: 0, at: 0s}").node.write_sysfs(root)

    assert link_of(root, "0000:17:00.0") == ("Unknown", "63", "32.0 GT/s PCIe", "16")
    assert link_of(root, "0000:16:00.0")[1] == "0"


def test_a_missing_card_is_gone_from_the_tree(rehearse: Rehearse, root: Path) -> None:
    """Its folder and its link go; the port above it and the other GPUs stay; it comes back with the next boot."""
    rehearsal = rehearse("h100x8", "- {fault: gpu_missing, gpu: 1, at: 200s, for: 60s}")
    rehearsal.node.write_sysfs(root)
    card = root / "bus/pci/devices/0000:18:00.0"
    assert card.is_dir()

    rehearsal.now = 200.0
    rehearsal.node.write_sysfs(root)
    assert not card.is_symlink()
    assert not list(root.glob("devices/**/0000:18:00.0"))
    assert (root / "bus/pci/devices/0000:16:01.0").is_dir()
    assert (root / "bus/pci/devices/0000:17:00.0").is_dir()

    rehearsal.now = 260.0
    rehearsal.node.write_sysfs(root)
    assert link_of(root, "0000:18:00.0")[1] == "16"


def test_an_interface_that_goes_down_shows_it(rehearse: Rehearse, root: Path) -> None:
    """No carrier, no speed, one change more."""
    rehearse("a10x2", "- {fault: ethernet_down, interface: ens3f0np0, at: 50s}").node.write_sysfs(root)
    interface = root / "class/net/ens3f0np0"

    assert [read(interface / name) for name in ("carrier", "carrier_changes", "operstate", "speed")] == [
        "0", "2", "down", "-1",
    ]  # fmt: skip
