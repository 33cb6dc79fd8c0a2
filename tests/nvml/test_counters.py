"""Counters of links and of PCIe that a GPU may have: which are read, with which unit, and when they are absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from commwatch.generate.counter_tables import sections
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


def test_a_worker_reads_what_its_plan_asks_for(driver: Driver) -> None:
    """The configuration's choice reaches the source."""
    gpu = hopper(1)
    gpu.fields |= {(140, 0): packed(ULONGLONG, 3), (141, 0): packed(ULONGLONG, 4)}
    opened = driver(gpu)
    opened.source = source_of("nvml", Path("/sys"), Path("/proc"), opt_in=RAW)

    values = opened.read("nvlink")

    assert values[("nvlink_transmit_raw_bytes_total", *A, "0")] == 3 * 1024


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


def test_what_a_link_leads_to_is_kept_while_it_is_down(driver: Driver) -> None:
    """The driver does not say it of a link that is down: one reading that did is enough until it is up again."""
    gpu = hopper(1)
    gpu.fields |= {(146, 0): packed(UINT, 14)}
    opened = driver(gpu).open()
    known = ("nvlink_info", *A, "0", "4.0", "switch", "0000:0a:00.0", "14")
    assert known in opened.read("identity")

    gpu.link_states = [0]
    gpu.remote_pci_bus_id = b""
    gpu.fields |= {(146, 0): NOT_SUPPORTED}

    assert [key for key in opened.read("identity") if key[0] == "nvlink_info"] == [known]

    gpu.link_states = [1]
    gpu.remote_pci_bus_id = b"00000000:0B:00.0"

    elsewhere = (*known[:6], "0000:0b:00.0", "14")
    assert [key for key in opened.read("identity") if key[0] == "nvlink_info"] == [elsewhere]


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
