"""The kernel log of a simulated node, as a reader of /dev/kmsg meets it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from simulation.harness import Rehearsal
from support.sources import stand_in_of

Rehearse = Callable[..., Rehearsal]
RING_RECORDS = 10_000

RECORD = re.compile(rb"([0-7]),([0-9]+),([0-9]+),-;([^\n]+)\n(?: SUBSYSTEM=pci\n DEVICE=\+pci:[0-9a-f:.]+\n)?")


class Log:
    """A newly opened log of a node, on a machine that started 1,000 s before the node."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.device = stand_in_of("kernel_log", rehearsal.node, lambda: 1000.0 + rehearsal.now)

    def records(self, time: float) -> list[tuple[int, int, int, str]]:
        """Level, number, microseconds and text of what is new at a time."""
        self.rehearsal.now = time
        found = []
        while (record := self.device.read()) is not None:
            match = RECORD.fullmatch(record)
            assert match, record
            found.append((int(match[1]), int(match[2]), int(match[3]), match[4].decode("ascii")))
        return found

    def texts(self, time: float) -> list[str]:
        """What is new at a time."""
        return [text for _, _, _, text in self.records(time)]


@pytest.fixture
def log(rehearse: Rehearse) -> Callable[..., Log]:
    """``log(faults, preset="h100x8", now=100.0)``: a newly opened log."""
    return lambda faults="", preset="h100x8", now=100.0: Log(rehearse(preset, faults, now))


def test_a_healthy_node_logs_how_its_driver_was_loaded(log: Callable[..., Log]) -> None:
    """At the start of the node, by the clock of this machine; then nothing."""
    node = log()

    assert node.records(100.0) == [
        (6, 0, 1_000_000_000, "nvidia-nvlink: Nvlink Core is being initialized, major device number 236"),
        (
            5,
            1,
            1_000_000_000,
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  "
            "(dvs-builder@simulated)",
        ),
    ]
    assert node.records(100_000.0) == []


