"""Counters of links and of PCIe that a GPU may have: which are read, with which unit, and when they are absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from commwatch.generate.counter_tables import sections
from commwatch_exporters.catalogue import CATALOGUE
from nvml.harness import Opened, values_of
from nvml.library import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    UINT,
    ULONGLONG,
    FakeGpu,
    blackwell,
    hopper,
    packed,
)  # fmt: skip
from support.sources import source_of

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
NO_DATA = 21
NVLINKS = ("NVLink 1 to 4", "NVLink 5 and later")
RAW = frozenset({"commwatch_nvlink_transmit_raw_bytes_total", "commwatch_nvlink_receive_raw_bytes_total"})


# --- NVLink ----------------------------------------------------------------------------------------------------------
def test_raw_bytes_are_read_where_they_are_asked_for(driver: Driver) -> None:
    """KiB as the payload."""
    gpu = hopper(1)
    gpu.fields |= {(140, 0): packed(ULONGLONG, 3), (141, 0): packed(ULONGLONG, 4)}

    values = driver(gpu, opt_in=RAW).open().read("nvlink")

    assert values[("nvlink_transmit_raw_bytes_total", *A, "0")] == 3 * 1024
    assert values[("nvlink_receive_raw_bytes_total", *A, "0")] == 4 * 1024


def test_what_nobody_asked_for_is_tried_once_and_not_read(driver: Driver) -> None:
    """Its support is known all the same, so that an operator can see what could be asked for."""
    gpu = hopper(1)
    gpu.fields |= {(140, 0): packed(ULONGLONG, 3), (141, 0): packed(ULONGLONG, 4), (167, 0): packed(UINT, 1)}
    opened = driver(gpu).open()

    names = {key[0] for key in opened.read("nvlink")}

    assert names == {"nvlink_link_state", "nvlink_transmit_bytes_total", "nvlink_receive_bytes_total"}
    identity = opened.read("identity")
    assert identity["counters_state", "nvml", "nvlink_throughput_raw_tx"] == 0
    assert identity["counters_state", "nvml", "nvlink_get_power_state"] == 0


def test_a_worker_reads_what_its_plan_asks_for(driver: Driver) -> None:
    """The configuration's choice reaches the source."""
    gpu = hopper(1)
    gpu.fields |= {(140, 0): packed(ULONGLONG, 3), (141, 0): packed(ULONGLONG, 4)}
    opened = driver(gpu)
    opened.source = source_of("nvml", Path("/sys"), Path("/proc"), opt_in=RAW)

    values = opened.read("nvlink")

    assert values[("nvlink_transmit_raw_bytes_total", *A, "0")] == 3 * 1024


def test_the_speed_of_a_link_is_read_although_it_is_shown_only_on_request(driver: Driver) -> None:
    """The capacity of the links rests on it."""
    assert CATALOGUE["commwatch_nvlink_link_speed_bytes_per_second"].opt_in

    values = driver(hopper(1)).open().read("identity")

    assert values[("nvlink_link_speed_bytes_per_second", *A, "0")] == 26_562_000_000


def test_the_power_state_of_a_link_is_a_code(driver: Driver) -> None:
    """1 while it saves power."""
    gpu = hopper(1)
    gpu.fields[167, 0] = packed(UINT, 1)

    values = driver(gpu, opt_in=frozenset({"commwatch_nvlink_link_low_power"})).open().read("nvlink")

    assert values[("nvlink_link_low_power", *A, "0")] == 1


def test_nvlink_5_counts_packets(driver: Driver) -> None:
    """Fields 201 and 203, beside state and bytes."""
    gpu = blackwell(1)
    gpu.fields |= {(201, 0): packed(ULONGLONG, 11), (203, 0): packed(ULONGLONG, 12)}

    values = driver(gpu).open().read("nvlink")

    assert values[("nvlink_transmit_packets_total", *A, "0")] == 11
    assert values[("nvlink_receive_packets_total", *A, "0")] == 12


