"""RDMA ports read from trees as the kernel lays them out."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import RdmaSection, Sources
from commwatch.readings import Absence, Batch
from commwatch_exporters.catalogue import CATALOGUE, OPT_IN
from commwatch_exporters.snapshot import Layout, Value
from support.core import Clock
from support.examples import examples
from support.infiniband import (
    BNXT_HARDWARE,
    CX7_COUNTERS,
    CX7_HARDWARE,
    EFA_HARDWARE,
    IRDMA_HARDWARE,
    ROCE_HARDWARE,
    add_device,
    add_port,
    write,
)
from support.passes import in_one_pass
from support.sources import devices, failures, reading_of, refuse, source_of, states

opened = partial(source_of, "rdma")


def values(batch: Batch, device: str = "mlx5_0:1") -> dict[str, Value]:
    """The numbers of one port, by metric without its prefix and, where there is one, the kind."""
    reading = reading_of(batch, device)
    Layout(reading.series)  # every label is there, no series twice
    return {
        "/".join((name.removeprefix("commwatch_rdma_"), *labels[2 : 2 + (CATALOGUE[name].labels[-1] == "kind")])): value
        for (name, labels), value in zip(reading.series, reading.values, strict=True)
    }


def info(batch: Batch, device: str = "mlx5_0:1") -> tuple[str, ...]:
    return reading_of(batch, device).series[-1][1]


def test_an_infiniband_port_is_read_in_full(tmp_path: Path) -> None:
    """ConnectX-7 at NDR: state, speed, every counter with its unit, and who it is."""
    add_port(add_device(tmp_path))

    batch = opened(tmp_path).collect("rdma")
    read = values(batch)

    assert batch.absences == []
    assert (read["port_state"], read["port_phys_state"]) == (4, 5)
    assert (read["port_speed_bytes_per_second"], read["port_width_lanes"]) == (50e9, 4)
    assert read["port_transmit_bytes_total"] == 4_000_000_000_000
    assert read["port_receive_bytes_total"] == 8_000_000_000_000
    assert (read["port_transmit_packets_total"], read["port_receive_packets_total"]) == (3_000_000, 4_000_000)
    assert (read["port_symbol_errors_total"], read["port_link_error_recovery_total"]) == (7, 255)
    assert (read["port_transmit_constraint_errors_total"], read["port_receive_constraint_errors_total"]) == (11, 12)
    assert (read["port_excessive_buffer_overrun_errors_total"], read["port_vl15_dropped_total"]) == (15, 13)
    assert read["port_transmit_wait_ticks_total"] == 2_489_603_687
    assert (read["out_of_sequence_total"], read["ack_timeouts_total"]) == (100, 102)
    assert (read["retries_exceeded_total/transport"], read["retries_exceeded_total/rnr"]) == (104, 105)
    assert read["completion_errors_total/req_cqe_flush_error"] == 111
    assert info(batch) == (
        "mlx5_0", "1", "InfiniBand", "0x1a", "0x1", "28.39.1002", "MT4129", "0000:18:00.0", "",
    )  # fmt: skip


def test_counters_of_few_bits_end() -> None:
    """Some stop at their greatest number, others begin again at 0."""
    names = ("symbol_errors", "link_downed", "local_link_integrity_errors", "transmit_wait_ticks")
    limits = [CATALOGUE[f"commwatch_rdma_port_{name}_total"].saturates_at for name in names]
    assert limits == [65535, 255, 15, 2**32 - 1]
    assert CATALOGUE["commwatch_rdma_out_of_buffer_total"].wraps_at == 2**32
    assert CATALOGUE["commwatch_rdma_cnp_sent_total"].wraps_at is None


def test_counters_that_nobody_asked_for_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opt-in metrics are neither read nor given, unless the configuration names them; their support is known."""
    add_port(add_device(tmp_path))
    touched: set[str] = set()
    real = os.open

    def noting(path: str, flags: int) -> int:
        touched.add(path.rpartition("/")[2])
        return real(path, flags)

    monkeypatch.setattr(os, "open", noting)
    batch = opened(tmp_path).collect("rdma")
    asked = opened(tmp_path, opt_in=["commwatch_rdma_port_transmit_unicast_packets_total"])
    without = set(touched)
    wanted = values(asked.collect("rdma"))

    assert not without & {"unicast_xmit_packets", "multicast_rcv_packets", "rx_write_requests", "lifespan"}
    assert not {f"commwatch_rdma_{name}" for name in values(batch)} & OPT_IN
    assert wanted["port_transmit_unicast_packets_total"] == 3_000_001
    assert (states(batch)["unicast_xmit_packets"], states(batch)["rx_write_requests"]) == (0, 0)


