"""The published cases with a daemon that probes as it is shipped: the cause is the headline of the first full scan."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import STEP_SECONDS, simulated

CASES = Path(__file__).parents[2] / "docs/using/cases"


@pytest.mark.parametrize(
    ("name", "minutes", "headline"),
    [
        ("a10", 25, "Warning: The network holds up a job: job on GPU0, GPU1"),
        ("rtx3090x4", 12, "Warning: GPUs under one PCIe switch are slower than distant ones: GPU0-GPU1"),
        ("a10gx8", 12, "Warning: Most pairs of GPUs are slow: this node"),
        ("a100pcie", 35, "Critical: PCIe link has lost lanes: PCIe link of GPU2"),
        ("h100rails", 90, "Warning: RDMA link carries errors: mlx5_3 port 1"),
    ],
)
def test_the_published_cause_leads_the_first_full_scan(name: str, minutes: int, headline: str, tmp_path: Path) -> None:
    """By cadences, gate and schedule of the daemon, in one screen."""
    node, log = CASES / f"{name}.yaml", CASES / f"{name}-job.log"
    with simulated(
        str(node) if node.exists() else name,
        tmp_path,
        faults=(CASES / f"{name}-faults.yaml").read_text(encoding="utf-8"),
        job_log=log.read_text(encoding="utf-8") if log.exists() else "",
    ) as daemon:
        for step in range(1, round(60 * minutes / STEP_SECONDS) + 1):
            daemon.write_log()
            daemon.step_to(step * STEP_SECONDS)
        code, output = daemon.command("diagnose", "--full-scan")
    lines = output.splitlines()

    assert lines[1].startswith(headline)
    assert code == 1
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