def test_a_lost_gpu_is_logged_in_both_wordings(log: Callable[..., Log]) -> None:
    """When the fault begins and not before, stamped with that time."""
    node = log("- {fault: gpu_lost, gpu: 0, at: 150s}")
    node.records(149.9)

    assert node.records(150.0) == [
        (
            3,
            150_000_000,
            1_150_000_000,
            "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ),
        (3, 150_000_001, 1_150_000_000, "NVRM: GPU 0000:17:00.0: GPU has fallen off the bus."),
    ]
    assert node.records(500.0) == []


def test_a_link_down_is_told_by_the_gpu_and_by_its_switch(log: Callable[..., Log]) -> None:
    """Xid 74 with the link of the GPU, SXid 20034 with that of the NVSwitch and the dump after it."""
    node = log("- {fault: nvlink_down, gpu: 3, link: 5, at: 150s}")
    node.records(149.9)

    assert node.texts(150.0) == [
        "NVRM: Xid (PCI:0000:3b:00): 74, pid='<unknown>', name=<unknown>, "
        "NVLink: fatal error detected on link 5(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        "nvidia-nvswitch1: SXid (PCI:0000:09:00.0): 20034, Fatal, Link 16 LTSSM Fault Up",
        "nvidia-nvswitch1: SXid (PCI:0000:09:00.0): 20034, Severity 1 Engine instance 16 Sub-engine instance 00",
    ]


def test_nvlink_5_reports_in_its_own_form(log: Callable[..., Log]) -> None:
    """Xid 149 with unit, severity and link; its switches are no PCI devices of the node."""
    node = log("- {fault: nvlink_down, gpu: 0, link: 5, at: 150s}", "b200x8")
    node.records(149.9)

    (text,) = node.texts(150.0)
    assert text == (
        "NVRM: Xid (PCI:0000:17:00): 149, pid='<unknown>', name=<unknown>, NETIR_LINK_EVT  Fatal   XC0 i0 Link 05 "
        "(0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    )


@pytest.mark.parametrize(("duration", "lines"), [("5.9s", 0), ("6.1s", 1)])
def test_a_hanging_driver_is_logged_after_its_timeout(log: Callable[..., Log], duration: str, lines: int) -> None:
    """Six seconds after the firmware stopped answering, where it has not answered by then."""
    node = log(f"- {{fault: driver_hang, gpu: 0, at: 150s, for: {duration}}}")
    node.records(155.99)

    texts = node.texts(156.0)
    assert [text[:40] for text in texts] == ["NVRM: Xid (PCI:0000:17:00): 119, pid='<u"] * lines
    assert all("Timeout after 6s of waiting for RPC response from GPU0 GSP!" in text for text in texts)


def test_an_xid_names_the_part_of_a_split_gpu(log: Callable[..., Log]) -> None:
    """With MIG the driver adds the instances; an Xid of a program names the program."""
    node = log(
        "- {fault: mig_enabled, gpu: 0, at: 0s}\n"
        "- {fault: xid, gpu: 0, xid: 94, at: 150s}\n- {fault: xid, gpu: 1, xid: 48, at: 151s}"
    )
    node.records(149.9)

    split, whole = node.texts(151.0)
    assert split.startswith("NVRM: Xid (PCI:0000:17:00 GPU-I:01 GPU-CI:00): 94, pid=4100000, name=python3, Contained: ")
    assert whole.startswith("NVRM: Xid (PCI:0000:18:00): 48, pid='<unknown>', name=<unknown>, ")


def test_an_sxid_comes_at_its_rate(log: Callable[..., Log]) -> None:
    """Three in a minute at every 20 s, the last before the fault is over; each with its dump."""
    node = log("- {fault: sxid, nvswitch: 0, sxid: 12028, link: 30, rate: 3/min, at: 200s, for: 1m}")
    node.records(199.9)

    event = "nvidia-nvswitch0: SXid (PCI:0000:08:00.0): 12028, Non-fatal, Link 30 egress non-posted PRIV error"
    times = [stamp // 1_000_000 for _, _, stamp, text in node.records(1000.0) if text == event]
    assert times == [1200, 1220, 1240]


def test_pcie_errors_are_logged_with_their_device(log: Callable[..., Log]) -> None:
    """The root port that was told, and what the device said, with its properties."""
    node = log("- {fault: pcie_aer, nic: ens1np0, severity: correctable, error: BadTLP, rate: 1/d, at: 150s}")
    node.records(149.9)

    assert node.records(150.0)[0][0] == 4
    node = log("- {fault: pcie_aer, nic: ens1np0, severity: nonfatal, error: CmpltTO, rate: 1/d, at: 150s}")
    node.records(149.9)
    assert node.texts(150.0) == [
        "pcieport 0000:14:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:19:00.0",
        "mlx5_core 0000:19:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, "
        "(Receiver ID)",
        "mlx5_core 0000:19:00.0:   device [15b3:1021] error status/mask=00004000/00002000",
        "mlx5_core 0000:19:00.0:    [14] CmpltTO",
    ]


def test_ports_log_when_they_go_and_come(log: Callable[..., Log]) -> None:
    """An interface by its name, an InfiniBand port by its cable."""
    node = log(
        "- {fault: rdma_port_down, device: mlx5_8, at: 150s, for: 3s}\n"
        "- {fault: rdma_port_down, device: mlx5_0, at: 160s}",
        "h100x8ndr",
    )
    node.records(149.9)

    assert node.texts(152.9) == ["mlx5_core 0000:d7:00.0 ens11f0np0: Link down"]
    assert node.texts(153.0) == ["mlx5_core 0000:d7:00.0 ens11f0np0: Link up"]
    (text,) = node.texts(1000.0)
    assert text.endswith(": Port module event: module 0, Cable unplugged")


def test_a_log_opened_late_gives_the_same_records(log: Callable[..., Log]) -> None:
    """Earlier ones too, each under the same number and time, as a reader after a restart needs it."""
    faults = "- {fault: gpu_lost, gpu: 0, at: 20s}\n- {fault: xid, gpu: 1, xid: 13, rate: 1/s, at: 15.5s, for: 30s}"
    early = log(faults, now=1.0)
    step_by_step = [record for time in range(1, 200) for record in early.records(float(time))]

    late = log(faults, now=200.0).records(200.0)

    assert late == step_by_step
    assert len(late) == 2 + 2 + 30
    numbers = [number for _, number, _, _ in late]
    assert numbers == sorted(set(numbers))


def test_the_ring_holds_the_latest_records(log: Callable[..., Log]) -> None:
    """Of an error a second for a day a late reader meets the last ones, without a gap at their end."""
    node = log("- {fault: xid, gpu: 0, xid: 31, rate: 1/s, at: 0.5s}", now=86_400.0)

    records = node.records(86_400.0)

    assert len(records) == pytest.approx(RING_RECORDS, abs=2)
    assert records[-1][2] == 1_000_000_000 + 86_399_500_000
    assert len(node.records(86_401.0)) == 1


def test_a_reader_that_is_too_slow_is_told_once(log: Callable[..., Log]) -> None:
    """Overwritten records give one EPIPE, then the oldest that is left."""
    node = log("- {fault: xid, gpu: 0, xid: 31, rate: 10/s, at: 200s}")
    node.records(100.0)

    node.rehearsal.now = 10_000.0
    with pytest.raises(BrokenPipeError):
        node.device.read()
    assert len(node.records(10_000.0)) == RING_RECORDS


def test_faults_that_are_written_later_are_logged_then(log: Callable[..., Log]) -> None:
    """What was logged is not logged again, however the file changes around it; numbers grow."""
    node = log("- {fault: xid, gpu: 0, xid: 31, at: 50s}")
    before = node.records(100.0)

    node.rehearsal.write("- {fault: xid, gpu: 0, xid: 31, at: 50s}\n- {fault: gpu_lost, gpu: 1}")
    later = node.records(node.rehearsal.now)
    node.rehearsal.write("- {fault: xid, gpu: 0, xid: 31, at: 50s}")

    assert [text[:34] for _, _, _, text in later] == [
        "NVRM: Xid (PCI:0000:18:00): 79, pi", "NVRM: GPU 0000:18:00.0: GPU has fa",
    ]  # fmt: skip
    assert min(number for _, number, _, _ in later) > max(number for _, number, _, _ in before)
    assert node.records(node.rehearsal.now) == []


def test_a_boot_begins_a_new_log(log: Callable[..., Log]) -> None:
    """A late reader meets nothing from before it."""
    node = log("- {fault: xid, gpu: 0, xid: 31, at: 50s}\n- {fault: gpu_missing, gpu: 2, at: 80s}")

    assert [stamp for _, _, stamp, _ in node.records(100.0)] == [1_080_000_000] * 2


def test_a_log_that_may_not_be_read(log: Callable[..., Log], rehearse: Rehearse) -> None:
    """Neither opened nor read on while the fault holds; then all is there."""
    node = log("- {fault: kernel_log_unreadable, at: 150s, for: 10s}\n- {fault: xid, gpu: 0, xid: 31, at: 155s}")
    node.records(149.9)

    node.rehearsal.now = 150.0
    with pytest.raises(PermissionError):
        node.device.read()
    with pytest.raises(PermissionError):
        stand_in_of("kernel_log", node.rehearsal.node)
    assert len(node.texts(160.0)) == 1
