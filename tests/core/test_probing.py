"""When probes run: skips, retries, the spread over the interval, ageing, restarts, and one cycle at a time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from commwatch import config, gpu_view, probe_node, probe_topology, probing
from commwatch.config import DAY, DEFAULT_PROBES, Config, Duration, Paths, Probe, Probes
from commwatch.probe_node import ReadNode
from commwatch.probes.hold import HoldFile
from commwatch.probes.launch import Launcher, Progress, StuckRank
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, Skipped, StepOutcome, Yielded
from commwatch.probes.watch import Halt, Watch
from commwatch.probing import Probing
from commwatch.state import StateDirectory
from commwatch.store import Store
from commwatch.thresholds import load_thresholds
from commwatch.topology.sysfs import SysfsFacts
from commwatch.workers.wire import SimulationPlan
from commwatch_exporters.node_page.records import ProbeStatus
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, Clock, PlannedJobs, block, in_loop

KEY = ("ring", "simulated")
OF_LAST_RESULT = ("last_latency_seconds", "last_bus_bandwidth_bytes_per_second", "setup_seconds")


class ScriptedLauncher(Launcher):
    """A launcher without ranks: each cycle gives a good result, unless the test says otherwise."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.plans: list[CyclePlan] = []
        self.halts: list[Halt | None] = []
        """What the watch said at the first look of each cycle."""
        self.results: list[Callable[[], CycleResult]] = []
        """Results of the next cycles, in place of good ones."""
        self.gate: asyncio.Event | None = None
        """A cycle ends when this is set; None: at once."""
        self.under_way = 0
        self.most_at_once = 0
        self.left_behind: tuple[StuckRank, ...] = ()
        self._clock = clock

    @property
    def stuck_ranks(self) -> tuple[StuckRank, ...]:
        return self.left_behind

    async def run(self, plan: CyclePlan, watch: Watch, progress: Progress | None = None) -> CycleResult:
        self.plans.append(plan)
        self.halts.append(await watch(frozenset()))
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await (self.gate.wait() if self.gate is not None else asyncio.sleep(0))
        self.under_way -= 1
        return self.results.pop(0)() if self.results else self.good()

    def good(self, latency: float = 1e-3) -> Measured:
        seconds = {"latency": latency, "bandwidth": 1e-2}
        plan = self.plans[-1]
        return Measured(
            finished_at=self._clock.time(), occupied_seconds=1.0, setup_seconds=3.0,
            outcomes=tuple(
                StepOutcome(
                    step=step,
                    seconds=tuple(seconds[step.purpose] if rank in step.clocks else None for rank in range(plan.ranks)),
                )
                for step in plan.steps
            ),
        )  # fmt: skip

    def slow(self) -> Measured:
        """Above the absolute limit of these probes."""
        return self.good(latency=0.5)

    def failed(self) -> Failed:
        return Failed(finished_at=self._clock.time(), occupied_seconds=1.0, reason="nccl_error", detail="rank 1: gone")


