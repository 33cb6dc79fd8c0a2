"""The daemon as a process: what it serves, how it takes signals, pauses, reloads, and meets what is wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commwatch.__main__ import COMMANDS, build_parser, main
from commwatch.cluster.node_report import CHECK_OPERATION, OPERATION, CheckReport, NodeReport
from commwatch.probes.cycle.priority import let_others_go_first
from commwatch.state.client import ask_daemon, hand_to_daemon
from commwatch.workers.sources import READERS
from support.daemon import Daemon, children_of, command, environment, is_reader, running
from support.processes import blocks_sigterm
from support.waiting import PATIENCE_SECONDS, until

STARTED = [reader for reader in READERS if reader.name not in ("jobs", "nvml_pcie", "settings")]
"""Readers that are started; here no log of a job is configured, no job runs, and each GPU has GPM."""
GPU0, GPU3 = {"gpu": "0", "pci_bus_id": "0000:17:00.0"}, {"gpu": "3", "pci_bus_id": "0000:3b:00.0"}
H100 = ("--simulate", "h100x8")
QUICK = "nvml: {deadline: 800ms, nvlink_interval: 500ms}"
"""A GPU that hangs is given up sooner than by default."""


def faults_file(folder: Path, text: str = "[]\n") -> Path:
    """A file of faults; replaced whole, so that a daemon never reads half of it."""
    new = folder / "faults.new"
    new.write_text(text)
    return new.replace(folder / "faults.yaml")


@contextmanager
def running_h100(folder: Path, *arguments: str, notify_socket: str = "") -> Iterator[Daemon]:
    """A daemon of a simulated node that does not probe: ranks would take more CPU time than all else here."""
    config = folder / "unprobed.yaml"
    config.write_text("probes: {enabled: false}\n")
    with running(folder, *H100, "--config.file", str(config), *arguments, NOTIFY_SOCKET=notify_socket) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of a simulated node that those share who leave it as it was; nobody listens to what it tells systemd."""
    folder = tmp_path_factory.mktemp("h100")
    with running_h100(folder, notify_socket=str(folder / "gone")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of ``configured``."""
    file = tmp_path_factory.mktemp("config") / "commwatch.yaml"
    file.write_text("sources: {network: {interval: 7s}}\n")
    return file


@pytest.fixture(scope="module")
def configured(config: Path) -> Iterator[Daemon]:
    """A daemon that those share who have it read its configuration again."""
    with running(config.parent, "--config.file", str(config)) as daemon:
        yield daemon


def test_the_real_machine_is_served_and_term_stops_at_once(tmp_path: Path) -> None:
    """Without a GPU the daemon says so, invents nothing, and serves the interfaces that are there.

    systemd hears that it is ready after the first collection, the heartbeat that feeds the watchdog, and its end, here
    on an address whose leading zero byte it writes as @.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{tmp_path}")
        systemd.settimeout(PATIENCE_SECONDS)
        with running(tmp_path, NOTIFY_SOCKET=f"@{tmp_path}") as daemon:
            heard = [systemd.recv(1000)]
            while b"WATCHDOG=1" not in heard:
                heard.append(systemd.recv(1000))
            assert any(message.startswith(b"READY=1\nSTATUS=") for message in heard)
            status, page = daemon.get("/")
            samples = daemon.samples()
            code = daemon.stop()
        while heard[-1] != b"STOPPING=1":
            heard.append(systemd.recv(1000))

    assert (code, status) == (0, 200)
    names = {name for name, _ in samples}
    assert samples[("commwatch_simulated", ())] == 0
    if not Path("/proc/driver/nvidia/version").exists():
        assert samples[("commwatch_source_available", (("source", "nvml"),))] == 0
        assert not any(name.startswith(("commwatch_nvlink", "commwatch_gpu")) for name in names)
        assert ("commwatch_present", (("kind", "gpu"),)) not in samples
        assert "No NVIDIA driver is loaded" in page
        assert "--simulate h100x8" in page


def test_the_simulated_node_is_served_whole(h100: Daemon) -> None:
    """All links, use over capacity, the inventory that is here, and the word that it is simulated."""
    daemon = h100
    daemon.until(lambda: daemon.count("nvlink_transmit_utilization_ratio") == 8)

    assert daemon.count("nvlink_transmit_bytes_total") == 144
    assert daemon.value("simulated") == 1
    assert daemon.value("present", kind="nvlink") == 144
    assert daemon.value("gpu_state", **GPU3) == 0
    assert daemon.value("nvlink_capacity_bytes_per_second", **GPU3) == 450e9
    use = daemon.value("nvlink_transmit_utilization_ratio", **GPU3)
    assert use is not None
    assert 0 < use < 0.01
    assert "Simulated node" in daemon.get("/")[1]
    assert "/api/v1/snapshot" in json.loads(daemon.get("/api/v1/")[1])["documents"]
    findings = json.loads(daemon.get("/api/v1/findings")[1])
    assert (findings["simulated"], findings["findings"], findings["failing_rules"]) == ("h100x8", [], [])
    assert findings["looked_at"] <= findings["time"]
    assert ask_daemon(daemon.state / "simulated-h100x8", "findings")["schema"] == "commwatch-findings/1"
    # More is read for the first time from look to look, so the page lies between the reports before and after it.
    before = metrics_told(daemon)
    snapshot = json.loads(daemon.get("/api/v1/snapshot")[1])
    (links,) = [one for one in snapshot["metrics"] if one["name"] == "commwatch_nvlink_link_state"]
    assert len(links["series"]) == 144
    assert before <= {one["name"] for one in snapshot["metrics"]} <= metrics_told(daemon)
    # What a member of a run between nodes hands in is on the page at once.
    said = NodeReport(run="0" * 32, finished_at=time.time(), outcome="completed", backend="tcp", nodes=4)
    assert hand_to_daemon(daemon.state / "simulated-h100x8", OPERATION, said) == {"taken": True}
    assert daemon.value("cluster_run_nodes") == 4
    assert daemon.value("cluster_runs_total", outcome="completed") == 1
    checked = CheckReport(run="1" * 32, finished_at=time.time(), outcome="completed", causes=("mtu",))
    assert hand_to_daemon(daemon.state / "simulated-h100x8", CHECK_OPERATION, checked) == {"taken": True}
    assert daemon.value("cluster_check_failed", cause="mtu") == 1


def metrics_told(daemon: Daemon) -> set[str]:
    """Names of the metrics that the daemon tells over its control socket."""
    return {one["name"] for one in ask_daemon(daemon.state / "simulated-h100x8", "snapshot")["metrics"]}


def test_a_hung_gpu_changes_nothing_for_the_others_nor_for_the_scrape(tmp_path: Path) -> None:
    """Its values go, its state says so, the page is served, and TERM ends the daemon although the worker hangs."""
    faults = faults_file(tmp_path)
    with running_h100(tmp_path, "--simulate.faults", str(faults)) as daemon:
        daemon.until(lambda: daemon.value("nvlink_transmit_bytes_total", **GPU3, link="0"))
        faults_file(tmp_path, "- {fault: driver_hang, gpu: 3}\n")

        daemon.until(lambda: daemon.value("gpu_state", **GPU3) == 1)

        daemon.until(lambda: daemon.count("nvlink_transmit_bytes_total") == 126)
        assert daemon.value("nvlink_transmit_bytes_total", **GPU3, link="0") is None
        assert daemon.value("worker_stuck", worker="nvml") == 1
        daemon.until(lambda: daemon.value("collector_success", collector="nvml_nvlink") == 0)  # at its next run
        assert daemon.value("worker_restarts_total", worker="nvml", reason="deadline") == 1
        stuck = daemon.children()
        assert daemon.stop() == 0
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in stuck))


