"""The daemon's own metrics: as the catalogue names them, absent where nothing is known."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from commwatch import __version__
from commwatch.service.instruments import Instruments
from commwatch_exporters.catalogue import SECTIONS
from commwatch_exporters.snapshot import Value
from support.pages import lines_of


def value(instruments: Instruments, name: str, *labels: str) -> Value:
    return instruments.block(0.0).get(f"commwatch_{name}", *labels)


def process(procfs: Path, pid: int, ticks: int, pages: int) -> None:
    """A process of a recorded tree that has used so many clock ticks and pages."""
    folder = procfs / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (procfs / "stat").write_text("btime 1\n")
    (folder / "stat").write_text(f"{pid} (a name) S {'0 ' * 10}{ticks} {ticks} {'0 ' * 8}{pages}\n")


def test_the_first_block_says_what_this_daemon_is() -> None:
    """Version and maintenance are there from the start; nothing is said of runs that have not been."""
    block = Instruments().block(7.0)

    python = ".".join(map(str, sys.version_info[:3]))
    assert block.get("commwatch_build_info", __version__, python) == 1
    assert block.get("commwatch_maintenance", "none") == 0
    assert block.time == 7.0
    assert "commwatch_collector_success" not in block.layout.families
    assert "commwatch_worker_restarts_total" not in block.layout.families


def test_whole_numbers_are_written_whole() -> None:
    """A count has no decimal point, and a fraction keeps its own."""
    instruments = Instruments()
    instruments.daemon_late.set(0.25)
    instruments.worker_stuck.labels("nvml").set(2)

    block = instruments.block(0.0)

    assert lines_of(block, "commwatch_daemon_late_seconds").endswith(" 0.25\n")
    assert lines_of(block, "commwatch_worker_stuck").endswith(" 2\n")


def test_the_layout_is_kept_while_the_series_stay() -> None:
    """Text before the values is prepared once; a new series makes a new layout."""
    instruments = Instruments()
    first = instruments.block(0.0)
    instruments.clock_steps.inc()
    second = instruments.block(1.0)
    instruments.worker_stuck.labels("nvml").set(0)
    third = instruments.block(2.0)

    assert second.layout is first.layout
    assert (first.get("commwatch_clock_steps_total"), second.get("commwatch_clock_steps_total")) == (0, 1)
    assert third.layout is not first.layout


def test_no_series_says_when_a_counter_began() -> None:
    """The library would add one for each counter."""
    instruments = Instruments()
    instruments.worker_restarts.labels("nvml", "crashed").inc()

    names = [sample.name for family in instruments.registry.collect() for sample in family.samples]
    assert "commwatch_worker_restarts_total" in names
    assert [name for name in names if name.endswith("_created")] == []


def test_every_row_about_the_daemon_is_an_instrument() -> None:
    """The node's part of the page leaves them out; what fails of a device is known of the node."""
    described = [family.name for family in Instruments().registry.collect()]
    rows = {row.name.removesuffix("_total").removesuffix("_info") for row in SECTIONS["Daemon"]}

    assert rows - set(described) == {"commwatch_collector_device_failing"}


def test_one_maintenance_is_shown_at_a_time() -> None:
    """The reason of before does not stay beside the new one, and the end is a 0."""
    instruments = Instruments()

    instruments.show_maintenance("driver-upgrade")
    instruments.show_maintenance("swap")
    assert value(instruments, "maintenance", "swap") == 1
    assert value(instruments, "maintenance", "driver-upgrade") is None
    assert value(instruments, "maintenance", "none") is None

    instruments.show_maintenance(None)
    assert value(instruments, "maintenance", "none") == 0
    assert value(instruments, "maintenance", "swap") is None


@pytest.mark.parametrize(
    ("looks", "cpu_seconds", "pages"),
    [
        ([[]], None, None),
        ([[11, 12, 13]], 6, 400),
        ([[11, 12], [12]], 6, 300),
        ([[11, 12], []], 6, None),
        ([[11, 12], [], [14]], 8, 100),
    ],
    ids=["none", "summed, and one that was never seen", "one ended", "all ended", "another one began"],
)
def test_processes_of_one_name_are_summed(
    tmp_path: Path, looks: list[list[int]], cpu_seconds: int | None, pages: int | None
) -> None:
    """CPU time in seconds, memory in bytes. The time of a process that ended stays in the sum: the counter never falls,
    which would look like all of the other's time used at once. Memory is of now, and none where all have ended."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for pid, used, held in ((11, ticks, 100), (12, 2 * ticks, 300), (14, ticks, 100)):
        process(tmp_path, pid, used, held)
    instruments = Instruments()
    for pids in looks:
        instruments.measure_processes(tmp_path, [("nvml", pids)])

    assert value(instruments, "process_cpu_seconds_total", "nvml") == cpu_seconds
    assert value(instruments, "process_resident_memory_bytes", "nvml") == (None if pages is None else pages * page)


def test_this_process_is_measured() -> None:
    """The real /proc gives plausible figures of ourselves."""
    instruments = Instruments()
    instruments.measure_processes(Path("/proc"), [("daemon", [os.getpid()])])

    seconds, held = (
        value(instruments, name, "daemon") for name in ("process_cpu_seconds_total", "process_resident_memory_bytes")
    )
    assert seconds
    assert held is not None
    assert 2**20 < held < 2**34
