"""The ethtool source over a kernel that answers at the level of the system call."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import NetworkSection, Sources
from commwatch.generate.counter_tables import sections
from commwatch.readings import Batch
from commwatch.sources.base import Source
from commwatch.sources.ethtool.abi import StatisticsCalls
from commwatch_exporters.snapshot import Layout, Value
from sources.ethtool_kernel import GSSET_INFO, GSTATS, GSTRINGS, Kernel
from support.examples import examples
from support.interfaces import add_interface, bind
from support.sources import failures, source_of, states, why_absent

MLX5_TABLE: tuple[tuple[str, int, str, tuple[str, ...], Value], ...] = (
    ("rx_bytes_phy", 2**64 - 1, "phy_receive_bytes_total", (), 2**64 - 1),
    ("tx_bytes_phy", 12, "phy_transmit_bytes_total", (), 12),
    ("rx_packets_phy", 13, "phy_receive_packets_total", (), 13),
    ("tx_packets_phy", 14, "phy_transmit_packets_total", (), 14),
    ("rx_vport_rdma_unicast_bytes", 15, "rdma_receive_bytes_total", (), 15),
    ("tx_vport_rdma_unicast_bytes", 16, "rdma_transmit_bytes_total", (), 16),
    ("rx_symbol_err_phy", 17, "phy_symbol_errors_total", (), 17),
    ("rx_pcs_symbol_err_phy", 18, "phy_pcs_symbol_errors_total", (), 18),
    ("rx_crc_errors_phy", 19, "phy_crc_errors_total", (), 19),
    ("rx_err_lane_0_phy", 20, "phy_lane_errors_total", ("0",), 20),
    ("rx_err_lane_3_phy", 21, "phy_lane_errors_total", ("3",), 21),
    ("rx_corrected_bits_phy", 22, "phy_corrected_bit_errors_total", (), 22),
    ("rx_bits_phy", 24, "phy_line_bytes_total", (), 3.0),
    ("link_down_events_phy", 24, "phy_link_down_total", (), 24),
    ("module_unplug", 25, "module_events_total", ("unplugged",), 25),
    ("module_bus_stuck", 26, "module_events_total", ("bus_stuck",), 26),
    ("module_high_temp", 27, "module_events_total", ("high_temperature",), 27),
    ("module_bad_shorted", 28, "module_events_total", ("shorted",), 28),
    ("rx_prio3_pause", 29, "pfc_receive_pauses_total", ("3",), 29),
    ("tx_prio3_pause", 30, "pfc_transmit_pauses_total", ("3",), 30),
    ("rx_prio3_pause_duration", 1_500_000, "pfc_receive_pause_seconds_total", ("3",), 1.5),
    ("tx_prio3_pause_duration", 250, "pfc_transmit_pause_seconds_total", ("3",), 0.00025),
    ("rx_global_pause", 31, "global_receive_pauses_total", (), 31),
    ("tx_global_pause", 32, "global_transmit_pauses_total", (), 32),
    ("rx_global_pause_duration", 33_000_000, "global_receive_pause_seconds_total", (), 33.0),
    ("tx_global_pause_duration", 0, "global_transmit_pause_seconds_total", (), 0.0),
    ("tx_pause_storm_warning_events ", 34, "pause_storms_total", ("warning",), 34),  # some kernels have this blank
    ("tx_pause_storm_error_events", 35, "pause_storms_total", ("error",), 35),
    ("rx_discards_phy", 36, "phy_discards_total", (), 36),
    ("tx_discards_phy", 37, "phy_transmit_discards_total", (), 37),
    ("rx_out_of_buffer", 38, "out_of_buffer_total", (), 38),
    ("rx_pci_signal_integrity", 39, "pci_receive_recoveries_total", (), 39),
    ("tx_pci_signal_integrity", 40, "pci_transmit_recoveries_total", (), 40),
)
"""Statistic and its number, and the metric, labels and value that come of it."""
MLX5 = {"rx_packets": 1} | {name: number for name, number, *_ in MLX5_TABLE}
ETH0: Mapping[tuple[str, tuple[str, ...]], Value] = {row[2:4]: row[4] for row in MLX5_TABLE}


MOST_STATISTICS = 32768
"""Of one interface."""


def opened(sysfs: Path, kernel: Kernel, asked: Sources | None = None) -> Source:
    return source_of("ethtool", sysfs, settings=asked, stand_in=lambda: StatisticsCalls(kernel))


def collect(source: Source) -> Batch:
    return source.collect("ethtool")


def values(batch: Batch, device: str = "eth0") -> dict[tuple[str, tuple[str, ...]], Value]:
    """Numbers of an interface by metric, without the prefix, and the labels after the interface."""
    found: dict[tuple[str, tuple[str, ...]], Value] = {}
    for reading in batch.readings:
        if reading.device == device:
            for (name, labels), value in zip(reading.series, reading.values, strict=True):
                assert labels[0] == device
                found[name.removeprefix("commwatch_ethernet_"), tuple(labels[1:])] = value
    return found


def test_an_mlx5_interface_is_read_completely(tmp_path: Path) -> None:
    """Each statistic has its metric, labels and unit, durations in seconds; what is not in the table is not read."""
    add_interface(tmp_path, "eth0")

    batch = collect(opened(tmp_path, Kernel(eth0=MLX5)))

    assert values(batch) == ETH0
    assert failures(batch) == []


@pytest.mark.parametrize(
    ("driver", "statistics"),
    [
        ("bnxt_en", {
            "rx_bytes": ("phy_receive_bytes_total", ()), "tx_good_frames": ("phy_transmit_packets_total", ()),
            "rx_pcs_symbol_err": ("phy_pcs_symbol_errors_total", ()),
            "rx_fcs_err_frames": ("phy_crc_errors_total", ()),
            "rx_corrected_bits": ("phy_corrected_bit_errors_total", ()),
            "link_down_events": ("phy_link_down_total", ()),
            "rx_pause_frames": ("global_receive_pauses_total", ()),
            "tx_pause_frames": ("global_transmit_pauses_total", ()),
            "rx_pfc_ena_frames_pri3": ("pfc_receive_pauses_total", ("3",)),
        }),
        ("ice", {
            "rx_bytes.nic": ("phy_receive_bytes_total", ()), "rx_crc_errors.nic": ("phy_crc_errors_total", ()),
            "rx_priority_3_xoff.nic": ("pfc_receive_pauses_total", ("3",)),
            "link_xoff_rx.nic": ("global_receive_pauses_total", ()),
            "link_xoff_tx.nic": ("global_transmit_pauses_total", ()), "rx_dropped.nic": ("phy_discards_total", ()),
        }),
        ("i40e", {
            "port.rx_bytes": ("phy_receive_bytes_total", ()), "port.rx_crc_errors": ("phy_crc_errors_total", ()),
            "port.tx_priority_3_xoff": ("pfc_transmit_pauses_total", ("3",)),
            "port.link_xoff_rx": ("global_receive_pauses_total", ()),
            "port.link_xoff_tx": ("global_transmit_pauses_total", ()), "port.rx_discards": ("phy_discards_total", ()),
        }),
        ("ena", {
            "bw_in_allowance_exceeded": ("allowance_exceeded_total", ("receive_bandwidth",)),
            "bw_out_allowance_exceeded": ("allowance_exceeded_total", ("transmit_bandwidth",)),
            "pps_allowance_exceeded": ("allowance_exceeded_total", ("packet_rate",)),
            "conntrack_allowance_exceeded": ("allowance_exceeded_total", ("tracked_connections",)),
            "linklocal_allowance_exceeded": ("allowance_exceeded_total", ("local_services",)),
        }),
    ],
)  # fmt: skip
def test_other_drivers_have_names_of_their_own(
    tmp_path: Path, driver: str, statistics: Mapping[str, tuple[str, tuple[str, ...]]]
) -> None:
    """What each driver calls a statistic becomes the same metric."""
    add_interface(tmp_path, "eth0", driver=driver)
    numbers = {name: position for position, name in enumerate(statistics, start=1)}

    batch = collect(opened(tmp_path, Kernel(eth0=numbers)))

    assert values(batch) == {series: numbers[name] for name, series in statistics.items()}


def test_all_series_are_of_the_catalogue(tmp_path: Path) -> None:
    """Each row of each driver gives a series whose name and labels the catalogue knows."""
    kernel = Kernel()
    drivers = {driver: list(rows) for driver, rows in groupby(sections()["ethtool"], lambda row: row.generations)}
    for number, (driver, rows) in enumerate(drivers.items()):
        add_interface(tmp_path, f"eth{number}", f"0000:{number:02x}:00.0", driver)
        kernel.set(f"eth{number}", {re.sub("N(?=[._]|$)", "3", row.counter): 1 for row in rows})

    batch = collect(opened(tmp_path, kernel))

    assert len(batch.readings) == len(drivers) + 1
    for reading in batch.readings:
        assert len(Layout(reading.series).prefixes) == len(reading.values)
    assert set(states(batch).values()) == {0}


def test_names_are_read_once_and_numbers_in_one_call(tmp_path: Path) -> None:
    """Two runs of an unchanged interface ask for its names once, and give the same series."""
    add_interface(tmp_path, "eth0")
    kernel = Kernel(eth0=MLX5)
    source = opened(tmp_path, kernel)
    first = collect(source)
    kernel.set("eth0", {**MLX5, "tx_bytes_phy": 99})

    second = collect(source)

    assert [one.series == other.series for one, other in zip(first.readings, second.readings, strict=True)] == [
        True
    ] * 2
    assert values(second)["phy_transmit_bytes_total", ()] == 99
    assert (kernel.count(GSSET_INFO), kernel.count(GSTRINGS), kernel.count(GSTATS)) == (1, 1, 2)


@pytest.mark.parametrize("old", [True, False])
def test_a_count_that_changes_between_two_runs_is_seen(tmp_path: Path, old: bool) -> None:
    """Statistics that come in front of others move no number to a wrong name, whatever the kernel answers."""
    add_interface(tmp_path, "eth0")
    kernel = Kernel(eth0=MLX5)
    kernel.old = old
    source = opened(tmp_path, kernel)
    collect(source)
    kernel.set("eth0", {"rx_global_pause_transition": 7, "rx_err_lane_1_phy": 8, **MLX5})

    batch = collect(source)

    assert values(batch) == {**ETH0, ("phy_lane_errors_total", ("1",)): 8}
    assert failures(batch) == []


@pytest.mark.parametrize("old", [True, False])
def test_a_count_that_changes_between_names_and_numbers_is_read_again(tmp_path: Path, old: bool) -> None:
    """A change within a run is caught up with in that run."""
    add_interface(tmp_path, "eth0")
    kernel = Kernel(eth0=MLX5)
    kernel.old = old
    grown = {"rx_xdp_drop": 5, **MLX5}

    def before(name: str, command: int) -> None:
        if command == GSTATS and kernel.count(GSTATS) == 1:
            kernel.set(name, grown)

    kernel.before = before

    assert values(collect(opened(tmp_path, kernel))) == ETH0


@pytest.mark.parametrize("command", [GSTRINGS, GSTATS])
@pytest.mark.parametrize("old", [True, False])
def test_a_count_that_never_settles_is_an_absence(tmp_path: Path, command: int, old: bool) -> None:
    """Where the count changes with every call nothing is read, and nothing is made up."""
    add_interface(tmp_path, "eth0")
    kernel = Kernel(eth0=MLX5)
    kernel.old = old

    def before(name: str, called: int) -> None:
        if called == command:
            kernel.interfaces[name] = [(b"new".ljust(32, b"\0"), 1), *kernel.interfaces[name]]

    kernel.before = before
    batch = collect(opened(tmp_path, kernel))

    assert values(batch) == {}
    assert failures(batch) == [("eth0", "not_ready")]


def test_names_that_change_while_their_count_stays_are_seen_within_a_minute(tmp_path: Path) -> None:
    """Flow control that moves from one priority to another leaves the count; four runs later the label is right."""
    add_interface(tmp_path, "eth0")
    kernel = Kernel(eth0={"rx_prio3_pause": 5})
    source = opened(tmp_path, kernel)
    collect(source)
    kernel.set("eth0", {"rx_prio4_pause": 6})

    later = [values(collect(source)) for _ in range(4)]

    assert later[-1] == {("pfc_receive_pauses_total", ("4",)): 6}
    assert kernel.count(GSTRINGS) == 2


def test_a_new_driver_is_asked_anew(tmp_path: Path) -> None:
    """An interface that is bound to another driver gets that driver's table; without a table it is not asked."""
    add_interface(tmp_path, "eth0")
    kernel = Kernel(eth0={"rx_bytes_phy": 1})
    source = opened(tmp_path, kernel)
    collect(source)
    bind(tmp_path, "ice")
    kernel.set("eth0", {"rx_bytes.nic": 2})

    ice = collect(source)
    bind(tmp_path, "vfio-pci")
    calls = len(kernel.calls)
    none = collect(source)

    assert values(ice) == {("phy_receive_bytes_total", ()): 2}
    assert states(ice)["rx_bytes.nic"] == 0
    assert "rx_bytes_phy" not in states(ice)
    assert none.readings == []
    assert len(kernel.calls) == calls


