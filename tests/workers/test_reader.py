"""Readers over real worker processes and the simulated driver: hangs, crashes, replacement, release."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commwatch.config.settings import NetworkSection, Sources, section_json
from commwatch.config.simulated import SimulationPlan
from commwatch.node.run import Collected, Keeper
from commwatch.workers.process_state import process_state
from commwatch.workers.reader import REJOIN_SECONDS, Reader, ReaderSettings
from commwatch.workers.wire import WorkerPlan
from support.waiting import PATIENCE_SECONDS

GPUS = ["0000:17:00.0", "0000:18:00.0", "0000:3a:00.0", "0000:3b:00.0",
        "0000:9a:00.0", "0000:9b:00.0", "0000:ba:00.0", "0000:bb:00.0"]  # fmt: skip
PROC = Path("/proc")
SIGNAL_AFTER_SECONDS, KILL_AFTER_SECONDS = 150.0, 10.0
"""A stuck process gets no signal earlier; from TERM to KILL."""


class Events(Keeper):
    """What a reader told, kept."""

    def __init__(self) -> None:
        self.kept: list[Collected] = []
        self.restarts: list[str] = []
        self.stuck: list[int] = []

    def keep(self, collected: Collected) -> None:
        self.kept.append(collected)

    def worker_restarted(self, worker: str, reason: str) -> None:
        self.restarts.append(reason)

    def worker_stuck(self, worker: str, count: int) -> None:
        self.stuck.append(count)


class Node:
    """A reader of a simulated node whose faults can be set."""

    def __init__(
        self, folder: Path, monotonic: Callable[[], float] = time.monotonic, procfs: Path = PROC, *,
        preset: str = "h100x8", source: str = "nvml",
    ) -> None:  # fmt: skip
        self.faults = folder / "faults.yaml"
        self.faults.write_text("[]\n")
        self.events = Events()
        plan = SimulationPlan(preset, str(self.faults), time.time() - 100, str(folder / "sysfs"), "")
        self.kept = self.events.kept
        self.reader = Reader(
            ReaderSettings(WorkerPlan("nvml", (source,), sysfs=plan.sysfs, simulation=plan, rest_when_unavailable=True),
                           deadline=0.6, start_deadline=3, procfs=procfs),
            self.events, monotonic,
        )  # fmt: skip

    def set_faults(self, text: str) -> None:
        """Replace the file of faults; the simulated node looks at it every 0.25 s."""
        new = self.faults.with_suffix(".new")
        new.write_text(text)
        new.replace(self.faults)

    async def until(self, enough: Callable[[Collected], bool]) -> Collected:
        """The first run from now on that is enough; the test's time limit bounds it."""
        seen = len(self.kept)
        while not any(map(enough, self.kept[seen:])):
            await asyncio.sleep(0.01)
        return next(one for one in self.kept[seen:] if enough(one))

    async def collect(self, collector: str = "nvlink") -> Collected:
        return await self.reader.now(f"nvml_{collector}")

    async def collect_until(self, enough: Callable[[Collected], bool], collector: str = "nvlink") -> Collected:
        """Collect until something has happened; the test's time limit bounds it."""
        while not enough(collected := await self.collect(collector)):
            await asyncio.sleep(0.05)
        return collected


@asynccontextmanager
async def node(folder: Path, **arguments: Any) -> AsyncIterator[Node]:
    """A node that leaves no process behind, whatever the test does."""
    one = Node(folder, **arguments)
    try:
        yield one
    finally:
        one.set_faults("[]\n")
        for pid in one.reader.pids():
            os.kill(pid, signal.SIGKILL)
        while one.reader.pids():
            await asyncio.sleep(0.01)
        await one.reader.stop()


def in_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))


LINKS = "nvml_nvlink"


def of(name: str) -> Callable[[Collected], bool]:
    """Whether a run is of a collector."""
    return lambda collected: collected.collector == name


def absent(device: str, reason: str) -> Callable[[Collected], bool]:
    """Whether a run says that a device was not read for a reason."""
    return lambda collected: (device, reason) in [(one.device, one.reason) for one in collected.absences]


