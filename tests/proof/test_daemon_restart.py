"""A restart of the daemon in the middle of an incident, as the shipped rules see it at their own intervals."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from commwatch.config.assets import asset
from support.scraped_day import ScrapedDay
from support.simulated_daemon import STEP_SECONDS, SimulatedDaemon

pytestmark = pytest.mark.prometheus

FAULTS = """
- {fault: nvlink_down, gpu: 3, link: 5, at: 11m}
- {fault: nvlink_crc, gpu: 0, link: 2, rate: 300/s, at: 11m}
- {fault: pcie_width, gpu: 1, lanes: 8, at: 11m}
- {fault: pcie_aer, gpu: 7, severity: nonfatal, error: CmpltTO, rate: 6/min, at: 11m}
- {fault: fabric_unhealthy, gpu: 5, check: route, at: 11m}
- {fault: service_stopped, service: nv-fabricmanager, at: 11m}
- {fault: xid, gpu: 4, xid: 95, at: 11m}
- {fault: rdma_port_down, device: mlx5_0, at: 11m}
- {fault: rdma_errors, device: mlx5_1, counter: symbol_error, rate: 10/s, at: 11m}
- {fault: rdma_errors, device: mlx5_8, counter: local_ack_timeout_err, rate: 2/s, at: 11m}
- {fault: rdma_saturated, device: mlx5_5, counter: excessive_buffer_overrun_errors, at: 11m}
"""
"""After the ten minutes in which a daemon learns what a node has."""
FIRING = {
    "NvlinkDown": 1, "NvlinkBitErrors": 1, "PcieWidthDropped": 1, "PcieNonfatal": 2, "FabricUnhealthy": 1,
    "FabricServiceDown": 1, "XidGpu": 1, "RdmaPortDown": 1, "RdmaErrors": 2, "RdmaRetransmitting": 1,
    "RdmaCounterSaturated": 1, "Watchdog": 1,
}  # fmt: skip
"""Alerts of these faults: states and events, pages and tickets. What GPU and NVSwitch report of the link that is down
is none, before as after."""
BEFORE, MISSED, AFTER = 70, 2, 8
"""Scrapes since the boot until the daemon stops, those that fail, and those that follow."""
UNSEEN = 36
"""Scrapes before Prometheus knows the node: promtool need not read these. Till then no daemon was there."""


def scraped(folder: Path) -> ScrapedDay:
    """A node with these faults whose daemon is stopped and started again on what it has kept."""
    scrapes = ScrapedDay(UNSEEN)
    with pytest.MonkeyPatch.context() as patched:

        def start(place: int) -> SimulatedDaemon:
            daemon = SimulatedDaemon(
                "h100x8ndr", folder, patched, faults=FAULTS, booted_at=STEP_SECONDS, time_now=place * STEP_SECONDS
            )
            daemon.start()
            return daemon

        daemon = start(0)
        for place in range(1, BEFORE):
            daemon.step_to(place * STEP_SECONDS)
            if place >= UNSEEN:
                scrapes.scrape(daemon.exposed())
        daemon.stop()
        for _ in range(MISSED):
            scrapes.scrape(None)
        daemon = start(BEFORE + MISSED)
        scrapes.scrape(daemon.exposed())  # what it exports at once
        for place in range(BEFORE + MISSED + 1, BEFORE + MISSED + AFTER):
            daemon.step_to(place * STEP_SECONDS)
            scrapes.scrape(daemon.exposed())
        daemon.stop()
    return scrapes


def test_alerts_go_on_over_a_restart_of_the_daemon(tmp_path: Path) -> None:
    """Two scrapes fail: each alert fires at every evaluation before, meanwhile and afterwards, and no other begins."""
    scrapes = scraped(tmp_path)
    evaluations = 1 + MISSED + AFTER
    alerts = 'ALERTS{alertstate="firing", alertname!="CommwatchDaemonAbsent"}'
    window = f"{round((evaluations - 1) * STEP_SECONDS)}s:{round(STEP_SECONDS)}s"
    case = {
        "interval": f"{STEP_SECONDS:g}s",
        "input_series": scrapes.input_series(),
        "promql_expr_test": [{
            "eval_time": f"{round((scrapes.places - 1) * STEP_SECONDS)}s",
            "expr": f"sum by (alertname) (count_over_time({alerts}[{window}]))",
            "exp_samples": [
                {"labels": f'{{alertname="Commwatch{name}"}}', "value": count * evaluations}
                for name, count in FIRING.items()
            ],
        }],
    }  # fmt: skip
    rules = [str(file) for file in sorted(asset("alerts/rules").glob("*.yaml"))]
    file = tmp_path / "restart.json"
    file.write_text(json.dumps({"rule_files": rules, "evaluation_interval": case["interval"], "tests": [case]}))

    told = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)

    assert told.returncode == 0, told.stdout + told.stderr
