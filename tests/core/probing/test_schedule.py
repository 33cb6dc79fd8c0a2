"""When probes run again and what becomes of results: budget, retries, the spread, ageing, restarts, one at a time."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.config import settings
from commwatch.config.settings import Probe
from commwatch.probes.results.records import ProbeStatus
from commwatch.probes.schedule import BURST_CYCLES, BURST_SECONDS
from core.probing.probed import OF_LAST_RESULT, Node, ScriptedLauncher
from support.core import Clock, in_loop
from support.state_files import change


@pytest.fixture
def after_the_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cycle is brought forward for want of results."""
    monkeypatch.setattr("commwatch.probes.schedule.BURST_CYCLES", 0)


def test_a_node_without_results_gathers_them_in_a_burst(node: Node) -> None:
    """Until there are enough for a baseline; a node that has them goes on at its interval."""
    node.cycle(times=BURST_CYCLES + 1)

    assert [delay for _, delay in node.jobs.moved][:BURST_CYCLES] == [BURST_SECONDS] * BURST_CYCLES
    assert node.jobs.moved[BURST_CYCLES][1] > BURST_SECONDS


def test_occupancy_is_kept_within_its_budget(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> None:
    """Cycles stop when the GPUs' share is used up, and go on when the window has moved on."""
    node = Node(tmp_path, clock, launcher, occupancy_limit=0.002)  # 57.6 GPU seconds in 4 hours
    launcher.results = [lambda: msgspec.structs.replace(launcher.good(), occupied_seconds=15.0)] * 2

    node.cycle(times=2)
    assert (node.value("attempts_total"), node.value("skips_total", "budget")) == (1, 1)

    clock.now += 4 * 3600 + 1
    node.cycle()
    assert node.value("attempts_total") == 2


@pytest.mark.usefixtures("after_the_burst")
@pytest.mark.parametrize(("bad", "times"), [("slow", 0), ("failed", 1)])
def test_a_suspicious_result_brings_the_next_cycle_forward_at_most_twice_an_hour(
    node: Node, bad: str, times: int
) -> None:
    """To 30 s, so that three in a row are seen within minutes; then the interval holds until the hour is over.

    Three slow results are enough: then pairs and copies search for the part at fault.
    """
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
    assert node.jobs.moved == [early] * times
    node.cycle()
    assert node.jobs.moved == [early] * times


@pytest.mark.usefixtures("after_the_burst")
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


@pytest.mark.usefixtures("after_the_burst")
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


@pytest.mark.usefixtures("after_the_burst")
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
    change(file, '"simulated"', '"gloo"')
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
    probe = Probe(expected_bandwidth=settings.Rate(10 * 2**26 * 10))
    node = Node(tmp_path, clock, launcher, definitions={"ring": probe})

    node.cycle()

    assert node.value("expected_bandwidth_bytes_per_second") == 100 * 2**26
    assert node.value("bandwidth_utilization_ratio") == pytest.approx(1.0)


def test_a_history_that_cannot_be_saved_is_logged(node: Node) -> None:
    """A full disk costs the memory of a probe, not the probe."""
    node.cycle()
    file = node.folder / "probe-ring.json"
    file.unlink()
    file.mkdir()  # nothing can be written under this name

    with capture_logs() as events:
        node.cycle()

    assert [event["event"] for event in events] == ["probe measured", "a probe's history cannot be saved"]
    assert node.value("attempts_total") == 2


def test_a_job_of_slurm_closes_the_gate(tmp_path: Path, clock: Clock, launcher: ScriptedLauncher) -> None:
    """The cgroup of its step is seen; the GPUs being idle does not count then."""
    node = Node(tmp_path, clock, launcher, real=True)
    (tmp_path / "proc/100").mkdir()
    (tmp_path / "proc/100/comm").write_text("slurmd\n")
    job = tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_17"
    job.mkdir(parents=True)

    with capture_logs() as events:
        node.cycle()

    assert launcher.plans == []
    assert [event["detail"] for event in events] == ["Slurm job 17 runs on this node"]
    assert node.status().skip_reason.startswith("scheduler_busy: its scheduler does not have the node as free")


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
