"""From the use of GPUs by the processes of a job to the finding, on a simulated node."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import rehearsed

HALF = "- {fault: job, at: 2m, until: 70m, gpu_utilization: 0.45}\n"
UNEVEN = "- {fault: job, at: 2m, gpu: 0, gpu_utilization: 0.6}\n- {fault: job, at: 2m, gpu: 1}\n"
BUSY = "- {fault: job, at: 2m}\n"


@pytest.mark.parametrize(("faults", "code"), [(HALF, "job_half_used"), (UNEVEN, "job_uneven"), (BUSY, "")])
def test_an_hour_of_a_job_tells_how_it_uses_its_gpus(
    faults: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finding of the job as a whole, that goes when the job goes; nothing of one that keeps its GPUs busy."""
    with rehearsed("a10x2", tmp_path, monkeypatch, faults) as node:
        node.until(60, step=60.0)
        assert node.verdict.findings == []
        node.until(68)
        assert [one.code for one in node.verdict.findings] == ([code] if code else [])
        if code != "job_half_used":
            return
        status, text = node.command("diagnose")
        assert status == 0
        assert "A job leaves its GPUs half used: job on GPU0, GPU1" in " ".join(text.split())
        node.until(78)
        assert node.verdict.findings == []
