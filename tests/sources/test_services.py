"""The driver's services found in process tables as the kernel shows them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.readings import Batch, SourceUnavailable
from commwatch_exporters.snapshot import Layout, Value
from support.examples import examples
from support.sources import failures, refuse, source_of, why_absent

FABRIC_MANAGER, PERSISTENCED, IMEX = "nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex"


class Node:
    """A process table and a PCI bus; a driver is loaded, but there is no NVSwitch."""

    def __init__(self, folder: Path) -> None:
        self.procfs, self.sysfs = folder / "proc", folder / "sys"
        self.start(2, "kthreadd", "")
        self.start(1, "systemd", "/sbin/init")
        (self.procfs / "driver/nvidia").mkdir(parents=True)
        (self.procfs / "driver/nvidia/version").write_text("NVRM version\n")
        (self.sysfs / "bus/pci/devices").mkdir(parents=True)
        self.told: list[str] = []
        self.source = source_of("services", self.sysfs, self.procfs, report=self.told.append)

    def start(self, process: int, comm: str, command: str, user: int = 0) -> None:
        """A process; the command's words become its command line."""
        home = self.procfs / str(process)
        home.mkdir(parents=True, exist_ok=True)
        (home / "comm").write_text(f"{comm}\n")
        (home / "status").write_text(f"Name:\t{comm}\nUid:\t{user}\t{user}\t{user}\t{user}\n")
        (home / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command.split()))

    def fabric_manager(self, process: int = 3000) -> None:
        self.start(process, "nv-fabricmanage", "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fm.cfg")

    def persistenced(self, process: int = 2000) -> None:
        self.start(process, "nvidia-persiste", "/usr/bin/nvidia-persistenced --user nvidia-persistenced")

    def imex(self, process: int = 4000) -> None:
        self.start(process, "nvidia-imex", "/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg")

    def end(self, process: int) -> None:
        for file in (self.procfs / str(process)).iterdir():
            file.unlink()
        (self.procfs / str(process)).rmdir()

    def device(self, address: str, pci_class: str, vendor: str, driver: str = "") -> None:
        home = self.sysfs / "bus/pci/devices" / address
        home.mkdir()
        (home / "class").write_text(f"{pci_class}\n")
        (home / "vendor").write_text(f"{vendor}\n")
        if driver:
            self.bind(address, driver)

    def bind(self, address: str, driver: str) -> None:
        """Give a device to a kernel driver."""
        link = self.sysfs / "bus/pci/devices" / address / "driver"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../../drivers/{driver}")

    def collect(self) -> Batch:
        return self.source.collect("services")

    def states(self) -> dict[str, Value]:
        """What a run tells of the services."""
        return states(self.collect())


def states(batch: Batch, metric: str = "service_running") -> dict[str, Value]:
    return {
        labels[0]: value
        for reading in batch.readings
        for (name, labels), value in zip(reading.series, reading.values, strict=True)
        if name == f"commwatch_{metric}"
    }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_services_that_run_are_found_although_their_names_are_cut(node: Node) -> None:
    """Each is known by its 15 characters and its program."""
    node.fabric_manager()
    node.persistenced()
    node.imex()
    node.start(5000, "nvlsm", "/opt/nvidia/nvlsm/sbin/nvlsm -F /usr/share/nvidia/nvlsm.conf")

    batch = node.collect()

    assert states(batch) == {FABRIC_MANAGER: 1, PERSISTENCED: 1, IMEX: 1, "nvlsm": 1}
    assert len(Layout(batch.readings[0].series).prefixes) == 5  # and whether adapters can reach GPU memory
    assert node.collect().readings[0].series == batch.readings[0].series