def test_a_roce_bond_is_read(tmp_path: Path) -> None:
    """ConnectX-6 under a bond: counters of congestion, the name of the bond, no LID."""
    home = add_device(tmp_path, "mlx5_bond_0", hca_type="MT4123", firmware="20.35.2000")
    add_port(home, attributes={"link_layer": "Ethernet", "rate": "200 Gb/sec (4X HDR)", "lid": "0x0", "sm_lid": "0x0"},
             hardware=ROCE_HARDWARE, netdev="bond0")  # fmt: skip

    batch = opened(tmp_path).collect("rdma")
    read = values(batch, "mlx5_bond_0:1")

    assert read["port_speed_bytes_per_second"] == 25e9
    assert (read["icrc_errors_total"], read["ecn_marked_total"]) == (1, 2)
    assert (read["cnp_sent_total"], read["cnp_handled_total"], read["cnp_ignored_total"]) == (3, 4, 5)
    assert (read["adaptive_retransmissions_total"], read["adaptive_retransmission_timeouts_total"]) == (6, 7)
    assert (read["slow_restarts_total"], read["slow_restart_transitions_total"]) == (8, 10)
    assert info(batch, "mlx5_bond_0:1")[2] == "Ethernet"
    assert info(batch, "mlx5_bond_0:1")[-1] == "bond0"


def test_efa_has_counters_of_its_own(tmp_path: Path) -> None:
    """No port counters at all, and hardware counters that no other adapter has."""
    home = add_device(tmp_path, "rdmap79s0", driver="efa", hca_type="", device_counters={"submitted_cmds": "5"})
    add_port(home, attributes={"link_layer": "Unknown", "rate": "100 Gb/sec (4X EDR)", "lid": None, "sm_lid": None},
             counters={}, hardware=EFA_HARDWARE)  # fmt: skip

    batch = opened(tmp_path).collect("rdma")
    read = values(batch, "rdmap79s0:1")

    assert batch.absences == []
    assert (read["transmit_bytes_total"], read["receive_bytes_total"], read["receive_drops_total"]) == (1000, 2000, 1)
    assert (read["retransmitted_packets_total"], read["retransmission_timeouts_total"]) == (9, 2)
    assert (read["work_request_errors_total/read"], read["work_request_errors_total/write"]) == (6, 8)
    assert "read_bytes_total" not in read
    assert "port_transmit_bytes_total" not in read
    assert (states(batch)["retrans_pkts"], states(batch)["port_xmit_data"], states(batch)["rdma_read_bytes"]) \
        == (0, 1, 0)  # fmt: skip


def test_counters_of_bnxt_re_have_the_names_of_those_that_mean_the_same(tmp_path: Path) -> None:
    bnxt = add_device(tmp_path, "bnxt_re0", "0000:21:00.0", "bnxt_en", hca_type="Broadcom")
    add_port(bnxt, attributes={"link_layer": "Ethernet"}, counters={}, hardware=BNXT_HARDWARE)

    read = values(opened(tmp_path).collect("rdma"), "bnxt_re0:1")

    assert {name: value for name, value in read.items() if value is not None and not name.startswith("port_")} == {
        "receive_packets_total": 2, "receive_bytes_total": 3, "transmit_packets_total": 4, "transmit_bytes_total": 5,
        "receive_drops_total": 7, "ack_timeouts_total": 8, "packet_sequence_errors_total": 9,
        "retries_exceeded_total/transport": 10, "rnr_retries_total": 11, "duplicate_requests_total": 12,
        "out_of_sequence_total": 13, "out_of_buffer_total": 14, "cnp_handled_total": 15, "cnp_sent_total": 16,
        "ecn_marked_total": 17,
    }  # fmt: skip


def test_other_vendors_are_read_as_far_as_the_tables_go(tmp_path: Path) -> None:
    """irdma has four counters that mean what those of mlx5 mean; Omni-Path has those of the standard alone."""
    irdma = add_device(tmp_path, "irdma0", "0000:21:00.0", "irdma")
    add_port(irdma, attributes={"link_layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)"}, counters={},
             hardware=IRDMA_HARDWARE)  # fmt: skip
    hfi1 = add_device(tmp_path, "hfi1_0", "0000:22:00.0", "hfi1")
    add_port(hfi1, attributes={"rate": "100 Gb/sec (4X EDR)"}, hardware={})

    batch = opened(tmp_path).collect("rdma")

    assert batch.absences == []
    congestion = ("cnp_handled_total", "cnp_ignored_total", "cnp_sent_total", "ecn_marked_total")
    assert [values(batch, "irdma0:1")[name] for name in congestion] == [5, 6, 7, 8]
    assert values(batch, "hfi1_0:1")["port_speed_bytes_per_second"] == 12.5e9
    assert values(batch, "hfi1_0:1")["port_transmit_bytes_total"] == 4_000_000_000_000
    assert "retrans_pkts" not in states(batch)