def test_counters_that_the_driver_lacks_are_told(tmp_path: Path) -> None:
    """A row is supported where any interface of its driver has it; the numbered ones are one row."""
    add_interface(tmp_path, "eth0")
    add_interface(tmp_path, "eth1", "0000:19:00.0")

    batch = collect(opened(tmp_path, Kernel(eth0={"rx_bytes_phy": 1}, eth1={"rx_prio5_pause": 1})))

    found = states(batch)
    assert {name for name, state in found.items() if state == 0} == {"rx_bytes_phy", "rx_prioN_pause"}
    assert found["rx_discards_phy"] == 1
    assert ("phy_receive_bytes_total", ()) not in values(batch, "eth1")


PRIORITIES = {f"rx_pfc_ena_frames_pri{number}": 0 for number in range(8)}


def test_priorities_of_a_driver_that_names_all_stay_out_while_none_paused(tmp_path: Path) -> None:
    """All eight appear together with the first pause of one, and stay."""
    add_interface(tmp_path, "eth0", driver="bnxt_en")
    kernel = Kernel(eth0={"rx_bytes": 1, **PRIORITIES})
    source = opened(tmp_path, kernel)

    quiet = values(collect(source))
    kernel.set("eth0", {"rx_bytes": 1, **PRIORITIES, "rx_pfc_ena_frames_pri3": 2})
    paused = values(collect(source))
    kernel.set("eth0", {"rx_bytes": 1, **PRIORITIES})  # the driver was reset
    again = values(collect(source))

    assert quiet == {("phy_receive_bytes_total", ()): 1}
    assert len(paused) == 9
    assert paused["pfc_receive_pauses_total", ("3",)] == 2
    assert paused["pfc_receive_pauses_total", ("0",)] == 0
    assert again["pfc_receive_pauses_total", ("3",)] == 0