def test_pause_lets_go_and_resume_reads_again(h100: Daemon) -> None:
    """Driver workers are gone, the page says maintenance, and nothing old is shown meanwhile."""
    daemon, state = h100, str(h100.state)
    daemon.until(lambda: daemon.count("nvlink_link_state") == 144)
    before = set(daemon.children())

    paused = command("pause", "--for", "10m", "--reason", "driver-upgrade", "--json", *H100, "--path.state", state)

    answer = json.loads(paused.stdout)
    assert (paused.returncode, answer["released"], answer["held"]) == (0, True, {})
    assert len(before - set(daemon.children())) == 1
    assert daemon.value("maintenance", reason="driver-upgrade") == 1
    assert daemon.count("nvlink_link_state") == 0
    assert daemon.count("gpu_state") == 0
    assert daemon.value("collector_success", collector="nvml_nvlink") is None
    assert daemon.value("collector_success", collector="network") == 1

    assert command("resume", *H100, "--path.state", state).stdout == "resumed\n"
    daemon.until(lambda: daemon.count("nvlink_link_state") == 144)
    assert daemon.value("maintenance", reason="none") == 0


def test_a_pause_ends_by_itself_and_holds_over_a_restart(tmp_path: Path) -> None:
    """The file is the truth: a daemon that starts during the pause is paused, until the time is over."""
    (tmp_path / "state" / "simulated-h100x8").mkdir(parents=True)
    file = tmp_path / "state" / "simulated-h100x8" / "maintenance.json"
    now = time.time()
    file.write_text(json.dumps({"reason": "swap", "since": now, "until": now + 600}))

    with running_h100(tmp_path) as daemon:
        assert daemon.value("maintenance", reason="swap") == 1
        assert daemon.count("nvlink_link_state") == 0
        until = time.time() + 1.5
        sooner = file.with_suffix(".new")
        sooner.write_text(json.dumps({"reason": "swap", "since": now, "until": until}))
        sooner.replace(file)
        daemon.until(lambda: daemon.count("nvlink_link_state") == 144)
        assert time.time() >= until
        assert daemon.value("maintenance", reason="none") == 0