def test_errors_before_nvlink_5_come_in_one_call_where_the_driver_has_the_fields(driver: Driver) -> None:
    """161 to 163 by link; the calls by link and kind are left alone, but for the kinds that have no field."""
    gpu = hopper(4)
    for link in range(4):
        gpu.fields |= {(field, link): packed(ULONGLONG, 100 * (field - 160) + link) for field in (161, 162, 163)}
    opened = driver(gpu).open()
    opened.library.calls.clear()

    values = opened.read("nvlink_errors")

    assert opened.library.calls == [("nvmlDeviceGetFieldValues", 0)]
    assert values[("nvlink_replay_errors_total", *A, "3")] == 103
    assert values[("nvlink_recovery_errors_total", *A, "3")] == 203
    assert values[("nvlink_crc_flit_errors_total", *A, "3")] == 303
    assert len(values) == 4 * 3


def test_data_crc_and_ecc_errors_come_by_kind_where_the_gpu_has_them(driver: Driver) -> None:
    """Kinds 3 and 4 have no field of their own by link."""
    gpu = hopper(1)
    gpu.error_kinds |= {(0, 3): 33, (0, 4): 44}

    values = driver(gpu).open().read("nvlink_errors")

    assert values[("nvlink_crc_data_errors_total", *A, "0")] == 33
    assert values[("nvlink_ecc_data_errors_total", *A, "0")] == 44


def test_errors_before_correction_of_nvlink_5_have_a_lane(driver: Driver) -> None:
    """Counts and ratios of both lanes, the ratio of both together, and the retransmission of the physical layer."""
    gpu = blackwell(1)
    gpu.fields |= {(289, 0): packed(ULONGLONG, 5), (290, 0): packed(ULONGLONG, 6)}
    gpu.fields |= {(field, 0): packed(ULONGLONG, mantissa << 8 | 6) for field, mantissa in ((291, 1), (292, 2))}
    gpu.fields |= {(293, 0): packed(ULONGLONG, 3 << 8 | 6)}
    gpu.fields |= {(294, 0): packed(ULONGLONG, 1000), (295, 0): packed(ULONGLONG, 10)}

    values = driver(gpu, opt_in=frozenset({"commwatch_nvlink_lane_raw_bit_error_ratio"})).open().read("nvlink_errors")

    found = {key[0] + "".join(key[4:]): value for key, value in values.items() if "raw" in key[0] or "plr" in key[0]}
    assert found == {
        "nvlink_raw_errors_total0": 5, "nvlink_raw_errors_total1": 6, "nvlink_lane_raw_bit_error_ratio0": 1e-6,
        "nvlink_lane_raw_bit_error_ratio1": 2e-6, "nvlink_raw_bit_error_ratio": 3e-6, "nvlink_plr_blocks_total": 1000,
        "nvlink_plr_retry_blocks_total": 10,
    }  # fmt: skip


def test_the_history_of_error_correction_has_sixteen_bins(driver: Driver) -> None:
    """Fields 235 to 250, the number of the bin as a label."""
    gpu = blackwell(2)
    gpu.fields |= {
        (235 + number, link): packed(ULONGLONG, 10 * number + link) for number in range(16) for link in (0, 1)
    }

    values = driver(gpu, opt_in=frozenset({"commwatch_nvlink_fec_corrected_total"})).open().read("nvlink_errors")

    bins = {key[3:]: value for key, value in values.items() if key[0] == "nvlink_fec_corrected_total"}
    assert bins == {(str(link), str(number)): 10 * number + link for number in range(16) for link in (0, 1)}


@pytest.mark.parametrize(("gpu", "mine", "other"), [(hopper, *NVLINKS), (blackwell, *reversed(NVLINKS))])
def test_a_generation_is_not_asked_for_counters_of_another(
    driver: Driver, gpu: Callable[[int], FakeGpu], mine: str, other: str
) -> None:
    """Not even if the driver would answer: they are unsupported and have no series."""
    one, rows = gpu(1), sections()["NVML"]
    for row in rows:
        if row.source.startswith("field "):
            one.fields.setdefault((int(row.source.split()[1]), 0), packed(ULONGLONG, 1))
    one.error_kinds |= {(0, kind): 1 for kind in range(5)}
    opened = driver(one, opt_in=frozenset(row.metric for row in rows)).open()

    series = {key[0] for name in ("nvlink", "nvlink_errors") for key in opened.read(name)}
    states = {key[2]: value for key, value in opened.read("identity").items() if key[0] == "counters_state"}

    assert {f"commwatch_{name}" for name in series} <= {row.metric for row in rows if row.generations in ("all", mine)}
    assert {states[row.counter] for row in rows if row.generations == other} == {1}


