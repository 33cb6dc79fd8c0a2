"""Whether many probe cycles in a row leave anything behind: processes, descriptors, threads, files, sockets, memory.

Run ``python benchmarks/probe_soak.py [simulated] [gloo] [--cycles 200]``; gloo needs torch. Exits with 1 on any growth.
The parent is this process, so what is counted is what the daemon would be left with. Nothing here is a GPU.

With ``--kills 100`` such a parent is killed so often instead, each time at a random moment of simulated cycles, and
whatever is left after ten seconds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1] / root) for root in ("daemon", "exporters")]

from commwatch.config import settings  # noqa: E402 - the checkout need not be installed
from commwatch.probes.cycle.launch import Launcher  # noqa: E402 - as above
from commwatch.probes.cycle.lock import ProbeLock, held_elsewhere  # noqa: E402 - as above
from commwatch.probes.plan import CyclePlan, Measured  # noqa: E402 - as above
from commwatch.probes.rank_plan import Backend, SimulatedNodePlan  # noqa: E402 - as above
from commwatch.probes.workload import plan_cycle  # noqa: E402 - as above
from commwatch_rehearsal.simulation.presets import PRESETS  # noqa: E402 - as above

PRESET = "a10x2"
WARM_UP_CYCLES = 10
"""After these the interpreter's caches and the event loop's threads have their size."""
RESIDENT_TOLERANCE_KIB = 1024
"""The allocator's arenas come and go; a leak of 5 KiB a cycle shows in 200 of them."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written

_PROC = Path("/proc")


class Possessions(NamedTuple):
    """What this process has, or has left on the machine."""

    processes: int
    """Children, ended ones that nobody reaped included, and whatever else was started over the folder."""
    descriptors: int
    threads: int
    files: int
    """In the folder for temporary files, and segments of shared memory; folders in there are of others."""
    listening: int
    """Sockets of this process, and of what it left, that listen."""
    resident_kib: int


def possessions(folder: Path) -> Possessions:
    """Count them; garbage is collected first."""
    gc.collect()
    processes = left_over(folder)
    status = dict(line.split(":", 1) for line in (_PROC / "self/status").read_text().splitlines())
    return Possessions(
        processes=len(processes),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=int(status["Threads"]),
        files=sum(path.exists() for path in folder.rglob("*"))
        + sum(path.is_file() for path in SHARED_MEMORY.iterdir()),
        listening=sum(listening(pid) for pid in (os.getpid(), *processes)),
        resident_kib=int(status["VmRSS"].split()[0]),
    )


def left_over(folder: Path) -> list[int]:
    """Children of this process in any state, and processes whose home was in the folder."""
    mark, own = f"HOME={folder}/".encode(), str(os.getpid())
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == own or any(one.startswith(mark) for one in (entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def listening(pid: int) -> int:
    """TCP sockets of a process that listen."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets.add(f"socket:[{fields[9]}]")
    count = 0
    try:
        for descriptor in os.listdir(_PROC / str(pid) / "fd"):
            count += os.readlink(_PROC / str(pid) / "fd" / descriptor) in sockets
    except OSError:  # ended meanwhile, or the descriptor of the listing itself
        return count
    return count


def plan_of(backend: Backend) -> CyclePlan:
    """An all-reduce of two ranks."""
    if backend == "gloo":
        return plan_cycle("soak", settings.Probe(), settings.Probes(), backend="gloo", devices=())
    node = SimulatedNodePlan(preset=PRESET, faults_file=None, started_at=time.time())
    devices = tuple(gpu.uuid for gpu in PRESETS[PRESET].gpus)
    return plan_cycle(
        "soak", settings.Probe(), settings.Probes(), backend="simulated", devices=devices, simulation=node
    )


async def nobody_comes(pids: frozenset[int]) -> None:
    """A watch over a free node."""
    del pids


async def start_all_threads() -> None:
    """Start all threads of the event loop's executor: on busy cores the cycles may start another one late."""
    everyone = threading.Barrier(min(32, (os.cpu_count() or 1) + 4))
    await asyncio.gather(*(asyncio.to_thread(everyone.wait) for _ in range(everyone.parties)))


async def soak(backend: Backend, cycles: int, folder: Path) -> bool:
    """Run the cycles and print what is different after them; True if nothing has grown."""
    launcher = Launcher(temporary=folder, lock=ProbeLock(folder / "probe.lock"))
    plan = plan_of(backend)
    seconds: list[float] = []
    before = possessions(folder)
    for number in range(WARM_UP_CYCLES + cycles):
        if number == WARM_UP_CYCLES:
            await start_all_threads()
            before = possessions(folder)
            seconds.clear()
        started = time.monotonic()
        result = await launcher.run(plan, nobody_comes)
        seconds.append(time.monotonic() - started)
        if not isinstance(result, Measured):
            print(f"cycle {number} of {backend} gave no result: {result}")
            return False
    after = possessions(folder)
    longest = quantiles(seconds, n=100, method="inclusive")[98]
    print(
        f"{backend}: {cycles} cycles, start to result {median(seconds):.2f} s (median), "
        f"{longest:.2f} s (99 %), {max(seconds):.2f} s (longest)"
    )
    print(f"{'':>14} {'before':>8} {'after':>8}")
    clean = True
    for name, old, new in zip(Possessions._fields, before, after, strict=True):
        grown = new > old + (RESIDENT_TOLERANCE_KIB if name == "resident_kib" else 0)
        clean = clean and not grown
        print(f"{name:>14} {old:>8} {new:>8}{'  has grown' if grown else ''}")
    return clean


LAST_SECONDS = 10.0
"""So long what a killed parent leaves may take to go."""


def kill_at_random(kills: int) -> bool:
    """Kill a parent of cycles again and again, and print how long its processes, folders and lock last; True if none
    lasts too long."""
    lasted: list[float] = []
    for _ in range(kills):
        with tempfile.TemporaryDirectory(prefix="soak-") as name:
            folder = Path(name)
            command = [sys.executable, __file__, "simulated", "--cycles", "100000"]
            with subprocess.Popen(command, env=os.environ | {"TMPDIR": name}) as parent:
                time.sleep(random.uniform(0.2, 2.0))  # noqa: S311 - no secret
                parent.kill()
            killed = time.monotonic()
            while something_left(folder) and time.monotonic() < killed + LAST_SECONDS:
                time.sleep(0.02)
            lasted.append(time.monotonic() - killed)
    late = sum(one >= LAST_SECONDS for one in lasted)
    print(f"{kills} kills: the longest that anything lasted is {max(lasted):.2f} s; {late} left something")
    return not late


def something_left(folder: Path) -> bool:
    """Whether a rank or guard lives, or a lock or a private folder is still there."""
    locks = folder.glob("soak-*/probe.lock")
    return bool(left_over(folder)) or any(map(held_elsewhere, locks)) or any(folder.glob("soak-*/commwatch-probe-*"))


def main() -> int:
    """Soak each backend in turn; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("backends", nargs="*", help="simulated, gloo; both without any")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--kills", type=int, default=0)
    args = parser.parse_args()
    if unknown := set(args.backends) - {"simulated", "gloo"}:
        parser.error(f"no such backend: {', '.join(sorted(unknown))}")
    if args.cycles < 2:
        parser.error("at least two cycles")
    if args.kills:
        return 0 if kill_at_random(args.kills) else 1
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        wanted = args.backends or ["simulated", "gloo"]
        clean = [asyncio.run(soak(backend, args.cycles, Path(folder))) for backend in wanted]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
