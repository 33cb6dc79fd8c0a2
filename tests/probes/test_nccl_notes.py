"""What is kept of NCCL's own log of a cycle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Probe, Probes
from commwatch.probes.cycle.environment import OWN_NCCL_SETTINGS, given_nccl_settings
from commwatch.probes.cycle.nccl_notes import (
    HEAD_BYTES,
    LONGEST_WARNING,
    MOST_BYTES,
    MOST_FILES,
    MOST_SETTINGS,
    MOST_WARNINGS,
    TAIL_BYTES,
    category_of,
    read_notes,
)
from commwatch.probes.plan import NcclNotes
from commwatch.probes.workload import plan_cycle
from support.passes import in_one_pass

INFO = "node1:41:77 [0] NCCL INFO "
WARN = "\n[2026-09-09 10:46:33] node1:41:77 [0] transport/net_ib.cc:648 NCCL WARN "

START = "".join(
    f"{INFO}{text}\n"
    for text in (
        "NCCL_RAS_ENABLE set by environment to 0.",
        "NCCL_NVLS_ENABLE set by environment to 0.",
        "NCCL_P2P_LEVEL set by environment to SYS",
        "Bootstrap : Using eth0:10.0.0.1<0>",
        "Channel 00/24 : 0 1 2 3 4 5 6 7",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
    )
)


def write(folder: Path, **ranks: str) -> Path:
    """Files of ranks, by name without the ending."""
    for name, text in ranks.items():
        (folder / f"{name}.nccl").write_text(text, encoding="utf-8")
    return folder


def test_settings_transports_and_warnings_are_kept(tmp_path: Path) -> None:
    """All ranks together, without what commwatch sets itself."""
    notes = read_notes(write(tmp_path, rank0=START, rank1=START + WARN + "NET/IB : Got async event : port error\n"))

    assert notes == NcclNotes(
        settings={"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_LEVEL": "SYS"},
        transports={"P2P/CUMEM": 4, "NET/IB/GDRDMA": 2},
        warnings=("transport/net_ib.cc:648 NCCL WARN NET/IB : Got async event : port error",),
        category="ib_async",
    )
    # The caller says what it has set, as of ranks on a shared GPU.
    assert read_notes(tmp_path, ours={"NCCL_RAS_ENABLE", "NCCL_NVLS_ENABLE"}).settings == {"NCCL_P2P_LEVEL": "SYS"}


@in_one_pass(
    "message, setting",
    [
        ("NCCL_SHM_DISABLE set by environment to 1.", ("NCCL_SHM_DISABLE", "1")),
        ("NCCL_IB_GID_INDEX set by environment to -1.", ("NCCL_IB_GID_INDEX", "-1")),
        ("NCCL_P2P_LEVEL set by environment to SYS", ("NCCL_P2P_LEVEL", "SYS")),
        ("NCCL_SOCKET_IFNAME set by environment to eth0", ("NCCL_SOCKET_IFNAME", "eth0")),
        ("NCCL_SOCKET_IFNAME set to eth0", ("NCCL_SOCKET_IFNAME", "eth0")),
        ("NCCL_IB_HCA set to =mlx5_0:1,mlx5_1:1", ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1")),
        ("NET/DOCA: NCCL_IB_HCA set to mlx5_0", ("NCCL_IB_HCA", "mlx5_0")),
        ("NCCL_TOPO_FILE set by environment to /etc/nccl/topo.d/", ("NCCL_TOPO_FILE", "/etc/nccl/topo.d/")),
        ("NCCL_ALGO set by environment to ring,tree", ("NCCL_ALGO", "ring,tree")),
    ],
)
def test_a_setting_in_force_is_read(tmp_path: Path, message: str, setting: tuple[str, str]) -> None:
    """The full stop belongs to NCCL's sentence after a number, and to the value after a text."""
    assert read_notes(write(tmp_path, rank0=f"{INFO}{message}\n")).settings == dict([setting])


@in_one_pass(
    "message",
    [
        "Invalid value x for NCCL_IB_TIMEOUT, using default 20.",
        "NCCL_TOPO_FILE environment variable not set",
        "Comm config Blocking set to 1",
        "NCCL_ALGO set by environment to ",
        "hint: NCCL_IB_HCA set to mlx5_0",
        "NCCL_SYM_KERNEL set to X. At largest grouped work size 8 Bytes, kernel will not exercise TMA paths.",
    ],
)
def test_what_is_not_in_force_is_no_setting(tmp_path: Path, message: str) -> None:
    """A value that NCCL refused, or a text that only mentions one."""
    assert read_notes(write(tmp_path, rank0=f"{INFO}{message}\n")).settings == {}


