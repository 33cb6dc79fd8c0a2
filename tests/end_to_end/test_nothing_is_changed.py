"""Nothing resets, clears or configures hardware: what the readers ask of the driver and do to files of the kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pynvml
import pytest

from commwatch_exporters.catalogue import OPT_IN
from support.audited import audited, changes
from support.simulated_daemon import whole_node

ROOT = Path(__file__).parents[2]
READING = re.compile(
    r"nvml(InitWithFlags|Shutdown|ErrorString|(System|Device)Get\w+|Gpm(Sample(Alloc|Free|Get)|MetricsGet|QueryDeviceSupport)"
    r"|EventSet(Create|Free|Wait_v2)|DeviceRegisterEvents)"
)
"""Functions of NVML that change nothing beyond the memory of this process."""


@pytest.mark.parametrize("preset", ["h100x8ndr", "b200x8"])
def test_readers_ask_and_change_nothing(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All collectors, all metrics, faulty GPUs: only functions that read are called, no file is opened to write."""
    asked: list[str] = []
    look_up = pynvml._nvmlGetFunctionPointer

    def noticing(name: str) -> Any:
        asked.append(name)
        return look_up(name)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", noticing)
    faults = "- {fault: xid, gpu: 1, xid: 79, at: 0s}\n- {fault: gpu_lost, gpu: 2, at: 3590s}\n"
    with whole_node(preset, tmp_path, monkeypatch, tuple(OPT_IN), faults) as node:
        for write in ("write_sysfs", "write_procfs"):
            monkeypatch.setattr(node.node, write, lambda *_, **__: None)
        node.time += 1.0
        with audited() as events:
            node.run()

    assert len(set(asked)) > 20
    assert [name for name in sorted(set(asked)) if not READING.fullmatch(name)] == []
    opened = [event for event in events if event[0] == "open" and not changes(event)]
    assert len(opened) > 50
    own = str(tmp_path / "state")
    assert [event for event in events if changes(event) and own not in str(event[1])] == []


def test_nothing_that_is_shipped_names_a_function_that_changes_a_gpu() -> None:
    """Commands and probes neither: of the functions that NVML has for that, none is named in any file of ours."""
    changing = {
        name for name in dir(pynvml)
        if re.match(r"nvml[A-Z]\w*(Set|Reset|Clear|Modify|Remove|Discover|Create|Destroy|Freeze|Validate|Inject)", name)
    } - {"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlEventSetWait_v2"}  # fmt: skip
    assert {
        "nvmlDeviceSetPersistenceMode",
        "nvmlDeviceClearEccErrorCounts",
        "nvmlDeviceResetGpuLockedClocks",
    } < changing
    named = {
        (str(file.relative_to(ROOT)), name)
        for file in (*(ROOT / "daemon").rglob("*.py"), *(ROOT / "exporters").rglob("*.py"))
        for name in re.findall(r"nvml[A-Z]\w+", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert {one for one in named if one[1] in changing} == set()
