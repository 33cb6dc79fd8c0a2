"""What a daemon goes through on bad days: each case asserts what is left of it, and prints its figures.

``docs/engineering/torture.md`` has the figures. ``COMMWATCH_TORTURE=0.1`` plays a tenth of what counts or lasts.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from commwatch.sources.kernel_log import KernelLogSource
from commwatch.state.records import LARGEST_NUMBER
from support.daemon import Daemon, children_of, running
from support.pages import page_of
from support.simulated_daemon import BOOTED_AT, SimulatedDaemon, simulated
from support.torture import (
    FAST,
    NODE,
    SHARE,
    cpu_seconds,
    failing_of,
    footing,
    is_well,
    scraped,
    times,
    told,
    tortured,
)  # fmt: skip
from support.waiting import until

SEED = 21


def workers_of(daemon: Daemon) -> list[int]:
    """The processes that read."""
    return _with_word(daemon, b"commwatch-", "comm")


def ranks_of(daemon: Daemon) -> list[int]:
    """The processes that probe."""
    return _with_word(daemon, b"commwatch.probes.cycle.rank")


def _with_word(daemon: Daemon, word: bytes, where: str = "cmdline") -> list[int]:
    found = []
    for children in Path(f"/proc/{daemon.process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            try:
                if word in Path(f"/proc/{pid}/{where}").read_bytes():
                    found.append(int(pid))
            except OSError:  # it has ended meanwhile
                continue
    return found


def ended(pid: int) -> bool:
    """Whether a process is gone, or only its parent has not taken notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def all_ended(pids: list[int]) -> bool:
    """Whether none of these processes is there."""
    return all(map(ended, pids))


# --- kills ---


def test_workers_and_ranks_are_killed_at_random_moments(tmp_path: Path) -> None:
    """120 SIGKILLs: scrapes go on, everything is read again, probes measure again, and nothing is left behind."""
    chance = random.Random(SEED)  # noqa: S311 - no secret
    with tortured(tmp_path) as daemon, scraped(daemon) as scrapes:
        daemon.until(lambda: (daemon.value("probe_attempts_total", probe="often", backend="simulated") or 0) > 0)
        before, killed = footing(daemon), {"worker": 0, "rank": 0}
        wanted = {"worker": times(100), "rank": times(20)}
        while killed != wanted:
            time.sleep(chance.uniform(0.0, 0.2 if killed["worker"] == wanted["worker"] else 3.0))
            kind = "rank" if killed["rank"] < wanted["rank"] and ranks_of(daemon) else "worker"
            if killed[kind] >= wanted[kind] and kind == "worker":
                continue
            for pid in chance.sample(found := ranks_of(daemon) if kind == "rank" else workers_of(daemon), bool(found)):
                os.kill(pid, signal.SIGKILL)
                killed[kind] += 1
        at_last = time.monotonic()
        daemon.until(lambda: is_well(daemon), 180)
        recovered = time.monotonic() - at_last
        done = daemon.series("probe_attempts_total")
        daemon.until(lambda: daemon.series("probe_attempts_total") != done)
        after = daemon.until(lambda: (now := footing(daemon)).children <= before.children and now)
        told(
            f"{sum(killed.values())} kills of workers and ranks", killed, f"well again after {recovered:.0f} s",
            scrapes.end(), before, after,
        )  # fmt: skip
    assert after.descriptors <= before.descriptors + 4
    assert not [entry for entry in daemon.log() if "Traceback" in str(entry)]


def test_the_daemon_is_killed_at_random_moments(tmp_path: Path) -> None:
    """80 SIGKILLs, from the first moment on: its processes end, no state is damaged, the next daemon starts on it."""
    chance = random.Random(SEED)  # noqa: S311 - no secret
    lasted, file = [], tmp_path / "commwatch.yaml"
    file.write_text(FAST)
    arguments = ("--config.file", str(file), "--simulate", NODE, "--path.state", str(tmp_path / "state"))
    for _ in range(times(80)):
        with (tmp_path / "killed.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "commwatch", "run", "--web.listen-address", "127.0.0.1:0", *arguments],
                stdout=log, stderr=log,
            )  # fmt: skip
        time.sleep(chance.uniform(0.0, 6.0))
        left = children_of(process.pid)
        process.kill()
        process.wait()
        started = time.monotonic()
        until(partial(all_ended, left))
        lasted.append(time.monotonic() - started)
    with running(tmp_path, "--config.file", str(file), "--simulate", NODE) as daemon:
        daemon.until(lambda: is_well(daemon))
        damaged = list((tmp_path / "state").rglob("*damaged*"))
        told(f"{len(lasted)} kills of the daemon", f"its processes ended within {max(lasted):.1f} s", footing(daemon))
    assert damaged == []
    log_text = (tmp_path / "killed.log").read_text()
    assert "damaged" not in log_text
    assert "Traceback" not in log_text


