"""When no probe runs: what closes the gate, holds a cycle back or ends it, and how that is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import DAY, DEFAULT_PROBES, Probe
from commwatch.node.starvation import HOLDS_SECONDS, LATE_SECONDS
from commwatch.probes import node as probe_node
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.watch import Halt
from commwatch.probes.plan import CycleResult, Failed, Skipped, Yielded
from commwatch.probes.rank_plan import SkipReason
from commwatch_exporters.snapshot import Value
from core.probing.probed import Node, ScriptedLauncher
from support.core import SLOTS, Clock, block


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

    with capture_logs() as events:
        node.cycle()

    assert node.launcher.plans == []
    assert (node.value("skips_total", reason), node.value("attempts_total")) == (1, 0)
    assert events[0]["detail"].startswith(f"GPU {SLOTS[0]} ")
    assert node.status().skip_reason.startswith(f"{reason}: ")


@pytest.mark.parametrize("reason", ["gpu_busy", "scheduler_busy"])
def test_whose_process_or_job_is_on_the_node_is_for_the_log_alone(node: Node, reason: SkipReason) -> None:
    """Everyone who reaches the endpoint reads the words of a skip."""
    private = "pod alice/secret-0, Slurm job 17, process 4711"
    node.launcher.results = [lambda: Skipped(finished_at=0.0, reason=reason, detail=private)]

    with capture_logs() as events:
        node.cycle()

    assert events[0]["detail"] == private
    shown = node.status().skip_reason
    assert shown.startswith(f"{reason}: ")
    assert not {word for word in ("alice", "17", "4711") if word in shown}


def test_a_gpu_of_which_nothing_is_current_is_not_free(node: Node) -> None:
    """The readings of the driver's collector have grown old: that is no leave to probe."""
    node.readable = False
    node.clock.now += 0.001

    node.cycle()

    assert (node.launcher.plans, node.value("skips_total", "gpu_unknown")) == ([], 1)


def test_a_gpu_that_cannot_be_split_needs_no_mig_mode(node: Node) -> None:
    """Where the driver has no such counter at all, what is not read is known to be off."""
    node.set_gpus(mig_mode=None)
    unsupported = block({("commwatch_counters_state", ("nvml", "mig_mode")): 1})
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
    """Work at either of two samples, taken again for this cycle, is work."""
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
    node.store.maintenance = "driver-upgrade"
    node.cycle(times=2)
    assert (node.launcher.plans, node.value("skips_total", "maintenance")) == ([], 2)
    assert node.status().skip_reason == "maintenance: the daemon is paused: driver-upgrade"

    node.store.maintenance = None
    node.cycle()

    assert (len(node.launcher.plans), node.value("skips_total", "maintenance")) == (1, 2)
    assert node.status().skip_reason == ""


def test_a_pause_between_the_looks_at_the_gpus_counts(node: Node) -> None:
    """A pause that begins while a cycle is being prepared holds it back."""
    node.before_read = lambda number: setattr(node.store, "maintenance", "swap")

    node.cycle()

    assert (node.launcher.plans, node.value("skips_total", "maintenance")) == ([], 1)


def test_a_stuck_rank_holds_further_cycles_back(node: Node) -> None:
    """No rank is started beside one that sits in the kernel; the GPU is named until it is back."""
    node.launcher.left_behind = {4711: "GPU-1"}
    node.cycle()
    node.probing.refresh()
    assert (node.launcher.plans, node.value("skips_total", "previous_stuck")) == ([], 1)
    assert node.status().skip_reason.endswith("rank process 4711 on GPU-1")
    assert node.probing.stuck_count == 1

    node.launcher.left_behind = {}
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
        broken.setattr(probe_node, "build_topology", lambda *_: 1 / 0)
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
    node.store.maintenance = "driver-upgrade"
    node.cycle()
    node.store.maintenance = None
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


def test_a_starved_node_starts_no_cycle(node: Node) -> None:
    """No attempt is counted and no failure; afterwards probes go on by themselves."""
    node.starvation.beat(LATE_SECONDS)
    node.cycle()
    assert (node.launcher.plans, node.value("skips_total", "starved"), node.value("attempts_total")) == ([], 1, 0)

    node.clock.now += HOLDS_SECONDS
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
