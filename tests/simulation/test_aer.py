"""PCIe errors of a simulated node, in the format of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.harness import Rehearsal

Rehearse = Callable[..., Rehearsal]

CORRECTABLE = """\
RxErr 0
BadTLP {}
BadDLLP 0
Rollover 0
Timeout 0
NonFatalErr 0
CorrIntErr 0
HeaderOF 0
TOTAL_ERR_COR {}
"""
FATAL = """\
Undefined 0
DLP 0
SDES 0
TLP 0
FCP 0
CmpltTO 0
CmpltAbrt 0
UnxCmplt 0
RxOF 0
MalfTLP 0
ECRC 0
UnsupReq 0
ACSViol 0
UncorrIntErr 0
BlockedTLP 0
AtomicOpBlocked 0
TLPBlockedErr 0
PoisonTLPBlocked 0
TOTAL_ERR_FATAL 0
"""
GPU, PORT_ABOVE, UPSTREAM, ROOT, OTHER_ROOT = (
    "0000:17:00.0", "0000:16:00.0", "0000:15:00.0", "0000:14:01.0", "0000:37:01.0",
)  # fmt: skip


class Devices:
    """The PCI devices of a node with these faults, read at one time after another."""

    def __init__(self, rehearsal: Rehearsal, root: Path) -> None:
        self.rehearsal = rehearsal
        self.root = root

    def read(self, time: float, address: str, file: str) -> str:
        self.rehearsal.now = time
        self.rehearsal.node.write_sysfs(self.root, ("pci",))
        return (self.root / "bus/pci/devices" / address / file).read_text()


@pytest.fixture
def devices(rehearse: Rehearse, tmp_path: Path) -> Callable[..., Devices]:
    """``devices(faults)``: eight H100 with the tree of their PCI devices."""
    return lambda faults="": Devices(rehearse("h100x8", faults), tmp_path / "sys")


@pytest.mark.parametrize("address", [GPU, PORT_ABOVE, ROOT, "0000:19:00.0", "0000:08:00.0"])
def test_every_device_counts_zeros_while_it_is_healthy(devices: Callable[..., Devices], address: str) -> None:
    """GPUs, adapters, NVSwitches and ports alike, in the words of the kernel."""
    node = devices()

    assert node.read(100.0, address, "aer_dev_correctable") == CORRECTABLE.format(0, 0)
    assert node.read(100.0, address, "aer_dev_fatal") == FATAL
    assert node.read(100.0, address, "aer_dev_nonfatal") == FATAL.replace("TOTAL_ERR_FATAL", "TOTAL_ERR_NONFATAL")


def test_only_root_ports_count_messages(devices: Callable[..., Devices]) -> None:
    """One number in each of their files."""
    node = devices()

    names = ("cor", "nonfatal", "fatal")
    assert [node.read(100.0, ROOT, f"aer_rootport_total_err_{name}") for name in names] == ["0\n"] * 3
    for address in (GPU, PORT_ABOVE, UPSTREAM):
        with pytest.raises(FileNotFoundError):
            node.read(100.0, address, "aer_rootport_total_err_cor")


def test_errors_show_at_both_ends_and_at_their_root_port(devices: Callable[..., Devices]) -> None:
    """The GPU and the port above it each count theirs, the root port the messages of both; others nothing."""
    node = devices(
        f"- {{fault: pcie_aer, device: '{GPU}', severity: correctable, error: BadTLP, rate: 2/s, at: 90.25s, for: 10s}}"
    )

    assert node.read(90.2, GPU, "aer_dev_correctable") == CORRECTABLE.format(0, 0)
    assert node.read(90.25, GPU, "aer_dev_correctable") == CORRECTABLE.format(1, 1)
    assert node.read(99.8, GPU, "aer_dev_correctable") == CORRECTABLE.format(20, 20)
    assert node.read(99.8, PORT_ABOVE, "aer_dev_correctable") == CORRECTABLE.format(20, 20)
    assert node.read(99.8, UPSTREAM, "aer_dev_correctable") == CORRECTABLE.format(0, 0)
    assert node.read(99.8, ROOT, "aer_dev_correctable") == CORRECTABLE.format(0, 0)
    assert node.read(99.8, ROOT, "aer_rootport_total_err_cor") == "40\n"
    assert node.read(99.8, OTHER_ROOT, "aer_rootport_total_err_cor") == "0\n"
    assert node.read(200.0, GPU, "aer_dev_correctable") == node.read(500.0, GPU, "aer_dev_correctable")
    assert node.read(200.0, GPU, "aer_dev_fatal") == FATAL


@pytest.mark.parametrize("target", ["gpu: 0", "nic: ens1np0", "device: '0000:16:02.0'"])
def test_a_device_is_named_in_three_ways(devices: Callable[..., Devices], target: str) -> None:
    """A GPU by its place, an adapter by its interface, all by their address."""
    address = {"gpu": GPU, "nic": "0000:19:00.0", "device": "0000:16:02.0"}[target.partition(":")[0]]
    node = devices(f"- {{fault: pcie_aer, {target}, severity: fatal, error: DLP, rate: 1/d, at: 50s}}")

    assert "DLP 1\n" in node.read(100.0, address, "aer_dev_fatal")
    assert "TOTAL_ERR_FATAL 1\n" in node.read(100.0, address, "aer_dev_fatal")
    assert node.read(100.0, ROOT, "aer_rootport_total_err_fatal") == "2\n"


def test_a_boot_begins_at_zero(devices: Callable[..., Devices]) -> None:
    """The kernel keeps these counts in its own memory."""
    node = devices(
        "- {fault: pcie_aer, gpu: 0, severity: correctable, error: BadTLP, rate: 1/s, at: 0s, for: 50s}\n"
        "- {fault: gpu_missing, gpu: 5, at: 100s}"
    )

    assert "BadTLP 51\n" in node.read(99.0, GPU, "aer_dev_correctable")
    assert node.read(100.0, GPU, "aer_dev_correctable") == CORRECTABLE.format(0, 0)


def test_processors_are_near_their_devices(devices: Callable[..., Devices]) -> None:
    """Two NUMA nodes with 48 cores of two threads each."""
    node = devices()

    assert node.read(100.0, GPU, "local_cpulist") == "0-47,96-143\n"
    assert node.read(100.0, "0000:9a:00.0", "local_cpulist") == "48-95,144-191\n"
    system = node.root / "devices/system/node"
    assert (system / "node1/cpulist").read_text() == "48-95,144-191\n"
    assert (system / "online").read_text() == "0-1\n"
