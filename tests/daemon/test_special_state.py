"""A state directory in which nothing is what it should be: the daemon starts, stays small, and ends on TERM."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from support.daemon import command, running
from support.state_files import SPECIAL_FILES, special_file

PRESET = "a10x2"
RECORDS = (
    "inventory", "probe-all_reduce", "probe-pairs", "probe-host_copies", "probe-scaling", "cluster", "wraps",
    "hardware_events", "nccl_logs", "findings", "counter_history", "simulation",
)  # fmt: skip
"""What the daemon keeps."""
BY_HAND = ("maintenance", "hold", "healthcheck", "setting-trials")
"""What commands write."""
LARGEST_MIB = 150
"""That the daemon ever was; without such files it is about half as large."""


def test_nothing_special_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    """Pipes, folders, sockets, devices, links and a file of 1 GB in the place of every state file, with one warning for
    each; commands that read them wait for nobody."""
    state = tmp_path / "state" / f"simulated-{PRESET}"
    state.mkdir(parents=True)
    names = [*RECORDS, *BY_HAND]
    with ExitStack() as stack:
        for number, name in enumerate(names):
            kind = SPECIAL_FILES[number % len(SPECIAL_FILES)]
            stack.enter_context(special_file(state / f"{name}.json", kind))
        asked = command("heatmap", "--simulate", PRESET, "--path.state", str(tmp_path / "state"))
        with running(tmp_path, "--simulate", PRESET) as daemon:
            assert daemon.get("/metrics")[0] == 200
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{daemon.process.pid}/status").read_text())
            code, log = daemon.stop(), daemon.log()
        text = daemon.log_file.read_text()

    assert code == 0
    assert "Traceback" not in asked.stderr + text
    assert peak is not None
    assert int(peak[1]) / 1024 < LARGEST_MIB
    warned = [event["file"] for event in log if event["msg"] == "a state file is damaged and set aside"]
    assert sorted(set(warned)) == sorted(warned)
    assert {Path(file).stem for file in warned} == set(RECORDS)