# --- disks ---


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A file system of its own, for the state."""
    place = folder / "disk"
    place.mkdir(exist_ok=True)
    if subprocess.run(["mount", *options, place], capture_output=True).returncode:
        pytest.skip("needs root, and a machine on which file systems can be mounted")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def fill(file: Path) -> None:
    """Take all the room that is left, to the last block."""
    with file.open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(4096))


def kept_in(state: Path) -> dict[str, bytes]:
    """The state files."""
    return {one.name: one.read_bytes() for one in sorted(state.glob("*.json"))}


def cannot_save(daemon: Daemon) -> list[str]:
    """What the daemon has logged of it."""
    return [one["msg"] for one in daemon.log() if "cannot be saved" in one["msg"]]


def test_a_full_disk(tmp_path: Path) -> None:
    """The page goes on, each failure to save is logged, no file is cut; with room again all is saved."""
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=4m", "commwatch-torture") as disk:
        with tortured(tmp_path, state=disk / "state") as daemon, scraped(daemon) as scrapes:
            state, before = daemon.state / f"simulated-{NODE}", footing(daemon)
            daemon.until((state / "inventory.json").exists)
            fill(disk / "filler")
            kept = kept_in(state)
            daemon.until(lambda: cannot_save(daemon))
            during = footing(daemon)
            assert is_well(daemon)
            assert {name: text for name, text in kept_in(state).items() if name in kept} == kept
            (disk / "filler").unlink()
            daemon.until(lambda: kept_in(state) != kept, 240)
            after = footing(daemon)
            told("disk full", scrapes.end(), f"{len(cannot_save(daemon))} failures logged", before, during, after)
        with tortured(tmp_path, state=disk / "state"):
            assert not list(disk.rglob("*damaged*"))
    assert during.series >= before.series - 5
    assert after.descriptors <= before.descriptors + 4


def test_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    """As ext4 does at an error: the page goes on, failures are logged, the next daemon starts on what it had."""
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(16 * 2**20))
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    mount = partial(mounted, tmp_path, "-o", "loop,errors=remount-ro")
    # This machine's own node: a simulated one writes its trees into the state directory.
    with (
        mount(str(image)) as disk,
        tortured(tmp_path, "--no-node", state=disk / "state") as daemon,
        scraped(daemon) as scrapes,
    ):
        state, before = daemon.state, footing(daemon)
        daemon.until((state / "inventory.json").exists)
        device = subprocess.run(["findmnt", "-no", "SOURCE", disk], capture_output=True, text=True, check=True)
        Path("/sys/fs/ext4", Path(device.stdout.strip()).name, "trigger_fs_error").write_text("1")
        kept = kept_in(state)
        daemon.until(lambda: cannot_save(daemon))
        after = footing(daemon)
        told("disk read-only", scrapes.end(), f"{len(cannot_save(daemon))} failures logged", before, after)
        assert kept_in(state) == kept
    repaired = Path(shutil.copy(image, tmp_path / "repaired.img"))
    assert subprocess.run(["e2fsck", "-fy", repaired], capture_output=True).returncode < 4
    with mount(str(repaired)) as disk, tortured(tmp_path, "--no-node", state=disk / "state"):
        assert not list(disk.rglob("*damaged*"))
    assert after.series >= before.series - 5
    assert after.descriptors <= before.descriptors + 4


# --- reloads ---


def is_reloaded(daemon: Daemon, good: bool) -> bool:
    """Whether the last configuration was read, and was as good."""
    return daemon.value("config_last_reload_successful") == good


def test_reloads_with_every_second_configuration_broken(tmp_path: Path) -> None:
    """A broken one changes nothing and is told; a good one is in force; nothing grows."""
    file = tmp_path / "commwatch.yaml"
    broken = ("probes: {unknown: 1}", "[" * 500, "sources: {nvml: {deadline: -1s}}", "\0", "", "a: b: c", "log: 7")
    with tortured(tmp_path) as daemon, scraped(daemon) as scrapes:
        before, count = footing(daemon), times(100)
        for number in range(count):
            good = number % 2 == 1
            file.write_text(FAST if good else broken[number // 2 % len(broken)])
            daemon.process.send_signal(signal.SIGHUP)
            daemon.until(partial(is_reloaded, daemon, good))
        daemon.until(lambda: is_well(daemon))
        after = daemon.until(lambda: (now := footing(daemon)).series > before.series - 20 and now)
        told(f"{count} reloads, every second one broken", scrapes.end(), before, after)
    assert len(daemon.events("the new configuration is not used; the old one stays in force")) == (count + 1) // 2
    assert after.series == pytest.approx(before.series, abs=20)
    assert after.descriptors <= before.descriptors + 4
    assert after.memory_mib < before.memory_mib + 15


# --- processes ---


def test_five_thousand_processes(tmp_path: Path) -> None:
    """The services are found among them; a scrape takes what it took before."""
    with tortured(tmp_path) as daemon:
        with scraped(daemon) as few:
            time.sleep(5)
        before = footing(daemon)
        took_before = daemon.value("collector_duration_seconds", collector="services")
        procfs = daemon.state / f"simulated-{NODE}" / "procfs"
        count = times(5000)
        for number in range(count):
            folder = procfs / str(100_000 + number)
            folder.mkdir()
            (folder / "comm").write_text(f"python{number}\n")
            (folder / "stat").write_text(f"{100_000 + number} (python{number}) S 1 1 1 0 -1 0\n")
            (folder / "environ").write_text("NCCL_DEBUG=WARN\0")
        mark = daemon.value("collector_last_success_timestamp_seconds", collector="services") or 0.0
        daemon.until(
            lambda: (daemon.value("collector_last_success_timestamp_seconds", collector="services") or 0) > mark + 3
        )
        with scraped(daemon) as many:
            time.sleep(5)
        after = footing(daemon)
        took = daemon.value("collector_duration_seconds", collector="services")
        assert is_well(daemon)
        told(f"{count} processes", f"before: {few.end()}", f"with them: {many.end()}",
             f"services collector {took_before} s, then {took} s", before, after)  # fmt: skip
    assert before.series <= after.series < before.series + 100
    assert after.descriptors <= before.descriptors + 4


# --- floods ---


class Ring:
    """A kernel's log buffer into which a flood writes, also while it is read; what is overwritten is lost."""

    def __init__(self, keeps: int, every: int) -> None:
        self.written = self.oldest = self.next = self.taken = self.bytes = self.overrun = 0
        self._keeps, self._every = keeps, every

    def flood(self, records: int) -> None:
        """Write so many records."""
        self.written += records
        self.oldest = max(self.oldest, self.written - self._keeps)

    def read(self) -> bytes | None:
        """As the device does: EPIPE once where it was overtaken, then the oldest record that is left."""
        self.flood(self.next % 2)
        if self.next < self.oldest:
            self.next, self.overrun = self.oldest, self.overrun + 1
            raise BrokenPipeError(errno.EPIPE, "overwritten")
        if self.next == self.written:
            return None
        number, self.next = self.next, self.next + 1
        if number % self._every == 0:
            record = b"4,%d,%d,-;NVRM: Xid (PCI:0000:17:00): 31, pid=1, name=x, Ch 1\n" % (number, number)
        else:
            record = b"6,%d,%d,-;usb 1-1: new high-speed USB device number %d using xhci_hcd\n" % ((number,) * 3)
        self.taken, self.bytes = self.taken + 1, self.bytes + len(record)
        return record

    def close(self) -> None:
        """Nothing is open."""


