"""RDMA devices of a simulated node, as the kernel and the mlx5 driver show them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.harness import Rehearsal

Rehearse = Callable[..., Rehearsal]

PORT_COUNTERS = {
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets", "port_rcv_constraint_errors",
    "port_rcv_data", "port_rcv_errors", "port_rcv_packets", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards",
    "port_xmit_packets", "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets",
}  # fmt: skip


class Ports:
    """The ports of a node with these faults, read at one time after another."""

    def __init__(self, rehearsal: Rehearsal, root: Path) -> None:
        self.rehearsal = rehearsal
        self.root = root

    def at(self, time: float, device: str = "mlx5_0") -> Path:
        """The port's folder, brought up to date."""
        self.rehearsal.now = time
        self.rehearsal.node.write_sysfs(self.root, ("rdma",))
        return self.root / "class/infiniband" / device / "ports/1"

    def count(self, time: float, counter: str, device: str = "mlx5_0") -> int:
        """A counter of ``counters`` or ``hw_counters``."""
        (file,) = self.at(time, device).glob(f"*counters/{counter}")
        return int(file.read_bytes())


@pytest.fixture
def ports(rehearse: Rehearse, root: Path) -> Callable[..., Ports]:
    """``ports(faults)``: an InfiniBand node whose tree is read part by part."""
    return lambda faults="": Ports(rehearse("h100x8ndr", faults), root)


def read(folder: Path, *names: str) -> list[str]:
    return [(folder / name).read_text() for name in names]


def test_an_infiniband_port_that_is_up(ports: Callable[..., Ports], root: Path) -> None:
    """Its files say so in the words of the kernel; its device is a PCI device that names it in turn."""
    port = ports().at(100.0)
    device = port.parents[1]

    assert read(port, "state", "phys_state", "link_layer", "rate", "sm_lid", "cap_mask") == [
        "4: ACTIVE\n", "5: LinkUp\n", "InfiniBand\n", "400 Gb/sec (4X NDR)\n", "0x1\n", "0xa751e848\n",
    ]  # fmt: skip
    assert 0 < int(port.joinpath("lid").read_text(), 16) < 0xC000
    assert read(device, "node_type", "fw_ver", "hca_type", "board_id") == [
        "1: CA\n", "28.39.1002\n", "MT4129\n", "MT_0000000838\n",
    ]  # fmt: skip
    assert (device / "device/class").read_text() == "0x020700\n"
    assert (device / "device").resolve() == device.resolve().parents[1]
    assert {path.name for path in (port / "counters").iterdir()} == PORT_COUNTERS
    assert (port / "hw_counters/lifespan").read_text() == "10\n"
    assert not (port / "hw_counters/np_cnp_sent").exists()
    assert not (port / "gid_attrs/ndevs/0").exists()


def test_a_roce_port_names_its_interface_and_counts_congestion(ports: Callable[..., Ports], root: Path) -> None:
    """Interface, RDMA device and PCI device lead to each other."""
    port = ports().at(100.0, "mlx5_8")

    assert read(port, "link_layer", "rate", "lid", "sm_lid", "gid_attrs/ndevs/0", "gid_attrs/types/0") == [
        "Ethernet\n", "100 Gb/sec (4X EDR)\n", "0x0\n", "0x0\n", "ens11f0np0\n", "IB/RoCE v1\n",
    ]  # fmt: skip
    assert read(port, "hw_counters/np_ecn_marked_roce_packets", "hw_counters/rp_cnp_handled") == ["0\n", "0\n"]
    assert (root / "class/net/ens11f0np0/device/infiniband/mlx5_8").is_dir()


def test_data_counts_words_of_four_bytes_and_never_falls(ports: Callable[..., Ports]) -> None:
    """2 MB/s of background are half a million words a second; packets carry 4 KiB."""
    node = ports()
    counts = [node.count(time, "port_xmit_data") for time in (100.0, 100.5, 101.0, 160.0)]

    assert counts == sorted(counts)
    assert counts[3] - counts[0] == pytest.approx(60 * 2e6 / 4, rel=0.06)
    packets = node.count(160.0, "port_xmit_packets")
    assert packets == pytest.approx(counts[3] * 4 / 4096, abs=1)
    assert node.count(160.0, "unicast_xmit_packets") == packets
    assert node.count(160.0, "symbol_error") == 0


