"""A job is stuck once its kernels wait and nothing moves; what moves, computes or was stopped is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commwatch.jobs.ranks import SAMPLES, RankSample, odd_rank, read_rank
from commwatch.jobs.stuck import GROUP
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from support.core import block
from support.daemon import environment
from support.stuck_node import (
    COMPUTES,
    IDLE,
    INTERFACE,
    ODD,
    PIDS,
    SILENT,
    SLOTS,
    SPINS,
    STATE,
    STEP,
    STOPPED,
    STOPS,
    STUCK,
    UNREAD,
    Node,
)
from support.waiting import until as wait_until


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node whose job has worked for just over ten minutes."""
    made = Node(tmp_path)
    made.read(620)
    return made


def test_before_hopper_a_hang_is_found_where_nvlinks_count_the_payload(tmp_path: Path) -> None:
    """What PCIe moves is sampled there: that ends a hang as well, and is too little to judge a job by alone."""
    made = {}
    for links in (12, 0):
        (tmp_path / str(links)).mkdir()
        made[links] = Node(tmp_path / str(links), links=links)
    for one in made.values():
        one.has_gpm = False
        one.read(620)
        one.stops(60)
    assert made[12].shown(STUCK) == {("0",): 60}
    assert (made[0].shown(STUCK), made[0].shown(UNREAD)) == ({}, {("0", "pcie"): 1})
    made[12].pcie = 0.02
    made[12].read(10)

    assert made[12].shown(STUCK) == {("0",): 0}


@pytest.mark.parametrize(
    "gpus",
    [(SPINS,) * 4, (IDLE, SPINS, SPINS, SPINS), (SPINS, SPINS, IDLE, IDLE)],
    ids=["all ranks", "one rank", "half the node"],
)
def test_a_hang_counts_from_the_last_payload(node: Node, gpus: tuple[tuple[Value, Value], ...]) -> None:
    """At the job's lowest GPU, whichever ranks wait; it ends as soon as anything moves."""
    assert node.shown(STUCK) == {("0",): 0}
    node.stops(60, *gpus)
    assert node.shown(STUCK) == {("0",): 60}
    node.stops(840, *gpus)
    assert node.shown(STUCK) == {("0",): 900}
    node.nvlink = 0.3
    node.read(10)
    assert node.shown(STUCK) == {("0",): 0}


def test_the_gpus_of_a_job_that_stands_still_are_known(node: Node) -> None:
    """So that findings name all of them, also where the launcher of its processes is not known."""
    node.store.jobs = {}
    assert not node.shown("commwatch_job_stuck_first")
    node.stops(60)
    assert node.shown("commwatch_job_stuck_first") == {(str(index),): 0 for index in range(4)}


def test_the_block_that_lists_the_counters_is_no_port_without_traffic(node: Node) -> None:
    """The reader of RDMA ports gives one."""
    states: dict[Series, Value] = {("commwatch_counters_state", ("rdma", "port_xmit_data")): 0}
    node.store.put("rdma", "", block(states, node.now), 1e9)
    node.stops(60)
    assert node.shown(STUCK) == {("0",): 60}


def test_a_pause_that_a_job_got_over_is_no_hang_when_it_comes_again(node: Node) -> None:
    """It is suspected from twice its longest pause on."""
    node.stops(200)
    node.nvlink = 0.3
    node.read(620)
    node.stops(390)
    assert node.shown(STUCK) == {("0",): 0}
    node.read(20)
    assert node.shown(STUCK) == {("0",): 410}


def _change(**values: object) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        for name, value in values.items():
            setattr(node, name, value)

    return change


