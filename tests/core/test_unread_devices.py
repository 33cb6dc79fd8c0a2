"""Devices that a collector could not read whole: named while it lasts, once by collector, device and reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commwatch.node.run import Collected
from commwatch.readings import Absence
from support.core import SLOTS, collected
from support.fed_daemon import FedDaemon, Values
from support.simulated_daemon import rehearsed, simulated

LISTED = {SLOTS[0]: {("commwatch_gpu_info", ("0", SLOTS[0], "GPU-1", "1", "H100", "hopper")): 1}}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FedDaemon:
    return FedDaemon(tmp_path, monkeypatch)


def named(daemon: FedDaemon, name: str, *absences: Absence) -> set[tuple[str, ...]]:
    """The unread devices after a run in which this failed: collector, device and reason."""
    daemon.feed(name, collected({}, *absences))
    return set(daemon.series("collector_device_failing"))


def test_a_device_that_fails_is_named_until_it_is_read(daemon: FedDaemon) -> None:
    """Two failures of one reason are one, and another collector says nothing of it."""
    twice = Absence(SLOTS[0], "unreadable", "a"), Absence(SLOTS[0], "unreadable", "b")
    found = {("nvml_gpu", SLOTS[0], "unreadable")}

    assert named(daemon, "nvml_gpu", *twice) == found
    assert named(daemon, "nvml_pcie") == found
    assert named(daemon, "nvml_gpu") == set()


def test_a_gpu_that_is_known_by_its_index_alone_is_named_by_its_address(daemon: FedDaemon) -> None:
    """That of the GPU which had the index last and is not listed any more."""
    daemon.feed("nvml_identity", LISTED)
    daemon.feed("nvml_identity", collected({}, Absence("index:0", "lost", "x")))

    assert named(daemon, "nvml_gpu", Absence("index:0", "unreadable", "a")) >= {("nvml_gpu", SLOTS[0], "unreadable")}


def test_a_path_of_job_files_is_not_named(daemon: FedDaemon) -> None:
    """The endpoint is open to strangers."""
    gone = Absence("/home/alice/secret", "deadline", "no answer in time")

    assert named(daemon, "nccl_logs", gone) == {("nccl_logs", "a path of job files", "deadline")}


STATE = ("commwatch_nvlink_link_state", ("0", SLOTS[0], "3"))
WIDTH = ("commwatch_pcie_link_width_lanes", ("0", SLOTS[0]))
PORT = ("mlx5_0", "1")
PORT_INFO = ("commwatch_rdma_port_info", (*PORT, "InfiniBand", "", "", "", "", "0000:19:00.0", ""))
PORT_STATE = ("commwatch_rdma_port_state", PORT)
ACTIVE = 4


@pytest.mark.parametrize(
    ("collector", "device", "before", "after", "is_named"),
    [
        ("nvml_nvlink", SLOTS[0], {STATE: 1}, {STATE: None}, True),
        ("nvml_nvlink", SLOTS[0], {STATE: 1}, {STATE: 0}, False),
        ("nvml_nvlink", SLOTS[0], {STATE: 0}, {STATE: None}, False),
        ("nvml_pcie", SLOTS[0], {WIDTH: 16}, {WIDTH: None}, True),
        ("nvml_pcie", SLOTS[0], {WIDTH: None}, {WIDTH: None}, False),
        ("rdma", "mlx5_0:1", {PORT_INFO: 1, PORT_STATE: ACTIVE}, {PORT_INFO: 1, PORT_STATE: None}, True),
        ("rdma", "mlx5_0:1", {PORT_INFO: 1, PORT_STATE: 1}, {PORT_INFO: 1, PORT_STATE: None}, False),
        ("rdma", "mlx5_0:1", {PORT_INFO: 1, PORT_STATE: ACTIVE}, {}, False),
    ],
    ids=["a link without a state", "a link that is down", "one that was never up", "lanes without a number",
         "lanes that were never read", "a port without a state",
         "one that was never active", "a port that went away"],
)  # fmt: skip
def test_an_expected_part_without_a_state_is_unread_though_no_call_fails(
    daemon: FedDaemon, collector: str, device: str, before: Values, after: Values, is_named: bool
) -> None:
    """Until its state is read again; where a call fails as well it is named once."""
    found = {(collector, device, "unreadable")} if is_named else set()

    def named_after(values: Values) -> set[tuple[str, ...]]:
        daemon.feed("nvml_identity", LISTED, seconds=10.0)
        daemon.feed(collector, {device: values} if values else None)
        daemon.observe()
        return set(daemon.series("collector_device_failing"))

    assert named_after(before) == set()
    assert named_after(after) == found
    if is_named:
        block = daemon.block(after)
        daemon.feed(collector, collected({device: block}, Absence(device, "unreadable", "x")))
        assert set(daemon.series("collector_device_failing")) == found
    assert named_after(before) == set()


@pytest.mark.parametrize(
    ("collector", "absence"),
    [
        ("nvml_gpu", Absence("", "unreadable", "x")), ("nvml_nvlink", Absence("", "unreadable", "x")),
        ("nvml_nvlink", Absence("", "starved", "x")), ("nvml_nvlink", Absence("", "deadline", "x")),
    ],
)  # fmt: skip
def test_a_failure_of_the_whole_collector_names_no_device(daemon: FedDaemon, collector: str, absence: Absence) -> None:
    """It is a failing collector; its devices are not named either once they are compared with what is expected."""
    daemon.feed("nvml_identity", LISTED)
    daemon.feed("nvml_nvlink", {SLOTS[0]: {STATE: 1}})
    daemon.observe()
    assert named(daemon, collector, absence) == set()

    daemon.feed("nvml_identity", LISTED, seconds=10.0)
    daemon.observe()
    assert daemon.series("collector_device_failing") == {}


def test_a_gpu_that_is_split_while_the_daemon_runs_is_not_unknown(tmp_path: Path) -> None:
    """With MIG the driver gives no state of its links, whenever that is switched on."""
    with simulated("a100x4", tmp_path, faults="- {fault: mig_enabled, gpu: 1, at: 65s}") as daemon:
        for seconds in range(60, 150, 5):
            daemon.step_to(float(seconds))
            assert daemon.findings()["verdict"]["word"] == "OK"
        states = daemon.exposed().samples("commwatch_nvlink_link_state")
        assert {labels["gpu"] for labels, value in states if value is not None} == {"0", "2", "3"}


def test_a_collector_that_is_paused_names_none(daemon: FedDaemon) -> None:
    """Of its source alone."""
    named(daemon, "network", Absence("eth0", "unreadable", "x"))
    assert len(named(daemon, "nvml_gpu", Absence(SLOTS[0], "unreadable", "x"))) == 2

    daemon.pause()
    assert set(daemon.series("collector_device_failing")) == {("network", "eth0", "unreadable")}


def test_many_devices_are_not_all_named(daemon: FedDaemon) -> None:
    """A node of ten thousand interfaces has one page."""
    assert len(named(daemon, "network", *(Absence(f"eth{n}", "unreadable", "x") for n in range(100)))) == 64


def test_samples_say_nothing_of_the_state_of_a_gpu(daemon: FedDaemon) -> None:
    """Neither those that find it lost, as they may long after it has come back, nor those that hang on no named GPU."""
    daemon.feed("nvml_identity", LISTED)
    for absence, suspects in ((Absence(SLOTS[0], "lost", "x"), ()), (Absence("", "deadline", "x"), ("",))):
        daemon.suspects = frozenset(suspects)
        daemon.feed("nvml_pcie_sampled", collected({}, absence))
        daemon.observe()
        assert daemon.series("gpu_state") == {("0", SLOTS[0]): 0}


@pytest.mark.parametrize(("failures", "words"), [(1, set()), (2, {"Unknown"}), (99, {"Unknown", "Warning"})])
def test_one_failed_call_of_a_rare_collector_is_asked_again_before_anything_is_said(
    failures: int, words: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of pairs is asked each 10 min: one call that failed is over after 25 s, and not a ticket for 5 min."""
    left = failures

    def fails(given: Collected) -> Collected:
        nonlocal left
        left -= 1
        slot = min(given.blocks)
        return replace(given, absences=[Absence(slot, "unreadable", "unknown error")]) if left >= 0 else given

    with rehearsed("a100x4", tmp_path, monkeypatch) as node:
        node.start()
        node.step_to(585.0)
        node.outages["nvml_p2p"] = fails
        seen = set()
        for second in range(600, 990, 15):
            node.step_to(float(second))
            seen.add(node.findings()["verdict"]["word"])

    assert seen - {"OK"} == words
