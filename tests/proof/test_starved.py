"""A starved node: no device is blamed, the watchdog is fed, and a real hang is found afterwards."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from support.daemon import Daemon, running
from support.waiting import until

HIERARCHY = Path("/sys/fs/cgroup/cpu")
"""Of control groups (version 1) that limit CPU."""
pytestmark = pytest.mark.skipif(not os.access(HIERARCHY, os.W_OK), reason="no control group of CPU can be made")
LOAD_SECONDS = 60.0
WATCHDOG_SECONDS = 30.0
"""``WatchdogSec`` of the unit."""
FOUND_SECONDS = 45.0
"""A page comes within 60 s: the rules of Prometheus are asked each 15 s."""
H100 = ("--simulate", "h100x8")
GPU_BLAMED = "gpu_not_answering"


@contextmanager
def starved(pids: Callable[[], list[int]], share: float) -> Iterator[None]:
    """Let processes, and those that come, together have only a share of one CPU, as the limit of a container does."""
    group = HIERARCHY / f"commwatch-starved-{os.getpid()}"
    group.mkdir()
    over = threading.Event()

    def move() -> None:
        moved: set[int] = set()
        while not over.wait(0.05):
            for pid in set(pids()) - moved:
                with suppress(ProcessLookupError):
                    (group / "cgroup.procs").write_text(str(pid))
                moved.add(pid)

    mover = threading.Thread(target=move)
    try:
        (group / "cpu.cfs_period_us").write_text(str(10**6))
        (group / "cpu.cfs_quota_us").write_text(str(int(share * 10**6)))
        mover.start()
        yield
    finally:
        over.set()
        mover.join()
        (group / "cpu.cfs_quota_us").write_text("-1")
        for pid in (group / "cgroup.procs").read_text().split():
            (HIERARCHY / "cgroup.procs").write_text(pid)
        group.rmdir()


class Systemd:
    """Takes the datagrams of a daemon, and when each came."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.fed: list[float] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while message := self._socket.recv(1000):
            if message == b"WATCHDOG=1":
                self.fed.append(time.monotonic())

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds between two feedings, at most."""
        moments = [begin, *(one for one in self.fed if begin < one < end), end]
        return max(later - earlier for earlier, later in pairwise(moments))


def blamed(daemon: Daemon) -> list[str]:
    """What the daemon found against a GPU or its own processes."""
    codes = [event["code"] for event in daemon.events("finding opened")]
    return [code for code in codes if code in (GPU_BLAMED, "worker_stuck", "gpu_missing", "gpu_lost")]


@pytest.mark.parametrize(("whole", "share"), [(False, 0.001), (False, 0.002), (True, 0.02)])
def test_a_starved_node_is_not_judged_and_a_real_hang_is_found_afterwards(
    tmp_path: Path, whole: bool, share: float
) -> None:
    """For a minute the readers, or all processes of the daemon, have so much of one CPU."""
    systemd = Systemd(tmp_path / "notify")
    faults = tmp_path / "faults.yaml"
    faults.write_text("[]\n")
    arguments = (*H100, "--simulate.faults", str(faults))
    with running(tmp_path, *arguments, NOTIFY_SOCKET=str(tmp_path / "notify")) as daemon:
        daemon.until(lambda: daemon.count("nvlink_link_state") == 144)
        begin = time.monotonic()
        with starved(lambda: [*daemon.children(), *([daemon.process.pid] if whole else [])], share):
            time.sleep(LOAD_SECONDS)
        end = time.monotonic()
        daemon.until(lambda: daemon.value("collector_success", collector="nvml_nvlink") == 1)
        found = blamed(daemon)
        gap = systemd.longest_gap(begin, end)
        errors = {str(labels): value for labels, value in daemon.series("collector_errors_total").items() if value}
        told = [event["code"] for event in daemon.events("finding opened")]

        faults.write_text("- {fault: driver_hang, gpu: 3, at: 0s}\n")
        hung_at = time.monotonic()
        daemon.until(lambda: daemon.value("gpu_state", gpu="3", pci_bus_id="0000:3b:00.0") == 1)
        found_after = time.monotonic() - hung_at
        until(lambda: GPU_BLAMED in blamed(daemon), describe=lambda: blamed(daemon))
        faults.write_text("[]\n")
        failures = sum(daemon.series("probe_failures_total").values())
        skips = sum(value for labels, value in daemon.series("probe_skips_total").items()
                    if ("reason", "starved") in labels)  # fmt: skip
        print(json.dumps({"blamed": found, "found": told, "longest_gap": round(gap, 1), "errors": errors,
                          "probes_failed": failures, "probes_skipped": skips,
                          "hang_found_after": round(found_after, 1)}, indent=1))  # fmt: skip
    assert found == []
    assert failures == 0
    assert gap < WATCHDOG_SECONDS
    assert found_after < FOUND_SECONDS
