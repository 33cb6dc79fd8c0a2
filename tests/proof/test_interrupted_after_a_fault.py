"""The daemon is killed, restarted, reloaded or paused soon after faults: no finding is lost, no event counts twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from commwatch.findings.codes import REPLACED_BY
from support.daemon import Daemon, command, running

PRESET = "h100x8ndr"
FAULTS = """
- {{fault: nvlink_down, gpu: 3, link: 5, at: "{at}"}}
- {{fault: nvlink_recovery_failed, gpu: 2, link: 1, at: "{at}"}}
- {{fault: nvlink_recovery, gpu: 0, link: 2, rate: 60/min, at: "{at}", until: "{end}"}}
- {{fault: gpu_lost, gpu: 6, at: "{at}"}}
- {{fault: xid, gpu: 4, xid: 95, at: "{at}"}}
- {{fault: xid, gpu: 5, xid: 64, at: "{at}"}}
- {{fault: pcie_width, gpu: 1, lanes: 8, at: "{at}"}}
- {{fault: pcie_aer, gpu: 7, severity: fatal, error: DLP, rate: 30/min, at: "{at}", until: "{end}"}}
- {{fault: rdma_port_down, device: mlx5_0, at: "{at}"}}
- {{fault: rdma_errors, device: mlx5_1, counter: symbol_error, rate: 10/s, at: "{at}", until: "{end}"}}
"""
"""A state of each kind, and events and counters that do not come again after a few seconds."""
LASTING_SECONDS = 10.0
JOB_LINE = "n1:4:7 [0] a.cc:1 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<332> with status=12 opcode=1\n"
JOB_LINES = 7
SECONDS_AFTER = (0.2, *(float(second) for second in range(1, 16)))
"""From the faults to the kill."""
SAVED_BEFORE = 45.0
"""Seconds from the start to the faults, for kills about the time at which what changed is saved anyway."""
SECONDS_ABOUT_A_SAVE = (8.0, 11.0, 14.0, 17.0, 20.0)
SETTLED_SECONDS = 75.0
"""From the faults, or the start after the kill, until all is found: an RDMA port must be down for a minute."""
AGE_SECONDS = 25.0
"""A finding that no look has seen for so long is about to close."""
EVENTS = (
    "gpu_xid_events_total", "gpu_xid_nonfatal_events_total", "nvswitch_sxid_events_total",
    "kernel_log_gpu_messages_total", "nccl_log_errors_total",
)  # fmt: skip
COUNTED = ("xid_fabric", "xid_gpu", "sxid_fatal", "nccl_errors")
"""Findings whose evidence is the number of events."""
PAUSED_SECONDS = 3.0
AT_ONCE = 3
"""Daemons at the same time."""

Key = tuple[str, str]


@dataclass
class Told:
    """What a daemon says of its node."""

    word: str
    findings: Mapping[Key, float]
    """By code and component, causes among them: for how long no look has seen it, in seconds."""
    counted: Mapping[Key, float]
    """What the findings of events count."""
    totals: Mapping[tuple[Any, ...], float] = field(default_factory=dict)
    """Of events, by series."""


def ask(daemon: Daemon, *, totals: bool = False) -> Told:
    document = json.loads(daemon.get("/api/v1/findings")[1])
    every = [
        one
        for finding in document["findings"]
        for one in (finding, *finding["causes"])
        if one["code"] != "node_starved"
    ]  # fmt: skip - of the machine that plays the node, at this moment
    key = {id(one): (one["code"], one["component"]["identity"]) for one in every}
    return Told(
        document["verdict"]["word"],
        {key[id(one)]: (document["looked_at"] or 0.0) - one["last_seen"] for one in every},
        {key[id(one)]: sum(evidence["value"] for evidence in one["evidence"] if not isinstance(evidence["value"], str))
         for one in every if one["code"] in COUNTED},
        {(name, labels): value for name in EVENTS for labels, value in daemon.series(name).items() if value}
        if totals else {},
    )  # fmt: skip


@dataclass
class Place:
    """A state directory and the files beside it."""

    folder: Path
    arguments: tuple[str, ...]
    strike: Callable[[Path], float]
    """Brings the faults about, a few seconds from now; returns when, seconds since 1970."""

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def copy(self, folder: Path) -> Place:
        """The same for another daemon, which goes on from the same state."""
        # The trees of a simulated node are written anew at each start.
        left = shutil.ignore_patterns("sysfs", "procfs", "*.sock")
        shutil.copytree(self.folder, folder, symlinks=True, ignore=left)
        settings = folder / "commwatch.yaml"
        settings.write_text(settings.read_text().replace(str(self.folder), str(folder)))
        return Place(folder, tuple(one.replace(str(self.folder), str(folder)) for one in self.arguments), self.strike)

    def configure(self, text: str) -> Place:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "commwatch.yaml").write_text(text.format(folder=self.folder))
        return self


def passed(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def without_kill(place: Place, settled: float) -> Told:
    """What there is to be found."""
    with running(place.folder, *place.arguments) as daemon:
        passed(place.strike(place.folder) + settled)
        return ask(daemon, totals=True)


def killed(place: Place, daemon: Daemon) -> AbstractContextManager[Daemon]:
    """Another daemon, after this one had no time to save."""
    daemon.process.kill()
    daemon.process.wait()
    return running(place.folder, *place.arguments)


def restarted(place: Place, daemon: Daemon) -> AbstractContextManager[Daemon]:
    """Another daemon, after this one saved."""
    assert daemon.stop() == 0
    return running(place.folder, *place.arguments)


def reloaded(place: Place, daemon: Daemon) -> AbstractContextManager[Daemon]:
    """The same, which reads its configuration again."""
    del place
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: daemon.events("the new configuration is in force"))
    return nullcontext(daemon)


def paused(place: Place, daemon: Daemon) -> AbstractContextManager[Daemon]:
    """The same, after it has let go of the driver for some seconds."""
    state = ("--simulate", PRESET, "--path.state", str(place.state))
    assert command("pause", "--for", "1m", *state).returncode == 0
    time.sleep(PAUSED_SECONDS)
    assert command("resume", *state).returncode == 0
    return nullcontext(daemon)


Interruption = Callable[[Place, Daemon], AbstractContextManager[Daemon]]


def trial(
    place: Place, before: float, after: float, settled: float, interrupt: Interruption
) -> tuple[Told, list[Told]]:
    """Interrupt a daemon.

    Args:
        place: of both.
        before: seconds from the start to the faults, at least.
        after: seconds from the faults to the interruption.
        settled: seconds from its end until the daemon is asked for the last time.
        interrupt: gives the daemon that goes on.

    Returns:
        What was reported last before it, and what was from then on.
    """
    with running(place.folder, *place.arguments) as daemon:
        time.sleep(before)
        passed(place.strike(place.folder) + after)
        last = ask(daemon) if after >= 1 else Told("", {}, {})
        with interrupt(place, daemon) as then:
            end, said = time.monotonic() + settled, []
            while time.monotonic() < end:
                said.append(ask(then))
                time.sleep(2.0)
            said.append(ask(then, totals=True))
    return last, said


def is_shown(key: Key, findings: Container[Key]) -> bool:
    """Whether a finding is there, or the one of the same part that has replaced it."""
    code, component = key
    return any((one, component) in findings for one in (code, *REPLACED_BY.get(code, ())))


def wrong(expected: Told, last: Told, said: list[Told]) -> list[str]:
    """What was lost or counted twice."""
    end = said[-1]
    # A daemon that lives on closes what its looks do not see any more, such as the one fall that became three.
    lasting = {key for key, age in expected.findings.items() if age <= AGE_SECONDS}
    told = [f"lost: {key}" for key in sorted(lasting - end.findings.keys())]
    told += [f"about to close: {key}" for key, age in sorted(end.findings.items())
             if key in lasting and age > AGE_SECONDS]  # fmt: skip
    told += [f"not shown for a while: {key}" for key in sorted(last.findings)
             if any(not is_shown(key, one.findings) for one in said)]  # fmt: skip
    if last.findings and any(one.word == "OK" for one in said):
        told.append("OK was said")
    for what, now, then in (("events", end.totals, expected.totals), ("evidence", end.counted, expected.counted)):
        told += [f"{what} {key}: {now.get(key)} instead of {then.get(key)}"
                 for key in sorted({*now, *then}, key=str) if now.get(key) != then.get(key)]  # fmt: skip
    return told


def interruptions(
    template: Place, folder: Path, settled: float, interrupt: Interruption, plan: Sequence[tuple[float, float]]
) -> dict[str, list[str]]:
    """By the time of the interruption: what was wrong afterwards.

    Args:
        plan: ``before`` and ``after`` of each trial.
    """
    expected = without_kill(template.copy(folder / "whole"), settled)
    assert expected.totals, "no event was counted"

    def run(times: tuple[float, float]) -> tuple[str, list[str]]:
        name = f"{times[0]:g}+{times[1]:g}"
        try:
            found = wrong(expected, *trial(template.copy(folder / name), *times, settled, interrupt))
        except AssertionError as error:
            found = [repr(error)[:300]]
        print(f"{name:>8} s: {len(found)} wrong {found}", flush=True)
        return name, found

    print(f"to be found: {sorted(expected.findings)}; {len(expected.totals)} totals of events", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(pool.map(run, plan))


def strike_simulated(folder: Path) -> float:
    at = int(time.time()) + 3
    moments = {name: datetime.fromtimestamp(when, timezone.utc).isoformat().replace("+00:00", "Z")
               for name, when in (("at", at), ("end", at + LASTING_SECONDS))}  # fmt: skip
    new = folder / "faults.new"
    new.write_text(FAULTS.format(**moments))
    new.replace(folder / "faults.yaml")
    passed(at)
    with (folder / "jobs/1.log").open("a") as log:
        log.writelines([JOB_LINE] * JOB_LINES)
    return float(at)


def simulated(folder: Path) -> Place:
    """A node that is well and whose daemon knows all of its parts."""
    arguments = ("--simulate", PRESET, "--simulate.faults", f"{folder}/faults.yaml",
                 "--config.file", f"{folder}/commwatch.yaml")  # fmt: skip
    place = Place(folder, arguments, strike_simulated).configure(
        "inventory: {{learn_after: 1s}}\nprobes: {{enabled: false}}\n"
        'sources: {{nccl_logs: {{paths: ["{folder}/jobs/*.log"], hosts: ["*"]}}}}\n'
    )
    (folder / "faults.yaml").write_text("")
    (folder / "jobs").mkdir()
    (folder / "jobs/1.log").touch()
    with running(folder, *place.arguments) as daemon:
        daemon.until(lambda: (daemon.value("expected", kind="rdma_port") or 0) > 0)
        time.sleep(12.0)
        assert not [key for key in ask(daemon).findings if key[0] not in ("inventory_learned",)]
    for log in folder.glob("daemon-*.log"):
        log.unlink()
    return place


ABOUT_A_SAVE = tuple((SAVED_BEFORE, after) for after in SECONDS_ABOUT_A_SAVE)
AT_EDGES = tuple((0.0, after) for after in (0.2, 0.7, 1.5, 2.5, 4.5, 7.5, 11.5))


@pytest.mark.parametrize(("interrupt", "plan"), [
    pytest.param(killed, (*((0.0, after) for after in SECONDS_AFTER), *ABOUT_A_SAVE), id="killed"),
    pytest.param(restarted, AT_EDGES, id="restarted"),
    pytest.param(reloaded, AT_EDGES, id="reloaded"),
    pytest.param(paused, AT_EDGES, id="paused"),
])  # fmt: skip
def test_no_fault_is_lost_and_no_event_counts_twice(
    tmp_path: Path, interrupt: Interruption, plan: Sequence[tuple[float, float]]
) -> None:
    """Whenever the daemon is interrupted after ten faults of a simulated node."""
    found = interruptions(simulated(tmp_path / "template"), tmp_path, SETTLED_SECONDS, interrupt, plan)

    assert {name: what for name, what in found.items() if what} == {}


LOG = Path("/dev/kmsg")
LOG_SECONDS_AFTER = (0.2, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)
LOG_SETTLED_SECONDS = 25.0


def strike_log(folder: Path) -> float:
    """Two Xids of a GPU in the kernel log of this machine."""
    del folder
    log_xids(DEVICE, 79, 2)
    return time.time()


def log_xids(device: str, xid: int, count: int) -> None:
    with LOG.open("w", buffering=1) as log:
        for _ in range(count):
            log.write(f"NVRM: Xid (PCI:{device}): {xid}, pid=1, a rehearsal of commwatch\n")


DEVICE, ANOTHER = "0000:5d:00", "0000:5e:00"
"""Where no device is on this machine."""


def is_log_usable() -> bool:
    """Whether we may write into the kernel log and read it."""
    return os.access(LOG, os.R_OK | os.W_OK) and os.geteuid() == 0


@pytest.mark.skipif(not is_log_usable(), reason="only root may write into the kernel log")
def test_the_kernel_log_of_this_machine_is_counted_once(tmp_path: Path) -> None:
    """Whenever the daemon is killed after two Xids: both are counted, once, and found."""
    template = Place(tmp_path / "template", ("--config.file", f"{tmp_path}/template/commwatch.yaml"), strike_log)
    template.configure(  # without a GPU nobody reads the log
        "inventory: {{expected: {{gpu: 1}}}}\nsources: {{kernel_log: {{user_messages: true}}}}\n"
        "probes: {{enabled: false}}\n"
    )
    with running(template.folder, *template.arguments) as daemon:
        log_xids(ANOTHER, 31, 1)  # a node with a GPU has series of events from the start
        daemon.until(lambda: daemon.count("gpu_xid_events_total"))
        time.sleep(12.0)
    found = {}
    for after in LOG_SECONDS_AFTER:  # one by one: all read the same log
        place = template.copy(tmp_path / f"{after:g}")
        with running(place.folder, *place.arguments) as daemon:
            time.sleep(6.0)  # what earlier trials have written is counted
            before = xids(daemon)
            passed(strike_log(place.folder) + after)
            daemon.process.kill()
            daemon.process.wait()
        with running(place.folder, *place.arguments) as daemon:
            time.sleep(LOG_SETTLED_SECONDS)
            told = ask(daemon)
            lost = ("xid_fabric", f"gpu/{DEVICE}.0") not in told.findings
            found[after] = (xids(daemon) - before, lost, told.counted.get(("xid_fabric", f"gpu/{DEVICE}.0")))
            print(after, found[after], flush=True)

    assert {after: (count, lost) for after, (count, lost, _) in found.items()} == dict.fromkeys(
        LOG_SECONDS_AFTER, (2.0, False)
    )


def xids(daemon: Daemon) -> float:
    return daemon.value("gpu_xid_events_total", gpu="", pci_bus_id=f"{DEVICE}.0", xid="79") or 0.0