def test_what_is_ordered_comes_again_and_again_and_nobody_asks(tmp_path: Path) -> None:
    """At its interval, with new values of the same series; another interval holds from then on, 0 ends it. One process
    gives it all, and none is left after the stop."""

    async def body() -> None:
        async with node(tmp_path) as one:
            one.reader.order(LINKS, 0.05)
            first, second = await one.until(of(LINKS)), await one.until(of(LINKS))
            assert (sorted(first.blocks), first.absences) == (GPUS, [])
            assert second.blocks[GPUS[0]].time > first.blocks[GPUS[0]].time
            assert second.blocks[GPUS[0]].layout is first.blocks[GPUS[0]].layout

            one.reader.order("nvml_gpu", 5000.0)
            await one.until(of("nvml_gpu"))
            one.reader.order(LINKS, 5000.0)
            await one.collect("gpu")
            one.kept.clear()
            await asyncio.sleep(0.3)
            assert one.kept == []
            one.reader.hasten(LINKS)
            await one.until(of(LINKS))

            one.reader.order(LINKS, 0.05)
            await one.until(of(LINKS))
            one.reader.order(LINKS, 0.0)
            await one.collect("gpu")
            one.kept.clear()
            await asyncio.sleep(0.3)
            assert one.kept == []
            (pid,) = one.reader.pids()
            await one.reader.stop()
            assert one.reader.pids() == []
            assert process_state(PROC, pid) in (None, "Z")

    in_loop(body)


def test_who_waits_for_a_run_that_is_not_wanted_any_more_goes_on(tmp_path: Path) -> None:
    """Its source has gone, or maintenance begins: a probe that looks at the GPUs first is not held up."""

    async def body() -> None:
        async with node(tmp_path) as one:
            await one.collect()
            waiting = asyncio.create_task(one.collect("gpu"))
            await asyncio.sleep(0)
            one.reader.order("nvml_gpu", 0.0)
            assert [gap.detail for gap in (await waiting).absences] == ["released"]
            waiting = asyncio.create_task(one.collect("gpu"))
            await asyncio.sleep(0)
            await one.reader.stop()
            assert [gap.detail for gap in (await waiting).absences] == ["released"]
            assert [gap.detail for gap in (await one.collect()).absences] == ["released"]

    in_loop(body)


def test_what_is_due_and_does_not_come_is_a_hang(tmp_path: Path) -> None:
    """The suspect is named at its deadline, not before, and all that was ordered goes on in one replacement, beside the
    stuck process, which is deaf to signals."""

    async def body() -> None:
        async with node(tmp_path) as one:
            one.reader.order(LINKS, 0.2)
            one.reader.order("nvml_gpu", 5000.0)
            await one.until(of("nvml_gpu"))
            (stuck,) = one.reader.pids()
            one.set_faults("- {fault: driver_hang, gpu: 3}\n")
            hung = await one.until(absent(GPUS[3], "deadline"))
            assert [gap.device for gap in hung.absences] == [GPUS[3]]
            last = [run.blocks[GPUS[0]].time for run in one.kept if GPUS[0] in run.blocks][-1]
            assert time.monotonic() - last >= 0.6
            await one.until(of(LINKS))
            after = (await one.until(of(LINKS)), await one.collect("gpu"))
            for found in after:
                assert sorted(found.blocks) == GPUS[:3] + GPUS[4:]
                assert [gap.device for gap in found.absences] == [GPUS[3]]
            assert one.reader.suspects == {GPUS[3]}
            os.kill(stuck, signal.SIGTERM)
            for _ in range(3):
                await one.until(of(LINKS))
            assert stuck in one.reader.pids()
            assert len(one.reader.pids()) == 2
            assert (one.events.restarts, one.events.stuck) == (["deadline"], [1])

    in_loop(body)


def test_never_more_than_two_processes_hang_and_each_collector_says_so_at_its_interval(tmp_path: Path) -> None:
    """No process is left that could; it is counted as often as it would have been read, and none is started for whoever
    asks in between. A third GPU that hangs changes nothing."""

    async def body() -> None:
        async with node(tmp_path) as one:
            one.reader.order(LINKS, 0.5)
            await one.until(of(LINKS))
            one.set_faults("".join(f"- {{fault: driver_hang, gpu: {gpu}}}\n" for gpu in (1, 2, 5)))
            await one.until(lambda _: one.reader.stuck_count == 2)
            for _ in range(3):
                assert (await one.until(absent("", "deadline"))).blocks == {}
                assert (await one.collect("gpu")).blocks == {}
                assert len(one.reader.pids()) == 2

    in_loop(body)