def test_priorities_that_mlx5_names_are_told_from_the_start(tmp_path: Path) -> None:
    """Its driver names only priorities with flow control, so that their first pause can be counted."""
    add_interface(tmp_path, "eth0")

    batch = collect(opened(tmp_path, Kernel(eth0={"rx_prio3_pause": 0})))

    assert values(batch) == {("pfc_receive_pauses_total", ("3",)): 0}


def test_of_two_names_for_one_series_one_is_read(tmp_path: Path) -> None:
    """Where a driver has both spellings of a statistic, its series appears once."""
    add_interface(tmp_path, "eth0", driver="i40e")

    batch = collect(opened(tmp_path, Kernel(eth0={"port.rx_dropped": 3, "port.rx_discards": 3})))

    assert values(batch) == {("phy_discards_total", ()): 3}


def test_an_interface_without_statistics_is_no_failure(tmp_path: Path) -> None:
    """EOPNOTSUPP and an empty set mean that there is nothing to read."""
    for number in range(3):
        add_interface(tmp_path, f"eth{number}", f"0000:{number:02x}:00.0")
    kernel = Kernel(eth0={"rx_bytes_phy": 1}, eth1={}, eth2={})
    kernel.errors["eth2"] = errno.EOPNOTSUPP

    batch = collect(opened(tmp_path, kernel))

    assert failures(batch) == []
    assert [reading.device for reading in batch.readings] == ["eth0", ""]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENODEV, "not_found"),
        (errno.EPERM, "no_permission"),
        (errno.EIO, "unreadable"),
        (errno.EBUSY, "not_ready"),
    ],
)
def test_one_interface_that_fails_leaves_the_others(tmp_path: Path, number: int, reason: str) -> None:
    """The failure is one absence with its reason; when it is over, the interface is read again."""
    add_interface(tmp_path, "eth0")
    add_interface(tmp_path, "eth1", "0000:19:00.0")
    kernel = Kernel(eth0=MLX5, eth1={"rx_bytes_phy": 1})
    source = opened(tmp_path, kernel)
    collect(source)
    kernel.errors["eth0"] = number

    failed = collect(source)
    del kernel.errors["eth0"]
    after = collect(source)

    assert failures(failed) == [("eth0", reason)]
    assert (values(failed), values(failed, "eth1")) == ({}, {("phy_receive_bytes_total", ()): 1})
    assert values(after) == ETH0


