"""What sysfs and the kernel log alone say of a node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from commwatch.diagnosis.health.kernel import SOURCES, ask_kernel, read_kernel
from commwatch.diagnosis.health.kernel_facts import KernelFacts, judged
from commwatch.readings import Batch
from commwatch.sources.kernel_log import LogDevice
from support.facts import NOW

GPU, PORT, NIC = "0000:17:00.0", "0000:16:00.0", "0000:2a:00.0"
XID = "NVRM: Xid (PCI:0000:17:00): {}, pid=4242, name=python, something"
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {}, Fatal, Link 46 LTSSM Fault Up"


class Log:
    """A kernel log with these lines, all written by the kernel."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._records = [f"4,{number},{number}000000,-;{line}\n".encode() for number, line in enumerate(lines)]

    def read(self) -> bytes | None:
        return self._records.pop(0) if self._records else None

    def close(self) -> None:
        self._records = []


def device(sysfs: Path, address: str, *below: str, **attributes: str) -> None:
    """A device on the first host bridge, beneath other devices where these are named."""
    home = sysfs / "devices/pci0000:00" / "/".join((*below, address))
    home.mkdir(parents=True)
    for name, text in attributes.items():
        (home / name).write_text(text + "\n")
    listed = sysfs / "bus/pci/devices"
    listed.mkdir(parents=True, exist_ok=True)
    (listed / address).symlink_to(home)


def link(current: str, most: str) -> dict[str, str]:
    speeds = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe"}
    return {"current_link_width": current, "max_link_width": most, **speeds}


BRIDGE = {"class": "0x060400", "vendor": "0x8086", "device": "0x352a"}
CARD = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
ADAPTER = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"}


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """With the boot's identity."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("0f1e2d3c\n")
    return tmp_path / "proc"


def seen(tmp_path: Path, sources: Sequence[str], lines: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    def opened() -> LogDevice:
        return Log(lines)

    found = judged(read_kernel(tmp_path / "sys", tmp_path / "proc", sources, opened), NOW)
    assert found.unread == ()
    return [(fact.code, fact.severity, fact.text) for fact in found.facts]


def test_reports_of_failed_paths_count_since_the_boot(tmp_path: Path, procfs: Path) -> None:
    """Xids and SXids by which a path fails, and lines without a number; other Xids and other lines do not."""
    lines = [XID.format(74), "usb 1-1: new device", XID.format(74), XID.format(31), SXID.format(20034)]
    lines += ["NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2330) has fallen off the bus"]

    assert [text for _, _, text in seen(tmp_path, ["kernel_log"], lines)] == [
        "The driver reports that a path of the GPU has failed: 0000:17:00.0; "
        "Xid 74: NVLink error since the boot, 2 times",
        "The driver reports that a path of the GPU has failed: 0000:3b:00.0; "
        "kernel log: fallen off the bus since the boot, once",
        "An NVSwitch reports that a link has failed: NVSwitch 0000:c1:00.0; "
        "SXid 20034: link fault since the boot, once",
    ]


def test_a_kernel_log_without_reports_shows_nothing(tmp_path: Path, procfs: Path) -> None:
    """An Xid of a program is none of a path, and one that the driver itself calls not fatal stops nothing."""
    mild = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 46 LTSSM Fault Up"

    assert seen(tmp_path, ["kernel_log"], [XID.format(31), XID.format(13), mild]) == []


def test_errors_that_were_not_corrected_are_told(tmp_path: Path) -> None:
    """Fatal ones first; corrected ones and zeros are left out."""
    totals = {"aer_dev_fatal": "TOTAL_ERR_FATAL 0", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 3"}
    device(tmp_path / "sys", PORT, **BRIDGE, aer_rootport_total_err_fatal="1")
    device(tmp_path / "sys", NIC, PORT, **ADAPTER, **totals, aer_dev_correctable="TOTAL_ERR_COR 900")

    assert seen(tmp_path, ["pci"]) == [
        (
            "pcie_fatal",
            "critical",
            f"Fatal PCIe error: PCIe link of nic {NIC}; fatal errors since the boot, reported by root port {PORT}: 1",
        ),
        (
            "pcie_nonfatal",
            "warning",
            f"Uncorrected PCIe error: PCIe link of nic {NIC}; "
            f"nonfatal errors since the boot, reported by {NIC} (nic): 3",
        ),
    ]


@pytest.mark.parametrize(
    ("card", "code", "severity", "said"),
    [
        (ADAPTER, "pcie_device_narrow", "warning", f"PCIe link of nic {NIC}; lanes in use: x8"),
        (CARD, "pcie_below_maximum", "info", f"PCIe link of GPU ({NIC}); lanes: x8 (limit x16)"),
    ],
    ids=["adapter", "gpu"],
)
def test_a_link_narrower_than_both_ends_is_told(
    tmp_path: Path, card: dict[str, str], code: str, severity: str, said: str
) -> None:
    """As the daemon has it: the slot of a GPU may never have had more lanes."""
    device(tmp_path / "sys", PORT, **BRIDGE, **link("8", "16"))
    device(tmp_path / "sys", NIC, PORT, **card, **link("8", "16"))

    [fact] = seen(tmp_path, ["pci"])
    assert fact[:2] == (code, severity)
    assert fact[2].endswith(said)


@pytest.mark.parametrize(("lanes", "port_most"), [("16", "16"), ("8", "8")], ids=["whole", "slot of eight"])
def test_a_link_as_wide_as_both_ends_is_not_told(tmp_path: Path, lanes: str, port_most: str) -> None:
    """A slot of eight lanes is what it is."""
    device(tmp_path / "sys", PORT, **BRIDGE, **link(lanes, port_most))
    device(tmp_path / "sys", NIC, PORT, **ADAPTER, **link(lanes, "16"))

    assert seen(tmp_path, ["pci"]) == []


def test_a_link_whose_upper_end_is_not_known_is_not_judged(tmp_path: Path) -> None:
    """On the bus of a host bridge there is no port."""
    device(tmp_path / "sys", NIC, **ADAPTER, **link("8", "16"))

    assert seen(tmp_path, ["pci"]) == []


def test_what_a_single_look_cannot_decide_is_not_told(tmp_path: Path, procfs: Path) -> None:
    """Errors that were corrected since the boot are no rate, and a slow link has to stay slow."""
    slow = {**link("16", "16"), "current_link_speed": "2.5 GT/s PCIe"}
    device(tmp_path / "sys", PORT, **BRIDGE, **slow)
    device(tmp_path / "sys", NIC, PORT, **ADAPTER, **slow, aer_dev_correctable="TOTAL_ERR_COR 90000000")

    assert seen(tmp_path, ["pci", "kernel_log"], [XID.format(119)]) == []


def test_a_rule_that_fails_leaves_the_others_and_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would have seen cannot be ruled out."""
    device(tmp_path / "sys", PORT, **BRIDGE, **link("8", "16"))
    device(tmp_path / "sys", NIC, PORT, **ADAPTER, **link("8", "16"), aer_dev_fatal="TOTAL_ERR_FATAL 2")
    monkeypatch.setattr("commwatch.findings.rules.pcie_errors.link_of_errors", None)

    found = judged(read_kernel(tmp_path / "sys", tmp_path / "proc", ["pci"]), NOW)

    assert [fact.code for fact in found.facts] == ["pcie_device_narrow"]
    assert found.unread == ("rule pcie_errors.reported: 'NoneType' object is not callable",)