@pytest.mark.parametrize(
    ("driver", "rate", "speed"),
    [("mlx5_core", "10 Gb/sec (4X SDR)", None), ("mlx5_core", "10 Gb/sec (4X)", None),
     ("mlx4_core", "10 Gb/sec (4X SDR)", 1.25e9), ("mlx5_core", "40 Gb/sec (4X QDR)", 5e9)],
)  # fmt: skip
def test_an_old_kernel_does_not_know_ndr(tmp_path: Path, driver: str, rate: str, speed: float | None) -> None:
    """SDR of an mlx5 port is a speed without a name in that kernel: absent. Other adapters can have it."""
    add_port(add_device(tmp_path, driver=driver), attributes={"rate": rate})

    assert values(opened(tmp_path).collect("rdma"))["port_speed_bytes_per_second"] == speed


@pytest.mark.parametrize(
    ("state", "physical", "speed"),
    [("1: DOWN", "2: Polling", None), ("2: INIT", "5: LinkUp", 50e9), ("1: DOWN", "3: Disabled", None)],
)
def test_a_port_that_is_down_has_no_speed(tmp_path: Path, state: str, physical: str, speed: float | None) -> None:
    """The rate that the file goes on showing is not the speed of a link that is down."""
    add_port(add_device(tmp_path), attributes={"state": state, "phys_state": physical})
    read = values(opened(tmp_path).collect("rdma"))

    assert (read["port_state"], read["port_speed_bytes_per_second"]) == (int(state[0]), speed)
    assert (read["port_width_lanes"] is None) == (speed is None)


def test_unsupported_counters_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels say N/A, newer ones EINVAL: no number, no failure, and unsupported where no port has the counter."""
    counters = {**CX7_COUNTERS, "VL15_dropped": "N/A (no PMA)", "link_downed": "N/A (no PMA)"}
    add_port(add_device(tmp_path, "mlx5_0"), counters=counters)
    other = add_port(add_device(tmp_path, "mlx5_1", "0000:19:00.0"), counters=counters)
    write(other / "counters", {"link_downed": "3"})
    refuse(monkeypatch, {"/symbol_error": errno.EINVAL, "/port_rcv_errors": errno.EOPNOTSUPP})

    batch = opened(tmp_path).collect("rdma")
    read, known = values(batch), states(batch)

    assert batch.absences == []
    names = ("vl15_dropped", "link_downed", "symbol_errors", "receive_errors")
    assert [read[f"port_{name}_total"] for name in names] == [None] * 4
    assert [known[name] for name in ("VL15_dropped", "link_downed", "symbol_error", "port_rcv_errors")] == [1, 0, 1, 1]
    assert known["port_xmit_data"] == 0


def test_a_refused_counter_is_not_asked_for_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try is a question to the firmware: after ten minutes, or once the port is in another state."""
    port = add_port(add_device(tmp_path))
    tried: list[str] = []
    refuse(monkeypatch, {"/symbol_error": errno.EINVAL}, tried)
    clock = Clock(1000.0)
    source = opened(tmp_path, monotonic=clock.monotonic)

    def tries_until(seconds: float, step: float = 5.0) -> int:
        end = clock.now + seconds
        while clock.now < end:
            clock.now += step
            source.collect("rdma")
        return len(tried)

    source.collect("rdma")
    assert tries_until(595) == 1
    assert tries_until(65) == 2
    write(port, {"state": "1: DOWN"})
    assert tries_until(5) == 3


def test_full_counters_of_32_bits_are_no_traffic(tmp_path: Path) -> None:
    """A port without the extended counters stands at their end after a moment: that is no number of bytes."""
    full = str(2**32 - 1)
    add_port(add_device(tmp_path), counters={**CX7_COUNTERS, "port_xmit_data": full, "port_rcv_packets": full})
    read = values(opened(tmp_path).collect("rdma"))

    assert (read["port_transmit_bytes_total"], read["port_receive_packets_total"]) == (None, None)
    assert read["port_receive_bytes_total"] == 8_000_000_000_000