@pytest.mark.parametrize(
    ("after", "gpus"),
    [
        (_change(), (COMPUTES, SPINS, SPINS, SPINS)),
        (_change(), (STOPS,) * 4),
        (_change(), ((0.94, 140.0),) * 4),
        (_change(), (IDLE,) * 4),
        (_change(pcie=0.01), (SPINS,) * 4),
        (_change(port_rate=20e6), (SPINS,) * 4),
        (_change(disk_rate=20e6), (IDLE, SPINS, SPINS, SPINS)),
    ],
    ids=["one computes", "power at the limit", "use below 95 %", "all idle", "PCIe", "network", "disks"],
)
def test_a_job_that_computes_or_moves_anything_is_not_stuck(
    node: Node, after: Callable[[Node], None], gpus: tuple[tuple[Value, Value], ...]
) -> None:
    """Though 20 min without a word between its ranks: a checkpoint, an evaluation, a compiler, a data stall."""
    after(node)
    node.cpu = dict.fromkeys(PIDS, 1.0)
    node.nvlink, node.gpus = 0.0005, list(gpus)
    for _ in range(20):
        node.read(60)
        assert all((seconds or 0) < 60 for seconds in node.shown(STUCK).values())
    assert not node.shown(SILENT)


def test_traffic_of_the_node_alone_makes_no_job_one_that_exchanges_data(tmp_path: Path) -> None:
    """A small model on one GPU whose data set is cached in memory by now, or a service beside the pull of an image."""
    node = Node(tmp_path)
    node.port_rate = 100e6
    node.stops(900)
    node.port_rate = 0.0
    node.read(1200)
    assert not node.store.group(GROUP)


def _send(node: Node, sent: float, at: float) -> None:
    """A reading of the node's interface: the bytes that it has sent, and when it was taken."""
    node.store.put("network", "eth0", Block(INTERFACE, [sent], at), 1e9)


def test_traffic_counts_from_its_own_reading(node: Node) -> None:
    """The interface is read just after the GPUs; their next reading shows that the job has stopped since."""
    _send(node, 1e12, node.now + 1.0)
    node.stops(60)
    assert node.shown(STUCK) == {("0",): 59}
    node.read(10)
    assert node.shown(STUCK) == {("0",): 69}


@pytest.mark.parametrize("late", [1.0, 9.0])
def test_traffic_that_arrives_late_is_not_lost(node: Node, late: float) -> None:
    """Each reading of the interface is older than one of the GPUs that came before it."""
    for number in range(1, 61):
        _send(node, number * 1e12, node.now - late)
        node.stops(STEP)
        assert node.shown(STUCK) == {("0",): STEP + (late if number > 1 else 0)}


def test_what_an_efa_adapter_writes_remotely_is_traffic(node: Node) -> None:
    """It counts that apart from what is sent."""
    efa = Layout((f"commwatch_rdma_{name}_bytes_total", ("efa_0", "1")) for name in ("transmit", "write"))
    for number in range(60):
        node.store.put("rdma", "efa_0", Block(efa, [0.0, number * 2e9], node.now + STEP), 1e9)
        node.stops(STEP)
    assert node.shown(STUCK) == {("0",): 0}


def test_a_job_that_never_moved_data_for_ten_minutes_is_not_judged(tmp_path: Path) -> None:
    """An inference server that idles at full use and low power, or whose requests have pauses of over a minute."""
    node = Node(tmp_path)
    for _ in range(6):
        node.nvlink, node.gpus = 0.3, [COMPUTES] * 4
        node.read(300)
        node.stops(70)
    node.stops(1200)
    assert not node.store.group(GROUP)


