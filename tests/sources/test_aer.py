"""PCIe errors as kernels from 4.19 on write them."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.readings import Batch
from commwatch_exporters.snapshot import Layout, Value
from support.examples import examples
from support.pci import BRIDGE, GPU, LINK, NIC, add_device, opened
from support.sources import failures, reading_of, refuse, states

CORRECTABLE_4_19 = b"""Receiver Error 2
Bad TLP 1
Bad DLLP 0
RELAY_NUM Rollover 0
Replay Timer Timeout 3
Advisory Non-Fatal 0
Corrected Internal Error 0
Header Log Overflow 0
TOTAL_ERR_COR 6
"""
CORRECTABLE_5_10 = b"""RxErr 2
BadTLP 1
BadDLLP 0
Rollover 0
Timeout 3
NonFatalErr 0
CorrIntErr 0
HeaderOF 0
TOTAL_ERR_COR 6
"""
FATAL_4_19 = b"""Undefined 0
Data Link Protocol 1
Surprise Down Error 1
Poisoned TLP 0
Malformed TLP 0
ECRC 4
TLP Prefix Blocked Error 0
TOTAL_ERR_FATAL 6
"""
FATAL_6_12 = b"""Undefined 0
DLP 1
SDES 1
TLP 0
FCP 0
MalfTLP 0
ECRC 4
TLPBlockedErr 0
PoisonTLPBlocked 0
DMWrReqBlocked 0
IDECheck 0
TLPXlatBlocked 0
TOTAL_ERR_FATAL 6
"""
QUIET = b"RxErr 0\nBadTLP 0\nTOTAL_ERR_COR 0\n"
DEVICE, PORT = "0000:01:00.0", "0000:00:01.0"


def files_of(correctable: bytes = QUIET) -> dict[str, bytes]:
    """Files of a device with no uncorrectable errors."""
    return {
        "aer_dev_correctable": correctable,
        "aer_dev_nonfatal": b"DLP 0\nTOTAL_ERR_NONFATAL 0\n",
        "aer_dev_fatal": b"DLP 0\nTOTAL_ERR_FATAL 0\n",
    }


ROOT_FILES = {
    "aer_rootport_total_err_cor": b"5\n",
    "aer_rootport_total_err_nonfatal": b"1\n",
    "aer_rootport_total_err_fatal": b"0\n",
}


def node(sysfs: Path, *below: Mapping[str, bytes]) -> Path:
    """A GPU under a root port; returns the directory of the GPU."""
    add_device(sysfs, f"pci0000:00/{PORT}", BRIDGE, LINK, files_of(), ROOT_FILES)
    return add_device(sysfs, f"pci0000:00/{PORT}/{DEVICE}", GPU, LINK, *below)


def readings(batch: Batch, device: str) -> dict[tuple[str, ...], Value]:
    """Values by the metric's short name and labels."""
    found = [one for one in batch.readings if one.device == device]
    return {
        (name.removeprefix("commwatch_pcie_aer_"), *labels): value
        for one in found
        for (name, labels), value in zip(one.series, one.values, strict=True)
    }