def test_hup_takes_a_good_configuration_and_refuses_a_bad_one(configured: Daemon, config: Path) -> None:
    """The bad one is named in the log with its line, a metric says so, and the old one goes on."""
    daemon = configured
    assert daemon.value("collector_interval_seconds", collector="network") == 7
    config.write_text("sources:\n  network:\n    interval: soon\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: daemon.value("config_last_reload_successful") == 0)
    (event,) = daemon.events("the new configuration is not used; the old one stays in force")
    assert f"{config}:3: sources.network.interval: expected a duration" in event["error"]
    assert daemon.value("collector_interval_seconds", collector="network") == 7
    assert daemon.value("collector_success", collector="network") == 1

    config.write_text("sources: {network: {interval: 9s}}\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: daemon.value("collector_interval_seconds", collector="network") == 9)
    assert daemon.value("config_last_reload_successful") == 1
    assert daemon.get("/readyz")[0] == 200


def test_hup_with_a_file_of_faults_that_is_gone_keeps_the_daemon(tmp_path: Path) -> None:
    """What only shows when the new engine is prepared is refused like any other mistake."""
    faults = faults_file(tmp_path)
    with running_h100(tmp_path, "--simulate.faults", str(faults)) as daemon:
        faults.unlink()
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: daemon.value("config_last_reload_successful") == 0)
        daemon.until(lambda: daemon.count("nvlink_link_state") == 144)
        assert daemon.value("collector_success", collector="nvml_nvlink") == 1


def test_a_source_that_is_switched_off_leaves_no_series(configured: Daemon, config: Path) -> None:
    """After the reload nothing is said of a collector that does not run any more, nor of its process."""
    daemon = configured
    daemon.until(lambda: daemon.value("process_resident_memory_bytes", process="host"))
    host = next(reader for reader in READERS if reader.name == "host")
    config.write_text("sources:\n" + "".join(f"  {source.name}: {{enabled: false}}\n" for source in host.sources))
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: daemon.count("ethernet_carrier") == 0)
    daemon.until(lambda: daemon.value("collector_success", collector="network") is None)
    assert daemon.value("process_resident_memory_bytes", process="host") is None
    assert daemon.value("worker_stuck", worker="host") is None
    assert daemon.children() == []