def test_sampling_that_hangs_is_blamed_on_no_gpu_and_waited_for(tmp_path: Path) -> None:
    """One process at most hangs so: none follows it until its call has come back, and each interval has its absence."""

    async def body() -> None:
        async with node(tmp_path, preset="a10x2", source="nvml_pcie_sampled") as watched:
            assert (await watched.collect("pcie_sampled")).absences == []
            watched.set_faults("- {fault: driver_hang, gpu: 0}\n")
            hung = await watched.collect_until(lambda one: bool(one.absences), "pcie_sampled")
            later = await watched.collect("pcie_sampled")
            assert [(one.device, one.reason) for one in (*hung.absences, *later.absences)] == [("", "deadline")] * 2
            assert watched.reader.suspects == {""}
            assert len(watched.reader.pids()) == watched.reader.stuck_count == 1
            watched.set_faults("[]\n")
            back = await watched.collect_until(lambda one: not one.absences, "pcie_sampled")
            assert {*back.blocks} == {"", "0000:17:00.0", "0000:99:00.0"}

    in_loop(body)


def test_the_end_of_a_worker_is_noticed_and_another_one_runs_what_was_ordered(tmp_path: Path) -> None:
    """At once, long before anything is due; the wait before the replacement is that of a crash."""

    async def body() -> None:
        async with node(tmp_path) as one:
            one.reader.order(LINKS, 5000.0)
            await one.until(of(LINKS))
            os.kill(one.reader.pids()[0], signal.SIGKILL)
            await one.until(absent("", "crashed"))
            assert (await one.until(lambda run: not run.absences)).blocks.keys() == {*GPUS}
            assert one.events.restarts == ["crashed"]

    in_loop(body)


def test_a_suspect_that_is_back_is_one_run_with_the_others(tmp_path: Path) -> None:
    """The stuck process ends by itself when its call returns. Then two processes read, and each run has all GPUs, each
    reading once."""

    async def body() -> None:
        async with node(tmp_path) as one:
            one.reader.order(LINKS, 1.0)
            await one.until(of(LINKS))
            one.set_faults("- {fault: driver_hang, gpu: 3}\n")
            await one.until(absent(GPUS[3], "deadline"))
            one.set_faults("[]\n")
            await one.until(lambda run: len(run.blocks) == 8)
            runs: list[Collected] = []
            for _ in range(20):  # one that a busy machine starves is late
                run = await one.until(of(LINKS))
                runs = [] if run.absences else [*runs, run]
                if len(runs) == 3:
                    break
            assert len(one.reader.pids()) == 2
            assert (one.reader.suspects, one.events.stuck) == (frozenset(), [1, 0])
            assert [(sorted(run.blocks), run.absences) for run in runs] == [(GPUS, [])] * 3
            assert len({run.blocks[GPUS[3]].time for run in runs}) == 3

    in_loop(body)


def test_processes_travel_with_their_collector(tmp_path: Path) -> None:
    """The daemon learns which processes are on which GPU, also from two workers; other collectors say nothing of it."""

    async def body() -> None:
        async with node(tmp_path) as one:
            assert (await one.collect("processes")).occupants == dict.fromkeys(GPUS, ())
            assert (await one.collect("gpu")).occupants is None

            one.set_faults("- {fault: job, gpu: 2, at: 0s}\n- {fault: driver_hang, gpu: 5, at: 0s}")
            await one.collect_until(lambda found: any(absence.reason == "deadline" for absence in found.absences))
            found = (await one.collect("processes")).occupants
            assert found is not None
            assert {gpu for gpu, pids in found.items() if pids} == {GPUS[2]}
            assert set(found) == set(GPUS) - {GPUS[5]}

    in_loop(body)


def test_a_gpu_that_answers_late_again_and_again_stays_one_that_does_not_answer(tmp_path: Path) -> None:
    """Also while its call has come back and its own process waits: it would be missing besides."""

    async def body() -> None:
        async with node(tmp_path) as one:
            await one.collect()
            one.set_faults("- {fault: driver_hang, gpu: 3}\n")
            await one.collect_until(lambda collected: bool(collected.absences))
            one.set_faults("[]\n")
            await one.collect_until(lambda collected: len(collected.blocks) == 8)
            one.set_faults("- {fault: driver_hang, gpu: 3}\n")
            await one.collect_until(lambda collected: bool(collected.absences))
            one.set_faults("[]\n")

            waiting = await one.collect_until(lambda collected: not one.reader.suspects)

            assert [(absence.device, absence.reason) for absence in waiting.absences] == [(GPUS[3], "deadline")]
            await one.reader.stop()

    in_loop(body)


