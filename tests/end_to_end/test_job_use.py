"""From the use of GPUs by the processes of a job to the finding, on a simulated node."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import rehearsed

NETWORK = "- {fault: job, at: 2m, until: 30m, gpu_utilization: 0.45, ethernet_utilization: 0.9}\n"
UNEVEN = "- {fault: job, at: 2m, gpu: 0, gpu_utilization: 0.6}\n- {fault: job, at: 2m, gpu: 1}\n"
BUSY = "- {fault: job, at: 2m, ethernet_utilization: 0.9}\n"


@pytest.mark.parametrize(
    ("faults", "code"),
    [(NETWORK, "job_network_bound"), (UNEVEN, "job_uneven"), (BUSY, "")],
)
def test_ten_minutes_of_a_job_tell_how_it_uses_its_gpus(
    faults: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finding of the job as a whole, that goes when the job goes; nothing of one that keeps its GPUs busy."""
    with rehearsed("a10x2", tmp_path, monkeypatch, faults) as node:
        for minute in range(1, 17):
            node.until(minute - 0.25, step=60.0)
            node.until(minute)  # close enough for a rate
            assert minute > 13 or node.verdict.findings == []
        assert [one.code for one in node.verdict.findings] == ([code] if code else [])
        if code != "job_network_bound":
            return
        status, text = node.command("diagnose")
        assert status == 1
        assert "The network holds up a job: job on GPU0, GPU1" in " ".join(text.split())
        node.until(40)
        assert node.verdict.findings == []