def test_what_a_link_leads_to_has_the_number_of_the_link_there(driver: Driver) -> None:
    """Field 146 becomes a label; without it the label is empty."""
    gpu = hopper(2)
    gpu.fields |= {(146, 0): packed(UINT, 14), (146, 1): NOT_SUPPORTED, (147, 0): packed(UINT, 2)}

    values = driver(gpu).open().read("identity")

    assert values[("nvlink_info", *A, "0", "4.0", "switch", "0000:0a:00.0", "14")] == 1
    assert values[("nvlink_info", *A, "1", "4.0", "switch", "0000:0a:00.0", "")] == 1
    assert values[("nvlink_switch_links", *A)] == 2


def test_what_a_link_leads_to_is_kept_while_it_is_down(driver: Driver) -> None:
    """The driver does not say it of a link that is down: one reading that did is enough."""
    gpu = hopper(1)
    gpu.fields |= {(146, 0): packed(UINT, 14)}
    opened = driver(gpu).open()
    known = ("nvlink_info", *A, "0", "4.0", "switch", "0000:0a:00.0", "14")
    assert known in opened.read("identity")

    gpu.remote_pci_bus_id = b""
    gpu.fields |= {(146, 0): NOT_SUPPORTED}

    assert [key for key in opened.read("identity") if key[0] == "nvlink_info"] == [known]


@pytest.mark.parametrize(("architecture", "mode"), [(10, 3), (9, None)])
def test_the_bandwidth_mode_is_of_blackwell(driver: Driver, architecture: int, mode: int | None) -> None:
    """3 is half; older GPUs are not asked."""
    gpu = FakeGpu(architecture=architecture, numbers={("nvmlDeviceGetNvlinkBwMode",): 3})

    assert driver(gpu).open().read("identity").get(("nvlink_bandwidth_mode", *A)) == mode


# --- chip to chip ----------------------------------------------------------------------------------------------------
def _superchip(links: int) -> FakeGpu:
    gpu = hopper(1)
    gpu.fields[170, 0] = packed(UINT, links)
    for link in range(5):  # more than there are
        gpu.fields |= {(171, link): packed(UINT, 1), (172, link): packed(UINT, 50_000), (234, link): packed(UINT, 0)}
        gpu.fields |= {(field, link): packed(ULONGLONG, field + link) for field in (231, 232, 233)}
    return gpu


def test_a_superchip_has_links_to_its_cpu(driver: Driver) -> None:
    """As many as it says, numbered from 0; speeds are bytes per second."""
    values = driver(_superchip(2)).open().read("gpu")

    found = {key[0] + "".join(key[3:]): value for key, value in values.items() if key[0].startswith("c2c")}
    assert found == {
        "c2c_links": 2, "c2c_link_up0": 1, "c2c_link_up1": 1, "c2c_link_speed_bytes_per_second0": 50_000_000_000,
        "c2c_link_speed_bytes_per_second1": 50_000_000_000, "c2c_crc_errors_total0": 231, "c2c_crc_errors_total1": 232,
        "c2c_replays_total0": 232, "c2c_replays_total1": 233, "c2c_replays_back_to_back_total0": 233,
        "c2c_replays_back_to_back_total1": 234, "c2c_low_power0": 0, "c2c_low_power1": 0,
    }  # fmt: skip


def test_a_gpu_without_a_cpu_beside_it_has_no_such_links(driver: Driver) -> None:
    """The count was read and is 0, so nothing of them is asked for."""
    opened = driver(_superchip(0)).open()

    found = {key[0]: value for key, value in opened.read("gpu").items() if key[0].startswith("c2c")}

    assert found == {"c2c_links": 0}
    assert opened.read("identity")["counters_state", "nvml", "c2c_link_get_status"] == 1


