"""PCI trees of any shape: the source finds the roles and parents that the tree was built with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Layout, Snapshot
from support.examples import examples
from support.pci import BRIDGE, GPU, LINK, NIC, NVSWITCH, add_device, infos, opened

FILES = {
    "gpu": GPU,
    "nic": NIC,
    "nvswitch": NVSWITCH,
    "disk": {"class": "0x010802", "vendor": "0x144d", "device": "0xa80a"},
}


@dataclass
class Branch:
    """A root port, or a downstream port of a switch, and what is plugged into it."""

    endpoint: str = ""
    """Kind of the device; empty for a switch or an empty slot."""
    switch: list[Branch] = field(default_factory=list)
    """The downstream ports of the switch; empty without one."""


ENDPOINTS = st.builds(Branch, endpoint=st.sampled_from(["", *FILES]))
BRANCHES = st.recursive(
    ENDPOINTS, lambda below: st.builds(Branch, switch=st.lists(below, min_size=1, max_size=3)), max_leaves=8
)
DOMAINS = st.sampled_from(["0000", "0001", "ffff", "10000", "10002"])
ROOTS = st.dictionaries(DOMAINS, st.lists(BRANCHES, min_size=1, max_size=3), min_size=1, max_size=3)


@dataclass
class Built:
    """A device of the tree, as it was built."""

    address: str
    path: str
    role: str
    parent: str
    port: str | None
    """The upper end of its link; None for one on the host bridge, and for a port that ends no link from below."""


def build(domain: str, branches: list[Branch]) -> Iterator[Built]:
    """The devices of one host bridge, each after the bridges above it."""
    host = f"pci{domain}:00"
    numbers = iter(range(1, 256))

    def plug(branch: Branch, parent: str, path: str) -> Iterator[Built]:
        if not branch.endpoint and not branch.switch:
            return
        address = f"{domain}:{next(numbers):02x}:00.0"
        below = f"{path}/{address}"
        if branch.endpoint:
            yield Built(address, below, branch.endpoint, parent, parent)
            return
        yield Built(address, below, "switch_port", parent, parent)
        bus = next(numbers)
        for slot, one in enumerate(branch.switch):
            downstream = f"{domain}:{bus:02x}:{slot:02x}.0"
            yield Built(downstream, f"{below}/{downstream}", "switch_port", address, None)
            yield from plug(one, downstream, f"{below}/{downstream}")

    for slot, branch in enumerate(branches, 1):
        port = f"{domain}:00:{slot:02x}.0"
        yield Built(port, f"{host}/{port}", "root_port", host, None)
        yield from plug(branch, port, f"{host}/{port}")


def on_paths(tree: list[Built]) -> dict[str, Built]:
    """The devices that count: the endpoints of communication and whatever is above them."""
    by_address = {one.address: one for one in tree}
    found: dict[str, Built] = {}
    for one in tree:
        if one.role in {"gpu", "nic", "nvswitch"}:
            above: Built | None = one
            while above is not None:
                found[above.address] = above
                above = by_address.get(above.parent)
    return found


@examples(60)
@given(ROOTS)
def test_roles_and_parents_are_those_of_the_tree(
    tmp_path_factory: pytest.TempPathFactory, roots: dict[str, list[Branch]]
) -> None:
    """Whatever the tree, each device on a path of communication is found with its role, its parent and its link."""
    sysfs = tmp_path_factory.mktemp("sys")
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    tree = [one for domain, branches in roots.items() for one in build(domain, branches)]
    for one in tree:
        add_device(sysfs, one.path, FILES.get(one.role, BRIDGE), LINK)
    expected = on_paths(tree)

    batch = opened(sysfs).collect("pci")

    assert infos(batch) == {address: (one.role, one.parent, "0") for address, one in expected.items()}
    blocks = [Block(Layout(one.series), one.values, one.time) for one in batch.readings]
    devices = Node(Snapshot(blocks)).pcie_devices
    ports = {device.address: device.port.address if device.port else None for device in devices}
    assert ports == {address: one.port for address, one in expected.items()}


def test_two_roots_and_a_long_domain(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sockets are domains of their own on some machines, and a domain may have five digits."""
    sysfs = tmp_path_factory.mktemp("sys")
    for domain in ("0008", "0009"):
        add_device(sysfs, f"pci{domain}:00/{domain}:00:00.0", BRIDGE, LINK)
        add_device(sysfs, f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0", GPU, LINK)
    add_device(sysfs, "pci0000:e0/0000:e0:00.5/pci10000:e0/10000:e0:01.0", BRIDGE, LINK)
    add_device(sysfs, "pci0000:e0/0000:e0:00.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0", NIC, LINK)

    assert infos(opened(sysfs).collect("pci")) == {
        "0008:00:00.0": ("root_port", "pci0008:00", "0"),
        "0008:01:00.0": ("gpu", "0008:00:00.0", "0"),
        "0009:00:00.0": ("root_port", "pci0009:00", "0"),
        "0009:01:00.0": ("gpu", "0009:00:00.0", "0"),
        "10000:e0:01.0": ("root_port", "pci10000:e0", "0"),
        "10000:e1:00.0": ("nic", "10000:e0:01.0", "0"),
    }
