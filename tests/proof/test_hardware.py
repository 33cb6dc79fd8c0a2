"""``make hardware`` whole: on a simulated node, and on stand-ins in C for the libraries of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.driver.build import build

ROOT = Path(__file__).parents[2]
CUDA = ROOT / "benchmarks" / "driver" / "cuda.c"
WHOLE_SECONDS = 480
PACE = "0.05"
NOT_SIMULATED = {
    "type of fields 197 and 198 (1: 32 bits, 3: 64 bits)", "PCIe generation, busy", "first import of torch",
    "unit of PCIe throughput, by copies of a known rate", "failed tests of tests/hardware",
}  # fmt: skip
"""Rows of the table that a simulated node cannot fill; a row that no section fills would be among them."""


def run(out: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """The document of a run that crashed nowhere."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hardware", "--out", str(out), "--pace", PACE, *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=WHOLE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads((out / "hardware.json").read_text(encoding="utf-8"))
    return document


def facts(document: dict[str, Any]) -> dict[str, Any]:
    return {name: fact for one in document["sections"].values() for name, fact in one["facts"].items()}


def test_every_section_runs_on_a_simulated_node(tmp_path: Path) -> None:
    """But for the tests, which need a driver in this machine."""
    document = run(tmp_path / "out", "--simulate", "h100x8")
    reasons = {name: one["reason"] for name, one in document["sections"].items() if one["reason"]}
    assert list(reasons) == ["tests"]
    found = facts(document)
    assert found["replayed_gpus"] == found["gpus"] == 8
    assert [found[f"ranks_{count}_result"] for count in (1, 2, 4)] == ["right"] * 3
    assert (found["stopped_state"], found["waiting_states"], found["waiting_ends"]) == ("T", "S", "right")
    assert found["step_beside_count"] > 0
    rows = document["comparison"]
    wrong = {row["words"] for row in rows if row["agrees"] is False}
    assert not {words for words in wrong if "NVLink" in words or "field" in words or "NCCL with" in words}
    assert {row["words"] for row in rows if row["found"] in (None, [])} == NOT_SIMULATED
    text = (tmp_path / "out" / "hardware.txt").read_text()
    assert text.startswith("SIMULATED NODE h100x8")
    assert len(text.splitlines()) <= 45


def test_the_real_path_runs_on_stand_ins_for_the_drivers_libraries(tmp_path: Path) -> None:
    """NVML and CUDA are loaded as on a real machine, and the sections without NCCL run; NCCL has no GPU."""
    libraries = tmp_path / "libraries"
    build("h100x8", libraries)
    compiler = ["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(libraries / "libcuda.so.1"), str(CUDA)]
    subprocess.run(compiler, check=True)
    document = run(tmp_path / "out", LD_LIBRARY_PATH=str(libraries))
    reasons = {name: one["reason"] for name, one in document["sections"].items() if one["reason"]}
    assert list(reasons) == ["torch", "probes", "waiting", "tests"]
    assert len(set(reasons.values())) == 1
    found = facts(document)
    assert found["pcie_receive_call_milliseconds"] == pytest.approx(20, rel=0.5)
    assert found["host_to_device_bytes_per_second"] > 1e8
    assert found["step_alone_count"] > 0
