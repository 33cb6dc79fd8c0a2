"""From a fault on the simulated node to a firing alert in a real Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemon import Daemon, running
from support.prometheus import Prometheus, prometheus, quick_rules

QUICK = """
inventory: {learn_after: 1s}
sources: {nvml: {pcie_interval: 500ms, gpu_interval: 500ms}}
"""
PROBED = f"""{QUICK}
probes:
  start_delay: 500ms
  definitions:
    all_reduce: {{gpus: [0, 1], interval: 1s, expected_bandwidth: 330GB/s, latency_limit: 60us}}
    pairs: null
    all_gather: null
    reduce_scatter: null
    broadcast: null
    all_to_all: null
    host_copies: null
    scaling: null
"""


def inject(file: Path, text: str) -> None:
    """Replace the file of faults whole."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def faults_firing(server: Prometheus) -> set[str]:
    """The alerts that fire now, but for the one that always does."""
    return server.firing().keys() - {"CommwatchWatchdog"}


def alert_labels(server: Prometheus, name: str) -> list[dict[str, str]]:
    return [alert["labels"] for alert in server.firing().get(name, [])]


@pytest.mark.prometheus
def test_each_fault_raises_its_alert_and_no_other(tmp_path: Path) -> None:
    """Healthy is silent; a slow probe, a link down and a narrow slot are each named with their part, and resolve."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("[]\n")
    config = tmp_path / "commwatch.yaml"
    config.write_text(PROBED)
    arguments = ("--simulate", "h100x8", "--simulate.faults", str(faults), "--config.file", str(config))
    with prometheus(tmp_path, quick_rules(tmp_path)) as server, running(tmp_path, *arguments) as daemon:
        server.scrape(daemon.address)
        server.until(lambda: server.query("up == 1"))
        server.until(lambda: _learned(daemon))
        server.until(lambda: server.query("commwatch_probe_last_latency_seconds"))
        assert len(server.query("commwatch_nvlink_link_state")) == 144
        assert faults_firing(server) == set()

        inject(faults, "- {fault: slow_probe, latency: 10, bandwidth: 0.3}\n")
        server.until(lambda: {"CommwatchProbeLatencyStreak", "CommwatchProbeBandwidthLow"} <= set(server.firing()))
        (slow,) = server.firing()["CommwatchProbeLatencyStreak"]
        assert slow["labels"]["simulated"] == "true"
        assert float(slow["value"]) >= 3
        assert "results in a row of probe all_reduce (simulated)" in slow["annotations"]["description"]
        assert faults_firing(server) == {"CommwatchProbeLatencyStreak", "CommwatchProbeBandwidthLow"}

        inject(faults, "- {fault: nvlink_down, gpu: 3, link: 5}\n- {fault: pcie_width, gpu: 6, lanes: 8}\n")
        pages = {"CommwatchNvlinkDown", "CommwatchPcieWidthDropped"}
        server.until(lambda: pages <= server.firing().keys())
        (link,) = alert_labels(server, "CommwatchNvlinkDown")
        assert (link["gpu"], link["pci_bus_id"], link["link"], link["severity"]) == (
            "3",
            "0000:3b:00.0",
            "5",
            "critical",
        )
        (slot,) = alert_labels(server, "CommwatchPcieWidthDropped")
        assert slot["pci_bus_id"] == "0000:ba:00.0"

        inject(faults, "[]\n")
        server.until(lambda: "CommwatchProbeLatencyStreak" not in server.firing())
        # Critical alerts hold for ten minutes, so that a dying node does not resolve its own page.
        # Xid 74 of the GPU and SXid 20034 of the NVSwitch may be read before the link, and wait for one second here.
        of_the_link = {"CommwatchXidFabric", "CommwatchSxidFatal"}
        assert pages <= faults_firing(server) <= pages | of_the_link


@pytest.mark.prometheus
def test_a_hung_gpu_and_a_lost_one_page_and_the_others_stay_silent(tmp_path: Path) -> None:
    """The state names each; the seven other GPUs are in no alert."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("[]\n")
    config = tmp_path / "commwatch.yaml"
    config.write_text(f"{QUICK}probes: {{enabled: false}}\n")
    arguments = ("--simulate", "h100x8", "--simulate.faults", str(faults), "--config.file", str(config))
    with prometheus(tmp_path, quick_rules(tmp_path)) as server, running(tmp_path, *arguments) as daemon:
        server.scrape(daemon.address)
        server.until(lambda: _learned(daemon))
        inject(faults, "- {fault: driver_hang, gpu: 1}\n- {fault: gpu_lost, gpu: 4}\n")

        server.until(lambda: {"CommwatchGpuNotAnswering", "CommwatchGpuLost"} <= set(server.firing()))

        assert [labels["gpu"] for labels in alert_labels(server, "CommwatchGpuNotAnswering")] == ["1"]
        assert [labels["gpu"] for labels in alert_labels(server, "CommwatchGpuLost")] == ["4"]
        gpus = {labels.get("gpu") for alerts in server.firing().values() for labels in (a["labels"] for a in alerts)}
        assert gpus <= {"1", "4", None}


@pytest.mark.prometheus
def test_a_restart_with_a_card_fewer_alerts_for_that_card_alone(tmp_path: Path) -> None:
    """The indexes of the later cards move; no rate, no spike and no alert on any of them."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("[]\n")
    config = tmp_path / "commwatch.yaml"
    config.write_text(f"{QUICK}probes: {{enabled: false}}\n")
    arguments = ("--simulate", "h100x8", "--simulate.faults", str(faults), "--config.file", str(config))
    with prometheus(tmp_path, quick_rules(tmp_path)) as server:
        with running(tmp_path, *arguments) as daemon:
            daemon.until(lambda: _learned(daemon) and daemon.keeps("0000:3a:00.0"))
        inject(faults, "- {fault: gpu_missing, gpu: 2}\n")
        with running(tmp_path, *arguments) as daemon:
            server.scrape(daemon.address)
            server.until(lambda: "CommwatchGpuLost" in server.firing())
            (lost,) = server.firing()["CommwatchGpuLost"]
            assert (lost["labels"]["pci_bus_id"], float(lost["value"])) == ("0000:3a:00.0", 4)
            server.until(lambda: len(server.query("count_over_time(commwatch_gpu_state[5s]) >= 4")) == 8)

            assert faults_firing(server) == {"CommwatchGpuLost"}
            peaks = server.query("max_over_time(commwatch_nvlink_transmit_utilization_ratio[1m])")
            assert len(peaks) == 7
            assert all(0 <= value < 0.01 for _, value in peaks)


def _learned(daemon: Daemon) -> bool:
    return daemon.count("nvlink_link_expected") == 144 and daemon.count("pcie_link_width_expected_lanes") == 8