def test_counters_of_the_device_are_those_of_its_only_port(tmp_path: Path) -> None:
    """Where the port has no hardware counters those of the device are read, unless it has two ports."""
    one = add_device(tmp_path, "mlx5_0", device_counters={"out_of_sequence": "42"})
    add_port(one, hardware={})
    two = add_device(tmp_path, "mlx4_0", "0000:19:00.0", device_counters={"out_of_sequence": "43"})
    add_port(two, 1, hardware={})
    add_port(two, 2, hardware={})

    batch = opened(tmp_path).collect("rdma")

    assert devices(batch) == ["mlx4_0:1", "mlx4_0:2", "mlx5_0:1"]
    assert values(batch)["out_of_sequence_total"] == 42
    assert "out_of_sequence_total" not in values(batch, "mlx4_0:1")


def test_counters_that_come_later_are_read(tmp_path: Path) -> None:
    """A file that a newer driver brings is found within a minute; of two files of one meaning one is read."""
    port = add_port(add_device(tmp_path))
    clock = Clock(1000.0)
    source = opened(tmp_path, monotonic=clock.monotonic)
    assert "rx_drops" not in states(source.collect("rdma"))
    write(port / "hw_counters", {"rx_drops": "5", "np_cnp_sent": "6", "cnpSent": "7"})

    clock.now += 60
    batch = source.collect("rdma")

    assert values(batch)["receive_drops_total"] == 5
    assert values(batch)["cnp_sent_total"] == 6
    assert states(batch)["rx_drops"] == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ENODEV, errno.EREMOTEIO])
def test_a_port_that_cannot_be_read_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """30 s, then twice as long each time up to ten minutes; its identity stays, the others are read as always."""
    for place in range(2):
        add_port(add_device(tmp_path, f"mlx5_{place}", f"0000:1{place}:00.0"))
    tried: list[str] = []
    refuse(monkeypatch, {"mlx5_0/ports/1/phys_state": number}, tried)
    clock = Clock(1000.0)
    source = opened(tmp_path, monotonic=clock.monotonic)
    at, said = [], set()
    for _ in range(3000 // 15):
        before = len(tried)
        batch = source.collect("rdma")
        at += [clock.now - 1000] * (len(tried) - before)
        said |= {absence.detail.rpartition("; ")[2] for absence in batch.absences}
        assert failures(batch) == [("mlx5_0:1", "unreadable")]
        assert {name for name, value in values(batch).items() if value is not None} == {"port_info"}
        assert values(batch, "mlx5_1:1")["port_state"] == 4
        clock.now += 15

    assert at == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730]
    assert said == {f"it is left alone for {seconds} s" for seconds in (30, 60, 120, 240, 480, 600)}

    monkeypatch.undo()
    clock.now += 600
    batch = source.collect("rdma")
    assert (batch.absences, values(batch)["port_symbol_errors_total"]) == ([], 7)
    refuse(monkeypatch, {"mlx5_0/ports/1/state": number})
    (tmp_path / "draft").write_bytes(b"4: ACTIVE")
    (tmp_path / "draft").replace(tmp_path / "class/infiniband/mlx5_0/ports/1/state")
    assert source.collect("rdma").absences[0].detail.endswith("left alone for 30 s")


def test_counters_that_cannot_be_read_leave_the_port_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One counter at which the driver fails: no counter is asked for in the waiting time, state and speed always."""
    add_port(add_device(tmp_path))
    tried: list[str] = []
    refuse(monkeypatch, {"/counters/symbol_error": errno.EIO}, tried)
    clock = Clock(1000.0)
    source = opened(tmp_path, monotonic=clock.monotonic)
    at, said = [], set()
    for _ in range(100 // 5):
        before = len(tried)
        batch = source.collect("rdma")
        said |= {absence.detail.rpartition("; ")[2] for absence in batch.absences}
        read = values(batch)
        assert (read["port_state"], read["port_width_lanes"], read["port_symbol_errors_total"]) == (4, 4, None)
        is_try = len(tried) > before
        at += [clock.now - 1000] * is_try
        assert (read["port_transmit_bytes_total"] is not None) == is_try
        clock.now += 5

    assert at == [0, 30, 90]
    assert said == {f"its counters are left alone for {seconds} s" for seconds in (30, 60, 120)}

    monkeypatch.undo()
    clock.now += 120
    batch = source.collect("rdma")
    assert (batch.absences, values(batch)["port_symbol_errors_total"]) == ([], 7)


@pytest.mark.parametrize(("seconds", "is_slow"), [(1.0, False), (1.01, True)])
def test_a_slow_port_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, is_slow: bool
) -> None:
    """A port that takes more than a second is not read to its end, and not asked again for 30 s."""
    add_port(add_device(tmp_path))
    clock = Clock(1000.0)
    real = os.read
    reads: list[str] = []

    def slow(descriptor: int, length: int) -> bytes:
        reads.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if reads[-1].endswith("/phys_state"):
            clock.now += seconds
        return real(descriptor, length)

    monkeypatch.setattr(os, "read", slow)
    source = opened(tmp_path, monotonic=clock.monotonic)
    batch = source.collect("rdma")

    assert [absence.reason for absence in batch.absences] == (["unreadable"] if is_slow else [])
    if is_slow:
        assert reads[-1].endswith("/phys_state")
        clock.now += 29
        source.collect("rdma")
        assert reads[-1].endswith("/phys_state")


def test_a_file_that_may_not_be_read_is_an_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the port is read all the same, and no one is left alone."""
    add_port(add_device(tmp_path))
    refuse(monkeypatch, {"/symbol_error": errno.EACCES})
    source = opened(tmp_path)

    for _ in range(2):
        batch = source.collect("rdma")
        assert failures(batch) == [("mlx5_0:1", "no_permission")]
        assert values(batch)["port_link_downed_total"] == 1