def test_a_flood_of_the_kernel_log(tmp_path: Path) -> None:
    """100 MB, 5 between two runs: each run reads what the buffer still has, ends, and counts what it lost."""
    boot = tmp_path / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("0b1c2d3e\n")
    ring, between = Ring(keeps=16_000, every=1000), 70_000
    source = KernelLogSource(lambda: ring, tmp_path)
    source.open(lambda device: None, frozenset(), None)
    costs, events, losses = list[float](), 0, 0.0
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while ring.written < times(1_300_000):
        ring.flood(between)
        began = time.process_time()
        batch = source.collect("kernel_log")
        costs.append(time.process_time() - began)
        events += len(batch.events)
        losses = float(batch.readings[0].values[0] or 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) / 1024
    size = ring.written * ring.bytes / ring.taken
    told(f"kernel log, {size / 1e6:.0f} MB", f"{len(costs)} runs, {ring.bytes / 1e6:.0f} MB were still there",
         f"CPU of a run at most {max(costs) * 1e3:.0f} ms, all {sum(costs):.2f} s (making the records included)",
         f"{losses:.0f} losses counted", f"{events} Xids", f"memory +{grown:.0f} MiB")  # fmt: skip
    assert losses == ring.overrun == len(costs)
    assert events >= 16 * len(costs)
    assert grown < 20