def test_a_job_uses_its_share_of_the_rate(ports: Callable[..., Ports]) -> None:
    """A tenth of 400 Gbit/s is 5 GB/s each way; after the job the background goes on where it was."""
    node = ports("- {fault: job, rdma_utilization: 0.1, at: 100s, for: 100s}")

    before, after, later = (node.count(time, "port_rcv_data") for time in (100.0, 200.0, 260.0))
    assert after - before == pytest.approx(100 * 5e9 / 4, rel=0.06)
    assert later - after == pytest.approx(60 * 2e6 / 4, rel=0.06)


def test_a_port_down_begins_and_ends(ports: Callable[..., Ports]) -> None:
    """No traffic meanwhile, one more in link_downed, and the words of the driver for a port without a cable."""
    node = ports("- {fault: rdma_port_down, device: mlx5_0, at: 100s, for: 3s}")
    assert node.count(99.9, "link_downed") == 0

    down = node.at(100.0)
    assert read(down, "state", "phys_state", "rate", "lid", "sm_lid") == [
        "1: DOWN\n", "2: Polling\n", "10 Gb/sec (4X SDR)\n", "0xffff\n", "0x0\n",
    ]  # fmt: skip
    assert node.count(100.0, "port_xmit_data") == node.count(102.9, "port_xmit_data")
    assert node.count(102.9, "link_downed") == 1

    up = node.at(103.0)
    assert read(up, "state", "rate") == ["4: ACTIVE\n", "400 Gb/sec (4X NDR)\n"]
    assert node.count(104.0, "link_downed") == 1
    assert node.count(110.0, "port_xmit_data") > node.count(103.0, "port_xmit_data")
    assert read(node.at(102.0, "mlx5_1"), "state") == ["4: ACTIVE\n"]


@pytest.mark.parametrize("fault", ["rdma_port_down, device: mlx5_8", "ethernet_down, interface: ens11f0np0"])
def test_a_roce_port_and_its_interface_share_a_link(ports: Callable[..., Ports], root: Path, fault: str) -> None:
    """Whichever the fault names, both are down, and the bond lives on with its other member."""
    node = ports(f"- {{fault: {fault}, at: 150s}}")
    port = node.at(150.0, "mlx5_8")
    node.rehearsal.node.write_sysfs(root, ("network",))

    assert read(port, "state", "phys_state", "rate") == ["1: DOWN\n", "3: Disabled\n", "40 Gb/sec (4X QDR)\n"]
    net = root / "class/net"
    assert read(net, "ens11f0np0/carrier", "ens11f1np1/carrier", "bond0/carrier") == ["0\n", "1\n", "1\n"]
    assert read(net, "bond0/speed", "ens11f0np0/speed") == ["100000\n", "-1\n"]


@pytest.mark.parametrize(
    ("counter", "maximum"),
    [("excessive_buffer_overrun_errors", 15), ("link_error_recovery", 255), ("symbol_error", 65_535)],
)
def test_counters_of_the_port_stay_at_their_maximum(ports: Callable[..., Ports], counter: str, maximum: int) -> None:
    """Ten thousand events a second: at the edge, and a long time after it."""
    node = ports(f"- {{fault: rdma_errors, device: mlx5_0, counter: {counter}, rate: 10000/s, at: 100s}}")
    full = 100.0 + (maximum - 1) / 10_000

    assert node.count(full - 0.00005, counter) == maximum - 1
    assert node.count(full + 0.00005, counter) == maximum
    assert node.count(1000.0, counter) == maximum


def test_queue_counters_wrap_at_32_bits(ports: Callable[..., Ports]) -> None:
    """After 2³² events it is at 0 again, and one of 64 bits goes on."""
    node = ports(
        "- {fault: rdma_errors, device: mlx5_8, counter: out_of_sequence, rate: 1e9/s, at: 100s}\n"
        "- {fault: rdma_errors, device: mlx5_8, counter: rx_icrc_encapsulated, rate: 1e9/s, at: 100s}"
    )

    assert node.count(104.0, "out_of_sequence", "mlx5_8") == 4 * 10**9 + 1
    assert node.count(105.0, "out_of_sequence", "mlx5_8") == 5 * 10**9 + 1 - 2**32
    assert node.count(105.0, "rx_icrc_encapsulated", "mlx5_8") == 5 * 10**9 + 1


def test_a_saturated_counter_stands_still_between_its_neighbours(ports: Callable[..., Ports]) -> None:
    """At its maximum while the fault holds, on this device alone."""
    node = ports("- {fault: rdma_saturated, device: mlx5_2, counter: excessive_buffer_overrun_errors, at: 90s}")

    assert node.count(89.9, "excessive_buffer_overrun_errors", "mlx5_2") == 0
    assert node.count(100.0, "excessive_buffer_overrun_errors", "mlx5_2") == 15
    assert node.count(100.0, "excessive_buffer_overrun_errors", "mlx5_3") == 0