class Node:
    """A simulated node with two free GPUs and its probes; or a ``real`` one; or a real one without GPUs."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        launcher: ScriptedLauncher,
        *,
        real: bool = False,
        gpu_less: bool = False,
        **limits: object,
    ) -> None:
        self.folder, self.clock, self.launcher = folder, clock, launcher
        self.store, self.jobs = Store(), PlannedJobs()
        self.gpu_reads = 0
        self.processes: tuple[int, ...] = ()
        """On both GPUs."""
        self.readable = True
        """Whether the readings of the GPUs succeed."""
        self.before_read: Callable[[int], None] = lambda number: None
        """Called with the number of each reading of the GPUs, first 1."""
        probe = Probe(interval=Duration(limits.pop("interval", 900)), latency_limit=Duration(0.1))  # type: ignore[arg-type]  # a number
        definitions = limits.pop("definitions", {"ring": probe})
        settings = Config(
            paths=Paths(procfs=str(folder / "proc"), sysfs=str(folder / "sys")),
            probes=Probes(definitions=definitions, **limits),  # type: ignore[arg-type]  # fields by name
        )
        (folder / "proc/self/ns").mkdir(parents=True, exist_ok=True)
        if real:
            (folder / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
        if not gpu_less:
            self.set_gpus()
        self.probing = Probing(
            settings, load_thresholds(None), StateDirectory(folder), self.store, self.jobs,
            None if real or gpu_less else SimulationPlan("h100x8", "", 0.0, "", ""),
            ReadNode(lambda: not gpu_less, self._read_gpus, self._read_processes, lambda: 0),
        )  # fmt: skip

    async def _read_gpus(self) -> None:
        self.gpu_reads += 1
        self.before_read(self.gpu_reads)
        if self.readable:
            self.set_gpus(**self.changes)

    async def _read_processes(self) -> None:
        if self.readable:
            self.set_gpus(**self.changes)

    def set_gpus(self, **changes: Value) -> None:
        """What is read of both GPUs: free, but for the changes."""
        self.changes = changes
        for index, slot in enumerate(SLOTS):
            gpu = (str(index), slot)
            free: dict[str, Value] = {
                "busy": 0, "compute_processes": 0, "memory_used_bytes": 0, "compute_mode": 0, "mig_mode": 0
            }  # fmt: skip
            values: dict[Series, Value] = {
                (f"commwatch_gpu_{name}", gpu): value for name, value in (free | changes).items()
            }
            self.store.put("nvml_gpu", slot, block(values, self.clock.now), float("inf"))
            self.store.put("nvml_processes", slot, block({}, self.clock.now), float("inf"))
            self.store.occupants = dict.fromkeys(SLOTS, self.processes)
            info: dict[Series, Value] = {("commwatch_gpu_info", (*gpu, f"GPU-{index}", "1", "H100", "hopper")): 1}
            self.store.put("nvml_identity", slot, block(info), float("inf"))

    def cycle(self, times: int = 1, name: str = "ring") -> None:
        """Run a probe when it is due."""
        for _ in range(times):
            in_loop(lambda: self.probing.run(name))

    def value(self, metric: str, *labels: str) -> Value:
        return self.store.snapshot().value(f"commwatch_probe_{metric}", *KEY, *labels)

    def status(self) -> ProbeStatus:
        (one,) = self.probing.status(self.clock.time())
        return one


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the probes; two looks at the GPUs follow each other at once."""
    moved = Clock()
    monkeypatch.setattr(probing, "time", moved)
    monkeypatch.setattr(probe_node, "time", moved)
    monkeypatch.setattr(gpu_view, "BUSY_SAMPLES_APART_SECONDS", 0.0)
    monkeypatch.setattr(probe_topology, "ask_sysfs", lambda *_: SysfsFacts((), (), None, ()))
    return moved


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> ScriptedLauncher:
    """The launcher that probes are given here."""
    one = ScriptedLauncher(clock)
    monkeypatch.setattr(probing, "Launcher", lambda procfs, lock: one)
    return one


@pytest.fixture
def node(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> Node:
    """A node with one probe, ``ring``, every 15 minutes."""
    return Node(tmp_path, clock, launcher)


def test_a_free_node_is_measured(node: Node) -> None:
    """The cycle gets the GPUs by UUID, and its result is on the page."""
    with capture_logs() as events:
        node.cycle()

    (plan,) = node.launcher.plans
    assert (plan.probe, plan.backend, plan.devices, plan.ranks) == ("ring", "simulated", ("GPU-0", "GPU-1"), 2)
    assert (node.value("attempts_total"), node.value("last_latency_seconds")) == (1, 1e-3)
    assert node.value("last_completion_timestamp_seconds") == node.clock.time()
    assert node.value("gpu_occupied_seconds_total") == 2.0
    assert [(event["event"], event["probe"]) for event in events] == [("probe measured", "ring")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"busy": 1}, "gpu_busy"),
        ({"compute_processes": 1}, "gpu_busy"),
        ({"memory_used_bytes": 2**30}, "gpu_memory_used"),
        ({"compute_mode": 3}, "compute_mode"),
        ({"compute_mode": 17}, "compute_mode"),
        ({"mig_mode": 1}, "mig"),
        ({"busy": None}, "gpu_unknown"),
        ({"mig_mode": None}, "gpu_unknown"),
    ],
)
def test_what_was_read_of_the_gpus_closes_the_gate(node: Node, changes: dict[str, Value], reason: str) -> None:
    """A GPU that is used, restricted or not known to be free starts no rank, and the skip has its reason."""
    node.set_gpus(**changes)

    node.cycle()

    assert node.launcher.plans == []
    assert (node.value("skips_total", reason), node.value("attempts_total")) == (1, 0)
    assert node.status().skip_reason.startswith(f"{reason}: GPU {SLOTS[0]} ")