@pytest.mark.parametrize(
    ("missing", "signal"),
    [
        (_change(gpus=[(None, 140.0)] * 4), "use"),
        (_change(gpus=[(1.0, None)] * 4), "power"),
        (_change(nvlink=None), "nvlink"),
        (_change(pcie=None), "pcie"),
        (lambda node: node.store.drop_group("nvml_identity"), "nvlink"),
        (lambda node: node.store.put("rdma", "irdma0", Block(STATE, [4], node.now), 1e9), "rdma"),
        (_change(port_bytes=None, port_rate=None), "rdma"),
        (lambda node: node.store.drop_group("network"), "network"),
        (lambda node: (node.procfs / "2/comm").unlink(), "processes"),
        (_change(disk_rate=float("nan")), "storage"),
    ],
)
def test_without_one_signal_it_is_named_and_nothing_else_said(
    node: Node, missing: Callable[[Node], object], signal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With MIG, without a counter, or where processes are hidden."""
    node.stops(20)
    if signal == "processes":
        node.state[PIDS[1]] = ""
    if signal == "storage":
        monkeypatch.setattr("commwatch.jobs.stuck.read_storage", lambda procfs: None)
    else:
        missing(node)
    node.read(20)
    assert {labels[1] for labels in node.shown(UNREAD)} >= {signal}
    assert not node.shown(STUCK)


@pytest.mark.parametrize(
    "jobs",
    [{900: 0}, {900: 900}, dict.fromkeys(range(900, 904), 900)],
    ids=["a server of MPS, or a monitor", "a process of another job", "two jobs on all GPUs"],
)
def test_of_jobs_that_share_a_gpu_none_is_judged(node: Node, jobs: dict[int, int]) -> None:
    """Whose kernels spin there cannot be told."""
    node.store.jobs = {**node.store.jobs, **{pid: job for pid, job in jobs.items() if job}}
    for slot, pid in zip(SLOTS, jobs, strict=False):
        node.store.occupants = {**node.store.occupants, slot: (*node.store.occupants[slot], pid)}
    node.stops(1200)
    assert node.shown(UNREAD) == {("0", "shared"): 1}
    assert not {*node.shown(STUCK), *node.shown(SILENT), *node.shown(ODD)}


def test_low_power_of_a_gpu_that_the_hardware_slows_down_is_no_sign(node: Node) -> None:
    """It works, slowly: too hot, or with the power brake from outside; another alert has that."""
    for slot, layout in node.layouts.items():
        reason = ("commwatch_gpu_clocks_event_reason", (*layout.series[0][1], "hw_power_brake_slowdown"))
        node.layouts[slot] = Layout([*layout.series, reason])
    node.held = [0]
    node.stops(60)
    assert node.shown(STUCK) == {("0",): 60}
    node.held = [1]
    node.read(1200)
    assert node.shown(UNREAD) == {("0", "clocks"): 1}
    assert not node.shown(STUCK)


def test_another_model_is_compared_with_its_own_hour(tmp_path: Path) -> None:
    """Below idle and a quarter of the range up to its highest power; without an idle reading no job is stuck."""
    node = Node(tmp_path, "NVIDIA B200")
    node.read(620)
    assert node.shown(UNREAD) == {("0", "power"): 1}
    node.gpus = [IDLE] * 4
    node.read(10)
    node.gpus = [COMPUTES] * 4
    node.read(620)
    node.stops(300, *[(1.0, 241.0)] * 4)
    assert node.shown(STUCK) == {("0",): 0}
    node.stops(300, *[(1.0, 239.0)] * 4)
    assert node.shown(STUCK) == {("0",): 300}


def test_a_stopped_process_is_named_as_stopped(node: Node) -> None:
    """By SIGSTOP or a debugger; it goes on as if nothing had been."""
    node.state[PIDS[2]] = "t"
    node.stops(400)
    assert node.shown(STOPPED) == {("0",): 1}
    assert not node.shown(STUCK)
    node.state[PIDS[2]] = "S"
    node.nvlink = 0.3
    node.read(620)
    node.stops(60)
    assert node.shown(STUCK) == {("0",): 60}


def test_a_number_that_is_used_again_is_no_rank_of_before(node: Node) -> None:
    """While its job is suspected: neither is it named, nor do its sleep and that of the others make a silent job."""
    node.stops(40, *[IDLE] * 4)
    node.state[PIDS[3]] = "T"
    node.read(10)
    node.started[PIDS[3]], node.state[PIDS[3]] = 990_000, "S"
    node.read(10)
    assert not {*node.shown(SILENT), *node.shown(ODD), *node.shown(STOPPED)}
    node.cpu[PIDS[3]] = 1.0
    node.read(10)
    assert not node.shown(ODD)
    node.read(10)
    assert node.shown(ODD) == {("3", "spinning"): 1}


HIDDEN = """
import os, sys
from pathlib import Path
from commwatch.jobs.ranks import read_rank
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(read_rank(Path("/proc"), int(sys.argv[1])), read_rank(Path("/proc"), os.getpid()).state)
"""


@pytest.mark.namespaces
@pytest.mark.parametrize("options", [["--mount"], ["--mount", "--pid", "--fork"]], ids=["hidepid", "PID namespace"])
def test_a_real_process_that_the_table_hides_has_not_ended(options: list[str]) -> None:
    """It is not read: with ``hidepid=2`` as the daemon's user, and from another PID namespace."""
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    seen = subprocess.run(
        ["unshare", *options, "sh", "-c", mount, "sh", sys.executable, "-c", HIDDEN, str(os.getpid())],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (seen.stdout, seen.stderr) == ("None R\n", "")


def test_a_job_whose_processes_all_sleep_is_silent(node: Node) -> None:
    """Below 2 % of their mean; with one that runs it is not, and neither is stuck: a service without requests."""
    node.stops(120, *[IDLE] * 4)
    assert node.shown(SILENT) == {("0",): 120}
    assert node.shown(STUCK) == {("0",): 0}
    node.cpu[PIDS[3]] = 0.05
    node.read(60)
    assert not node.shown(SILENT)


def test_processes_of_an_unknown_launcher_are_one_job(node: Node) -> None:
    """So that one which moves data keeps all of them from being called stuck."""
    node.store.jobs = {}
    node.stops(300)
    assert node.shown(STUCK) == {("0",): 300}


def test_a_process_that_joins_those_of_unknown_launchers_may_be_another_job(node: Node) -> None:
    """Beside a monitor that stays on its GPU, a new job whose ranks wait for the first one's data set is not stuck."""
    node.store.jobs = {}
    node.store.occupants = dict.fromkeys(SLOTS, (PIDS[0],))
    node.stops(20, *[IDLE] * 4)
    node.store.occupants = {slot: (PIDS[0], pid) for slot, pid in zip(SLOTS, PIDS, strict=True)}
    node.stops(1200, IDLE, SPINS, SPINS, SPINS)
    assert not node.shown(STUCK)


def test_nothing_is_read_of_processes_before_a_suspicion(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one file while the job works, nor in the first half minute."""
    monkeypatch.setattr("commwatch.jobs.stuck.read_rank", lambda *_: pytest.fail("a process was read"))
    node.read(600)
    node.stops(20)


def test_a_gap_in_the_readings_begins_anew(node: Node) -> None:
    """What was between is not known."""
    node.stops(60)
    node.now += 3600
    node.read(60)
    assert not node.shown(STUCK)


@pytest.mark.parametrize(
    ("states", "cpu", "waits", "said"),
    [
        ("SSSS", {1: 1.0}, {}, {("1", "spinning"): 1}),
        ("SSDS", {}, {}, {("2", "waiting_for_file"): 1}),
        ("SSS ", {}, {}, {("3", "gone"): 1}),
        ("SSSZ", {}, {}, {("3", "gone"): 1}),
        ("SSSS", {0: 0.0, 1: 1.0, 2: 1.0, 3: 1.0}, {}, {("0", "sleeping"): 1}),
        ("SSSS", {}, {0: ("hrtimer_nanosleep", "230")}, {("0", "sleeping"): 2}),
        ("SSSS", {}, {0: ("wait_for_partner", "257")}, {("0", "waiting_for_file"): 2}),
        ("SSSS", {}, {0: ("hrtimer_nanosleep", "230"), 1: ("hrtimer_nanosleep", "230")}, {}),
        ("SSSS", {1: 1.0, 2: 1.0}, {}, {}),
        ("SSSS", {1: 0.3}, {}, {}),
        ("SSSS", {}, {}, {}),
    ],
    ids=[
        "spins", "disk", "gone", "zombie", "one sleeps", "nanosleep", "fifo", "two camps asleep", "two camps",
        "neither", "alike",
    ],
)  # fmt: skip
def test_the_rank_that_differs_is_named(
    node: Node,
    states: str,
    cpu: dict[int, float],
    waits: dict[int, tuple[str, str]],
    said: dict[tuple[str, ...], Value],
) -> None:
    """Where all others are alike; the value says with which rights it was seen."""
    node.nvlink, node.gpus = 0.0005, [SPINS] * 4
    node.cpu = {pid: cpu.get(place, 0.0) for place, pid in enumerate(PIDS)}
    node.state = {pid: state.strip() for pid, state in zip(PIDS, states, strict=True)}
    if waits:
        node.wait = {pid: waits.get(place, ("futex_wait_queue", "202")) for place, pid in enumerate(PIDS)}
    node.read(90)
    assert node.shown(ODD) == said


WAITS = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
"""As a rank for its peers: not in a sleep with an end, nor for a file."""
REAL = {
    "waits": (WAITS, ""),
    "sleeps": (["sleep", "60"], "sleeping"),
    "stopped": (["sleep", "60"], "stopped"),
    "spins": (["sh", "-c", "while :; do :; done"], "spinning"),
    "waits for a pipe": (["sh", "-c", "exec cat < fifo"], "waiting_for_file"),
}


@pytest.mark.parametrize("fault", REAL)
def test_a_real_process_that_differs_is_named(fault: str, tmp_path: Path) -> None:
    """Beside three that wait; none is named where the fourth waits as they do. Read with the rights of this test."""
    os.mkfifo(tmp_path / "fifo")
    commands = [WAITS] * 3 + [REAL[fault][0]]
    ranks = [subprocess.Popen(command, cwd=tmp_path) for command in commands]
    try:
        if fault == "stopped":
            os.kill(ranks[-1].pid, signal.SIGSTOP)
        for rank in ranks:
            _until_it_does_so(rank.pid, fault if rank is ranks[-1] else "waits")
        samples = []
        for number in range(SAMPLES):
            samples.append((10.0 * number, _read_all([rank.pid for rank in ranks])))
            if fault == "spins" and number < SAMPLES - 1:
                _let_run(ranks[-1].pid, 0.05)
        # The clock is the test's: what ran for hundredths of a second ran for as long as was between two samples.
        samples = [(time / 200, sample) for time, sample in samples]
        odd = odd_rank(samples)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()

    if REAL[fault][1] in ("sleeping", "waiting_for_file") and not (odd and odd.is_full):
        assert odd is None  # without the rights all of them only sleep
    else:
        assert (odd.reason if odd else "") == REAL[fault][1]
        assert odd is None or odd.pid == ranks[-1].pid


def test_a_rank_that_ends_while_its_job_stands_still_is_named_although_the_driver_lists_it_no_more(node: Node) -> None:
    """At the GPU on which it was. Once the job moves data again, it is one of three."""
    node.stops(20)
    node.state[PIDS[3]] = ""
    node.store.occupants = {slot: (pid,) for slot, pid in zip(SLOTS[:3], PIDS, strict=False)}
    node.read(60)
    assert node.shown(ODD) == {("3", "gone"): 1}
    assert [rank.started for [job] in [node.tracker.suspected()] for rank in job.ranks] == [9000.0] * 3 + [None]
    node.nvlink = 0.3
    node.read(620)
    node.stops(60)
    assert not node.shown(ODD)


def test_the_processes_of_a_job_are_known_while_it_is_suspected(node: Node) -> None:
    """With GPU, number and beginning, so that a command can find them."""
    assert not node.tracker.suspected()
    node.stops(20, IDLE, SPINS, SPINS, SPINS)
    assert not node.tracker.suspected()
    node.read(30)
    [job] = node.tracker.suspected()
    assert job.seconds == 50
    assert [(one.gpu, one.address, one.pid, one.is_busy, one.started) for one in job.ranks] == [
        (place, SLOTS[place], PIDS[place], place > 0, 9000.0) for place in range(4)
    ]
    node.nvlink = 0.3
    node.read(10)
    assert not node.tracker.suspected()


def test_of_four_that_are_stopped_alike_none_is_named() -> None:
    """Nor of two of each."""
    alike = {pid: RankSample("T", 1.0, 5.0) for pid in PIDS}
    camps = {pid: RankSample("T" if pid % 2 else "S", 1.0, 5.0) for pid in PIDS}

    assert odd_rank([(time, alike) for time in (0.0, 10.0, 20.0)]) is None
    assert odd_rank([(time, camps) for time in (0.0, 10.0, 20.0)]) is None


@pytest.mark.parametrize(
    "others",
    [
        RankSample("T", 1.0, 5.0),
        RankSample(""),
        RankSample("D", 1.0, 5.0),
        RankSample("S", 1.0, 5.0, 0, "hrtimer_nanosleep", "230"),
        RankSample("S", 1.0, 5.0, 0, "wait_for_partner", "257"),
    ],
    ids=["stopped", "gone", "disk", "asleep", "open of a file"],
)
def test_the_only_rank_that_arrived_is_not_named(others: RankSample) -> None:
    """Its peers do not wait for it: they are stopped, gone, asleep, or wait for a file."""
    waits = RankSample("S", 1.0, 5.0, 0, "futex_wait_queue", "202")
    sample = dict.fromkeys(PIDS, others) | {PIDS[0]: waits}

    assert odd_rank([(time, sample) for time in (0.0, 10.0, 20.0)]) is None


def test_peers_of_a_rank_that_is_gone_may_wait_in_different_places() -> None:
    """What they do is the same; a rank that sleeps among them is no other kind."""
    waits = [RankSample("S", 1.0, 5.0, 0, where, "202") for where in ("futex_wait_queue", "ep_poll", "do_sigtimedwait")]
    sample = dict(zip(PIDS, [*waits, RankSample("")], strict=True))
    asleep = sample | {PIDS[3]: RankSample("S", 1.0, 5.0, 0, "hrtimer_nanosleep", "230")}

    assert odd_rank([(time, sample) for time in (0.0, 10.0, 20.0)]) == (PIDS[3], "gone", True)
    assert odd_rank([(time, asleep) for time in (0.0, 10.0, 20.0)]) is None


def test_a_rank_whose_kernel_alone_waits_has_arrived(node: Node) -> None:
    """The others spin on their cores, and their GPUs are idle: they have not."""
    node.stops(90, SPINS, IDLE, IDLE, IDLE)
    node.cpu = {pid: float(pid != PIDS[0]) for pid in PIDS}
    node.read(60)
    assert node.shown(STUCK) == {("0",): 150}
    assert not node.shown(ODD)
    node.gpus = [IDLE, SPINS, SPINS, SPINS]
    node.read(60)
    assert node.shown(ODD) == {("0", "sleeping"): 1}


def test_a_number_that_another_process_has_since_names_nobody() -> None:
    """Nor does one sample less than three."""
    first = {pid: RankSample("S", 1.0, 5.0) for pid in PIDS}
    later = first | {PIDS[0]: RankSample("T", 1.0, 9.0)}
    stopped = first | {PIDS[0]: RankSample("T", 1.0, 5.0)}

    assert odd_rank([(0.0, first), (10.0, later), (20.0, later)]) is None
    assert odd_rank([(0.0, stopped), (10.0, stopped)]) is None
    assert odd_rank([(0.0, stopped), (10.0, stopped), (20.0, stopped)]) == (PIDS[0], "stopped", False)


def _read_all(pids: list[int]) -> dict[int, RankSample]:
    found = {pid: read_rank(Path("/proc"), pid) for pid in pids}
    return {pid: one for pid, one in found.items() if one is not None}


def _until_it_does_so(pid: int, fault: str) -> None:
    """Wait until the kernel shows what the process was made to do."""
    wanted = {"stopped": "T", "spins": "R"}.get(fault, "S")
    # By number, of x86-64 and arm64.
    call = {"waits": ("", "34", "73"), "sleeps": ("", "230", "115"), "waits for a pipe": ("", "257", "56")}.get(fault)
    wait_until(
        lambda: (
            (one := read_rank(Path("/proc"), pid)) is not None
            and one.state == wanted
            and (call is None or one.call in call)
        )
    )


def _let_run(pid: int, seconds: float) -> None:
    """Wait until a process has used a core for this time."""
    begin = _read_all([pid])[pid].cpu
    wait_until(lambda: _read_all([pid])[pid].cpu >= begin + seconds)