def test_a_count_beyond_belief_is_not_read(tmp_path: Path) -> None:
    """More statistics than the source has room for are as none; as many as it accepts are read."""
    add_interface(tmp_path, "eth0")
    kernel = Kernel(eth0=MLX5)
    kernel.interfaces["eth0"] *= MOST_STATISTICS // len(MLX5)
    assert MOST_STATISTICS - len(MLX5) < len(kernel.interfaces["eth0"]) <= MOST_STATISTICS

    assert values(collect(opened(tmp_path, kernel))) == ETH0
    kernel.interfaces["eth0"] *= 2
    assert values(collect(opened(tmp_path, kernel))) == {}


def test_the_choice_of_interfaces_is_that_of_the_network_source(tmp_path: Path) -> None:
    """Excluded interfaces, virtual ones and those of drivers without a table are not asked."""
    add_interface(tmp_path, "eth0")
    add_interface(tmp_path, "eth1", "0000:19:00.0")
    add_interface(tmp_path, "eth2", "0000:1a:00.0", "virtio_net")
    add_interface(tmp_path, "bond0", "")
    kernel = Kernel(eth0=MLX5, eth1=MLX5, eth2=MLX5, bond0=MLX5)

    collect(opened(tmp_path, kernel, Sources(network=NetworkSection(exclude=("eth1",)))))

    assert {name for name, _ in kernel.calls} == {"eth0"}