def test_term_ends_a_start_that_hangs(tmp_path: Path) -> None:
    """The first run waits for a driver that does not answer; the signal does not."""
    faults = faults_file(tmp_path, "- {fault: driver_hang, gpu: 0}\n")
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "commwatch", "run", "--web.listen-address", "127.0.0.1:0", *H100,
             "--simulate.faults", str(faults), "--path.state", str(tmp_path / "state")],
            env=environment(), stderr=stream,
        )  # fmt: skip
    try:
        until(lambda: '"msg": "serving"' in log.read_text())
        until(lambda: any(blocks_sigterm(pid) for pid in children_of(process.pid)))
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        faults_file(tmp_path)  # lets the stuck worker go


def test_workers_end_with_a_daemon_that_was_killed(tmp_path: Path) -> None:
    """SIGKILL of the daemon leaves no process behind."""
    with running_h100(tmp_path) as daemon:
        until(lambda: len(daemon.children()) == len(STARTED))
        children = daemon.children()
        daemon.process.kill()
        daemon.process.wait(PATIENCE_SECONDS)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--simulate", "h100x9"], "--simulate: no preset 'h100x9'; there are "),
        (["--web.listen-address", "127.0.0.1:seven"], "127.0.0.1:seven"),
        (["--path.state", "/proc/nothing"], "state directory /proc/nothing: "),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    """No traceback; the line names the flag or the file and what would be right."""
    given = arguments if "--path.state" in arguments else [*arguments, "--path.state", str(tmp_path)]

    result = command("run", *given)

    lines = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert result.returncode == 2
    assert len(lines) == 1, result.stderr
    assert message in lines[0]


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """The error names the address, and the daemon leaves nothing behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = command("run", "--web.listen-address", f"127.0.0.1:{port}", "--path.state", str(tmp_path))

    lines = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert result.returncode == 2
    assert len(lines) == 1
    assert f"127.0.0.1:{port}" in lines[0]
    assert "--web.listen-address" in lines[0]


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """A user can start from --help."""
    parser = build_parser()
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args(["--help"])
    names = capsys.readouterr().out
    for name in COMMANDS:
        assert name in names
        with pytest.raises(SystemExit, match="0"):
            parser.parse_args([name, "--help"])
        assert "example:" in capsys.readouterr().out, name


def test_a_command_without_its_daemon_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 4; pause still writes the file, for the daemon that comes."""
    assert main(["inventory", "--path.state", str(tmp_path)]) == 4
    missing = capsys.readouterr()
    assert missing.out == ""
    assert "no commwatch daemon runs with the state directory" in missing.err

    assert main(["pause", "--path.state", str(tmp_path)]) == 4
    paused = capsys.readouterr().out
    assert "no commwatch daemon runs with the state directory" in paused
    assert "will be paused" in paused


def test_the_daemon_keeps_to_its_cores_and_ranks_have_all(tmp_path: Path) -> None:
    """Daemon and readers stay on the cores that process.cpus names; the ranks of a probe run where it was started."""
    all_cores = os.sched_getaffinity(0)
    core = min(all_cores)
    config = tmp_path / "own.yaml"
    config.write_text(f"process: {{cpus: '{core}', nice: 1}}\n", encoding="utf-8")
    with running(tmp_path, "--simulate", "a10x2", "--config.file", str(config)) as daemon:
        readers = [pid for pid in daemon.children() if is_reader(pid)]
        assert readers
        for pid in (daemon.process.pid, *readers):
            assert os.sched_getaffinity(pid) == {core}
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1)
        # In a session of its own, as a rank: else the session of the tests would go last from then on.
        sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        try:
            os.sched_setaffinity(sleeper.pid, {core})
            let_others_go_first(sleeper.pid)
            assert os.sched_getaffinity(sleeper.pid) == all_cores
        finally:
            sleeper.kill()
            sleeper.wait()


def test_cores_that_are_not_there_are_refused(tmp_path: Path) -> None:
    """One line that names the key, and exit code 2."""
    config = tmp_path / "own.yaml"
    config.write_text("process: {cpus: '99998'}\n", encoding="utf-8")
    refused = command("run", "--config.file", str(config), "--path.state", str(tmp_path), "--web.listen-address", "")
    assert refused.returncode == 2
    assert "process.cpus: none of 99998 is among" in refused.stderr
