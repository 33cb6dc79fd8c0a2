"""Every simulated node, healthy and with faults of each kind of source, has the same page when it is replayed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.daemon import stand_in

from commwatch_rehearsal.simulation.presets import PRESETS
from commwatch_rehearsal.simulation.recording.file import read_recording
from support.daemon import command
from support.recorded import recorded_and_replayed
from support.waiting import PATIENCE_SECONDS

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
RECORDED_SECONDS = 60
DRILL_SECONDS = 600.0
MOST_CORES = 0.02
MOST_BYTES_PER_MINUTE = 5e6
CASES = [*((preset, "") for preset in PRESETS), *(("h100x8ndr", faults) for faults in FAULTS)]


@pytest.mark.parametrize(("preset", "faults"), CASES)
def test_a_replayed_node_has_the_page_of_the_recorded_one(
    preset: str, faults: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample, at each of three times."""
    _, lived, replayed = recorded_and_replayed(preset, FAULTS.get(faults, ""), True, tmp_path, monkeypatch)
    assert min(map(len, lived)) > 300
    assert replayed == lived


def test_recording_costs_little_and_its_file_is_small(tmp_path: Path) -> None:
    """Of 8 GPUs and 10 RDMA ports with a driver in C, so that no simulation is counted: CPU of the whole process."""
    trees, environment = stand_in("h100x8ndr", tmp_path)
    file = tmp_path / "node.cwrec"
    command = [
        sys.executable, "-m", "commwatch", "record", "-o", str(file), "--for", f"{RECORDED_SECONDS}s",
        "--path.state", str(tmp_path), *trees,
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=RECORDED_SECONDS + PATIENCE_SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{cpu:.2f} s of CPU and {file.stat().st_size} bytes in {RECORDED_SECONDS} s")
    held = read_recording(file)
    assert {"nvml", "fields", "gpm"} <= {one.__struct_config__.tag for one in held.answers}
    assert cpu / RECORDED_SECONDS <= MOST_CORES
    assert file.stat().st_size / RECORDED_SECONDS * 60 <= MOST_BYTES_PER_MINUTE


def test_a_reader_that_hangs_is_noted_and_keeps_no_other_from_being_recorded(tmp_path: Path) -> None:
    """The command ends by itself with 1, and the list names the reader and where it is."""
    (tmp_path / "faults.yaml").write_text("- {fault: driver_hang, gpu: 1, at: 0s}\n", encoding="utf-8")
    file = tmp_path / "node.cwrec"
    command = [
        sys.executable, "-m", "commwatch", "record", "-o", str(file), "--for", "2s", "--simulate", "a10x2",
        "--simulate.faults", str(tmp_path / "faults.yaml"), "--path.state", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    held = read_recording(file)
    assert done.returncode == 1, done.stderr
    assert [(one.reader, one.device) for one in held.hung] == [("nvml", "index:1"), ("nvml_pcie", "")]
    assert {"nvml", "file", "ethtool"} <= {one.__struct_config__.tag for one in held.answers}


def test_a_probe_and_a_drill_run_on_a_recording_under_faults(tmp_path: Path) -> None:
    """The probe against the expectation of the recorded parts; the drill until its pages are resolved."""
    recording = str(Path(__file__).parents[1] / "recordings" / "a10x2.cwrec")
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {fault: slow_probe, bandwidth: 0.5, at: 0s}\n", encoding="utf-8")
    node = ("--simulate", recording, "--simulate.faults", str(faults), "--path.state", str(tmp_path))
    large = json.loads(command("probe", "all_reduce", "--json", *node).stdout)["probes"][0]["rows"][-1]
    assert large["expected"]["basis"].startswith("ring limited by PCIe gen 4 x16, through host memory")
    assert 0.4 < large["utilization_ratio"] < 0.6
    played = ["pcie_width_without_nvlink", "gpu_reset_required", "ethernet_down"]
    named = ("--node", recording, *played, "nvlink_down")
    done = command("drill", "--fast", "--json", *named, timeout=DRILL_SECONDS)
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert [one["name"] for one in document["drills"]] == played
    assert document["left_out"].keys() == {"nvlink_down"}