@pytest.mark.parametrize(
    ("text", "total", "named"),
    [
        (CORRECTABLE_4_19, 6, {"receiver_error": 2, "bad_tlp": 1, "replay_timer_timeout": 3}),
        (CORRECTABLE_5_10, 6, {"receiver_error": 2, "bad_tlp": 1, "replay_timer_timeout": 3}),
        (FATAL_4_19, 6, {"data_link_protocol": 1, "surprise_down": 1, "ecrc": 4}),
        (FATAL_6_12, 6, {"data_link_protocol": 1, "surprise_down": 1, "ecrc": 4}),
        (b"DLP 2\nSDES 2\nTOTAL_ERR_FATAL 3\n", 3, {"data_link_protocol": 2, "surprise_down": 2}),
        (b"Undefined 1\ndev_cor_errs_bit[3] 2\nA New Error 4\nTOTAL_ERR_COR 7\n", 7, {"other": 7}),
        (b"RxErr 2\nBadTLP 1\n", None, {"receiver_error": None, "bad_tlp": None}),
        (b"RxErr 2\nTOTAL_ERR_COR -1\n", None, {"receiver_error": None}),
    ],
    ids=["Linux 4.19", "Linux 5.10", "fatal, 4.19", "fatal, 6.12", "its own total", "no name", "cut short", "below 0"],
)
def test_errors_have_one_name_in_all_kernels(
    tmp_path: Path, text: bytes, total: int | None, named: dict[str, Value]
) -> None:
    """The total is the kernel's own, as one message may carry several errors; what has not happened is left out."""
    node(tmp_path, files_of(text))

    found = readings(opened(tmp_path).collect("aer"), DEVICE)

    assert found["errors_total", DEVICE, "gpu", "correctable"] == total
    assert {labels[-1]: value for labels, value in found.items() if labels[0] == "named_errors_total"} == named


@pytest.mark.parametrize(
    ("text", "total"), [(b"17\n", 17), (b"0\n", 0), (b"-1\n", None), (b"", None), (b"x 3\n", None)]
)
def test_messages_of_a_root_port_are_one_number(tmp_path: Path, text: bytes, total: int | None) -> None:
    """A root port's files hold one number and nothing else."""
    files = {**files_of(), **ROOT_FILES, "aer_rootport_total_err_cor": text}
    add_device(tmp_path, f"pci0000:00/{PORT}", BRIDGE, LINK, files)
    add_device(tmp_path, f"pci0000:00/{PORT}/{DEVICE}", GPU, LINK)

    assert readings(opened(tmp_path).collect("aer"), PORT)["root_port_errors_total", PORT, "correctable"] == total


LINES = st.lists(
    st.tuples(st.sampled_from(["RxErr", "Bad TLP", "TOTAL_ERR_COR", "\u00e9"]), st.integers(-(10**25), 10**25))
).map(lambda lines: "".join(f"{name} {count}\n" for name, count in lines).encode())


def test_both_ends_of_a_link_count_for_themselves(tmp_path: Path) -> None:
    """Device and root port have their own errors by role; the root port has the messages that it took as well."""
    node(tmp_path, files_of(b"RxErr 0\nBadTLP 4\nTOTAL_ERR_COR 4\n"))

    batch = opened(tmp_path).collect("aer")

    assert readings(batch, DEVICE) == {
        ("errors_total", DEVICE, "gpu", "correctable"): 4,
        ("errors_total", DEVICE, "gpu", "nonfatal"): 0,
        ("errors_total", DEVICE, "gpu", "fatal"): 0,
        ("named_errors_total", DEVICE, "gpu", "correctable", "bad_tlp"): 4,
    }
    assert readings(batch, PORT) == {
        ("errors_total", PORT, "root_port", "correctable"): 0,
        ("errors_total", PORT, "root_port", "nonfatal"): 0,
        ("errors_total", PORT, "root_port", "fatal"): 0,
        ("root_port_errors_total", PORT, "correctable"): 5,
        ("root_port_errors_total", PORT, "nonfatal"): 1,
        ("root_port_errors_total", PORT, "fatal"): 0,
    }
    assert batch.absences == []
    assert all(Layout(reading.series) for reading in batch.readings)


def test_a_named_error_has_a_series_once_it_has_happened(tmp_path: Path) -> None:
    """The series come with the error and stay; until then there is none."""
    home = node(tmp_path, files_of())
    source = opened(tmp_path)
    quiet = reading_of(source.collect("aer"), DEVICE)
    assert reading_of(source.collect("aer"), DEVICE).series == quiet.series
    named = ("named_errors_total", DEVICE, "gpu", "correctable", "receiver_error")

    (home / "aer_dev_correctable").write_bytes(b"RxErr 1\nBadTLP 0\nTOTAL_ERR_COR 1\n")
    assert readings(source.collect("aer"), DEVICE)[named] == 1
    (home / "aer_dev_correctable").write_bytes(QUIET)
    assert readings(source.collect("aer"), DEVICE)[named] == 0
    again = reading_of(source.collect("aer"), DEVICE)
    assert reading_of(source.collect("aer"), DEVICE).series == again.series