def test_a_gpu_that_was_well_for_long_is_served_with_the_others_again(tmp_path: Path) -> None:
    """Alone it has no peers; one process reads all of them, and the pairs are complete."""
    ahead = 0.0

    async def body() -> None:
        nonlocal ahead
        async with node(tmp_path, monotonic=lambda: time.monotonic() + ahead) as one:
            await one.collect()
            one.set_faults("- {fault: driver_hang, gpu: 3}\n")
            await one.collect_until(lambda collected: bool(collected.absences))
            one.set_faults("[]\n")
            await one.collect_until(lambda collected: len(collected.blocks) == 8)
            assert len((await one.collect("p2p")).blocks) == 7

            ahead = REJOIN_SECONDS - 5
            assert len((await one.collect()).blocks) == 8
            assert len(one.reader.pids()) == 2
            ahead = REJOIN_SECONDS + 1
            assert len((await one.collect()).blocks) == 8
            assert len((await one.collect("p2p")).blocks) == 8
            assert len(one.reader.pids()) == 1
            assert one.events.restarts == ["deadline", "rejoined"]

    in_loop(body)


def test_a_crashed_worker_is_replaced_after_a_while(tmp_path: Path) -> None:
    """Its values are absent, the crash is counted, and with each crash the next process comes later."""

    async def body() -> None:
        now = [1000.0]
        async with node(tmp_path, monotonic=lambda: now[0]) as one:
            for wait in (1.0, 1.0):
                await one.collect()
                os.kill(one.reader.pids()[0], signal.SIGKILL)
                crashed = await one.collect()
                assert [absence.reason for absence in crashed.absences] == ["crashed"]
                now[0] += wait - 0.01
                assert (await one.collect()).blocks == {}
                now[0] += 0.01
                assert sorted((await one.collect()).blocks) == GPUS
            assert one.events.restarts == ["crashed", "crashed"]
            await one.reader.stop()

    in_loop(body)


def test_two_collectors_at_once_share_one_worker_and_one_hang(tmp_path: Path) -> None:
    """The collector that waited for its turn is answered by the replacement."""

    async def body() -> None:
        async with node(tmp_path) as one:
            await asyncio.gather(one.collect("nvlink"), one.collect("pcie"), one.collect("gpu"))
            one.set_faults("- {fault: driver_hang, gpu: 7}\n")
            await asyncio.sleep(0.3)  # the simulated node looks at its file every 0.25 s

            results = await asyncio.gather(one.collect("nvlink"), one.collect("pcie"), one.collect("gpu"))

            assert one.reader.stuck_count == 1
            assert sorted(len(result.blocks) for result in results) == [0, 7, 7]

    in_loop(body)


def test_a_lost_gpu_is_looked_for_again_by_a_new_process(tmp_path: Path) -> None:
    """A handle of a lost GPU stays dead, so a new process is started, later each time."""

    async def body() -> None:
        now = [1000.0]
        async with node(tmp_path, monotonic=lambda: now[0]) as one:
            await one.collect()
            one.set_faults("- {fault: gpu_lost, gpu: 2}\n")
            lost = await one.collect_until(lambda collected: bool(collected.absences))
            assert [(absence.device, absence.reason) for absence in lost.absences] == [(GPUS[2], "lost")]
            one.set_faults("[]\n")
            await asyncio.sleep(0.3)

            assert len((await one.collect()).blocks) == 7
            now[0] += 30
            await one.collect()
            assert one.events.restarts == ["device_lost"]
            assert len((await one.collect()).blocks) == 8

            # A new process finds the GPU lost before it knows its address: it is the same GPU all the same.
            one.set_faults("- {fault: gpu_lost, gpu: 2}\n")
            await one.collect_until(lambda collected: bool(collected.absences))
            now[0] += 60
            await one.collect()
            again = await one.collect()
            assert one.events.restarts == ["device_lost", "device_lost"]
            assert [(absence.device, absence.reason) for absence in again.absences] == [(GPUS[2], "lost")]
            await one.reader.stop()

    in_loop(body)