# --- PCIe ------------------------------------------------------------------------------------------------------------
def test_pcie_errors_come_in_one_call(driver: Driver) -> None:
    """Each field has its metric."""
    gpu = hopper()
    gpu.fields |= {(field, 0): packed(UINT, field) for field in (169, *range(173, 184))}
    opened = driver(gpu).open()
    opened.library.calls.clear()

    values = {key[0]: value for key, value in opened.read("pcie").items()}

    assert values.items() >= {
        "pcie_recoveries_total": 169, "pcie_correctable_errors_total": 173, "pcie_naks_received_total": 174,
        "pcie_receiver_errors_total": 175, "pcie_bad_tlps_total": 176, "pcie_naks_sent_total": 177,
        "pcie_bad_dllps_total": 178, "pcie_nonfatal_errors_total": 179, "pcie_fatal_errors_total": 180,
        "pcie_unsupported_requests_total": 181, "pcie_lcrc_errors_total": 182, "pcie_lane_errors_total": 183,
    }.items()  # fmt: skip
    assert opened.library.calls.count(("nvmlDeviceGetFieldValues", 0)) == 1


@pytest.mark.parametrize("spelling", [INVALID_ARGUMENT, NOT_SUPPORTED, NO_DATA])
def test_every_spelling_of_not_available_is_an_absent_series(driver: Driver, spelling: int) -> None:
    """And no failure, and never 0."""
    gpu = hopper()
    gpu.fields |= {(field, 0): spelling for field in (169, *range(173, 184))}
    opened = driver(gpu).open()

    batch = opened.collect("pcie")

    assert batch.absences == []
    assert {key[0] for key in values_of(batch) if "_total" in key[0]} == {
        "pcie_replays_total", "pcie_replay_rollovers_total"
    }  # fmt: skip
    assert opened.read("identity")["counters_state", "nvml", "pcie_count_bad_tlp"] == 1


SAMPLED = frozenset({
    "commwatch_pcie_sampled_transmit_rate_bytes_per_second", "commwatch_pcie_sampled_receive_rate_bytes_per_second",
})  # fmt: skip


def test_sampled_pcie_rates_are_not_even_tried_unless_asked_for(driver: Driver) -> None:
    """Each call waits 20 ms in the driver; what was not tried is neither supported nor unsupported."""
    opened = driver(FakeGpu(numbers={("nvmlDeviceGetPcieThroughput", number): 7 for number in (0, 1)})).open()

    assert opened.read("pcie_sampled") == {}
    assert opened.read("identity")["counters_state", "nvml", "pcie_throughput_transmit"] is None
    assert "nvmlDeviceGetPcieThroughput" not in {name for name, _ in opened.library.calls}


def test_sampled_pcie_rates_are_read_of_all_gpus_and_blamed_on_none(driver: Driver) -> None:
    """KB/s become bytes per second; as the GPUs are read at once, no device is reported."""
    gpus = [FakeGpu(numbers={("nvmlDeviceGetPcieThroughput", number): 7 + number + 10 * index for number in (0, 1)})
            for index in range(3)]  # fmt: skip
    opened = driver(*gpus, opt_in=SAMPLED).open()
    opened.reports.clear()

    values = opened.read("pcie_sampled")

    for index in range(3):
        labels = (str(index), f"0000:{0x17 + index:02x}:00.0")
        assert values[("pcie_sampled_transmit_rate_bytes_per_second", *labels)] == 7000 + 10_000 * index
        assert values[("pcie_sampled_receive_rate_bytes_per_second", *labels)] == 8000 + 10_000 * index
    assert set(opened.reports) == {""}


# --- MIG -------------------------------------------------------------------------------------------------------------
def test_a_gpu_that_is_split_says_nothing_of_its_links(driver: Driver) -> None:
    """With MIG enabled they sound inactive: no state, no bytes, no speed, no switch; how many there are stays."""
    gpu = hopper(2)
    gpu.fields[147, 0] = packed(UINT, 2)
    opened = driver(gpu).open()
    gpu.mig, gpu.link_states = 1, [0, 0]
    gpu.fields[147, 0] = packed(UINT, 0)
    for link in range(2):
        gpu.fields[165, link] = packed(UINT, 0)
        gpu.fields |= {(field, link): INVALID_ARGUMENT for field in (138, 139, 164)}

    batches = [opened.collect(collector) for collector in ("nvlink", "identity")]
    values = {key: value for batch in batches for key, value in values_of(batch).items()}

    assert all(batch.absences == [] for batch in batches)
    assert values[("nvlink_links", *A)] == 2
    named = ("nvlink_link_state", "nvlink_transmit_bytes_total", "nvlink_link_speed_bytes_per_second")
    assert {values[(name, *A, link)] for name in named for link in ("0", "1")} == {None}
    assert values[("nvlink_switch_links", *A)] is None