def test_texts_without_sense_are_absences(tmp_path: Path) -> None:
    """A counter or state that is no number is absent and said so; the rest is read."""
    port = add_port(add_device(tmp_path), attributes={"state": "ACTIVE"})
    write(port / "counters", {"symbol_error": "many"})

    batch = opened(tmp_path).collect("rdma")

    assert failures(batch) == [("mlx5_0:1", "unreadable")]
    read = values(batch)
    assert (read["port_state"], read["port_symbol_errors_total"], read["port_link_downed_total"]) == (None, None, 1)


def test_devices_come_and_go(tmp_path: Path) -> None:
    """A new device is read from the next run on, one that is gone is not, and one that is renamed has its new name."""
    clock = Clock(1000.0)
    home = add_device(tmp_path)
    add_port(home)
    source = opened(tmp_path, monotonic=clock.monotonic)
    assert devices(source.collect("rdma")) == ["mlx5_0:1"]

    add_port(add_device(tmp_path, "mlx5_1", "0000:19:00.0"))
    assert devices(source.collect("rdma")) == ["mlx5_0:1", "mlx5_1:1"]

    (tmp_path / "class/infiniband/mlx5_0").unlink()
    home.rename(home.parent / "ibp24s0")
    (tmp_path / "class/infiniband/ibp24s0").symlink_to(home.parent / "ibp24s0")
    batch = source.collect("rdma")
    assert devices(batch) == ["ibp24s0:1", "mlx5_1:1"]
    assert (batch.absences, values(batch, "ibp24s0:1")["port_state"]) == ([], 4)


def test_a_device_that_goes_during_a_run_is_an_absence(tmp_path: Path) -> None:
    """It is gone for good with the next run."""
    home = add_device(tmp_path)
    add_port(home)
    add_port(add_device(tmp_path, "mlx5_1", "0000:19:00.0"))

    def vanish(device: str) -> None:
        if device == "mlx5_0:1" and home.exists() and len(seen) == 1:
            (tmp_path / "class/infiniband/mlx5_0").unlink()
            shutil.rmtree(home)

    seen: list[Batch] = []
    source = opened(tmp_path, report=vanish)
    seen.append(source.collect("rdma"))

    batch = source.collect("rdma")
    assert failures(batch) == [("mlx5_0:1", "not_found")]
    assert devices(batch) == ["mlx5_1:1"]
    batch = source.collect("rdma")
    assert (batch.absences, devices(batch)) == ([], ["mlx5_1:1"])


def test_a_port_that_goes_is_an_absence_once(tmp_path: Path) -> None:
    """Its device stays, and with it the other port."""
    home = add_device(tmp_path)
    port = add_port(home, 1)
    add_port(home, 2)
    source = opened(tmp_path)
    source.collect("rdma")
    shutil.rmtree(port)

    assert [one.reason for one in source.collect("rdma").absences] == ["not_found"]
    batch = source.collect("rdma")
    assert (batch.absences, devices(batch)) == ([], ["mlx5_0:2"])


def test_a_device_that_was_replaced_starts_afresh(tmp_path: Path) -> None:
    """A device of the same name in another slot is another device, also while the one before was left alone."""
    add_port(add_device(tmp_path))
    source = opened(tmp_path)
    source.collect("rdma")
    (tmp_path / "class/infiniband/mlx5_0").unlink()
    add_port(add_device(tmp_path, "mlx5_0", "0000:3b:00.0"))

    assert info(source.collect("rdma"))[7] == "0000:3b:00.0"


