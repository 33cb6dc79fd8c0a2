"""What a probe's gate is told of the GPUs comes from two collectors, and only from what was read just now."""

from __future__ import annotations

import asyncio

from commwatch.node.gpus_now import GPU_COLLECTORS, GpusNow
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout, Value
from support.passes import in_one_pass

GPU = ("0", "0000:17:00.0")
BEFORE, JUST_NOW = 10.0, 20.0


def _store(use_at: float, processes_at: float) -> Store:
    store = Store()
    store.occupants = {GPU[1]: (4711, 4712)}

    def put(collector: str, time: float, values: dict[str, Value]) -> None:
        layout = Layout((f"commwatch_gpu_{name}", GPU) for name in values)
        store.put(collector, GPU[1], Block(layout, tuple(values.values()), time), 1000.0)

    identity = Layout([("commwatch_gpu_info", (*GPU, "GPU-1", "", "NVIDIA Test", "Hopper"))])
    store.put("nvml_identity", GPU[1], Block(identity, (1,), BEFORE), 1000.0)
    put("nvml_gpu", use_at, {"busy": 0, "memory_used_bytes": 5, "memory_size_bytes": 80, "mig_mode": 1})
    put("nvml_processes", processes_at, {"compute_processes": 2, "compute_mode": 3})
    return store


def test_facts_come_from_the_collectors_that_are_read_before_a_probe() -> None:
    """Use, memory and MIG from one, processes and their mode from the other."""
    (facts,) = GpusNow(_store(JUST_NOW, JUST_NOW)).facts(JUST_NOW)

    assert GPU_COLLECTORS == ("nvml_gpu", "nvml_processes")
    assert facts.device == GPU[1]
    assert (facts.busy, facts.memory_used_bytes, facts.memory_size_bytes) == (False, 5, 80)
    assert (facts.compute_processes, facts.compute_mode, facts.mig) == (2, "exclusive_process", True)
    assert facts.processes == (4711, 4712)


@in_one_pass(
    "use_at, processes_at, known",
    [
        (BEFORE, JUST_NOW, {"compute_processes", "compute_mode", "processes"}),
        (JUST_NOW, BEFORE, {"busy", "memory_used_bytes", "memory_size_bytes", "mig"}),
        (BEFORE, BEFORE, set()),
    ],
)
def test_what_is_older_does_not_say_that_a_gpu_is_free_now(use_at: float, processes_at: float, known: set[str]) -> None:
    """Each of the two for itself."""
    (facts,) = GpusNow(_store(use_at, processes_at)).facts(JUST_NOW)

    names = ("busy", "memory_used_bytes", "memory_size_bytes", "compute_processes", "compute_mode", "mig", "processes")
    assert {name for name in names if getattr(facts, name) is not None} == known


def test_processes_are_known_as_long_as_their_block() -> None:
    """Ids that were read before say nothing of now, and neither do those of a GPU that was given up."""
    store = _store(JUST_NOW, JUST_NOW)
    view = GpusNow(store)
    assert view.occupants(JUST_NOW) == {GPU[1]: (4711, 4712)}
    assert view.occupants(JUST_NOW + 0.1) == {GPU[1]: None}

    store.drop("nvml_processes", GPU[1])
    assert view.occupants(0.0) == {GPU[1]: None}


@in_one_pass(
    "looks, busy",
    [((0, 0), False), ((1, 0), True), ((0, 1), True), ((None, 0), None), ((0, None), None), ((1, None), True)],
)
def test_the_busy_test_looks_twice(looks: tuple[int | None, int | None], busy: bool | None) -> None:
    """A second apart; busy at either look is busy, and what one look did not tell is not known."""
    store, now, waits = _store(BEFORE, BEFORE), [100.0], list[float]()
    left = list(looks)

    async def read() -> None:
        now[0] += 0.01
        layout = Layout([("commwatch_gpu_busy", GPU)])
        store.put("nvml_gpu", GPU[1], Block(layout, (left.pop(0),), now[0]), 1000.0)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    (facts,) = asyncio.run(GpusNow(store).look_twice(read, lambda: now[0], sleep))

    assert facts.busy is busy
    assert waits == [1.0]