def test_a_gpu_that_is_not_listed_is_looked_for_by_a_new_process(tmp_path: Path) -> None:
    """5 s after it was missed: the driver may have been opened while the GPU was bound to it. Another collector, which
    does not look at it, puts nothing off."""

    async def body() -> None:
        now = [1000.0]
        async with node(tmp_path, monotonic=lambda: now[0]) as one:
            for address in GPUS:
                device = tmp_path / "sysfs/bus/pci/devices" / address
                device.mkdir(parents=True)
                (device / "class").write_text("0x030200\n")
                (device / "vendor").write_text("0x10de\n")
                (device / "driver").symlink_to("../../drivers/nvidia")
            one.set_faults("- {fault: gpu_not_started, gpu: 2, at: 0s}\n")
            await asyncio.sleep(0.3)
            found = await one.collect("identity")
            assert [(absence.device, absence.reason) for absence in found.absences] == [(GPUS[2], "not_listed")]
            now[0] += 4.9
            await asyncio.gather(one.collect("nvlink"), one.collect("gpu"))
            assert one.events.restarts == []

            now[0] += 0.2
            await one.collect("nvlink")
            await one.collect("gpu")
            assert one.events.restarts == ["device_lost"]
            await one.reader.stop()

    in_loop(body)


def test_a_source_that_is_not_there_is_tried_again_later(tmp_path: Path) -> None:
    """Without a driver the process ends, and a later one finds the driver that was installed meanwhile."""

    async def body() -> None:
        now = [1000.0]
        settings = ReaderSettings(WorkerPlan("nvml", ("nvml",), rest_when_unavailable=True), 2, 15)
        events = Events()
        reader = Reader(settings, events, lambda: now[0])
        for _ in range(2):
            found = await reader.now("nvml_identity")
            assert found.unavailable is not None
            assert [gap.reason for gap in found.absences] == ["no_driver"]
            while reader.pids():
                await asyncio.sleep(0.01)
        assert events.restarts == []
        await reader.stop()

    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    in_loop(body)


def test_a_stuck_process_gets_no_signal_while_it_is_in_the_kernel(tmp_path: Path) -> None:
    """Not before 150 s, never in state D; after that TERM, and KILL ten seconds later."""
    procfs = tmp_path / "proc"

    def state(pid: int, letter: str) -> None:
        task = procfs / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "stat").write_text(f"{pid} (python) {letter} " + "0 " * 40)

    async def body() -> None:
        now = [1000.0]
        async with node(tmp_path, monotonic=lambda: now[0], procfs=procfs) as one:
            await one.collect()
            (pid,) = one.reader.pids()
            one.set_faults("- {fault: driver_hang, gpu: 3}\n")
            await one.collect_until(lambda collected: bool(collected.absences))

            def alive() -> bool:
                return process_state(PROC, pid) not in (None, "Z")

            state(pid, "D")
            now[0] += SIGNAL_AFTER_SECONDS + 100
            for _ in range(3):
                one.reader.tend()
                now[0] += 20
            assert alive()
            state(pid, "S")
            one.reader.tend()  # TERM, to which it is deaf
            now[0] += KILL_AFTER_SECONDS - 0.1
            one.reader.tend()
            assert alive()
            now[0] += 0.1
            one.reader.tend()
            while alive():
                await asyncio.sleep(0.01)
            one.reader.tend()
            assert one.reader.stuck_count == 0
            await one.reader.stop()

    in_loop(body)


def test_the_suspect_is_left_out_after_the_indexes_have_moved(tmp_path: Path) -> None:
    """A card is gone and the later ones have moved up: the replacement leaves the right one alone."""

    async def body() -> None:
        async with node(tmp_path) as one:
            await one.collect()
            one.set_faults("- {fault: gpu_missing, gpu: 2}\n")
            await asyncio.sleep(0.3)
            await one.reader.release()
            await one.collect_until(lambda collected: len(collected.blocks) == 7)
            one.set_faults("- {fault: gpu_missing, gpu: 2}\n- {fault: driver_hang, gpu: 7}\n")
            await one.collect_until(lambda collected: bool(collected.absences))

            for _ in range(3):
                collected = await one.collect()

            assert sorted(collected.blocks) == [GPUS[place] for place in (0, 1, 3, 4, 5, 6)]
            assert one.reader.stuck_count == 1

    in_loop(body)


def test_a_release_during_a_hang_counts_one_process_and_blames_its_gpu(tmp_path: Path) -> None:
    """Afterwards the other GPUs are read, and only the hung one stays out."""

    async def body() -> None:
        async with node(tmp_path) as one:
            await one.collect()
            one.set_faults("- {fault: driver_hang, gpu: 5}\n")
            under_way = asyncio.create_task(one.collect_until(lambda collected: bool(collected.absences)))
            (worker,) = [slot.worker for slot in one.reader._slots() if slot.worker is not None]

            def hangs() -> bool:
                """It sleeps in a call into that GPU; one that reads it computes, or waits for a core."""
                return worker._mark.get() == GPUS[5] and process_state(PROC, worker.process.pid) == "S"

            while not (hangs() and hangs()):
                await asyncio.sleep(0)

            assert await one.reader.release(0.2) is False

            assert [absence.reason for absence in (await under_way).absences] in (["crashed"], ["deadline"])
            assert one.reader.stuck_count == 1
            assert one.reader.suspects == {GPUS[5]}
            # The next process may take as long to start as the machine lets it.
            one.reader.settings = replace(
                one.reader.settings, deadline=PATIENCE_SECONDS, start_deadline=PATIENCE_SECONDS
            )
            after = await one.collect()
            assert sorted(after.blocks) == GPUS[:5] + GPUS[6:]
            assert "crashed" not in one.events.restarts

    in_loop(body)