def test_identity_follows_the_port(tmp_path: Path) -> None:
    """The LID that the subnet manager gives is read when the state changes, else within a minute."""
    port = add_port(add_device(tmp_path), attributes={"state": "2: INIT", "lid": "0x0"})
    clock = Clock(1000.0)
    source = opened(tmp_path, monotonic=clock.monotonic)
    first = source.collect("rdma")
    assert info(first)[3] == "0x0"
    assert reading_of(source.collect("rdma"), "mlx5_0:1").series == reading_of(first, "mlx5_0:1").series

    write(port, {"state": "4: ACTIVE", "lid": "0x7"})
    assert info(source.collect("rdma"))[3] == "0x7"
    write(port, {"lid": "0x8"})
    assert info(source.collect("rdma"))[3] == "0x7"
    clock.now += 60
    assert info(source.collect("rdma"))[3] == "0x8"


SPEEDS = {"DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}
"""Gbit/s of a lane by the kernel's name."""


def link(folder: Path, rate: bytes) -> tuple[Value, Value]:
    """Speed in bytes per second and lanes of a port with this rate."""
    port = add_port(add_device(folder))
    (port / "rate").write_bytes(rate)
    read = values(opened(folder).collect("rdma"))
    return read["port_speed_bytes_per_second"], read["port_width_lanes"]


@in_one_pass(
    "rate, speed, lanes",
    [
        *((f"{speed * lanes:g} Gb/sec ({lanes}X {name})\n".encode(), speed * lanes * 1e9 / 8, lanes)
          for name, speed in SPEEDS.items() for lanes in (1, 2, 4, 8, 12)),
        (b"600 Gb/sec (12X HDR)", 75e9, 12),
        *((text, None, None) for text in (
            b"", b"0 Gb/sec (4X NDR)", b"-1 Gb/sec (4X NDR)", b"400 Mb/sec (4X NDR)", b"400 Gb/sec",
            b"400 Gb/sec (3X NDR)", b"400 Gb/sec (X NDR)", b"4e2 Gb/sec (4X NDR)", b"nan Gb/sec (4X NDR)",
            b". Gb/sec (4X NDR)", b"1_0 Gb/sec (4X)", b"400 Gb/sec 4X NDR", b"1. Gb/sec (4X NDR)",
        )),
    ],
)  # fmt: skip
def test_rates_are_those_of_the_kernel(
    tmp_path_factory: pytest.TempPathFactory, rate: bytes, speed: float | None, lanes: int | None
) -> None:
    """Gbit/s become bytes per second in one direction; a text that is not of the form is no rate, and never 0."""
    assert link(tmp_path_factory.mktemp("sys"), rate) == (speed, lanes)


@in_one_pass(
    "text, number",
    [
        (b"18446744073709551615\n", 2**64 - 1), (b"7\n", 7), (b"18446744073709551616\n", None), (b"-1\n", None),
        (b"1.5\n", None), (b"0x10\n", None), (b"1_000\n", None), (b"N/A (no PMA)\n", None),
    ],
)  # fmt: skip
def test_counters_of_64_bits_are_exact(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, number: int | None
) -> None:
    """A number beyond 64 bits, or with anything but digits, is none."""
    folder = tmp_path_factory.mktemp("sys")
    port = add_port(add_device(folder))
    (port / "counters/symbol_error").write_bytes(text)

    assert values(opened(folder).collect("rdma"))["port_symbol_errors_total"] == number


@in_one_pass(
    "state, physical, is_up",
    [(b"4: ACTIVE\n", b"5: LinkUp\n", True), (b"2: INIT\n", b"5:\n", True), (b"3: ARMED\n", b"5:\n", True),
     (b"4: ACTIVE\n", b"6:\n", True), (b"1: DOWN\n", b"2: Polling\n", False), (b"1: DOWN\n", b"3:\n", False),
     (b"1: DOWN\n", b"LinkUp\n", False), (b"4: ACTIVE\n", b"\n", True), (b"ACTIVE\n", b"-1: X\n", False),
     (b"4: ACTIVE\n", b"4:\n", False), (b"444: X\n", b"\n", False), (b"4\n", b"\n", False)],
)  # fmt: skip
def test_a_link_has_a_speed_while_it_is_physically_up(
    tmp_path_factory: pytest.TempPathFactory, state: bytes, physical: bytes, is_up: bool
) -> None:
    """Waiting for the subnet manager is up, polling for a partner is not; without it the logical state tells."""
    folder = tmp_path_factory.mktemp("sys")
    port = add_port(add_device(folder))
    (port / "state").write_bytes(state)
    (port / "phys_state").write_bytes(physical)

    assert (values(opened(folder).collect("rdma"))["port_speed_bytes_per_second"] is not None) == is_up


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    """A virtual function beside its physical function shares the port that is read already."""
    add_port(add_device(tmp_path))
    add_port(add_device(tmp_path, "mlx5_1", "0000:18:00.2"))
    (tmp_path / "devices/pci0000:15/0000:15:01.0/0000:18:00.2/physfn").symlink_to("../0000:18:00.0")

    add_port(add_device(tmp_path, "mlx5_2", "0000:18:00.0/mlx5_core.sf.4"))

    assert devices(opened(tmp_path).collect("rdma")) == ["mlx5_0:1"]


@pytest.mark.parametrize("address", ["0000:18:00.2", "0000:18:00.0/mlx5_core.sf.4"])
def test_a_function_whose_adapter_is_not_here_is_read(tmp_path: Path, address: str) -> None:
    """A pod has the function alone: the kernel shows it the adapter, and no RDMA device of that."""
    add_port(add_device(tmp_path, "mlx5_8", address))
    if address.endswith(".2"):
        (tmp_path / "devices/pci0000:15/0000:15:01.0/0000:18:00.0").mkdir()
        (tmp_path / "devices/pci0000:15/0000:15:01.0/0000:18:00.2/physfn").symlink_to("../0000:18:00.0")

    assert devices(opened(tmp_path).collect("rdma")) == ["mlx5_8:1"]


@pytest.mark.parametrize(
    ("names", "number"),
    [((), None), (("virtfn0", "virtfn1"), 2), (("virtfn0", "mlx5_core.sf.4", "mlx5_core.eth.0"), 2)],
)
def test_the_functions_that_an_adapter_is_split_into_are_counted(
    tmp_path: Path, names: tuple[str, ...], number: int | None
) -> None:
    """Also those that a pod or a virtual machine has; what they move and lose is not in the port's counters."""
    home = add_device(tmp_path)
    add_port(home)
    for name in names:
        (home / "device" / name).mkdir()

    assert values(opened(tmp_path).collect("rdma"))["port_virtual_functions"] == number


def test_ports_that_carry_no_rdma_are_left_out(tmp_path: Path) -> None:
    """The kernel makes the table of their addresses without an entry: they are ports of an adapter's switch."""
    (add_port(add_device(tmp_path), attributes={"link_layer": "Ethernet"}) / "gids").mkdir()
    switch = add_device(tmp_path, "mlx5_1", "0000:19:00.0")
    for port in (1, 2, 3):
        (add_port(switch, port, {"link_layer": "Ethernet"}) / "gids").mkdir()
    write(add_port(add_device(tmp_path, "mlx5_2", "0000:1a:00.0")) / "gids", {"0": EMPTY})

    assert devices(opened(tmp_path).collect("rdma")) == ["mlx5_2:1"]


@pytest.mark.parametrize("pattern", ["mlx5_1", "0000:2a:00.*"])
def test_devices_that_the_settings_leave_out(tmp_path: Path, pattern: str) -> None:
    """As the adapters by which a host manages the NVSwitches of a B200 board: by name, or by PCI address."""
    add_port(add_device(tmp_path))
    add_port(add_device(tmp_path, "mlx5_1", "0000:2a:00.0"))
    settings = Sources(rdma=RdmaSection(exclude=(pattern,)))

    assert devices(opened(tmp_path, settings=settings).collect("rdma")) == ["mlx5_0:1"]


def test_no_file_stays_open_between_two_runs(tmp_path: Path) -> None:
    """A descriptor would keep a device that went away, and lead to nothing when it comes back."""
    add_port(add_device(tmp_path))
    source = opened(tmp_path)
    source.collect("rdma")

    targets = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    assert not any(os.path.lexists(one) and str(tmp_path) in os.readlink(one) for one in targets)


@examples(60, one_fixture=True)
@given(st.dictionaries(st.sampled_from([*CX7_COUNTERS, *CX7_HARDWARE, "state", "rate", "phys_state"]), st.binary()))
def test_any_content_is_taken(tmp_path: Path, texts: dict[str, bytes]) -> None:
    """Whatever the files hold, nothing is raised, and no number is one that no file can mean."""
    root = tmp_path / "node"
    shutil.rmtree(root, ignore_errors=True)
    port = add_port(add_device(root))
    for name, text in texts.items():
        folder = "counters/" if name in CX7_COUNTERS else "hw_counters/" if name in CX7_HARDWARE else ""
        (port / f"{folder}{name}").write_bytes(text)

    source = opened(root)
    batch = source.collect("rdma")
    source.close()

    assert all(isinstance(absence, Absence) for absence in batch.absences)
    assert all(value is None or 0 <= value < 2**66 for value in values(batch).values())


LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:c612:0001"
IPV6 = "2001:0db8:0000:0000:0000:0000:0000:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"


def gids(batch: Batch) -> dict[str, Value]:
    return {name: value for name, value in values(batch).items() if name.startswith("port_gid")}


@pytest.mark.parametrize(
    ("layer", "entries", "expected"),
    [
        ("InfiniBand", [(LINK_LOCAL, V1), (EMPTY, None)], {"port_gids": 1, "port_gid_index/infiniband": 0}),
        (
            "Ethernet",
            [(LINK_LOCAL, V1), (LINK_LOCAL, V2), (EMPTY, None), (IPV4, V1), (IPV4, V2), (IPV6, V2), (IPV4, V2)],
            {
                "port_gids": 6,
                "port_gid_index/roce_v1": 0,
                "port_gid_index/roce_v2_link_local": 1,
                "port_gid_index/roce_v2_ipv4": 4,
                "port_gid_index/roce_v2_ipv6": 5,
            },
        ),
        ("Ethernet", [(LINK_LOCAL, V1)], {"port_gids": 1, "port_gid_index/roce_v1": 0}),
        ("Ethernet", [(LINK_LOCAL, None)], {"port_gids": 1}),
        ("Ethernet", [(EMPTY, None)], {"port_gids": 0}),
        ("Ethernet", [("not a GID", V2), ("fe80", V2)], {"port_gids": 0}),
        ("Unspecified", [(LINK_LOCAL, V1)], {"port_gids": 1}),
    ],
)
def test_the_gid_table_is_told_by_kind(
    tmp_path: Path, layer: str, entries: list[tuple[str, str | None]], expected: dict[str, Value]
) -> None:
    """The lowest index of each kind of address is given; empty entries and what is no GID do not count."""
    port = add_port(add_device(tmp_path), attributes={"link_layer": layer})
    write(port / "gids", {str(index): gid for index, (gid, _) in enumerate(entries)})
    write(port / "gid_attrs/types", {str(index): kind for index, (_, kind) in enumerate(entries)})

    assert gids(opened(tmp_path).collect("rdma")) == expected


def test_gids_of_iwarp_have_no_kind(tmp_path: Path) -> None:
    """The kernel calls its one GID, which has the MAC address, one of RoCE v1."""
    home = add_device(tmp_path, driver="irdma")
    write(home, {"node_type": "4: RNIC"})
    port = add_port(home, attributes={"link_layer": "Ethernet"})
    write(port / "gids", {"0": "0e42:a1fe:0001:0000:0000:0000:0000:0000"})
    write(port / "gid_attrs/types", {"0": V1})

    assert gids(opened(tmp_path).collect("rdma")) == {"port_gids": 1}


def test_a_changed_gid_table_is_read_again_after_a_while(tmp_path: Path) -> None:
    """An address that comes late is seen; a port without a table has no series of it."""
    clock = Clock(1000.0)
    port = add_port(add_device(tmp_path), attributes={"link_layer": "Ethernet"})
    source = opened(tmp_path, monotonic=clock.monotonic)
    assert gids(source.collect("rdma")) == {}

    write(port / "gids", {"0": IPV4})
    write(port / "gid_attrs/types", {"0": V2})
    clock.now += 601.0

    batch = source.collect("rdma")
    assert gids(batch) == {"port_gids": 1, "port_gid_index/roce_v2_ipv4": 0}
    assert values(batch)["port_info"] == 1
    assert values(batch)["port_symbol_errors_total"] == 7


def test_a_port_that_changes_its_state_has_its_gids_read_at_once(tmp_path: Path) -> None:
    """Addresses come with the link."""
    port = add_port(add_device(tmp_path), attributes={"link_layer": "Ethernet", "state": "1: DOWN"})
    source = opened(tmp_path)
    source.collect("rdma")
    write(port / "gids", {"0": IPV4})
    write(port / "gid_attrs/types", {"0": V2})
    write(port, {"state": "4: ACTIVE"})

    assert gids(source.collect("rdma"))["port_gids"] == 1
