"""Faults of a simulated node, through sources, rules and audit, to the checks of topology, InfiniBand and settings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.document import Diagnosis
from support.simulated_daemon import SimulatedDaemon, rehearsed

NODE = """\
like: h100x8ndr
gpus: 2
nics:
  - {rdma: mlx5_0, speed: 400, near_gpu: 0}
  - {rdma: mlx5_1, speed: 400, near_gpu: 1}
  - {rdma: mlx5_2, interface: eth0, speed: 100, near_gpu: 0}
"""
FAULTS = """\
- {fault: nvlink_down, gpu: 0, link: 3, at: 12m}
- {fault: pcie_width, gpu: 1, lanes: 8, at: 12m}
- {fault: rdma_port_down, device: mlx5_1, at: 12m}
- {fault: rdma_errors, device: mlx5_0, counter: symbol_error, rate: 600/min, at: 12m}
- {fault: job, at: 12m}
- {fault: nccl_setting, variable: NCCL_P2P_DISABLE, value: '1', at: 12m}
"""
BRANCHES = ("topology", "infiniband", "settings")


def is_failed(check: Check) -> bool:
    """Whether a check failed."""
    return check.verdict == "failed"


def checked(daemon: SimulatedDaemon) -> list[Check]:
    """What the command shows of the three branches."""
    document = msgspec.json.decode(daemon.command("diagnose", "--json")[1], type=Diagnosis)
    return [check for check in document.checks if check.branch in BRANCHES]


def test_each_fault_fails_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails before; then what is struck does, with the part, and nothing else."""
    (tmp_path / "node.yaml").write_text(NODE)
    with rehearsed(str(tmp_path / "node.yaml"), tmp_path, monkeypatch, FAULTS) as daemon:
        daemon.until(11.5)
        before = checked(daemon)
        daemon.until(15)
        after = checked(daemon)

    assert [check for check in before if is_failed(check)] == []
    assert {(check.what, check.where): (check.measured, check.required) for check in after if is_failed(check)} == {
        ("active NVLinks", "GPU0"): ("17 of 18", "18"),
        ("PCIe lanes", "GPU1"): ("x8", "x16"),
        ("state of the port", "mlx5_1"): ("down", "active"),
        ("active RDMA ports", ""): ("2", "at least 3"),
        ("errors of the link, last hour", "mlx5_0"): (
            "symbol errors in the last hour: 1801 (limit 120)", "nothing beyond the thresholds",
        ),
        ("NCCL_P2P_DISABLE (paths between GPUs)", "2 processes"): ("harmful (p2p off)", "harmless"),
    }  # fmt: skip
    # Under a job generations mean something; the RoCE port has the MTU of a new interface before and after.
    generations = {check.where: check.verdict for check in after if check.what == "PCIe generation"}
    assert generations["GPU0"] == generations["GPU1"] == "passed"
    mtus = {check.where: (check.verdict, check.measured) for check in after if check.what == "MTU of the port"}
    assert mtus["mlx5_2"] == ("notice", "1024 bytes")