def test_a_gpu_of_which_nothing_is_current_is_not_free(node: Node) -> None:
    """The readings of the driver's collector have grown old: that is no leave to probe."""
    node.readable = False
    node.clock.now += 0.001

    node.cycle()

    assert (node.launcher.plans, node.value("skips_total", "gpu_unknown")) == ([], 1)


def test_a_gpu_that_cannot_be_split_needs_no_mig_mode(node: Node) -> None:
    """Where the driver has no such counter at all, what is not read is known to be off."""
    node.set_gpus(mig_mode=None)
    unsupported = block({("commwatch_counter_state", ("nvml", "mig_mode")): 1})
    node.store.put("nvml_identity", "", unsupported, float("inf"))

    node.cycle()

    assert node.value("attempts_total") == 1


def test_memory_of_a_display_is_no_job(node: Node) -> None:
    """Less than 1 GiB in use is still free."""
    node.set_gpus(memory_used_bytes=2**30 - 1)

    node.cycle()

    assert node.value("attempts_total") == 1


@pytest.mark.parametrize("busy_at", [1, 2])
def test_the_gpus_must_be_idle_at_two_looks(node: Node, busy_at: int) -> None:
    """Work at either of two samples, taken anew for this cycle, is work."""
    node.before_read = lambda number: node.set_gpus(busy=int(number == busy_at))

    node.cycle()

    assert (node.gpu_reads, node.launcher.plans) == (2, [])
    assert node.value("skips_total", "gpu_busy") == 1


def test_skips_are_counted_and_logged_once_per_change(node: Node) -> None:
    """A night beside a job is one event of the log; another reason, and the same one after a result, are new ones."""
    with capture_logs() as events:
        node.set_gpus(busy=1)
        node.cycle(times=3)
        node.set_gpus(memory_used_bytes=2**34)
        node.cycle(times=2)
        node.set_gpus()
        node.cycle()
        node.set_gpus(memory_used_bytes=2**34)
        node.cycle(times=2)

    assert [(event["event"], event.get("reason")) for event in events] == [
        ("probe skipped", "gpu_busy"),
        ("probe skipped", "gpu_memory_used"),
        ("probe measured", None),
        ("probe skipped", "gpu_memory_used"),
    ]
    assert (node.value("skips_total", "gpu_busy"), node.value("skips_total", "gpu_memory_used")) == (3, 4)
    assert node.value("attempts_total") == 1


def test_maintenance_starts_no_cycle(node: Node) -> None:
    """During a pause cycles are skips; afterwards they run again."""
    node.probing.pause("driver-upgrade")
    node.cycle(times=2)
    assert (node.launcher.plans, node.value("skips_total", "maintenance")) == ([], 2)
    assert node.status().skip_reason == "maintenance: the daemon is paused: driver-upgrade"

    node.probing.resume()
    node.cycle()

    assert (len(node.launcher.plans), node.value("skips_total", "maintenance")) == (1, 2)
    assert node.status().skip_reason == ""


def test_a_pause_between_the_looks_at_the_gpus_counts(node: Node) -> None:
    """A pause that begins while a cycle is being prepared holds it back."""
    node.before_read = lambda number: node.probing.pause("swap")

    node.cycle()

    assert (node.launcher.plans, node.value("skips_total", "maintenance")) == ([], 1)


def test_a_stuck_rank_holds_further_cycles_back(node: Node) -> None:
    """No rank is started beside one that sits in the kernel; the GPU is named until it is back."""
    node.launcher.left_behind = (StuckRank(4711, "GPU-1"),)
    node.cycle()
    node.probing.refresh()
    assert (node.launcher.plans, node.value("skips_total", "previous_stuck")) == ([], 1)
    assert node.status().skip_reason.endswith("rank process 4711 on GPU-1")
    assert node.probing.stuck_count == 1

    node.launcher.left_behind = ()
    with capture_logs() as events:
        node.probing.refresh()
    node.cycle()
    assert [(event["event"], event["pid"], event["device"]) for event in events] == [
        ("a stuck rank has ended", 4711, "GPU-1")
    ]
    assert len(node.launcher.plans) == 1


