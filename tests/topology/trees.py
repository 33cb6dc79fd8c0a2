"""Builds trees of sysfs by hand, as the kernel shows them; knows nothing of the code that reads them."""

from __future__ import annotations

import os
from pathlib import Path

SPEEDS = {
    1: "2.5 GT/s PCIe",
    2: "5.0 GT/s PCIe",
    3: "8.0 GT/s PCIe",
    4: "16.0 GT/s PCIe",
    5: "32.0 GT/s PCIe",
    6: "64.0 GT/s PCIe",
}
CLASSES = {"gpu": "0x030200", "nic": "0x020700", "ethernet": "0x020000", "nvswitch": "0x068000", "bridge": "0x060400"}
VENDORS = {"gpu": "0x10de", "nic": "0x15b3", "ethernet": "0x8086", "nvswitch": "0x10de", "bridge": "0x1000"}


class Tree:
    """A tree beneath a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)
        self._places: dict[str, Path] = {}

    def add(
        self,
        *way: str,
        kind: str,
        numa: int = 0,
        link: tuple[int, int] | None = (4, 16),
        now: tuple[int, int] | None = None,
        rdma: tuple[str, ...] = (),
        net: tuple[str, ...] = (),
        cpus: str = "",
    ) -> None:
        """A device, with the bridges above it where they are not there yet.

        Args:
            way: names from the host bridge down to the device.
            kind: gpu, nic, ethernet or nvswitch.
            numa: NUMA node of the device and of new bridges; -1 for unknown.
            link: greatest generation and lanes; None where the kernel knows none.
            now: generation and lanes now; as ``link`` where not given.
            rdma: names of RDMA devices.
            net: names of interfaces.
            cpus: ``local_cpulist``.
        """
        host, *bridges, address = way
        place = self.root / "devices" / host
        for bridge in bridges:
            place /= bridge
            if bridge not in self._places:
                self._device(place, "bridge", numa, (5, 16), (5, 16), "")
        place /= address
        self._device(place, kind, numa, link, now or link, cpus)
        for folder, names in (("infiniband", rdma), ("net", net)):
            for name in names:
                (place / folder / name).mkdir(parents=True)

    def virtual_function(self, address: str, of: str, net: tuple[str, ...] = ()) -> None:
        """A virtual function beside its physical function."""
        place = self._places[of].parent / address
        self._device(place, "nic", 0, None, None, "")
        (place / "physfn").symlink_to(f"../{of}")
        for name in net:
            (place / "net" / name).mkdir(parents=True)

    def numa_node(self, number: int, cpus: str) -> None:
        """A NUMA node."""
        folder = self.root / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")

    def port(self, address: str, link: tuple[int, int]) -> None:
        """Change what a bridge can do."""
        (self._places[address] / "max_link_speed").write_text(f"{SPEEDS[link[0]]}\n")
        (self._places[address] / "max_link_width").write_text(f"{link[1]}\n")

    def _device(
        self, place: Path, kind: str, numa: int, link: tuple[int, int] | None, now: tuple[int, int] | None, cpus: str
    ) -> None:
        place.mkdir(parents=True)
        self._places[place.name] = place
        attributes = {"class": CLASSES[kind], "vendor": VENDORS[kind], "device": "0x2330", "numa_node": str(numa)}
        for prefix, value in (("max", link), ("current", now)):
            attributes[f"{prefix}_link_speed"] = "Unknown" if value is None else SPEEDS[value[0]]
            attributes[f"{prefix}_link_width"] = "0" if value is None else str(value[1])
        if cpus:
            attributes["local_cpulist"] = cpus
        for name, text in attributes.items():
            (place / name).write_text(f"{text}\n")
        link_to = self.root / "bus/pci/devices" / place.name
        link_to.symlink_to(os.path.relpath(place, link_to.parent))


def rtx3090x4(root: Path) -> Tree:
    """Four cards in pairs behind two switches, one socket, one slow Ethernet adapter."""
    tree = Tree(root)
    for bus in ("2", "6"):
        for slot in (0, 1):
            way = (f"0000:{bus}0:01.0", f"0000:{bus}1:00.0", f"0000:{bus}2:0{slot}.0", f"0000:{bus}{3 + slot}:00.0")
            tree.add(f"pci0000:{bus}0", *way, kind="gpu")
    tree.add("pci0000:c0", "0000:c0:01.0", "0000:c1:00.0", kind="ethernet", link=(3, 4), net=("enp193s0",))
    tree.numa_node(0, "0-47")
    return tree


def hgx(root: Path) -> Tree:
    """Two GPUs and a NIC behind one switch on each of two sockets, two NVSwitches behind a switch of two levels."""
    tree = Tree(root)
    for numa, host in enumerate(("1", "9")):
        for slot, kind in enumerate(("gpu", "gpu", "nic")):
            tree.add(
                f"pci0000:{host}4", f"0000:{host}4:01.0", f"0000:{host}5:00.0", f"0000:{host}6:0{slot}.0",
                f"0000:{host}{7 + slot}:00.0", kind=kind, numa=numa, link=(5, 16),
                rdma=(f"mlx5_{10 - 8 * numa}",) if kind == "nic" else (),
                net=(f"ibp{numa}",) if kind == "nic" else (),
                cpus=f"{32 * numa}-{32 * numa + 31}",
            )  # fmt: skip
    for slot in (0, 1):
        tree.add(
            "pci0000:05", "0000:05:01.0", "0000:06:00.0", f"0000:07:0{slot}.0", f"0000:0{8 + slot}:00.0",
            kind="nvswitch", link=(4, 2),
        )  # fmt: skip
    for numa in (0, 1):
        tree.numa_node(numa, f"{32 * numa}-{32 * numa + 31}")
    return tree


def two_sockets(root: Path) -> Tree:
    """Each GPU on a root port of its own; the NIC and a second GPU share the host bridge of the first socket."""
    tree = Tree(root)
    tree.add("pci0000:16", "0000:16:01.0", "0000:17:00.0", kind="gpu", numa=0)
    tree.add("pci0000:16", "0000:16:03.0", "0000:18:00.0", kind="gpu", numa=0)
    tree.add("pci0000:4a", "0000:4a:01.0", "0000:4b:00.0", kind="nic", numa=0, rdma=("mlx5_0",))
    tree.add("pci0000:98", "0000:98:01.0", "0000:99:00.0", kind="gpu", numa=1)
    tree.numa_node(0, "0-31")
    tree.numa_node(1, "32-63")
    return tree


def virtual_machine(root: Path) -> Tree:
    """All devices on the host bridge itself, no link and no NUMA node known."""
    tree = Tree(root)
    for slot in (5, 6):
        tree.add("pci0000:00", f"0000:00:0{slot}.0", kind="gpu", numa=-1, link=None)
    tree.add("pci0000:00", "0000:00:07.0", kind="nic", numa=-1, link=None, net=("ens7",))
    return tree


def domains(root: Path) -> Tree:
    """GPUs in PCI domains of their own, two levels of switches, and a NIC with virtual functions."""
    tree = Tree(root)
    top = ("pci10001:00", "10001:00:00.0", "10001:01:00.0")
    for slot in (0, 1):
        tree.add(
            *top, f"10001:02:0{slot}.0", f"10001:0{3 + slot}:00.0", f"10001:0{5 + slot}:00.0",
            f"10001:{10 + slot}:00.0", kind="gpu", numa=-1,
        )  # fmt: skip
    tree.add(*top, "10001:02:02.0", "10001:20:00.0", kind="nic", numa=-1, rdma=("mlx5_0",), net=("eth0",))
    tree.virtual_function("10001:20:00.1", "10001:20:00.0", net=("eth0v0",))
    tree.add("pci10002:00", "10002:00:00.0", "10002:01:00.0", kind="gpu", numa=-1)
    return tree