def test_without_aer_it_is_not_supported_and_nothing_is_missing(tmp_path: Path) -> None:
    """In a virtual machine or behind firmware that handles errors first there are no files: no series, no absence."""
    add_device(tmp_path, f"pci0000:00/{DEVICE}", GPU, LINK)

    batch = opened(tmp_path).collect("aer")

    assert [reading.device for reading in batch.readings] == [""]
    assert states(batch) == dict.fromkeys([*files_of(), *ROOT_FILES], 1)
    assert batch.absences == []


def test_support_is_of_the_node(tmp_path: Path) -> None:
    """A file that one device has is supported, though another lacks it; that one has no readings."""
    node(tmp_path, {"aer_dev_fatal": b"TOTAL_ERR_FATAL 0\n"})
    add_device(tmp_path, "pci0000:00/0000:00:03.0", NIC, LINK)

    batch = opened(tmp_path).collect("aer")

    assert states(batch) == dict.fromkeys([*files_of(), *ROOT_FILES], 0)
    assert {reading.device for reading in batch.readings} == {"", PORT, DEVICE}
    assert readings(batch, DEVICE)["errors_total", DEVICE, "gpu", "correctable"] is None


def test_a_file_that_makes_no_sense_is_an_absence(tmp_path: Path) -> None:
    """Text without a total is unreadable; the other severities are given, and the error ends with its cause."""
    home = node(tmp_path, files_of(b"\xff\xfe"))
    source = opened(tmp_path)

    batch = source.collect("aer")

    assert failures(batch) == [(DEVICE, "unreadable")]
    assert readings(batch, DEVICE)["errors_total", DEVICE, "gpu", "correctable"] is None
    assert readings(batch, DEVICE)["errors_total", DEVICE, "gpu", "fatal"] == 0
    (home / "aer_dev_correctable").write_bytes(QUIET)
    assert source.collect("aer").absences == []


def test_a_refused_file_is_an_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be opened is absent with its reason; a named error seen before is absent as well, not 0."""
    home = node(tmp_path, files_of(b"RxErr 3\nTOTAL_ERR_COR 3\n"))
    source = opened(tmp_path)
    source.collect("aer")
    (home / "draft").write_bytes(QUIET)
    (home / "draft").replace(home / "aer_dev_correctable")
    refuse(monkeypatch, {f"{DEVICE}/aer_dev_correctable": errno.EACCES})
    batch = source.collect("aer")

    assert failures(batch) == [(DEVICE, "no_permission")]
    assert list(readings(batch, DEVICE).values()) == [None, 0, 0, None]


def test_a_hostile_tree_gives_what_can_be_exposed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the files hold, values are counts and labels are of the table."""

    @examples(30)
    @given(st.dictionaries(st.sampled_from([*files_of(), *ROOT_FILES]), st.binary(max_size=80) | LINES))
    def check(contents: dict[str, bytes]) -> None:
        sysfs = tmp_path_factory.mktemp("sys")
        add_device(sysfs, f"pci0000:00/{PORT}", BRIDGE, LINK, contents)
        add_device(sysfs, f"pci0000:00/{PORT}/{DEVICE}", GPU, LINK, contents)
        source = opened(sysfs)
        batch = source.collect("aer")
        source.close()
        for reading in batch.readings:
            assert all(value is None or value >= 0 for value in reading.values)
            names = [labels[-1] for name, labels in reading.series if name.endswith("_named_errors_total")]
            assert [name for name in names if not re.fullmatch("[a-z_]+", name)] == []
            assert "".join(Layout(reading.series).prefixes).encode()

    check()
