"""A daemon that is stopped while it takes a new configuration: it ends in time, and leaves no reader behind unsaid."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.daemon import Daemon, running
from support.processes import blocks_sigterm
from support.waiting import until

NODE = "simulation: {preset: h100x8}\n"
HANGS = "- {fault: driver_hang, gpu: 0}\n"
LEFT = "a worker does not answer and is left alone"


def left_of(pids: list[int]) -> list[int]:
    """Which of these processes are there, ended ones that nobody has taken notice of included."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def reader(daemon: Daemon, name: str) -> int:
    """The process of a reader; 0 where there is none yet."""
    names = {Path(f"/proc/{pid}/comm").read_text(): pid for pid in daemon.children()}
    return names.get(f"commwatch-{name}\n", 0)


def hup(daemon: Daemon) -> None:
    """Have it take the configuration again."""
    daemon.process.send_signal(signal.SIGHUP)


def test_a_stop_while_the_new_configuration_begins_ends_the_new_readers(tmp_path: Path) -> None:
    """One hangs in the driver, one is stopped by a signal: the stop waits for both, and says that both are left."""
    config, faults = tmp_path / "commwatch.yaml", tmp_path / "faults.yaml"
    config.write_text(NODE)
    with running(tmp_path, "--config.file", str(config)) as daemon:
        before = daemon.children()
        faults.write_text(HANGS)
        config.write_text(f"simulation: {{preset: h100x8, faults: {faults}}}\n")
        hup(daemon)
        until(lambda: not left_of(before))
        # A process that is being started holds signals off too, until it has its name.
        hung = until(lambda: (pid := reader(daemon, "nvml")) and blocks_sigterm(pid) and pid)
        still = until(lambda: reader(daemon, "host"))
        os.kill(still, signal.SIGSTOP)
        others = set(daemon.children()) - {hung, still}
        assert daemon.stop() == 0
        assert {event["pid"] for event in daemon.events(LEFT)} == {hung, still}
        assert not left_of([*others])
        os.kill(still, signal.SIGKILL)
        faults.write_text("[]\n")  # lets the hung one go
        config.write_text(NODE)
    with running(tmp_path, "--config.file", str(config)) as again:
        assert not [entry for entry in again.log() if entry["level"] != "info"]
        assert again.value("present", kind="gpu") == 8


def test_a_stop_while_the_old_readers_end_waits_for_them(tmp_path: Path) -> None:
    """One is stopped by a signal, and the log says that it is left behind; the reload begins no new reader any more."""
    config = tmp_path / "commwatch.yaml"
    config.write_text(NODE)
    with running(tmp_path, "--config.file", str(config)) as daemon:
        before, still = daemon.children(), reader(daemon, "host")
        os.kill(still, signal.SIGSTOP)
        hup(daemon)
        until(lambda: left_of(before) == [still])
        assert daemon.stop() == 0
        assert [event["pid"] for event in daemon.events(LEFT)] == [still]
        assert not daemon.events("the new configuration is in force")
        os.kill(still, signal.SIGKILL)