Step: TypeAlias = tuple[Callable[[Node], object], dict[str, Value]]
WELL: dict[str, Value] = {PERSISTENCED: 1}
LACKS: dict[str, Value] = {PERSISTENCED: 0}
STEPS: dict[str, list[Step]] = {
    "what is not needed is not shown; the persistence daemon belongs to every driver": [(lambda node: None, LACKS)],
    "without a driver none is missing": [(lambda node: (node.procfs / "driver/nvidia/version").unlink(), {})],
    "no other device needs a fabric manager": [
        (lambda node: node.device("0000:17:00.0", "0x030200", "0x10de"), LACKS),
        (lambda node: node.device("0000:01:00.0", "0x068000", "0x8086"), LACKS),
    ],
    "NVSwitches need a fabric manager, also one that appears later": [
        (lambda node: None, LACKS),
        (lambda node: node.device("0000:05:00.0", "0x068000", "0x10de"), {**LACKS, FABRIC_MANAGER: 0}),
        (Node.fabric_manager, {**LACKS, FABRIC_MANAGER: 1}),
    ],
    "NVSwitches that a virtual machine has need none here": [
        (lambda node: node.device("0000:05:00.0", "0x068000", "0x10de", driver="vfio-pci"), LACKS),
        (lambda node: node.device("0000:06:00.0", "0x068000", "0x10de", driver="vfio-pci"), LACKS),
        (lambda node: node.bind("0000:06:00.0", "nvidia-nvswitch"), {**LACKS, FABRIC_MANAGER: 0}),
        (lambda node: node.bind("0000:06:00.0", "vfio-pci"), LACKS),
    ],
    "IMEX is of interest only where it runs; from then on its end is": [
        (lambda node: None, LACKS),
        (Node.imex, {**LACKS, IMEX: 1}),
        (lambda node: node.end(4000), {**LACKS, IMEX: 0}),
    ],
    "a user who calls a process as a service of root leaves none behind": [
        (lambda node: node.start(4000, "nvidia-imex", "/home/ann/nvidia-imex", user=1000), LACKS),
        (lambda node: node.start(4001, "nvlsm", "/home/ann/nvlsm", user=1000), LACKS),
        (lambda node: node.end(4000), LACKS),
    ],
    "a restarted service is found under its new number": [
        (Node.persistenced, WELL),
        (lambda node: node.end(2000), LACKS),
        (lambda node: node.persistenced(2001), WELL),
    ],
    "a number that another process got is not the service": [
        (Node.persistenced, WELL),
        (lambda node: node.start(2000, "python3", "python3 train.py"), LACKS),
    ],
    "a zombie has no command line": [(lambda node: node.start(2000, "nvidia-persiste", ""), LACKS)],
    "the persistence daemon has a user of its own": [
        (lambda node: node.start(2000, "nvidia-persiste", "/usr/bin/nvidia-persistenced", user=113), WELL),
    ],
    "any program can call its process so": [
        (lambda node: node.start(2000, "nvidia-persiste", "/usr/bin/python3 /tmp/nvidia-persistenced"), LACKS),
    ],
    "a program whose own name is cut is another one": [
        (lambda node: node.start(2000, "nvidia-persiste", "/opt/nvidia-persiste"), LACKS),
    ],
    "a process between fork and exec has its parent's name, and is looked at again": [
        (lambda node: None, LACKS),
        (lambda node: node.start(2000, "systemd", "(persistenced)"), LACKS),
        (Node.persistenced, WELL),
    ],
}
"""What is done to the node, and the services that a run shows then."""


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_which_services_run(node: Node, steps: list[Step]) -> None:
    """By name and program of the processes, where they belong to what is here."""
    for act, expected in steps:
        act(node)
        assert node.states() == expected


MODE_FILE = "root/usr/share/nvidia/nvswitch/fm.cfg"


@pytest.mark.parametrize(
    ("file", "text", "mode"),
    [
        (MODE_FILE, "# FABRIC_MODE=2\nFABRIC_MODE=1\nFABRIC_MODE_RESTART=0\n", 1),
        (MODE_FILE, "FABRIC_MODE=0\n", 0),
        (MODE_FILE, "LOG_LEVEL=4\n", 0),
        ("root/usr/share/nvidia/nvswitch/fabricmanager.cfg", "FABRIC_MODE=1\n", None),
    ],
    ids=["shared NVSwitch", "bare metal", "default", "another file"],
)
def test_the_mode_of_the_fabric_manager_is_that_of_its_configuration(
    node: Node, file: str, text: str, mode: int | None
) -> None:
    """Of the file that its command line names, below its own root; it reads it once, and keeps it after its end."""
    node.device("0000:05:00.0", "0x068000", "0x10de")
    node.fabric_manager()
    path = node.procfs / "3000" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)

    assert states(node.collect(), "service_fabric_mode") == ({} if mode is None else {FABRIC_MANAGER: mode})
    path.write_text("FABRIC_MODE=2\n")
    assert states(node.collect(), "service_fabric_mode") == ({} if mode is None else {FABRIC_MANAGER: mode})