def test_a_cycle_that_breaks_off_is_a_failure_and_not_the_last(node: Node) -> None:
    """A defect of ours, or of the machine, is counted and logged, and the next cycle comes soon."""

    def break_off() -> CycleResult:
        raise RuntimeError("no such luck")

    node.launcher.results = [break_off]
    with capture_logs() as events:
        node.cycle()

    assert (node.value("attempts_total"), node.value("failures_total", "internal")) == (1, 1)
    assert ("a probe's ranks broke off", "error") in [(event["event"], event["log_level"]) for event in events]
    assert node.status().last_result == "failed: internal (RuntimeError: no such luck)"
    assert node.jobs.moved == [("probe_ring", 30.0)]
    node.cycle()
    assert (node.value("attempts_total"), node.value("last_latency_seconds")) == (2, 1e-3)


def test_a_node_that_cannot_be_asked_is_a_failure_and_not_the_last(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what breaks before any rank has started."""
    with monkeypatch.context() as broken:
        broken.setattr(probe_topology.ProbeTopology, "read", lambda *_: 1 / 0)
        node.cycle()
    assert (node.launcher.plans, node.value("failures_total", "internal")) == ([], 1)
    assert node.jobs.moved == [("probe_ring", 30.0)]

    node.cycle()
    assert len(node.launcher.plans) == 1


@pytest.mark.parametrize("measure", ["all_reduce", "host_copies"])
@pytest.mark.parametrize("gpus", [(5,), (0, 5)])
def test_gpus_that_are_not_here_start_no_rank(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher, measure: str, gpus: tuple[int, ...]
) -> None:
    """A probe is not run over fewer GPUs than it names; the skip names the GPU."""
    probe = Probe(measure=measure, gpus=gpus, ranks=2)  # type: ignore[arg-type]  # a measure
    node = Node(tmp_path, clock, launcher, definitions={"ring": probe})

    node.cycle()

    assert (launcher.plans, node.value("skips_total", "gpu_unknown")) == ([], 1)
    assert node.status().skip_reason == "gpu_unknown: the probe names GPU 5, which the driver does not have"


def test_a_node_without_gpus_shows_no_failures(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> None:
    """Of the default probes all but the copies from and to GPUs run over gloo between two ranks of the host."""
    node = Node(tmp_path, clock, launcher, definitions=dict(DEFAULT_PROBES), gpu_less=True)

    for name in DEFAULT_PROBES:
        node.cycle(name=name)

    assert [plan.probe for plan in launcher.plans] == [name for name in DEFAULT_PROBES if name != "host_copies"]
    assert {(plan.backend, plan.ranks, plan.gpus) for plan in launcher.plans} == {("gloo", 2, 0)}
    assert all(plan.steps for plan in launcher.plans)
    assert node.gpu_reads == 0
    snapshot = node.store.snapshot()
    assert {value for _, value in snapshot.samples("commwatch_probe_failures_total")} == {0}
    skips = {(labels["probe"], labels["reason"]): value
             for labels, value in snapshot.samples("commwatch_probe_skips_total") if value}  # fmt: skip
    assert skips == {("host_copies", "no_gpu_backend"): 1}
    # The frequent one finds its place in the interval; what cannot run here is tried again, should a GPU come.
    assert [job for job, _ in node.jobs.moved] == ["probe_all_reduce", "probe_host_copies"]


def test_a_job_on_the_gpus_does_not_hold_back_what_needs_none(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher
) -> None:
    """What was found of the GPUs for one daily probe says nothing of one over gloo."""
    definitions = {"fabric": Probe(interval=DAY), "host": Probe(interval=DAY, backend="gloo")}
    node = Node(tmp_path, clock, launcher, definitions=definitions, real=True)
    node.set_gpus(busy=1)

    node.cycle(name="fabric")
    node.cycle(name="host")

    assert [plan.probe for plan in launcher.plans] == ["host"]


def test_a_probe_of_some_gpus_has_the_budget_of_the_node(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher
) -> None:
    """What the others took on all GPUs does not shut it out for good."""
    definitions = {"all": Probe(), "one": Probe(measure="host_copies", gpus=(0,))}
    node = Node(tmp_path, clock, launcher, definitions=definitions)  # 288 GPU seconds in 4 hours
    launcher.results = [lambda: Failed(
        finished_at=clock.time(), occupied_seconds=100.0, reason="crashed", detail="")]  # fmt: skip

    node.cycle(name="all")  # 200 of them
    node.cycle(name="one")

    assert [plan.probe for plan in launcher.plans] == ["all", "one"]


def test_nobody_is_asked_where_the_answer_would_not_count(node: Node) -> None:
    """A held or paused node is not looked at: its driver may just be changed."""
    node.probing.pause("driver-upgrade")
    node.cycle()
    node.probing.resume()
    HoldFile(node.folder).hold(60.0, node.clock.time())
    node.cycle()

    assert node.gpu_reads == 0


def test_a_cycle_that_gave_way_is_neither_attempt_nor_failure(node: Node) -> None:
    """It is counted by its reason, and there is no hurry to look again."""
    node.launcher.results = [
        lambda: Yielded(
            finished_at=node.clock.time(), occupied_seconds=1.0, reason="process_appeared", detail="process 7 came"
        )
    ]
    with capture_logs() as events:
        node.cycle()

    assert (node.value("yields_total", "process_appeared"), node.value("attempts_total")) == (1, 0)
    assert node.value("gpu_occupied_seconds_total") == 2.0
    assert [(event["event"], event.get("reason")) for event in events] == [("probe gave way", "process_appeared")]
    assert node.jobs.moved == []


def test_ranks_that_cannot_run_here_are_a_skip(node: Node) -> None:
    """What a rank finds out counts as if it had been known before."""
    node.launcher.results = [lambda: Skipped(finished_at=node.clock.time(), reason="no_torch", detail="not installed")]

    node.cycle()

    assert (node.value("attempts_total"), node.status().skip_reason) == (0, "no_torch: not installed")


def test_the_cycle_is_watched(node: Node) -> None:
    """A process on a GPU of this node halts it; the ranks' own ones do not."""
    node.cycle()
    node.processes = (4711,)
    node.set_gpus()
    node.cycle()

    assert node.launcher.halts == [None, Halt("process_appeared", f"process 4711 came to GPU {SLOTS[0]}")]


def test_a_held_node_starts_no_cycle(node: Node) -> None:
    """A prolog has asked for the GPUs; afterwards probes go on by themselves."""
    HoldFile(node.folder).hold(60.0, node.clock.time())
    node.cycle()
    assert (node.launcher.plans, node.value("skips_total", "yielded")) == ([], 1)

    node.clock.now += 61
    node.cycle()
    assert len(node.launcher.plans) == 1


def test_a_daily_probe_does_not_wait_a_day_for_a_free_node(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher
) -> None:
    """It tries again within a quarter of an hour; the node is asked once for all probes that wait."""
    node = Node(tmp_path, clock, launcher, definitions={"one": Probe(interval=DAY), "two": Probe(interval=DAY)})
    node.set_gpus(busy=1)

    node.cycle(name="one")
    node.cycle(name="two")

    assert node.gpu_reads == 2  # both looks were for the first
    assert {job for job, delay in node.jobs.moved if delay <= 960} == {"probe_one", "probe_two"}
    clock.now += 60
    node.set_gpus()
    node.cycle(name="two")
    assert [plan.probe for plan in launcher.plans] == ["two"]


def test_occupancy_is_kept_within_its_budget(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> None:
    """Cycles stop when the GPUs' share is used up, and go on when the window has moved on."""
    node = Node(tmp_path, clock, launcher, occupancy_limit=0.002)  # 57.6 GPU seconds in 4 hours
    launcher.results = [lambda: Failed(
        finished_at=clock.time(), occupied_seconds=15.0, reason="crashed", detail="")] * 2  # fmt: skip

    node.cycle(times=2)
    assert (node.value("attempts_total"), node.value("skips_total", "budget")) == (1, 1)

    clock.now += 4 * 3600 + 1
    node.cycle()
    assert node.value("attempts_total") == 2


@pytest.mark.parametrize("bad", ["slow", "failed"])
def test_a_suspicious_result_brings_the_next_cycle_forward_at_most_twice_an_hour(node: Node, bad: str) -> None:
    """To 30 s, so that three in a row are seen within minutes; then the interval holds until the hour is over."""
    node.launcher.results = [getattr(node.launcher, bad)] * 6
    early = ("probe_ring", 30.0)

    node.cycle()
    assert node.jobs.moved == [early]
    node.clock.now += 30
    node.cycle()
    assert node.jobs.moved == [early, early]

    node.jobs.moved.clear()
    node.clock.now += 30
    node.cycle()
    assert early not in node.jobs.moved
    node.jobs.moved.clear()
    node.clock.now += 3600 - 60 - 1
    node.cycle()
    assert node.jobs.moved == []
    node.clock.now += 1  # an hour after the first
    node.cycle()
    assert node.jobs.moved == [early]
    node.cycle()
    assert node.jobs.moved == [early]


def test_a_good_result_needs_no_second_look(node: Node) -> None:
    """Nothing is brought forward after a good cycle, nor by a skip of its own."""
    node.cycle()
    node.jobs.moved.clear()

    node.cycle()
    node.set_gpus(busy=1)
    node.cycle()

    assert node.jobs.moved == []


def test_a_probe_that_is_due_soon_anyway_is_not_moved(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> None:
    """An interval of 30 s is never made longer by the retry."""
    node = Node(tmp_path, clock, launcher, interval=30)
    launcher.results = [launcher.failed] * 2
    node.cycle(times=2)

    assert ("probe_ring", 30.0) not in node.jobs.moved[1:]
    assert len(node.jobs.moved) == 1  # the spread after the first cycle


def test_nodes_part_company_after_their_first_cycle(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that boot together do not probe together: each has its own time in the second half of the interval."""
    delays = []
    for number in range(20):
        monkeypatch.setattr(socket, "gethostname", lambda number=number: f"node{number}")
        (tmp_path / str(number)).mkdir()
        node = Node(tmp_path / str(number), clock, launcher)
        node.cycle(times=3)
        ((job, delay),) = node.jobs.moved
        assert job == "probe_ring"
        delays.append(delay)

    assert all(450 <= delay <= 900 for delay in delays)
    assert len(set(delays)) == 20
    assert max(delays) - min(delays) > 225


def test_a_suspicious_first_result_comes_before_the_spread(node: Node) -> None:
    """The second look is taken first; the time of one's own follows the first good cycle."""
    node.launcher.results = [node.launcher.failed]

    node.cycle(times=2)

    assert [delay == 30.0 for _, delay in node.jobs.moved] == [True, False]
    assert 450 <= node.jobs.moved[1][1] <= 900


@pytest.mark.parametrize(("interval", "age"), [(900, 2700), (60, 1800)])
def test_results_age(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher, interval: int, age: int) -> None:
    """After three intervals, and not before half an hour, only the time of the last completion is left."""
    node = Node(tmp_path, clock, launcher, interval=interval)
    node.cycle()
    completed = clock.time()

    clock.now += age
    node.probing.refresh()
    assert None not in [node.value(name) for name in OF_LAST_RESULT]
    assert node.status().last_result == "latency 1 ms, bus bandwidth 6.71 GB/s"

    clock.now += 0.5
    node.probing.refresh()
    assert [node.value(name) for name in OF_LAST_RESULT] == [None] * len(OF_LAST_RESULT)
    assert node.value("last_completion_timestamp_seconds") == completed
    assert node.value("attempts_total") == 1
    status = node.status()
    assert (status.last_result, status.age_seconds) == ("", age + 0.5)


def test_the_history_survives_a_restart(node: Node) -> None:
    """A new daemon shows the last result before its first cycle; its counters begin at 0."""
    node.cycle(times=2)
    node.clock.now += 60

    again = Node(node.folder, node.clock, node.launcher)
    again.probing.schedule()

    assert again.value("last_latency_seconds") == 1e-3
    assert again.value("last_completion_timestamp_seconds") == node.clock.time() - 60
    assert again.value("attempts_total") == 0
    assert again.status().age_seconds == 60


def test_a_streak_goes_on_over_a_restart(node: Node) -> None:
    """Two slow results before the restart and one after it are three in a row."""
    node.launcher.results = [node.launcher.slow] * 3
    node.cycle(times=2)

    again = Node(node.folder, node.clock, node.launcher)
    again.cycle()

    assert again.value("latency_spike_streak") == 3


def test_a_history_of_another_backend_is_not_continued(node: Node, launcher: ScriptedLauncher) -> None:
    """A name that stands for gloo results stays theirs; the skip says so."""
    file = node.folder / "probe-ring.json"
    node.cycle()
    file.write_text(file.read_text().replace('"simulated"', '"gloo"'))
    launcher.plans.clear()

    again = Node(node.folder, node.clock, launcher)
    again.cycle()

    assert launcher.plans == []
    assert again.status().skip_reason.startswith("backend_changed: this name stands for results of gloo")


def test_one_cycle_at_a_time(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> None:
    """Two probes that are due together follow each other."""
    node = Node(tmp_path, clock, launcher, definitions={"ring": Probe(), "large": Probe()})

    async def body() -> None:
        launcher.gate = asyncio.Event()
        runs = [asyncio.create_task(node.probing.run(name)) for name in ("ring", "large")]
        while not launcher.plans:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # time enough for a second cycle to begin, if it could
        assert [plan.probe for plan in launcher.plans] == ["ring"]
        launcher.gate.set()
        await asyncio.gather(*runs)

    in_loop(body)

    assert [plan.probe for plan in launcher.plans] == ["ring", "large"]
    assert launcher.most_at_once == 1


def test_probes_are_planned_and_shown_before_their_first_cycle(node: Node) -> None:
    """Counters stand at 0 from the start, so that the first failure is an increase."""
    node.probing.schedule()
    node.jobs.planned["probe_ring"] = node.clock.time() + 10

    assert node.jobs.jobs == {"probe_ring": (900.0, 10.0)}
    assert node.value("failures_total", "nccl_error") == 0
    assert node.value("last_latency_seconds") is None
    assert node.status() == ProbeStatus(
        name="ring", backend="simulated", last_result="", age_seconds=None, next_run_seconds=10.0, skip_reason=""
    )


@pytest.mark.parametrize("limits", [{"enabled": False}, {"gate": "off"}])
def test_probes_that_are_switched_off_are_not_planned(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher, limits: dict[str, object]
) -> None:
    """No job, and no series that would say that a probe exists."""
    node = Node(tmp_path, clock, launcher, **limits)  # type: ignore[arg-type]  # fields by name

    node.probing.schedule()

    assert (node.jobs.jobs, node.store.group("probes"), node.probing.status(0.0)) == ({}, {}, [])


def test_the_status_tells_the_last_failure(node: Node) -> None:
    """The page names the reason with its detail until the next cycle, and when that is due."""
    node.launcher.results = [node.launcher.failed]
    node.jobs.planned["probe_ring"] = node.clock.time() - 5

    node.cycle()
    assert node.status().last_result == "failed: nccl_error (rank 1: gone)"
    assert node.status().next_run_seconds == 0.0
    node.cycle()
    assert node.status().last_result.startswith("latency 1 ms")


def test_expected_bandwidth_of_the_configuration_is_compared(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher
) -> None:
    """The ratio is of the operator's own number."""
    probe = Probe(expected_bandwidth=config.Rate(10 * 2**26 * 10))
    node = Node(tmp_path, clock, launcher, definitions={"ring": probe})

    node.cycle()

    assert node.value("expected_bandwidth_bytes_per_second") == 100 * 2**26
    assert node.value("bandwidth_utilization_ratio") == pytest.approx(1.0)


def test_a_history_that_cannot_be_saved_is_logged(node: Node) -> None:
    """A full disk costs the memory of a probe, not the probe."""
    (node.folder / "probe-ring.new").mkdir()  # nothing can be written under this name

    with capture_logs() as events:
        node.cycle()

    assert [event["event"] for event in events] == ["probe measured", "a probe's history cannot be saved"]
    assert node.value("attempts_total") == 1


def test_a_job_of_slurm_closes_the_gate(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> None:
    """The cgroup of its step is seen; the GPUs being idle does not count then."""
    node = Node(tmp_path, clock, launcher, real=True)
    (tmp_path / "proc/100").mkdir()
    (tmp_path / "proc/100/comm").write_text("slurmd\n")
    job = tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_17"
    job.mkdir(parents=True)

    node.cycle()

    assert launcher.plans == []
    assert node.status().skip_reason == "scheduler_busy: Slurm job 17 runs on this node"


@pytest.mark.parametrize("target", ["pid:[4026532001]", None])
def test_a_container_that_hides_processes_starts_no_cycle(
    tmp_path: Path, clock: Clock, launcher: ScriptedLauncher, target: str | None
) -> None:
    """Nor does one that cannot tell whether it hides them."""
    node = Node(tmp_path, clock, launcher, real=True)
    (tmp_path / "proc/self/ns/pid").unlink()
    if target is not None:
        (tmp_path / "proc/self/ns/pid").symlink_to(target)

    node.cycle()

    assert launcher.plans == []
    assert node.status().skip_reason.startswith("foreign_pid_namespace: ")
