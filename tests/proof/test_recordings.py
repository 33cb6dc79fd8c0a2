"""Every simulated node, healthy and with faults of each kind of source, has the same page when it is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from support.recorded import recorded_and_replayed

FAULTS = {
    "gpus": """
- {fault: xid, gpu: 2, at: 3605s, xid: 31}
- {fault: nvlink_down, gpu: 1, link: 3, at: 3605s}
- {fault: gpu_lost, gpu: 3, at: 3605s}
- {fault: gpu_reset_required, gpu: 4, at: 3615s}
- {fault: gpu_calls_fail, gpu: 6, error: unknown, at: 3605s}
""",
    "network": """
- {fault: ethernet_down, interface: ens11f0np0, at: 3605s}
- {fault: confidential_computing, at: 3605s}
""",
    "driver": """
- {fault: driver_reload, at: 3605s, for: 15s}
""",
}
CASES = [*((preset, "") for preset in PRESETS), *(("h100x8ndr", faults) for faults in FAULTS)]


@pytest.mark.parametrize(("preset", "faults"), CASES)
def test_a_replayed_node_has_the_page_of_the_recorded_one(
    preset: str, faults: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample, at each of three times."""
    _, lived, replayed = recorded_and_replayed(preset, FAULTS.get(faults, ""), True, tmp_path, monkeypatch)
    assert min(map(len, lived)) > 300
    assert replayed == lived
