"""What a probe's gate is told of the GPUs comes from two collectors, and only from what was read just now."""

from __future__ import annotations

import pytest

from commwatch.gpu_view import GPU_COLLECTORS, GpuView
from commwatch.store import Store
from commwatch_exporters.snapshot import Block, Layout, Value

GPU = ("0", "0000:17:00.0")
BEFORE, JUST_NOW = 10.0, 20.0


def _store(use_at: float, processes_at: float) -> Store:
    store = Store()

    def put(collector: str, time: float, values: dict[str, Value]) -> None:
        layout = Layout((f"commwatch_gpu_{name}", GPU) for name in values)
        store.put(collector, GPU[1], Block(layout, tuple(values.values()), time), 1000.0)

    identity = Layout([("commwatch_gpu_info", (*GPU, "GPU-1", "", "NVIDIA Test", "Hopper"))])
    store.put("nvml_identity", GPU[1], Block(identity, (1,), BEFORE), 1000.0)
    put("nvml_gpu", use_at, {"busy": 0, "memory_used_bytes": 5})
    put("nvml_processes", processes_at, {"compute_processes": 2, "compute_mode": 3, "mig_mode": 1})
    return store


def test_facts_come_from_the_collectors_that_are_read_before_a_probe() -> None:
    """Use and memory from one, processes and modes from the other."""
    (facts,) = GpuView(_store(JUST_NOW, JUST_NOW)).facts(JUST_NOW)

    assert GPU_COLLECTORS == ("nvml_gpu", "nvml_processes")
    assert facts.device == GPU[1]
    assert (facts.busy, facts.memory_used_bytes) == (False, 5)
    assert (facts.compute_processes, facts.compute_mode, facts.mig) == (2, "exclusive_process", True)


@pytest.mark.parametrize(
    ("use_at", "processes_at", "known"),
    [
        (BEFORE, JUST_NOW, {"compute_processes", "compute_mode", "mig"}),
        (JUST_NOW, BEFORE, {"busy", "memory_used_bytes"}),
        (BEFORE, BEFORE, set()),
    ],
)
def test_what_is_older_does_not_say_that_a_gpu_is_free_now(use_at: float, processes_at: float, known: set[str]) -> None:
    """Each of the two for itself."""
    (facts,) = GpuView(_store(use_at, processes_at)).facts(JUST_NOW)

    names = ("busy", "memory_used_bytes", "compute_processes", "compute_mode", "mig")
    assert {name for name in names if getattr(facts, name) is not None} == known