def test_rdma_ports_that_are_not_active_are_information(tmp_path: Path) -> None:
    """Whether a cable was ever there the kernel does not know; no counter is read."""
    for name, state, phys in (("mlx5_0", "4: ACTIVE", "5: LinkUp"), ("mlx5_1", "1: DOWN", "3: Disabled")):
        port = tmp_path / "sys/class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "phys_state").write_text(phys + "\n")

    assert seen(tmp_path, ["rdma"]) == [
        (
            "rdma_port_down",
            "info",
            "RDMA port is down: mlx5_1 port 1 (mlx5_1/1); state: down; physical state: disabled",
        )
    ]


def test_a_port_whose_state_was_not_read_is_not_told(tmp_path: Path) -> None:
    """What was not read is no fault; that it was not read is said."""
    (tmp_path / "class/infiniband/mlx5_0/ports/1").mkdir(parents=True)

    found = judged(read_kernel(tmp_path, tmp_path, ["rdma"]), NOW)

    assert found.facts == ()
    assert [text.rpartition("/")[2] for text in found.unread] == [
        "state: No such file or directory",
        "phys_state: No such file or directory",
    ]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """No tree, no permission: each in words."""

    def refused() -> LogDevice:
        raise PermissionError(1, "Operation not permitted", "/dev/kmsg")

    found = judged(read_kernel(tmp_path / "sys", Path("/proc"), SOURCES, refused), NOW)

    assert found.facts == ()
    assert len(found.unread) == 2
    assert "CAP_SYSLOG" in found.unread[1]


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    """A source that the configuration switches off is not touched."""
    assert read_kernel(tmp_path, tmp_path, ()) == Batch()
    assert judged(Batch(), NOW) == KernelFacts((), ())


def test_the_child_tells_what_it_found(tmp_path: Path) -> None:
    """The same over a process of its own."""
    device(tmp_path / "sys", NIC, **ADAPTER, aer_dev_fatal="TOTAL_ERR_FATAL 2")

    found = judged(asyncio.run(ask_kernel(tmp_path / "sys", Path("/proc"), ["pci"], 30.0)), NOW)

    assert [fact.code for fact in found.facts] == ["pcie_fatal"]
    assert found.unread == ()


@pytest.mark.parametrize(
    ("script", "said"),
    [("exec /bin/sleep 600", "gave no answer in 0.3 s"), ("echo 'no such module' >&2; exit 1", "no such module")],
)
def test_a_child_that_gives_no_answer_is_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    """A broken device can hold the child in the kernel; the check goes on without it."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", os.fspath(program))

    found = judged(asyncio.run(ask_kernel(tmp_path, tmp_path, SOURCES, 0.3 if "sleep" in script else 30.0)), NOW)

    assert found.facts == ()
    assert said in found.unread[0]