def test_a_job_that_logs_fifty_megabytes_a_second(tmp_path: Path) -> None:
    """The reader keeps to its share of the CPU, what it passes over is counted, and a late error is found."""
    log, rate, seconds = tmp_path / "job.log", 50_000_000, times(20)
    log.touch()
    interval = 1.0
    config = f"""
probes: {{enabled: false}}
sources: {{nccl_logs: {{interval: {interval}s, paths: ["{log}"]}}}}
"""
    line = b"gpu7:41:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM and so on, as with NCCL_DEBUG=INFO\n"
    error = b"gpu7:41:77 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> "
    error += b"with error 12, opcode 0, len 0, vendor err 129\n"
    piece = line * (500_000 // len(line))
    with tortured(tmp_path, config=config) as daemon:
        daemon.until(lambda: daemon.value("nccl_log_files") == 1)
        with scraped(daemon) as calm:
            time.sleep(5)
        before, workers = footing(daemon), workers_of(daemon)
        cpu = {pid: cpu_seconds(pid) for pid in workers}
        started, sent = time.monotonic(), 0
        with scraped(daemon) as scrapes, log.open("ab", buffering=0) as stream:
            while (elapsed := time.monotonic() - started) < seconds:
                if sent < rate * elapsed:
                    sent += stream.write(piece)
                else:
                    time.sleep(0.005)
            stream.write(error)
            wrote = time.monotonic() - started
            busiest = max(cpu_seconds(pid) - cpu[pid] for pid in workers) / wrote
            daemon.until(lambda: errors_of(daemon) >= 1, 600)
        found = time.monotonic() - started - wrote
        after = footing(daemon)
        skipped = daemon.value("nccl_log_skipped_bytes_total") or 0
        told(f"job log, {sent / wrote / 1e6:.0f} MB/s for {wrote:.0f} s", f"reader {100 * busiest:.0f} % of a core",
             f"{skipped / 1e6:.0f} of {sent / 1e6:.0f} MB passed over and counted", f"error found after {found:.0f} s",
             f"calm: {calm.end()}", f"meanwhile: {scrapes.end()}", before, after)  # fmt: skip
        assert is_well(daemon)
    # A run ends after 0.25 s of the clock: that is its most of the CPU too.
    assert busiest < 0.5
    assert skipped <= sent
    assert after.memory_mib < before.memory_mib + 15


def errors_of(daemon: Daemon) -> float:
    """Lines of trouble in logs of jobs."""
    return sum(daemon.series("nccl_log_errors_total").values())


def has_errors(daemon: Daemon, count: int) -> bool:
    """Whether so many were counted."""
    return errors_of(daemon) == count


def test_logs_that_are_none(tmp_path: Path) -> None:
    """Pipes, devices, sockets, links in a ring, folders, a file of 1 TB of nothing: the one real log is read."""
    folder = tmp_path / "logs"
    folder.mkdir()
    os.mkfifo(folder / "pipe.log")
    for name, target in {"zero": "/dev/zero", "full": "/dev/full", "tty": "/dev/ptmx", "ring": "ring.log",
                         "nowhere": "/nowhere", "mem": "/proc/self/mem", "up": ".."}.items():  # fmt: skip
        (folder / f"{name}.log").symlink_to(target)
    (folder / "folder.log").mkdir()
    with (folder / "sparse.log").open("wb") as sparse:
        sparse.truncate(10**12)
    log, old = folder / "job.log", folder / "job.log.1"
    log.touch()
    config = f"probes: {{enabled: false}}\nsources: {{nccl_logs: {{interval: 500ms, paths: ['{folder}/*.log*']}}}}\n"
    error = "gpu7:41:77 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion with error 12, vendor err {}\n"
    ring = frozenset({"nccl_logs"})  # it says that links in a ring lead nowhere
    with tortured(tmp_path, config=config, failing=ring) as daemon, scraped(daemon) as scrapes:
        daemon.until(lambda: (daemon.value("nccl_log_files") or 0) >= 2)
        before, workers = footing(daemon), workers_of(daemon)
        expected = 0
        for step in ("write", "rename", "truncate", "copy", "remove"):
            if step == "rename":
                log.rename(old)
            elif step == "copy":
                shutil.copy(log, folder / "job.log.2")
                log.write_text("")
            elif step == "truncate":
                log.write_text("")
            elif step == "remove":
                log.unlink()
            with log.open("a") as stream:
                stream.write(error.format(expected) * 3)
            expected += 3
            daemon.until(partial(has_errors, daemon, expected))
        time.sleep(2)
        after = footing(daemon)
        found = f"{errors_of(daemon):.0f} of {expected} errors"
        told("logs that are none, and rotated in four ways", scrapes.end(), found, before, after)
        assert errors_of(daemon) == expected
        assert workers_of(daemon) == workers
        assert failing_of(daemon) == ring
    assert after.descriptors <= before.descriptors + 4


# --- processes that stand still ---


def test_a_worker_is_stopped(tmp_path: Path) -> None:
    """Each worker in turn, for 30 s: the others read on, scrapes go on, and all is read after it goes on."""
    with tortured(tmp_path) as daemon, scraped(daemon) as scrapes:
        before, figures = footing(daemon), []
        for pid in workers_of(daemon):
            last = daemon.series("collector_last_success_timestamp_seconds")
            os.kill(pid, signal.SIGSTOP)
            try:
                daemon.until(lambda: not is_well(daemon))
                time.sleep(30 * SHARE)
                now = daemon.series("collector_last_success_timestamp_seconds")
                went_on = sum(now.get(labels, 0) > last[labels] + 1 for labels in last)
                stuck = sum(daemon.series("worker_stuck").values())
            finally:
                os.kill(pid, signal.SIGCONT)
            started = time.monotonic()
            daemon.until(lambda: is_well(daemon), 180)
            figures.append(f"{went_on} of {len(last)} collectors went on, {stuck:.0f} stuck, "
                           f"well {time.monotonic() - started:.0f} s after it went on")  # fmt: skip
            assert went_on > 0
        after = daemon.until(lambda: (now := footing(daemon)).children <= before.children + 1 and now)
        told("each worker stopped for 30 s", *figures, scrapes.end(), before, after)
    assert after.descriptors <= before.descriptors + 4


def test_a_driver_that_hangs(tmp_path: Path) -> None:
    """Two GPUs hang at once: at most two processes are stuck beside the one that samples PCIe, everything else is read,
    and it comes back.
    """
    faults = tmp_path / "faults.yaml"
    faults.write_text("[]\n")
    with tortured(tmp_path, "--simulate.faults", str(faults)) as daemon:
        with scraped(daemon) as calm:
            time.sleep(5)
        before = footing(daemon)
        with scraped(daemon) as scrapes:
            hang = "- {{fault: driver_hang, gpu: {}, for: {:g}s}}\n"
            faults.write_text("".join(hang.format(gpu, 30 * SHARE) for gpu in (0, 1)))
            daemon.until(lambda: sum(daemon.series("worker_stuck").values()) >= 1)
            most = most_samples = 0.0
            end = time.monotonic() + 20 * SHARE
            while time.monotonic() < end:
                stuck = {labels[0][1]: value for labels, value in daemon.series("worker_stuck").items()}
                most_samples = max(most_samples, stuck.pop("nvml_pcie"))
                most = max(most, sum(stuck.values()))
                time.sleep(0.2)
            during = footing(daemon)
            host = {labels[0][1]: value for labels, value in daemon.series("collector_success").items()}
            daemon.until(lambda: is_well(daemon), 240)
        # Each that hung is served by a process of its own for ten minutes.
        after = daemon.until(lambda: (now := footing(daemon)).children <= before.children + 2 and now)
        told("both GPUs hang in the driver", f"at most {most:.0f} stuck", f"calm: {calm.end()}",
             f"meanwhile: {scrapes.end()}", before, during, after)  # fmt: skip
    assert most <= 2
    assert most_samples <= 1
    assert host["network"] == host["pci"] == host["services"] == 1
    assert during.children <= before.children + 3
    assert after.descriptors <= before.descriptors + 4 + 4 * (after.children - before.children)


# --- time ---


def counters_of(daemon: SimulatedDaemon) -> dict[str, float]:
    """By series, but those of the daemon's own processes, which are real ones."""
    page = page_of(daemon.exposed()).decode()
    samples = (line.rpartition(" ") for line in page.splitlines() if not line.startswith(("#", "commwatch_process")))
    return {series: float(value) for series, _, value in samples if "_total" in series}


def test_clock_steps(tmp_path: Path) -> None:
    """An hour, a year, back to 1970 (no kernel takes an earlier time): no counter falls, only the step is found, and
    a daemon starts on what was saved under each clock."""
    steps = (3600.0, -7200.0, 3600.0, 365 * 86400.0, -365 * 86400.0, -BOOTED_AT, BOOTED_AT, 1.9, -1.9)
    now, fallen, findings, failing = 0.0, 0, set[str](), set[str]()
    for place, step in enumerate(steps):
        with simulated(NODE, tmp_path, time_now=now) as daemon:
            for _ in range(20):
                now += 15
                daemon.step_to(now)
            before = counters_of(daemon)
            daemon.step_clock(step)
            for _ in range(20):
                now += 15
                daemon.step_to(now)
            after = counters_of(daemon)
            fallen += sum(after.get(series, value) < value for series, value in before.items())
            findings |= {one.code for one in daemon.changes if one.event == "opened"}
            failing |= daemon.verdict.failing_rules
            values = [value or 0 for block in daemon.snapshot().blocks for value in block.values]
            assert all(abs(one) <= LARGEST_NUMBER for one in values), place
    outcome = f"{len(after)} counters, {fallen} fell; findings {sorted(findings)}, {len(failing)} rules failed"
    told(f"{len(steps)} clock steps", outcome)
    assert (fallen, findings, failing) == (0, {"clock_stepped"}, set())
    assert not list(tmp_path.rglob("*damaged*"))


def test_a_day_in_steps(tmp_path: Path) -> None:
    """24 hours at a step a minute, with probes: what is held after two hours is what is held at the end."""

    def held(daemon: SimulatedDaemon) -> tuple[float, int, int]:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
        page = page_of(daemon.exposed())
        return resident, len(os.listdir("/proc/self/fd")), sum(not line.startswith(b"#") for line in page.splitlines())

    minutes = times(24 * 60)
    with simulated(NODE, tmp_path) as daemon:
        for minute in range(1, minutes + 1):
            daemon.step_to(60.0 * minute)
            if minute == minutes // 12:
                before = held(daemon)
        after = held(daemon)
        probes = sum(value for series, value in counters_of(daemon).items() if "probe_attempts_total" in series)
        state = sum(one.stat().st_size for one in daemon.state.path.rglob("*.json"))
        told(f"{minutes / 60:.0f} h in steps of a minute", f"{probes:.0f} probes", f"state {state / 1e3:.0f} kB",
             f"after {minutes // 12} min: MiB, descriptors, series {before}", f"at the end: {after}")  # fmt: skip
        assert not daemon.verdict.failing_rules
    assert after[0] < before[0] + 10
    assert after[1] <= before[1] + 2
    assert after[2] <= before[2] + 10