@in_one_pass(
    "message, transport",
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM"),
        ("Channel 12/0 : 0[3d000] -> 1[86000] via P2P/IPC", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL", "P2P/MNNVL"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct"),
        ("Channel 00/0 : 0[0] -> 3[3] via P2P/indirect/1[1]", "P2P/indirect"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM"),
        ("Channel 00 : 0[3d000] -> 1[86000] via direct shared memory", "SHM"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3", "NET/IB"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRDMA(PCI)/Shared", "NET/IB/GDRDMA"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0(1)/Shared", "NET/Socket"),
        ("Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0", None),
        ("Channel 00/24 :    0   1   2   3   4   5   6   7", None),
        ("Connected all rings, use ring PXN 0 GDR 0", None),
    ],
)
def test_the_transport_of_a_channel_is_read(tmp_path: Path, message: str, transport: str | None) -> None:
    """Without numbers of devices and peers; a network connection is counted at its sender."""
    found = read_notes(write(tmp_path, rank0=f"{INFO}{message}\n")).transports

    assert found == ({} if transport is None else {transport: 1})


def test_what_is_left_out_is_what_ranks_are_given() -> None:
    """A setting that is added to the environment of the ranks must not look like the site's own."""
    plan = plan_cycle("p", Probe(), Probes(), backend="nccl", devices=("GPU-0", "GPU-1"))

    assert given_nccl_settings(plan) == OWN_NCCL_SETTINGS


def test_a_value_that_differs_between_ranks_is_told_with_both(tmp_path: Path) -> None:
    """One of them alone would be half the truth; a changed value is another series of results."""
    alone = read_notes(write(tmp_path, rank0=START))
    both = read_notes(write(tmp_path, rank1=START.replace("to SYS", "to NVL")))

    assert both.settings["NCCL_P2P_LEVEL"] == "SYS | NVL"
    assert len({alone.settings_digest, both.settings_digest, ""}) == 3


def test_the_cause_comes_before_what_another_rank_saw_of_it(tmp_path: Path) -> None:
    """Rank 0 only lost its peer; the category is that of rank 1, and the warnings keep their order."""
    lost = WARN + "socketProgress: Connection closed by remote peer node2<1>\n"
    cause = WARN + "Cuda failure 719 'unspecified launch failure'\n"

    notes = read_notes(write(tmp_path, rank0=lost, rank1=cause))

    assert notes.category == "cuda"
    assert "remote peer" in notes.warnings[0]


def test_ranks_are_read_in_order_and_a_warning_is_kept_once(tmp_path: Path) -> None:
    """Rank 10 comes after rank 2; eight ranks that see one port go down say it eight times."""
    port = WARN + "NET/IB : Got async event : port error\n"
    ranks = {f"rank{rank}": f"{WARN}Cuda failure {rank} 'x'\n{port}" for rank in (10, 2)}

    warnings = read_notes(write(tmp_path, **ranks)).warnings

    assert [warning[-5:] for warning in warnings] == ["2 'x'", "error", "0 'x'"]


@pytest.mark.parametrize("text", ["", "garbage\n\n\x00", INFO + "Connected all rings\n"])
def test_a_log_without_anything_to_tell_gives_empty_notes(tmp_path: Path, text: str) -> None:
    """Nothing is made up; nor of ranks that did not get as far as NCCL, which leave none."""
    assert read_notes(tmp_path) == read_notes(tmp_path / "missing") == NcclNotes()
    assert read_notes(write(tmp_path, rank0=text)) == NcclNotes()


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    """Only a plain file is a log; a pipe would block forever."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(START, encoding="utf-8")
    folder = tmp_path / "cycle"
    folder.mkdir()
    (folder / "rank0.nccl").symlink_to(elsewhere)
    os.mkfifo(folder / "rank1.nccl")
    (folder / "rank2.nccl").mkdir()

    assert read_notes(folder) == NcclNotes()

    write(folder, rank3=START)
    assert read_notes(folder).transports["P2P/CUMEM"] == 2


def test_of_a_long_log_the_beginning_and_the_end_count(tmp_path: Path) -> None:
    """Settings stand at the beginning, what failed at the end; what lies between is skipped."""
    filler = (INFO + "x" * 1000 + "\n") * (HEAD_BYTES // 1000)
    middle = INFO + "NCCL_ALGO set by environment to ring\n"
    text = START + filler + middle + filler + WARN + "Cuda failure 'unknown error'\n"

    notes = read_notes(write(tmp_path, rank0=text))

    assert "NCCL_P2P_LEVEL" in notes.settings
    assert "NCCL_ALGO" not in notes.settings
    assert notes.category == "cuda"


def test_of_many_and_large_files_a_bounded_part_is_read(tmp_path: Path) -> None:
    """4 MiB of 64 files, however many and large a rank has made them."""
    line = INFO + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
    for rank in range(3 * MOST_FILES):
        write(tmp_path, **{f"rank{rank}": line})
    assert read_notes(tmp_path).transports == {"P2P/CUMEM": MOST_FILES}

    for rank in range(6):
        write(tmp_path, **{f"rank{rank}": line * (2 * (HEAD_BYTES + TAIL_BYTES) // len(line))})
    (count,) = read_notes(tmp_path).transports.values()
    assert MOST_BYTES * 0.5 < count * len(line) < MOST_BYTES * 1.01


def test_the_notes_stay_small(tmp_path: Path) -> None:
    """A log full of warnings and settings leaves a bounded record."""
    warnings = "".join(f"{WARN}Cuda failure {number} '{'x' * 900}'\n" for number in range(100))
    settings = "".join(f"{INFO}NCCL_X{number} set by environment to 1.\n" for number in range(500))

    notes = read_notes(write(tmp_path, rank0=warnings + settings))

    assert len(notes.warnings) == MOST_WARNINGS
    assert max(len(warning) for warning in notes.warnings) == LONGEST_WARNING
    assert len(notes.settings) == MOST_SETTINGS


def test_the_error_of_a_rank_has_its_category() -> None:
    """From NCCL's last warning within it; empty for an error that has nothing to do with NCCL."""
    error = "NCCL error in: a.cpp:1, unhandled cuda error\nLast error:\nCuda failure "
    assert category_of(f"{error}2 'out of memory'") == "oom"
    assert category_of(f"{error}999 'unknown error'") == "cuda"
    assert category_of("ValueError: not enough values to unpack") == ""


@given(data=st.binary(max_size=4096))
def test_any_file_is_taken(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever stands in it."""
    folder = tmp_path_factory.getbasetemp()
    (folder / "rank0.nccl").write_bytes(WARN.encode() + data + b"\n" + INFO.encode() + data)

    assert read_notes(folder).warnings