def test_congestion_shows_where_the_link_layer_has_it(ports: Callable[..., Ports]) -> None:
    """InfiniBand waits for credits; RoCE marks packets and sends notifications."""
    node = ports(
        "- {fault: rdma_congestion, device: mlx5_0, rate: 10/s, at: 90.05s}\n"
        "- {fault: rdma_congestion, device: mlx5_8, rate: 10/s, at: 90.05s}"
    )

    assert node.count(100.0, "port_xmit_wait") == 100
    assert [node.count(100.0, name, "mlx5_8") for name in ("np_ecn_marked_roce_packets", "np_cnp_sent")] == [100, 100]
    assert node.count(100.0, "port_xmit_wait", "mlx5_8") == 0


def test_a_reset_brings_all_counters_to_zero(ports: Callable[..., Ports]) -> None:
    """Errors and traffic alike; what comes after it counts."""
    node = ports(
        "- {fault: rdma_errors, device: mlx5_0, counter: port_rcv_errors, rate: 1/s, at: 0s}\n"
        "- {fault: rdma_counter_reset, device: mlx5_0, at: 200.5s}"
    )

    assert node.count(200.4, "port_rcv_data") == pytest.approx(200.4 * 2e6 / 4, rel=0.06)
    assert node.count(200.4, "port_rcv_errors") == 201
    assert node.count(205.0, "port_rcv_data") == pytest.approx(4.5 * 2e6 / 4, rel=0.06)
    assert node.count(205.0, "port_rcv_errors") == 5


def test_counters_that_cannot_be_read_come_back(ports: Callable[..., Ports]) -> None:
    """The attributes of the port stay readable; afterwards the counts are where they would have been."""
    node = ports("- {fault: rdma_read_error, device: mlx5_0, at: 100s, for: 10s}")
    healthy = node.count(99.0, "port_xmit_data")

    broken = node.at(105.0)
    for file in (*broken.glob("counters/*"), broken / "hw_counters/out_of_sequence"):
        with pytest.raises(OSError, match="directory"):
            file.read_bytes()
    assert read(broken, "state") == ["4: ACTIVE\n"]

    assert node.count(110.0, "port_xmit_data") - healthy == pytest.approx(11 * 2e6 / 4, rel=0.06)


def test_a_descriptor_sees_a_counter_move(ports: Callable[..., Ports]) -> None:
    """Readers keep the files of counters open."""
    node = ports()
    descriptor = os.open(node.at(100.0) / "counters/port_xmit_data", os.O_RDONLY)
    try:
        first = os.pread(descriptor, 100, 0)
        later = node.count(110.0, "port_xmit_data")
        assert first != os.pread(descriptor, 100, 0) == f"{later}\n".encode()
    finally:
        os.close(descriptor)


def test_a_process_writes_only_the_part_that_it_reads(rehearse: Rehearse, root: Path) -> None:
    """All parts are there after the first writing; a later one of the network leaves the RDMA counters alone."""
    rehearsal = rehearse("h100x8ndr")
    rehearsal.node.write_sysfs(root, ("network",))
    counter = root / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    bytes_received = root / "class/net/ens11f0np0/statistics/rx_bytes"
    before = counter.read_text(), bytes_received.read_text()

    rehearsal.now += 10
    rehearsal.node.write_sysfs(root, ("network",))
    assert counter.read_text() == before[0]
    assert bytes_received.read_text() != before[1]

    rehearsal.node.write_sysfs(root, ("rdma",))
    assert counter.read_text() != before[0]


def test_a_bond_has_its_members_traffic(rehearse: Rehearse, root: Path) -> None:
    """Members name it as their master; it has no device of its own."""
    rehearse("h100x8ndr").node.write_sysfs(root)
    net = root / "class/net"

    assert (net / "ens11f1np1/master").resolve() == (net / "bond0").resolve()
    assert not (net / "bond0/device").exists()
    assert read(net, "bond0/bonding/slaves", "bond0/speed") == ["ens11f0np0 ens11f1np1\n", "200000\n"]
    members = [int((net / name / "statistics/tx_bytes").read_text()) for name in ("ens11f0np0", "ens11f1np1")]
    assert int((net / "bond0/statistics/tx_bytes").read_text()) == sum(members)