def test_another_reader_takes_over_what_hangs(tmp_path: Path) -> None:
    """After a change of the configuration the GPU that hangs is left alone as before, and no second process hangs."""

    async def body() -> None:
        async with node(tmp_path) as one:
            await one.collect()
            one.set_faults("- {fault: driver_hang, gpu: 5}\n")
            await one.collect_until(lambda collected: bool(collected.absences))
            earlier = one.reader
            await earlier.stop(0.2)
            events = Events()
            one.reader = Reader(earlier.settings, events)
            one.reader.take_over(earlier)

            assert (set(one.reader.suspects), events.stuck) == ({GPUS[5]}, [1])
            assert sorted((await one.collect()).blocks) == GPUS[:5] + GPUS[6:]
            assert one.reader.stuck_count == 1

    in_loop(body)


def interfaces(sysfs: Path, names: Iterable[str]) -> None:
    """Make these the interfaces of a tree of sysfs."""
    root = sysfs / "class/net"
    shutil.rmtree(root, ignore_errors=True)
    for name in names:
        (root / name / "statistics").mkdir(parents=True)
        (root / name / "statistics/rx_bytes").write_text("1\n")


@asynccontextmanager
async def network_reader(sysfs: Path) -> AsyncIterator[tuple[Reader, Events]]:
    """A reader of all interfaces of a tree."""
    events = Events()
    settings = section_json(Sources(network=NetworkSection(physical_only=False)))
    reader = Reader(ReaderSettings(WorkerPlan("host", ("network",), settings, str(sysfs)), 5, 10), events)
    try:
        yield reader, events
    finally:
        await reader.stop()


def test_interfaces_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """On a node whose interfaces come and go neither process grows; one that comes back is read as before."""

    async def body() -> None:
        async with network_reader(tmp_path) as (reader, _):

            def remembered() -> set[str]:
                worker = reader._main.worker
                assert worker is not None
                return set(worker._expected["network"].layouts)

            for run in range(4):
                interfaces(tmp_path, ["eth0", *(f"veth{run}x{number}" for number in range(50))])
                assert len((await reader.now("network")).blocks) == 52
                assert len(remembered()) == 52
            interfaces(tmp_path, ["eth0", "veth0x0"])
            again = await reader.now("network")
            assert again.blocks["veth0x0"].get("commwatch_ethernet_receive_bytes_total", "veth0x0") == 1
            assert remembered() == {"", "eth0", "veth0x0"}

    in_loop(body)


def test_only_a_driver_is_opened_anew_for_a_lost_device(tmp_path: Path) -> None:
    """An interface that is gone has no handle that could be dead: its process goes on."""

    async def body() -> None:
        interfaces(tmp_path, ["eth0"])
        async with network_reader(tmp_path) as (reader, events):
            now = [1000.0]
            reader._monotonic = lambda: now[0]
            await reader.now("network")
            (tmp_path / "class/net/eth0/statistics/rx_bytes").unlink()
            for _ in range(3):
                collected = await reader.now("network")
                assert [one.reason for one in collected.absences] == ["not_found"]
                now[0] += 100
            assert events.restarts == []

    in_loop(body)


def test_a_process_that_cannot_be_started_is_an_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory or no process left: nothing leaks, and it is tried again later."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def body() -> None:
        now = [1000.0]
        async with node(tmp_path, monotonic=lambda: now[0]) as one:
            with monkeypatch.context() as patch:
                patch.setattr("commwatch.children.subprocess.Popen", refuse)
                open_before = len(os.listdir("/proc/self/fd"))
                for _ in range(3):
                    assert [absence.reason for absence in (await one.collect()).absences] == ["crashed"]
                    now[0] += 100
                assert len(os.listdir("/proc/self/fd")) == open_before
            assert sorted((await one.collect()).blocks) == GPUS

    in_loop(body)