@pytest.mark.parametrize(
    ("make", "modes"),
    [
        (lambda path: path.write_text("FABRIC_MODE=1\n"), {FABRIC_MANAGER: 1}),
        (lambda path: (path.write_text("FABRIC_MODE=1\n"), path.chmod(0o666)), {}),
        (os.mkfifo, {}),
        (lambda path: path.symlink_to("/dev/zero"), {}),
    ],
    ids=["by root or commwatch alone", "by anyone", "a pipe that nobody writes", "a device"],
)
def test_a_configuration_that_another_user_can_write_says_nothing(
    node: Node, make: Callable[[Path], object], modes: dict[str, Value]
) -> None:
    """Any user can call a process as the fabric manager; none makes the reader wait or the fabric's faults go away."""
    node.device("0000:05:00.0", "0x068000", "0x10de")
    node.fabric_manager()
    path = node.procfs / "3000" / MODE_FILE
    path.parent.mkdir(parents=True)
    make(path)

    assert states(node.collect(), "service_fabric_mode") == modes


def test_the_table_is_read_whole_now_and_then_only(node: Node) -> None:
    """A process that turns into a service late is found by the full scan of every 20th run, not before."""
    node.start(2000, "bash", "bash")
    for _ in range(3):
        assert node.states() == {PERSISTENCED: 0}
    node.persistenced(2000)

    found = [node.states()[PERSISTENCED] for _ in range(18)]

    assert found == [0] * 17 + [1]


def test_a_table_that_hides_the_node_is_no_answer(node: Node) -> None:
    """In a container, or with hidepid, nothing is said: not that the services do not run."""
    node.end(2)
    with pytest.raises(SourceUnavailable) as caught:
        node.collect()
    assert caught.value.reason == "no_permission"

    node.start(2, "sh", "sh")
    with pytest.raises(SourceUnavailable):
        node.collect()


def test_a_process_that_cannot_be_told_is_an_absence(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command line cannot be read, the service is neither running nor missing."""
    node.persistenced(2000)
    node.fabric_manager()
    refuse(monkeypatch, {"2000/cmdline": errno.EACCES})
    batch = node.collect()

    assert states(batch) == {FABRIC_MANAGER: 1}
    assert failures(batch) == [(PERSISTENCED, "no_permission")]


def test_a_command_line_that_may_hang_is_announced_and_can_be_left_out(node: Node) -> None:
    """The service is reported before its memory is read; as a suspect it is neither read nor told of."""
    node.persistenced()
    node.collect()
    assert node.told == [PERSISTENCED, ""]

    node.source.open(node.told.append, frozenset({PERSISTENCED}), None)

    assert node.states() == {}
    assert node.told == [PERSISTENCED, "", ""]


def test_the_origin_is_absent_without_driver_or_without_processes(node: Node) -> None:
    """No run is made where nothing could be said."""
    assert why_absent("services", node.sysfs, node.procfs) == ""
    node.end(2)
    assert "do not show" in why_absent("services", node.sysfs, node.procfs)


@examples(50, one_fixture=True)
@given(comm=st.binary(max_size=40), command=st.binary(max_size=80))
def test_any_bytes_of_a_process_are_taken(
    tmp_path_factory: pytest.TempPathFactory, comm: bytes, command: bytes
) -> None:
    """No process can stop the source or appear as a service by chance."""
    node = Node(tmp_path_factory.mktemp("node"))
    node.start(7, "x", "x")
    (node.procfs / "7/comm").write_bytes(comm)
    (node.procfs / "7/cmdline").write_bytes(command)

    assert node.states() == {PERSISTENCED: 0}


@pytest.mark.parametrize(
    ("version", "modules", "told"),
    [
        ("NVIDIA UNIX Open Kernel Module for x86_64", ("nvidia",), {"peermem": 0, "dma_buf": 1}),
        ("NVIDIA UNIX x86_64 Kernel Module", ("nvidia", "nvidia_peermem"), {"peermem": 1, "dma_buf": 0}),
        ("NVIDIA UNIX x86_64 Kernel Module", ("nv_peer_mem",), {"peermem": 1, "dma_buf": 0}),
        ("NVIDIA UNIX x86_64 Kernel Module", ("nvidia",), {"peermem": 0, "dma_buf": 0}),
        ("NVIDIA UNIX x86_64 Kernel Module", (), {"dma_buf": 0}),
    ],
)
def test_how_adapters_reach_gpu_memory(
    node: Node, version: str, modules: tuple[str, ...], told: dict[str, Value]
) -> None:
    """The module for it is looked for among those that are loaded; without their list that is not known."""
    (node.procfs / "driver/nvidia/version").write_text(f"NVRM version: {version}  580.95.05\n")
    for module in modules:
        (node.sysfs / "module" / module).mkdir(parents=True)

    assert states(node.collect(), "gpudirect_rdma_available") == told
