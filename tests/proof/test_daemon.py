"""The daemon over parts that fail and come back, at cadences that have to be lived through."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.health import Asked, judge
from daemon.test_daemon import GPU0, GPU3, H100, QUICK, STARTED, faults_file
from support.daemon import Daemon, command, running


def test_a_lost_link_and_a_narrow_slot_are_seen(tmp_path: Path) -> None:
    """The state of the link and the width change; the use of the other links stays visible."""
    faults = faults_file(tmp_path)
    config = tmp_path / "commwatch.yaml"
    config.write_text("inventory: {learn_after: 2s}\nsources: {nvml: {pcie_interval: 500ms}}\n")
    link = {**GPU3, "link": "5"}
    with running(tmp_path, *H100, "--config.file", str(config), "--simulate.faults", str(faults)) as daemon:
        daemon.until(lambda: daemon.value("nvlink_link_expected", **link) == 1)
        assert daemon.value("pcie_link_width_expected_lanes", **GPU3) == 16
        faults_file(tmp_path, "- {fault: nvlink_down, gpu: 3, link: 5}\n- {fault: pcie_width, gpu: 3, lanes: 8}\n")

        daemon.until(lambda: daemon.value("nvlink_link_state", **link) == 0)
        daemon.until(lambda: daemon.value("pcie_link_width_lanes", **GPU3) == 8)

        assert daemon.value("nvlink_link_expected", **link) == 1
        assert daemon.value("nvlink_transmit_bytes_total", **link) is None
        assert daemon.value("nvlink_capacity_bytes_per_second", **GPU3) == 450e9
        daemon.until(lambda: daemon.value("nvlink_transmit_utilization_ratio", **GPU3))


def test_a_reboot_with_a_card_fewer(tmp_path: Path) -> None:
    """The missing card is named; the others keep their expectations, and nothing of theirs jumps."""
    config = tmp_path / "commwatch.yaml"
    config.write_text("inventory: {learn_after: 1s}\nsources: {nvml: {pcie_interval: 500ms}}\n")
    faults = faults_file(tmp_path)
    arguments = (*H100, "--config.file", str(config), "--simulate.faults", str(faults))
    with running(tmp_path, *arguments) as daemon:
        daemon.until(lambda: daemon.value("expected", kind="nvlink") == 144)
        daemon.until(lambda: daemon.keeps("0000:3a:00.0"))
    faults_file(tmp_path, "- {fault: gpu_missing, gpu: 2}\n")

    with running(tmp_path, *arguments) as daemon:
        daemon.until(lambda: daemon.value("present", kind="gpu") == 7)
        daemon.until(lambda: daemon.count("nvlink_transmit_utilization_ratio") == 7)

        assert daemon.value("gpu_state", gpu="2", pci_bus_id="0000:3a:00.0") == 4
        assert daemon.value("gpu_state", gpu="2", pci_bus_id="0000:3b:00.0") == 0
        assert daemon.value("expected", kind="gpu") == 8
        assert daemon.value("expected", kind="nvlink") == 144
        for (name, _), value in daemon.samples().items():
            if name == "commwatch_nvlink_transmit_utilization_ratio":
                assert 0 <= value < 0.01
            if name == "commwatch_gpu_state" and value != 4:
                assert value == 0
        state = str(tmp_path / "state")
        shown = command("inventory", "--json", *H100, "--path.state", state)
        assert shown.returncode == 1
        assert "0000:3a:00.0" in "".join(json.loads(shown.stdout)["missing"])
        accepted = command("inventory", "accept", *H100, "--path.state", state)
        assert accepted.returncode == 0
        daemon.until(lambda: daemon.value("expected", kind="gpu") == 7)
        assert daemon.value("gpu_state", gpu="2", pci_bus_id="0000:3a:00.0") is None


def test_hup_leaves_a_hung_gpu_alone(tmp_path: Path) -> None:
    """After the reload the process that hangs is still counted, and no second one joins it."""
    config, faults = tmp_path / "commwatch.yaml", faults_file(tmp_path)
    config.write_text(f"sources: {{{QUICK}}}\n")
    arguments = ("--config.file", str(config), *H100, "--simulate.faults", str(faults))
    with running(tmp_path, *arguments) as daemon:
        daemon.until(lambda: daemon.value("nvlink_transmit_bytes_total", **GPU3, link="0"))
        faults_file(tmp_path, "- {fault: driver_hang, gpu: 3}\n")
        daemon.until(lambda: daemon.value("worker_stuck", worker="nvml") == 1)
        daemon.until(lambda: daemon.count("nvlink_transmit_bytes_total") == 126)
        config.write_text(f"sources: {{{QUICK}, rdma: {{enabled: false}}}}\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: daemon.value("collector_interval_seconds", collector="rdma") is None)
        daemon.until(lambda: daemon.count("nvlink_transmit_bytes_total") == 126)
        for _ in range(3):  # passes over the other GPUs, in which a second process would hang
            sent = daemon.value("nvlink_transmit_bytes_total", **GPU0, link="0")
            daemon.until(lambda: daemon.value("nvlink_transmit_bytes_total", **GPU0, link="0") != sent)  # noqa: B023

        assert daemon.value("worker_stuck", worker="nvml") == 1
        assert daemon.value("gpu_state", **GPU3) == 1
        assert len(daemon.children()) == 1 + len(STARTED)  # the one that hangs


def _for_slurm(daemon: Daemon) -> tuple[str, bool]:
    """The word for Slurm as if the node were a real one, and whether it is drained."""
    document = msgspec.json.decode(daemon.get("/api/v1/findings")[1], type=FindingsDocument)
    health = judge(replace(document, simulated=None), Asked(time.time(), 60.0, slurm=True))
    return health.verdict, bool(health.drain_for)


@pytest.mark.parametrize("hangs", [20.0, float("inf")])
def test_a_gpu_that_hangs_is_never_ok_and_drains_after_a_minute(tmp_path: Path, hangs: float) -> None:
    """Calls that return after 20 s drain nothing; what is not read is Unknown until it is Critical."""
    faults = faults_file(tmp_path)
    with running(tmp_path, *H100, "--simulate.faults", str(faults)) as daemon:
        daemon.until(lambda: _for_slurm(daemon)[0] == "OK")
        began = time.monotonic()
        faults_file(tmp_path, "- {fault: driver_hang, gpu: 3}\n")
        # On busy cores another reading may be late first, which is Unknown as well.
        daemon.until(lambda: daemon.value("gpu_state", **GPU3) == 1 and _for_slurm(daemon)[0] == "Unknown")
        told: list[tuple[str, bool]] = []
        while daemon.value("gpu_state", **GPU3) == 1 and not (told and told[-1][1]):
            if time.monotonic() - began > hangs:
                faults_file(tmp_path)
            told.append(_for_slurm(daemon))
            time.sleep(0.5)

    words = [word for word, _ in told]
    assert "OK" not in words[:-1]
    assert [drains for _, drains in told][-1] == (hangs > 60)
    if hangs > 60:
        assert told[-1] == ("Critical", True)
        assert time.monotonic() - began > 60