def test_an_interface_that_went_away_leaves_the_counter_states(tmp_path: Path) -> None:
    """With the last interface of a driver the rows of that driver go."""
    add_interface(tmp_path, "eth0")
    add_interface(tmp_path, "eth1", "0000:19:00.0", "ena")
    source = opened(tmp_path, Kernel(eth0=MLX5, eth1={"pps_allowance_exceeded": 1}))
    assert "pps_allowance_exceeded" in states(collect(source))
    (tmp_path / "class/net/eth1").unlink()

    assert "pps_allowance_exceeded" not in states(collect(source))


def test_the_origin_is_absent_without_a_driver_that_is_read(tmp_path: Path) -> None:
    """No process is needed where no wanted interface has a driver of the table."""
    assert "class/net" in why_absent("ethtool", tmp_path, tmp_path)
    add_interface(tmp_path, "eth0", driver="virtio_net")
    assert "no network interface has one of the drivers" in why_absent("ethtool", tmp_path, tmp_path)
    add_interface(tmp_path, "eth1", "0000:19:00.0", "bnxt_en")
    assert why_absent("ethtool", tmp_path, tmp_path) == ""
    without = Sources(network=NetworkSection(exclude=("eth*",)))
    assert why_absent("ethtool", tmp_path, tmp_path, without)


@examples(40, one_fixture=True)
@given(st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 1)), max_size=8))
def test_any_string_set_beside_a_known_name_is_read(
    tmp_path_factory: pytest.TempPathFactory, others: list[tuple[bytes, int]]
) -> None:
    """Names of any bytes neither stop the source nor reach the page."""
    sysfs = tmp_path_factory.mktemp("sysfs")
    add_interface(sysfs, "eth0")
    kernel = Kernel()
    kernel.interfaces["eth0"] = [*others, (b"rx_bytes_phy".ljust(32, b"\0"), 7)]

    batch = collect(opened(sysfs, kernel))

    assert values(batch) == {("phy_receive_bytes_total", ()): 7}
    assert failures(batch) == []
